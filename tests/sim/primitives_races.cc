// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/primitives_races.hpp"

#include <atomic>

namespace gimlet::test {
namespace {
std::atomic<int> counters{0};
std::atomic<std::uint64_t> races{0};
}  // namespace

#if defined(__SANITIZE_THREAD__)
bool race_detection_built_in() {
    return true;
}
bool count_race() {
    if (counters.load() == 0) return false;
    races.fetch_add(1);
    return true;
}
#else
bool race_detection_built_in() {
    return false;
}
#endif

RaceCounter::RaceCounter() {
    races.store(0);
    counters.fetch_add(1);
}
RaceCounter::~RaceCounter() {
    counters.fetch_sub(1);
}
std::uint64_t RaceCounter::count() const {
    return races.load();
}

}  // namespace gimlet::test

#if defined(__SANITIZE_THREAD__)
// Hooks of ThreadSanitizer's runtime. The same two lines of code may race in several variants:
// report each time.
extern "C" const char* __tsan_default_options() {
    return "suppress_equal_stacks=0:suppress_equal_addresses=0";
}
namespace __tsan {
class ReportDesc;
bool OnReport(const ReportDesc*, bool suppressed) {
    return gimlet::test::count_race() || suppressed;
}
}  // namespace __tsan
#endif

// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/primitives_races.hpp"

namespace gimlet::test {
namespace {
int counters = 0;
std::uint64_t races = 0;
}  // namespace

#if defined(__SANITIZE_THREAD__)
bool race_detection_built_in() {
    return true;
}

// Runs inside the detector, which must not watch it.
__attribute__((no_sanitize("thread"))) bool count_race() {
    if (counters == 0) return false;
    ++races;
    return true;
}
#else
bool race_detection_built_in() {
    return false;
}
#endif

int seeds_to_run(int seeds) {
    if (!race_detection_built_in()) return seeds;
    return seeds < 8 ? 1 : seeds / 8;
}

// A simulation runs on the caller's thread, so plain variables do.
RaceCounter::RaceCounter() {
    races = 0;
    ++counters;
}
RaceCounter::~RaceCounter() {
    --counters;
}
std::uint64_t RaceCounter::count() const {
    return races;
}

}  // namespace gimlet::test

#if defined(__SANITIZE_THREAD__)
// Hooks of ThreadSanitizer's runtime. The same two lines of code may race in several variants:
// report each time. What the emulator does through the C library (its vectors, its copies) is not
// the program's.
extern "C" const char* __tsan_default_options() {
    return "suppress_equal_stacks=0:suppress_equal_addresses=0:"
           "ignore_interceptors_accesses=1";
}
namespace __tsan {
class ReportDesc;
__attribute__((no_sanitize("thread"))) bool OnReport(const ReportDesc*, bool suppressed) {
    return gimlet::test::count_race() || suppressed;
}
}  // namespace __tsan
#endif

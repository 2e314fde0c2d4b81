// SPDX-License-Identifier: Apache-2.0
#include "host/base/clock.hpp"

#include <atomic>
#include <chrono>

namespace gimlet {
namespace {

constexpr std::uint64_t kLongestGapNs = 4'000'000;

std::atomic<HostClock (*)()> clock_source{nullptr};

std::uint64_t steady_now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

}  // namespace

HostClock steady_host_clock() {
    return {steady_now_ns, kLongestGapNs};
}

HostClock host_clock() {
    auto* const source = clock_source.load(std::memory_order_acquire);
    return source == nullptr ? steady_host_clock() : source();
}

void set_host_clock_source(HostClock (*source)()) noexcept {
    clock_source.store(source, std::memory_order_release);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace gimlet {

/// When a wait of `timeout_ns` that starts now ends. Any number is allowed: beyond 146 years the
/// clock's own type would overflow, and the wait would end at once.
inline std::chrono::steady_clock::time_point deadline_after(std::uint64_t timeout_ns) {
    constexpr std::uint64_t kLongestNs = std::uint64_t{1} << 62;
    return std::chrono::steady_clock::now() +
           std::chrono::nanoseconds(std::min(timeout_ns, kLongestNs));
}

/// Runs `done` until it is true or the deadline has passed; whether it became true.
template <typename Done>
bool poll_until(std::chrono::steady_clock::time_point deadline, const Done& done) {
    constexpr auto kBusyTime = std::chrono::milliseconds(10);
    constexpr auto kNap = std::chrono::microseconds(100);
    const auto start = std::chrono::steady_clock::now();
    while (!done()) {
        const auto now = std::chrono::steady_clock::now();
        if (now >= deadline) return false;
        if (now - start < kBusyTime) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
    }
    return true;
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace gimlet {

/// When a wait of `timeout_ns` that starts now ends. Any number is allowed: beyond 146 years the
/// clock's own type would overflow, and the wait would end at once.
inline std::chrono::steady_clock::time_point deadline_after(std::uint64_t timeout_ns) {
    constexpr std::uint64_t kLongestNs = std::uint64_t{1} << 62;
    return std::chrono::steady_clock::now() +
           std::chrono::nanoseconds(std::min(timeout_ns, kLongestNs));
}

}  // namespace gimlet

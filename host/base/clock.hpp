// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gimlet {

/// The clock that host deadlines are measured with.
struct HostClock {
    std::uint64_t (*now_ns)();
    /// A longer step between two looks counts as this much: the thread was taken away, which says
    /// nothing about the device.
    std::uint64_t longest_gap_ns;
};

/// The calling thread's clock: the steady one, unless somebody has another for it.
HostClock host_clock();
/// For simulations, whose threads have a clock of their own. `source` is asked by any thread for
/// its clock; null takes it back.
void set_host_clock_source(HostClock (*source)()) noexcept;
/// steady_clock, and gaps of 4 ms.
HostClock steady_host_clock();

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// What went wrong on the device, in words.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/abi/device_error.hpp"
#include "host/base/error.hpp"

namespace gimlet {

enum class HealthState {
    open,    ///< usable
    failed,  ///< a step failed; every further call gives the same report
    closed,  ///< closed or aborted
};

struct Health {
    HealthState state = HealthState::open;
    std::optional<DeviceError> error;  ///< the record behind `report`, if the device wrote one
    std::string report;                ///< one line; empty while open
};

/// timed_out -> timeout, peer_refused -> peer_failed, capacity_exceeded -> overflow, a faulty
/// expert index -> invalid_argument, mode_mismatch -> invalid_usage.
ErrorCode error_code_of(DeviceFault fault) noexcept;

/// One line: who waited in which primitive of which step for which peer, what was expected and
/// seen, for how long, what that means and what to do.
std::string describe(const DeviceError& error);

/// Copy of the record if the device has completed it. `record` is host-mapped memory that kernels
/// may be writing.
std::optional<DeviceError> read_device_error(const DeviceError* record) noexcept;

}  // namespace gimlet

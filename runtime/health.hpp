// SPDX-License-Identifier: Apache-2.0
// What went wrong on the device, in words: for one rank, and for the whole group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/abi/device_error.hpp"
#include "device/abi/device_event.hpp"
#include "host/base/error.hpp"

namespace gimlet {

enum class HealthState {
    open,    ///< usable
    failed,  ///< a step failed; every further call gives the same report, until recover()
    closed,  ///< closed or aborted
};

/// What all ranks say about a failed step, as far as they could tell this one.
struct GroupReport {
    /// By world rank; empty = that rank has said nothing.
    std::vector<std::optional<DeviceError>> records;
    /// Excluded ranks, ascending. They are expected to say nothing.
    std::vector<int> excluded;
    /// Ranks that the others' records point at: who refused a step, or whom everybody waits for.
    std::vector<int> suspects;
    /// One line: who is to blame, and for what. Empty without records.
    std::string cause;
    /// Many lines, bounded: `cause`, then each rank's record.
    std::string text;
};

struct Health {
    HealthState state = HealthState::open;
    std::optional<DeviceError> error;  ///< the record behind `report`, if the device wrote one
    std::string report;                ///< one line; empty while open
    std::optional<GroupReport> group;  ///< once the failure was raised
    /// Newest last; with RuntimeConfig::event_ring only. health() copies them from the device,
    /// beside the kernels that run. From a failure to the recovery nothing new is noted. After
    /// close() they are those of the end, after abort(), which waits for nothing, those that were
    /// read last.
    std::vector<DeviceEvent> events;
};

/// timed_out -> timeout, peer_refused -> peer_failed, capacity_exceeded -> overflow, a faulty
/// expert index or argument -> invalid_argument, mode_mismatch and wrong_buffer -> invalid_usage.
ErrorCode error_code_of(DeviceFault fault) noexcept;

/// Local, for any thread at any time, also while calls or kernels of this process hang: the records
/// of all failed steps of this process's Exchanges and Runtime barriers that have not been
/// recovered from, closed or aborted. Calls nothing of CUDA, waits for nothing. For watchdogs:
/// describe() makes text of it.
std::vector<DeviceError> device_errors();

/// One line: who waited in which primitive of which step for which peer, what was expected and
/// seen, for how long, what that means and what to do.
std::string describe(const DeviceError& error);

/// Fills suspects, cause and text from the records. Pure.
GroupReport make_group_report(std::vector<std::optional<DeviceError>> records,
                              std::vector<int> excluded = {});

/// One line an event, newest last, times relative to the newest.
std::string describe(const std::vector<DeviceEvent>& events);

/// Copy of the record if the device has completed it. `record` is host-mapped memory that kernels
/// may be writing.
std::optional<DeviceError> read_device_error(const DeviceError* record) noexcept;

}  // namespace gimlet

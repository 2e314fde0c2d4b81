// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/abi/device_error.hpp"

namespace gimlet {

/// Where a step was when it noted an event.
enum class EventKind : std::uint32_t {
    none = 0,
    begin = 1,  ///< a block has started
    counts_known =
        2,          ///< dispatch: a block has every rank's counts, hence all ranks are in the step
    rows_sent = 3,  ///< dispatch: the last block of the rank has sent its rows
    rows_here = 4,  ///< dispatch: all rows of this rank have arrived
    peers_ready = 5,  ///< combine: a block knows that every rank has entered
    end = 6,          ///< the last block has closed the step
    failed = 7,       ///< the same, of a failed step
};

constexpr const char* name_of(EventKind kind) {
    switch (kind) {
        case EventKind::none: return "none";
        case EventKind::begin: return "begin";
        case EventKind::counts_known: return "counts_known";
        case EventKind::rows_sent: return "rows_sent";
        case EventKind::rows_here: return "rows_here";
        case EventKind::peers_ready: return "peers_ready";
        case EventKind::end: return "end";
        case EventKind::failed: return "failed";
    }
    return "?";
}

/// One entry of a rank's ring of events, in host-mapped memory. `number` counts from 1 and is
/// written last (release, system scope); the entry of a number is (number - 1) % kEventRingSize.
struct DeviceEvent {
    std::uint64_t number;
    std::uint64_t time_ns;  ///< of the GPU's clock, arbitrary zero
    std::uint64_t epoch;
    EventKind kind;
    std::uint16_t tag;  ///< see Tag
    std::uint16_t block;
};
static_assert(sizeof(DeviceEvent) == 32);
static_assert(offsetof(DeviceEvent, kind) == 24);

inline constexpr std::uint32_t kEventRingSize = 256;

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

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
    first_row = 8,    ///< fifo dispatch: a receive warp has counted its first row as arrived
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
        case EventKind::first_row: return "first_row";
    }
    return "?";
}

/// One event as the host reads it.
struct DeviceEvent {
    std::uint64_t number;   ///< from 1, modulo 2^48
    std::uint64_t time_ns;  ///< of the GPU's clock, arbitrary zero, modulo 2^48 (3 days)
    std::uint64_t epoch;
    EventKind kind;
    std::uint16_t tag;  ///< see Tag
    std::uint16_t block;
};

/// One entry of a rank's ring of events, in host-mapped memory: the event with a number is entry
/// (number - 1) % kEventRingSize. Its words are written in any order, without a fence: each carries
/// the low 16 bits of the number below 48 bits of its own, so that a reader tells a whole entry
/// from one that is being overwritten.
///
///     number | time_ns | epoch, low 48 bits | epoch, high 16 bits; block 16; tag 8; kind 8
struct EventSlot {
    std::uint64_t words[4];

    static constexpr EventSlot pack(const DeviceEvent& event) {
        const std::uint64_t what = (event.epoch >> 48) << 32 | std::uint64_t{event.block} << 16 |
                                   (std::uint64_t{event.tag} & 0xffu) << 8 |
                                   (static_cast<std::uint64_t>(event.kind) & 0xffu);
        const std::uint64_t mark = event.number & 0xffffu;
        return EventSlot{{event.number << 16 | mark, event.time_ns << 16 | mark,
                          event.epoch << 16 | mark, what << 16 | mark}};
    }

    /// False if the entry is empty or torn.
    constexpr bool unpack(DeviceEvent* event) const {
        const std::uint64_t mark = words[0] & 0xffffu;
        for (const std::uint64_t word : words) {
            if ((word & 0xffffu) != mark) return false;
        }
        const std::uint64_t number = words[0] >> 16;
        if (number == 0 || (number & 0xffffu) != mark) return false;
        const std::uint64_t what = words[3] >> 16;
        *event = DeviceEvent{number,
                             words[1] >> 16,
                             words[2] >> 16 | (what >> 32) << 48,
                             static_cast<EventKind>(what & 0xffu),
                             static_cast<std::uint16_t>(what >> 8 & 0xffu),
                             static_cast<std::uint16_t>(what >> 16 & 0xffffu)};
        return true;
    }
};
static_assert(sizeof(EventSlot) == 32);

inline constexpr std::uint32_t kEventRingSize = 256;

}  // namespace gimlet

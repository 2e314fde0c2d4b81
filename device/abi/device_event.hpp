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

inline constexpr std::uint32_t kEventKinds = 8;  ///< without none

/// One event as the host reads it.
struct DeviceEvent {
    std::uint64_t number;   ///< place among the events that were read together, 1 = the oldest
    std::uint64_t time_ns;  ///< of the GPU's clock, arbitrary zero, modulo 2^56 (2 years)
    std::uint64_t epoch;
    EventKind kind;
    std::uint16_t tag;  ///< see Tag
    std::uint16_t block;
};

/// One entry of a rank's ring of events, in device memory. Its place says kind, tag and block (see
/// event_index()), so that a block finds it without asking anybody. Its two words are written in
/// any order, without a fence: both carry the low 8 bits of the epoch, so that a reader tells a
/// whole entry from one that is being overwritten.
///
///     epoch | time_ns, 56 bits; low 8 bits of the epoch
struct EventSlot {
    std::uint64_t words[2];

    static constexpr EventSlot pack(std::uint64_t epoch, std::uint64_t time_ns) {
        return EventSlot{{epoch, time_ns << 8 | (epoch & 0xffu)}};
    }

    /// False if the entry is empty or torn.
    constexpr bool unpack(std::uint64_t* epoch, std::uint64_t* time_ns) const {
        if (words[1] >> 8 == 0 || ((words[0] ^ words[1]) & 0xffu) != 0) return false;
        *epoch = words[0];
        *time_ns = words[1] >> 8;
        return true;
    }
};
static_assert(sizeof(EventSlot) == 16);

/// Steps of each kernel that a ring holds: the newest ones.
inline constexpr std::uint32_t kEventSteps = 8;
/// Kernels that note events: barrier, dispatch, combine.
inline constexpr std::uint32_t kEventTags = 3;
static_assert(static_cast<std::uint32_t>(Tag::barrier) == 1 &&
              static_cast<std::uint32_t>(Tag::combine) == kEventTags);
inline constexpr std::uint32_t kEventsPerBlock = kEventTags * kEventSteps * kEventKinds;

/// Where the event is in the ring; the events of a block in one step share 128 bytes.
constexpr std::uint32_t event_index(std::uint32_t block, Tag tag, std::uint64_t epoch,
                                    EventKind kind) {
    const std::uint32_t kernel = block * kEventTags + static_cast<std::uint32_t>(tag) - 1;
    const std::uint32_t step =
        kernel * kEventSteps + static_cast<std::uint32_t>(epoch) % kEventSteps;
    return step * kEventKinds + static_cast<std::uint32_t>(kind) - 1;
}

}  // namespace gimlet

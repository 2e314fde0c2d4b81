// SPDX-License-Identifier: Apache-2.0
// What the rings of Sync::fifo count.
#pragma once

#include <cstdint>
#include <vector>

#include "device/abi/kernel_args.hpp"

namespace gimlet {

/// One end of a ring, counted since its Exchange was made.
struct RingCounters {
    enum class Way : std::uint8_t { away, here };

    Way way = Way::away;  ///< this rank sends, or it receives
    FifoLink link = FifoLink::lsa;
    std::int32_t peer = -1;  ///< world rank at the other end
    std::int32_t channel = 0;
    std::uint32_t slot_count = 0;     ///< capacity; a slot holds one row
    std::uint32_t most_occupied = 0;  ///< most slots in use at one time, as this end saw it (here:
                                      ///< where it waited); none are between steps
    std::uint64_t rows = 0;           ///< rows published (away) or freed (here), modulo 2^64
    std::uint64_t flags = 0;          ///< moves of the tail (away) or of the head (here)
    std::uint64_t stalls = 0;         ///< waits for room (away) or for rows (here)
};

/// Local; blocks until the copies are done. All ends of this rank's rings, channel by channel:
/// first those inside the LSA team, then those of its rail, away before here. Empty with
/// Sync::barrier. `args` are an open Exchange's; its steps must be over.
std::vector<RingCounters> read_ring_counters(const ExchangeArgs& args);

}  // namespace gimlet

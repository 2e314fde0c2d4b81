// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/kernel_args.hpp"

namespace gimlet {

/// What the load warp tells the sum warps about one slot of the ring.
struct RowTicket {
    enum Kind : std::uint32_t {
        row = 0,      ///< the slot holds a piece of a row
        nothing = 1,  ///< the token has no row at all; the slot holds nothing
        stop = 2,     ///< no more units, or the step failed
    };
    Kind kind;
    float weight;
    std::uint32_t last;  ///< 1: the unit (token, piece) ends with this slot
    std::uint32_t padding;
};
static_assert(sizeof(RowTicket) == 16);

/// 16-byte vectors of a piece that one thread sums in registers.
inline constexpr std::int32_t kCombineVectors = 2;

/// Dynamic shared memory of the combine kernel.
struct CombineSharedLayout {
    std::uint32_t slots;        ///< ring of row pieces
    std::uint32_t full;         ///< u64 mbarrier per slot
    std::uint32_t empty;        ///< u64 mbarrier per slot
    std::uint32_t tickets;      ///< RowTicket per slot
    std::uint32_t peer_base;    ///< u64[R]: window base plus skew of an LSA peer, 0 for a GIN peer
    std::uint32_t first_chunk;  ///< i32[R + 1]: first chunk of this rank's rows at each GIN peer
    std::uint32_t verdict;      ///< u32
    std::uint32_t total_bytes;

    static constexpr CombineSharedLayout build(const KernelShape& shape, std::int32_t rank_count) {
        const auto ranks = static_cast<std::uint32_t>(rank_count);
        const auto depth = static_cast<std::uint32_t>(shape.slots_per_warp);
        CombineSharedLayout out{};
        std::uint32_t at = 0;
        const auto place = [&at](std::uint32_t bytes) {
            const std::uint32_t offset = at;
            at = (at + bytes + 15u) / 16u * 16u;
            return offset;
        };
        out.slots = place(depth * shape.slot_bytes);
        out.full = place(depth * 8u);
        out.empty = place(depth * 8u);
        out.tickets = place(depth * 16u);
        out.peer_base = place(ranks * 8u);
        out.first_chunk = place((ranks + 1u) * 4u);
        out.verdict = place(16u);
        out.total_bytes = at;
        return out;
    }

    /// The largest piece that the sum warps of a block can hold.
    static constexpr std::uint32_t max_slot_bytes(std::int32_t thread_count) {
        return static_cast<std::uint32_t>(thread_count - kWarpSize) * kCombineVectors * 16u;
    }
};

}  // namespace gimlet

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
    bool last;           ///< the unit (token, piece) ends with this slot
    std::int32_t token;  ///< whose unit it is

    /// As kept in shared memory: one access of 16 bytes.
    struct alignas(16) Packed {
        std::uint32_t kind;  ///< bits 0 and 1, bit 2: last
        float weight;
        std::int32_t token;
        std::uint32_t unused;
    };
    static constexpr Packed pack(const RowTicket& ticket) {
        return {(ticket.last ? 4u : 0u) | ticket.kind, ticket.weight, ticket.token, 0};
    }
    static constexpr RowTicket unpack(const Packed& packed) {
        return {static_cast<Kind>(packed.kind & 3u), packed.weight, (packed.kind & 4u) != 0,
                packed.token};
    }
};

/// 16-byte vectors of a piece that one thread sums in registers.
inline constexpr std::int32_t kCombineVectors = 4;

/// Row slots of a send warp (Sync::fifo).
inline constexpr std::int32_t kStreamSendSlots = 3;

/// Dynamic shared memory of the combine kernel. A block has shape.copy_warps rings of
/// shape.slots_per_warp slots; each ring has one load warp and an equal share of the other warps,
/// which sum. With Sync::fifo, shape.forward_warps more warps come last: as many as rings, which
/// send rows home, and with several teams as many again, which sum for homes in other teams.
struct CombineSharedLayout {
    std::uint32_t slots;        ///< row pieces, ring by ring
    std::uint32_t full;         ///< u64 mbarrier per slot
    std::uint32_t empty;        ///< u64 mbarrier per slot
    std::uint32_t tickets;      ///< RowTicket::Packed per slot
    std::uint32_t peer_base;    ///< u64[R]: window base plus skew of an LSA peer, 0 for a GIN peer
    std::uint32_t first_chunk;  ///< i32[R + 1]: first chunk of this rank's rows at each GIN peer
    std::uint32_t send_slots;   ///< fifo: kStreamSendSlots slots a send warp
    std::uint32_t send_full;    ///< fifo: u64 mbarrier per such slot
    std::uint32_t heads;    ///< fifo: u64[32] words that were seen a send warp, 64 a warp that sums
    std::uint32_t verdict;  ///< u32
    std::uint32_t total_bytes;

    static constexpr CombineSharedLayout build(const KernelShape& shape, std::int32_t rank_count) {
        const auto ranks = static_cast<std::uint32_t>(rank_count);
        const auto count = static_cast<std::uint32_t>(shape.copy_warps * shape.slots_per_warp);
        CombineSharedLayout out{};
        std::uint32_t at = 0;
        const auto place = [&at](std::uint32_t bytes) {
            const std::uint32_t offset = at;
            at = (at + bytes + 15u) / 16u * 16u;
            return offset;
        };
        out.slots = place(count * shape.slot_bytes);
        out.full = place(count * 8u);
        out.empty = place(count * 8u);
        out.tickets = place(count * 16u);
        out.peer_base = place(ranks * 8u);
        out.first_chunk = place((ranks + 1u) * 4u);
        // Several teams: as many warps again sum, who watch tails and heads.
        const auto forwards = static_cast<std::uint32_t>(shape.forward_warps);
        const auto rings = static_cast<std::uint32_t>(shape.copy_warps);
        const std::uint32_t senders = forwards < rings ? forwards : rings;
        out.send_slots = place(senders * kStreamSendSlots * shape.slot_bytes);
        out.send_full = place(senders * kStreamSendSlots * 8u);
        out.heads = place((senders + 2u * (forwards - senders)) * kWarpSize * 8u);
        out.verdict = place(16u);
        out.total_bytes = at;
        return out;
    }

    /// Threads that sum one ring's rows.
    static constexpr std::int32_t sum_threads(std::int32_t thread_count, std::int32_t ring_count) {
        return (thread_count / kWarpSize / ring_count - 1) * kWarpSize;
    }

    /// The largest piece that the sum warps of a ring can hold.
    static constexpr std::uint32_t max_slot_bytes(std::int32_t thread_count,
                                                  std::int32_t ring_count) {
        return static_cast<std::uint32_t>(sum_threads(thread_count, ring_count)) * kCombineVectors *
               16u;
    }
};

}  // namespace gimlet

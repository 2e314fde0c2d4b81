// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/kernel_args.hpp"

namespace gimlet {

/// Byte offsets of everything the dispatch kernel keeps in dynamic shared memory. One function
/// gives offsets and total, for the host's launch and for the device's pointers.
///
/// A key is what owns a contiguous range of final slots: the destination rank (rank_major) or the
/// expert (expert_major).
struct DispatchSharedLayout {
    std::uint32_t slots;      ///< slots_per_warp row slots a copy, forward or relay warp
    std::uint32_t mbarriers;  ///< u64 per slot
    std::uint32_t peer_base;  ///< u64[R]: window base plus skew of an LSA peer, 0 for a GIN peer
    // From here on: zeroed at the start.
    std::uint32_t key_base;      ///< i32[keys]: final slot of this rank's first row of the key
    std::uint32_t key_count;     ///< i32[keys]: this rank's rows of the key
    std::uint32_t key_send;      ///< i32[keys]: first row in send_rows of a GIN key
    std::uint32_t key_chunk;     ///< i32[keys]: first send-chunk counter of a GIN key
    std::uint32_t key_total;     ///< i32[keys]: rows of the key from all sources
    std::uint32_t block_counts;  ///< i32[R + E]: this block's tokens per rank, then per expert
    std::uint32_t warp_keys;     ///< i32[count_warps][keys]: running ordinals
    std::uint32_t source_rows;   ///< i32[R]: rows that each source sends here
    std::uint32_t expert_rows;   ///< i32[local experts]: rows of each local expert
    std::uint32_t rail;          ///< hybrid: i32[copy_warps][2][teams - 1] rows, then choices given
                                 ///< out; i32[forward_warps][pairs a warp] rows handed on
    std::uint32_t stream;        ///< fifo: u64[receive and relay warps][32] tails that were seen
    std::uint32_t verdict;       ///< u32: the block's fault state
    std::uint32_t total_bytes;

    /// Pairs of the rail that one forward warp serves.
    static constexpr std::int32_t pairs_per_warp(const KernelShape& shape, const RailShape& rail) {
        const std::int32_t warps = shape.forward_warps * shape.block_count;
        return warps > 0 ? (rail.pair_count() + warps - 1) / warps : 0;
    }

    static constexpr DispatchSharedLayout build(const KernelShape& shape, std::int32_t rank_count,
                                                std::int32_t expert_count, Layout layout,
                                                const RailShape& rail = {},
                                                const StreamShape& stream = {}) {
        DispatchSharedLayout out{};
        std::uint32_t at = 0;
        const auto place = [&at](std::uint32_t bytes) {
            const std::uint32_t offset = at;
            at = (at + bytes + 15u) / 16u * 16u;
            return offset;
        };
        const auto ranks = static_cast<std::uint32_t>(rank_count);
        const auto experts = static_cast<std::uint32_t>(expert_count);
        const std::uint32_t keys = layout == Layout::rank_major ? ranks : experts;
        const auto slot_count = static_cast<std::uint32_t>(
            (shape.copy_warps + shape.forward_warps + stream.relay_warps) * shape.slots_per_warp);
        const auto rail_words = static_cast<std::uint32_t>(
            stream.active() ? 0
                            : shape.copy_warps * 2 * rail.peer_count() +
                                  shape.forward_warps * pairs_per_warp(shape, rail));
        const auto stream_warps = static_cast<std::uint32_t>(
            stream.active() ? shape.forward_warps + stream.relay_warps : 0);
        out.slots = place(slot_count * shape.slot_bytes);
        out.mbarriers = place(slot_count * 8u);
        out.peer_base = place(ranks * 8u);
        out.key_base = place(keys * 4u);
        out.key_count = place(keys * 4u);
        out.key_send = place(keys * 4u);
        out.key_chunk = place(keys * 4u);
        out.key_total = place(keys * 4u);
        out.block_counts = place((ranks + experts) * 4u);
        out.warp_keys = place(static_cast<std::uint32_t>(shape.count_warps) * keys * 4u);
        out.source_rows = place(ranks * 4u);
        out.expert_rows = place((experts + ranks - 1u) / ranks * 4u);
        out.rail = place(rail_words * 4u);
        out.stream = place(stream_warps * kWarpSize * 8u);
        out.verdict = place(16u);
        out.total_bytes = at;
        return out;
    }
};

}  // namespace gimlet

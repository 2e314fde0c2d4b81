// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/dispatch_count.hpp"

// Phase 2: from the table of counts to final slots. All of it is computed redundantly by every
// block, so that no grid barrier is needed; every rank computes the same numbers.
namespace gimlet::device {

/// Fills peer_base: the window base of each LSA peer, 0 for peers behind GIN.
GIMLET_DEVICE void fill_peer_bases(const DispatchContext& ctx) {
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        const bool lsa = is_lsa_peer(ctx.peers, rank);
        ctx.peer_base[rank] =
            lsa ? reinterpret_cast<std::uint64_t>(peer_pointer(ctx.peers, rank, 0)) : 0;
    }
}

/// Reports rows that would not fit the receive buffer of `rank`. Every rank sees the same counts
/// and stops alike.
GIMLET_DEVICE bool fits(const DispatchContext& ctx, std::int32_t rank, std::int64_t rows) {
    if (rows <= ctx.exchange.row_capacity) return true;
    report_fault(ctx.wait_scope(Primitive::count_exchange),
                 WaitTarget{rank, -1, static_cast<std::uint64_t>(ctx.exchange.row_capacity)},
                 DeviceFault::capacity_exceeded, static_cast<std::uint64_t>(rows), 0);
    ctx.poison();
    return false;
}

/// expert_major: adds to key_base each expert's aligned block start within its owner. One thread
/// per rank.
GIMLET_DEVICE bool add_block_starts(const DispatchContext& ctx) {
    bool good = true;
    const std::int64_t alignment = ctx.exchange.expert_alignment;
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        std::int64_t start = 0;
        const std::int32_t first = ctx.exchange.experts.first(rank);
        for (std::int32_t i = 0; i < ctx.exchange.experts.local_count(rank); ++i) {
            ctx.key_base[first + i] += static_cast<std::int32_t>(start);
            start += (ctx.key_total[first + i] + alignment - 1) / alignment * alignment;
        }
        good = fits(ctx, rank, start) && good;
    }
    return good;
}

/// GIN keys get consecutive ranges of the send buffer and of the chunk counters, in key order. One
/// warp.
GIMLET_DEVICE void place_send_ranges(const DispatchContext& ctx) {
    if (warp_index() != 0) return;
    std::int32_t send = 0;
    std::int32_t chunk = 0;
    const std::int32_t keys = ctx.key_total_count();
    for (std::int32_t base = 0; base < keys; base += kWarpSize) {
        const std::int32_t key = base + lane_index();
        const bool gin = key < keys && ctx.peer_base[ctx.rank_of_key(key)] == 0;
        const std::int32_t rows = gin ? ctx.key_count[key] : 0;
        const std::int32_t chunks = (rows + ctx.exchange.chunk_rows - 1) / ctx.exchange.chunk_rows;
        std::int32_t row_sum = rows;
        std::int32_t chunk_sum = chunks;
        for (std::int32_t step = 1; step < kWarpSize; step *= 2) {
            const std::int32_t row_left = __shfl_up_sync(0xffffffffu, row_sum, step);
            const std::int32_t chunk_left = __shfl_up_sync(0xffffffffu, chunk_sum, step);
            if (lane_index() >= step) {
                row_sum += row_left;
                chunk_sum += chunk_left;
            }
        }
        if (key < keys) {
            ctx.key_send[key] = send + row_sum - rows;
            ctx.key_chunk[key] = chunk + chunk_sum - chunks;
        }
        send += __shfl_sync(0xffffffffu, row_sum, kWarpSize - 1);
        chunk += __shfl_sync(0xffffffffu, chunk_sum, kWarpSize - 1);
    }
}

/// Computes key_base, key_count, key_total and, with GIN peers, the send ranges. Whole block, after
/// wait_for_counts; contains block barriers. Block-uniform verdict.
GIMLET_DEVICE bool build_key_tables(const DispatchContext& ctx) {
    bool good = true;
    const std::int32_t keys = ctx.key_total_count();
    for (std::int32_t key = thread_index(); key < keys; key += block_threads()) {
        const std::int32_t word = ctx.key_word(key);
        std::int32_t lower = 0;
        std::int64_t total = 0;
        for (std::int32_t source = 0; source < ctx.peers.rank_count; ++source) {
            const std::int32_t rows = ctx.count(source, word);
            if (source < ctx.peers.rank) lower += rows;
            if (source == ctx.peers.rank) ctx.key_count[key] = rows;
            total += rows;
        }
        ctx.key_base[key] = lower;
        ctx.key_total[key] = static_cast<std::int32_t>(total);
        if (ctx.rank_major()) good = fits(ctx, key, total) && good;
    }
    block_sync();
    if (!ctx.rank_major()) good = add_block_starts(ctx) && good;
    if (ctx.has_gin_peers()) place_send_ranges(ctx);
    return block_all(good);
}

/// Writes the slots of this block's tokens into the routing, from the ordinals that start_ordinals
/// left in warp_keys.
GIMLET_DEVICE void assign_slots(const DispatchContext& ctx) {
    const std::int32_t warp = warp_index();
    if (warp >= ctx.exchange.shape.count_warps) return;
    const std::int32_t lane = lane_index();
    std::int32_t* ordinals = ctx.warp_keys + warp * ctx.key_total_count();
    const TokenRange range = warp_tokens(ctx, warp);
    for (std::int32_t token = range.begin; token < range.end; ++token) {
        const TokenChoices choice = token_choices(ctx, ctx.lane_expert(token, lane));
        SlotRef ref{-1, -1};
        HomeRef home{-1, -1};
        if (choice.key >= 0) {
            const std::int32_t ordinal = ordinals[choice.key]++;
            ref = SlotRef{choice.rank, ctx.key_base[choice.key] + ordinal};
            if (ctx.peer_base[choice.rank] == 0) {
                home = HomeRef{ctx.key_send[choice.key] + ordinal,
                               ctx.key_chunk[choice.key] + ordinal / ctx.exchange.chunk_rows};
            }
        }
        if (lane < ctx.exchange.topk) {
            const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane;
            ctx.args.routing.slots[at] = ref;
            ctx.args.routing.home[at] = home;
        }
        warp_sync();
    }
}

/// Rows of the own receive buffer that belong to `source`: a running sum gives source_offsets.
GIMLET_DEVICE std::int32_t rows_from(const DispatchContext& ctx, std::int32_t source) {
    if (ctx.rank_major()) return ctx.count(source, 1 + ctx.peers.rank);
    std::int32_t rows = 0;
    const std::int32_t first = ctx.exchange.experts.first(ctx.peers.rank);
    for (std::int32_t i = 0; i < ctx.exchange.experts.local_count(ctx.peers.rank); ++i) {
        rows += ctx.count(source, ctx.key_word(first + i));
    }
    return rows;
}

/// Fills the arrays behind one StepCounts header. Threads of block 0; ends with a block barrier.
GIMLET_DEVICE void fill_step_arrays(const DispatchContext& ctx, StepCounts* step) {
    const StepCountsLayout layout{ctx.peers.rank_count, ctx.exchange.experts.max_local_count()};
    auto* base = reinterpret_cast<std::byte*>(step);
    auto* expert_counts = reinterpret_cast<std::int32_t*>(base + layout.expert_counts());
    auto* expert_offsets = reinterpret_cast<std::int32_t*>(base + layout.expert_offsets());
    auto* source_offsets = reinterpret_cast<std::int32_t*>(base + layout.source_offsets());
    const std::int32_t local = ctx.exchange.experts.local_count(ctx.peers.rank);
    const std::int32_t first = ctx.exchange.experts.first(ctx.peers.rank);
    const std::int32_t expert_word = 1 + ctx.peers.rank_count + (ctx.rank_major() ? 0 : first);
    for (std::int32_t i = thread_index(); i < local; i += block_threads()) {
        std::int32_t rows = 0;
        for (std::int32_t source = 0; source < ctx.peers.rank_count; ++source) {
            rows += ctx.count(source, expert_word + i);
        }
        expert_counts[i] = rows;
    }
    for (std::int32_t source = thread_index(); source < ctx.peers.rank_count;
         source += block_threads()) {
        source_offsets[source + 1] = rows_from(ctx, source);
    }
    block_sync();
    if (thread_index() != 0) return;
    std::int32_t rows = 0;
    source_offsets[0] = 0;
    for (std::int32_t source = 0; source < ctx.peers.rank_count; ++source) {
        rows += source_offsets[source + 1];
        source_offsets[source + 1] = rows;
    }
    std::int32_t start = 0;
    for (std::int32_t i = 0; i < local; ++i) {
        expert_offsets[i] = start;
        const std::int32_t alignment = ctx.exchange.expert_alignment;
        start += (expert_counts[i] + alignment - 1) / alignment * alignment;
    }
    expert_offsets[local] = start;
    step->token_row_count = rows;
    step->row_count = ctx.rank_major() ? rows : start;
    step->local_expert_count = local;
}

/// Block 0 of a fresh step writes what the routing keeps: counts of all ranks, StepCounts, and the
/// host's copy. The host's epoch word comes last, so that a host that polls it sees the rest.
GIMLET_DEVICE void record_step(const DispatchContext& ctx) {
    if (block_index() != 0) return;
    StepCounts* step = ctx.args.routing.step;
    if (ctx.args.mode == RoutingMode::fresh) {
        const std::int32_t row_words = ctx.peers.shape.count_row_words();
        const std::int32_t used = 1 + ctx.peers.rank_count + ctx.peers.shape.expert_words;
        for (std::int32_t i = thread_index(); i < row_words * ctx.peers.rank_count;
             i += block_threads()) {
            const bool counts = i % row_words > 0 && i % row_words < used;
            ctx.args.routing.counts[i] = counts ? ctx.count(i / row_words, i % row_words) : 0;
        }
        fill_step_arrays(ctx, step);
        if (thread_index() == 0) {
            std::int32_t sent = 0;
            for (std::int32_t key = 0; key < ctx.key_total_count(); ++key)
                sent += ctx.key_count[key];
            step->sent_row_count = sent;
        }
        block_sync();
    }
    if (thread_index() == 0) step->epoch = ctx.epoch;
    block_sync();
    if (ctx.args.host_step == nullptr) return;
    const StepCountsLayout layout{ctx.peers.rank_count, ctx.exchange.experts.max_local_count()};
    const auto* from = reinterpret_cast<const std::uint32_t*>(step);
    auto* to = reinterpret_cast<std::uint32_t*>(ctx.args.host_step);
    for (std::uint32_t i = 2 + static_cast<std::uint32_t>(thread_index());
         i < layout.total_bytes() / 4u; i += static_cast<std::uint32_t>(block_threads())) {
        to[i] = from[i];
    }
    block_sync();
    if (thread_index() == 0) store_release<Scope::system>(&ctx.args.host_step->epoch, ctx.epoch);
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/dispatch_count.hpp"

// Phase 2: from the table of counts to final slots. All of it is computed redundantly by every
// block, so that no grid barrier is needed; every rank computes the same numbers.
namespace gimlet::device {

/// Fills peer_base: the skewed window base of each LSA peer, 0 for peers behind GIN.
template <Reach R>
GIMLET_DEVICE void fill_peer_bases(const DispatchContext<R>& ctx) {
    GIMLET_ROLLED
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        const bool lsa = ctx.is_lsa(rank);
        ctx.peer_base[rank] = lsa ? reinterpret_cast<std::uint64_t>(peer_pointer(
                                        ctx.peers, rank, ctx.exchange.regions.rank_skew(rank)))
                                  : 0;
    }
}

/// Reports rows that would not fit the receive buffer of `rank`. Every rank sees the same counts
/// and stops alike.
template <Reach R>
GIMLET_DEVICE bool fits(const DispatchContext<R>& ctx, std::int32_t rank, std::int64_t rows) {
    if (rows <= ctx.exchange.row_capacity || mutated(Mutant::slot_capacity_ignored)) return true;
    report_fault(ctx.wait_scope(Primitive::count_exchange),
                 WaitTarget{rank, -1, static_cast<std::uint64_t>(ctx.exchange.row_capacity)},
                 DeviceFault::capacity_exceeded, static_cast<std::uint64_t>(rows), 0);
    ctx.poison();
    return false;
}

/// expert_major: adds to key_base each expert's aligned block start within its owner. One thread
/// per rank.
template <Reach R>
GIMLET_DEVICE bool add_block_starts(const DispatchContext<R>& ctx) {
    bool good = true;
    const auto alignment = mutate(Mutant::slot_alignment_ignored,
                                  static_cast<std::uint32_t>(ctx.exchange.expert_alignment), 1);
    GIMLET_ROLLED
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        std::int64_t start = 0;
        const std::int32_t first = ctx.experts.first(rank);
        GIMLET_ROLLED
        for (std::int32_t i = 0; i < ctx.experts.local_count(rank); ++i) {
            ctx.key_base[first + i] += static_cast<std::int32_t>(start);
            start += (static_cast<std::uint32_t>(ctx.key_total[first + i]) + alignment - 1) /
                     alignment * alignment;
        }
        good = fits(ctx, rank, start) && good;
    }
    return good;
}

/// Inclusive sum over the warp's lanes.
GIMLET_DEVICE std::int32_t warp_running_sum(std::int32_t value) {
    GIMLET_ROLLED
    for (std::int32_t step = 1; step < kWarpSize; step *= 2) {
        const std::int32_t left = __shfl_up_sync(0xffffffffu, value, step);
        if (lane_index() >= step) value += left;
    }
    return value;
}

/// GIN keys get consecutive ranges of the send buffer and of the chunk counters, in key order. One
/// warp.
template <Reach R>
GIMLET_DEVICE void place_send_ranges(const DispatchContext<R>& ctx) {
    if (warp_index() != 0) return;
    std::int32_t send = 0;
    std::int32_t chunk = 0;
    const std::int32_t keys = ctx.key_total_count();
    GIMLET_ROLLED
    for (std::int32_t base = 0; base < keys; base += kWarpSize) {
        const std::int32_t key = base + lane_index();
        const bool gin = key < keys && ctx.peer_base[ctx.rank_of_key(key)] == 0;
        const std::int32_t rows = gin ? ctx.key_count[key] : 0;
        const std::int32_t chunks = (rows + ctx.exchange.chunk_rows - 1) / ctx.exchange.chunk_rows;
        const std::int32_t row_sum = warp_running_sum(rows);
        const std::int32_t chunk_sum = warp_running_sum(chunks);
        if (key < keys) {
            ctx.key_send[key] = send + mutate(Mutant::slot_send_ranges_overlap, row_sum - rows, 0);
            ctx.key_chunk[key] = chunk + chunk_sum - chunks;
        }
        send += __shfl_sync(0xffffffffu, row_sum, kWarpSize - 1);
        chunk += __shfl_sync(0xffffffffu, chunk_sum, kWarpSize - 1);
    }
}

/// Turns the counts that receive_counts took into final slots: checks capacities, adds aligned
/// block starts, and with GIN peers places the send ranges. Whole block; contains block barriers.
/// Block-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool build_key_tables(const DispatchContext<R>& ctx) {
    bool good = true;
    if (ctx.rank_major()) {
        GIMLET_ROLLED
        for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count;
             rank += block_threads()) {
            good = fits(ctx, rank, ctx.key_total[rank]) && good;
        }
    } else {
        good = add_block_starts(ctx);
    }
    if constexpr (R == Reach::gin) place_send_ranges(ctx);
    return block_all(good);
}

/// Writes the slots of one token a group into the routing and moves the warp's ordinals on. Whole
/// warp; lanes ascend with tokens, so ordinals do. `token` is the lane's, maybe beyond `end`.
template <Reach R>
GIMLET_DEVICE void assign_step(const DispatchContext<R>& ctx, const TokenGroups& groups,
                               std::int32_t* ordinals, std::int32_t token, std::int32_t end,
                               std::int32_t expert) {
    const TokenChoices choice = token_choices(ctx, groups.group, expert);
    const KeyPeers peers(choice.key);
    SlotRef ref{-1, -1};
    HomeRef home{-1, -1};
    const std::int32_t start = choice.key >= 0 ? ordinals[choice.key] : 0;
    warp_sync();
    if (choice.key >= 0) {
        const std::int32_t ordinal = start + peers.before;
        if (peers.leads())
            ordinals[choice.key] = start + mutate(Mutant::slot_ordinal_stays, peers.count, 0);
        ref = SlotRef{choice.rank, ctx.key_base[choice.key] + ordinal};
        if (R == Reach::gin && ctx.peer_base[choice.rank] == 0) {
            home = HomeRef{ctx.key_send[choice.key] + ordinal,
                           ctx.key_chunk[choice.key] + ordinal / ctx.exchange.chunk_rows};
        }
    }
    if (token < end && ctx.is_own_token(token) && groups.choice < ctx.exchange.topk) {
        const std::int64_t at =
            static_cast<std::int64_t>(token) * ctx.exchange.topk + groups.choice;
        ctx.args.routing.slots[at] = ref;
        if constexpr (R == Reach::gin) ctx.args.routing.home[at] = home;
    }
    warp_sync();
}

/// Tells which choices of a range of tokens were dropped, one token a lane.
template <Reach R>
GIMLET_DEVICE void note_dropped(const DispatchContext<R>& ctx, const TokenRange& range) {
    GIMLET_ROLLED
    for (std::int32_t token = range.begin + lane_index(); token < range.end; token += kWarpSize) {
        if (!ctx.is_own_token(token)) continue;
        std::uint32_t dropped = 0;
        GIMLET_ROLLED
        for (std::int32_t k = 0; k < ctx.exchange.topk; ++k) {
            if (ctx.is_dropped(ctx.raw_expert(token, k))) dropped |= 1u << k;
        }
        ctx.args.routing.dropped[token] = dropped;
    }
}

/// Writes the slots of this block's tokens into the routing, from the ordinals in warp_keys.
template <Reach R>
GIMLET_DEVICE void assign_slots(const DispatchContext<R>& ctx, const TokenBatch& first) {
    const TokenGroups groups(ctx);
    const TokenRange range = warp_tokens(ctx, warp_index());
    std::int32_t* ordinals = ctx.warp_keys + warp_index() * ctx.key_total_count();
    visit_tokens(ctx, groups, range, first, [&](std::int32_t token, std::int32_t expert) {
        assign_step(ctx, groups, ordinals, token, range.end, expert);
    });
    if (ctx.excluded_ranks != 0) note_dropped(ctx, range);
}

/// out[0 .. count] = running sums of value(i), starting with 0; returns the last. One warp.
template <typename Value>
GIMLET_DEVICE std::int32_t write_running_sums(std::int32_t* out, std::int32_t count,
                                              const Value& value) {
    std::int32_t before = 0;
    GIMLET_ROLLED
    for (std::int32_t base = 0; base < count; base += kWarpSize) {
        const std::int32_t i = base + lane_index();
        const std::int32_t mine = i < count ? value(i) : 0;
        const std::int32_t sum = before + warp_running_sum(mine);
        if (i < count) out[i] = sum - mine;
        before = __shfl_sync(0xffffffffu, sum, kWarpSize - 1);
    }
    if (lane_index() == 0) out[count] = before;
    return before;
}

/// Writes one StepCounts and its arrays from the block's tables; `epoch` comes last, the host's
/// released at system scope: who polls it sees the rest. One warp of block 0.
template <Reach R>
GIMLET_DEVICE void write_step(const DispatchContext<R>& ctx, StepCounts* step) {
    const StepCountsLayout layout{ctx.peers.rank_count, ctx.experts.max_local_count()};
    auto* base = reinterpret_cast<std::byte*>(step);
    auto* expert_counts = reinterpret_cast<std::int32_t*>(base + layout.expert_counts());
    auto* expert_offsets = reinterpret_cast<std::int32_t*>(base + layout.expert_offsets());
    auto* source_offsets = reinterpret_cast<std::int32_t*>(base + layout.source_offsets());
    const std::int32_t local = ctx.experts.local_count(ctx.peers.rank);
    const std::int32_t alignment = ctx.exchange.expert_alignment;
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < local; i += kWarpSize)
        expert_counts[i] = ctx.expert_rows[i];
    const std::int32_t padded = write_running_sums(expert_offsets, local, [&](std::int32_t i) {
        return (ctx.expert_rows[i] + alignment - 1) / alignment * alignment;
    });
    const std::int32_t rows = write_running_sums(
        source_offsets, ctx.peers.rank_count, [&](std::int32_t i) { return ctx.source_rows[i]; });
    std::int32_t sent = 0;
    GIMLET_ROLLED
    for (std::int32_t key = lane_index(); key < ctx.key_total_count(); key += kWarpSize)
        sent += ctx.key_count[key];
    sent = __shfl_sync(0xffffffffu, warp_running_sum(sent), kWarpSize - 1);
    warp_sync();
    if (lane_index() != 0) return;
    step->token_row_count = rows;
    step->row_count = ctx.rank_major() ? rows : padded;
    step->local_expert_count = local;
    step->sent_row_count = sent;
    step->partial = ctx.excluded_ranks != 0 ? 1 : 0;
    if (step == ctx.args.host_step) {
        store_release<Scope::system>(&step->epoch, ctx.epoch);
    } else if constexpr (has_rings(R)) {
        store_release<Scope::gpu>(&step->epoch, ctx.epoch);  // for kernels beside this one, too
    } else {
        step->epoch = ctx.epoch;  // for kernels behind this one
    }
}

/// The first metadata warp of block 0 tells device and host what the step holds, while the rows
/// move.
template <Reach R>
GIMLET_DEVICE void record_step(const DispatchContext<R>& ctx) {
    if (block_index() != 0 || warp_index() != ctx.exchange.shape.copy_warps) return;
    StepCounts* step = ctx.args.host_step;
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < 2; ++i, step = ctx.args.routing.step) {
        if (step != nullptr) write_step(ctx, step);
    }
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/signaled_tail.hpp"
#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/rail_address.hpp"

// Hybrid combine: what the rail adds to the ring of combine.cu. A forwarder sums the rows that its
// team holds for a token of its rail and sends the sums home in the order of the dispatch's rows.
namespace gimlet::device {

using RailCombine = CombineContext<Reach::rail>;

/// Tells the rail that this rank has entered the step, or that it refuses it: adds channel_count to
/// the signal of every rail peer. Block 0.
template <Reach R>
GIMLET_DEVICE void signal_ready_on_rail(const CombineContext<R>& ctx, bool refuses) {
    if (refuses && !ctx.tells_refusal()) return;
    const RailShape& rail = ctx.exchange.rail;
    const std::uint64_t ready = static_cast<std::uint64_t>(rail.channel_count);
    const std::uint64_t mark = refuses ? refused_mark(ctx.epoch) : 0;
    const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < rail.peer_count(); i += block_threads()) {
        const std::int32_t peer = rail_peer(ctx.exchange, i * rail.channel_count);
        if (ctx.excluded(peer)) continue;
        gin.signal(
            world_team(ctx.peers), peer,
            ncclGin_WeakSignalAdd{ctx.signals().combine_ready(ctx.peers.rank), ready + mark});
    }
}

/// Last block: the ready signals become part of what earlier steps amount to, and send buffers are
/// free (flush = sources reusable).
template <Reach R>
GIMLET_DEVICE void settle_ready(const CombineContext<R>& ctx) {
    const RailShape& rail = ctx.exchange.rail;
    const SignalShadow shadow(ctx.peers);
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < rail.peer_count(); i += block_threads()) {
        const std::int32_t peer = rail_peer(ctx.exchange, i * rail.channel_count);
        shadow.advance(ctx.contexts().notify_context(), ctx.signals().combine_ready(peer),
                       mutate(Mutant::home_ready_shadow_stays,
                              static_cast<std::uint64_t>(rail.channel_count), 0));
    }
    GIMLET_ROLLED
    for (std::int32_t context = warp_index(); context < ctx.peers.gin_context_count;
         context += warp_count()) {
        const ncclGin gin = gin_context(ctx.peers, context);
        if (!mutated(Mutant::home_no_flush)) gin.flush(ncclCoopWarp());
    }
}

GIMLET_DEVICE bool pre_sums(const RailCombine& ctx) {
    return ctx.exchange.rail.pre_sum == PreSum::on;
}

/// Whether forwarders weight the rows that they sum. Always so where rows can be weighted at all:
/// home sends weights (1 without), so that nobody has to agree on it.
GIMLET_DEVICE bool ships_weights(const RailCombine& ctx) {
    return pre_sums(ctx) && !ctx.rank_major();
}

/// First row of `pair` in home_rows and back_rows.
GIMLET_DEVICE std::int64_t first_home_row(const RailCombine& ctx, std::int32_t pair) {
    return ctx.exchange.rail.first_row(pair) * ctx.exchange.rail.copy_count;
}

/// Puts the weights of one pair's tokens beside the rail rows of its other end. Whole block.
GIMLET_DEVICE void ship_weights(const RailCombine& ctx, std::int32_t pair) {
    const RailShape& rail = ctx.exchange.rail;
    const auto topk = static_cast<std::uint64_t>(ctx.exchange.topk);
    const std::int32_t per_channel = rail.channel_tokens(ctx.args.token_count);
    const std::int64_t begin = static_cast<std::int64_t>(rail.channel_of(pair)) * per_channel;
    const std::int64_t left = ctx.args.token_count - begin;
    const std::int64_t tokens = left < 0 ? 0 : left < per_channel ? left : per_channel;
    const std::int64_t first = rail.first_row(pair);
    auto* send = reinterpret_cast<float*>(ctx.peers.local + ctx.exchange.regions.rail_weights_send);
    GIMLET_ROLLED
    for (std::int64_t i = thread_index(); i < tokens * ctx.exchange.topk; i += block_threads()) {
        const std::int64_t at = begin * ctx.exchange.topk + i;
        const std::int64_t row = ctx.args.routing.home[at].row;
        if (row < first || row >= first + rail.channel_rows) continue;
        send[row * ctx.exchange.topk + i % ctx.exchange.topk] =
            ctx.args.weights == nullptr || mutated(Mutant::home_weight_dropped)
                ? 1.0f
                : ctx.args.weights[at];
    }
    block_sync();
    if (thread_index() != 0) return;
    const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
    const std::uint32_t signal = ctx.signals().combine_ready(ctx.peers.rank);
    const auto rows = static_cast<std::uint64_t>(ctx.args.routing.rail_sent[pair]);
    const std::int32_t peer = rail_peer(ctx.exchange, pair);
    if (rows == 0) {
        gin.signal(world_team(ctx.peers), peer, ncclGin_WeakSignalAdd{signal, 1});
        return;
    }
    const std::uint64_t row_bytes = topk * sizeof(float);
    gin.put(world_team(ctx.peers), peer, ctx.peers.window,
            ctx.exchange.regions.rail_weights +
                static_cast<std::uint64_t>(rail.first_row(rail.pair_there(pair))) * row_bytes,
            ctx.peers.window,
            ctx.exchange.regions.rail_weights_send + static_cast<std::uint64_t>(first) * row_bytes,
            rows * row_bytes, ncclGin_WeakSignalAdd{signal, 1});
}

/// Tells the rail that this rank has entered the step: its home rows are free, and its weights are
/// on the way; or that it refuses the step. Adds channel_count to the signal of every rail peer, in
/// one or in many additions. All threads.
GIMLET_DEVICE void announce_on_rail(const RailCombine& ctx) {
    const RailShape& rail = ctx.exchange.rail;
    const bool refuses = block_any(ctx.refuses());
    if (ships_weights(ctx) && !refuses) {
        GIMLET_ROLLED
        for (std::int32_t pair = block_index(); pair < rail.pair_count(); pair += block_count())
            ship_weights(ctx, pair);
        return;
    }
    if (block_index() == 0) signal_ready_on_rail(ctx, refuses);
}

/// The row that lane k's choice of rail row `row` left in this team. Only lanes below K.
GIMLET_DEVICE LaneRow forwarded_row(const RailCombine& ctx, std::int64_t row) {
    LaneRow out{0, 1.0f, {-1, -1}, {-1, -1}};
    if (lane_index() >= ctx.exchange.topk) return out;
    const std::int64_t at = row * ctx.exchange.topk + lane_index();
    out.slot = ctx.args.routing.rail_slots[at];
    if (out.slot.rank < 0) return out;
    out.address = ctx.peer_base[out.slot.rank] + ctx.exchange.regions.combine_rows[ctx.parity] +
                  static_cast<std::uint64_t>(out.slot.slot) * ctx.args.row_bytes;
    if (ships_weights(ctx)) {
        out.weight =
            reinterpret_cast<const float*>(ctx.peers.local + ctx.exchange.regions.rail_weights)[at];
    }
    return out;
}

/// One thread: puts home rows [begin, end) of one pair and moves its tail. The rows are written and
/// handed to this thread.
GIMLET_DEVICE void publish_back(const RailCombine& ctx, std::int32_t pair, std::int32_t begin,
                                std::int32_t end, bool finished) {
    const RailShape& rail = ctx.exchange.rail;
    const std::uint64_t row_bytes = ctx.args.row_bytes;
    const std::uint64_t from = ctx.exchange.regions.back_rows +
                               static_cast<std::uint64_t>(first_home_row(ctx, pair)) * row_bytes;
    const std::uint64_t to =
        ctx.exchange.regions.home_rows +
        static_cast<std::uint64_t>(first_home_row(ctx, rail.pair_there(pair))) * row_bytes;
    const std::uint32_t signal =
        rail_signals(ctx.exchange).combine_tail(rail.team_index, rail.channel_of(pair));
    publish_rail_rows(ctx.exchange, pair, to, from, row_bytes, begin, end, signal, finished);
}

GIMLET_DEVICE SignaledTail combine_tail(const RailCombine& ctx, std::int32_t pair) {
    const RailShape& rail = ctx.exchange.rail;
    return SignaledTail(
        ctx.peers, rail_context(ctx.exchange, pair),
        rail_signals(ctx.exchange).combine_tail(rail.team_of_pair(pair), rail.channel_of(pair)));
}

/// The home row of a choice whose row another team holds; with the pre-sum the lowest choice of a
/// team stands for all of them. Whole warp.
GIMLET_DEVICE void find_home_row(const RailCombine& ctx, LaneRow& lane) {
    const bool far = lane.home.row >= 0;
    const std::uint32_t same = __match_any_sync(kFullWarp, lane.home.row);
    if (!far) return;
    const RailShape& rail = ctx.exchange.rail;
    const std::int32_t pair = lane.home.row / rail.channel_rows;
    std::int64_t row = lane.home.row;
    if (pre_sums(ctx)) {
        if ((same & ((1u << lane_index()) - 1u)) != 0 && !mutated(Mutant::home_row_summed_twice))
            return;
        lane.weight = 1.0f;  // the forwarder has applied the weights
        lane.needed = lane.home.row % rail.channel_rows + 1;
    } else {
        row = first_home_row(ctx, pair) + lane.home.chunk;
        lane.needed = lane.home.chunk + 1;
    }
    lane.address = reinterpret_cast<std::uint64_t>(ctx.peers.local) +
                   ctx.exchange.regions.home_rows +
                   static_cast<std::uint64_t>(row) * ctx.args.row_bytes;
}

/// Waits, lane by lane, until the tail is beyond the lane's home row. Warp-uniform verdict.
GIMLET_DEVICE bool await_home_row(const RailCombine& ctx, const LaneRow& lane) {
    WaitStatus status = WaitStatus::ok;
    if (lane.needed > 0) {
        const std::int32_t pair = lane.home.row / ctx.exchange.rail.channel_rows;
        const SignaledTail tail = combine_tail(ctx, pair);
        const std::uint64_t base = tail.base();
        const WaitTarget target{rail_peer(ctx.exchange, pair), rail_context(ctx.exchange, pair),
                                static_cast<std::uint64_t>(lane.needed)};
        status =
            wait_until(ctx.wait_scope(Primitive::rail_combine), target, [&](std::uint64_t& seen) {
                seen = tail.read(base).rows;
                return static_cast<std::int32_t>(seen) >=
                       lane.needed - mutate(Mutant::home_row_not_awaited, 0, 1);
            });
    }
    return warp_ok(status);
}

/// Last block: every tail must finish, so that no put of this step is under way after it; then all
/// signals become part of what earlier steps amount to, and the send buffers are free (flush =
/// sources reusable).
GIMLET_DEVICE void settle_rail(const RailCombine& ctx) {
    const RailShape& rail = ctx.exchange.rail;
    GIMLET_ROLLED
    for (std::int32_t pair = thread_index(); pair < rail.pair_count(); pair += block_threads()) {
        const SignaledTail tail = combine_tail(ctx, pair);
        const WaitTarget target{rail_peer(ctx.exchange, pair), rail_context(ctx.exchange, pair), 1};
        TailState state{0, false};
        const WaitStatus status =
            wait_until(ctx.wait_scope(Primitive::rail_combine), target, [&](std::uint64_t& seen) {
                state = tail.read();
                seen = state.finished ? 1 : 0;
                return state.finished || mutated(Mutant::home_tail_not_awaited);
            });
        if (status == WaitStatus::ok && !mutated(Mutant::home_tail_not_settled)) tail.settle(state);
    }
    settle_ready(ctx);
}

}  // namespace gimlet::device

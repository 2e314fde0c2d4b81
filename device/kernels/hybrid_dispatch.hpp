// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/signaled_tail.hpp"
#include "device/kernels/dispatch_copy.hpp"
#include "device/kernels/rail_address.hpp"
#include "device/kernels/row_header.hpp"

// Hybrid dispatch: copy warps send one row to each LSA team over the rail, forward warps hand rows
// that came over the rail to their final slots. See device/README.md, Hybrid.
namespace gimlet::device {

using RailDispatch = DispatchContext<Reach::rail>;

/// One warp hands on one source's count row: words first, the header last. Every word carries its
/// tag, so that receivers poll them as if the source had written them itself.
template <Reach R>
GIMLET_DEVICE void hand_on_count_row(const DispatchContext<R>& ctx, std::int32_t team) {
    const std::int32_t source = team * ctx.peers.lsa_size + ctx.peers.lsa_rank;
    const bool fresh = ctx.args.mode == RoutingMode::fresh;
    const std::int32_t words = fresh ? 1 + ctx.peers.rank_count + ctx.peers.shape.expert_words : 1;
    const auto* row =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.rail_count_row_offset(team));
    const std::uint64_t offset = ctx.count_row_offset(source);
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < (words - 1) * ctx.peers.lsa_size; i += kWarpSize) {
        const std::int32_t word = 1 + i / ctx.peers.lsa_size;
        const std::int32_t member = lsa_member(ctx.peers, i % ctx.peers.lsa_size);
        store_relaxed<Scope::system>(peer_word<std::uint64_t>(ctx.peers, member, offset, word),
                                     row[word]);
    }
    const std::int32_t members =
        ctx.peers.lsa_size - mutate(Mutant::rail_count_not_handed_on, 0, 1);
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < members; i += kWarpSize) {
        // Release: the source's reads of the steps before, which its signal told, are over for the
        // member too.
        auto* const header = peer_word<std::uint64_t>(ctx.peers, lsa_member(ctx.peers, i), offset);
        store_release<Scope::system>(header, row[0]);
    }
}

/// The teams whose count rows one warp hands on: bit i of `pending` is team first + i * stride.
struct CountTeams {
    std::int32_t first;
    std::int32_t stride;
    std::uint32_t pending;

    GIMLET_DEVICE std::int32_t team(std::int32_t i) const { return first + i * stride; }
    GIMLET_DEVICE std::int32_t source(const PeerHandles& peers, std::int32_t i) const {
        return team(i) * peers.lsa_size + peers.lsa_rank;
    }
};

/// Waits until the count row of one of the pending teams is here; tells in `index` which. One
/// thread.
template <Reach R>
GIMLET_DEVICE WaitStatus await_count_row(const DispatchContext<R>& ctx, const CountTeams& teams,
                                         std::int32_t& index) {
    const SignalShadow shadow(ctx.peers);
    const std::int32_t context = ctx.contexts().notify_context();
    const ncclGin gin = gin_context(ctx.peers, context);
    const std::int32_t lowest = teams.source(ctx.peers, __ffs(static_cast<int>(teams.pending)) - 1);
    const WaitTarget target{lowest, context,
                            shadow.expected(context, ctx.signals().count_row(lowest)) + 1};
    return wait_until(ctx.wait_scope(Primitive::count_exchange), target, [&](std::uint64_t& seen) {
        GIMLET_ROLLED
        for (std::uint32_t left = teams.pending; left != 0; left &= left - 1) {
            const std::int32_t i = __ffs(static_cast<int>(left)) - 1;
            const std::uint32_t signal = ctx.signals().count_row(teams.source(ctx.peers, i));
            const std::uint64_t word = gin.readSignal(signal, 64, cuda::memory_order_acquire);
            if (left == teams.pending) seen = word;
            const std::uint64_t wanted =
                shadow.expected(context, signal) + mutate(Mutant::rail_count_not_awaited, 1, 0);
            if (static_cast<std::int64_t>(word - wanted) < 0) continue;
            index = i;
            return true;
        }
        return false;
    });
}

/// The count rows of this rail go on to all members of this team, in the order in which they come:
/// one that does not come holds up no other. Teams are dealt to the warps of the grid. Then waits
/// for the headers of the team's own members, so that a rank that does not come is named by its
/// team and its rail, not somebody whose row it would have handed on. Whole block; block-uniform
/// verdict.
template <Reach R>
GIMLET_DEVICE bool hand_on_counts(const DispatchContext<R>& ctx) {
    const WaitScope scope = ctx.wait_scope(Primitive::count_exchange);
    const std::int32_t own = ctx.exchange.rail.team_index;
    const std::int32_t stride = warp_count() * block_count();
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t first = warp_index() * block_count() + block_index();
         first < ctx.exchange.rail.team_count && good; first += kWarpSize * stride) {
        CountTeams teams{first, stride, 0};
        const std::int32_t mine = teams.team(lane_index());
        teams.pending = warp_ballot(mine < ctx.exchange.rail.team_count && mine != own);
        GIMLET_ROLLED
        while (teams.pending != 0 && good) {
            WaitStatus status = WaitStatus::ok;
            std::int32_t index = 0;
            if (elect()) status = await_count_row(ctx, teams, index);
            good = warp_ok(status);
            index = shuffle(index, 0);
            if (good) hand_on_count_row(ctx, teams.team(index));
            teams.pending &= ~(1u << index);
        }
    }
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < ctx.peers.lsa_size; i += block_threads()) {
        const std::int32_t member = lsa_member(ctx.peers, i);
        const WaitStatus status =
            wait_until(scope, WaitTarget{member, -1, ctx.epoch}, [&](std::uint64_t& seen) {
                const std::uint64_t word = load_acquire<Scope::system>(ctx.count_row(member));
                seen = word >> 32;
                return has_tag(word, ctx.epoch);
            });
        good = good && status == WaitStatus::ok;
    }
    return block_all(good);
}

/// A lane's share of a token: the row that its choice opens, in this team or on the rail.
struct RailTarget {
    std::byte* row;        ///< where the payload goes; null = the choice opens none
    std::int32_t expert;   ///< -1 = masked or lane >= K
    std::uint32_t weight;  ///< bits of the fp32 weight, 0 without weights
    std::int32_t slot;     ///< final slot of the choice, -1 = none
    std::int32_t team;     ///< number of the other team it lies in, -1 = none or this team
    std::int32_t ordinal;  ///< of the row in its pair; valid in lanes that open a row of the rail
};

/// What a copy warp knows of its channel.
struct Channel {
    std::int32_t index;     ///< over the whole grid
    std::int32_t* rows;     ///< [other teams] rows given out
    std::int32_t* choices;  ///< [other teams] choices that those rows serve

    GIMLET_DEVICE explicit Channel(const RailDispatch& ctx) {
        const std::int32_t teams = ctx.exchange.rail.peer_count();
        index = block_index() * ctx.exchange.shape.copy_warps + warp_index();
        rows = ctx.rail_words + warp_index() * 2 * teams;
        choices = rows + teams;
    }
    GIMLET_DEVICE std::int32_t pair(const RailDispatch& ctx, std::int32_t team) const {
        return team * ctx.exchange.rail.channel_count + index;
    }
};

/// Gives out the rail rows of one token, in order of tokens, and notes them for combine. Whole
/// warp.
GIMLET_DEVICE RailTarget open_token(const RailDispatch& ctx, const Channel& channel,
                                    std::int32_t token) {
    RailTarget out{nullptr, -1, 0, -1, -1, -1};
    const std::int32_t lane = lane_index();
    const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane;
    SlotRef ref{-1, -1};
    if (lane < ctx.exchange.topk) {
        ref = ctx.args.routing.slots[at];
        out.expert = ctx.lane_expert(token, lane);
        if (ctx.args.weights != nullptr)
            out.weight = reinterpret_cast<const std::uint32_t*>(ctx.args.weights)[at];
        out.slot = ref.slot;
    }
    const std::uint64_t base = ref.rank >= 0 ? ctx.peer_base[ref.rank] : 0;
    if (base != 0) {
        out.row = reinterpret_cast<std::byte*>(base) + ctx.exchange.regions.recv_rows[ctx.parity] +
                  static_cast<std::uint64_t>(ref.slot) * ctx.exchange.token_layout.row_bytes;
    } else if (ref.rank >= 0) {
        out.team = ctx.exchange.rail.index_of(ref.rank / ctx.peers.lsa_size);
    }
    const std::uint32_t same = __match_any_sync(kFullWarp, out.team);
    HomeRef home{-1, -1};
    if (out.team >= 0) {
        const std::uint32_t before = same & ((1u << lane) - 1u);
        out.ordinal = channel.rows[out.team];
        const std::int64_t row =
            ctx.exchange.rail.first_row(channel.pair(ctx, out.team)) + out.ordinal;
        home = HomeRef{static_cast<std::int32_t>(row), channel.choices[out.team] + __popc(before)};
        if (before == 0) {
            out.row = ctx.peers.local + ctx.exchange.regions.send_rows +
                      static_cast<std::uint64_t>(row) * rail_layout(ctx.exchange).stride();
        }
    }
    if (ctx.args.mode == RoutingMode::fresh && lane < ctx.exchange.topk)
        ctx.args.routing.home[at] = home;
    warp_sync();
    if (out.team >= 0 && out.row != nullptr) {
        channel.rows[out.team] += 1;
        channel.choices[out.team] += __popc(same);
    }
    warp_sync();
    return out;
}

/// Writes the headers of the token's rail rows. Whole warp.
GIMLET_DEVICE void write_headers(const RailDispatch& ctx, const RailTarget& target,
                                 std::int32_t token) {
    const RailRowLayout layout = rail_layout(ctx.exchange);
    GIMLET_ROLLED
    for (std::uint32_t left = warp_ballot(target.team >= 0 && target.row != nullptr); left != 0;
         left &= left - 1) {
        const std::int32_t leader = __ffs(static_cast<int>(left)) - 1;
        const std::int32_t team = shuffle(target.team, leader);
        auto* header =
            reinterpret_cast<std::uint32_t*>(shuffle(target.row, leader) + layout.row_bytes);
        const auto lane = static_cast<std::uint32_t>(lane_index());
        if (lane == 0) header[0] = static_cast<std::uint32_t>(token);
        if (lane < layout.topk) {
            header[layout.index_word() + lane] = static_cast<std::uint32_t>(target.expert);
            header[layout.weight_word() + lane] = target.weight;
            header[layout.slot_word() + lane] =
                target.team == team || mutated(Mutant::rail_header_of_all_teams)
                    ? static_cast<std::uint32_t>(target.slot)
                    : 0xffffffffu;
        }
        GIMLET_ROLLED
        for (std::uint32_t w = lane; w < layout.scale_words; w += kWarpSize) {
            header[layout.scale_word() + w] =
                ctx.args.scales[static_cast<std::int64_t>(token) * layout.scale_words + w];
        }
    }
}

/// One thread: puts rows [begin, end) of one pair, chunks of consecutive rows, and moves the tail.
/// The rows are complete and handed to this thread (warp barrier).
GIMLET_DEVICE void publish_rows(const RailDispatch& ctx, std::int32_t pair, std::int32_t begin,
                                std::int32_t end, bool finished) {
    const RailShape& rail = ctx.exchange.rail;
    const std::uint64_t stride = rail_layout(ctx.exchange).stride();
    const std::uint64_t from =
        ctx.exchange.regions.send_rows + static_cast<std::uint64_t>(rail.first_row(pair)) * stride;
    const std::uint64_t to =
        ctx.exchange.regions.rail_rows +
        static_cast<std::uint64_t>(rail.first_row(rail.pair_there(pair))) * stride;
    const std::uint32_t signal =
        rail_signals(ctx.exchange).dispatch_tail(rail.team_index, rail.channel_of(pair));
    publish_rail_rows(ctx.exchange, pair, to, from, stride, begin, end, signal, finished);
}

/// How many of a pair's first `rows` rows wait for their batch to be full.
GIMLET_DEVICE std::int32_t unpublished_rows(const RailDispatch& ctx, std::int32_t pair,
                                            std::int32_t rows) {
    const RailShape& rail = ctx.exchange.rail;
    const std::int32_t waiting = (rows + rail.head_start(pair)) % rail.publish_rows;
    return waiting < rows ? waiting : rows;
}

/// The rows of `target`'s token are complete: publishes every pair that is due. Whole warp, behind
/// a warp barrier.
GIMLET_DEVICE void publish_due(const RailDispatch& ctx, const Channel& channel,
                               const RailTarget& target) {
    if (target.team < 0 || target.row == nullptr) return;
    const std::int32_t rows = target.ordinal + 1 + mutate(Mutant::rail_publishes_one_early, 0, 1);
    const std::int32_t pair = channel.pair(ctx, target.team);
    if (unpublished_rows(ctx, pair, rows) > 0) return;
    const std::int32_t begin = rows - ctx.exchange.rail.publish_rows;
    publish_rows(ctx, pair, begin > 0 ? begin : 0, rows, false);
}

/// Publishes what is left of the channel and finishes all its tails. Whole warp.
GIMLET_DEVICE void finish_channel(const RailDispatch& ctx, const Channel& channel) {
    GIMLET_ROLLED
    for (std::int32_t team = lane_index(); team < ctx.exchange.rail.peer_count();
         team += kWarpSize) {
        const std::int32_t rows = channel.rows[team];
        const std::int32_t pair = channel.pair(ctx, team);
        const std::int32_t begin = rows - unpublished_rows(ctx, pair, rows);
        publish_rows(ctx, pair, mutate(Mutant::rail_last_rows_lost, begin, rows), rows, true);
        if (ctx.args.mode == RoutingMode::fresh) ctx.args.routing.rail_sent[pair] = rows;
    }
    warp_sync();
}

/// Copy warps: their channel's rows to the final slots of this team, and once to each other team.
/// On return all stores of the calling thread are complete, and all tails are finished.
GIMLET_DEVICE void send_rows(const RailDispatch& ctx) {
    const CopyUnits units(ctx);
    const CopyRing ring(ctx);
    const Channel channel(ctx);
    const RailTarget none{nullptr, -1, 0, -1, -1, -1};
    RailTarget target = none;
    RailTarget previous = none;
    GIMLET_ROLLED
    for (std::int32_t unit = 0; unit < units.count; ++unit) {
        const bool opens = unit % units.pieces == 0;
        if (opens) {
            previous = target;
            target = open_token(ctx, channel, units.token(unit));
            write_headers(ctx, target, units.token(unit));
        }
        mbarrier_wait(ring.barriers + unit % ring.depth,
                      static_cast<std::uint32_t>(unit / ring.depth) & 1u);
        if (target.row != nullptr)
            bulk_store(target.row + units.offset(unit), ring.slot(unit), units.bytes(unit));
        bulk_commit();
        // All groups but the newest are complete: the unit before this one has left its slot, and
        // at a token's first unit the token before has landed.
        bulk_wait<1>();
        fence_proxy_async();
        warp_sync();
        if (opens) publish_due(ctx, channel, previous);
        if (unit > 0) load_unit(ctx, units, ring, unit - 1 + ring.depth);
    }
    bulk_wait<0>();
    fence_proxy_async();
    warp_sync();
    publish_due(ctx, channel, target);
    warp_sync();
    finish_channel(ctx, channel);
}

/// Reads the header of rail row `row` (of the pair buffers), notes where it goes, and writes the
/// records of its final rows. Returns the payload's place there, per lane; null = none. Whole warp.
GIMLET_DEVICE std::byte* open_rail_row(const RailDispatch& ctx, std::int32_t source,
                                       std::int64_t row) {
    const RailRowLayout layout = rail_layout(ctx.exchange);
    const RegionOffsets& regions = ctx.exchange.regions;
    const auto* header = reinterpret_cast<const std::uint32_t*>(
        ctx.peers.local + regions.rail_rows + static_cast<std::uint64_t>(row) * layout.stride() +
        layout.row_bytes);
    const auto lane = static_cast<std::uint32_t>(lane_index());
    SlotRef ref{-1, -1};
    if (lane < layout.topk) {
        const auto slot = static_cast<std::int32_t>(header[layout.slot_word() + lane]);
        const auto expert = static_cast<std::int32_t>(header[layout.index_word() + lane]);
        if (slot >= 0) ref = SlotRef{ctx.experts.rank_of(expert), slot};
        if (ctx.args.mode == RoutingMode::fresh)
            ctx.args.routing.rail_slots[row * layout.topk + lane] = ref;
    }
    std::byte* const base =
        ref.rank < 0 ? nullptr : reinterpret_cast<std::byte*>(ctx.peer_base[ref.rank]);
    std::byte* const record =
        base + regions.recv_meta[ctx.parity] +
        static_cast<std::uint64_t>(ref.slot) * ctx.exchange.token_layout.record_bytes();
    GIMLET_ROLLED
    for (std::uint32_t left = warp_ballot(ref.rank >= 0); left != 0; left &= left - 1) {
        const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
        write_forwarded_record(ctx, header,
                               reinterpret_cast<std::uint32_t*>(shuffle(record, choice)), source,
                               shuffle(ref.rank, choice), choice);
    }
    if (ref.rank < 0) return nullptr;
    return base + regions.recv_rows[ctx.parity] +
           static_cast<std::uint64_t>(ref.slot) * layout.row_bytes;
}

/// A forward warp's copies: like a copy warp's, with rows of the rail as the source.
struct ForwardCopy {
    CopyRing ring;
    std::int32_t pieces;
    std::uint32_t row_bytes;
    std::uint32_t piece_bytes;
    std::int32_t moved = 0;  ///< units of earlier visits: the ring's position

    GIMLET_DEVICE explicit ForwardCopy(const RailDispatch& ctx) : ring(ctx) {
        row_bytes = ctx.exchange.token_layout.row_bytes;
        piece_bytes = ctx.exchange.shape.slot_bytes;
        pieces = static_cast<std::int32_t>((row_bytes + piece_bytes - 1) / piece_bytes);
    }
    GIMLET_DEVICE std::uint32_t offset(std::int32_t unit) const {
        return static_cast<std::uint32_t>(unit % pieces) * piece_bytes;
    }
    GIMLET_DEVICE std::uint32_t bytes(std::int32_t unit) const {
        const std::uint32_t left = row_bytes - offset(unit);
        return left < piece_bytes ? left : piece_bytes;
    }
    /// Starts the load of unit `unit` of the visit; lane 0 does it.
    GIMLET_DEVICE void load(const std::byte* rows, std::uint64_t stride, std::int32_t unit,
                            std::int32_t count) const {
        if (lane_index() != 0 || unit >= count) return;
        Mbarrier* barrier = ring.barriers + (moved + unit) % ring.depth;
        mbarrier_arrive_expect_tx(barrier, bytes(unit));
        bulk_load(ring.slot(moved + unit),
                  rows + static_cast<std::uint64_t>(unit / pieces) * stride + offset(unit),
                  bytes(unit), barrier);
    }
};

/// Hands rows [begin, end) of one pair to their final slots. Whole warp; lane 0 has acquired them.
GIMLET_DEVICE void forward_rows(const RailDispatch& ctx, ForwardCopy& copy, std::int32_t pair,
                                std::int32_t begin, std::int32_t end) {
    const std::uint64_t stride = rail_layout(ctx.exchange).stride();
    const std::int64_t first = ctx.exchange.rail.first_row(pair) + begin;
    const std::byte* rows = ctx.peers.local + ctx.exchange.regions.rail_rows +
                            static_cast<std::uint64_t>(first) * stride;
    const std::int32_t source = rail_peer(ctx.exchange, pair);
    const std::int32_t count = (end - begin) * copy.pieces;
    // The rows were acquired by a generic load; the bulk loads read through the async proxy.
    if (elect() && !mutated(Mutant::rail_no_proxy_fence)) fence_proxy_async();
    GIMLET_ROLLED
    for (std::int32_t unit = 0; unit < copy.ring.depth; ++unit)
        copy.load(rows, stride, unit, count);
    std::byte* target = nullptr;
    GIMLET_ROLLED
    for (std::int32_t unit = 0; unit < count; ++unit) {
        if (unit % copy.pieces == 0)
            target = open_rail_row(ctx, source, first + unit / copy.pieces);
        const std::int32_t at = copy.moved + unit;
        mbarrier_wait(copy.ring.barriers + at % copy.ring.depth,
                      static_cast<std::uint32_t>(at / copy.ring.depth) & 1u);
        if (target != nullptr)
            bulk_store(target + copy.offset(unit), copy.ring.slot(at), copy.bytes(unit));
        bulk_commit();
        if (!mutated(Mutant::rail_slot_reused_early)) bulk_wait_read<1>();
        warp_sync();
        if (unit > 0) copy.load(rows, stride, unit - 1 + copy.ring.depth, count);
    }
    copy.moved += mutate(Mutant::rail_ring_position_stays, count, 0);
    bulk_wait_read<0>();
    warp_sync();
}

/// The pairs of one forward warp: first, first + stride, ...
struct ForwardPairs {
    std::int32_t first;
    std::int32_t stride;
    std::int32_t count;
    std::int32_t* done;  ///< rows handed on; -1 = finished

    GIMLET_DEVICE explicit ForwardPairs(const RailDispatch& ctx) {
        const KernelShape& shape = ctx.exchange.shape;
        const RailShape& rail = ctx.exchange.rail;
        const std::int32_t warp = warp_index() - shape.copy_warps;
        first = block_index() * shape.forward_warps + warp;
        stride = block_count() * shape.forward_warps;
        count = first < rail.pair_count() ? (rail.pair_count() - first + stride - 1) / stride : 0;
        done = ctx.rail_words + shape.copy_warps * 2 * rail.peer_count() +
               warp * DispatchSharedLayout::pairs_per_warp(shape, rail);
    }
    GIMLET_DEVICE std::int32_t pair(std::int32_t i) const { return first + i * stride; }
};

GIMLET_DEVICE SignaledTail dispatch_tail(const RailDispatch& ctx, std::int32_t pair) {
    const RailShape& rail = ctx.exchange.rail;
    return SignaledTail(
        ctx.peers, rail_context(ctx.exchange, pair),
        rail_signals(ctx.exchange).dispatch_tail(rail.team_of_pair(pair), rail.channel_of(pair)));
}

/// What a forward warp found on one of its pairs.
struct RailNews {
    std::int32_t index;  ///< of the pair among the warp's, -1 = none yet
    TailState tail;
};

/// Waits until one of the warp's pairs has rows or is finished; they are visited in turn, beginning
/// behind `last`. One thread.
GIMLET_DEVICE WaitStatus await_news(const RailDispatch& ctx, const ForwardPairs& pairs,
                                    std::int32_t last, RailNews& news) {
    std::int32_t waiting = 0;
    while (pairs.done[waiting] < 0) ++waiting;
    const std::int32_t pair = pairs.pair(waiting);
    const WaitTarget target{rail_peer(ctx.exchange, pair), rail_context(ctx.exchange, pair),
                            static_cast<std::uint64_t>(pairs.done[waiting]) + 1};
    return wait_until(ctx.wait_scope(Primitive::rail_dispatch), target, [&](std::uint64_t& seen) {
        GIMLET_ROLLED
        for (std::int32_t i = 1; i <= pairs.count; ++i) {
            const std::int32_t index = (last + i) % pairs.count;
            if (pairs.done[index] < 0) continue;
            const TailState tail = dispatch_tail(ctx, pairs.pair(index)).read();
            if (index == waiting) seen = tail.rows;
            if (tail.finished || static_cast<std::int32_t>(tail.rows) > pairs.done[index]) {
                news = RailNews{index, tail};
                return true;
            }
        }
        return false;
    });
}

/// Forward warps: until every tail of theirs is finished, at most publish_rows rows a visit. On
/// return all stores of the calling thread are complete. A failed wait ends it.
GIMLET_DEVICE void forward_pairs(const RailDispatch& ctx) {
    const ForwardPairs pairs(ctx);
    ForwardCopy copy(ctx);
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < pairs.count; i += kWarpSize) pairs.done[i] = 0;
    warp_sync();
    std::int32_t last = pairs.count - 1;
    GIMLET_ROLLED
    for (std::int32_t left = pairs.count; left > 0;) {
        RailNews news{-1, {0, false}};
        WaitStatus status = WaitStatus::ok;
        if (elect()) status = await_news(ctx, pairs, last, news);
        if (!warp_ok(status)) break;
        last = shuffle(news.index, 0);
        const auto rows = static_cast<std::int32_t>(shuffle(news.tail.rows, 0));
        const bool finished = warp_any(news.tail.finished);
        const std::int32_t pair = pairs.pair(last);
        const std::int32_t begin = pairs.done[last];
        const std::int32_t most = begin + ctx.exchange.rail.publish_rows;
        const std::int32_t end = rows < most ? rows : most;
        if (end > begin) forward_rows(ctx, copy, pair, begin, end);
        const bool over = finished && (end == rows || mutated(Mutant::rail_ends_early));
        warp_sync();
        if (elect()) {
            pairs.done[last] = over ? -1 : end;
            if (over && !mutated(Mutant::rail_tail_not_settled))
                dispatch_tail(ctx, pair).settle(news.tail);
            if (over && ctx.args.mode == RoutingMode::fresh)
                ctx.args.routing.rail_received[pair] = rows;
        }
        if (over) --left;
        warp_sync();
    }
    if (!mutated(Mutant::rail_stores_not_complete)) bulk_wait<0>();
    fence_proxy_async();
}

/// Last block: the rail's count rows are part of what earlier steps amount to, and the send buffer
/// is free (flush = sources reusable).
template <Reach R>
GIMLET_DEVICE void settle_rail(const DispatchContext<R>& ctx) {
    const SignalShadow shadow(ctx.peers);
    GIMLET_ROLLED
    for (std::int32_t team = thread_index(); team < ctx.exchange.rail.team_count;
         team += block_threads()) {
        if (team == ctx.exchange.rail.team_index) continue;
        const std::int32_t source = team * ctx.peers.lsa_size + ctx.peers.lsa_rank;
        shadow.advance(ctx.contexts().notify_context(), ctx.signals().count_row(source),
                       mutate(Mutant::rail_count_shadow_stays, 1, 0));
    }
    GIMLET_ROLLED
    for (std::int32_t context = warp_index(); context < ctx.peers.gin_context_count;
         context += warp_count()) {
        const ncclGin gin = gin_context(ctx.peers, context);
        if (!mutated(Mutant::rail_no_flush)) gin.flush(ncclCoopWarp());
    }
}

/// The rail's part of a step whose slots are known. Copy warps send; the others write the records
/// of rows that stay in the team, and forward warps then hand on what comes.
GIMLET_DEVICE void move_rows_by_rail(const RailDispatch& ctx) {
    const KernelShape& shape = ctx.exchange.shape;
    if (warp_index() < shape.copy_warps) {
        send_rows(ctx);
        return;
    }
    // With warps to spare, those that forward do nothing else.
    const std::int32_t forward_end = shape.copy_warps + shape.forward_warps;
    const std::int32_t first_record_warp =
        forward_end < warp_count() ? forward_end : shape.copy_warps;
    record_step(ctx);
    if (warp_index() >= first_record_warp) write_records(ctx, first_record_warp);
    if (warp_index() < forward_end) forward_pairs(ctx);
}

}  // namespace gimlet::device

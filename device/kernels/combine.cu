// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/hybrid_combine.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/kernels/stream_combine.hpp"
#include "device/kernels/stream_sums.hpp"

namespace gimlet {
namespace device {
namespace {

/// Plan launches no larger blocks: two rings of one load warp and eight sum warps each.
inline constexpr int kCombineThreads = 576;
/// fifo: with two send warps.
inline constexpr int kStreamCombineThreads = kCombineThreads + 2 * kWarpSize;
/// and two that sum for other teams.
inline constexpr int kRailStreamCombineThreads = kStreamCombineThreads + 2 * kWarpSize;

constexpr int most_combine_threads(Reach reach) {
    return reach == Reach::stream        ? kStreamCombineThreads
           : reach == Reach::stream_rail ? kRailStreamCombineThreads
                                         : kCombineThreads;
}

/// Only lanes below K, and tokens that exist, have rows.
template <Reach R>
GIMLET_DEVICE LaneRow lane_row(const CombineContext<R>& ctx, std::int32_t token) {
    LaneRow out{0, 1.0f, {-1, -1}, {-1, -1}};
    if (token >= ctx.args.token_count || lane_index() >= ctx.exchange.topk) return out;
    const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane_index();
    out.slot = ctx.args.routing.slots[at];
    if (out.slot.rank < 0) return out;
    if (ctx.args.weights != nullptr) out.weight = ctx.args.weights[at];
    const std::uint64_t base = ctx.peer_base[out.slot.rank];
    if (is_lsa_only(R) || base != 0) {
        out.address = base + ctx.exchange.regions.combine_rows[ctx.parity] +
                      static_cast<std::uint64_t>(out.slot.slot) * ctx.args.row_bytes;
        return out;
    }
    out.home = ctx.args.routing.home[at];
    if constexpr (R == Reach::rail) return out;  // find_home_row finds the rest
    out.address = reinterpret_cast<std::uint64_t>(ctx.peers.local) +
                  ctx.exchange.regions.home_rows +
                  static_cast<std::uint64_t>(out.home.row) * ctx.args.row_bytes;
    return out;
}

/// One of the block's rings of row slots, with the tokens that pass through it.
struct CombineRing {
    std::byte* slots;
    Mbarrier* full;   ///< per slot: the piece has landed
    Mbarrier* empty;  ///< per slot: the sum warps have left it
    RowTicket::Packed* tickets;
    std::int32_t depth;
    std::uint32_t slot_bytes;
    std::int32_t warps;  ///< the load warp and the sum warps
    std::int32_t first_token;
    std::int32_t token_stride;
    std::int32_t token_end;
    bool inside;  ///< the warp belongs to a ring

    template <Reach R>
    GIMLET_DEVICE explicit CombineRing(const CombineContext<R>& ctx) {
        const KernelShape& shape = ctx.exchange.shape;
        const std::int32_t ring_count = shape.copy_warps;
        warps = (warp_count() - shape.forward_warps) / ring_count;
        const std::int32_t ring = warp_index() / warps;
        inside = ring < ring_count;
        depth = shape.slots_per_warp;
        slot_bytes = shape.slot_bytes;
        std::byte* shared = dynamic_shared_memory();
        const auto layout = CombineSharedLayout::build(shape, ctx.peers.rank_count);
        const std::int32_t first = ring * depth;
        slots = shared + layout.slots + static_cast<std::uint64_t>(first) * slot_bytes;
        full = reinterpret_cast<Mbarrier*>(shared + layout.full) + first;
        empty = reinterpret_cast<Mbarrier*>(shared + layout.empty) + first;
        tickets = reinterpret_cast<RowTicket::Packed*>(shared + layout.tickets) + first;
        first_token = block_index() * ring_count + ring;
        token_stride = block_count() * ring_count;
        token_end = ctx.args.token_count;
        if constexpr (has_rings(R)) {
            // A ring's tokens are those of a channel of the dispatch.
            const std::int32_t tokens = ctx.exchange.stream.channel_tokens(token_end);
            first_token *= tokens;
            token_stride = 1;
            if (token_end > first_token + tokens) token_end = first_token + tokens;
        }
    }
    GIMLET_DEVICE std::int32_t warp() const { return warp_index() % warps; }
    GIMLET_DEVICE bool loads() const { return inside && warp() == 0; }
    GIMLET_DEVICE std::byte* slot(std::int32_t index) const {
        return slots + static_cast<std::uint64_t>(index) * slot_bytes;
    }
};

/// The tokens of a ring that serves no channel: a few of its own, then those that it draws.
/// Multiprocessors do not read rows at the same rate, and the slowest would end the step.
///
/// Who: whole warp, converged.
template <Reach R>
class CombineFeed {
  public:
    GIMLET_DEVICE CombineFeed(const CombineContext<R>& ctx, const CombineRing& ring)
        : ctx_(ctx),
          first_(ring.first_token),
          stride_(ring.token_stride),
          draws_(drawn_token(0) < ctx.args.token_count) {
        draw_ahead();
    }
    /// The ring's next token; behind the last one, some number that no token has.
    GIMLET_DEVICE std::int32_t take() {
        if (taken_ < kOwnTokens) return first_ + taken_++ * stride_;
        if (!draws_) return ctx_.args.token_count;
        const std::int32_t token = drawn_token(shuffle(ticket_, 0));
        draws_ = token < ctx_.args.token_count;
        draw_ahead();
        return token;
    }

  private:
    /// So many that the first draw is back before it is needed, and a few tokens need none.
    static constexpr std::int32_t kOwnTokens = 2;

    GIMLET_DEVICE std::int32_t drawn_token(std::uint32_t ticket) const {
        return kOwnTokens * stride_ + static_cast<std::int32_t>(ticket);
    }
    /// Asked for one token early, so that nobody waits for it.
    GIMLET_DEVICE void draw_ahead() {
        if (lane_index() == 0 && draws_)
            ticket_ = fetch_add_relaxed<Scope::gpu>(&ctx_.epochs->combine_tickets, 1);
    }

    const CombineContext<R>& ctx_;
    std::int32_t first_;
    std::int32_t stride_;
    std::int32_t taken_ = 0;  ///< of its own
    std::uint32_t ticket_ = 0;
    bool draws_;  ///< there may be more to draw
};

/// Position in a ring; load warp and sum warps walk it alike.
struct RingCursor {
    std::int32_t slot = 0;
    std::uint32_t round = 0;  ///< parity of the slot's mbarriers

    GIMLET_DEVICE void advance(std::int32_t depth) {
        if (++slot < depth) return;
        slot = 0;
        round ^= mutate(Mutant::combine_round_stays, 1u, 0u);
    }
};

/// Lane 0 of the load warp fills one slot: waits until the sum warps have left it, then hands it
/// over with its ticket.
GIMLET_DEVICE void fill_slot(const CombineRing& ring, RingCursor& cursor, const RowTicket& ticket,
                             const std::byte* from, std::uint32_t bytes) {
    if (lane_index() == 0) {
        // The first round finds the slots empty: a fresh mbarrier counts as having completed the
        // phase before.
        if (!mutated(Mutant::combine_slot_not_empty))
            mbarrier_wait(ring.empty + cursor.slot, cursor.round ^ 1u);
        ring.tickets[cursor.slot] = RowTicket::pack(ticket);
        if (bytes > 0) {
            mbarrier_arrive_expect_tx(ring.full + cursor.slot, bytes);
            bulk_load(ring.slot(cursor.slot), from, bytes, ring.full + cursor.slot);
        } else {
            mbarrier_arrive(ring.full + cursor.slot);
        }
    }
    cursor.advance(ring.depth);
}

/// Load warp: all rows of one token, piece by piece, choices ascending, which fixes the order of
/// the sum.
GIMLET_DEVICE void load_token(const CombineRing& ring, RingCursor& cursor, const LaneRow& lane,
                              std::int32_t token, std::uint32_t row_bytes) {
    const std::uint32_t mask = warp_ballot(lane.address != 0);
    GIMLET_ROLLED
    for (std::uint32_t offset = 0; offset < row_bytes; offset += ring.slot_bytes) {
        if (mask == 0)
            fill_slot(ring, cursor, RowTicket{RowTicket::nothing, 0.0f, true, token}, nullptr, 0);
        const std::uint32_t left_bytes = row_bytes - offset;
        const std::uint32_t bytes = left_bytes < ring.slot_bytes ? left_bytes : ring.slot_bytes;
        GIMLET_ROLLED
        for (std::uint32_t left = mask; left != 0; left &= left - 1) {
            const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
            const auto* row = reinterpret_cast<const std::byte*>(shuffle(lane.address, choice));
            const float weight = mutate(Mutant::combine_weight_dropped, lane.weight, 1.0f);
            const RowTicket ticket{RowTicket::row, shuffle(weight, choice),
                                   (left & (left - 1)) == 0, token};
            fill_slot(ring, cursor, ticket, row + offset, bytes);
        }
    }
}

/// Hybrid load warp: the rows that this team holds for tokens of the rail. Pairs are dealt to
/// rings, choices ascend; without the pre-sum every row is a sum of its own.
GIMLET_DEVICE void load_pairs(const RailCombine& ctx, const CombineRing& ring, RingCursor& cursor) {
    const RailShape& rail = ctx.exchange.rail;
    GIMLET_ROLLED
    for (std::int32_t pair = ring.first_token; pair < rail.pair_count();
         pair += ring.token_stride) {
        const std::int32_t rows = ctx.args.routing.rail_received[pair];
        GIMLET_ROLLED
        for (std::int32_t i = 0; i < rows; ++i) {
            const LaneRow lane = forwarded_row(ctx, rail.first_row(pair) + i);
            // Every lane has read its weight before lane 0 hands the row on: once the sum is home,
            // the next step's weights may come.
            if (ships_weights(ctx)) warp_sync();
            if (pre_sums(ctx)) {
                load_token(ring, cursor, lane, -1, ctx.args.row_bytes);
                continue;
            }
            GIMLET_ROLLED
            for (std::uint32_t left = warp_ballot(lane.address != 0); left != 0; left &= left - 1) {
                LaneRow one = lane;
                if (lane_index() != __ffs(static_cast<int>(left)) - 1) one.address = 0;
                load_token(ring, cursor, one, -1, ctx.args.row_bytes);
            }
        }
    }
}

/// Load warp: the ring's tokens, then a ticket that stops the sum warps. A failed wait stops them
/// at once.
template <Reach R>
GIMLET_DEVICE void load_tokens(const CombineContext<R>& ctx, const CombineRing& ring,
                               const LaneRow& first) {
    RingCursor cursor;
    LaneRow next = first;
    // Rows that peers wrote were acquired by generic loads; the bulk loads below read through the
    // async proxy.
    fence_proxy_async();
    if constexpr (R == Reach::rail) load_pairs(ctx, ring, cursor);
    CombineFeed<R> feed(ctx, ring);
    std::int32_t token = feed.take();
    GIMLET_ROLLED
    while (token < ctx.args.token_count) {
        LaneRow lane = next;
        const std::int32_t next_token = feed.take();
        next = lane_row(ctx, next_token);
        if constexpr (R == Reach::rail) {
            find_home_row(ctx, lane);
            if (!await_home_row(ctx, lane)) break;
            if (!mutated(Mutant::home_no_proxy_fence)) fence_proxy_async();
        }
        if constexpr (R == Reach::gin) {
            if (!await_chunks(ctx, lane.slot.rank, lane.home)) break;
            if (!mutated(Mutant::combine_chunk_no_proxy_fence)) fence_proxy_async();
        }
        load_token(ring, cursor, lane, token, ctx.args.row_bytes);
        token = next_token;
    }
    fill_slot(ring, cursor, RowTicket{RowTicket::stop, 0.0f, true, -1}, nullptr, 0);
}

/// The ticket of a full slot. Read by the lane that gives the slot back, so that one thread orders
/// the read before the next ticket; tools that know no warps see the order too.
GIMLET_DEVICE RowTicket read_ticket(const CombineRing& ring, const RingCursor& cursor) {
    RowTicket::Packed packed{};
    if (lane_index() == 0) packed = ring.tickets[cursor.slot];
    return RowTicket::unpack(RowTicket::Packed{shuffle(packed.kind, 0), shuffle(packed.weight, 0),
                                               shuffle(packed.token, 0), 0});
}

/// Where a sum goes, and what is added to it (null: nothing).
struct SumPlace {
    std::byte* out;
    const std::byte* bias;
};

/// Sum warps, one unit: adds the slots up to the unit's last, then the bias, and writes the piece
/// at `offset` of the row. `place_of(token)` says where that row is. Returns false at the stop
/// ticket.
template <ElementType E, Reach R, class PlaceOf>
GIMLET_DEVICE bool sum_unit(const CombineContext<R>& ctx, const CombineRing& ring,
                            RingCursor& cursor, const PlaceOf& place_of, std::uint32_t offset) {
    constexpr std::int32_t kElements = Pack16<E>::count;
    const std::uint32_t left_bytes = ctx.args.row_bytes - offset;
    const std::uint32_t bytes = left_bytes < ring.slot_bytes ? left_bytes : ring.slot_bytes;
    const auto vectors = static_cast<std::int32_t>(bytes / 16u);
    const std::int32_t stride = (ring.warps - 1) * kWarpSize;
    const std::int32_t thread = (ring.warp() - 1) * kWarpSize + lane_index();
    float acc[kCombineVectors][kElements] = {};
    std::int32_t token = -1;
    GIMLET_ROLLED
    for (bool last = false; !last;) {
        if (!mutated(Mutant::combine_slot_not_full))
            mbarrier_wait(ring.full + cursor.slot, cursor.round);
        const RowTicket ticket = read_ticket(ring, cursor);
        if (ticket.kind == RowTicket::stop) return false;
        last = ticket.last;
        token = ticket.token;
        const auto* data = reinterpret_cast<const Vec16*>(ring.slot(cursor.slot));
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kCombineVectors; ++i) {
            const std::int32_t v = thread + i * stride;
            if (ticket.kind == RowTicket::row && v < vectors) {
                Pack16<E>::accumulate_scaled(acc[i], load_vec(data + v), ticket.weight);
            }
        }
        warp_sync();
        if (lane_index() == 0) mbarrier_arrive(ring.empty + cursor.slot);
        cursor.advance(ring.depth);
    }
    const SumPlace place = place_of(token);
    auto* out = reinterpret_cast<Vec16*>(place.out + offset);
    const auto* bias =
        place.bias == nullptr ? nullptr : reinterpret_cast<const Vec16*>(place.bias + offset);
    GIMLET_UNROLL
    for (std::int32_t i = 0; i < kCombineVectors; ++i) {
        const std::int32_t v = thread + i * stride;
        if (v >= vectors) continue;
        if (bias != nullptr && !mutated(Mutant::combine_bias_dropped))
            Pack16<E>::accumulate(acc[i], load_stream(bias + v));
        store_stream(out + v, Pack16<E>::round(acc[i]));
    }
    return true;
}

/// Sum warps: one row, piece by piece.
template <ElementType E, Reach R, class PlaceOf>
GIMLET_DEVICE bool sum_row(const CombineContext<R>& ctx, const CombineRing& ring,
                           RingCursor& cursor, const PlaceOf& place_of) {
    GIMLET_ROLLED
    for (std::uint32_t offset = 0; offset < ctx.args.row_bytes; offset += ring.slot_bytes) {
        if (!sum_unit<E>(ctx, ring, cursor, place_of, offset)) return false;
    }
    return true;
}

/// Barrier of the ring's sum warps, then one of their threads puts.
GIMLET_DEVICE void publish_sums(const RailCombine& ctx, const CombineRing& ring, std::int32_t pair,
                                std::int32_t begin, std::int32_t end, bool finished) {
    named_sync(1 + warp_index() / ring.warps, (ring.warps - 1) * kWarpSize);
    if (ring.warp() == 1 && elect()) publish_back(ctx, pair, begin, end, finished);
}

/// Hybrid sum warps, the counterpart of load_pairs. Returns false at the stop ticket.
template <ElementType E>
GIMLET_DEVICE bool sum_pairs(const RailCombine& ctx, const CombineRing& ring, RingCursor& cursor) {
    const RailShape& rail = ctx.exchange.rail;
    GIMLET_ROLLED
    for (std::int32_t pair = ring.first_token; pair < rail.pair_count();
         pair += ring.token_stride) {
        const std::int32_t rows = ctx.args.routing.rail_received[pair];
        std::byte* const back =
            ctx.peers.local + ctx.exchange.regions.back_rows +
            static_cast<std::uint64_t>(first_home_row(ctx, pair)) * ctx.args.row_bytes;
        std::int32_t done = 0;
        std::int32_t published = 0;
        std::int32_t due = rail.publish_rows - rail.head_start(pair);
        GIMLET_ROLLED
        for (std::int32_t i = 0; i < rows; ++i) {
            std::int32_t sums = 1;
            if (!pre_sums(ctx)) {
                const LaneRow lane = forwarded_row(ctx, rail.first_row(pair) + i);
                sums = __popc(warp_ballot(lane.address != 0));
            }
            GIMLET_ROLLED
            for (; sums > 0; --sums, ++done) {
                std::byte* const out = back + static_cast<std::uint64_t>(done) * ctx.args.row_bytes;
                const auto place_of = [&](std::int32_t) { return SumPlace{out, nullptr}; };
                if (!sum_row<E>(ctx, ring, cursor, place_of)) return false;
            }
            if (done < due || i + 1 == rows) continue;
            publish_sums(ctx, ring, pair, published, done, false);
            published = done;
            due = done + rail.publish_rows;
        }
        publish_sums(ctx, ring, pair, published, done, true);
    }
    return true;
}

template <ElementType E, Reach R>
GIMLET_DEVICE void sum_tokens(const CombineContext<R>& ctx, const CombineRing& ring) {
    RingCursor cursor;
    if constexpr (R == Reach::rail) {
        if (!sum_pairs<E>(ctx, ring, cursor)) return;
    }
    const auto place_of = [&](std::int32_t token) {
        const std::uint64_t at = static_cast<std::uint64_t>(token) * ctx.args.row_bytes;
        return SumPlace{ctx.args.out + at, ctx.args.bias == nullptr ? nullptr : ctx.args.bias + at};
    };
    GIMLET_ROLLED
    while (sum_row<E>(ctx, ring, cursor, place_of)) {
    }
}

/// fifo: the warps behind the rings send rows home, and sum for homes in other teams.
template <ElementType E, Reach R>
GIMLET_DEVICE void stream_answers(const CombineContext<R>& ctx, const CombineRing& ring) {
    const std::int32_t rings = ctx.exchange.shape.copy_warps;
    const std::int32_t warp = warp_index() - ring.warps * rings;
    if (warp < rings) {
        StreamAnswers<R>(ctx, warp).run();
    } else if constexpr (has_rail(R)) {
        StreamSums<E>(ctx, warp - rings).run();
    }
}

/// Load warp: readies its ring's mbarriers; the block barrier of fill_combine_tables makes them
/// known.
GIMLET_DEVICE void set_up_ring(const CombineRing& ring) {
    if (!ring.loads()) return;
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < ring.depth; i += kWarpSize) {
        mbarrier_init(ring.full + i, 1);
        mbarrier_init(ring.empty + i, static_cast<std::uint32_t>(ring.warps - 1));
    }
    mbarrier_init_fence();
}

/// Last warp of block 0: tells every peer that this rank has entered the step, so its rows of this
/// parity are ready and its home rows are free, or that it refuses the step. LSA: release at system
/// scope after the kernel boundary that ended the writers.
template <Reach R>
GIMLET_DEVICE void announce_ready(const CombineContext<R>& ctx) {
    if constexpr (R == Reach::rail) announce_on_rail(ctx);
    if constexpr (R == Reach::stream_rail) {
        if (block_index() == 0) signal_ready_on_rail(ctx, ctx.refuses());
    }
    if (block_index() != 0 || warp_index() != warp_count() - 1) return;
    const bool refuses = ctx.refuses();
    if (refuses && !ctx.tells_refusal()) return;
    const std::uint64_t mark = refuses ? refused_mark(ctx.epoch) : 0;
    GIMLET_ROLLED
    for (std::int32_t peer = lane_index(); peer < ctx.peers.rank_count; peer += kWarpSize) {
        if (ctx.excluded(peer)) continue;
        if (ctx.is_lsa(peer)) {
            auto* words = reinterpret_cast<std::uint64_t*>(
                peer_pointer(ctx.peers, peer, ctx.peers.layout.combine_ready));
            if (mutated(Mutant::combine_ready_relaxed)) {
                store_relaxed<Scope::system>(words + ctx.peers.rank, ctx.epoch + mark);
            } else {
                store_release<Scope::system>(words + ctx.peers.rank, ctx.epoch + mark);
            }
        } else if constexpr (R == Reach::gin) {
            const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
            gin.signal(
                world_team(ctx.peers), peer,
                ncclGin_WeakSignalAdd{ctx.signals().combine_ready(ctx.peers.rank), 1 + mark});
        }
    }
}

/// Every block waits for every rank. Block-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool await_ready(const CombineContext<R>& ctx) {
    const WaitScope scope = ctx.wait_scope(Primitive::combine_ready);
    const auto* ready =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.combine_ready);
    const SignalShadow shadow(ctx.peers);
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        if (ctx.excluded(rank)) continue;
        WaitStatus status = WaitStatus::ok;
        std::uint64_t beyond = 0;
        if (ctx.is_lsa(rank)) {
            status = wait_until(scope, WaitTarget{rank, -1, ctx.epoch}, [&](std::uint64_t& seen) {
                seen = mutated(Mutant::combine_ready_not_acquired)
                           ? load_relaxed<Scope::system>(ready + rank)
                           : load_acquire<Scope::system>(ready + rank);
                beyond = mutate(Mutant::combine_ready_not_awaited, seen - ctx.epoch, 0);
                return static_cast<std::int64_t>(beyond) >= 0;
            });
        } else if (R == Reach::gin || on_rail(ctx.peers, rank)) {
            const std::int32_t signals = has_rail(R) ? ctx.exchange.rail.channel_count : 1;
            status = shadow.wait_meet(scope, rank, ctx.contexts().notify_context(),
                                      ctx.signals().combine_ready(rank),
                                      mutate(Mutant::combine_gin_ready_not_awaited,
                                             static_cast<std::uint64_t>(signals), 0),
                                      beyond);
        }
        if (status == WaitStatus::ok && ctx.says_refused(beyond)) {
            peer_refused(scope, rank);
            status = WaitStatus::aborted;
        }
        good = good && status == WaitStatus::ok;
    }
    return block_all(good);
}

/// The last block to come closes the step: shadows advance, pushed rows become reusable.
template <Reach R>
GIMLET_DEVICE void finish(const CombineContext<R>& ctx) {
    block_sync();
    if (thread_index() == 0) {
        const auto last = static_cast<std::uint32_t>(block_count()) - 1u;
        *ctx.verdict = fetch_inc_wrap_acq_rel<Scope::gpu>(&ctx.epochs->combine_finished, last) ==
                               mutate(Mutant::combine_closes_early, last, last > 0 ? last - 1 : 0)
                           ? 1u
                           : 0u;
    }
    block_sync();
    if (*ctx.verdict == 0) return;
    const bool failed = block_any(ctx.poisoned());
    if constexpr (R == Reach::rail) {
        if (!failed) settle_rail(ctx);
    } else if constexpr (R == Reach::stream_rail) {
        if (!failed) settle_ready(ctx);
    } else {
        if (!failed) settle_chunks(ctx);
    }
    close_step<R>(ctx.peers, ctx.epochs, Tag::combine, ctx.epoch, block_any(ctx.poisoned()));
    if (thread_index() != 0) return;
    if (!mutated(Mutant::combine_tickets_stay))
        store_relaxed<Scope::gpu>(&ctx.epochs->combine_tickets, 0);
    store_relaxed<Scope::gpu>(&ctx.epochs->combine,
                              ctx.epoch - mutate(Mutant::combine_epoch_stays, 0, 1));
}

template <ElementType E, Reach R>
GIMLET_GLOBAL void __launch_bounds__(most_combine_threads(R), 1)
    combine_kernel(const GIMLET_GRID_CONSTANT CombineArgs args) {
    const CombineContext<R> ctx(args);
    const CombineRing ring(ctx);
    announce_ready(ctx);
    set_up_ring(ring);
    if (thread_index() == 0) *ctx.verdict = refuse_if_asked(ctx) ? 1u : 0u;
    if (args.refuse == 0) {
        fill_combine_tables(ctx);
    } else {
        block_sync();  // there may be no routing
    }
    LaneRow first{};
    if (!has_rings(R) && ring.loads()) first = lane_row(ctx, ring.first_token);
    if (thread_index() == 0 && !ctx.failed)
        note_event(ctx.peers, Tag::combine, ctx.epoch, EventKind::begin);
    if (*ctx.verdict == 0 && await_ready(ctx)) {
        if (thread_index() == 0)
            note_event(ctx.peers, Tag::combine, ctx.epoch, EventKind::peers_ready);
        if constexpr (R == Reach::gin) push_chunks(ctx);
        if constexpr (has_rings(R)) {
            if (ring.loads()) StreamLoader<R, CombineRing>(ctx, ring).run();
            if (!ring.inside) stream_answers<E>(ctx, ring);
        } else if (ring.loads()) {
            load_tokens(ctx, ring, first);
        }
        if (ring.inside && !ring.loads()) {
            sum_tokens<E>(ctx, ring);
        }
    }
    finish(ctx);
}

}  // namespace
}  // namespace device

namespace {

using CombineKernel = void (*)(CombineArgs);

template <Reach R>
CombineKernel combine_kernel_of(ElementType type) {
    switch (type) {
        case ElementType::float32: return device::combine_kernel<ElementType::float32, R>;
        case ElementType::float16: return device::combine_kernel<ElementType::float16, R>;
        case ElementType::bfloat16: return device::combine_kernel<ElementType::bfloat16, R>;
        case ElementType::float8_e4m3: return nullptr;
    }
    return nullptr;
}

/// Null for types that cannot be summed.
CombineKernel combine_kernel_of(ElementType type, Reach reach) {
    switch (reach) {
        case Reach::gin: return combine_kernel_of<Reach::gin>(type);
        case Reach::rail: return combine_kernel_of<Reach::rail>(type);
        case Reach::stream: return combine_kernel_of<Reach::stream>(type);
        case Reach::stream_rail: return combine_kernel_of<Reach::stream_rail>(type);
        default: return combine_kernel_of<Reach::lsa>(type);
    }
}

}  // namespace

std::uint32_t combine_shared_bytes(const KernelShape& shape, std::int32_t rank_count) {
    return CombineSharedLayout::build(shape, rank_count).total_bytes;
}

std::uint32_t combine_max_slot_bytes(std::int32_t thread_count, std::int32_t ring_count) {
    return CombineSharedLayout::max_slot_bytes(thread_count, ring_count);
}

cudaError_t prepare_combine() {
    for (const ElementType type :
         {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
        for (const Reach reach :
             {Reach::lsa, Reach::gin, Reach::rail, Reach::stream, Reach::stream_rail}) {
            const cudaError_t error = raise_shared_limit(combine_kernel_of(type, reach));
            if (error != cudaSuccess) return error;
        }
    }
    return cudaSuccess;
}

cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream) {
    const CombineKernel kernel = combine_kernel_of(args.element_type, reach_of(args.exchange));
    if (kernel == nullptr) return cudaErrorInvalidValue;
    return launch(kernel, args.exchange.shape, stream, args);
}

}  // namespace gimlet

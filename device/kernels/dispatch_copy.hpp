// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/aggregated_put.hpp"
#include "device/kernels/dispatch_slots.hpp"

// Phase 3: rows by bulk copies (copy warps), metadata records by ordinary stores (the other warps).
// Rows of GIN destinations go to the send buffer; whoever completes a chunk puts it.
namespace gimlet::device {

/// Payload and record of a chunk row are written by different warps: each counts once.
inline constexpr std::int32_t kWritersPerRow = 2;

/// Counts one more writer of a row of a GIN destination; the one who completes the row's chunk puts
/// it. One thread, after its writes of that row are complete (bulk: wait_group; stores: behind a
/// warp barrier). The acq_rel count at gpu scope hands the other writers' bytes to the putter; the
/// put itself releases to the NIC.
template <Reach R>
GIMLET_DEVICE void count_send_row(const DispatchContext<R>& ctx, std::int32_t key,
                                  std::int32_t home) {
    const std::int32_t ordinal = home - ctx.key_send[key];
    const std::int32_t chunk = ordinal / ctx.exchange.chunk_rows;
    const std::int32_t first = chunk * ctx.exchange.chunk_rows;
    const std::int32_t left = ctx.key_count[key] - first;
    const std::int32_t rows = left < ctx.exchange.chunk_rows ? left : ctx.exchange.chunk_rows;
    auto* counters =
        reinterpret_cast<std::uint32_t*>(ctx.peers.local + ctx.peers.layout.send_chunks);
    std::uint32_t* counter = counters + ctx.key_chunk[key] + chunk;
    const auto full = static_cast<std::uint32_t>(
        rows * mutate(Mutant::copy_chunk_after_one_writer, kWritersPerRow, 1));
    if (fetch_inc_wrap_acq_rel<Scope::gpu>(counter, full - 1) != full - 1) return;

    const std::int32_t peer = ctx.rank_of_key(key);
    const ncclGin gin =
        gin_context(ctx.peers, ctx.contexts().data_context(ctx.key_chunk[key] + chunk));
    const RegionOffsets& regions = ctx.exchange.regions;
    const TokenLayout& token = ctx.exchange.token_layout;
    const std::uint64_t from = static_cast<std::uint64_t>(ctx.key_send[key] + first);
    const std::uint64_t to = static_cast<std::uint64_t>(ctx.key_base[key] + first);
    AggregatedPut batch(gin, world_team(ctx.peers), peer, ctx.peers.window);
    const std::uint64_t skew = regions.rank_skew(peer);
    batch.put(regions.recv_rows[ctx.parity] + skew + to * token.row_bytes,
              regions.send_rows + from * token.row_bytes,
              static_cast<std::uint64_t>(
                  mutate(Mutant::copy_chunk_always_full, rows, ctx.exchange.chunk_rows)) *
                  token.row_bytes);
    if (!mutated(Mutant::copy_records_not_put))
        batch.put(regions.recv_meta[ctx.parity] + skew + to * token.record_bytes(),
                  regions.send_meta + from * token.record_bytes(),
                  static_cast<std::uint64_t>(rows) * token.record_bytes());
    if (!mutated(Mutant::copy_batch_not_closed)) batch.close();
}

/// One lane's share of a token: where its row and record go.
struct LaneTarget {
    std::byte* window;   ///< base of an LSA destination, else this rank's own (send buffer)
    std::int32_t index;  ///< row index in recv_rows or send_rows
    std::int32_t key;    ///< key of a GIN row, -1 for an LSA row or none
    bool active;
};

/// Reads the routing of `token`; lanes below K. The key is looked up only for GIN rows.
template <Reach R>
GIMLET_DEVICE LaneTarget lane_target(const DispatchContext<R>& ctx, std::int32_t token) {
    LaneTarget out{nullptr, -1, -1, false};
    const std::int32_t lane = lane_index();
    if (lane >= ctx.exchange.topk) return out;
    const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane;
    const SlotRef ref = ctx.args.routing.slots[at];
    if (ref.rank < 0) return out;
    out.active = true;
    const std::uint64_t base = ctx.peer_base[ref.rank];
    if (is_lsa_only(R) || base != 0) {
        out.window = reinterpret_cast<std::byte*>(base);
        out.index = ref.slot;
        return out;
    }
    if constexpr (has_rail(R)) {
        out.active = false;  // travels as a row of the rail, see hybrid_dispatch.hpp
        return out;
    }
    out.window = ctx.peers.local;
    out.index = ctx.args.routing.home[at].row;
    out.key = ctx.rank_major() ? ref.rank : ctx.lane_expert(token, lane);
    return out;
}

/// A copy warp's sequence of (token, piece) units over the tokens that are its own from the start:
/// its channel's; without channels, a few of its block, see TokenFeed.
struct CopyUnits {
    std::int32_t first_token;
    std::int32_t stride;
    std::int32_t pieces;
    std::int32_t count;  ///< units of these tokens
    std::uint32_t row_bytes;
    std::uint32_t piece_bytes;
    std::uint32_t header_bytes;  ///< room in front of the piece in a slot

    template <Reach R>
    GIMLET_DEVICE explicit CopyUnits(const DispatchContext<R>& ctx) {
        const KernelShape& shape = ctx.exchange.shape;
        row_bytes = ctx.exchange.token_layout.row_bytes;
        header_bytes = has_rings(R) ? ctx.exchange.stream.header_bytes : 0;
        piece_bytes = shape.slot_bytes - header_bytes;
        pieces = static_cast<std::int32_t>((row_bytes + piece_bytes - 1) / piece_bytes);
        first_token = ctx.token_begin + warp_index();
        stride = shape.copy_warps;
        std::int32_t end = ctx.token_begin + ctx.own_copy_tokens();
        if (end > ctx.token_end) end = ctx.token_end;
        if constexpr (has_channels(R)) {
            // A channel's tokens are consecutive.
            first_token = ctx.token_begin + warp_index() * ctx.tokens_per_channel();
            stride = 1;
            end = first_token + ctx.tokens_per_channel();
            if (end > ctx.token_end) end = ctx.token_end;
        }
        const std::int32_t span = end - first_token;
        count = span > 0 ? (span + stride - 1) / stride * pieces : 0;
    }
    GIMLET_DEVICE std::int32_t token(std::int32_t unit) const {
        return first_token + unit / pieces * stride;
    }
    GIMLET_DEVICE std::uint32_t offset(std::int32_t unit) const {
        return static_cast<std::uint32_t>(unit % pieces) * piece_bytes;
    }
    GIMLET_DEVICE std::uint32_t bytes(std::int32_t unit) const {
        const std::uint32_t left = row_bytes - offset(unit);
        return left < piece_bytes ? left : piece_bytes;
    }
};

/// The warp's ring of row slots.
struct CopyRing {
    std::byte* slots;
    Mbarrier* barriers;
    std::int32_t depth;
    std::uint32_t slot_bytes;

    template <Reach R>
    GIMLET_DEVICE explicit CopyRing(const DispatchContext<R>& ctx) {
        const KernelShape& shape = ctx.exchange.shape;
        depth = shape.slots_per_warp;
        slot_bytes = shape.slot_bytes;
        slots = ctx.slots + static_cast<std::uint64_t>(warp_index() * depth) * slot_bytes;
        barriers = ctx.mbarriers + warp_index() * depth;
    }
    GIMLET_DEVICE std::byte* slot(std::int32_t unit) const {
        return slots + static_cast<std::uint64_t>(unit % depth) * slot_bytes;
    }
};

/// Lane 0 starts the bulk load of one unit of `token`. The slot must be free: its earlier stores
/// have been read.
template <Reach R>
GIMLET_DEVICE void load_unit_of(const DispatchContext<R>& ctx, const CopyUnits& units,
                                const CopyRing& ring, std::int32_t unit, std::int32_t token) {
    if (lane_index() != 0) return;
    Mbarrier* barrier = ring.barriers + unit % ring.depth;
    const std::byte* row = ctx.args.rows + static_cast<std::int64_t>(token) * units.row_bytes;
    mbarrier_arrive_expect_tx(barrier, units.bytes(unit));
    bulk_load(ring.slot(unit) + units.header_bytes, row + units.offset(unit), units.bytes(unit),
              barrier);
}

/// The same for one of the warp's own units; none beyond them.
template <Reach R>
GIMLET_DEVICE void load_unit(const DispatchContext<R>& ctx, const CopyUnits& units,
                             const CopyRing& ring, std::int32_t unit) {
    if (unit < units.count) load_unit_of(ctx, units, ring, unit, units.token(unit));
}

/// Readies the warp's ring and starts the first loads: they need no slots and no peers, so they run
/// while the counts are exchanged. The other lanes may wait on the ring's mbarriers behind the next
/// block barrier.
template <Reach R>
GIMLET_DEVICE void start_loads(const DispatchContext<R>& ctx) {
    const std::int32_t copy_warps = ctx.exchange.shape.copy_warps;
    const std::int32_t warps = copy_warps + ctx.exchange.shape.forward_warps +
                               (R == Reach::stream_rail ? ctx.exchange.stream.relay_warps : 0);
    if (warp_index() >= warps) return;
    const CopyRing ring(ctx);
    if (lane_index() == 0) {
        GIMLET_ROLLED
        for (std::int32_t slot = 0; slot < ring.depth; ++slot)
            mbarrier_init(ring.barriers + slot, 1);
        mbarrier_init_fence();
    }
    if (has_channels(R) && warp_index() >= copy_warps) return;
    const CopyUnits units(ctx);
    GIMLET_ROLLED
    for (std::int32_t unit = 0; unit < ring.depth; ++unit) load_unit(ctx, units, ring, unit);
}

/// Drains loads that start_loads began when the step fails before its copy phase: shared memory
/// must not be written after the block has left.
template <Reach R>
GIMLET_DEVICE void abandon_loads(const DispatchContext<R>& ctx) {
    if (warp_index() >= ctx.exchange.shape.copy_warps) return;
    const CopyUnits units(ctx);
    const CopyRing ring(ctx);
    GIMLET_ROLLED
    for (std::int32_t unit = 0; unit < ring.depth && unit < units.count; ++unit) {
        mbarrier_wait(ring.barriers + unit, 0);
    }
}

/// The tokens that one copy warp moves, in its order: its own ones, then those that it draws.
/// Multiprocessors do not move rows at the same rate, and with equal shares the fastest would be
/// done a quarter of the step before the slowest.
///
/// Who: whole warp, converged. The tokens of other blocks have slots once await_slots() is true.
template <Reach R>
class TokenFeed {
  public:
    static constexpr std::int32_t kNone = -1;

    GIMLET_DEVICE TokenFeed(const DispatchContext<R>& ctx, const CopyUnits& own)
        : ctx_(ctx),
          own_(own.count / own.pieces),
          known_(own_),
          ended_(ctx.own_copy_tokens() == ctx.tokens_per_block),
          written_(ctx.args.mode != RoutingMode::fresh) {
        held_ = lane_index() < own_ ? own.first_token + lane_index() * own.stride : kNone;
        draw_ahead();
    }
    /// The warp's `i`-th token, kNone behind the last. At most a warp's width back from the newest.
    GIMLET_DEVICE std::int32_t token(std::int32_t i) {
        GIMLET_ROLLED
        while (known_ <= i) take();
        return shuffle(held_, i % kWarpSize);
    }
    /// Where the `i`-th token's row goes. Nowhere if its slots were never written.
    GIMLET_DEVICE LaneTarget target(std::int32_t i) {
        const std::int32_t at = token(i);
        if (at == kNone || (i >= own_ && !await_slots())) return LaneTarget{nullptr, -1, -1, false};
        return lane_target(ctx_, at);
    }

  private:
    /// The next draw: asked for one token early, so that nobody waits for it.
    GIMLET_DEVICE void draw_ahead() {
        if (lane_index() == 0 && !ended_)
            ticket_ = fetch_add_relaxed<Scope::gpu>(&ctx_.epochs->dispatch_tickets, 1);
    }
    GIMLET_DEVICE void take() {
        std::int32_t next = kNone;
        if (!ended_) {
            next = ctx_.drawn_token(shuffle(ticket_, 0));
            ended_ = next == kNone;
            draw_ahead();
        }
        if (lane_index() == known_ % kWarpSize) held_ = next;
        ++known_;
    }
    /// Waits until every block has written the slots of its tokens. False: one never will; then the
    /// step is poisoned, and the warp draws no more.
    GIMLET_DEVICE bool await_slots() {
        if (written_) return true;
        if (failed_) return false;
        const auto* words = local_word<std::uint64_t>(ctx_.peers, ctx_.peers.layout.slots_written);
        const WaitScope scope = ctx_.wait_scope(Primitive::count_exchange);
        WaitStatus status = WaitStatus::ok;
        GIMLET_ROLLED
        for (std::int32_t block = lane_index(); block < block_count(); block += kWarpSize) {
            if (status != WaitStatus::ok || mutated(Mutant::copy_slots_not_awaited)) continue;
            const WaitTarget target{ctx_.peers.rank, -1, ctx_.epoch};
            status = wait_until(scope, target, [&](std::uint64_t& seen) {
                seen = mutated(Mutant::copy_slots_not_acquired)
                           ? load_relaxed<Scope::gpu>(words + block)
                           : load_acquire<Scope::gpu>(words + block);
                return seen == ctx_.epoch;
            });
        }
        written_ = warp_ok(status);
        failed_ = !written_;
        ended_ = ended_ || failed_;
        return written_;
    }

    const DispatchContext<R>& ctx_;
    std::int32_t own_;    ///< tokens that were not drawn
    std::int32_t known_;  ///< tokens known so far
    std::int32_t held_;   ///< lane l: the newest known one whose number is l modulo 32
    std::uint32_t ticket_ = 0;
    bool ended_;    ///< no more to draw
    bool written_;  ///< all slots are
    bool failed_ = false;
};

/// Says that the slots of this block's tokens are written. One thread, behind a block barrier.
template <Reach R>
GIMLET_DEVICE void publish_slots(const DispatchContext<R>& ctx) {
    auto* word = local_word<std::uint64_t>(ctx.peers, ctx.peers.layout.slots_written,
                                           static_cast<std::uint64_t>(block_index()));
    if (mutated(Mutant::copy_slots_not_released)) return store_relaxed<Scope::gpu>(word, ctx.epoch);
    store_release<Scope::gpu>(word, ctx.epoch);
}

/// Stores the slot that holds `unit` to the lane's destination.
template <Reach R>
GIMLET_DEVICE void store_unit(const DispatchContext<R>& ctx, const CopyUnits& units,
                              const CopyRing& ring, std::int32_t unit, const LaneTarget& target) {
    if (target.active) {
        const RegionOffsets& regions = ctx.exchange.regions;
        const std::uint64_t region =
            target.key < 0 ? regions.recv_rows[ctx.parity] : regions.send_rows;
        std::byte* row =
            target.window + region + static_cast<std::uint64_t>(target.index) * units.row_bytes;
        bulk_store(row + units.offset(unit), ring.slot(unit), units.bytes(unit));
    }
    bulk_commit();
}

/// Copy warps: rows from the caller's tensor to their final slots (or to the send buffer). On
/// return all stores of the calling thread are complete, not only read.
template <Reach R>
GIMLET_DEVICE void copy_rows(const DispatchContext<R>& ctx) {
    const CopyUnits units(ctx);
    const CopyRing ring(ctx);
    constexpr bool gin_peers = R == Reach::gin;
    TokenFeed<R> feed(ctx, units);
    const auto load = [&](std::int32_t unit) {
        const std::int32_t token = feed.token(unit / units.pieces);
        if (token != TokenFeed<R>::kNone) load_unit_of(ctx, units, ring, unit, token);
    };
    GIMLET_ROLLED
    for (std::int32_t unit = units.count; unit < ring.depth; ++unit) load(unit);
    LaneTarget target{};
    LaneTarget previous{};
    LaneTarget next = feed.target(0);
    GIMLET_ROLLED
    for (std::int32_t unit = 0;; ++unit) {
        if (unit % units.pieces == 0) {
            const std::int32_t number = unit / units.pieces;
            if (feed.token(number) == TokenFeed<R>::kNone) break;
            previous = target;
            target = next;
            next = feed.target(number + 1);
        }
        const std::int32_t lap = mutate(Mutant::copy_parity_stays, unit / ring.depth, 0);
        if (!mutated(Mutant::copy_load_not_awaited))
            mbarrier_wait(ring.barriers + unit % ring.depth, static_cast<std::uint32_t>(lap) & 1u);
        store_unit(ctx, units, ring, unit, target);
        // All groups but the newest are done: the unit before this one has left its slot.
        if constexpr (gin_peers) {
            bulk_wait<1>();
            const bool row_done = unit % units.pieces == 0 && unit > 0;
            if (row_done && previous.active && previous.key >= 0) {
                fence_proxy_async();
                count_send_row(ctx, previous.key, previous.index);
            }
        } else {
            if (!mutated(Mutant::copy_stores_not_read)) bulk_wait_read<1>();
        }
        warp_sync();
        if (unit > 0) load(unit + ring.depth - mutate(Mutant::copy_slot_reused_early, 1, 0));
    }
    if (mutated(Mutant::copy_stores_not_complete)) bulk_wait_read<0>();
    if (!mutated(Mutant::copy_stores_not_complete)) bulk_wait<0>();
    fence_proxy_async();
    if (gin_peers && target.active && target.key >= 0)
        count_send_row(ctx, target.key, target.index);
}

/// Word `word` of the record that serves choice `choice` of `token` at `rank`.
template <Reach R>
GIMLET_DEVICE std::uint32_t record_word(const DispatchContext<R>& ctx, std::int32_t token,
                                        std::int32_t choice, std::int32_t rank,
                                        std::uint32_t word) {
    const TokenLayout& layout = ctx.exchange.token_layout;
    if (word == layout.token_word()) return static_cast<std::uint32_t>(token);
    if (word == layout.source_word()) return static_cast<std::uint32_t>(ctx.peers.rank);
    if (word >= layout.used_words()) return 0;
    if (word >= layout.scale_word()) {
        const std::int64_t at =
            static_cast<std::int64_t>(token) * layout.scale_words + (word - layout.scale_word());
        return ctx.args.scales[at];
    }
    const bool weight = word >= layout.weight_word();
    auto k =
        static_cast<std::int32_t>(word - (weight ? layout.weight_word() : layout.index_word()));
    if (!ctx.rank_major()) k = choice;
    const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + k;
    if (weight) {
        if (ctx.args.weights == nullptr) return 0;
        return reinterpret_cast<const std::uint32_t*>(ctx.args.weights)[at];
    }
    if (!ctx.rank_major()) return static_cast<std::uint32_t>(k);
    const std::int64_t expert = ctx.raw_expert(token, k);
    const std::int32_t first = ctx.experts.first(rank);
    const std::int64_t local = expert - first;
    const bool here = expert >= 0 && local >= 0 && local < ctx.experts.local_count(rank);
    return here ? static_cast<std::uint32_t>(local) : 0xffffffffu;
}

/// Warps from `first_warp` on: the record of every row of this block's tokens (hybrid: of those
/// that stay in this team).
template <Reach R>
GIMLET_DEVICE void write_records(const DispatchContext<R>& ctx, std::int32_t first_warp) {
    const std::int32_t stride = warp_count() - first_warp;
    const RegionOffsets& regions = ctx.exchange.regions;
    const TokenLayout& layout = ctx.exchange.token_layout;
    GIMLET_ROLLED
    for (std::int32_t token = ctx.token_begin + warp_index() - first_warp; token < ctx.token_end;
         token += stride) {
        const LaneTarget target = lane_target(ctx, token);
        const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane_index();
        const std::int32_t rank = target.active ? ctx.args.routing.slots[at].rank : -1;
        const std::uint64_t region =
            target.key < 0 ? regions.recv_meta[ctx.parity] : regions.send_meta;
        const std::uint64_t mine = reinterpret_cast<std::uint64_t>(target.window) + region +
                                   static_cast<std::uint64_t>(target.index) * layout.record_bytes();
        GIMLET_ROLLED
        for (std::uint32_t left = warp_ballot(target.active); left != 0; left &= left - 1) {
            const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
            auto* record = reinterpret_cast<std::uint32_t*>(shuffle(mine, choice));
            const std::int32_t to = shuffle(rank, choice);
            GIMLET_ROLLED
            for (std::uint32_t word = lane_index(); word < layout.record_words();
                 word += kWarpSize) {
                record[word] = record_word(ctx, token, choice, to, word);
            }
        }
        warp_sync();
        if constexpr (R == Reach::gin) {
            if (target.active && target.key >= 0) {
                count_send_row(ctx, target.key, target.index);
            }
        }
    }
}

/// Counts rows of one output tensor as they come, by blocks of ready_rows. The rows must have been
/// written by this thread, or before a barrier.
template <Reach R>
GIMLET_DEVICE void count_ready(const DispatchContext<R>& ctx, std::int64_t slot,
                               std::int64_t rows) {
    const StreamShape& stream = ctx.exchange.stream;
    const auto set = static_cast<std::int64_t>(ctx.epoch % kReadySets);
    auto* counters = local_word<std::uint32_t>(ctx.peers, ctx.peers.layout.ready_rows) +
                     set * stream.ready_blocks;
    GIMLET_ROLLED
    while (rows > 0) {
        const std::int64_t block = slot / stream.ready_rows;
        const std::int64_t room = (block + 1) * stream.ready_rows - slot;
        const std::int64_t here = rows < room ? rows : room;
        add_release<Scope::gpu>(counters + block, static_cast<std::uint32_t>(here));
        slot += here;
        rows -= here;
    }
}

/// fifo: padding rows count as arrived, too. Whole block.
template <Reach R>
GIMLET_DEVICE void count_gap(const DispatchContext<R>& ctx, std::int64_t begin, std::int64_t end) {
    if constexpr (has_rings(R)) {
        block_sync();
        if (thread_index() == 0) count_ready(ctx, begin, end - begin);
    }
}

/// expert_major: marks (and clears, if asked) the rows between an expert's last row and the next
/// aligned start. These rows are local; peers never write them. Blocks take experts in turn.
template <Reach R>
GIMLET_DEVICE void fill_gaps(const DispatchContext<R>& ctx) {
    if (ctx.rank_major() || ctx.exchange.expert_alignment <= 1) return;
    if (mutated(Mutant::copy_gaps_not_filled)) return;
    const TokenLayout& layout = ctx.exchange.token_layout;
    const std::int32_t first = ctx.experts.first(ctx.peers.rank);
    std::int64_t start = 0;
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < ctx.experts.local_count(ctx.peers.rank); ++i) {
        const std::int64_t begin = start + ctx.key_total[first + i];
        const std::int64_t alignment = ctx.exchange.expert_alignment;
        start = (begin + alignment - 1) / alignment * alignment;
        if (i % block_count() != block_index()) continue;
        std::byte* meta = ctx.own_records();
        std::byte* rows = ctx.own_rows();
        const std::int64_t words = (start - begin) * layout.record_words();
        auto* record = reinterpret_cast<std::uint32_t*>(meta + begin * layout.record_bytes());
        GIMLET_ROLLED
        for (std::int64_t w = thread_index(); w < words; w += block_threads()) {
            record[w] = w % layout.record_words() < 3 ? 0xffffffffu : 0u;
        }
        if (ctx.exchange.pad_fill != PadFill::zero) {
            count_gap(ctx, begin, start);
            continue;
        }
        const std::int64_t vectors = (start - begin) * layout.row_bytes / 16;
        auto* row = reinterpret_cast<Vec16*>(rows + begin * layout.row_bytes);
        GIMLET_ROLLED
        for (std::int64_t v = thread_index(); v < vectors; v += block_threads())
            store_vec(row + v, Vec16{});
        count_gap(ctx, begin, start);
    }
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/signaled_tail.hpp"
#include "device/kernels/dispatch_copy.hpp"
#include "device/kernels/row_header.hpp"
#include "device/kernels/stream_rings.hpp"

// Sync::fifo, dispatch: copy warps push rows into the rings of their channel, receive warps take
// them out and write them to their final slots. Counts and slots are those of the direct mode. See
// device/README.md, Streaming.
namespace gimlet::device {

/// What the lanes of a send warp know of one token: lane k its choice, all lanes whom it goes to.
struct StreamToken {
    SlotRef slot{-1, -1};
    std::int32_t expert = -1;
    std::uint32_t weight = 0;
    std::uint32_t ranks = 0;
};

/// Whole warp.
template <Reach R>
GIMLET_DEVICE StreamToken stream_token(const DispatchContext<R>& ctx, std::int32_t token) {
    StreamToken out;
    if (lane_index() < ctx.exchange.topk) {
        const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane_index();
        out.slot = ctx.args.routing.slots[at];
        out.expert = ctx.lane_expert(token, lane_index());
        if (ctx.args.weights != nullptr)
            out.weight = reinterpret_cast<const std::uint32_t*>(ctx.args.weights)[at];
    }
    out.ranks = ranks_of_lanes(out.slot.rank);
    return out;
}

/// Writes the header of `token` into a row slot of shared memory and hands it to the bulk engine
/// (behind the next warp barrier). Whole warp.
template <Reach R>
GIMLET_DEVICE void write_stream_header(const DispatchContext<R>& ctx, const StreamToken& info,
                                       std::int32_t token, std::byte* slot) {
    const RailRowLayout layout = rail_layout(ctx.exchange);
    auto* header = reinterpret_cast<std::uint32_t*>(slot);
    const auto lane = static_cast<std::uint32_t>(lane_index());
    if (lane == 0) header[0] = static_cast<std::uint32_t>(token);
    if (lane < layout.topk) {
        header[layout.index_word() + lane] = static_cast<std::uint32_t>(info.expert);
        header[layout.weight_word() + lane] = info.weight;
        header[layout.slot_word() + lane] =
            static_cast<std::uint32_t>(info.slot.rank < 0 ? -1 : info.slot.slot);
    }
    const std::int64_t scales = static_cast<std::int64_t>(token) * layout.scale_words;
    GIMLET_ROLLED
    for (std::uint32_t w = lane; w < layout.scale_words; w += kWarpSize)
        header[layout.scale_word() + w] = ctx.args.scales[scales + w];
    if (!mutated(Mutant::stream_header_not_fenced)) fence_proxy_async_shared();
}

/// Tells `member` of this team how many rows of `source`'s tokens went into its ring in this step.
template <Reach R>
GIMLET_DEVICE void say_end_to(const DispatchContext<R>& ctx, std::int32_t channel,
                              std::int32_t member, std::int32_t source, std::int32_t rows) {
    auto* ends = peer_word<std::uint64_t>(ctx.peers, member, ctx.peers.layout.stream_ends);
    const std::int32_t ring = ctx.exchange.stream.ring(channel, source, ctx.peers.rank_count);
    store_relaxed<Scope::system>(ends + ring, tagged(ctx.epoch, static_cast<std::uint32_t>(rows)));
}

/// The same for a rail ring. It may overtake the rows, whose number it says.
template <Reach R>
GIMLET_DEVICE void say_end_on_rail(const DispatchContext<R>& ctx, std::int32_t pair,
                                   std::int32_t rows) {
    const RailShape& rail = ctx.exchange.rail;
    const FifoEnd end = rail_ring_end(ctx.exchange, pair, RailWay::away);
    const std::uint32_t signal =
        stream_signals(ctx.exchange).end(rail.team_index, rail.channel_of(pair));
    gin_context(ctx.peers, end.channel)
        .signal(world_team(ctx.peers), end.peer,
                ncclGin_WeakSignalAdd{signal,
                                      SignaledTail::step(static_cast<std::uint32_t>(rows), true)});
}

/// A send warp at work on its channel. Lane r owns the ring to rank r; with several teams, the lane
/// of a rank on this rail owns the ring to its team, and those of that team's other ranks nothing.
template <Reach R>
class StreamSender {
  public:
    GIMLET_DEVICE explicit StreamSender(const DispatchContext<R>& ctx)
        : ctx_(ctx),
          units_(ctx),
          ring_(ctx),
          channel_(block_index() * ctx.exchange.shape.copy_warps + warp_index()),
          serves_(is_served<R>(ctx.peers, lane_index()) && !ctx.excluded(lane_index())),
          out_(stream_out<R>(ctx.exchange, channel_, serves_ ? lane_index() : ctx.peers.rank)) {
        if (serves_) out_.open();
    }

    /// Pushes all rows of the channel, then says how many there were. A failed wait ends it.
    GIMLET_DEVICE void run() {
        StreamToken next = units_.count > 0 ? stream_token(ctx_, units_.token(0)) : StreamToken{};
        StreamToken now;
        bool good = true;
        std::int32_t unit = 0;
        GIMLET_ROLLED
        for (; unit < units_.count && good; ++unit) {
            if (unit % units_.pieces == 0) {
                now = next;
                if (unit + units_.pieces < units_.count)
                    next = stream_token(ctx_, units_.token(unit + units_.pieces));
                good = open_row(now, unit);
                if (!good) break;
            }
            push_piece(unit);
        }
        drain_loads(unit);
        bulk_wait<0>();
        fence_proxy_async();
        warp_sync();
        if (good && serves_) {
            out_.all_written();
            say_end();
        }
        if (serves_) out_.close();
    }

  private:
    /// Ranks whose rows go into this lane's ring.
    GIMLET_DEVICE std::uint32_t own_ranks() const {
        if constexpr (has_rail(R)) {
            if (!out_.by_rail()) return 1u << lane_index();
            const std::int32_t size = ctx_.peers.lsa_size;
            return ((1u << size) - 1u) << (lane_index() / size * size);
        } else {
            return 1u << lane_index();
        }
    }
    /// Rows between two moves of its tail.
    GIMLET_DEVICE std::uint32_t least_rows() const {
        const StreamShape& stream = ctx_.exchange.stream;
        std::int32_t rows = stream.dispatch_rows;
        if constexpr (has_rail(R)) {
            if (out_.by_rail()) rows = stream.rail_dispatch_rows;
        }
        return static_cast<std::uint32_t>(rows);
    }

    /// Header of the row, and room for it in the rings that it goes to.
    GIMLET_DEVICE bool open_row(const StreamToken& token, std::int32_t unit) {
        goes_ = serves_ && (token.ranks & own_ranks()) != 0;
        write_stream_header(ctx_, token, units_.token(unit), ring_.slot(unit));
        bool short_of_room = goes_ && !out_.has_room();
        if (warp_any(short_of_room)) {
            // The other end may wait for rows that are stored and not published.
            if (!mutated(Mutant::stream_waits_unpublished)) {
                bulk_wait<0>();
                fence_proxy_async();
                warp_sync();
                if (serves_) out_.all_written();
                went_ = false;
            }
            WaitStatus status = WaitStatus::ok;
            if (short_of_room) status = out_.wait(ctx_.wait_scope(Primitive::fifo_reserve));
            if (!warp_ok(status)) return false;
        }
        warp_sync();
        return true;
    }

    GIMLET_DEVICE void push_piece(std::int32_t unit) {
        const std::int32_t piece = unit % units_.pieces;
        mbarrier_wait(ring_.barriers + unit % ring_.depth,
                      static_cast<std::uint32_t>(unit / ring_.depth) & 1u);
        if (goes_) {
            // The header travels with the first piece.
            const std::uint32_t header = piece == 0 ? units_.header_bytes : 0;
            const std::uint32_t skip = units_.header_bytes - header;
            bulk_store(out_.next() + skip + units_.offset(unit), ring_.slot(unit) + skip,
                       units_.bytes(unit) + header);
        }
        bulk_commit();
        bulk_wait_read<1>();
        if (piece == 0 && unit > 0) publish_rows();
        if (piece + 1 == units_.pieces) {
            if (goes_) out_.add();
            if (goes_ && mutated(Mutant::stream_published_early)) out_.all_written();
            if (goes_) ++rows_;
            went_ = goes_;
        }
        warp_sync();
        if (unit > 0) load_unit(ctx_, units_, ring_, unit - 1 + ring_.depth);
    }

    /// The row before this one is stored, see RingOut::count_sent().
    GIMLET_DEVICE void publish_rows() {
        const std::uint32_t least = least_rows();
        if (went_) out_.count_sent();
        went_ = false;
        if (!warp_any(out_.due(least))) return;
        // All groups but the newest, which is of this row.
        if (!mutated(Mutant::stream_row_not_written)) bulk_wait<1>();
        fence_proxy_async();
        out_.sent_written(least);
    }

    /// Loads that are on their way when the warp stops at `unit`.
    GIMLET_DEVICE void drain_loads(std::int32_t unit) const {
        GIMLET_ROLLED
        for (std::int32_t i = unit; i < unit + ring_.depth && i < units_.count; ++i) {
            // The newest one is not started before the unit that frees its slot is done.
            if (unit > 0 && i == unit - 1 + ring_.depth) break;
            mbarrier_wait(ring_.barriers + i % ring_.depth,
                          static_cast<std::uint32_t>(i / ring_.depth) & 1u);
        }
    }

    GIMLET_DEVICE void say_end() const {
        const std::int32_t rows =
            mutate(Mutant::stream_one_row_lost, rows_, rows_ > 0 ? rows_ - 1 : 0);
        if constexpr (has_rail(R)) {
            if (out_.by_rail()) {
                const std::int32_t pair = pair_of(ctx_.exchange, channel_, lane_index());
                if (ctx_.args.mode == RoutingMode::fresh) ctx_.args.routing.rail_sent[pair] = rows_;
                say_end_on_rail(ctx_, pair,
                                mutate(Mutant::rail_end_one_less, rows, rows > 0 ? rows - 1 : 0));
                return;
            }
        }
        say_end_to(ctx_, channel_, lane_index(), ctx_.peers.rank, rows);
    }

    const DispatchContext<R>& ctx_;
    CopyUnits units_;
    CopyRing ring_;
    std::int32_t channel_;
    bool serves_;
    StreamOut<R> out_;
    bool goes_ = false;      ///< the present row goes to this lane's rank
    bool went_ = false;      ///< so did the row before, which is being written
    std::int32_t rows_ = 0;  ///< rows of this step
};

/// Rows that a receive warp counts as arrived at a time: each time costs a wait for their stores.
inline constexpr std::int32_t kSettledRows = 4;

/// A receive warp at work on its rings: one channel's, from every few sources. Lane i owns one.
template <Reach R>
class StreamReceiver {
  public:
    GIMLET_DEVICE explicit StreamReceiver(const DispatchContext<R>& ctx)
        : ctx_(ctx),
          ring_(ctx),
          channel_(block_index() * ctx.exchange.shape.copy_warps +
                   warp(ctx) % ctx.exchange.shape.copy_warps),
          source_(first_source(ctx) + source_stride(ctx) * lane_index()),
          serves_(source_ < ctx.peers.rank_count && !ctx.excluded(source_)),
          in_(team_in(ctx.exchange, channel_, serves_ ? source_ : ctx.peers.rank)) {
        if (serves_) in_.open();
        row_bytes_ = ctx.exchange.token_layout.row_bytes;
        header_bytes_ = ctx.exchange.stream.header_bytes;
        piece_bytes_ = ctx.exchange.shape.slot_bytes - header_bytes_;
        pieces_ = static_cast<std::int32_t>((row_bytes_ + piece_bytes_ - 1) / piece_bytes_);
        index_ = ctx.exchange.stream.ring(channel_, serves_ ? source_ : 0, ctx.peers.rank_count);
        seen_ = ctx.stream_words + warp(ctx) * kWarpSize;
    }

    /// Takes rows until every sender has said that there are no more. On return all stores of the
    /// calling thread are complete. A failed wait ends it.
    GIMLET_DEVICE void run() {
        bool good = true;
        GIMLET_ROLLED
        for (;;) {
            while (issued_ - done_ < ring_.depth && start_load()) {
            }
            if (done_ < issued_) {
                finish_unit();
                continue;
            }
            if (warp_all(over())) break;
            settle<0>();
            if (serves_) in_.tell();
            good = await_news();
            if (!good) break;
        }
        settle<0>();
        bulk_wait<0>();
        fence_proxy_async();
        if (!serves_) return;
        if (good && ctx_.args.mode == RoutingMode::fresh)
            ctx_.args.routing.stream_received[index_] = listed_;
        if (good) in_.tell();
        in_.close();
    }

  private:
    GIMLET_DEVICE static std::int32_t warp(const DispatchContext<R>& ctx) {
        return warp_index() - ctx.exchange.shape.copy_warps;
    }
    GIMLET_DEVICE static std::int32_t first_source(const DispatchContext<R>& ctx) {
        return warp(ctx) / ctx.exchange.shape.copy_warps;
    }
    /// Receive warps that share a channel's sources.
    GIMLET_DEVICE static std::int32_t source_stride(const DispatchContext<R>& ctx) {
        return ctx.exchange.shape.forward_warps / ctx.exchange.shape.copy_warps;
    }

    GIMLET_DEVICE const std::uint64_t* end_word() const {
        return local_word<std::uint64_t>(ctx_.peers, ctx_.peers.layout.stream_ends) + index_;
    }
    GIMLET_DEVICE bool over() const { return !serves_ || (total_ >= 0 && taken_ == total_); }

    /// A lane's look at its ring: the tail first, so that an end that is seen covers it.
    GIMLET_DEVICE void look() {
        if (over()) return;
        in_.poll();
        if (total_ >= 0) return;
        const std::uint64_t word = load_relaxed<Scope::system>(end_word());
        if (has_tag(word, ctx_.epoch) || mutated(Mutant::stream_end_of_last_step))
            total_ = static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
    }

    /// Chooses a row, in turn; false = there is none. Whole warp.
    GIMLET_DEVICE bool choose_row() {
        std::uint32_t mask = warp_ballot(!over() && in_.available() > 0);
        if (mask == 0) {
            look();
            mask = warp_ballot(!over() && in_.available() > 0);
            if (mask == 0) return false;
        }
        lane_ = next_lane(mask, lane_);
        from_ = shuffle(in_.row(), lane_);
        return true;
    }

    /// Starts the load of one piece; false = no row is here. Whole warp.
    GIMLET_DEVICE bool start_load() {
        const std::int32_t piece = issued_ % pieces_;
        if (piece == 0 && !choose_row()) return false;
        // The slot's earlier stores have been read.
        if (issued_ >= ring_.depth && !mutated(Mutant::stream_slot_not_read))
            bulk_wait_read(ring_.depth - 1 - (issued_ - done_));
        warp_sync();
        const std::uint32_t skip = piece == 0 ? 0 : header_bytes_;
        const std::uint32_t bytes = this->bytes(piece) + header_bytes_ - skip;
        if (lane_index() == 0) {
            Mbarrier* barrier = ring_.barriers + issued_ % ring_.depth;
            // The owner of the ring has acquired the row; this thread reads it by a bulk load.
            fence_proxy_async();
            mbarrier_arrive_expect_tx(barrier, bytes);
            bulk_load(ring_.slot(issued_) + skip, from_ + skip + offset(piece), bytes, barrier);
        }
        if (lane_index() == issued_ % ring_.depth) slot_lane_ = lane_;
        ++issued_;
        if (piece + 1 == pieces_ && lane_index() == lane_) {
            in_.take(1);
            ++taken_;
        }
        return true;
    }

    GIMLET_DEVICE std::uint32_t offset(std::int32_t piece) const {
        return static_cast<std::uint32_t>(piece) * piece_bytes_;
    }
    GIMLET_DEVICE std::uint32_t bytes(std::int32_t piece) const {
        const std::uint32_t left = row_bytes_ - offset(piece);
        return left < piece_bytes_ ? left : piece_bytes_;
    }

    /// The oldest piece has landed: it goes on to its final slots. Whole warp.
    GIMLET_DEVICE void finish_unit() {
        const std::int32_t piece = done_ % pieces_;
        const std::int32_t owner = shuffle(slot_lane_, done_ % ring_.depth);
        std::byte* const slot = ring_.slot(done_);
        mbarrier_wait(ring_.barriers + done_ % ring_.depth,
                      static_cast<std::uint32_t>(done_ / ring_.depth) & 1u);
        std::int32_t target = target_;
        if (piece == 0) {
            target = open_row(reinterpret_cast<const std::uint32_t*>(slot), owner);
        }
        if (target >= 0) {
            bulk_store(
                ctx_.own_rows() + static_cast<std::uint64_t>(target) * row_bytes_ + offset(piece),
                slot + header_bytes_, bytes(piece));
        }
        bulk_commit();
        // The rows before are written once all groups but the newest are.
        if (piece == 0 && (arrived_count_ == kSettledRows || !noted_)) settle<1>();
        target_ = target;
        ++done_;
        if (piece + 1 < pieces_) return;
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kSettledRows; ++i)
            if (i == arrived_count_) arrived_[i] = target;
        ++arrived_count_;
        if (lane_index() == owner) in_.release();
    }

    /// Notes where the row of this header goes and writes the records of its final rows. Returns
    /// the lane's final slot, -1 = none. Whole warp.
    GIMLET_DEVICE std::int32_t open_row(const std::uint32_t* header, std::int32_t owner) {
        const RailRowLayout layout = rail_layout(ctx_.exchange);
        const std::int32_t me = ctx_.peers.rank;
        const auto lane = static_cast<std::uint32_t>(lane_index());
        std::int32_t target = -1;
        if (lane < layout.topk) {
            const auto expert = static_cast<std::int32_t>(header[layout.index_word() + lane]);
            const auto slot = static_cast<std::int32_t>(header[layout.slot_word() + lane]);
            if (slot >= 0 && expert >= 0 && ctx_.experts.rank_of(expert) == me) target = slot;
        }
        const std::uint32_t mine = warp_ballot(target >= 0);
        const std::int32_t source = shuffle(source_, owner);
        if (ctx_.args.mode == RoutingMode::fresh) note_slots(target, mine, owner);
        GIMLET_ROLLED
        for (std::uint32_t left = mine; left != 0; left &= left - 1) {
            const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
            auto* record = reinterpret_cast<std::uint32_t*>(
                ctx_.own_records() + static_cast<std::uint64_t>(shuffle(target, choice)) *
                                         ctx_.exchange.token_layout.record_bytes());
            write_forwarded_record(ctx_, header, record, source, me, choice);
        }
        return target;
    }

    /// The answers to these rows will go back in this order.
    GIMLET_DEVICE void note_slots(std::int32_t target, std::uint32_t mine, std::int32_t owner) {
        const StreamShape& stream = ctx_.exchange.stream;
        const std::int64_t first =
            static_cast<std::int64_t>(shuffle(index_, owner)) * stream.channel_rows +
            shuffle(listed_, owner);
        const std::uint32_t below = (1u << lane_index()) - 1u;
        if (target >= 0) ctx_.args.routing.stream_slots[first + __popc(mine & below)] = target;
        if (lane_index() == owner) listed_ += __popc(mine);
    }

    /// Counts the slots of the rows before as arrived; `pending` newer groups may be open.
    template <int pending>
    GIMLET_DEVICE void settle() {
        if (arrived_count_ == 0) return;
        bulk_wait<pending>();
        // Other lanes wrote parts of the record.
        fence_proxy_async();
        warp_sync();
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kSettledRows; ++i)
            if (i < arrived_count_ && arrived_[i] >= 0) count_ready(ctx_, arrived_[i], 1);
        arrived_count_ = 0;
        if (!noted_ && elect()) ctx_.note(EventKind::first_row);
        noted_ = true;
    }

    /// Waits until a ring has news. Whole warp; nothing is on its way.
    GIMLET_DEVICE bool await_news() {
        const bool waits = !over();
        if (waits) seen_[lane_index()] = in_.known_tail();
        const std::uint32_t rings = warp_ballot(waits);
        const std::uint32_t open = warp_ballot(waits && total_ < 0);
        const std::int32_t first = __ffs(static_cast<int>(rings)) - 1;
        const std::int32_t peer = shuffle(source_, first);
        warp_sync();
        WaitStatus status = WaitStatus::ok;
        if (elect()) {
            const WaitTarget target{peer, channel_, seen_[first] + 1};
            status =
                wait_until(ctx_.wait_scope(Primitive::fifo_wait), target,
                           [&](std::uint64_t& seen) { return has_news(rings, open, first, seen); });
        }
        return warp_ok(status);
    }

    /// Relaxed looks by one thread, all loads side by side; look() acquires.
    GIMLET_DEVICE bool has_news(std::uint32_t rings, std::uint32_t open, std::int32_t first,
                                std::uint64_t& seen) const {
        const StreamShape& stream = ctx_.exchange.stream;
        const FifoLayout layout = stream.ring_layout();
        const auto* ends = local_word<std::uint64_t>(ctx_.peers, ctx_.peers.layout.stream_ends);
        bool news = false;
        GIMLET_ROLLED
        for (std::uint32_t left = rings; left != 0; left &= left - 1) {
            const std::int32_t lane = __ffs(static_cast<int>(left)) - 1;
            const std::int32_t ring = stream.ring(
                channel_, first_source(ctx_) + source_stride(ctx_) * lane, ctx_.peers.rank_count);
            const std::uint64_t tail = load_relaxed<Scope::system>(local_word<std::uint64_t>(
                ctx_.peers, ctx_.peers.layout.stream_rings +
                                static_cast<std::uint64_t>(ring) * layout.total_bytes +
                                layout.tail));
            if (lane == first) seen = tail;
            news = news || tail != seen_[lane];
            if ((open >> lane & 1u) != 0)
                news = news || has_tag(load_relaxed<Scope::system>(ends + ring), ctx_.epoch);
        }
        return news;
    }

    const DispatchContext<R>& ctx_;
    CopyRing ring_;
    std::int32_t channel_;
    std::int32_t source_;
    bool serves_;
    TeamIn in_;
    std::uint64_t* seen_;
    const std::byte* from_ = nullptr;  ///< row that is being loaded
    std::uint32_t row_bytes_;
    std::uint32_t header_bytes_;
    std::uint32_t piece_bytes_;
    std::int32_t pieces_;
    std::int32_t index_;                       ///< of the lane's ring
    std::int32_t issued_ = 0;                  ///< pieces whose loads were started
    std::int32_t done_ = 0;                    ///< pieces that went on
    std::int32_t lane_ = -1;                   ///< whose row is being loaded
    std::int32_t slot_lane_ = 0;               ///< lane i: whose row is in slot i
    std::int32_t target_ = -1;                 ///< final slot of the row that goes on
    std::int32_t arrived_[kSettledRows] = {};  ///< final slots of the rows before, not counted yet
    std::int32_t arrived_count_ = 0;
    bool noted_ = false;       ///< the first row's event
    std::int32_t taken_ = 0;   ///< rows of this step
    std::int32_t listed_ = 0;  ///< final slots that were noted
    std::int32_t total_ = -1;  ///< rows of this step, once the sender has said it
};

/// The next dispatch's arrival counters; nobody uses them now. Whole grid.
template <Reach R>
GIMLET_DEVICE void clear_next_ready(const DispatchContext<R>& ctx) {
    const StreamShape& stream = ctx.exchange.stream;
    const auto set = static_cast<std::int64_t>((ctx.epoch + 1) % kReadySets);
    auto* counters = local_word<std::uint32_t>(ctx.peers, ctx.peers.layout.ready_rows) +
                     set * stream.ready_blocks;
    GIMLET_ROLLED
    for (std::int32_t i = thread_index() + block_index() * block_threads(); i < stream.ready_blocks;
         i += block_count() * block_threads()) {
        store_relaxed<Scope::gpu>(counters + i, 0u);
    }
}

}  // namespace gimlet::device

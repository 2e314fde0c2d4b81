// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/stream_dispatch.hpp"

// Sync::fifo between LSA teams, dispatch: relay warps take rows out of the rail's rings and push
// them into the rings of their team. See device/README.md, Streaming.
namespace gimlet::device {

using RailStreamDispatch = DispatchContext<Reach::stream_rail>;

/// A relay warp at work on its channel. Lane so * S_up + i owns the ring to member i for rows of
/// team so's rank on this rail; the first lane of each such group also the rail ring from there.
class StreamRelay {
  public:
    GIMLET_DEVICE explicit StreamRelay(const RailStreamDispatch& ctx)
        : ctx_(ctx),
          ring_(ctx),
          channel_(block_index() * ctx.exchange.shape.copy_warps + relay(ctx)),
          source_(lane_index() / ctx.peers.lsa_size * ctx.peers.lsa_size + ctx.peers.lsa_rank),
          serves_(lane_index() < ctx.peers.rank_count && !is_lsa_peer(ctx.peers, lane_index()) &&
                  !ctx.excluded(source_)),
          leads_(serves_ && lane_index() % ctx.peers.lsa_size == 0),
          pair_(pair_of(ctx.exchange, channel_, serves_ ? source_ : ctx.peers.rank)),
          in_(rail_in(ctx.exchange, channel_, serves_ ? source_ : ctx.peers.rank)),
          out_(team_out(ctx.exchange, channel_, serves_ ? lane_index() : ctx.peers.rank)) {
        if (leads_) in_.open();
        if (serves_) out_.open();
        row_bytes_ = ctx.exchange.token_layout.row_bytes;
        header_bytes_ = ctx.exchange.stream.header_bytes;
        piece_bytes_ = ctx.exchange.shape.slot_bytes - header_bytes_;
        pieces_ = static_cast<std::int32_t>((row_bytes_ + piece_bytes_ - 1) / piece_bytes_);
        seen_ = ctx.stream_words + (ctx.exchange.shape.forward_warps + relay(ctx)) * kWarpSize;
    }

    /// Hands rows on until every sender has said that there are no more, then says so itself. On
    /// return all stores of the calling thread are complete. A failed wait ends it.
    GIMLET_DEVICE void run() {
        bool good = true;
        GIMLET_ROLLED
        while (good) {
            while (issued_ - done_ < ring_.depth && start_load()) {
            }
            if (done_ < issued_) {
                good = finish_unit();
                continue;
            }
            if (warp_all(over())) break;
            // Whoever waits for rows or room must not wait for what lies here.
            if (!mutated(Mutant::relay_waits_unpublished)) publish_all();
            if (leads_) in_.tell();
            good = await_news();
        }
        if (good) {
            publish_all();
            finish();
        } else {
            leave();
        }
        if (leads_) in_.close();
        if (serves_) out_.close();
    }

  private:
    GIMLET_DEVICE static std::int32_t relay(const RailStreamDispatch& ctx) {
        return warp_index() - ctx.exchange.shape.copy_warps - ctx.exchange.shape.forward_warps;
    }
    GIMLET_DEVICE SignaledTail end_signal(std::int32_t pair) const {
        const RailShape& rail = ctx_.exchange.rail;
        return SignaledTail(
            ctx_.peers, rail_ring_end(ctx_.exchange, pair, RailWay::here).channel,
            stream_signals(ctx_.exchange).end(rail.team_of_pair(pair), rail.channel_of(pair)));
    }
    GIMLET_DEVICE bool over() const { return !leads_ || (total_ >= 0 && taken_ == total_); }

    GIMLET_DEVICE void publish_all() {
        bulk_wait<0>();
        fence_proxy_async();
        if (serves_) out_.all_written();
        went_ = false;
    }

    /// A leading lane's look at its rail ring.
    GIMLET_DEVICE void look() {
        if (over()) return;
        in_.poll();
        if (total_ >= 0) return;
        const TailState end = end_signal(pair_).read();
        if (end.finished) total_ = static_cast<std::int32_t>(end.rows);
    }

    /// Chooses a row, teams in turn; false = there is none. Whole warp.
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

    /// Starts the load of one piece, the first one with the header; false = no row is here. Whole
    /// warp.
    GIMLET_DEVICE bool start_load() {
        const std::int32_t piece = issued_ % pieces_;
        if (piece == 0 && !choose_row()) return false;
        // The slot's earlier stores have been read.
        if (issued_ >= ring_.depth && !mutated(Mutant::relay_slot_not_read))
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
            if (mutated(Mutant::relay_released_early)) in_.release();
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

    /// The oldest piece has landed: it goes into the rings of its ranks. Whole warp; uniform
    /// verdict.
    GIMLET_DEVICE bool finish_unit() {
        const std::int32_t piece = done_ % pieces_;
        const std::int32_t leader = shuffle(slot_lane_, done_ % ring_.depth);
        std::byte* const slot = ring_.slot(done_);
        mbarrier_wait(ring_.barriers + done_ % ring_.depth,
                      static_cast<std::uint32_t>(done_ / ring_.depth) & 1u);
        if (piece == 0 && !open_row(reinterpret_cast<const std::uint32_t*>(slot), leader))
            return false;
        if (goes_) {
            const std::uint32_t header = piece == 0 ? header_bytes_ : 0;
            const std::uint32_t skip = header_bytes_ - header;
            bulk_store(out_.next() + skip + offset(piece), slot + skip, bytes(piece) + header);
        }
        bulk_commit();
        if (piece == 0) publish_rows();
        ++done_;
        if (piece + 1 < pieces_) return true;
        if (goes_) {
            out_.add();
            ++rows_;
        }
        went_ = goes_;
        if (lane_index() == leader && !mutated(Mutant::relay_released_early)) in_.release();
        return true;
    }

    /// Reads where the row goes and waits for room there. Whole warp; uniform verdict.
    GIMLET_DEVICE bool open_row(const std::uint32_t* header, std::int32_t leader) {
        const RailRowLayout layout = rail_layout(ctx_.exchange);
        const auto lane = static_cast<std::uint32_t>(lane_index());
        SlotRef ref{-1, -1};
        if (lane < layout.topk) {
            const auto slot = static_cast<std::int32_t>(header[layout.slot_word() + lane]);
            const auto expert = static_cast<std::int32_t>(header[layout.index_word() + lane]);
            if (slot >= 0 && expert >= 0) ref = SlotRef{ctx_.experts.rank_of(expert), slot};
            if (ref.rank >= 0 && !is_lsa_peer(ctx_.peers, ref.rank)) ref = SlotRef{-1, -1};
        }
        if (ctx_.args.mode == RoutingMode::fresh) note_row(ref, leader);
        const std::uint32_t ranks = ranks_of_lanes(ref.rank);
        const std::int32_t member = lsa_member(ctx_.peers, lane_index() - leader);
        goes_ = serves_ && lane_index() >= leader && lane_index() < leader + ctx_.peers.lsa_size &&
                (ranks >> member & 1u) != 0;
        bool short_of_room = goes_ && !out_.has_room();
        if (!warp_any(short_of_room)) return true;
        // The other end may wait for rows that are stored and not published.
        if (!mutated(Mutant::relay_waits_unpublished)) publish_all();
        WaitStatus status = WaitStatus::ok;
        if (short_of_room) status = out_.wait(ctx_.wait_scope(Primitive::fifo_reserve));
        return warp_ok(status);
    }

    /// Combine will sum what these choices bring.
    GIMLET_DEVICE void note_row(const SlotRef& ref, std::int32_t leader) {
        const std::int64_t row =
            ctx_.exchange.rail.first_row(shuffle(pair_, leader)) + shuffle(listed_, leader);
        if (lane_index() < ctx_.exchange.topk)
            ctx_.args.routing.rail_slots[row * ctx_.exchange.topk + lane_index()] = ref;
        if (lane_index() == leader) ++listed_;
    }

    /// The row before this one is stored, see RingOut::count_sent().
    GIMLET_DEVICE void publish_rows() {
        const auto least = static_cast<std::uint32_t>(ctx_.exchange.stream.dispatch_rows);
        if (went_) out_.count_sent();
        went_ = false;
        if (!warp_any(out_.due(least))) return;
        // All groups but the newest, which is of this row.
        if (!mutated(Mutant::relay_row_not_written)) bulk_wait<1>();
        fence_proxy_async();
        out_.sent_written(least);
    }

    /// Everything is handed on and published.
    GIMLET_DEVICE void finish() {
        if (serves_) {
            const std::int32_t member = lsa_member(ctx_.peers, lane_index() % ctx_.peers.lsa_size);
            say_end_to(ctx_, channel_, member, source_,
                       mutate(Mutant::relay_row_lost, rows_, rows_ > 0 ? rows_ - 1 : 0));
        }
        if (!leads_) return;
        in_.tell();
        if (!mutated(Mutant::relay_end_not_settled))
            end_signal(pair_).settle(TailState{static_cast<std::uint32_t>(total_), true});
        if (ctx_.args.mode == RoutingMode::fresh) ctx_.args.routing.rail_received[pair_] = total_;
    }

    /// After a failed wait: the loads land before the block ends; nothing is given back.
    GIMLET_DEVICE void leave() const {
        GIMLET_ROLLED
        for (std::int32_t i = done_; i < issued_; ++i) {
            mbarrier_wait(ring_.barriers + i % ring_.depth,
                          static_cast<std::uint32_t>(i / ring_.depth) & 1u);
        }
        bulk_wait<0>();
        fence_proxy_async();
    }

    /// Waits until a rail ring has news. Whole warp; nothing is on its way.
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

    /// Looks by one thread; look() acquires for the ring's owner.
    GIMLET_DEVICE bool has_news(std::uint32_t rings, std::uint32_t open, std::int32_t first,
                                std::uint64_t& seen) const {
        bool news = false;
        GIMLET_ROLLED
        for (std::uint32_t left = rings; left != 0; left &= left - 1) {
            const std::int32_t lane = __ffs(static_cast<int>(left)) - 1;
            const std::int32_t pair = pair_of(ctx_.exchange, channel_, lane);
            const FifoEnd end = rail_ring_end(ctx_.exchange, pair, RailWay::here);
            const std::uint64_t tail =
                gin_context(ctx_.peers, end.channel)
                    .readSignal(end.tail_signal, 64, cuda::memory_order_acquire);
            if (lane == first) seen = tail;
            news = news || tail != seen_[lane];
            if ((open >> lane & 1u) != 0) news = news || end_signal(pair).read().finished;
        }
        return news;
    }

    const RailStreamDispatch& ctx_;
    CopyRing ring_;
    std::int32_t channel_;
    std::int32_t source_;  ///< whose rows pass through the lane's rings
    bool serves_;
    bool leads_;
    std::int32_t pair_;
    RailIn in_;
    TeamOut out_;
    std::uint64_t* seen_;
    const std::byte* from_ = nullptr;  ///< row that is being loaded
    std::uint32_t row_bytes_;
    std::uint32_t header_bytes_;
    std::uint32_t piece_bytes_;
    std::int32_t pieces_;
    std::int32_t issued_ = 0;     ///< pieces whose loads were started
    std::int32_t done_ = 0;       ///< pieces that went on
    std::int32_t lane_ = -1;      ///< leader of the team whose row is being loaded
    std::int32_t slot_lane_ = 0;  ///< lane i: leader of the team whose row is in slot i
    bool goes_ = false;           ///< the present row goes to this lane's member
    bool went_ = false;           ///< so did the row before, which is being written
    std::int32_t rows_ = 0;       ///< rows of this step that went there
    std::int32_t taken_ = 0;      ///< leader: rows of this step
    std::int32_t listed_ = 0;     ///< leader: rows that were noted
    std::int32_t total_ = -1;     ///< leader: rows of this step, once the sender has said it
};

/// The rows of a step whose slots are known.
template <Reach R>
GIMLET_DEVICE void stream_rows(const DispatchContext<R>& ctx) {
    const KernelShape& shape = ctx.exchange.shape;
    const std::int32_t receive_end = shape.copy_warps + shape.forward_warps;
    if (warp_index() < shape.copy_warps) {
        StreamSender<R>(ctx).run();
        return;
    }
    record_step(ctx);
    if (warp_index() < receive_end) {
        StreamReceiver<R>(ctx).run();
    } else if constexpr (R == Reach::stream_rail) {
        if (warp_index() < receive_end + ctx.exchange.stream.relay_warps) StreamRelay(ctx).run();
    }
}

}  // namespace gimlet::device

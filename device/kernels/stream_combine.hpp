// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/stream_rings.hpp"

// Sync::fifo, combine: send warps push the answers of this rank's rows home, in the order of the
// home's tokens; load warps take them out of the rings and feed the sum warps of the direct mode.
// See device/README.md, Streaming.
namespace gimlet::device {

/// Whether ranks of other teams send one sum for all rows of a token, which they have weighted.
template <Reach R>
GIMLET_DEVICE bool sums_at_teams(const CombineContext<R>& ctx) {
    if constexpr (!has_rail(R)) return false;
    return ctx.exchange.rail.pre_sum == PreSum::on;
}

/// A load warp at work on its channel: lane r owns the ring from rank r; with several teams, the
/// lane of a rank on this rail owns the ring from its team. `Ring` is the block's ring of row slots
/// that the sum warps read.
template <Reach R, class Ring>
class StreamLoader {
  public:
    GIMLET_DEVICE StreamLoader(const CombineContext<R>& ctx, const Ring& ring)
        : ctx_(ctx),
          ring_(ring),
          channel_(block_index() * ctx.exchange.shape.copy_warps + warp_index() / ring.warps),
          serves_(is_served<R>(ctx.peers, lane_index()) && !ctx.excluded(lane_index())),
          in_(stream_in<R>(ctx.exchange, channel_, serves_ ? lane_index() : ctx.peers.rank)) {
        if (serves_) in_.open();
    }

    /// The rows of all tokens of the channel, then a ticket that stops the sum warps. A failed wait
    /// stops them at once.
    GIMLET_DEVICE void run() {
        LaneRow next = fetch(ring_.first_token);
        bool good = true;
        GIMLET_ROLLED
        for (std::int32_t token = ring_.first_token; token < ring_.token_end; ++token) {
            LaneRow lane = next;
            next = fetch(token + 1);
            good = find_rows(lane);
            if (!good) break;
            load(lane, token);
        }
        fill(RowTicket{RowTicket::stop, 0.0f, true, -1}, nullptr, 0, -1);
        if (good) {
            drain();
        } else {
            leave();
        }
        if (serves_) in_.close();
    }

  private:
    GIMLET_DEVICE LaneRow fetch(std::int32_t token) const {
        LaneRow out{0, 1.0f, {-1, -1}, {-1, -1}};
        if (token >= ring_.token_end || lane_index() >= ctx_.exchange.topk) return out;
        const std::int64_t at =
            static_cast<std::int64_t>(token) * ctx_.exchange.topk + lane_index();
        out.slot = ctx_.args.routing.slots[at];
        if (out.slot.rank >= 0 && ctx_.args.weights != nullptr) out.weight = ctx_.args.weights[at];
        return out;
    }

    /// slot.rank becomes the rank whose ring the row comes through; where a team sends a sum, the
    /// lowest choice of the team stands for all. Whole warp.
    GIMLET_DEVICE void find_rings(LaneRow& lane) const {
        const bool far = lane.slot.rank >= 0 && !is_lsa_peer(ctx_.peers, lane.slot.rank);
        if (far) {
            const std::int32_t size = ctx_.peers.lsa_size;
            lane.slot.rank = lane.slot.rank / size * size + ctx_.peers.lsa_rank;
        }
        if (!sums_at_teams(ctx_)) return;
        const std::uint32_t same = __match_any_sync(kFullWarp, far ? lane.slot.rank : -1);
        if (!far) return;
        lane.weight = 1.0f;
        const bool first = (same & ((1u << lane_index()) - 1u)) == 0;
        if (!first && !mutated(Mutant::stream_sum_taken_twice)) lane.slot.rank = -1;
    }

    /// Waits for the token's rows and finds them in the rings. Warp-uniform verdict.
    GIMLET_DEVICE bool find_rows(LaneRow& lane) {
        if constexpr (has_rail(R)) find_rings(lane);
        const std::uint32_t choices = warp_ballot(lane.slot.rank >= 0);
        std::uint32_t count = 0;  // rows of this token from the lane's rank
        GIMLET_ROLLED
        for (std::uint32_t left = choices; left != 0; left &= left - 1) {
            if (shuffle(lane.slot.rank, __ffs(static_cast<int>(left)) - 1) == lane_index()) ++count;
        }
        if (count > in_.available()) in_.poll();
        if (warp_any(count > in_.available())) {
            // The other end may wait for slots that have been read and not given back.
            if (!mutated(Mutant::stream_waits_unreleased)) drain();
            WaitStatus status = WaitStatus::ok;
            if (count > in_.available())
                status = in_.wait(ctx_.wait_scope(Primitive::fifo_wait), count);
            if (!warp_ok(status)) return false;
        }
        // Rows were acquired by their rings' owners; lane 0 reads them by bulk loads. The vote
        // above orders no memory.
        warp_sync();
        if (elect()) fence_proxy_async();
        std::uint32_t index = 0;
        GIMLET_ROLLED
        for (std::uint32_t left = choices; left != 0; left &= left - 1) {
            const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
            const std::int32_t rank = shuffle(lane.slot.rank, choice);
            const bool owner = rank == lane_index();
            const auto row = shuffle(reinterpret_cast<std::uint64_t>(in_.row(index)), rank);
            if (owner) ++index;
            if (lane_index() == choice) lane.address = row;
        }
        in_.take(count);
        return true;
    }

    /// All rows of one token, piece by piece, choices ascending, which fixes the order of the sum.
    GIMLET_DEVICE void load(const LaneRow& lane, std::int32_t token) {
        const std::uint32_t mask = warp_ballot(lane.address != 0);
        GIMLET_ROLLED
        for (std::uint32_t offset = 0; offset < ctx_.args.row_bytes; offset += ring_.slot_bytes) {
            if (mask == 0) fill(RowTicket{RowTicket::nothing, 0.0f, true, token}, nullptr, 0, -1);
            const std::uint32_t rest = ctx_.args.row_bytes - offset;
            const std::uint32_t bytes = rest < ring_.slot_bytes ? rest : ring_.slot_bytes;
            GIMLET_ROLLED
            for (std::uint32_t left = mask; left != 0; left &= left - 1) {
                const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
                const auto* row = reinterpret_cast<const std::byte*>(shuffle(lane.address, choice));
                const std::int32_t rank = shuffle(lane.slot.rank, choice);
                const RowTicket ticket{RowTicket::row, shuffle(lane.weight, choice),
                                       (left & (left - 1)) == 0, token};
                fill(ticket, row + offset, bytes, bytes == rest ? rank : -1);
            }
        }
    }

    /// Fills one slot, once the sum warps have left it. `rank`: whose row ends with this piece.
    GIMLET_DEVICE void fill(const RowTicket& ticket, const std::byte* from, std::uint32_t bytes,
                            std::int32_t rank) {
        if (filled_ - retired_ == ring_.depth) retire();
        const std::int32_t slot = filled_ % ring_.depth;
        const auto round = static_cast<std::uint32_t>(filled_ / ring_.depth) & 1u;
        if (elect()) {
            mbarrier_wait(ring_.empty + slot, round ^ 1u);
            ring_.tickets[slot] = RowTicket::pack(ticket);
            if (bytes > 0) {
                mbarrier_arrive_expect_tx(ring_.full + slot, bytes);
                bulk_load(ring_.slot(slot), from, bytes, ring_.full + slot);
            } else {
                mbarrier_arrive(ring_.full + slot);
            }
        }
        if (lane_index() == slot) slot_rank_ = rank;
        ++filled_;
    }

    /// The oldest fill has landed: if it was the end of a row, its ring slot is free.
    GIMLET_DEVICE void retire() {
        const std::int32_t slot = retired_ % ring_.depth;
        const std::int32_t rank = shuffle(slot_rank_, slot);
        if (!mutated(Mutant::stream_released_early))
            mbarrier_wait(ring_.full + slot,
                          static_cast<std::uint32_t>(retired_ / ring_.depth) & 1u);
        // A lane that looks late must not find the phase after next: nobody fills the slot again
        // before all have looked.
        warp_sync();
        if (lane_index() == rank) in_.release();
        ++retired_;
    }

    GIMLET_DEVICE void drain() {
        GIMLET_ROLLED
        while (retired_ < filled_) retire();
        if (serves_) in_.tell();
    }

    /// After a failed wait: the loads land before the block ends; nothing is given back.
    GIMLET_DEVICE void leave() const {
        GIMLET_ROLLED
        for (std::int32_t i = retired_; i < filled_; ++i) {
            mbarrier_wait(ring_.full + i % ring_.depth,
                          static_cast<std::uint32_t>(i / ring_.depth) & 1u);
        }
    }

    const CombineContext<R>& ctx_;
    const Ring& ring_;
    std::int32_t channel_;
    bool serves_;
    StreamIn<R> in_;
    std::int32_t filled_ = 0;
    std::int32_t retired_ = 0;
    std::int32_t slot_rank_ = -1;  ///< lane i: whose row ends with the piece in slot i
};

/// A send warp at work on one channel of all homes: lane h owns the ring to rank h, or to the rank
/// that sums for it. A home that is slow holds up only its own rows.
template <Reach R>
class StreamAnswers {
  public:
    GIMLET_DEVICE StreamAnswers(const CombineContext<R>& ctx, std::int32_t warp)
        : ctx_(ctx),
          channel_(block_index() * ctx.exchange.shape.copy_warps + warp),
          serves_(lane_index() < ctx.peers.rank_count && !ctx.excluded(lane_index())),
          out_(team_out(ctx.exchange, channel_, serves_ ? lane_index() : ctx.peers.rank)) {
        const StreamShape& stream = ctx.exchange.stream;
        std::byte* shared = dynamic_shared_memory();
        const auto layout = CombineSharedLayout::build(ctx.exchange.shape, ctx.peers.rank_count);
        const std::int32_t first = warp * kStreamSendSlots;
        slot_bytes_ = ctx.exchange.shape.slot_bytes;
        slots_ = shared + layout.send_slots + static_cast<std::uint64_t>(first) * slot_bytes_;
        full_ = reinterpret_cast<Mbarrier*>(shared + layout.send_full) + first;
        seen_ = reinterpret_cast<std::uint64_t*>(shared + layout.heads) + warp * kWarpSize;
        pieces_ = static_cast<std::int32_t>((ctx.args.row_bytes + slot_bytes_ - 1) / slot_bytes_);
        if (elect()) {
            GIMLET_ROLLED
            for (std::int32_t i = 0; i < kStreamSendSlots; ++i) mbarrier_init(full_ + i, 1);
            mbarrier_init_fence();
        }
        warp_sync();
        if (!serves_) return;
        const std::int32_t ring = stream.ring(channel_, lane_index(), ctx.peers.rank_count);
        list_ =
            ctx.args.routing.stream_slots + static_cast<std::int64_t>(ring) * stream.channel_rows;
        count_ = ctx.args.routing.stream_received[ring];
        if (count_ > 0) entry_ = list_[0];
        out_.open();
    }

    /// Pushes all rows. A failed wait ends it. On return all stores of the calling thread are
    /// complete.
    GIMLET_DEVICE void run() {
        // Kernels before this one wrote the rows.
        fence_proxy_async();
        bool good = true;
        GIMLET_ROLLED
        for (;;) {
            while (issued_ - done_ < kStreamSendSlots && start_load()) {
            }
            if (done_ < issued_) {
                finish_unit();
                continue;
            }
            if (warp_all(sent_ == count_)) break;
            // The homes may wait for rows that are stored and not published.
            publish_all();
            good = await_room();
            if (!good) break;
        }
        if (good) publish_all();
        if (serves_) out_.close();
    }

  private:
    GIMLET_DEVICE void publish_all() {
        bulk_wait<0>();
        fence_proxy_async();
        if (serves_) out_.all_written();
        written_lane_ = -1;
    }

    /// Chooses a home, in turn; false = none has room for a row. Whole warp.
    GIMLET_DEVICE bool choose_home() {
        const bool ready =
            sent_ < count_ && out_.has_room(mutate(Mutant::stream_room_for_one, loading_ + 1, 1));
        const std::int32_t lane = next_lane(warp_ballot(ready), lane_);
        if (lane < 0) return false;
        lane_ = lane;
        from_ = ctx_.args.answers[ctx_.parity] +
                static_cast<std::uint64_t>(shuffle(entry_, lane)) * ctx_.args.row_bytes;
        if (lane_index() == lane) {
            ++loading_;
            ++sent_;
            if (sent_ < count_)
                entry_ = list_[mutate(Mutant::stream_order_lost, sent_, count_ - sent_)];
        }
        return true;
    }

    GIMLET_DEVICE bool start_load() {
        const std::int32_t piece = issued_ % pieces_;
        if (piece == 0 && !choose_home()) return false;
        // The slot's earlier stores have been read.
        if (issued_ >= kStreamSendSlots) bulk_wait_read(kStreamSendSlots - 1 - (issued_ - done_));
        warp_sync();
        const std::int32_t slot = issued_ % kStreamSendSlots;
        if (elect()) {
            mbarrier_arrive_expect_tx(full_ + slot, bytes(piece));
            bulk_load(slot_at(slot), from_ + offset(piece), bytes(piece), full_ + slot);
        }
        if (lane_index() == slot) slot_lane_ = lane_;
        ++issued_;
        return true;
    }

    GIMLET_DEVICE std::byte* slot_at(std::int32_t slot) const {
        return slots_ + static_cast<std::uint64_t>(slot) * slot_bytes_;
    }
    GIMLET_DEVICE std::uint32_t offset(std::int32_t piece) const {
        return static_cast<std::uint32_t>(piece) * slot_bytes_;
    }
    GIMLET_DEVICE std::uint32_t bytes(std::int32_t piece) const {
        const std::uint32_t left = ctx_.args.row_bytes - offset(piece);
        return left < slot_bytes_ ? left : slot_bytes_;
    }

    /// The oldest piece has landed: it goes into its ring. Whole warp.
    GIMLET_DEVICE void finish_unit() {
        const std::int32_t piece = done_ % pieces_;
        const std::int32_t slot = done_ % kStreamSendSlots;
        const std::int32_t owner = shuffle(slot_lane_, slot);
        mbarrier_wait(full_ + slot, static_cast<std::uint32_t>(done_ / kStreamSendSlots) & 1u);
        if (lane_index() == owner)
            bulk_store(out_.next() + offset(piece), slot_at(slot), bytes(piece));
        bulk_commit();
        if (piece == 0) publish_rows();
        ++done_;
        if (piece + 1 < pieces_) return;
        if (lane_index() == owner) {
            out_.add();
            --loading_;
        }
        written_lane_ = owner;
    }

    /// As dispatch does.
    GIMLET_DEVICE void publish_rows() {
        const auto least = static_cast<std::uint32_t>(ctx_.exchange.stream.combine_rows);
        if (lane_index() == written_lane_) out_.count_sent();
        if (!warp_any(out_.due(least))) return;
        // All groups but the newest, which is of the row after.
        bulk_wait<1>();
        fence_proxy_async();
        warp_sync();
        out_.sent_written(least);
    }

    /// Waits until a home that is to get rows has freed slots. Whole warp; nothing is on its way.
    GIMLET_DEVICE bool await_room() {
        const bool waits = sent_ < count_;
        if (waits) seen_[lane_index()] = out_.known_head();
        const std::uint32_t rings = warp_ballot(waits);
        const std::int32_t first = __ffs(static_cast<int>(rings)) - 1;
        warp_sync();
        WaitStatus status = WaitStatus::ok;
        if (elect()) {
            const WaitTarget target{first, channel_, seen_[first] + 1};
            status = wait_until(ctx_.wait_scope(Primitive::fifo_reserve), target,
                                [&](std::uint64_t& seen) { return has_news(rings, first, seen); });
        }
        return warp_ok(status);
    }

    /// Relaxed looks by one thread; choose_home() acquires.
    GIMLET_DEVICE bool has_news(std::uint32_t rings, std::int32_t first,
                                std::uint64_t& seen) const {
        const FifoLayout layout = ctx_.exchange.stream.ring_layout();
        bool news = false;
        GIMLET_ROLLED
        for (std::uint32_t left = rings; left != 0; left &= left - 1) {
            const std::int32_t rank = __ffs(static_cast<int>(left)) - 1;
            const FifoEnd end = ring_end(ctx_.exchange, channel_, rank);
            const std::uint64_t head = load_relaxed<Scope::system>(
                local_word<std::uint64_t>(ctx_.peers, end.local_offset + layout.head));
            if (rank == first) seen = head;
            news = news || head != seen_[rank];
        }
        return news;
    }

    const CombineContext<R>& ctx_;
    std::int32_t channel_;
    bool serves_;
    TeamOut out_;
    std::byte* slots_;
    Mbarrier* full_;
    std::uint64_t* seen_;
    const std::int32_t* list_ = nullptr;
    const std::byte* from_ = nullptr;  ///< row that is being loaded
    std::uint32_t slot_bytes_;
    std::int32_t pieces_;
    std::int32_t count_ = 0;          ///< rows for the lane's home
    std::int32_t entry_ = 0;          ///< final slot of the next of them
    std::int32_t sent_ = 0;           ///< of them: loads were started
    std::uint32_t loading_ = 0;       ///< of these: not yet stored
    std::int32_t issued_ = 0;         ///< pieces whose loads were started
    std::int32_t done_ = 0;           ///< pieces that went on
    std::int32_t lane_ = -1;          ///< whose row is being loaded
    std::int32_t slot_lane_ = 0;      ///< lane i: whose row is in slot i
    std::int32_t written_lane_ = -1;  ///< whose row is being written
};

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/hybrid_combine.hpp"
#include "device/kernels/stream_combine.hpp"

// Sync::fifo between LSA teams, combine: a warp sums the rows that its team holds for tokens of its
// rail and sends the sums home. See device/README.md, Streaming.
namespace gimlet::device {

using RailStreamCombine = CombineContext<Reach::stream_rail>;

/// 16-byte vectors of a row that one lane sums at a time.
inline constexpr std::int32_t kSumVectors = 4;

/// A warp that sums on one channel. Lane so * S_up + i owns the ring from member i for homes in
/// team so; the first lane of each such group leads it: it owns the rail ring that goes home.
///
/// A unit is what one slot of that ring takes: the rows of one token, or without the pre-sum one
/// row. Units of a team are done in the order of its tokens and choices; of the teams, any whose
/// next unit has all its rows and a slot goes on.
template <ElementType E>
class StreamSums {
  public:
    GIMLET_DEVICE StreamSums(const RailStreamCombine& ctx, std::int32_t warp)
        : ctx_(ctx),
          channel_(block_index() * ctx.exchange.shape.copy_warps + warp),
          home_(lane_index() / ctx.peers.lsa_size * ctx.peers.lsa_size + ctx.peers.lsa_rank),
          serves_(lane_index() < ctx.peers.rank_count && !is_lsa_peer(ctx.peers, lane_index()) &&
                  !ctx.excluded(home_)),
          leads_(serves_ && lane_index() % ctx.peers.lsa_size == 0),
          pair_(pair_of(ctx.exchange, channel_, serves_ ? home_ : ctx.peers.rank)),
          in_(team_in(ctx.exchange, channel_, serves_ ? lane_index() : ctx.peers.rank)),
          out_(rail_out(ctx.exchange, channel_, serves_ ? home_ : ctx.peers.rank)) {
        const auto layout = CombineSharedLayout::build(ctx.exchange.shape, ctx.peers.rank_count);
        const std::int32_t before = ctx.exchange.shape.copy_warps + 2 * warp;
        seen_ = reinterpret_cast<std::uint64_t*>(dynamic_shared_memory() + layout.heads) +
                before * kWarpSize;
        if (serves_) in_.open();
        if (leads_) {
            out_.open();
            left_rows_ = ctx.args.routing.rail_received[pair_];
        }
    }

    /// Sums and sends all that the rail is to get. A failed wait ends it.
    GIMLET_DEVICE void run() {
        GIMLET_ROLLED
        for (std::int32_t leader = 0; leader < ctx_.peers.rank_count;
             leader += ctx_.peers.lsa_size) {
            if (warp_any(leads_ && lane_index() == leader)) open_unit(leader);
        }
        bool good = true;
        std::int32_t leader = -1;
        GIMLET_ROLLED
        while (good && warp_any(leads_ && left_rows_ > 0)) {
            leader = choose_team(leader);
            if (leader >= 0) {
                do_unit(leader);
                continue;
            }
            // Whoever waits for sums or room must not wait for what lies here.
            if (leads_) out_.all_written();
            if (serves_) in_.tell();
            good = await_news();
        }
        if (good) {
            if (leads_) out_.all_written();
            if (serves_) in_.tell();
        }
        if (serves_) in_.close();
        if (leads_) out_.close();
    }

  private:
    GIMLET_DEVICE bool has_unit() const { return choices_ != 0; }
    /// Of the choices that are left.
    GIMLET_DEVICE std::uint32_t unit_of(std::uint32_t choices) const {
        return sums_at_teams(ctx_) ? choices : choices & (0u - choices);
    }
    GIMLET_DEVICE bool in_group(std::int32_t leader) const {
        return serves_ && lane_index() >= leader && lane_index() < leader + ctx_.peers.lsa_size;
    }

    /// The lane's choice of the present row of a team. Whole warp.
    GIMLET_DEVICE SlotRef read_choice(std::int32_t leader) const {
        const std::int64_t row =
            ctx_.exchange.rail.first_row(shuffle(pair_, leader)) + shuffle(row_, leader);
        if (lane_index() >= ctx_.exchange.topk) return SlotRef{-1, -1};
        return ctx_.args.routing.rail_slots[row * ctx_.exchange.topk + lane_index()];
    }

    /// Finds out what the next unit of a team needs. Whole warp.
    GIMLET_DEVICE void open_unit(std::int32_t leader) {
        if (in_group(leader)) {
            choices_ = 0;
            needed_ = 0;
        }
        if (shuffle(left_rows_, leader) == 0) return;
        const SlotRef ref = read_choice(leader);
        const std::uint32_t done = shuffle(done_, leader);
        const std::uint32_t choices = warp_ballot(ref.rank >= 0) & ~done;
        if (in_group(leader)) choices_ = choices;
        const std::uint32_t unit = unit_of(choices);
        GIMLET_ROLLED
        for (std::uint32_t left = unit; left != 0; left &= left - 1) {
            const std::int32_t rank = shuffle(ref.rank, __ffs(static_cast<int>(left)) - 1);
            if (in_group(leader) && rank % ctx_.peers.lsa_size == lane_index() - leader) ++needed_;
        }
    }

    GIMLET_DEVICE bool is_ready() {
        if (!has_unit()) return false;
        if (in_.available() < needed_) {
            in_.poll();
            if (in_.available() < needed_) return false;
        }
        return !leads_ || out_.has_room();
    }

    /// Leader of a team whose next unit can be done, in turn; -1 = none. Whole warp.
    GIMLET_DEVICE std::int32_t choose_team(std::int32_t last) {
        const std::uint32_t ready = warp_ballot(serves_ && is_ready());
        const std::int32_t size = ctx_.peers.lsa_size;
        std::uint32_t teams = 0;
        GIMLET_ROLLED
        for (std::int32_t leader = 0; leader < ctx_.peers.rank_count; leader += size) {
            const std::uint32_t members = ((1u << size) - 1u) << leader;
            if ((ready & members) == members) teams |= 1u << leader;
        }
        warp_sync();
        return next_lane(teams, last);
    }

    /// Sums one unit into the next slot and goes on to the team's next one. Whole warp.
    GIMLET_DEVICE void do_unit(std::int32_t leader) {
        const std::uint32_t choices = shuffle(choices_, leader);
        const std::uint32_t unit = unit_of(choices);
        const SlotRef ref = read_choice(leader);
        std::uint64_t address = 0;
        std::uint32_t index = 0;
        GIMLET_ROLLED
        for (std::uint32_t left = unit; left != 0; left &= left - 1) {
            const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
            const std::int32_t owner = leader + shuffle(ref.rank, choice) % ctx_.peers.lsa_size;
            const auto row = shuffle(reinterpret_cast<std::uint64_t>(in_.row(index)), owner);
            if (lane_index() == owner) ++index;
            if (lane_index() == choice) address = row;
        }
        auto* out = reinterpret_cast<std::byte*>(
            shuffle(reinterpret_cast<std::uint64_t>(out_.next()), leader));
        const bool owns = in_group(leader);
        if (owns && mutated(Mutant::sums_released_early)) give_back();
        sum(unit, address, 1.0f, out);
        warp_sync();
        if (owns) give_back();
        if (leads_ && lane_index() == leader) {
            const auto least = static_cast<std::uint32_t>(ctx_.exchange.stream.rail_combine_rows);
            out_.add();
            out_.count_sent();
            out_.sent_written(least);
            done_ |= unit;
            if (choices == unit) {
                done_ = 0;
                ++row_;
                --left_rows_;
            }
        }
        warp_sync();
        open_unit(leader);
    }

    GIMLET_DEVICE void give_back() {
        in_.take(needed_);
        GIMLET_ROLLED
        for (; needed_ > 0; --needed_) in_.release();
    }

    /// Sums the rows of the unit's choices, ascending, in fp32. Lane k holds address and weight of
    /// choice k. Whole warp.
    GIMLET_DEVICE void sum(std::uint32_t unit, std::uint64_t address, float weight,
                           std::byte* out) const {
        constexpr std::int32_t kElements = Pack16<E>::count;
        const auto vectors = static_cast<std::int32_t>(ctx_.args.row_bytes / 16u);
        GIMLET_ROLLED
        for (std::int32_t base = 0; base < vectors; base += kSumVectors * kWarpSize) {
            float acc[kSumVectors][kElements] = {};
            GIMLET_ROLLED
            for (std::uint32_t left = unit; left != 0; left &= left - 1) {
                const std::int32_t choice = __ffs(static_cast<int>(left)) - 1;
                const auto* row = reinterpret_cast<const Vec16*>(shuffle(address, choice));
                const float scale = shuffle(weight, choice);
                GIMLET_UNROLL
                for (std::int32_t i = 0; i < kSumVectors; ++i) {
                    const std::int32_t v = base + i * kWarpSize + lane_index();
                    if (v < vectors) Pack16<E>::accumulate_scaled(acc[i], load_vec(row + v), scale);
                }
            }
            GIMLET_UNROLL
            for (std::int32_t i = 0; i < kSumVectors; ++i) {
                const std::int32_t v = base + i * kWarpSize + lane_index();
                if (v < vectors)
                    store_vec(reinterpret_cast<Vec16*>(out) + v, Pack16<E>::round(acc[i]));
            }
        }
    }

    /// Waits until a ring has rows, or room, that a unit is waiting for. Whole warp.
    GIMLET_DEVICE bool await_news() {
        const bool rows = has_unit() && in_.available() < needed_;
        const bool room = leads_ && has_unit() && !out_.has_room();
        if (rows) seen_[lane_index()] = in_.known_tail();
        if (room) seen_[kWarpSize + lane_index()] = out_.known_head();
        const std::uint32_t tails = warp_ballot(rows);
        const std::uint32_t heads = warp_ballot(room);
        const std::uint32_t waiting = tails != 0 ? tails : heads;
        // Something has come since the last look.
        if (waiting == 0) return true;
        const std::int32_t first = __ffs(static_cast<int>(waiting)) - 1;
        const std::int32_t member = lsa_member(ctx_.peers, first % ctx_.peers.lsa_size);
        const std::int32_t peer = tails != 0 ? member : shuffle(home_, first);
        warp_sync();
        WaitStatus status = WaitStatus::ok;
        if (elect()) {
            const WaitTarget target{peer, channel_,
                                    seen_[first + (tails != 0 ? 0 : kWarpSize)] + 1};
            const auto primitive = tails != 0 ? Primitive::fifo_wait : Primitive::fifo_reserve;
            status = wait_until(ctx_.wait_scope(primitive), target, [&](std::uint64_t& seen) {
                return has_news(tails, heads, first, seen);
            });
        }
        return warp_ok(status);
    }

    /// Looks by one thread; is_ready() acquires for the rings' owners.
    GIMLET_DEVICE bool has_news(std::uint32_t tails, std::uint32_t heads, std::int32_t first,
                                std::uint64_t& seen) const {
        const FifoLayout layout = ctx_.exchange.stream.ring_layout();
        bool news = false;
        GIMLET_ROLLED
        for (std::uint32_t left = tails; left != 0; left &= left - 1) {
            const std::int32_t lane = __ffs(static_cast<int>(left)) - 1;
            const FifoEnd end = ring_end(ctx_.exchange, channel_, lane);
            const std::uint64_t tail = load_relaxed<Scope::system>(
                local_word<std::uint64_t>(ctx_.peers, end.local_offset + layout.tail));
            if (lane == first && tails != 0) seen = tail;
            news = news || tail != seen_[lane];
        }
        GIMLET_ROLLED
        for (std::uint32_t left = heads; left != 0; left &= left - 1) {
            const std::int32_t lane = __ffs(static_cast<int>(left)) - 1;
            const FifoEnd end =
                rail_ring_end(ctx_.exchange, pair_of(ctx_.exchange, channel_, lane), RailWay::away);
            const std::uint64_t head =
                gin_context(ctx_.peers, end.channel)
                    .readSignal(end.head_signal, 64, cuda::memory_order_acquire);
            if (lane == first && tails == 0) seen = head;
            news = news || head != seen_[kWarpSize + lane];
        }
        return news;
    }

    const RailStreamCombine& ctx_;
    std::int32_t channel_;
    std::int32_t home_;  ///< whose tokens the lane's group serves
    bool serves_;
    bool leads_;
    std::int32_t pair_;
    TeamIn in_;
    RailOut out_;
    std::uint64_t* seen_;
    std::int32_t left_rows_ = 0;  ///< leader: rail rows of its team that are not done
    std::int32_t row_ = 0;        ///< leader: number of the present one
    std::uint32_t done_ = 0;      ///< leader: choices of it that are done
    std::uint32_t choices_ = 0;   ///< choices that are left; 0 = the team has no unit
    std::uint32_t needed_ = 0;    ///< rows that its next unit takes from the lane's ring
};

}  // namespace gimlet::device

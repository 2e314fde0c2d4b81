// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "device/channel/context_map.hpp"
#include "device/channel/fifo.hpp"
#include "device/core/group.hpp"
#include "device/kernels/reach.hpp"

// The rings of Sync::fifo, as seen by the warps at their ends. Lane i of a warp owns the ring to or
// from one rank; so a warp serves up to 32 ranks.
namespace gimlet::device {

/// Ring of `channel` for rows of rank `rank`'s tokens, or (sending) for rows that go to `rank`:
/// both ends' regions. If `rank` is in another team, the member of this team that is on its rail
/// has the other end.
GIMLET_DEVICE FifoEnd ring_end(const ExchangeArgs& exchange, std::int32_t channel,
                               std::int32_t rank) {
    const StreamShape& stream = exchange.stream;
    const PeerHandles& peers = exchange.peers;
    const std::uint64_t bytes = peers.shape.stream_ring_bytes;
    const std::uint64_t base = peers.layout.stream_rings;
    const std::int32_t member = rank % peers.lsa_size;
    const auto here = static_cast<std::uint64_t>(stream.ring(channel, rank, peers.rank_count));
    const auto there = static_cast<std::uint64_t>(
        stream.ring(channel, rank - member + peers.lsa_rank, peers.rank_count));
    return FifoEnd{lsa_member(peers, member), channel, base + here * bytes,
                   base + there * bytes,      0,       0};
}

GIMLET_DEVICE StreamSignals stream_signals(const ExchangeArgs& exchange) {
    return StreamSignals{exchange.peers.rank_count, exchange.rail.team_count,
                         exchange.rail.channel_count,
                         ContextMap{exchange.peers.gin_context_count}.data_context_count()};
}

/// Where a rail ring leads, seen from this rank.
enum class RailWay { away, here };

/// Ring of `pair` between this rank and the other team's rank of its rail.
GIMLET_DEVICE FifoEnd rail_ring_end(const ExchangeArgs& exchange, std::int32_t pair, RailWay way) {
    const RailShape& rail = exchange.rail;
    const PeerHandles& peers = exchange.peers;
    const StreamSignals signals = stream_signals(exchange);
    const std::int32_t channel = rail.channel_of(pair);
    const std::int32_t team = rail.team_of_pair(pair);
    const std::int32_t there = rail.pair_there(pair);
    const bool away = way == RailWay::away;
    const auto own =
        static_cast<std::uint64_t>(away ? StreamShape::rail_out(pair) : StreamShape::rail_in(pair));
    const auto other = static_cast<std::uint64_t>(away ? StreamShape::rail_in(there)
                                                       : StreamShape::rail_out(there));
    return FifoEnd{team * peers.lsa_size + peers.lsa_rank,
                   ContextMap{peers.gin_context_count}.data_context(channel),
                   peers.layout.stream_rails + own * peers.shape.stream_rail_bytes,
                   peers.layout.stream_rails + other * peers.shape.stream_rail_bytes,
                   signals.tail(away ? rail.team_index : team, channel),
                   signals.head(away ? team : rail.team_index, channel)};
}

/// The pair of `channel` and the team of `rank`; of any other team if that is this rank's own.
GIMLET_DEVICE std::int32_t pair_of(const ExchangeArgs& exchange, std::int32_t channel,
                                   std::int32_t rank) {
    const std::int32_t team = rank / exchange.peers.lsa_size;
    const std::int32_t index = team == exchange.rail.team_index ? 0 : exchange.rail.index_of(team);
    return index * exchange.rail.channel_count + channel;
}

/// A lane's end of the ring to the rank that it serves.
template <class Fifo>
class RingOut {
  public:
    GIMLET_DEVICE RingOut(const PeerHandles& peers, const FifoOptions& options, const FifoEnd& end)
        : fifo_(peers, options, end), capacity_(options.capacity) {}

    /// Before anything else; lanes that serve nobody leave it.
    GIMLET_DEVICE void open() { fifo_.open(); }

    /// Whether one more row fits, by what is known of the head, or by a look at it.
    GIMLET_DEVICE bool has_room(std::uint32_t more = 1) {
        if (fifo_.claim(stored_ + more)) return true;
        if (stored_ + more > capacity_) return false;
        fifo_.poll();
        return fifo_.claim(stored_ + more);
    }
    /// Where the next row goes; then add().
    GIMLET_DEVICE std::byte* next() const { return fifo_.slot(fifo_.first(), stored_); }
    /// One more row is being stored.
    GIMLET_DEVICE void add() { ++stored_; }
    /// The oldest added row that was not yet counted has a newer bulk group behind it, of whatever
    /// ring. Whether it has arrived is asked for several rows at a time: an answer takes a round
    /// trip. True once there are `least`.
    GIMLET_DEVICE void count_sent() { ++sent_; }
    GIMLET_DEVICE bool due(std::uint32_t least) const { return sent_ >= least; }
    /// The counted rows are written, and known to ordinary accesses of this thread. Publishes
    /// `least` or more rows at a time.
    GIMLET_DEVICE void sent_written(std::uint32_t least) {
        if (sent_ == 0) return;
        written_ += sent_;
        sent_ = 0;
        if (written_ >= least) publish();
    }
    /// As sent_written, for all rows that were added; publishes all.
    GIMLET_DEVICE void all_written() {
        written_ = stored_;
        sent_ = 0;
        publish();
    }
    /// Waits for room for one row; everything is published.
    GIMLET_DEVICE WaitStatus wait(const WaitScope& scope) { return fifo_.reserve(scope, 1); }
    /// Head that the other end must move on before there is more room.
    GIMLET_DEVICE std::uint64_t known_head() const { return fifo_.seen(); }
    GIMLET_DEVICE void close() { fifo_.close(); }

  private:
    GIMLET_DEVICE void publish() {
        fifo_.publish(written_);
        stored_ -= written_;
        written_ = 0;
    }

    Fifo fifo_;
    std::uint32_t capacity_;
    std::uint32_t stored_ = 0;   ///< rows that are stored or being stored, and not published
    std::uint32_t written_ = 0;  ///< of them: complete
    std::uint32_t sent_ = 0;     ///< of them: counted, may be on their way
};

/// A lane's end of the ring from the rank that it serves.
template <class Fifo>
class RingIn {
  public:
    GIMLET_DEVICE RingIn(const PeerHandles& peers, const FifoOptions& options, const FifoEnd& end)
        : fifo_(peers, options, end) {}

    GIMLET_DEVICE void open() { fifo_.open(); }

    /// Rows that are here and not taken.
    GIMLET_DEVICE std::uint32_t available() const { return fifo_.available() - taken_; }
    GIMLET_DEVICE void poll() { fifo_.poll(FifoReads::bulk); }
    /// The `index`-th of them.
    GIMLET_DEVICE const std::byte* row(std::uint32_t index = 0) const {
        return fifo_.slot(fifo_.first(), taken_ + index);
    }
    /// Rows are about to be read, in order.
    GIMLET_DEVICE void take(std::uint32_t count) { taken_ += count; }
    /// The oldest taken row has been read.
    GIMLET_DEVICE void release() {
        fifo_.release(1);
        --taken_;
    }
    /// Tells the sender of all that was released.
    GIMLET_DEVICE void tell() { fifo_.tell(); }
    /// Waits until `count` rows can be taken; whatever was taken is released.
    GIMLET_DEVICE WaitStatus wait(const WaitScope& scope, std::uint32_t count) {
        return fifo_.wait(scope, count, FifoReads::bulk);
    }
    /// Tail as it was seen.
    GIMLET_DEVICE std::uint64_t known_tail() const { return fifo_.seen(); }
    GIMLET_DEVICE void close() { fifo_.close(); }

  private:
    Fifo fifo_;
    std::uint32_t taken_ = 0;
};

using TeamOut = RingOut<FifoSender>;
using TeamIn = RingIn<FifoReceiver>;
using RailOut = RingOut<GinFifoSender>;
using RailIn = RingIn<GinFifoReceiver>;

GIMLET_DEVICE TeamOut team_out(const ExchangeArgs& exchange, std::int32_t channel,
                               std::int32_t rank) {
    return TeamOut(exchange.peers, exchange.stream.ring_options(),
                   ring_end(exchange, channel, rank));
}
GIMLET_DEVICE TeamIn team_in(const ExchangeArgs& exchange, std::int32_t channel,
                             std::int32_t rank) {
    return TeamIn(exchange.peers, exchange.stream.ring_options(),
                  ring_end(exchange, channel, rank));
}
/// Of any team, if `rank` is in this rank's own: then nobody uses it.
GIMLET_DEVICE RailOut rail_out(const ExchangeArgs& exchange, std::int32_t channel,
                               std::int32_t rank) {
    return RailOut(exchange.peers, exchange.stream.rail_options(),
                   rail_ring_end(exchange, pair_of(exchange, channel, rank), RailWay::away));
}
GIMLET_DEVICE RailIn rail_in(const ExchangeArgs& exchange, std::int32_t channel,
                             std::int32_t rank) {
    return RailIn(exchange.peers, exchange.stream.rail_options(),
                  rail_ring_end(exchange, pair_of(exchange, channel, rank), RailWay::here));
}

/// An end that leads to a member of the team, or over the rail to another one.
class AnyOut {
  public:
    GIMLET_DEVICE AnyOut(const ExchangeArgs& exchange, std::int32_t channel, std::int32_t rank)
        : team_(team_out(exchange, channel, rank)),
          rail_(rail_out(exchange, channel, rank)),
          by_rail_(!is_lsa_peer(exchange.peers, rank)) {}

    GIMLET_DEVICE bool by_rail() const { return by_rail_; }
    GIMLET_DEVICE void open() { by_rail_ ? rail_.open() : team_.open(); }
    GIMLET_DEVICE bool has_room(std::uint32_t more = 1) {
        return by_rail_ ? rail_.has_room(more) : team_.has_room(more);
    }
    GIMLET_DEVICE std::byte* next() const { return by_rail_ ? rail_.next() : team_.next(); }
    GIMLET_DEVICE void add() { by_rail_ ? rail_.add() : team_.add(); }
    GIMLET_DEVICE void count_sent() { by_rail_ ? rail_.count_sent() : team_.count_sent(); }
    GIMLET_DEVICE bool due(std::uint32_t least) const {
        return by_rail_ ? rail_.due(least) : team_.due(least);
    }
    GIMLET_DEVICE void sent_written(std::uint32_t least) {
        by_rail_ ? rail_.sent_written(least) : team_.sent_written(least);
    }
    GIMLET_DEVICE void all_written() { by_rail_ ? rail_.all_written() : team_.all_written(); }
    GIMLET_DEVICE WaitStatus wait(const WaitScope& scope) {
        return by_rail_ ? rail_.wait(scope) : team_.wait(scope);
    }
    GIMLET_DEVICE void close() { by_rail_ ? rail_.close() : team_.close(); }

  private:
    TeamOut team_;
    RailOut rail_;
    bool by_rail_;
};

/// The same for an end where rows arrive.
class AnyIn {
  public:
    GIMLET_DEVICE AnyIn(const ExchangeArgs& exchange, std::int32_t channel, std::int32_t rank)
        : team_(team_in(exchange, channel, rank)),
          rail_(rail_in(exchange, channel, rank)),
          by_rail_(!is_lsa_peer(exchange.peers, rank)) {}

    GIMLET_DEVICE void open() { by_rail_ ? rail_.open() : team_.open(); }
    GIMLET_DEVICE std::uint32_t available() const {
        return by_rail_ ? rail_.available() : team_.available();
    }
    GIMLET_DEVICE void poll() { by_rail_ ? rail_.poll() : team_.poll(); }
    GIMLET_DEVICE const std::byte* row(std::uint32_t index = 0) const {
        return by_rail_ ? rail_.row(index) : team_.row(index);
    }
    GIMLET_DEVICE void take(std::uint32_t count) {
        by_rail_ ? rail_.take(count) : team_.take(count);
    }
    GIMLET_DEVICE void release() { by_rail_ ? rail_.release() : team_.release(); }
    GIMLET_DEVICE void tell() { by_rail_ ? rail_.tell() : team_.tell(); }
    GIMLET_DEVICE WaitStatus wait(const WaitScope& scope, std::uint32_t count) {
        return by_rail_ ? rail_.wait(scope, count) : team_.wait(scope, count);
    }
    GIMLET_DEVICE void close() { by_rail_ ? rail_.close() : team_.close(); }

  private:
    TeamIn team_;
    RailIn rail_;
    bool by_rail_;
};

/// What a lane of a warp has that sends to, or takes from, its team and other teams.
template <Reach R>
using StreamOut = std::conditional_t<has_rail(R), AnyOut, TeamOut>;
template <Reach R>
using StreamIn = std::conditional_t<has_rail(R), AnyIn, TeamIn>;

template <Reach R>
GIMLET_DEVICE StreamOut<R> stream_out(const ExchangeArgs& exchange, std::int32_t channel,
                                      std::int32_t rank) {
    if constexpr (has_rail(R)) {
        return AnyOut(exchange, channel, rank);
    } else {
        return team_out(exchange, channel, rank);
    }
}
template <Reach R>
GIMLET_DEVICE StreamIn<R> stream_in(const ExchangeArgs& exchange, std::int32_t channel,
                                    std::int32_t rank) {
    if constexpr (has_rail(R)) {
        return AnyIn(exchange, channel, rank);
    } else {
        return team_in(exchange, channel, rank);
    }
}

/// Whether a lane that sends its tokens' rows to `rank`, or takes them home from there, has an end:
/// to ranks of other teams rows go over the rail.
template <Reach R>
GIMLET_DEVICE bool is_served(const PeerHandles& peers, std::int32_t rank) {
    if (rank >= peers.rank_count) return false;
    if constexpr (!has_rail(R)) return true;
    return is_lsa_peer(peers, rank) || on_rail(peers, rank);
}

/// The lane after `last` (-1: none yet), in turn, whose bit is set; -1 if none is.
GIMLET_DEVICE std::int32_t next_lane(std::uint32_t mask, std::int32_t last) {
    if (mask == 0) return -1;
    const std::int32_t first = last + 1;
    const std::uint32_t above = first >= kWarpSize ? 0u : mask & (~0u << first);
    return __ffs(static_cast<int>(above != 0 ? above : mask)) - 1;
}

/// Bit r is set in all lanes if a lane names rank r (-1: none).
GIMLET_DEVICE std::uint32_t ranks_of_lanes(std::int32_t rank) {
    std::uint32_t mask = rank >= 0 ? 1u << rank : 0u;
    GIMLET_ROLLED
    for (std::int32_t step = kWarpSize / 2; step > 0; step /= 2)
        mask |= __shfl_xor_sync(kFullWarp, mask, step);
    return mask;
}

}  // namespace gimlet::device

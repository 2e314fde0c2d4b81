// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/fifo.hpp"
#include "device/core/group.hpp"
#include "device/kernels/reach.hpp"

// The rings of Sync::fifo, as seen by the warps at their ends. Lane i of a warp owns the ring to or
// from one rank; so a warp serves up to 32 ranks.
namespace gimlet::device {

/// Ring between `channel` of one end and `rank` as seen from the other: both ends' regions.
GIMLET_DEVICE FifoEnd ring_end(const ExchangeArgs& exchange, std::int32_t channel,
                               std::int32_t rank) {
    const StreamShape& stream = exchange.stream;
    const std::int32_t ranks = exchange.peers.rank_count;
    const std::uint64_t bytes = exchange.peers.shape.stream_ring_bytes;
    const std::uint64_t base = exchange.peers.layout.stream_rings;
    const auto here = static_cast<std::uint64_t>(stream.ring(channel, rank, ranks));
    const auto there = static_cast<std::uint64_t>(stream.ring(channel, exchange.peers.rank, ranks));
    return FifoEnd{rank, channel, base + here * bytes, base + there * bytes, 0, 0};
}

/// A lane's end of the ring to the rank that it serves.
class RingOut {
  public:
    GIMLET_DEVICE RingOut(const ExchangeArgs& exchange, std::int32_t channel, std::int32_t rank)
        : fifo_(exchange.peers, exchange.stream.ring_options(), ring_end(exchange, channel, rank)),
          capacity_(exchange.stream.slot_count) {}

    /// Before anything else; lanes that serve nobody leave it.
    GIMLET_DEVICE void open() { fifo_.open(); }

    /// Whether one more row fits, by what is known of the head, or by a look at it.
    GIMLET_DEVICE bool has_room(std::uint32_t more = 1) {
        if (stored_ + more <= fifo_.room()) return true;
        if (stored_ + more > capacity_) return false;
        fifo_.poll();
        return stored_ + more <= fifo_.room();
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
    /// Head position that the other end must move beyond before there is more room.
    GIMLET_DEVICE std::uint64_t known_head() const { return fifo_.cursor().told; }
    GIMLET_DEVICE void close() { fifo_.close(); }

  private:
    GIMLET_DEVICE void publish() {
        fifo_.publish(written_);
        stored_ -= written_;
        written_ = 0;
    }

    FifoSender fifo_;
    std::uint32_t capacity_;
    std::uint32_t stored_ = 0;   ///< rows that are stored or being stored, and not published
    std::uint32_t written_ = 0;  ///< of them: complete
    std::uint32_t sent_ = 0;     ///< of them: counted, may be on their way
};

/// A lane's end of the ring from the rank that it serves.
class RingIn {
  public:
    GIMLET_DEVICE RingIn(const ExchangeArgs& exchange, std::int32_t channel, std::int32_t rank)
        : fifo_(exchange.peers, exchange.stream.ring_options(), ring_end(exchange, channel, rank)) {
    }

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
    GIMLET_DEVICE std::uint64_t known_tail() const {
        return fifo_.cursor().position + fifo_.available();
    }
    GIMLET_DEVICE void close() { fifo_.close(); }

  private:
    FifoReceiver fifo_;
    std::uint32_t taken_ = 0;
};

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

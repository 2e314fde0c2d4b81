// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/sync/signal_shadow.hpp"

namespace gimlet::device {

/// What a tail says about the step that is going on.
struct TailState {
    std::uint32_t rows;  ///< rows that have landed, always the first ones
    bool finished;       ///< no more rows will come in this step
};

/// The receiver's end of a stream of rows over one GIN context. One 64-bit signal holds both the
/// tail and the finished flag:
///
///     bits 63..32  finished flags          bits 31..0  rows
///
/// so that one addition moves either or both, and the word never needs a reset: what earlier steps
/// amount to is kept beside it (SignalShadow), and the difference is this step's state.
///
/// Sender: one thread at a time closes a batch of puts (AggregatedPut) with
/// `ncclGin_StrongSignalAdd{signal, SignaledTail::step(rows, finished)}`, rows in order, all on one
/// context; each stream is finished once a step. The signal is strong: rows below the tail have
/// landed, and tails arrive in the order in which they were sent.
/// Receiver: one thread at a time reads; it calls settle() once a step, after it saw `finished`.
/// Order: read() is an acquire at system scope: rows below the tail are visible to the caller, and
/// to others behind its next barrier or release.
/// Cost: one addition on the wire for each move, riding on the last put. No fences but NCCL's own.
/// Deadline: none here; callers poll read() inside wait_until.
/// Limit: less than 2^32 rows a step.
class SignaledTail {
  public:
    GIMLET_DEVICE SignaledTail(const PeerHandles& peers, std::int32_t context, std::uint32_t signal)
        : peers_(peers), context_(context), signal_(signal) {}

    /// What the sender adds.
    static constexpr std::uint64_t step(std::uint32_t rows, bool finished) {
        return (finished ? std::uint64_t{1} << 32 : 0) + rows;
    }

    /// The sum of earlier steps' additions.
    GIMLET_DEVICE std::uint64_t base() const {
        return SignalShadow(peers_).expected(context_, signal_);
    }

    GIMLET_DEVICE TailState read() const { return read(base()); }

    /// The same, for a caller that keeps base() between looks.
    GIMLET_DEVICE TailState read(std::uint64_t base) const {
        const ncclGin gin = gin_context(peers_, context_);
        const std::uint64_t word = gin.readSignal(signal_, 64, cuda::memory_order_acquire) - base;
        return TailState{static_cast<std::uint32_t>(word), word >> 32 != 0};
    }

    /// Makes the finished step `state` part of what earlier steps amount to.
    GIMLET_DEVICE void settle(const TailState& state) const {
        SignalShadow(peers_).advance(context_, signal_, step(state.rows, true));
    }

  private:
    const PeerHandles& peers_;
    std::int32_t context_;
    std::uint32_t signal_;
};

}  // namespace gimlet::device

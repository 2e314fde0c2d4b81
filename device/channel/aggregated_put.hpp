// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl_device.h>

#include <cuda/atomic>

#include <cstdint>

#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/platform.hpp"

namespace gimlet::device {

/// A batch of puts to one peer on one context, window to window, that rings the NIC's doorbell
/// once.
///
/// A put that carries the aggregate flag may stay unsent until a later operation to the same
/// (context, peer) without it, and a flush does not send it. So the youngest put is held back here,
/// the ones before it go out flagged, and close() issues the held one without the flag.
///
/// Who: one thread. Several threads may have batches open on the same (context, peer); each must
/// close its own.
/// Before put(): the source is written and stays unchanged until a flush of the context after
/// close(). What other threads wrote of it has been handed to this thread (warp or block sync,
/// acquire); each put releases it at GPU scope for the NIC. A source that an LSA peer wrote was
/// acquired at system scope, and the batch says `SourceWriter::lsa_peer`. After close(): all puts
/// of the batch are on their way, in no order. With a strong signal, the receiver that sees it sees
/// every put of the batch, and all earlier ones of this context from this rank. Nothing is known
/// here about arrival, nor (without a flush) about reuse of sources.
/// Cost: one remote message a put, one doorbell for each kRingEvery of them, the signal rides on
/// the last put; an empty batch with a signal sends the signal alone, without one nothing. No
/// fences but NCCL's own.
/// Deadline: none here; a put may wait inside NCCL for room in the queue. Unsent puts fill that
/// queue, so at most kRingEvery are outstanding unsent: with b batches open at once on one
/// (context, peer) the queue must be deeper than b * kRingEvery. The destructor does nothing: a
/// batch that is not closed has a put that was never issued.
class AggregatedPut {
  public:
    /// Puts that may go unsent before the doorbell is rung in between.
    static constexpr std::int32_t kRingEvery = 16;

    enum class SourceWriter { own_gpu, lsa_peer };

    /// `peer` is a rank of `team`. Source and destination lie in `window`. Refers to `gin`.
    GIMLET_DEVICE AggregatedPut(const ncclGin& gin, ncclTeam team, std::int32_t peer,
                                ncclWindow_t window, SourceWriter writer = SourceWriter::own_gpu)
        : gin_(gin), window_(window), team_(team), peer_(peer), writer_(writer) {}

    /// Adds a put of `bytes` bytes (> 0) from the own window to the peer's.
    GIMLET_DEVICE void put(std::uint64_t destination_offset, std::uint64_t source_offset,
                           std::uint64_t bytes) {
        if (bytes_ != 0) {
            ++unsent_;
            const bool ring = unsent_ == kRingEvery && !mutated(Mutant::put_never_rings_between);
            if (ring) unsent_ = 0;
            issue(ncclGin_None{}, ring ? ncclGinOptFlagsDefault : ncclGinOptFlagsAggregateRequests);
        }
        destination_offset_ = destination_offset;
        source_offset_ = mutate(Mutant::put_old_source, source_offset,
                                bytes_ != 0 ? source_offset_ : source_offset);
        bytes_ = bytes;
    }

    /// Sends what is left. The batch is then empty and may be used again.
    GIMLET_DEVICE void close() {
        if (bytes_ != 0) issue(ncclGin_None{}, ncclGinOptFlagsDefault);
        clear();
    }

    /// The same, with a signal: ncclGin_{Strong,Weak}Signal{Inc,Add}. A weak one covers only the
    /// last put.
    template <class Signal>
    GIMLET_DEVICE void close(Signal signal) {
        const bool held = bytes_ != 0 && !mutated(Mutant::put_held_one_lost);
        if (held && mutated(Mutant::put_signal_first)) {
            gin_.signal(team_, peer_, signal);
            issue(ncclGin_None{}, ncclGinOptFlagsDefault);
        } else if (held) {
            issue(signal, mutate(Mutant::put_last_flagged, ncclGinOptFlagsDefault,
                                 ncclGinOptFlagsAggregateRequests));
        } else {
            gin_.signal(team_, peer_, signal);
        }
        clear();
    }

  private:
    template <class Action>
    GIMLET_DEVICE void issue(Action action, ncclGinOptFlags flags) const {
        gin_.put(team_, peer_, window_, destination_offset_, window_, source_offset_, bytes_,
                 action, ncclGin_None{}, ncclCoopThread{}, ncclGin_None{},
                 cuda::thread_scope_thread,
                 writer_ == SourceWriter::own_gpu ? cuda::thread_scope_device
                                                  : cuda::thread_scope_system,
                 flags);
    }

    GIMLET_DEVICE void clear() {
        bytes_ = 0;
        unsent_ = 0;
    }

    const ncclGin& gin_;
    ncclWindow_t window_;
    ncclTeam team_;
    std::int32_t peer_;
    SourceWriter writer_;
    std::int32_t unsent_ = 0;
    std::uint64_t destination_offset_ = 0;
    std::uint64_t source_offset_ = 0;
    std::uint64_t bytes_ = 0;  ///< of the put that is held back; 0 = none
};

}  // namespace gimlet::device

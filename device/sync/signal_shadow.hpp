// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/atomic>

#include <cstdint>

#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// What this rank expects of its GIN signals. NCCL's signals only grow (they are 64-bit sums and
/// are never reset), so a wait compares with the sum that all earlier steps amount to. These sums
/// are kept in our own workspace, one word for each (context, signal), because NCCL's shadows are
/// also written by NCCL's own waits and barriers.
///
/// Who: one thread at a time owns a (context, signal): reads its word, waits, advances. Owners
/// change over a block sync, a grid barrier or a kernel boundary. Words of different signals are
/// independent.
/// Compare: rolling on 64 bits, so the sums may wrap.
/// Cost: no remote messages, no fences; a wait polls the signal word with acquire at system scope.
class SignalShadow {
  public:
    /// Refers to `peers`, which must outlive it.
    GIMLET_DEVICE explicit SignalShadow(const PeerHandles& peers) : peers_(peers) {}

    /// The sum that earlier steps amount to.
    GIMLET_DEVICE std::uint64_t expected(int context, std::uint32_t signal) const {
        return *word(context, signal);
    }

    /// Adds `count` signals to what earlier steps amount to. Also after a failed wait: they are
    /// still on their way, and the next step must not take them for its own.
    GIMLET_DEVICE void advance(int context, std::uint32_t signal, std::uint64_t count) const {
        *word(context, signal) += count;
    }

    /// Waits until the signal has reached expected + delta; the word stays as it is.
    ///
    /// After ok: what the signal covers at the sender (strong: everything before it on this context
    /// to this rank; weak: its own put) is visible to this thread, and to others through its next
    /// release or block sync.
    /// Deadline: wait_until's; `peer` is the world rank that is named as missing.
    GIMLET_DEVICE WaitStatus wait_meet(const WaitScope& scope, std::int32_t peer, int context,
                                       std::uint32_t signal, std::uint64_t delta) const {
        std::uint64_t beyond = 0;
        return wait_meet(scope, peer, context, signal, delta, beyond);
    }

    /// The same; `beyond` tells by how much the signal exceeded that (only after ok).
    GIMLET_DEVICE WaitStatus wait_meet(const WaitScope& scope, std::int32_t peer, int context,
                                       std::uint32_t signal, std::uint64_t delta,
                                       std::uint64_t& beyond) const {
        const ncclGin gin = gin_context(peers_, context);
        const std::uint64_t all = mutate(Mutant::shadow_one_low, delta, delta - 1);
        const std::uint64_t target = expected(context, signal) + all;
        return wait_until(scope, WaitTarget{peer, context, target}, [&](std::uint64_t& seen) {
            seen = gin.readSignal(signal, 64, cuda::memory_order_acquire);
            beyond = seen - target;
            if (mutated(Mutant::shadow_compare_not_rolling)) return seen >= target;
            return static_cast<std::int64_t>(beyond) >= 0;
        });
    }

    /// Takes the signal as it stands for all that earlier steps amount to. Only while no signal is
    /// on its way.
    GIMLET_DEVICE void take_as_is(int context, std::uint32_t signal) const {
        const ncclGin gin = gin_context(peers_, context);
        *word(context, signal) = gin.readSignal(signal, 64, cuda::memory_order_acquire);
    }

    /// Waits until the signal is at least `least` beyond what is expected, takes all that came into
    /// the word, and tells in `taken` how many that are (0 unless ok). Otherwise as wait_meet.
    GIMLET_DEVICE WaitStatus wait_follow(const WaitScope& scope, std::int32_t peer, int context,
                                         std::uint32_t signal, std::uint64_t least,
                                         std::uint64_t& taken) const {
        const ncclGin gin = gin_context(peers_, context);
        std::uint64_t* const own = word(context, signal);
        const std::uint64_t before = *own;
        std::uint64_t last = before;
        const WaitStatus status =
            wait_until(scope, WaitTarget{peer, context, before + least}, [&](std::uint64_t& seen) {
                seen = last = gin.readSignal(signal, 64, cuda::memory_order_acquire);
                return static_cast<std::int64_t>(seen - (before + least)) >= 0;
            });
        taken = status == WaitStatus::ok ? last - before : 0;
        *own = before + mutate(Mutant::follow_forgets, taken, 0);
        return status;
    }

  private:
    GIMLET_DEVICE std::uint64_t* word(int context, std::uint32_t signal) const {
        const std::uint64_t signals = peers_.shape.signal_count();
        return local_word<std::uint64_t>(peers_, peers_.layout.signal_expected,
                                         static_cast<std::uint64_t>(context) * signals + signal);
    }

    const PeerHandles& peers_;
};

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/channel/context_map.hpp"
#include "device/core/alarm.hpp"
#include "device/core/event_ring.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/reach.hpp"

// What a failed step leaves behind: the rank's record at every peer, and the word that keeps the
// steps queued behind it from waiting for their own deadlines.
namespace gimlet::device {

static_assert(ContextMap{1}.notify_context() == kReportContext &&
              ContextMap{4}.notify_context() == kReportContext);

/// True between a failed step and the recovery. Another kernel of the rank may be storing it: let
/// one thread of a block ask for all.
GIMLET_DEVICE bool failed_before(const EpochWords* epochs) {
    return load_relaxed<Scope::gpu>(&epochs->failed) != 0;
}

/// Fails a step before it began: `fault` is none if an earlier one failed (that record stands). One
/// thread.
GIMLET_DEVICE_COLD void refuse_step(WaitScope scope, std::int32_t expected_parity,
                                    DeviceFault fault) {
    if (fault != DeviceFault::none) {
        const WaitTarget target{-1, -1, static_cast<std::uint64_t>(expected_parity)};
        report_fault(scope, target, fault, scope.epoch, 0);
    }
    poison_step(scope);
}

/// The same if the context of a dispatch or combine says so. One thread a block.
template <class Context>
GIMLET_DEVICE bool refuse_if_asked(const Context& ctx) {
    if (!ctx.refuses()) return false;
    const DeviceFault fault = ctx.failed             ? DeviceFault::none
                              : ctx.args.refuse != 0 ? DeviceFault::host_refused
                              : ctx.rails_left()     ? DeviceFault::rails_left
                                                     : DeviceFault::wrong_buffer;
    refuse_step(ctx.wait_scope(Primitive::none), ctx.args.expected_parity, fault);
    return true;
}

/// Whether the peers are to hear that this rank refuses step `epoch`: only of the first of its
/// kind, which it notes in `first`, the kind's word of EpochWords. Any threads of the step's
/// kernel.
GIMLET_DEVICE_COLD bool tells_refusal(std::uint64_t* first, std::uint64_t epoch) {
    const std::uint64_t own = epoch << 1 | 1u;  // numbers of steps wrap: 0 is one of them
    const std::uint64_t told = load_relaxed<Scope::gpu>(first);
    if (told == 0) store_relaxed<Scope::gpu>(first, own);
    return told == 0 || told == own || mutated(Mutant::refusal_told_again);
}

/// Fails a step because `peer` has refused it. One thread.
GIMLET_DEVICE_COLD void peer_refused(WaitScope scope, std::int32_t peer) {
    report_fault(scope, WaitTarget{peer, -1, scope.epoch}, DeviceFault::peer_refused, scope.epoch,
                 0);
    poison_step(scope);
}

/// Copies this rank's record to the report board of every rank, and raises the alarm there: LSA
/// peers by stores (release, system scope), the others by one put with a weak signal and one more
/// signal each. With rails only, these are the ranks of the rail: what they report in turn, because
/// the alarm ends their waits, reaches the others.
///
/// Who: all threads of one block, converged; at most once between two recoveries (the GIN source is
/// not flushed).
/// Before: the record is complete, or there is none: then nothing is sent. Nobody waits for a
/// report but the host's collect kernel, with a deadline of its own; waits of the others end
/// when they see it (core/alarm.hpp).
template <Reach R>
GIMLET_DEVICE_COLD void share_report(const PeerHandles& peers) {
    constexpr int kWords = static_cast<int>(sizeof(DeviceError) / 8);
    if (peers.error == nullptr) return;
    auto* const own = local_word<std::uint64_t>(peers, peers.layout.report_send);
    const bool told = thread_index() == 0 &&
                      load_acquire<Scope::system>(&peers.error->state) == kDeviceErrorComplete;
    if (told) {
        const auto* from = reinterpret_cast<const std::uint64_t*>(peers.error);
        GIMLET_ROLLED
        for (int i = 0; i < kWords; ++i) own[i] = from[i];
    }
    if (!block_any(told)) return;
    const std::uint64_t entry =
        peers.layout.reports + static_cast<std::uint64_t>(peers.rank) * sizeof(DeviceError);
    GIMLET_ROLLED
    for (std::int32_t peer = thread_index(); peer < peers.rank_count; peer += block_threads()) {
        if (is_excluded(peers, peer)) continue;
        if (is_lsa_only(R) || is_lsa_peer(peers, peer)) {
            auto* const to = peer_word<std::uint64_t>(peers, peer, entry);
            GIMLET_ROLLED
            for (int i = 1; i < kWords; ++i) store_relaxed<Scope::system>(to + i, own[i]);
            store_release<Scope::system>(to, own[0]);
            store_relaxed<Scope::system>(peer_word<std::uint64_t>(peers, peer, peers.layout.alarm),
                                         std::uint64_t{1});
            continue;
        }
        if constexpr (!is_lsa_only(R)) {
            if (!is_gin_peer(peers, peer)) continue;
            const SignalMap map{peers.rank_count};
            const ncclGin gin = gin_context(peers, kReportContext);
            gin.put(world_team(peers), peer, peers.window, entry, peers.window,
                    peers.layout.report_send, sizeof(DeviceError),
                    ncclGin_WeakSignalInc{map.report(peers.rank)});
            gin.signal(world_team(peers), peer, ncclGin_WeakSignalInc{map.alarm()});
        }
    }
}

/// Last act of a step, by all threads of its last block: a failed step tells the peers and marks
/// the rank, once until the recovery. Ends with a block barrier.
template <Reach R>
GIMLET_DEVICE void close_step(const PeerHandles& peers, EpochWords* epochs, Tag tag,
                              std::uint64_t epoch, bool failed) {
    const bool again = failed && block_any(failed_before(epochs));
    if (thread_index() == 0 && !again)
        note_event(peers, tag, epoch, failed ? EventKind::failed : EventKind::end);
    if (failed && !again) {
        share_report<R>(peers);
        if (thread_index() == 0) store_relaxed<Scope::gpu>(&epochs->failed, 1);
    }
    block_sync();
}

}  // namespace gimlet::device

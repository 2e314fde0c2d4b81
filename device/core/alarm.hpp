// SPDX-License-Identifier: Apache-2.0
//
// How a wait learns that another rank has given up the same step. The report board itself is
// written by kernels/report_board.hpp.
#pragma once

#include <cuda/atomic>

#include <cstdint>

#include "device/abi/device_error.hpp"
#include "device/abi/kernel_args.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/platform.hpp"

namespace gimlet::device {

/// The context of reports and alarms. (ContextMap::notify_context; this folder comes before it.)
inline constexpr std::int32_t kReportContext = 0;

/// Whether `signal` of the report context has been added to since the last recovery. Acquires what
/// it covers.
GIMLET_DEVICE bool is_signalled(const PeerHandles& peers, std::uint32_t signal) {
    const auto* const before = local_word<std::uint64_t>(
        peers, peers.layout.signal_expected,
        std::uint64_t{kReportContext} * peers.shape.signal_count() + signal);
    return gin_context(peers, kReportContext).readSignal(signal, 64, cuda::memory_order_acquire) !=
           *before;
}

/// What the report board says about a wait: none; cut_short, another rank has waited in vain; or
/// peer_refused, `peer` has refused the step.
struct BoardVerdict {
    DeviceFault fault;
    std::int32_t peer;
    std::uint64_t step;  ///< the step that failed, see DeviceError::step
};

/// What the report of `rank` says about a wait of step `step`.
///
/// Only failures of that step or of earlier ones count: who has failed takes part in no step to
/// come, while a step before the one that failed may well succeed. Of refusals only the records of
/// those who suffer from one count: a rank that is at fault itself marks the words that the others
/// wait for, and some must find out the same fault by themselves. Barriers have no such mark.
GIMLET_DEVICE BoardVerdict verdict_of(const PeerHandles& peers, std::int32_t rank,
                                      std::uint64_t step) {
    const BoardVerdict nothing{DeviceFault::none, -1, 0};
    if (!is_lsa_peer(peers, rank) &&
        (!is_gin_peer(peers, rank) ||
         !is_signalled(peers, SignalMap{peers.rank_count}.report(rank)))) {
        return nothing;
    }
    // DeviceError in words: state, -; fault, -; peer, -; tag, -; -; -; -; -; step.
    const auto* const words = local_word<std::uint64_t>(
        peers, peers.layout.reports, static_cast<std::uint64_t>(rank) * sizeof(DeviceError) / 8u);
    const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
    if (low(load_acquire<Scope::system>(words)) != kDeviceErrorComplete) return nothing;
    const auto fault = static_cast<DeviceFault>(low(load_relaxed<Scope::system>(words + 1)));
    const std::uint64_t failed = load_relaxed<Scope::system>(words + 8);
    if (static_cast<std::int64_t>(failed - step) > 0) return nothing;
    if (fault == DeviceFault::peer_refused) {
        const auto peer = static_cast<std::int32_t>(low(load_relaxed<Scope::system>(words + 2)));
        return BoardVerdict{fault, peer, failed};
    }
    if (fault == DeviceFault::host_refused &&
        low(load_relaxed<Scope::system>(words + 3)) == static_cast<std::uint32_t>(Tag::barrier)) {
        return BoardVerdict{DeviceFault::peer_refused, rank, failed};
    }
    if (fault != DeviceFault::timed_out && fault != DeviceFault::cut_short) return nothing;
    return BoardVerdict{DeviceFault::cut_short, -1, failed};
}

/// What the board says about a wait of step `step`; of several records the one of the earliest
/// failure, refusals first.
///
/// Who: any thread by itself, of a kernel whose records say DeviceError::step.
/// Cost: two loads of local words while nobody has reported; then the board, rank by rank.
GIMLET_DEVICE_COLD BoardVerdict ask_board(const PeerHandles& peers, std::uint64_t step) {
    BoardVerdict out{DeviceFault::none, -1, 0};
    const bool by_lsa =
        load_relaxed<Scope::system>(local_word<std::uint64_t>(peers, peers.layout.alarm)) != 0;
    const bool by_gin =
        peers.gin_context_count > 0 && is_signalled(peers, SignalMap{peers.rank_count}.alarm());
    if (!by_lsa && !by_gin) return out;
    GIMLET_ROLLED
    for (std::int32_t rank = 0; rank < peers.rank_count; ++rank) {
        if (rank == peers.rank) continue;
        const BoardVerdict one = verdict_of(peers, rank, step);
        if (one.fault == DeviceFault::peer_refused) return one;
        if (one.fault == DeviceFault::none) continue;
        if (out.fault == DeviceFault::none || static_cast<std::int64_t>(one.step - out.step) < 0)
            out = one;
    }
    return out;
}

}  // namespace gimlet::device

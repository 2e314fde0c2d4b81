// SPDX-License-Identifier: Apache-2.0
//
// The only loop that waits for somebody else, and what happens when nobody comes.
#pragma once

#include <cstdint>

#include "device/abi/device_error.hpp"
#include "device/abi/kernel_args.hpp"
#include "device/core/alarm.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/platform.hpp"

namespace gimlet::device {

/// `ok`: the condition holds. `timed_out`: this wait outlived its deadline and has reported it.
/// `aborted`: another wait of the same step has failed, here or on another rank. After the last two
/// nothing may be published.
enum class WaitStatus : int { ok = 0, timed_out = 1, aborted = 2 };

/// What all waits of one step share.
struct WaitScope {
    std::uint64_t deadline_ns;  ///< longest duration of one wait, 0 = no limit
    DeviceError* error;         ///< host-mapped record, or null
    std::uint64_t* poison;      ///< device word: epoch of this rank's failed step; or null
    std::uint64_t epoch;        ///< number of the step, > 0
    std::int32_t rank;          ///< own world rank
    Tag tag;
    Primitive primitive;
    /// How often the deadline must be found expired, 64 polls apart, before the wait gives up. A
    /// GPU (or a CPU that plays one) may be taken away for longer than the deadline, while the peer
    /// was in time.
    std::uint32_t patience = 2;
    /// Whose report board is looked at, so that all ranks end at the first expiry of a step; null =
    /// nobody's. Must be the kernel's own argument.
    const PeerHandles* group = nullptr;
    std::uint64_t step = 0;  ///< see DeviceError::step; only with `group`
};

/// What one wait waits for; only reported.
struct WaitTarget {
    std::int32_t peer;     ///< world rank, -1 = nobody in particular
    std::int32_t context;  ///< GIN context or channel, -1 = none
    std::uint64_t expected;
};

/// The waits of one step of this rank. `poison` may be null.
GIMLET_DEVICE WaitScope wait_scope(const PeerHandles& peers, Tag tag, Primitive primitive,
                                   std::uint64_t epoch, std::uint64_t* poison) {
    return WaitScope{peers.deadline_ns, peers.error, poison, epoch, peers.rank, tag, primitive};
}

/// The same step, as seen by a primitive that it calls.
GIMLET_DEVICE WaitScope for_primitive(const WaitScope& scope, Primitive primitive) {
    WaitScope result = scope;
    result.primitive = primitive;
    return result;
}

namespace detail {

/// Polls without a pause, before the first sleep; and polls between two looks at the clock and the
/// poison word (a power of two). The emulator's clock leaps ahead when everybody sleeps, so there
/// the looks must be close together.
#if GIMLET_EMULATED
inline constexpr std::uint32_t kTightPolls = 4;
inline constexpr std::uint32_t kPollsPerCheck = 2;
#else
inline constexpr std::uint32_t kTightPolls = 32;
inline constexpr std::uint32_t kPollsPerCheck = 64;
#endif
/// Looks at the clock between two at the report board (a power of two).
inline constexpr std::uint32_t kChecksPerAlarm = 8;
inline constexpr std::uint32_t kBackoffNs = 64;

}  // namespace detail

/// Marks the step as failed for all waits of this rank that share the poison word. A release: who
/// sees it, and fences, sees what this thread had seen.
GIMLET_DEVICE void poison_step(const WaitScope& scope) {
    if (scope.poison != nullptr) store_release<Scope::gpu>(scope.poison, scope.epoch);
}

GIMLET_DEVICE bool step_poisoned(const WaitScope& scope) {
    return scope.poison != nullptr && load_relaxed<Scope::gpu>(scope.poison) == scope.epoch;
}

/// Fills the rank's error record, unless it is taken: the first fault is the one that explains the
/// others.
///
/// Called by one thread, in any state of convergence. Only this GPU's threads compete for the
/// record, so the claim is at GPU scope: not every host offers atomics over PCIe. The record's
/// `state` becomes kDeviceErrorComplete by a release at system scope: a host that reads it with
/// acquire reads a whole record. No remote messages, never waits. Does not poison the step.
GIMLET_DEVICE_COLD void report_fault(WaitScope scope, WaitTarget target, DeviceFault fault,
                                     std::uint64_t seen, std::uint64_t elapsed_ns,
                                     std::int32_t token = -1) {
    DeviceError* const error = scope.error;
    if (error == nullptr) return;
    if (compare_exchange_acq_rel<Scope::gpu>(&error->state, kDeviceErrorFree,
                                             kDeviceErrorClaimed) != kDeviceErrorFree) {
        return;
    }
    error->primitive = scope.primitive;
    error->fault = fault;
    error->rank = scope.rank;
    error->peer = mutate(Mutant::wait_names_nobody, target.peer, scope.rank);
    error->context = target.context;
    error->tag = static_cast<std::uint32_t>(scope.tag);
    error->token = token;
    error->epoch = scope.epoch;
    error->expected = target.expected;
    error->seen = seen;
    error->elapsed_ns = elapsed_ns;
    error->step = scope.step;
    store_release<Scope::system>(&error->state, kDeviceErrorComplete);
}

namespace detail {

struct WaitClock {
    std::uint64_t start_ns = 0;
    std::uint32_t expired = 0;  ///< looks that found the deadline expired
    std::uint32_t looks = 0;
    WaitStatus status = WaitStatus::ok;
};

/// One look at the poison word and the clock; `ok` = go on polling. Everything by value: a
/// reference would put the scope into memory on the way that is not cold.
GIMLET_DEVICE_COLD WaitClock check_deadline(WaitScope scope, WaitTarget target, std::uint64_t seen,
                                            WaitClock clock) {
    if (step_poisoned(scope) && !mutated(Mutant::wait_ignores_poison)) {
        clock.status = WaitStatus::aborted;
        return clock;
    }
    const std::uint64_t elapsed_ns = now_ns() - clock.start_ns;
    if (scope.group != nullptr && clock.looks++ % kChecksPerAlarm == 0) {
        const BoardVerdict verdict = ask_board(*scope.group, scope.step);
        if (verdict.fault != DeviceFault::none) {
            // Whoever is not reached by the first report hears of the same failure from this one.
            scope.step = verdict.step;
            if (verdict.fault == DeviceFault::peer_refused)
                target = WaitTarget{verdict.peer, -1, scope.epoch};
            report_fault(scope, target, verdict.fault, seen, elapsed_ns);
            poison_step(scope);
            clock.status = WaitStatus::aborted;
            return clock;
        }
    }
    if (scope.deadline_ns == 0 || mutated(Mutant::wait_for_ever)) return clock;
    if (elapsed_ns < scope.deadline_ns) return clock;
    if (++clock.expired < scope.patience) return clock;
    if (!mutated(Mutant::wait_says_nothing))
        report_fault(scope, target, DeviceFault::timed_out, seen, elapsed_ns);
    if (!mutated(Mutant::wait_fails_alone)) poison_step(scope);
    clock.status = WaitStatus::timed_out;
    return clock;
}

}  // namespace detail

/// Polls `bool probe(std::uint64_t& seen)` until it returns true.
///
/// Who: any thread by itself; lanes of a warp may wait for different things side by side.
/// Before: nothing. After `ok`: exactly what the probe's own load gives; an acquire in the probe
/// makes it an acquire.
/// Cost: a probe that holds at once costs no more than the probe. Later polls pause for 64 ns, so
/// `seen` is stale by about that much.
/// Deadline: every 64 polls looks at the clock, and at the poison word, where a failure of another
/// wait of this step ends this one (`aborted`). With WaitScope::group, every 512 polls at the
/// alarm, where a wait in vain of another rank does so (in this step or one before it), or its
/// report of a refusal, after the record has been filled (`cut_short`, `peer_refused`). After
/// `patience` looks beyond the deadline the error record is filled, the step is poisoned, and the
/// result is `timed_out`. The verdict of a group is made by warp_ok or block_ok.
template <class Probe>
GIMLET_DEVICE WaitStatus wait_until(const WaitScope& scope, const WaitTarget& target,
                                    Probe&& probe) {
    detail::WaitClock clock;
    for (std::uint32_t polls = 0;; ++polls) {
        std::uint64_t seen = 0;
        if (probe(seen)) return WaitStatus::ok;
        // The clock is far away; a wait that ends soon does not look at it.
        if (polls < detail::kTightPolls) continue;
        if (polls == detail::kTightPolls) clock.start_ns = now_ns();
        sleep_ns(detail::kBackoffNs);
        if (polls % detail::kPollsPerCheck != 0) continue;
        clock = detail::check_deadline(scope, target, seen, clock);
        if (clock.status != WaitStatus::ok) return clock.status;
    }
}

/// One verdict for the block: true iff every thread's wait was ok.
///
/// Who: all threads of the block, converged.
/// After true: what any of the threads acquired is visible to all of them (block barrier).
/// After false: nobody in the block publishes anything of this step any more.
GIMLET_DEVICE bool block_ok(WaitStatus status) {
    if (mutated(Mutant::wait_verdict_of_one)) return status == WaitStatus::ok;
    return block_all(status == WaitStatus::ok);
}

/// The same for the 32 lanes of a warp.
GIMLET_DEVICE bool warp_ok(WaitStatus status) {
    const bool ok = warp_all(status == WaitStatus::ok);
    warp_sync();
    return ok;
}

}  // namespace gimlet::device

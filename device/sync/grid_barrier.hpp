// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// How a block left a grid barrier. `stopped`: all blocks have come, but a wait of the step has
/// failed since; the word is whole. `missed`: somebody had not come; the word may be half done.
enum class GridMeeting { passed, stopped, missed };

/// grid_barrier with more to say about a failure. The same in all threads of a block.
GIMLET_DEVICE GridMeeting meet_grid(std::uint32_t* word, const WaitScope& outer_scope) {
    constexpr std::uint32_t kFlip = 0x80000000u;
    if (block_count() == 1) {
        block_sync();
        return GridMeeting::passed;
    }
    WaitScope scope = for_primitive(outer_scope, Primitive::grid_barrier);
    scope.deadline_ns *= 2;
    scope.patience *= 2;
    const std::uint32_t others = static_cast<std::uint32_t>(block_count()) - 1u;

    if (!mutated(Mutant::grid_no_sync_before)) block_sync();
    GridMeeting meeting = GridMeeting::passed;
    if (thread_index() == 0) {
        const std::uint32_t step =
            block_index() == 0 ? kFlip - mutate(Mutant::grid_one_short, others, others - 1) : 1u;
        const std::uint32_t before =
            mutated(Mutant::grid_release_relaxed)  ? fetch_add_relaxed<Scope::gpu>(word, step)
            : mutated(Mutant::grid_release_narrow) ? fetch_add_release<Scope::block>(word, step)
                                                   : fetch_add_release<Scope::gpu>(word, step);
        const std::uint32_t target = (before & kFlip) ^ mutate(Mutant::grid_old_flip, kFlip, 0u);
        const WaitStatus status =
            wait_until(scope, WaitTarget{-1, -1, target}, [&](std::uint64_t& seen) {
                const std::uint32_t value = mutated(Mutant::grid_acquire_relaxed)
                                                ? load_relaxed<Scope::gpu>(word)
                                                : load_acquire<Scope::gpu>(word);
                seen = value;
                return (value & kFlip) == target || mutated(Mutant::grid_no_wait);
            });
        // A block that failed before it arrived has poisoned the step first; one that got through
        // here and failed behind it has done so after the flip.
        if (status != WaitStatus::ok) {
            fence_acq_rel<Scope::gpu>();
            meeting = (load_acquire<Scope::gpu>(word) & kFlip) == target ? GridMeeting::stopped
                                                                         : GridMeeting::missed;
        } else if (step_poisoned(scope) && !mutated(Mutant::grid_ignores_poison)) {
            meeting = GridMeeting::stopped;
        }
    }
    if (mutated(Mutant::grid_no_sync_after)) return meeting;
    if (block_all(meeting == GridMeeting::passed)) return GridMeeting::passed;
    return block_any(meeting == GridMeeting::missed) ? GridMeeting::missed : GridMeeting::stopped;
}

/// Barrier of all blocks of this kernel.
///
/// The word counts arrivals in its low bits. Block 0 adds 2^31 - (n - 1), the others add 1, so that
/// the n-th arrival of a round, whoever it is, flips the top bit and leaves the low bits at zero:
/// no reset, no round number.
///
/// Who: all threads of all blocks, each block converged. All blocks must be resident at once
/// (cooperative launch, or a grid no larger than what fits); their number must be the same in every
/// kernel that uses the word, or the word must be at rest (no barrier half done) when it changes.
/// Before: `word` (this rank's, 4 bytes) started at zero and nobody else writes it.
/// After true: what any thread of the grid did before the barrier is visible to every thread of the
/// grid (release and acquire at GPU scope; what it had acquired from other ranks is included). Bulk
/// stores are included only if their thread has waited for them.
/// Cost: no remote messages; one release add and one polling thread for each block. One block: a
/// block sync.
/// Deadline: twice the scope's, and with more patience, because the block that is missing may
/// itself be in a wait that is about to expire, and its report is the one that explains. A step
/// that is poisoned gives false in every block that looks. After false the block publishes nothing;
/// after a time-out the word is half done and must be zeroed by the host, with no kernel running,
/// before it is used again.
/// Result: the same in all threads of a block; blocks may differ.
GIMLET_DEVICE bool grid_barrier(std::uint32_t* word, const WaitScope& scope) {
    return meet_grid(word, scope) == GridMeeting::passed;
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// Barrier of the ranks of this LSA team (S of them) that knows who is missing.
///
/// Each rank has one word for each world rank. For every other member p, a rank adds 1 to its own
/// word of p and subtracts 1 from p's word of itself; word = own arrivals minus p's arrivals. It
/// waits until no word is positive. A fast peer makes it -1, never less. No counter, no reset. S
/// may be larger than the block.
///
/// Who: all threads of one block of each member, converged; the same number of times on all
/// members. One block at a time in a rank.
/// Before: the words at layout.block_barrier (int32 for each rank) started at zero. Otherwise as
/// nvlink_barrier.
/// After true: as nvlink_barrier (release subtractions, one acquire poll for each peer, system
/// scope, block sync).
/// Cost: S - 1 remote adds with release, S - 1 local adds at system scope, S - 1 polls by as many
/// threads.
/// Deadline: wait_until's for each peer; peer names the missing rank, expected is 0, seen is the
/// word. After false nobody publishes; a peer that was only late makes the words right again by
/// itself.
/// Result: the same in all threads of the block.
GIMLET_DEVICE bool block_barrier(const PeerHandles& peers, const WaitScope& outer_scope) {
    if (!mutated(Mutant::block_no_sync_before)) block_sync();
    const std::int32_t team_size = peers.lsa_size;
    if (team_size == 1) return true;

    const std::uint64_t base = peers.layout.block_barrier;
    const WaitScope scope = for_primitive(outer_scope, Primitive::block_barrier);
    // All arrivals go out before any wait, or a block smaller than the team would wait for a rank
    // that waits for it.
    for (std::int32_t i = thread_index(); i < team_size; i += block_threads()) {
        const std::int32_t peer = lsa_member(peers, i);
        if (peer == peers.rank || is_excluded(peers, peer)) continue;
        add_relaxed<Scope::system>(local_word<std::int32_t>(peers, base, peer),
                                   mutate(Mutant::block_one_sided, 1, 0));
        const std::int32_t at = mutate(Mutant::block_wrong_word, peers.rank, peer);
        auto* const word = peer_word<std::int32_t>(peers, peer, base, at);
        const std::int32_t step = mutate(Mutant::block_arrives_twice, -1, -2);
        if (mutated(Mutant::block_release_relaxed)) {
            add_relaxed<Scope::system>(word, step);
        } else if (mutated(Mutant::block_release_narrow)) {
            add_release<Scope::gpu>(word, step);
        } else {
            add_release<Scope::system>(word, step);
        }
    }
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < team_size; i += block_threads()) {
        const std::int32_t peer = lsa_member(peers, i);
        if (peer == peers.rank || is_excluded(peers, peer) || status != WaitStatus::ok) continue;
        const std::int32_t* const word = local_word<std::int32_t>(peers, base, peer);
        status = wait_until(scope, WaitTarget{peer, -1, 0}, [&](std::uint64_t& seen) {
            const std::int32_t value = mutated(Mutant::block_acquire_relaxed)
                                           ? load_relaxed<Scope::system>(word)
                                           : load_acquire<Scope::system>(word);
            seen = static_cast<std::uint32_t>(value);
            return value <= mutate(Mutant::block_one_behind, 0, 1) ||
                   mutated(Mutant::block_no_wait);
        });
    }
    return block_ok(status);
}

}  // namespace gimlet::device

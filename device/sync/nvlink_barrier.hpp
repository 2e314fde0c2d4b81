// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// Barrier of the ranks of this LSA team (S of them), over loads and stores.
///
/// Barriers are numbered. Each rank has one flag for each member: how many barriers this member has
/// arrived at. A rank adds 1 to the others' flags of itself, and waits until all its flags have
/// reached the number of this barrier. A fast peer can be at most one barrier ahead. Nothing is
/// reset; compares are rolling. S may be larger than the block. Excluded ranks are passed over.
///
/// Who: all threads of one block of each member, converged; the same number of times on all
/// members. One block at a time in a rank; blocks may take turns over a grid barrier or a kernel
/// boundary.
/// Before: the words at layout.nvlink_counter and layout.nvlink_flags started at zero on all
/// members. Bulk stores to be covered have been waited for. Work of other blocks to be covered has
/// been handed to this block (grid barrier).
/// After true: what any member's block did, or had been handed, before its barrier is visible to
/// all threads of this block (one release add to, and one acquire poll of, each peer, all at system
/// scope, by a thread of its own where there are enough; block syncs around them). Stores to peers'
/// windows included. GIN puts are not: see gin_barrier.
/// Cost: S - 1 remote adds with release, S - 1 polls side by side. No GIN. S = 1: a block sync.
/// Deadline: wait_until's for each peer; peer names a missing rank, expected and seen are barrier
/// numbers. After false nobody publishes. The barrier counts as done: if the missing member was
/// only late, one more barrier works; if it never arrives, the words are dead and must be zeroed on
/// all members, with no kernel running.
/// Result: the same in all threads of the block.
GIMLET_DEVICE bool nvlink_barrier(const PeerHandles& peers, const WaitScope& outer_scope) {
    const std::int32_t team_size = peers.lsa_size;
    if (team_size == 1) {
        block_sync();
        return true;
    }
    const std::uint64_t flags = peers.layout.nvlink_flags;
    const std::int32_t told = mutate(Mutant::nvlink_last_peer_left_out, team_size, team_size - 1);
    const auto flag_of_mine_at = [&](std::int32_t i) {
        const std::int32_t mine = mutate(Mutant::nvlink_wrong_flag, peers.lsa_rank, i);
        return i < team_size ? peer_word<std::uint32_t>(peers, lsa_member(peers, i), flags,
                                                        static_cast<std::uint64_t>(mine))
                             : nullptr;
    };
    // The counter is on its way while the arrivals go out, which do not depend on it; and everybody
    // has read it before thread 0 moves it.
    auto* const counter = local_word<std::uint64_t>(peers, peers.layout.nvlink_counter);
    const std::uint64_t last = *counter;
    const std::uint32_t excluded = excluded_count(peers);
    const auto meets = [&](std::int32_t i) {
        return i != peers.lsa_rank && !is_excluded(peers, excluded, lsa_member(peers, i));
    };
    std::uint32_t* flag_of_mine = flag_of_mine_at(thread_index());
    if (!mutated(Mutant::nvlink_no_sync_before)) block_sync();
    // All arrivals go out before any wait, or a block smaller than the team would wait for a rank
    // that waits for it.
    for (std::int32_t i = thread_index(); i < told; i += block_threads()) {
        if (meets(i))
            add_release<Scope::system>(flag_of_mine, mutate(Mutant::nvlink_arrives_twice, 1u, 2u));
        flag_of_mine = flag_of_mine_at(i + block_threads());
    }
    if (thread_index() == 0) *counter = last + mutate(Mutant::nvlink_counter_stays, 1, 0);

    const std::uint32_t number = static_cast<std::uint32_t>(last) + 1;
    const WaitScope scope = for_primitive(outer_scope, Primitive::nvlink_barrier);
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < team_size; i += block_threads()) {
        if (!meets(i) || status != WaitStatus::ok) continue;
        const auto* const flag =
            local_word<std::uint32_t>(peers, flags, static_cast<std::uint64_t>(i));
        const WaitTarget target{lsa_member(peers, i), -1, number};
        status = wait_until(scope, target, [&](std::uint64_t& seen) {
            const std::uint32_t value = load_acquire<Scope::system>(flag);
            seen = value;
            if (mutated(Mutant::nvlink_compare_not_rolling)) return value >= number;
            if (mutated(Mutant::nvlink_no_wait)) return true;
            return static_cast<std::int32_t>(value - number) >=
                   mutate(Mutant::nvlink_one_behind, 0, -1);
        });
    }
    if (mutated(Mutant::nvlink_no_sync_after)) return status == WaitStatus::ok;
    return block_ok(status);
}

}  // namespace gimlet::device

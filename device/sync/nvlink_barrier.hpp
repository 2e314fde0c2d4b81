// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// Barrier of the ranks of this LSA team (S of them), over loads and stores.
///
/// The rank's counter c picks one of two phase words (c & 1) and a sign (c >> 1 & 1). Every rank
/// adds +1 or -1 to that word of every member, itself included, and waits until its own word is S
/// or 0. A fast rank can be at most one barrier ahead, hence in the other word. Nothing is reset. S
/// may be larger than the block.
///
/// Who: all threads of one block of each member, converged; the same number of times on all
/// members. One block at a time in a rank; blocks may take turns over a grid barrier or a kernel
/// boundary.
/// Before: NvlinkBarrierWords at layout.nvlink_barrier started at zero on all members. Bulk stores
/// to be covered have been waited for. Work of other blocks to be covered has been handed to this
/// block (grid barrier).
/// After true: what any member's block did, or had been handed, before its barrier is visible to
/// all threads of this block (release adds, one acquire poll, all at system scope, then a block
/// sync). Stores to peers' windows included. GIN puts are not: see gin_barrier.
/// Cost: S remote adds with release, one poll. No GIN. S = 1: a block sync.
/// Deadline: wait_until's. The record has no peer (a sum does not tell who is missing); expected
/// and seen are values of the word. After false nobody publishes. The barrier counts as done: if
/// the missing member was only late, one more barrier works; if it never arrives, the words are
/// dead and must be zeroed on all members, with no kernel running.
/// Result: the same in all threads of the block.
GIMLET_DEVICE bool nvlink_barrier(const PeerHandles& peers, const WaitScope& outer_scope) {
    const std::int32_t team_size = peers.lsa_size;
    block_sync();
    if (team_size == 1) return true;

    const std::uint64_t base = peers.layout.nvlink_barrier;
    auto* const own = local_word<NvlinkBarrierWords>(peers, base);
    const std::uint64_t counter = own->counter;
    const std::uint64_t phase = counter & 1u;
    const std::int32_t sign = (counter >> 1 & 1u) == 0 ? 1 : -1;
    const std::uint64_t phase_offset = base + offsetof(NvlinkBarrierWords, phase);
    for (std::int32_t i = thread_index(); i < team_size; i += block_threads()) {
        add_release<Scope::system>(
            peer_word<std::int32_t>(peers, lsa_member(peers, i), phase_offset, phase), sign);
    }
    // Everybody has read the counter and sent; only then may it move, and may the wait fail.
    block_sync();

    WaitStatus status = WaitStatus::ok;
    if (thread_index() == 0) {
        own->counter = counter + 1;
        const WaitScope scope = for_primitive(outer_scope, Primitive::nvlink_barrier);
        const std::int32_t target = sign > 0 ? team_size : 0;
        const std::int32_t* const word = own->phase + phase;
        status = wait_until(scope, WaitTarget{-1, -1, static_cast<std::uint32_t>(target)},
                            [&](std::uint64_t& seen) {
                                const std::int32_t value = load_acquire<Scope::system>(word);
                                seen = static_cast<std::uint32_t>(value);
                                return value == target;
                            });
    }
    return block_ok(status);
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// Barriers of the ranks of this LSA team (S of them), over loads and stores. An object does any
/// number of them; `nvlink_barrier` does one.
///
/// Barriers are numbered. Each rank has one flag for each member: the number of the newest barrier
/// that this member has arrived at. A rank writes the number into the others' flags of itself, and
/// waits until all its flags have reached it. A fast peer can be at most one barrier ahead. Nothing
/// is reset; compares are rolling. S may be larger than the block. Excluded ranks are passed over.
///
/// Who: all threads of one block of each member, converged; the same number of barriers on all
/// members. One block at a time in a rank, and one object at a time; blocks may take turns over a
/// grid barrier or a kernel boundary.
/// Before: the words at layout.nvlink_counter and layout.nvlink_flags started at zero on all
/// members. Bulk stores to be covered have been waited for. Work of other blocks to be covered has
/// been handed to this block (grid barrier).
/// After true: what any member's block did, or had been handed, before its barrier is visible to
/// all threads of this block (one release store to, and one acquire poll of, each peer, all at
/// system scope, by a thread of its own where there are enough; block syncs around them). Stores to
/// peers' windows included. GIN puts are not: see gin_barrier.
/// Cost: S - 1 remote stores with release, S - 1 polls side by side. No atomics, no GIN. S = 1: a
/// block sync. The number and the excluded ranks are read once an object.
/// Deadline: wait_until's for each peer; peer names a missing rank, expected and seen are barrier
/// numbers. After false nobody publishes. The barrier counts as done: if the missing member was
/// only late, one more barrier works; if it never arrives, the words are dead and must be zeroed on
/// all members, with no kernel running.
/// Result: the same in all threads of the block.
class NvlinkBarrier {
  public:
    /// Refers to `peers`, which must outlive it. No sync: the barrier before this one has ended
    /// with one.
    GIMLET_DEVICE explicit NvlinkBarrier(const PeerHandles& peers)
        : peers_(peers),
          counter_(local_word<std::uint64_t>(peers, peers.layout.nvlink_counter)),
          number_(*counter_),
          excluded_(excluded_count(peers)),
          first_(member(thread_index())) {}

    GIMLET_DEVICE bool meet(const WaitScope& outer_scope) {
        if (!mutated(Mutant::nvlink_no_sync_before)) block_sync();
        if (peers_.lsa_size == 1) return true;
        ++number_;
        arrive();
        const WaitStatus status =
            wait_for_all(for_primitive(outer_scope, Primitive::nvlink_barrier));
        if (mutated(Mutant::nvlink_no_sync_after)) return status == WaitStatus::ok;
        return block_ok(status);
    }

  private:
    /// A member that one thread tells and hears; the pointers are null if there is none.
    struct Member {
        std::uint32_t* flag_there;       ///< its flag of this rank
        const std::uint32_t* flag_here;  ///< this rank's flag of it
        std::int32_t rank;
    };

    GIMLET_DEVICE Member member(std::int32_t i) const {
        if (i >= peers_.lsa_size || i == peers_.lsa_rank) return {nullptr, nullptr, -1};
        const std::int32_t rank = lsa_member(peers_, i);
        if (is_excluded(peers_, excluded_, rank)) return {nullptr, nullptr, -1};
        const std::int32_t mine = mutate(Mutant::nvlink_wrong_flag, peers_.lsa_rank, i);
        const bool told = !mutated(Mutant::nvlink_last_peer_left_out) || i + 1 < peers_.lsa_size;
        auto* const flag = told ? peer_word<std::uint32_t>(peers_, rank, peers_.layout.nvlink_flags,
                                                           static_cast<std::uint64_t>(mine))
                                : nullptr;
        return {flag,
                local_word<std::uint32_t>(peers_, peers_.layout.nvlink_flags,
                                          static_cast<std::uint64_t>(i)),
                rank};
    }

    /// All arrivals go out before any wait, or a block smaller than the team would wait for a rank
    /// that waits for it.
    GIMLET_DEVICE void arrive() const {
        tell(first_);
        for (std::int32_t i = thread_index() + block_threads(); i < peers_.lsa_size;
             i += block_threads())
            tell(member(i));
        if (thread_index() == 0) *counter_ = number_ - mutate(Mutant::nvlink_counter_stays, 0u, 1u);
    }

    GIMLET_DEVICE void tell(const Member& other) const {
        const auto number = static_cast<std::uint32_t>(number_);
        if (other.flag_there != nullptr)
            store_flag(other.flag_there, number + mutate(Mutant::nvlink_arrives_twice, 0u, 1u));
    }

    GIMLET_DEVICE static void store_flag(std::uint32_t* flag, std::uint32_t number) {
        if (mutated(Mutant::nvlink_release_relaxed))
            return store_relaxed<Scope::system>(flag, number);
        if (mutated(Mutant::nvlink_release_narrow)) return store_release<Scope::gpu>(flag, number);
        store_release<Scope::system>(flag, number);
    }

    GIMLET_DEVICE static std::uint32_t load_flag(const std::uint32_t* flag) {
        if (mutated(Mutant::nvlink_acquire_relaxed)) return load_relaxed<Scope::system>(flag);
        if (mutated(Mutant::nvlink_acquire_narrow)) return load_acquire<Scope::gpu>(flag);
        return load_acquire<Scope::system>(flag);
    }

    GIMLET_DEVICE WaitStatus wait_for_all(const WaitScope& scope) const {
        WaitStatus status = hear(scope, first_);
        for (std::int32_t i = thread_index() + block_threads();
             i < peers_.lsa_size && status == WaitStatus::ok; i += block_threads())
            status = hear(scope, member(i));
        return status;
    }

    GIMLET_DEVICE WaitStatus hear(const WaitScope& scope, const Member& other) const {
        if (other.flag_here == nullptr) return WaitStatus::ok;
        const auto number = static_cast<std::uint32_t>(number_);
        return wait_until(scope, WaitTarget{other.rank, -1, number}, [&](std::uint64_t& seen) {
            const std::uint32_t value = load_flag(other.flag_here);
            seen = value;
            if (mutated(Mutant::nvlink_compare_not_rolling)) return value >= number;
            if (mutated(Mutant::nvlink_no_wait)) return true;
            return static_cast<std::int32_t>(value - number) >=
                   mutate(Mutant::nvlink_one_behind, 0, -1);
        });
    }

    const PeerHandles& peers_;
    std::uint64_t* counter_;
    std::uint64_t number_;    ///< of the newest barrier
    std::uint32_t excluded_;  ///< how many ranks are
    Member first_;            ///< this thread's; larger teams give it more
};

/// One barrier: see NvlinkBarrier.
GIMLET_DEVICE bool nvlink_barrier(const PeerHandles& peers, const WaitScope& scope) {
    return NvlinkBarrier(peers).meet(scope);
}

}  // namespace gimlet::device

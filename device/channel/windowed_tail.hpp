// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// Lives in shared memory (or in global memory of this GPU). `tail` starts at the first position,
/// the rest at zero.
struct WindowedTailState {
    std::uint64_t tail;    ///< every position below it is finished
    std::uint32_t window;  ///< bit i: position tail + i is finished
    std::uint32_t lock;    ///< 1 = held
};
static_assert(sizeof(WindowedTailState) == 16);

/// The tail of a ring that several warps of a block fill. Each position is filled by one of them,
/// in any order; the tail moves over the longest prefix of finished positions.
///
/// Who: one thread of each producer warp calls finish(), once for each of its positions; each
/// position once. A warp's own positions ascend. init() by one thread, and a block sync before the
/// first finish().
/// Before finish(p): slot p is free (FifoSender::reserve over the prefix, by whoever gives out
/// positions), and written: ordinary stores of the warp, warp sync; own bulk stores, bulk_wait<0>.
/// After: whoever acquires a tail beyond p, from the state or from what `publish` stored, sees slot
/// p: producers hand their slots on through the lock (acq_rel at block scope), so the release of
/// the one that moves the tail covers them all.
/// Cost: one compare-and-swap and two stores in the block's own memory; no remote messages but
/// publish's. The lock is held for a few instructions and for `publish`, which must not wait.
/// Deadline: finish waits while p is 32 or more ahead of the tail, and for the lock; `expected` is
/// the tail that is needed, or 0 for the lock. After a failed finish p counts as not finished.
class WindowedTail {
  public:
    /// Positions that may be finished ahead of the first unfinished one, plus one.
    static constexpr std::uint32_t kWindow = 32;

    GIMLET_DEVICE explicit WindowedTail(WindowedTailState* state) : state_(state) {}

    GIMLET_DEVICE void init(std::uint64_t first) const {
        state_->tail = first;
        state_->window = 0;
        state_->lock = 0;
    }

    /// The tail (acquire at block scope): slots below it are visible to the caller.
    GIMLET_DEVICE std::uint64_t tail() const { return load_acquire<Scope::block>(&state_->tail); }

    /// Marks `position` as finished. If the tail moves, calls `publish(first, count)` under the
    /// lock: positions first .. first + count - 1 are now finished. Calls of all producers come in
    /// order of positions. A coordinator that follows tail() instead passes a function that does
    /// nothing.
    template <class Publish>
    GIMLET_DEVICE WaitStatus finish(const WaitScope& outer_scope, std::uint64_t position,
                                    Publish&& publish) const {
        const WaitScope scope = for_primitive(outer_scope, Primitive::windowed_tail);
        const std::uint64_t reach = mutate(Mutant::window_off_by_one, kWindow, kWindow + 1);
        WaitStatus status = wait_until(scope, WaitTarget{-1, -1, position - (kWindow - 1)},
                                       [&](std::uint64_t& seen) {
                                           seen = load_relaxed<Scope::block>(&state_->tail);
                                           return position - seen < reach;
                                       });
        if (status == WaitStatus::ok) status = take_lock(scope);
        if (status != WaitStatus::ok) return status;
        // The lock orders these plain accesses; others only look at the tail.
        const std::uint64_t first = load_relaxed<Scope::block>(&state_->tail);
        // The mask keeps the mutant's shift defined.
        const std::uint32_t offset = static_cast<std::uint32_t>(position - first) % kWindow;
        const std::uint32_t window = state_->window | 1u << offset;
        const std::uint32_t count = prefix_of(window);
        state_->window = shifted(window, count);
        if (count > 0) {
            store_release<Scope::block>(&state_->tail, first + count);
            publish(first, count);
        }
        if (!mutated(Mutant::window_no_lock)) store_release<Scope::block>(&state_->lock, 0u);
        return status;
    }

  private:
    GIMLET_DEVICE WaitStatus take_lock(const WaitScope& scope) const {
        if (mutated(Mutant::window_no_lock)) return WaitStatus::ok;
        return wait_until(scope, WaitTarget{-1, -1, 0}, [&](std::uint64_t& seen) {
            seen = compare_exchange_acq_rel<Scope::block>(&state_->lock, 0u, 1u);
            return seen == 0;
        });
    }

    /// Ones from bit 0 on, 0 .. 32.
    GIMLET_DEVICE static std::uint32_t prefix_of(std::uint32_t window) {
        if (mutated(Mutant::window_skips_hole)) return static_cast<std::uint32_t>(__popc(window));
        // __ffs of 0 is 0: all 32 bits are set.
        const auto hole = static_cast<std::uint32_t>(__ffs(static_cast<int>(~window)));
        return hole == 0 ? kWindow : hole - 1;
    }
    /// A shift by 32 is undefined.
    GIMLET_DEVICE static std::uint32_t shifted(std::uint32_t window, std::uint32_t count) {
        if (mutated(Mutant::window_full_stays)) return window >> count % kWindow;
        return count == kWindow ? 0 : window >> count;
    }

    WindowedTailState* state_;
};

}  // namespace gimlet::device

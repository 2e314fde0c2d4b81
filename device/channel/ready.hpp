// SPDX-License-Identifier: Apache-2.0
//
// Using the rows of a dispatch as they come: a consumer kernel on a stream of its own, beside the
// dispatch, waits for one block of rows after the other.
//
//     const WaitStatus status = wait_block(view, block, &rows);   one thread
//     if (!block_ok(status)) return;
//     ... rows block * view.block_rows + [0, rows) and their records
//
// Blocks become ready in no particular order. A dispatch never waits for a consumer, so the two
// cannot block each other, as long as the consumer leaves the dispatch its multiprocessors
// (MoeConfig::sm_budget): a consumer that fills the GPU first keeps the dispatch from starting.
#pragma once

#include <cstdint>

#include "device/abi/ready_view.hpp"
#include "device/core/memory.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

GIMLET_DEVICE WaitScope ready_scope(const ReadyView& view) {
    return WaitScope{view.deadline_ns, view.error, view.poison,           view.epoch,
                     view.rank,        Tag::user,  Primitive::ready_block};
}

/// Waits until the number of rows of the step is known; it becomes so before rows arrive.
///
/// Who: any thread by itself. After ok: `*rows` is the number, and the caller (others behind its
/// next barrier) may read the whole StepCounts (acquire at gpu scope).
/// Deadline: as wait_until's. `aborted` if the dispatch has failed.
GIMLET_DEVICE WaitStatus wait_row_count(const ReadyView& view, std::int32_t* rows) {
    const WaitStatus status = wait_until(ready_scope(view), WaitTarget{view.rank, -1, view.epoch},
                                         [&](std::uint64_t& seen) {
                                             seen = load_acquire<Scope::gpu>(&view.step->epoch);
                                             return seen == view.epoch;
                                         });
    if (status == WaitStatus::ok) *rows = view.step->row_count;
    return status;
}

/// Waits until all rows of block `block` have arrived, padding rows included; 0 <= block. A block
/// beyond the step's rows is ready at once, with `*rows` = 0.
///
/// Who: any thread by itself. After ok: rows and records of the block are visible to the caller,
/// and to others behind its next barrier (acquire at gpu scope; bulk loads: then
/// fence_proxy_async). Cost: two polls of this GPU's own memory. Deadline: as wait_until's;
/// `expected` is the number of rows.
GIMLET_DEVICE WaitStatus wait_block(const ReadyView& view, std::int32_t block, std::int32_t* rows) {
    std::int32_t all = 0;
    *rows = 0;
    const WaitStatus known = wait_row_count(view, &all);
    if (known != WaitStatus::ok) return known;
    const std::int64_t first = static_cast<std::int64_t>(block) * view.block_rows;
    if (first >= all) return WaitStatus::ok;
    const std::int64_t left = all - first;
    const std::int64_t wanted = left < view.block_rows ? left : view.block_rows;
    const std::uint32_t* counter =
        view.arrived + static_cast<std::int64_t>(view.epoch % kReadySets) * view.block_count +
        block;
    const WaitTarget target{view.rank, block, static_cast<std::uint64_t>(wanted)};
    const WaitStatus status = wait_until(ready_scope(view), target, [&](std::uint64_t& seen) {
        seen = load_acquire<Scope::gpu>(counter);
        return seen >= target.expected;
    });
    if (status == WaitStatus::ok) *rows = static_cast<std::int32_t>(wanted);
    return status;
}

}  // namespace gimlet::device

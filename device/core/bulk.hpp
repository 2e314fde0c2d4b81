// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous copies between this block's shared memory and global memory (own or an LSA peer's),
// and the mbarriers that tell when loads have landed. One thread issues a copy; bytes are a
// multiple of 16, both ends 16-byte aligned, and zero bytes are not allowed.
//
// Orders (see device/README.md):
//   load:   [acquire of the data, fence_proxy_async] -> mbarrier_arrive_expect_tx -> bulk_load ->
//   mbarrier_wait store:  ordinary stores to the slot, fence_proxy_async_shared by each writer,
//   warp or block sync -> bulk_store ->
//           bulk_commit -> bulk_wait_read (slot reusable) ... bulk_wait (rows visible to this
//           thread) -> release
//   reuse:  a slot that was read by ordinary loads may be the target of the next bulk_load after a
//   warp or block sync
//           and fence_proxy_async_shared.
#pragma once

#include <cstdint>

#include "device/core/platform.hpp"
#if GIMLET_EMULATED
#include "device/core/emulated_bulk.hpp"
#else
#include "device/core/ptx_bulk.cuh"
#endif

namespace gimlet::device {

/// Lives in shared memory, 8-byte aligned. Its phases alternate between parity 0 (the first) and 1.
using Mbarrier = std::uint64_t;

/// A phase completes when `count` arrivals came and no announced bytes are outstanding. One thread
/// initialises, calls mbarrier_init_fence(), and the users of the barrier sync with it.
GIMLET_DEVICE void mbarrier_init(Mbarrier* bar, std::uint32_t count) {
    machine::mbarrier_init(bar, count);
}

/// Makes initialised mbarriers known to the bulk engine.
GIMLET_DEVICE void mbarrier_init_fence() {
    machine::mbarrier_init_fence();
}

/// Release at block scope: a thread that sees the phase complete sees what came before.
GIMLET_DEVICE void mbarrier_arrive(Mbarrier* bar) {
    machine::mbarrier_arrive(bar);
}

/// Announces `bytes` of bulk loads for the current phase, and arrives. Before the loads are issued.
GIMLET_DEVICE void mbarrier_arrive_expect_tx(Mbarrier* bar, std::uint32_t bytes) {
    machine::mbarrier_arrive_expect_tx(bar, bytes);
}

/// Whether the phase of this parity has completed (acquire at block scope). The GPU may let the
/// thread sleep for a short while first.
GIMLET_DEVICE bool mbarrier_try_wait(Mbarrier* bar, std::uint32_t parity) {
    return machine::mbarrier_try_wait(bar, parity);
}

/// Returns when the phase of this parity has completed. It has no deadline: use it for bulk loads
/// that this block issued and for arrivals of warps that cannot fail, never for a peer.
GIMLET_DEVICE void mbarrier_wait(Mbarrier* bar, std::uint32_t parity) {
    while (!mbarrier_try_wait(bar, parity)) {
    }
}

/// Starts a copy into shared memory. Its bytes count on `bar`, which must have been told to expect
/// them.
GIMLET_DEVICE void bulk_load(void* shared_dst, const void* global_src, std::uint32_t bytes,
                             Mbarrier* bar) {
    machine::bulk_load(shared_dst, global_src, bytes, bar);
}

/// Starts a copy out of shared memory, in the calling thread's open bulk group.
GIMLET_DEVICE void bulk_store(void* global_dst, const void* shared_src, std::uint32_t bytes) {
    machine::bulk_store(global_dst, shared_src, bytes);
}

/// Closes the calling thread's bulk group. Groups are counted per thread: the thread that issued
/// must wait.
GIMLET_DEVICE void bulk_commit() {
    machine::bulk_commit();
}

/// Returns when all but the `pending` youngest groups of this thread have read their sources.
template <int pending>
GIMLET_DEVICE void bulk_wait_read() {
    machine::bulk_wait_read<pending>();
}

/// Returns when all but the `pending` youngest groups of this thread have written; the writes are
/// then visible to this thread, and to others through its next release.
template <int pending>
GIMLET_DEVICE void bulk_wait() {
    machine::bulk_wait<pending>();
}

/// As above for 0 <= pending <= 7; waits for more than needed beyond that.
GIMLET_DEVICE void bulk_wait_read(int pending) {
    switch (pending) {
        case 0: return bulk_wait_read<0>();
        case 1: return bulk_wait_read<1>();
        case 2: return bulk_wait_read<2>();
        case 3: return bulk_wait_read<3>();
        case 4: return bulk_wait_read<4>();
        case 5: return bulk_wait_read<5>();
        case 6: return bulk_wait_read<6>();
        default: return bulk_wait_read<7>();
    }
}

GIMLET_DEVICE void bulk_wait(int pending) {
    switch (pending) {
        case 0: return bulk_wait<0>();
        case 1: return bulk_wait<1>();
        case 2: return bulk_wait<2>();
        case 3: return bulk_wait<3>();
        case 4: return bulk_wait<4>();
        case 5: return bulk_wait<5>();
        case 6: return bulk_wait<6>();
        default: return bulk_wait<7>();
    }
}

}  // namespace gimlet::device

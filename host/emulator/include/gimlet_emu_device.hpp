// SPDX-License-Identifier: Apache-2.0
//
// What device/core builds on when it is compiled for the emulator. Call these from kernels only.
#pragma once

#include <cstdint>

namespace gimlet::emu::dev {

/// Called before every ordered or volatile load: other threads may run first.
void poll_point();

/// Called after every ordered store or read-modify-write that changed memory.
void store_point();

/// Virtual time in simulation, steady clock in live mode.
uint64_t now_ns();

/// The thread does not run for at least this long.
void sleep_ns(uint32_t span_ns);

/// This CTA's dynamic shared memory, aligned to 1024 bytes.
void* dynamic_shared();

/// Bytes of dynamic shared memory of this launch.
uint32_t dynamic_shared_bytes();

/// The phase completes when `count` arrivals came and no transaction bytes are pending. 8-byte
/// aligned, in shared memory.
void mbarrier_init(uint64_t* bar, uint32_t count);
void mbarrier_inval(uint64_t* bar);
void mbarrier_arrive(uint64_t* bar);

/// Adds `bytes` to the current phase's pending transactions, then arrives.
void mbarrier_arrive_expect_tx(uint64_t* bar, uint32_t bytes);

/// Adds `bytes` to the current phase's pending transactions without arriving.
void mbarrier_expect_tx(uint64_t* bar, uint32_t bytes);

/// True when the phase of this parity has completed; a poll point. Phases start at parity 0.
bool mbarrier_try_wait(uint64_t* bar, uint32_t parity);

/// Asynchronous copy into this CTA's shared memory; completes `bytes` transaction bytes on `bar`
/// when it has landed. Addresses must be 16-byte aligned and `bytes` a multiple of 16.
void bulk_load(void* shared_dst, const void* src, uint32_t bytes, uint64_t* bar);

/// Asynchronous copy out of shared memory; belongs to the calling thread's current bulk group.
void bulk_store(void* dst, const void* shared_src, uint32_t bytes);

/// Closes the calling thread's current bulk group.
void bulk_commit();

/// Returns when at most `pending_groups` of the calling thread's youngest groups may still read
/// their sources.
void bulk_wait_read(int pending_groups);

/// Returns when all but `pending_groups` of the calling thread's youngest groups are visible at
/// their destination.
void bulk_wait(int pending_groups);

/// bar.sync id, thread_count: id in [0, 16), thread_count a multiple of 32.
void named_barrier_sync(int id, int thread_count);

/// bar.arrive id, thread_count: counts this thread without waiting.
void named_barrier_arrive(int id, int thread_count);

}  // namespace gimlet::emu::dev

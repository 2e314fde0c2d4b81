// SPDX-License-Identifier: Apache-2.0
// What the emulated device API calls in the emulator's library. Not for users.
#pragma once

#include <nccl.h>
#include <cuda/atomic>

#include <cstddef>
#include <cstdint>
#include <functional>

struct ncclDevComm;
struct ncclTeam;

namespace gimlet::emu::nccl {

/// Ends the run: the program did something that real hardware leaves undefined.
[[noreturn]] void refuse_use(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// Blocks the calling thread until ready() holds. The formatted text goes into the deadlock table.
void wait_until(const std::function<bool()>& ready, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

/// Tells the watch of a release to a word (releasing order), or an acquire from it (acquire).
void announce(const void* word, cuda::memory_order order);

/// Clock of timeouts, in cycles as clock64() counts them.
uint64_t cycles();

/// Memory of `bytes` bytes (at most 512) that the threads of the calling CTA share, zeroed at first
/// use; `slot` tells uses apart.
void* block_stash(int slot, size_t bytes);

/// Address of `offset` in the window's copy of LSA peer `lsa_peer`; refuses what is outside.
char* lsa_pointer(ncclWindow_t window, size_t offset, int lsa_peer, const char* caller);
/// Same for this rank's own copy.
char* local_pointer(ncclWindow_t window, size_t offset, const char* caller);
/// LSA index that world rank `world` would have; may lie outside of the team.
int world_to_lsa(ncclWindow_t window, int world);
int lsa_rank(ncclWindow_t window);
/// Window of devComm's communicator that holds ptr, or NULL.
ncclWindow_t find_window(const ncclDevComm& comm, const void* ptr);

/// One LSA barrier index is about to be used (or no longer used) by a coop's first thread. Refuses
/// a second user at the same time and an index outside of the handle.
void lsa_barrier_enter(const ncclDevComm& comm, uint32_t buffer_handle, int barriers,
                       uint32_t index);
void lsa_barrier_leave(const ncclDevComm& comm, uint32_t buffer_handle, uint32_t index);
/// The same for a GIN barrier, known by its first signal, on contexts [first, first + count).
void gin_barrier_enter(const ncclDevComm& comm, uint32_t signal, int first_context, int count);
void gin_barrier_leave(const ncclDevComm& comm, uint32_t signal, int first_context, int count);

enum class SignalKind : uint8_t { none, indexed, address };

/// A remote action, resolved from the tag types.
struct SignalSpec {
    SignalKind kind = SignalKind::none;
    bool strong = false;
    bool add = false;
    uint32_t id = 0;
    ncclWindow_t window = nullptr;
    size_t offset = 0;
    uint64_t value = 1;
};

/// One ncclGin object: a context of a device communicator as one thread uses it.
struct GinPort {
    const ncclDevComm* comm;
    uint32_t context;
    uint8_t sharing;
};

struct PutSpec {
    ncclWindow_t dst_window = nullptr;
    size_t dst_offset = 0;
    ncclWindow_t src_window = nullptr;
    size_t src_offset = 0;
    size_t bytes = 0;
    bool has_value = false;  ///< putValue: the data is `value`, there is no source
    uint64_t value = 0;
    SignalSpec signal;
    bool has_counter = false;
    uint32_t counter = 0;
    uint32_t opt_flags = 0;
};

void gin_put(const GinPort& port, const ncclTeam& team, int peer, const PutSpec& put);
void gin_signal(const GinPort& port, const ncclTeam& team, int peer, const SignalSpec& signal,
                uint32_t opt_flags);
void gin_get(const GinPort& port, const ncclTeam& team, int peer, ncclWindow_t remote_window,
             size_t remote_offset, ncclWindow_t local_window, size_t local_offset, size_t bytes,
             uint32_t opt_flags);
/// Peers that a flush has to visit, in the numbering that gin_flush_peer takes.
int gin_flush_peers(const GinPort& port);
void gin_flush_peer(const GinPort& port, int gin_peer);
void gin_flush_async(const GinPort& port, const ncclTeam& team, int peer, uint64_t request[2]);
void gin_wait(const GinPort& port, const uint64_t request[2]);

uint64_t gin_read_counter(const GinPort& port, uint32_t counter, int bits,
                          cuda::memory_order order);
void gin_wait_counter(const GinPort& port, uint32_t counter, uint64_t least, int bits,
                      cuda::memory_order order);
void gin_reset_counter(const GinPort& port, uint32_t counter);

uint64_t gin_read_signal(const GinPort& port, uint32_t signal, int bits, cuda::memory_order order);
uint64_t gin_read_signal(const GinPort& port, ncclWindow_t window, size_t offset, int bits,
                         cuda::memory_order order);
/// Returns the value seen, all 64 bits.
uint64_t gin_wait_signal(const GinPort& port, uint32_t signal, uint64_t least, int bits,
                         cuda::memory_order order);
void gin_wait_signal(const GinPort& port, ncclWindow_t window, size_t offset, uint64_t least,
                     int bits, cuda::memory_order order);
void gin_reset_signal(const GinPort& port, uint32_t signal);
void gin_reset_signal(const GinPort& port, ncclWindow_t window, size_t offset);
/// The signal's shadow word; refuses ids outside of the device communicator.
uint64_t* gin_shadow(const GinPort& port, uint32_t signal);

}  // namespace gimlet::emu::nccl

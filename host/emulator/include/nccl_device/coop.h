// SPDX-License-Identifier: Apache-2.0
// Sets of threads that act together. Any class with thread_rank(), size() and sync() is a coop.
#pragma once

#include "emulator_bridge.h"
#include "utility.h"

#include <gimlet_emu_device.hpp>

#include <bit>
#include <cstring>
#include <new>
#include <type_traits>

/// An aligned group of 2^k lanes of one warp.
template <int nThreadsPow2>
struct ncclCoopTile {
    static_assert(nccl::utility::isPow2(nThreadsPow2) && nThreadsPow2 <= 32,
                  "a tile is a power of two of at most 32 lanes");

    int thread_rank() const { return nccl::utility::lane() % nThreadsPow2; }
    constexpr int size() const { return nThreadsPow2; }
    constexpr int num_threads() const { return nThreadsPow2; }
    uint32_t laneMask() const {
        const int first = nccl::utility::lane() / nThreadsPow2 * nThreadsPow2;
        return (~0u >> (32 - nThreadsPow2)) << first;
    }
    void sync() {
        if constexpr (nThreadsPow2 > 1) __syncwarp(laneMask());
    }
};

using ncclCoopThread = ncclCoopTile<1>;
using ncclCoopWarp = ncclCoopTile<32>;

/// Some lanes of the calling thread's warp.
struct ncclCoopLanes {
    uint32_t lmask;

    constexpr ncclCoopLanes(uint32_t lmask = ~0u) : lmask(lmask) {}
    int thread_rank() const {
        const uint32_t below = (uint32_t{1} << nccl::utility::lane()) - 1;
        return std::popcount(lmask & below);
    }
    int size() const { return std::popcount(lmask); }
    int num_threads() const { return size(); }
    void sync() { __syncwarp(lmask); }
};

/// Consecutive warps of a CTA with 1-D threads. Uses the CTA's named barrier 1 + id.
struct ncclCoopWarpSpan {
    uint32_t warp0 : 8, nWarps : 8, id : 8;

    constexpr ncclCoopWarpSpan(int warp0, int nWarps, int id)
        : warp0(static_cast<uint32_t>(warp0)),
          nWarps(static_cast<uint32_t>(nWarps)),
          id(static_cast<uint32_t>(id)) {}
    int thread_rank() const { return static_cast<int>(threadIdx.x) - 32 * static_cast<int>(warp0); }
    int size() const { return 32 * static_cast<int>(nWarps); }
    int num_threads() const { return size(); }
    void sync() {
        gimlet::emu::dev::named_barrier_sync(static_cast<int>(1 + id),
                                             static_cast<int>(32 * nWarps));
    }
};

/// The whole CTA, with 1-D threads.
struct ncclCoopCta {
    int thread_rank() const { return static_cast<int>(threadIdx.x); }
    int size() const { return static_cast<int>(blockDim.x); }
    int num_threads() const { return size(); }
    void sync() { __syncthreads(); }
};

/// Any coop of at most 16 bytes, its type erased.
struct ncclCoopAny {
    struct Storage {
        alignas(alignof(void*)) char space[16];
    };
    struct VTable {
        int (*thread_rank)(const void*);
        int (*size)(const void*);
        void (*sync)(void*);
    };

    Storage storage;
    const VTable* vtable;

    ncclCoopAny() = default;
    ncclCoopAny(const ncclCoopAny&) = default;
    ncclCoopAny(ncclCoopAny&&) = default;
    ncclCoopAny& operator=(const ncclCoopAny&) = default;

    template <typename Impl,
              typename = std::enable_if_t<!std::is_same_v<std::decay_t<Impl>, ncclCoopAny>>>
    ncclCoopAny(Impl impl) : vtable(table_of<Impl>()) {
        static_assert(sizeof(Impl) <= sizeof(Storage) && alignof(Impl) <= alignof(Storage));
        ::new (&storage) Impl(impl);
    }

    int thread_rank() const { return vtable->thread_rank(&storage); }
    int size() const { return vtable->size(&storage); }
    int num_threads() const { return size(); }
    void sync() { vtable->sync(&storage); }

  private:
    template <typename Impl>
    static const VTable* table_of() {
        static constexpr VTable table = {
            [](const void* self) { return static_cast<const Impl*>(self)->thread_rank(); },
            [](const void* self) {
                return static_cast<int>(static_cast<const Impl*>(self)->size());
            },
            [](void* self) { static_cast<Impl*>(self)->sync(); }};
        return &table;
    }
};

template <int nThreadsPow2>
uint32_t ncclCoopGetLaneMask(ncclCoopTile<nThreadsPow2> coop) {
    return coop.laneMask();
}
inline uint32_t ncclCoopGetLaneMask(ncclCoopLanes coop) {
    return coop.lmask;
}
inline uint32_t ncclCoopGetLaneMask(ncclCoopWarpSpan) {
    return ~0u;
}
inline uint32_t ncclCoopGetLaneMask(ncclCoopCta) {
    return ~0u;
}

/// Known at compile time to be a single thread.
template <int nThreadsPow2>
constexpr bool ncclCoopIsThread(ncclCoopTile<nThreadsPow2>) {
    return nThreadsPow2 == 1;
}
constexpr bool ncclCoopIsThread(ncclCoopLanes) {
    return false;
}
constexpr bool ncclCoopIsThread(ncclCoopWarpSpan) {
    return false;
}
constexpr bool ncclCoopIsThread(ncclCoopCta) {
    return false;
}

/// Known at compile time to lie inside one warp.
template <int nThreadsPow2>
constexpr bool ncclCoopWithinWarp(ncclCoopTile<nThreadsPow2>) {
    return true;
}
constexpr bool ncclCoopWithinWarp(ncclCoopLanes) {
    return true;
}
constexpr bool ncclCoopWithinWarp(ncclCoopWarpSpan) {
    return false;
}
constexpr bool ncclCoopWithinWarp(ncclCoopCta) {
    return false;
}

/// Lanes of this warp that may be used together here.
inline ncclCoopLanes ncclCoopCoalesced() {
    return ncclCoopLanes{__activemask()};
}
template <typename Coop>
ncclCoopTile<32> ncclCoopCoalesced(Coop) {
    return {};
}
inline ncclCoopLanes ncclCoopCoalesced(ncclCoopLanes coop) {
    return coop;
}
template <int nThreadsPow2>
ncclCoopTile<nThreadsPow2> ncclCoopCoalesced(ncclCoopTile<nThreadsPow2> coop) {
    return coop;
}

namespace gimlet::emu::nccl {

// Shuffles a value of any size, a word at a time.
template <typename T>
T shuffle(uint32_t mask, T value, int source_lane, int width) {
    constexpr size_t words = (sizeof(T) + 3) / 4;
    uint32_t word[words] = {};
    std::memcpy(word, &value, sizeof(T));
    for (size_t i = 0; i < words; ++i) word[i] = __shfl_sync(mask, word[i], source_lane, width);
    std::memcpy(&value, word, sizeof(T));
    return value;
}

// Root publishes through memory of the CTA. Without entry_sync a reader of the broadcast before may
// still be reading, as on the GPU.
template <typename Coop, typename T>
T stash_broadcast(Coop coop, int slot, T value, int root, bool entry_sync) {
    static_assert(sizeof(T) <= 16, "a broadcast outside of a warp carries at most 16 bytes");
    if (entry_sync) coop.sync();
    void* stash = block_stash(slot, 16);
    if (coop.thread_rank() == root) std::memcpy(stash, &value, sizeof(T));
    coop.sync();
    std::memcpy(&value, stash, sizeof(T));
    return value;
}

}  // namespace gimlet::emu::nccl

template <int nThreadsPow2, typename T>
T ncclCoopBcast(ncclCoopTile<nThreadsPow2>, T value, int root, bool entrySync = true) {
    (void)entrySync;
    if constexpr (nThreadsPow2 == 1) {
        (void)root;
        return value;
    } else {
        // The whole warp takes part, whatever the tile: divergent tiles hang, as on the GPU.
        return gimlet::emu::nccl::shuffle(~0u, value, root, nThreadsPow2);
    }
}

template <typename T>
T ncclCoopBcast(ncclCoopLanes coop, T value, int root, bool entrySync = true) {
    (void)entrySync;
    uint32_t rest = coop.lmask;
    for (int i = 0; i < root; ++i) rest &= rest - 1;
    return gimlet::emu::nccl::shuffle(coop.lmask, value, std::countr_zero(rest), 32);
}

template <typename T>
T ncclCoopBcast(ncclCoopWarpSpan coop, T value, int root, bool entrySync = true) {
    if (coop.id >= 15) {
        gimlet::emu::nccl::refuse_use("ncclCoopBcast: warp span id %u has no stash (limit 14)",
                                      static_cast<unsigned>(coop.id));
    }
    return gimlet::emu::nccl::stash_broadcast(coop, 1 + static_cast<int>(coop.id), value, root,
                                              entrySync);
}

template <typename T>
T ncclCoopBcast(ncclCoopCta coop, T value, int root, bool entrySync = true) {
    return gimlet::emu::nccl::stash_broadcast(coop, 0, value, root, entrySync);
}

// SPDX-License-Identifier: Apache-2.0
//
// Threads, warps and blocks. Blocks and grids are one-dimensional; a block is a whole number of
// warps. Warp functions are called by all 32 lanes, block functions by all threads of the block, in
// converged code.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "device/core/platform.hpp"
#if GIMLET_EMULATED
#include "device/core/emulated_bulk.hpp"
#else
#include "device/core/ptx_bulk.cuh"
#endif

namespace gimlet::device {

inline constexpr std::uint32_t kFullWarp = 0xffffffffu;

GIMLET_DEVICE int thread_index() {
    return static_cast<int>(threadIdx.x);
}
GIMLET_DEVICE int lane_index() {
    return static_cast<int>(threadIdx.x % 32u);
}
GIMLET_DEVICE int warp_index() {
    return static_cast<int>(threadIdx.x / 32u);
}
GIMLET_DEVICE int block_threads() {
    return static_cast<int>(blockDim.x);
}
GIMLET_DEVICE int warp_count() {
    return static_cast<int>(blockDim.x / 32u);
}
GIMLET_DEVICE int block_index() {
    return static_cast<int>(blockIdx.x);
}
GIMLET_DEVICE int block_count() {
    return static_cast<int>(gridDim.x);
}

/// True in lane 0.
GIMLET_DEVICE bool elect() {
    return lane_index() == 0;
}

/// Barrier of the block; orders its threads' accesses among themselves.
GIMLET_DEVICE void block_sync() {
    __syncthreads();
}
GIMLET_DEVICE bool block_all(bool value) {
    return __syncthreads_and(value ? 1 : 0) != 0;
}
GIMLET_DEVICE bool block_any(bool value) {
    return __syncthreads_or(value ? 1 : 0) != 0;
}

/// Barrier of the warp; orders its lanes' accesses among themselves.
GIMLET_DEVICE void warp_sync() {
    __syncwarp(kFullWarp);
}
GIMLET_DEVICE bool warp_all(bool value) {
    return __all_sync(kFullWarp, value ? 1 : 0) != 0;
}
GIMLET_DEVICE bool warp_any(bool value) {
    return __any_sync(kFullWarp, value ? 1 : 0) != 0;
}
/// Bit i is lane i's value.
GIMLET_DEVICE std::uint32_t warp_ballot(bool value) {
    return __ballot_sync(kFullWarp, value ? 1 : 0);
}

/// The value of lane `lane`, for integers, floats and pointers of 32 or 64 bits.
template <class T>
GIMLET_DEVICE T shuffle(T value, int lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if constexpr (std::is_pointer_v<T>) {
        return reinterpret_cast<T>(static_cast<std::uintptr_t>(__shfl_sync(
            kFullWarp, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(value)),
            lane)));
    } else if constexpr (std::is_floating_point_v<T>) {
        return __shfl_sync(kFullWarp, value, lane);
    } else if constexpr (sizeof(T) == 8) {
        return static_cast<T>(__shfl_sync(kFullWarp, static_cast<unsigned long long>(value), lane));
    } else {
        return static_cast<T>(__shfl_sync(kFullWarp, static_cast<unsigned>(value), lane));
    }
}

/// Barrier number `id` (1..15) of `thread_count` threads, a multiple of 32: whole warps, each
/// calling once a round.
GIMLET_DEVICE void named_sync(int id, int thread_count) {
    machine::named_sync(static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(thread_count));
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
// Macros and small helpers of the emulated nccl_device.h.
#pragma once

#include <cuda_runtime.h>
#include <cuda/atomic>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Device code is always available here: there is only one compiler.
#ifndef NCCL_CHECK_CUDACC
#define NCCL_CHECK_CUDACC 1
#endif
#define NCCL_DEVICE_INLINE inline
#define NCCL_HOST_DEVICE_INLINE inline
#define NCCL_EXTERN_C extern "C"
#define NCCL_IR_EXTERN_C

namespace nccl::utility {

constexpr bool isPow2(int value) {
    return value > 0 && (value & (value - 1)) == 0;
}

/// Lane of the calling thread in its warp.
inline int lane() {
    const unsigned linear = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return static_cast<int>(linear % 32);
}

/// a comes no later than b on the circle of `bits`-bit numbers (1 <= bits <= 64).
constexpr bool rollingLessEq(uint64_t a, uint64_t b, int bits) {
    const uint64_t mask = ~uint64_t{0} >> (64 - bits);
    return ((b - a) & mask) <= (mask >> 1);
}

/// The part of an order that a store or an arrival has.
constexpr cuda::memory_order releaseOrderOf(cuda::memory_order order) {
    switch (order) {
        case cuda::memory_order_release:
        case cuda::memory_order_acq_rel: return cuda::memory_order_release;
        case cuda::memory_order_seq_cst: return cuda::memory_order_seq_cst;
        default: return cuda::memory_order_relaxed;
    }
}

/// The part of an order that a load or a wait has.
constexpr cuda::memory_order acquireOrderOf(cuda::memory_order order) {
    switch (order) {
        case cuda::memory_order_consume:
        case cuda::memory_order_acquire:
        case cuda::memory_order_acq_rel: return cuda::memory_order_acquire;
        case cuda::memory_order_seq_cst: return cuda::memory_order_seq_cst;
        default: return cuda::memory_order_relaxed;
    }
}

}  // namespace nccl::utility

// SPDX-License-Identifier: Apache-2.0
//
// The machine that device code is compiled for: a GPU (nvcc), or the emulator (any C++20 compiler).
// Device code outside of device/core does not ask which one it is.
#pragma once

#include <cstddef>

#if defined(__CUDACC__)
#define GIMLET_EMULATED 0
/// A function of device code. Inlined: none of them is big enough to be worth a call.
#define GIMLET_DEVICE __device__ __forceinline__
/// The rare half of one: out of line, so that the other half stays short. A kernel's first pass
/// through its code pays for every fetched line.
#define GIMLET_DEVICE_COLD __device__ __noinline__ inline
/// A kernel.
#define GIMLET_GLOBAL __global__
/// For a kernel's argument struct: `const GIMLET_GRID_CONSTANT Args args`. References to it, and to
/// its members, stay valid in the whole kernel and cost no copy.
#define GIMLET_GRID_CONSTANT __grid_constant__
/// Before a loop whose arrays must stay in registers: constant bounds, unrolled completely.
#define GIMLET_UNROLL _Pragma("unroll")
/// Before a loop that must stay one: it runs rarely or once, and copies of its body only cost
/// fetches.
#define GIMLET_ROLLED _Pragma("unroll 1")
#else
#define GIMLET_EMULATED 1
#define GIMLET_DEVICE inline
#define GIMLET_DEVICE_COLD inline
#define GIMLET_GLOBAL
#define GIMLET_GRID_CONSTANT
#define GIMLET_UNROLL
#define GIMLET_ROLLED
#include "host/emulator/include/gimlet_emu_device.hpp"
#endif

namespace gimlet::device {

/// Start of the block's dynamic shared memory, 128-byte aligned. Its size is an argument of the
/// launch. Device code has no other shared memory.
GIMLET_DEVICE std::byte* dynamic_shared_memory() {
#if GIMLET_EMULATED
    return static_cast<std::byte*>(emu::dev::dynamic_shared());
#else
    extern __shared__ __align__(128) std::byte gimlet_dynamic_shared_memory[];
    return gimlet_dynamic_shared_memory;
#endif
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
//
// threadIdx, blockIdx, blockDim and gridDim, and the entry points behind the warp and block
// intrinsics of cuda_runtime.h. Programs use the CUDA names.
#pragma once

#include <cstddef>
#include <cstdint>

struct uint3 {
    unsigned int x, y, z;
};

struct dim3 {
    unsigned int x, y, z;
    constexpr dim3(unsigned int x_in = 1, unsigned int y_in = 1, unsigned int z_in = 1)
        : x(x_in), y(y_in), z(z_in) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

// The built-in variables are thread-local words that the scheduler writes at each switch. constinit
// and the initial-exec model keep accesses free of calls.
#define GIMLET_EMU_BUILTIN(type, name) \
    extern constinit __attribute__((tls_model("initial-exec"))) thread_local type name
GIMLET_EMU_BUILTIN(uint3, threadIdx);
GIMLET_EMU_BUILTIN(uint3, blockIdx);
GIMLET_EMU_BUILTIN(dim3, blockDim);
GIMLET_EMU_BUILTIN(dim3, gridDim);
#undef GIMLET_EMU_BUILTIN

namespace gimlet::emu::dev {

/// Shared by the threads of one CTA.
struct BlockContext {
    uint3 block_index{};
    dim3 block_dim;
    dim3 grid_dim;
};

struct ThreadContext {
    uint3 thread_index{};
    const BlockContext* block = nullptr;
};

/// The running thread's context; nullptr while host code runs.
extern __attribute__((tls_model("initial-exec"))) __thread const ThreadContext* running_thread;

/// Ends the program with a message: device code was called from host code.
[[noreturn]] void no_thread();

inline const ThreadContext& thread_context() {
    if (running_thread == nullptr) no_thread();
    return *running_thread;
}

/// What a warp-wide meeting is for; threads that meet must agree.
enum class WarpOp : uint8_t { sync, shuffle, vote, match, reduce };

/// One value per lane, deposited by the lanes that met. Valid until the caller's next meeting with
/// the same mask.
struct WarpValues {
    const uint64_t* values;  ///< [32]
    uint32_t present;        ///< lanes that deposited
};

/// Waits until all live lanes of `mask` have come, and returns what they brought. The caller must
/// be in `mask`.
WarpValues warp_meet(uint32_t mask, WarpOp op, uint64_t value);
uint32_t lane_index();

enum class BlockReduce : uint8_t { none, any, all, count };

/// __syncthreads and its reducing forms. Exited threads count as arrived.
int block_sync(BlockReduce reduce, int predicate);

/// All threads of a cooperative grid.
void grid_sync();
bool grid_is_cooperative();

/// __trap and failed device asserts.
[[noreturn]] void trap(const char* message);

}  // namespace gimlet::emu::dev

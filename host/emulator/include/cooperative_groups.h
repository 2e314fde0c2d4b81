// SPDX-License-Identifier: Apache-2.0
//
// Emulated cooperative groups: grid, block, tiles of a warp, coalesced threads (always alone, see
// __activemask).
#pragma once

#include "cuda_runtime.h"

namespace cooperative_groups {

namespace detail {

inline unsigned linear_thread() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
inline unsigned long long linear_block() {
    return (static_cast<unsigned long long>(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x +
           blockIdx.x;
}
inline unsigned block_threads() {
    return blockDim.x * blockDim.y * blockDim.z;
}

}  // namespace detail

/// All threads of a cooperative launch.
class grid_group {
  public:
    bool is_valid() const { return gimlet::emu::dev::grid_is_cooperative(); }
    void sync() const { gimlet::emu::dev::grid_sync(); }
    unsigned long long size() const { return num_blocks() * detail::block_threads(); }
    unsigned long long num_threads() const { return size(); }
    unsigned long long num_blocks() const {
        return static_cast<unsigned long long>(gridDim.x) * gridDim.y * gridDim.z;
    }
    unsigned long long block_rank() const { return detail::linear_block(); }
    unsigned long long thread_rank() const {
        return detail::linear_block() * detail::block_threads() + detail::linear_thread();
    }
    dim3 group_dim() const { return gridDim; }
    dim3 dim_blocks() const { return gridDim; }
    dim3 block_index() const { return blockIdx; }
};

/// All threads of the calling thread's block.
class thread_block {
  public:
    static void sync() { __syncthreads(); }
    static unsigned size() { return detail::block_threads(); }
    static unsigned num_threads() { return detail::block_threads(); }
    static unsigned thread_rank() { return detail::linear_thread(); }
    static dim3 group_index() { return blockIdx; }
    static dim3 thread_index() { return threadIdx; }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};

/// Size consecutive lanes of one warp; Size is a power of two up to 32.
template <unsigned Size, class Parent = void>
class thread_block_tile {
    static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0,
                  "a tile is a power of two up to a warp");

  public:
    void sync() const { __syncwarp(mask()); }
    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
    unsigned thread_rank() const { return detail::linear_thread() % Size; }
    unsigned meta_group_rank() const { return detail::linear_thread() / Size; }
    unsigned meta_group_size() const { return (detail::block_threads() + Size - 1) / Size; }

    template <class T>
    T shfl(T value, int source) const {
        return __shfl_sync(mask(), value, source, Size);
    }
    template <class T>
    T shfl_up(T value, unsigned delta) const {
        return __shfl_up_sync(mask(), value, delta, Size);
    }
    template <class T>
    T shfl_down(T value, unsigned delta) const {
        return __shfl_down_sync(mask(), value, delta, Size);
    }
    template <class T>
    T shfl_xor(T value, int lane_mask) const {
        return __shfl_xor_sync(mask(), value, lane_mask, Size);
    }
    int any(int predicate) const { return __any_sync(mask(), predicate); }
    int all(int predicate) const { return __all_sync(mask(), predicate); }
    unsigned ballot(int predicate) const {
        return __ballot_sync(mask(), predicate) >> first_lane();
    }
    template <class T>
    unsigned match_any(T value) const {
        return __match_any_sync(mask(), value) >> first_lane();
    }

  private:
    unsigned first_lane() const { return gimlet::emu::dev::lane_index() / Size * Size; }
    unsigned mask() const {
        return (Size == 32 ? 0xffffffffu : (1u << Size % 32) - 1u) << first_lane();
    }
};

/// The lanes that happen to run together: on the emulator the caller alone.
class coalesced_group {
  public:
    void sync() const {}
    unsigned size() const { return 1; }
    unsigned num_threads() const { return 1; }
    unsigned thread_rank() const { return 0; }
    template <class T>
    T shfl(T value, int) const {
        return value;
    }
    int any(int predicate) const { return predicate != 0; }
    int all(int predicate) const { return predicate != 0; }
    unsigned ballot(int predicate) const { return predicate != 0; }
};

inline grid_group this_grid() {
    return {};
}
inline thread_block this_thread_block() {
    return {};
}
inline coalesced_group coalesced_threads() {
    return {};
}

template <unsigned Size, class Parent>
thread_block_tile<Size, Parent> tiled_partition(const Parent&) {
    return {};
}

template <class Group>
void sync(const Group& group) {
    group.sync();
}

}  // namespace cooperative_groups

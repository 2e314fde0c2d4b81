// SPDX-License-Identifier: Apache-2.0
// Kernel launches without triple brackets.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string>
#include <utility>

#include "host/cuda/check.hpp"

namespace gimlet {

enum class Cooperative { no, yes };

/// One-dimensional launch. `cooperative` asks CUDA to refuse the launch unless all blocks are
/// resident at once.
struct LaunchShape {
    int grid = 0;                  ///< blocks, >= 1
    int threads = 0;               ///< per block, 1..1024
    std::size_t shared_bytes = 0;  ///< dynamic shared memory per block
    Cooperative cooperative = Cooperative::no;

    std::string text() const;
};

namespace detail {
void check_shape(const LaunchShape& shape, const char* kernel_name, int rank);
void allow_shared_bytes(const void* kernel, std::size_t bytes, const char* kernel_name, int rank);
int blocks_per_sm(const void* kernel, int threads, std::size_t shared_bytes,
                  const char* kernel_name, int rank);
}  // namespace detail

/// Queues `kernel` on `stream`. Opts in to more than 48 KiB of dynamic shared memory by itself.
/// Raises before anything is queued if the shape is impossible.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), const char* kernel_name, const LaunchShape& shape,
            cudaStream_t stream, int rank, Arguments&&... arguments) {
    detail::check_shape(shape, kernel_name, rank);
    detail::allow_shared_bytes(reinterpret_cast<const void*>(kernel), shape.shared_bytes,
                               kernel_name, rank);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.grid), 1, 1);
    config.blockDim = dim3(static_cast<unsigned>(shape.threads), 1, 1);
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = shape.cooperative == Cooperative::yes ? 1 : 0;
    cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...),
               kernel_name, rank);
}

/// Blocks of this kernel that fit one SM at once; 0 means that the shape does not run at all.
template <typename... Parameters>
int resident_blocks_per_sm(void (*kernel)(Parameters...), const char* kernel_name, int threads,
                           std::size_t shared_bytes, int rank = kNoRank) {
    const auto* address = reinterpret_cast<const void*>(kernel);
    detail::allow_shared_bytes(address, shared_bytes, kernel_name, rank);
    return detail::blocks_per_sm(address, threads, shared_bytes, kernel_name, rank);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "device/abi/bench_args.hpp"
#include "device/abi/kernel_plan.hpp"

namespace gimlet {

// One per kernel file; prepare_kernels() calls them all.
cudaError_t prepare_dispatch();
cudaError_t prepare_combine();
cudaError_t prepare_barrier();

// The bench kernels with GIN's code are files of their own.
cudaError_t launch_gin_barrier_bench(BarrierKind kind, const BarrierBenchArgs& args,
                                     const KernelShape& shape, cudaStream_t stream);
cudaError_t launch_gin_put_stream_bench(const PutBenchArgs& args, cudaStream_t stream);
cudaError_t launch_gin_put_round_bench(const PutBenchArgs& args, cudaStream_t stream);

cudaError_t prepare_pipeline_bench();

/// Lets `kernel` use all of the device's opt-in shared memory.
template <typename Args>
cudaError_t raise_shared_limit(void (*kernel)(Args)) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    int bytes = 0;
    if (const cudaError_t error =
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        error != cudaSuccess) {
        return error;
    }
    return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

template <typename Args>
cudaError_t launch(void (*kernel)(Args), const KernelShape& shape, cudaStream_t stream,
                   const Args& args) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.block_count));
    config.blockDim = dim3(static_cast<unsigned>(shape.thread_count));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace gimlet

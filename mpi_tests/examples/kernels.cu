// SPDX-License-Identifier: Apache-2.0
#include "mpi_tests/examples/kernels.hpp"

#include "device/channel/ready.hpp"
#include "device/core/group.hpp"

namespace gimlet::examples {
namespace {

/// Element `i` of the answers.
__device__ void answer(const GemmArgs& args, int i) {
    const int row = i / kServingHidden;
    const int column = i % kServingHidden;
    int local = 0;
    while (local + 1 < args.local_experts && args.expert_ends[local + 1] <= row) ++local;
    float sum = 0;
    for (int k = 0; k < kServingHidden; ++k) {
        sum += args.rows[row * kServingHidden + k] *
               expert_weight(args.first_expert + local, k, column);
    }
    args.answers[i] = sum;
}

/// One thread an output element. The number of rows is read on the device, so that one launch fits
/// every step.
__global__ void expert_gemm(GemmArgs args) {
    const int elements = *args.row_count * kServingHidden;
    const int threads = static_cast<int>(gridDim.x * blockDim.x);
    for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < elements;
         i += threads) {
        answer(args, i);
    }
}

/// Blocks of rows are dealt to blocks of threads. One thread waits, the block's verdict decides.
__global__ void streamed_gemm(StreamedGemmArgs args) {
    auto* const rows = reinterpret_cast<std::int32_t*>(device::dynamic_shared_memory());
    for (int block = static_cast<int>(blockIdx.x); block < args.view.block_count;
         block += static_cast<int>(gridDim.x)) {
        auto status = device::WaitStatus::ok;
        if (threadIdx.x == 0) status = device::wait_block(args.view, block, rows);
        if (!device::block_ok(status)) return;  // the dispatch has failed: so will the next call
        const int first = block * args.view.block_rows * kServingHidden;
        for (int i = static_cast<int>(threadIdx.x); i < *rows * kServingHidden;
             i += static_cast<int>(blockDim.x)) {
            answer(args.gemm, first + i);
        }
        device::block_sync();
    }
}

/// Sums window[0..count) of all ranks into `sums`. One block.
__global__ void sum_gradients(ncclWindow_t window, float* sums, int count, ncclDevComm dev_comm) {
    const ncclCoopCta cta;
    ncclLsaBarrierSession<ncclCoopCta> barrier(cta, dev_comm, ncclTeamTagLsa(), 0);
    barrier.sync(cta, cuda::memory_order_acq_rel);  // everyone's gradients are there
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
        float sum = 0;
        for (int peer = 0; peer < dev_comm.nRanks; ++peer) {
            sum += static_cast<const float*>(ncclGetLsaPointer(window, 0, peer))[i];
        }
        sums[i] = sum;
    }
    barrier.sync(cta, cuda::memory_order_acq_rel);  // everyone has read mine
}

cudaLaunchConfig_t launch_config(unsigned blocks, unsigned threads, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream;
    return config;
}

}  // namespace

cudaError_t launch_expert_gemm(const GemmArgs& args, cudaStream_t stream) {
    const cudaLaunchConfig_t config = launch_config(2, 64, stream);
    return cudaLaunchKernelEx(&config, expert_gemm, args);
}

cudaError_t launch_streamed_gemm(const StreamedGemmArgs& args, cudaStream_t stream) {
    cudaLaunchConfig_t config = launch_config(2, 64, stream);
    config.dynamicSmemBytes = 16;
    return cudaLaunchKernelEx(&config, streamed_gemm, args);
}

cudaError_t launch_sum_gradients(ncclWindow_t window, float* sums, int count,
                                 const ncclDevComm& dev_comm, cudaStream_t stream) {
    const cudaLaunchConfig_t config = launch_config(1, 32, stream);
    return cudaLaunchKernelEx(&config, sum_gradients, window, sums, count, dev_comm);
}

}  // namespace gimlet::examples

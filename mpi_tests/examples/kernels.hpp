// SPDX-License-Identifier: Apache-2.0
// The kernels of the examples. Programs that embed Gimlet keep kernels in .cu files of their own,
// as here: Gimlet's host headers are for the host compiler, nvcc does not read them.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>

#include "device/abi/ready_view.hpp"

namespace gimlet::examples {

inline constexpr int kServingHidden = 16;

/// Entry (column, row) of expert e's matrix: its rows, moved by one element, times 1 or 2.
__host__ __device__ constexpr float expert_weight(int expert, int row, int column) {
    return column == (row + 1) % kServingHidden ? static_cast<float>(1 + expert % 2) : 0.0F;
}

struct GemmArgs {
    const float* rows;                ///< [rows][kServingHidden], received
    float* answers;                   ///< [rows][kServingHidden], the combine's input
    const std::int32_t* row_count;    ///< device: known when the dispatch has run, not before
    const std::int32_t* expert_ends;  ///< device [local + 1]: first row of each expert
    int local_experts;
    int first_expert;
};

/// One grouped GEMM over all received rows. The number of rows is read on the device, so that one
/// launch fits every step.
cudaError_t launch_expert_gemm(const GemmArgs& args, cudaStream_t stream);

struct StreamedGemmArgs {
    ReadyView view;
    GemmArgs gemm;  ///< row_count is not used: the view knows it
};

/// The same over rows that are still coming: each block of threads takes blocks of rows as soon as
/// they are complete. For a stream beside that of the dispatch.
cudaError_t launch_streamed_gemm(const StreamedGemmArgs& args, cudaStream_t stream);

/// Collective on the device: sums window[0..count) of all ranks of the LSA team into `sums`.
cudaError_t launch_sum_gradients(ncclWindow_t window, float* sums, int count,
                                 const ncclDevComm& dev_comm, cudaStream_t stream);

}  // namespace gimlet::examples

// SPDX-License-Identifier: Apache-2.0
//
// A kernel that uses the rows of a dispatch while it runs, as a grouped GEMM would.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "device/abi/ready_view.hpp"

namespace gimlet::sim {

struct ConsumerArgs {
    ReadyView view;
    const std::byte* rows;
    const std::byte* records;
    std::byte* out_rows;  ///< copies, [row_capacity]
    std::byte* out_records;
    std::uint32_t row_bytes;
    std::uint32_t record_bytes;
};

/// Copies block after block of rows, each as soon as it is ready; blocks of rows are dealt to two
/// blocks of threads.
cudaError_t launch_stream_consumer(const ConsumerArgs& args, cudaStream_t stream);

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
//
// Refuses channel options before anything is made of them.
#pragma once

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "host/base/error.hpp"

namespace gimlet {

/// Window bytes of `channel_count` channels of these options. A function of the arguments alone.
/// Raises Error(invalid_argument) that names `what` ("dispatch rail channel"), the values and the
/// rule that they break; Error(overflow) if the bytes do not fit.
std::uint64_t checked_fifo_bytes(const FifoOptions& options, std::uint64_t channel_count,
                                 const char* what, int rank = kNoRank);

/// Shared memory of one pipeline. Raises as above; `shared_limit` is what a block may have.
std::uint32_t checked_pipeline_bytes(const PipelineOptions& options, std::uint32_t shared_limit,
                                     const char* what, int rank = kNoRank);

}  // namespace gimlet

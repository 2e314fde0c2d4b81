// SPDX-License-Identifier: Apache-2.0
//
// When rows get through a pipeline, by a model of latency and bandwidth: what `gimlet bench
// pipeline` prints beside its measurements, and instead of them where time is not a GPU's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/abi/fifo.hpp"

namespace gimlet {

/// One lane copies a row at a time at a fixed rate; a flag is seen a fixed time after it was
/// written; a barrier of everybody takes a fixed time. Nothing else costs anything.
struct PipelineModel {
    double flag_ns = 1000;
    double barrier_ns = 3000;
    double lane_bytes_per_s = 25e9;

    std::string text() const;
};

struct PipelineWork {
    std::int32_t stage_count = 3;
    std::int32_t lane_count = 1;
    std::uint32_t row_bytes = 0;
    std::vector<std::uint32_t> batch_rows;
    FifoOptions fifo{};  ///< of one lane's ring
};

struct PipelineTimes {
    double first_ns = 0;  ///< the last stage may read its first row
    double last_ns = 0;   ///< the last stage has moved its last row
};

/// Stage s moves batch p - s in phase p; a barrier between phases. Pure.
PipelineTimes model_barriers(const PipelineWork& work, const PipelineModel& model);

/// Each lane moves chunks of fifo.send_chunk rows as tails and credits allow. Pure.
PipelineTimes model_fifos(const PipelineWork& work, const PipelineModel& model);

}  // namespace gimlet

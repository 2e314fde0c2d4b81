// SPDX-License-Identifier: Apache-2.0
#include "runtime/pipeline_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace gimlet {
namespace {

double row_ns(const PipelineWork& work, const PipelineModel& model) {
    return work.row_bytes / model.lane_bytes_per_s * 1e9;
}

/// Rows of the busiest lane.
std::uint32_t lane_rows(const PipelineWork& work, std::uint32_t rows) {
    const auto lanes = static_cast<std::uint32_t>(work.lane_count);
    return (rows + lanes - 1) / lanes;
}

/// What one stage has done, chunk by chunk.
struct Stage {
    std::vector<double> done_ns;           ///< chunk k is published (or moved to the target)
    std::vector<std::uint32_t> told_rows;  ///< freed rows that the sender knows of, after chunk k
    std::uint32_t untold = 0;
    std::size_t credit = 0;  ///< the chunk whose head the sender before found last
};

}  // namespace

std::string PipelineModel::text() const {
    return fmt::format(
        "model: a lane copies {:.1f} GB/s, a flag takes {:.2f} us, a barrier {:.2f} us",
        lane_bytes_per_s * 1e-9, flag_ns * 1e-3, barrier_ns * 1e-3);
}

PipelineTimes model_barriers(const PipelineWork& work, const PipelineModel& model) {
    const auto batches = static_cast<std::int32_t>(work.batch_rows.size());
    const std::int32_t phases = batches + work.stage_count - 1;
    PipelineTimes out;
    for (std::int32_t phase = 0; phase < phases; ++phase) {
        if (phase > 0) out.last_ns += model.barrier_ns;
        if (phase == work.stage_count - 1) out.first_ns = out.last_ns;
        std::uint32_t most = 0;
        for (std::int32_t stage = 0; stage < work.stage_count; ++stage) {
            const std::int32_t batch = phase - stage;
            if (batch >= 0 && batch < batches)
                most = std::max(most, work.batch_rows[static_cast<std::size_t>(batch)]);
        }
        out.last_ns += lane_rows(work, most) * row_ns(work, model);
    }
    return out;
}

PipelineTimes model_fifos(const PipelineWork& work, const PipelineModel& model) {
    const FifoOptions& fifo = work.fifo;
    const std::uint32_t rows = lane_rows(
        work, std::accumulate(work.batch_rows.begin(), work.batch_rows.end(), std::uint32_t{0}));
    const std::uint32_t chunks = (rows + fifo.send_chunk - 1) / fifo.send_chunk;
    std::vector<Stage> stages(static_cast<std::size_t>(work.stage_count));
    PipelineTimes out;
    for (std::uint32_t k = 0; k < chunks; ++k) {
        const std::uint32_t end = std::min(rows, (k + 1) * fifo.send_chunk);
        const std::uint32_t count = end - k * fifo.send_chunk;
        for (std::size_t s = 0; s < stages.size(); ++s) {
            Stage& stage = stages[s];
            double start = k > 0 ? stage.done_ns[k - 1] : 0;
            if (s > 0) start = std::max(start, stages[s - 1].done_ns[k] + model.flag_ns);
            if (s + 1 == stages.size() && k == 0) out.first_ns = start;
            if (s + 1 < stages.size() && end > fifo.capacity) {
                Stage& next = stages[s + 1];
                while (next.told_rows[next.credit] < end - fifo.capacity) ++next.credit;
                start = std::max(start, next.done_ns[next.credit] + model.flag_ns);
            }
            stage.done_ns.push_back(start + count * row_ns(work, model));
            stage.untold += count;
            if (stage.untold >= fifo.head_every) stage.untold = 0;
            stage.told_rows.push_back(end - stage.untold);
        }
    }
    if (chunks > 0) out.last_ns = stages.back().done_ns.back();
    return out;
}

}  // namespace gimlet

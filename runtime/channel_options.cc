// SPDX-License-Identifier: Apache-2.0
#include "runtime/channel_options.hpp"

#include "host/base/checked_math.hpp"

namespace gimlet {
namespace {

ErrorCode code_of(FifoRule rule) {
    return rule == FifoRule::too_many_bytes ? ErrorCode::overflow : ErrorCode::invalid_argument;
}

}  // namespace

std::uint64_t checked_fifo_bytes(const FifoOptions& options, std::uint64_t channel_count,
                                 const char* what, int rank) {
    const FifoRule rule = options.broken_rule();
    if (rule != FifoRule::none) {
        raise(code_of(rule), rank,
              "{}: {}; got capacity {}, slot_bytes {}, send_chunk {}, receive_chunk {}, "
              "head_every {}",
              what, text_of(rule), options.capacity, options.slot_bytes, options.send_chunk,
              options.receive_chunk, options.head_every);
    }
    return checked_mul(channel_count, FifoLayout::build(options).total_bytes, what, rank);
}

std::uint32_t checked_pipeline_bytes(const PipelineOptions& options, std::uint32_t shared_limit,
                                     const char* what, int rank) {
    const FifoRule rule = options.broken_rule();
    if (rule != FifoRule::none) {
        raise(code_of(rule), rank, "{}: {}; got stage_count {}, stage_bytes {}", what,
              text_of(rule), options.stage_count, options.stage_bytes);
    }
    if (options.total_bytes() > shared_limit) {
        raise(ErrorCode::overflow, rank,
              "{}: {} stages of {} bytes need {} bytes of shared memory, a block has {}; use fewer "
              "or smaller stages",
              what, options.stage_count, options.stage_bytes, options.total_bytes(), shared_limit);
    }
    return options.total_bytes();
}

}  // namespace gimlet

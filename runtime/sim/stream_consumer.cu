// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/stream_consumer.hpp"

#include "device/channel/ready.hpp"

namespace gimlet::sim {
namespace {

using namespace gimlet::device;

GIMLET_DEVICE void copy_words(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    GIMLET_ROLLED
    for (std::uint64_t i = static_cast<std::uint64_t>(thread_index()) * 4; i < bytes;
         i += static_cast<std::uint64_t>(block_threads()) * 4) {
        *reinterpret_cast<std::uint32_t*>(to + i) =
            *reinterpret_cast<const std::uint32_t*>(from + i);
    }
}

GIMLET_GLOBAL void consume(const GIMLET_GRID_CONSTANT ConsumerArgs args) {
    auto* shared = reinterpret_cast<std::int32_t*>(dynamic_shared_memory());
    GIMLET_ROLLED
    for (std::int32_t block = block_index(); block < args.view.block_count;
         block += block_count()) {
        WaitStatus status = WaitStatus::ok;
        if (thread_index() == 0) status = wait_block(args.view, block, shared);
        if (!block_ok(status)) return;
        const auto rows = static_cast<std::uint64_t>(*shared);
        const std::uint64_t first =
            static_cast<std::uint64_t>(block) * static_cast<std::uint64_t>(args.view.block_rows);
        copy_words(args.out_rows + first * args.row_bytes, args.rows + first * args.row_bytes,
                   rows * args.row_bytes);
        copy_words(args.out_records + first * args.record_bytes,
                   args.records + first * args.record_bytes, rows * args.record_bytes);
        block_sync();
    }
}

}  // namespace

cudaError_t launch_stream_consumer(const ConsumerArgs& args, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2);
    config.blockDim = dim3(32);
    config.dynamicSmemBytes = 16;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, consume, args);
}

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
// Rows through FIFO channels between processes, kernel after kernel on the same rings.
#include <algorithm>
#include <vector>

#include "device/kernels/launch.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "mpi_tests/cases/support.hpp"
#include "runtime/channel_options.hpp"
#include "runtime/core.hpp"
#include "runtime/health.hpp"

namespace gimlet::mpi_tests {
namespace {

constexpr std::uint32_t kRowBytes = 208;
constexpr std::uint32_t kKeptRows = 64;

struct Rows {
    int stages;
    int lanes;
    FifoOptions fifo;
    std::vector<std::uint32_t> batches;
};

std::uint32_t word_of(std::uint32_t row, std::uint32_t word) {
    return (row * 2654435761u + word * 97u) | 1u;
}

/// A window with a source, rings (or batch buffers) and a target.
class RowsWorld {
  public:
    RowsWorld(CaseContext& context, std::uint64_t buffer_bytes)
        : context_(context), error_(1, context.rank()) {
        Runtime& runtime = context.runtime();
        device_comm_ = DeviceCommunicator::create(runtime.communicator(), DeviceCommRequest{});
        WorkspaceShape shape{};
        shape.rank_count = context.size();
        WindowLayout layout;
        layout.add("workspace", WorkspaceLayout::build(shape).total_bytes, kRegionAlignment);
        layout.add("source", kKeptRows * kRowBytes, kRegionAlignment);
        layout.add("target", kKeptRows * kRowBytes, kRegionAlignment);
        layout.add("buffers", buffer_bytes, kRegionAlignment);
        window_ = SymmetricWindow::create(runtime.communicator(), layout);
        peers_ = make_peer_handles(runtime.topology(), *device_comm_, *window_, shape,
                                   runtime.deadline_ns(), error_.device());
        cuda_check(prepare_bench_kernels(), "prepare_bench_kernels", context.rank());
        std::vector<std::uint32_t> content(std::size_t{kKeptRows} * (kRowBytes / 4));
        for (std::size_t i = 0; i < content.size(); ++i) content[i] = expected(i);
        cuda_check(cudaMemcpy(window_->local(offset("source")), content.data(), content.size() * 4,
                              cudaMemcpyHostToDevice),
                   "cudaMemcpy", context.rank());
    }
    void close() {
        context_.bootstrap().barrier();
        window_->close();
        device_comm_->close();
    }

    /// Collective: all rows once, and a look at what came out.
    void run(PipelineSync sync, const Rows& rows, std::uint64_t first_epoch) {
        const int places = (rows.stages + context_.size() - 1) / context_.size();
        MappedBuffer<PipelineLaneRecord> records(static_cast<std::size_t>(places * rows.lanes),
                                                 context_.rank());
        PipelineBenchArgs args{};
        args.peers = peers_;
        args.fifo = rows.fifo;
        args.records = records.device();
        args.source_offset = offset("source");
        args.target_offset = offset("target");
        args.buffer_offset = offset("buffers");
        args.first_epoch = first_epoch;
        args.sync = sync;
        args.stage_count = rows.stages;
        args.lane_count = rows.lanes;
        args.slot_count = 2;
        args.row_bytes = kRowBytes;
        args.kept_rows = kKeptRows;
        args.batch_count = static_cast<std::uint32_t>(rows.batches.size());
        std::copy(rows.batches.begin(), rows.batches.end(), args.batch_rows);
        const Stream stream = Stream::create(context_.rank());
        cuda_check(cudaMemsetAsync(window_->local(offset("target")), 0, kKeptRows * kRowBytes,
                                   stream.get()),
                   "cudaMemsetAsync", context_.rank());
        cuda_check(launch_pipeline_bench(args, stream.get()), "launch_pipeline_bench",
                   context_.rank());
        stream.synchronize();
        if (const auto error = read_device_error(error_.host()))
            raise_text(error_code_of(error->fault), context_.rank(), describe(*error));
        check(rows);
    }

  private:
    static std::uint32_t expected(std::size_t i) {
        return word_of(static_cast<std::uint32_t>(i) / (kRowBytes / 4),
                       static_cast<std::uint32_t>(i) % (kRowBytes / 4));
    }
    std::uint64_t offset(const char* region) const {
        return window_->layout().region(region).offset_bytes;
    }
    void check(const Rows& rows) {
        if (context_.rank() != (rows.stages - 1) % context_.size()) return;
        std::uint32_t count = 0;
        for (const std::uint32_t batch : rows.batches) count += batch;
        std::vector<std::uint32_t> seen(std::size_t{std::min(count, kKeptRows)} * (kRowBytes / 4));
        if (seen.empty()) return;
        cuda_check(cudaMemcpy(seen.data(), window_->local(offset("target")), seen.size() * 4,
                              cudaMemcpyDeviceToHost),
                   "cudaMemcpy", context_.rank());
        for (std::size_t i = 0; i < seen.size(); ++i) {
            if (seen[i] == expected(i)) continue;
            context_.expect(
                false, fmt::format("word {} of row {}", i % (kRowBytes / 4), i / (kRowBytes / 4)));
            return;
        }
    }

    CaseContext& context_;
    MappedBuffer<DeviceError> error_;
    std::unique_ptr<DeviceCommunicator> device_comm_;
    std::unique_ptr<SymmetricWindow> window_;
    PeerHandles peers_{};
};

void rows_through(CaseContext& context, PipelineSync sync, const FifoOptions& fifo) {
    if (context.runtime().topology().lsa_size < context.size())
        throw Skip{"needs all ranks in one LSA team"};
    constexpr int kStages = 3;
    constexpr int kLanes = 2;
    const std::uint64_t channels = kStages * kLanes;
    RowsWorld world(context, std::max(checked_fifo_bytes(fifo, channels, "test channels"),
                                      std::uint64_t{kStages} * 2 * 200 * kRowBytes));
    std::uint64_t epoch = 1;
    // Rings keep their positions from kernel to kernel.
    for (int i = 0; i < context.repeats(20, 3); ++i) {
        for (const std::vector<std::uint32_t>& batches :
             {std::vector<std::uint32_t>{0}, {1}, {61}, {100, 0, 30, 7}}) {
            world.run(sync, {kStages, kLanes, fifo, batches}, epoch);
            epoch += batches.size() + kStages + 1;
        }
    }
    world.close();
}

}  // namespace

void add_channel_cases(std::vector<Case>* cases) {
    const auto add = [cases](const char* name, PipelineSync sync, const FifoOptions& fifo) {
        cases->push_back(
            {name, 1, [sync, fifo](CaseContext& context) { rows_through(context, sync, fifo); }});
    };
    add("channels/fifo of 7 slots, lazy heads", PipelineSync::fifo,
        {FifoLink::lsa, 7, kRowBytes, 3, 1, 3});
    add("channels/fifo of 1 slot", PipelineSync::fifo, {FifoLink::lsa, 1, kRowBytes, 1, 1, 1});
    add("channels/the same rows led by barriers", PipelineSync::barrier,
        {FifoLink::lsa, 1, kRowBytes, 1, 1, 1});
}

}  // namespace gimlet::mpi_tests

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "device/kernels/launch.hpp"
#include "host/base/version.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/poll.hpp"
#include "runtime/cli/bench_cases.hpp"
#include "runtime/health.hpp"
#include "runtime/plan.hpp"

namespace gimlet::cli {

BenchWorld::BenchWorld(Runtime& runtime, std::uint64_t data_bytes, int gin_contexts)
    : runtime_(runtime), error_(1, runtime.rank()), time_(1, runtime.rank()) {
    const Topology& topology = runtime.topology();
    DeviceCommRequest request;
    request.lsa_barrier_count = 1;
    if (topology.gin_type != GinType::none && topology.size > 1) {
        request.gin_connection = GinConnection::full;
        request.gin_context_count = gin_contexts;
        request.gin_signal_count = static_cast<int>(SignalMap{topology.size}.signal_count());
        request.world_gin_barrier_count = 1;
    }
    device_comm_ = DeviceCommunicator::create(runtime.communicator(), request);
    const int made = std::min(request.gin_context_count, device_comm_->gin_context_count());
    const auto all = runtime.bootstrap().all_gather_values(made);
    const WorkspaceShape shape =
        WorkspaceShape::for_barriers(topology.size, *std::min_element(all.begin(), all.end()));
    WindowLayout layout;
    layout.add("workspace", WorkspaceLayout::build(shape).total_bytes, kRegionAlignment);
    layout.add("source", data_bytes, kRegionAlignment);
    layout.add("target", data_bytes, kRegionAlignment);
    layout.add("flags", static_cast<std::uint64_t>(topology.size) * 8, kRegionAlignment);
    window_ = SymmetricWindow::create(runtime.communicator(), layout);
    peers_ = make_peer_handles(topology, *device_comm_, *window_, shape, runtime.deadline_ns(),
                               error_.device());
    cuda_check(prepare_bench_kernels(), "prepare_bench_kernels", runtime.rank());
}

void BenchWorld::close() {
    runtime_.bootstrap().barrier();
    window_->close();
    device_comm_->close();
}

int BenchWorld::blocks(int wanted) const {
    const SmShare share = smallest_sm_share(runtime_.topology(), runtime_.device());
    if (wanted > share.sm_count) {
        raise(ErrorCode::invalid_argument, runtime_.rank(),
              "--sms {}: {} ranks share a GPU and each can have {} SMs resident{}; lower --sms or "
              "spread the ranks",
              wanted, share.ranks_on_gpu, share.sm_count, share.copier_text());
    }
    return wanted > 0 ? wanted : share.sm_count;
}

std::uint64_t BenchWorld::take_epochs(std::uint64_t count) {
    const std::uint64_t first = next_epoch_;
    next_epoch_ += count;
    return first;
}

BenchTime BenchWorld::finish(const Stream& stream) {
    wait_stream(stream.get(), host_deadline_ns(runtime_.deadline_ns()), "a bench kernel",
                runtime_.rank());
    if (const auto error = read_device_error(error_.host()))
        raise_text(error_code_of(error->fault), runtime_.rank(), describe(*error));
    // The next kernel may not run on this rank.
    return std::exchange(*time_.host(), BenchTime{});
}

std::vector<double> slowest_rank(Bootstrap& bootstrap, const std::vector<double>& mine) {
    const std::vector<std::byte> all =
        bootstrap.all_gather(mine.data(), mine.size() * sizeof(double));
    const auto* values = reinterpret_cast<const double*>(all.data());
    std::vector<double> out(mine.size(), 0);
    const std::size_t count = mine.size() * static_cast<std::size_t>(bootstrap.size());
    for (std::size_t i = 0; i < count; ++i)
        out[i % mine.size()] = std::max(out[i % mine.size()], values[i]);
    return out;
}

nlohmann::json line_of(const std::string& name, const Runtime& runtime) {
    return {{"case", name},
            {"ranks", runtime.size()},
            {"lsa_size", runtime.topology().lsa_size},
            {"device", runtime.device().name},
            {"commit", git_hash()}};
}

}  // namespace gimlet::cli

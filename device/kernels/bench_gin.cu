// SPDX-License-Identifier: Apache-2.0
// The bench kernels that contain GIN's code.
#include <cuda/atomic>

#include "device/channel/aggregated_put.hpp"
#include "device/kernels/bench_barrier.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/sync/gpu_barrier.hpp"
#include "device/sync/signal_shadow.hpp"

namespace gimlet {
namespace device {
namespace {

GIMLET_GLOBAL void gin_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    time_barriers(args, [&](const WaitScope& scope) {
        return gin_barrier(args.peers, GinTeam::world, GinContexts::only(0), scope);
    });
}

GIMLET_GLOBAL void nccl_gin_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    ncclGinBarrierSession<ncclCoopCta> session(ncclCoopCta(), gin_context(args.peers, 0),
                                               ncclTeamTagWorld(), 0);
    // Put is what gin_barrier promises: that the members' earlier puts are here.
    time_barriers(args, [&](const WaitScope&) {
        session.sync(ncclCoopCta(), cuda::memory_order_acq_rel, ncclGinFenceLevel::Put);
        return true;
    });
}

GIMLET_GLOBAL void gpu_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    time_barriers(args, [&](const WaitScope& scope) {
        return gpu_barrier(args.peers, GpuBarrierOptions{}, scope);
    });
}

GIMLET_DEVICE WaitScope put_scope(const PutBenchArgs& args, std::uint64_t round) {
    auto* const epochs = local_word<EpochWords>(args.peers, args.peers.layout.epochs);
    return wait_scope(args.peers, Tag::user, Primitive::user, args.first_epoch + round,
                      &epochs->barrier_poison);
}

/// Rounds of: `put_count` puts to one rank, the last with a strong signal; wait for the puts of
/// another rank. Warp w works on context w by its first lane.
GIMLET_GLOBAL void put_stream_kernel(const GIMLET_GRID_CONSTANT PutBenchArgs args) {
    const PeerHandles& peers = args.peers;
    if (!elect() || warp_index() >= args.context_count) return;
    const SignalMap map{peers.rank_count};
    const ncclGin gin = gin_context(peers, warp_index());
    const SignalShadow shadow(peers);
    BenchTimer timer;
    WaitStatus status = WaitStatus::ok;
    AggregatedPut batch(gin, world_team(peers), args.to_rank, peers.window);
    for (std::int32_t round = 0;
         round < args.warmup_count + args.round_count && status == WaitStatus::ok; ++round) {
        if (round == args.warmup_count) timer.start();
        for (std::int32_t i = 0; i < args.put_count; ++i) {
            batch.put(args.target_offset, args.source_offset, args.bytes);
            if (args.path == PutPath::gin_single && i + 1 < args.put_count) batch.close();
        }
        batch.close(ncclGin_StrongSignalAdd{map.dispatch_arrival(peers.rank), 1});
        const std::uint32_t signal = map.dispatch_arrival(args.from_rank);
        status = shadow.wait_meet(put_scope(args, static_cast<std::uint64_t>(round)),
                                  args.from_rank, warp_index(), signal, 1);
        shadow.advance(warp_index(), signal, 1);
    }
    if (status == WaitStatus::ok && warp_index() == 0) timer.stop(args.time);
    gin.flush(ncclCoopThread{});
}

/// Rounds of: one rank puts with a weak signal, its partner waits and does the same. `to_rank` and
/// `from_rank` are the partner; the lower rank begins. One thread.
GIMLET_GLOBAL void put_round_kernel(const GIMLET_GRID_CONSTANT PutBenchArgs args) {
    const PeerHandles& peers = args.peers;
    if (thread_index() != 0) return;
    const SignalMap map{peers.rank_count};
    const ncclGin gin = gin_context(peers, 0);
    const SignalShadow shadow(peers);
    const std::uint32_t signal = map.count_row(args.from_rank);
    const bool begins = peers.rank < args.to_rank;
    BenchTimer timer;
    WaitStatus status = WaitStatus::ok;
    AggregatedPut batch(gin, world_team(peers), args.to_rank, peers.window);
    const auto send = [&] {
        batch.put(args.target_offset, args.source_offset, args.bytes);
        batch.close(ncclGin_WeakSignalAdd{map.count_row(peers.rank), 1});
    };
    for (std::int32_t round = 0;
         round < args.warmup_count + args.round_count && status == WaitStatus::ok; ++round) {
        if (round == args.warmup_count) timer.start();
        if (begins) send();
        status = shadow.wait_meet(put_scope(args, static_cast<std::uint64_t>(round)),
                                  args.from_rank, 0, signal, 1);
        shadow.advance(0, signal, 1);
        if (!begins && status == WaitStatus::ok) send();
    }
    if (status == WaitStatus::ok) timer.stop(args.time);
    gin.flush(ncclCoopThread{});
}

}  // namespace
}  // namespace device

cudaError_t launch_gin_barrier_bench(BarrierKind kind, const BarrierBenchArgs& args,
                                     const KernelShape& shape, cudaStream_t stream) {
    switch (kind) {
        case BarrierKind::gin: return launch(device::gin_kernel, shape, stream, args);
        case BarrierKind::nccl_gin: return launch(device::nccl_gin_kernel, shape, stream, args);
        case BarrierKind::gpu: return launch(device::gpu_kernel, shape, stream, args);
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_gin_put_stream_bench(const PutBenchArgs& args, cudaStream_t stream) {
    KernelShape shape{};
    shape.block_count = 1;
    shape.thread_count = kWarpSize * args.context_count;
    return launch(device::put_stream_kernel, shape, stream, args);
}

cudaError_t launch_gin_put_round_bench(const PutBenchArgs& args, cudaStream_t stream) {
    KernelShape shape{};
    shape.block_count = 1;
    shape.thread_count = kWarpSize;
    return launch(device::put_round_kernel, shape, stream, args);
}

}  // namespace gimlet

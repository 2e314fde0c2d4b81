// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/bench_barrier.hpp"

#include <cuda/atomic>

#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/sync/grid_barrier.hpp"
#include "device/sync/nvlink_barrier.hpp"

namespace gimlet {
namespace device {
namespace {

GIMLET_GLOBAL void grid_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    auto* const word = local_word<std::uint32_t>(args.peers, args.peers.layout.grid_barrier);
    time_barriers(args, [&](const WaitScope& scope) { return grid_barrier(word, scope); });
}

GIMLET_GLOBAL void nvlink_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    // As NCCL's: one session for all barriers.
    NvlinkBarrier barrier(args.peers);
    time_barriers(args, [&](const WaitScope& scope) { return barrier.meet(scope); });
}

GIMLET_GLOBAL void nccl_lsa_kernel(const GIMLET_GRID_CONSTANT BarrierBenchArgs args) {
    ncclLsaBarrierSession<ncclCoopCta> session(ncclCoopCta(), args.peers.dev_comm, ncclTeamTagLsa(),
                                               0);
    time_barriers(args, [&](const WaitScope&) {
        session.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
        return true;
    });
}

}  // namespace
}  // namespace device

cudaError_t launch_barrier_bench(BarrierKind kind, const BarrierBenchArgs& args,
                                 const KernelShape& shape, cudaStream_t stream) {
    switch (kind) {
        case BarrierKind::grid: return launch(device::grid_kernel, shape, stream, args);
        case BarrierKind::nvlink: return launch(device::nvlink_kernel, shape, stream, args);
        case BarrierKind::nccl_lsa: return launch(device::nccl_lsa_kernel, shape, stream, args);
        case BarrierKind::gin:
        case BarrierKind::nccl_gin:
        case BarrierKind::gpu: return launch_gin_barrier_bench(kind, args, shape, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace gimlet

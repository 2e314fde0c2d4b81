// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/kernels/report_board.hpp"
#include "device/sync/gpu_barrier.hpp"

namespace gimlet {
namespace device {
namespace {

/// `repeat_count` barriers of the world, back to back. Stops at the first that fails. All ranks end
/// at the first expiry, and when one refuses.
GIMLET_GLOBAL void barrier_kernel(const GIMLET_GRID_CONSTANT BarrierArgs args) {
    auto* epochs = local_word<EpochWords>(args.peers, args.peers.layout.epochs);
    const std::uint64_t first = epochs->barrier + 1;
    const auto scope_of = [&](std::int32_t i) {
        const std::uint64_t epoch = first + static_cast<std::uint64_t>(i);
        WaitScope scope =
            wait_scope(args.peers, Tag::barrier, Primitive::none, epoch, &epochs->barrier_poison);
        scope.group = &args.peers;
        scope.step = epoch;
        return scope;
    };
    bool good = !block_any(failed_before(epochs));
    if (good && args.refuse != 0) {
        good = false;
        if (thread_index() == 0) refuse_step(scope_of(0), -1, DeviceFault::host_refused);
    }
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < args.repeat_count && good; ++i)
        good = gpu_barrier(args.peers, GpuBarrierOptions{}, scope_of(i));
    // Every block has read the epoch: it has been through a grid barrier since, or the step has
    // failed for all.
    if (block_index() != 0) return;
    close_step<Reach::gin>(args.peers, epochs, Tag::barrier, first, !good);
    if (thread_index() == 0) {
        epochs->barrier = first + static_cast<std::uint64_t>(args.repeat_count) - 1;
    }
}

}  // namespace
}  // namespace device

cudaError_t prepare_barrier() {
    return raise_shared_limit(device::barrier_kernel);
}

cudaError_t launch_barrier(const BarrierArgs& args, const KernelShape& shape, cudaStream_t stream) {
    return launch(device::barrier_kernel, shape, stream, args);
}

}  // namespace gimlet

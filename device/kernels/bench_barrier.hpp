// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/bench_timer.hpp"

namespace gimlet::device {

/// Calls `bool meet(const WaitScope&)` again and again, and takes the time of all but the first
/// `warmup_count`, in which ranks and blocks catch up with each other. Stops at the first failure.
/// All threads of the grid.
template <class Meet>
GIMLET_DEVICE void time_barriers(const BarrierBenchArgs& args, Meet&& meet) {
    auto* const epochs = local_word<EpochWords>(args.peers, args.peers.layout.epochs);
    const std::int32_t count = args.warmup_count + args.repeat_count;
    BenchTimer timer;
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < count && good; ++i) {
        if (i == args.warmup_count) timer.start();
        const WaitScope scope =
            wait_scope(args.peers, Tag::barrier, Primitive::none,
                       args.first_epoch + static_cast<std::uint64_t>(i), &epochs->barrier_poison);
        good = meet(scope);
    }
    if (good && block_index() == 0 && thread_index() == 0) timer.stop(args.time);
}

}  // namespace gimlet::device

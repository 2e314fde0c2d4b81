// SPDX-License-Identifier: Apache-2.0
#include "device/channel/context_map.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/sync/signal_shadow.hpp"

// After a failure: who says what, and a clean start.
namespace gimlet {
namespace device {
namespace {

/// One thread: copies a record of the board, `state` last.
GIMLET_DEVICE void copy_record(DeviceError* to, const std::uint64_t* from) {
    constexpr int kWords = static_cast<int>(sizeof(DeviceError) / 8);
    auto* words = reinterpret_cast<std::uint64_t*>(to);
    GIMLET_ROLLED
    for (int i = 1; i < kWords; ++i) words[i] = load_relaxed<Scope::system>(from + i);
    store_release<Scope::system>(words, load_relaxed<Scope::system>(from));
}

/// One block; thread r waits for the record of rank r, until the grace is over.
GIMLET_GLOBAL void collect_kernel(const GIMLET_GRID_CONSTANT CollectArgs args) {
    const PeerHandles& peers = args.peers;
    const SignalShadow shadow(peers);
    const ContextMap contexts{peers.gin_context_count};
    const WaitScope scope{args.grace_ns, nullptr,      nullptr,        1,
                          peers.rank,    Tag::recover, Primitive::none};
    GIMLET_ROLLED
    for (std::int32_t rank = thread_index(); rank < peers.rank_count; rank += block_threads()) {
        const auto* entry =
            local_word<std::uint64_t>(peers, peers.layout.reports,
                                      static_cast<std::uint64_t>(rank) * sizeof(DeviceError) / 8);
        WaitStatus status = WaitStatus::ok;
        if (is_excluded(peers, rank)) continue;
        if (is_lsa_peer(peers, rank)) {
            status = wait_until(scope, WaitTarget{rank, -1, 0}, [&](std::uint64_t& seen) {
                seen = load_acquire<Scope::system>(entry);
                return static_cast<std::uint32_t>(seen) == kDeviceErrorComplete;
            });
        } else if (!is_gin_peer(peers, rank)) {
            continue;  // rails only: the report goes to its team and its rail
        } else {
            status = shadow.wait_meet(scope, rank, contexts.notify_context(),
                                      SignalMap{peers.rank_count}.report(rank), 1);
        }
        if (status == WaitStatus::ok) copy_record(args.records + rank, entry);
    }
}

template <typename T>
GIMLET_DEVICE void fill(const PeerHandles& peers, std::uint64_t offset, std::uint64_t count,
                        T value) {
    T* words = local_word<T>(peers, offset);
    GIMLET_ROLLED
    for (std::uint64_t i = static_cast<std::uint64_t>(thread_index()); i < count;
         i += static_cast<std::uint64_t>(block_threads())) {
        words[i] = value;
    }
}

GIMLET_DEVICE void reset_rings(const PeerHandles& peers, std::uint64_t base, std::int32_t count,
                               std::uint64_t bytes, std::uint64_t position) {
    // Where the words are does not depend on the slots.
    constexpr FifoLayout ring = FifoLayout::build(FifoOptions{FifoLink::lsa, 1, 16, 1, 1, 1});
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < count; i += block_threads()) {
        const std::uint64_t at = base + static_cast<std::uint64_t>(i) * bytes;
        *local_word<std::uint64_t>(peers, at + ring.head) = position;
        *local_word<std::uint64_t>(peers, at + ring.tail) = position;
        FifoCursor cursor{};
        cursor.position = cursor.told = position;
        *local_word<FifoCursor>(peers, at + ring.sender) = cursor;
        *local_word<FifoCursor>(peers, at + ring.receiver) = cursor;
    }
}

/// Rings are empty, with both ends at `position`: an arbitrary number, the same on all ranks. Of
/// rail rings, what tails and heads amount to is kept with the signals.
GIMLET_DEVICE void reset_rings(const PeerHandles& peers, std::uint64_t position) {
    reset_rings(peers, peers.layout.stream_rings, peers.shape.stream_ring_count,
                peers.shape.stream_ring_bytes, position);
    reset_rings(peers, peers.layout.stream_rails, peers.shape.stream_rail_count,
                peers.shape.stream_rail_bytes, position);
}

/// Every control word but the signals' shadows. Peers' flags get the new epochs, tags of count rows
/// too: what an aborted step left cannot be taken for a step to come.
GIMLET_DEVICE void reset_words(const RecoverArgs& args) {
    const PeerHandles& peers = args.peers;
    const WorkspaceLayout& layout = peers.layout;
    const WorkspaceShape& shape = peers.shape;
    const auto ranks = static_cast<std::uint64_t>(peers.rank_count);
    const std::uint64_t tag = args.dispatch_epoch << 32;
    fill<std::uint64_t>(peers, layout.nvlink_counter, 1, 0);
    fill<std::uint32_t>(peers, layout.nvlink_flags, ranks, 0);
    fill<std::uint32_t>(peers, layout.block_barrier, ranks, 0);
    fill<std::uint64_t>(peers, layout.count_rows,
                        kBufferCount * ranks * static_cast<std::uint64_t>(shape.count_row_words()),
                        tag);
    fill<std::uint64_t>(peers, layout.count_rail,
                        kBufferCount * static_cast<std::uint64_t>(shape.rail_team_count) *
                            static_cast<std::uint64_t>(shape.count_row_words()),
                        tag);
    fill<std::uint64_t>(peers, layout.block_counts,
                        kBufferCount * static_cast<std::uint64_t>(shape.block_count) *
                            static_cast<std::uint64_t>(shape.block_row_words()),
                        tag);
    fill<std::uint64_t>(peers, layout.dispatch_arrival, ranks, args.dispatch_epoch);
    fill<std::uint64_t>(peers, layout.combine_ready, ranks, args.combine_epoch);
    fill<std::uint32_t>(peers, layout.grid_barrier, 1, 0);
    fill<std::uint32_t>(peers, layout.send_chunks, static_cast<std::uint64_t>(shape.chunk_slots),
                        0);
    fill<std::uint64_t>(peers, layout.stream_ends,
                        static_cast<std::uint64_t>(shape.stream_ring_count), tag);
    fill<std::uint32_t>(
        peers, layout.ready_rows,
        std::uint64_t{kReadySets} * static_cast<std::uint64_t>(shape.ready_block_count), 0);
    reset_rings(peers, args.dispatch_epoch);
    // Not report_send: own puts from there have landed when all ranks are here, and no sooner.
    fill<std::uint64_t>(peers, layout.reports, ranks * sizeof(DeviceError) / 8, 0);
    fill<std::uint64_t>(peers, layout.alarm, 1, 0);
    if (thread_index() != 0) return;
    auto* epochs = local_word<EpochWords>(peers, layout.epochs);
    *epochs = EpochWords{};
    epochs->dispatch = epochs->dispatch_poison = args.dispatch_epoch;
    epochs->combine = epochs->combine_poison = args.combine_epoch;
    epochs->barrier = epochs->barrier_poison = args.barrier_epoch;
    auto* excluded = local_word<std::uint64_t>(peers, layout.excluded);
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < kRankSetWords; ++i) {
        excluded[i] = args.excluded[i];
        epochs->excluded_count += static_cast<std::uint32_t>(__popcll(args.excluded[i]));
    }
}

GIMLET_DEVICE bool named(const RecoverArgs& args, std::int32_t rank) {
    return (args.excluded[rank / 64] >> (rank % 64) & 1u) != 0;
}

/// Drives out what an aborted step left on the way: a strong signal on each context comes after all
/// earlier puts and signals. Its sum is the number of the recovery, so that one which failed
/// half-way does no harm to the next. Block-uniform verdict.
GIMLET_DEVICE bool fence_network(const RecoverArgs& args, const WaitScope& scope) {
    const PeerHandles& peers = args.peers;
    const SignalMap map{peers.rank_count};
    const SignalShadow shadow(peers);
    const std::int32_t pairs = peers.rank_count * peers.gin_context_count;
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < pairs; i += block_threads()) {
        const std::int32_t peer = i % peers.rank_count;
        if (!is_gin_peer(peers, peer) || named(args, peer)) continue;
        gin_context(peers, i / peers.rank_count)
            .signal(world_team(peers), peer,
                    ncclGin_StrongSignalAdd{map.fence(peers.rank), args.fence_delta});
    }
    WaitStatus status = WaitStatus::ok;
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < pairs && status == WaitStatus::ok;
         i += block_threads()) {
        const std::int32_t peer = i % peers.rank_count;
        if (!is_gin_peer(peers, peer) || named(args, peer)) continue;
        status = shadow.wait_meet(scope, peer, i / peers.rank_count, map.fence(peer), args.fence);
    }
    return block_ok(status);
}

/// One block. Every rank has stopped its kernels. Behind the fence the signals are taken as they
/// stand; the fence's own words keep the sum that the signals started from.
GIMLET_GLOBAL void recover_kernel(const GIMLET_GRID_CONSTANT RecoverArgs args) {
    const PeerHandles& peers = args.peers;
    const WaitScope scope =
        wait_scope(peers, Tag::recover, Primitive::gin_barrier, args.fence, nullptr);
    if (args.fence > 0 && !fence_network(args, scope)) return;
    const SignalMap map{peers.rank_count};
    const SignalShadow shadow(peers);
    const auto count = static_cast<std::int32_t>(peers.shape.signal_count());
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < peers.gin_context_count * count;
         i += block_threads()) {
        const auto signal = static_cast<std::uint32_t>(i % count);
        const bool fence = signal >= map.fence(0) && signal < map.fence(peers.rank_count);
        if (args.fence == 0 || !fence) shadow.take_as_is(i / count, signal);
    }
    reset_words(args);
}

constexpr std::int32_t kRecoverThreads = 128;

KernelShape recover_shape() {
    KernelShape shape{};
    shape.block_count = 1;
    shape.thread_count = kRecoverThreads;
    return shape;
}

}  // namespace
}  // namespace device

cudaError_t launch_collect(const CollectArgs& args, cudaStream_t stream) {
    return launch(device::collect_kernel, device::recover_shape(), stream, args);
}

cudaError_t launch_recover(const RecoverArgs& args, cudaStream_t stream) {
    return launch(device::recover_kernel, device::recover_shape(), stream, args);
}

}  // namespace gimlet

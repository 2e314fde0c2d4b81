// SPDX-License-Identifier: Apache-2.0
// Copies from the own window into an LSA peer's, as `gimlet bench` times them.
#include "device/core/bulk.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/bench_timer.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"

namespace gimlet {
namespace device {
namespace {

constexpr std::int32_t kStoreThreads = 512;
constexpr std::int32_t kBulkWarps = 4;
constexpr std::int32_t kBulkSlots = 3;  ///< a warp
constexpr std::uint32_t kBulkSlotBytes = 14336;

/// This thread's share of one copy. Four loads are under way before the first store.
GIMLET_DEVICE void copy_by_stores(const PutBenchArgs& args) {
    constexpr std::uint64_t batch = 4;
    const auto* const from =
        reinterpret_cast<const Vec16*>(local_pointer(args.peers, args.source_offset));
    auto* const to =
        reinterpret_cast<Vec16*>(peer_pointer(args.peers, args.to_rank, args.target_offset));
    const std::uint64_t count = args.bytes / sizeof(Vec16);
    const auto threads = static_cast<std::uint64_t>(block_count() * block_threads());
    auto at = static_cast<std::uint64_t>(block_index() * block_threads() + thread_index());
    for (; at + (batch - 1) * threads < count; at += batch * threads) {
        Vec16 value[batch];
        GIMLET_UNROLL
        for (std::uint64_t i = 0; i < batch; ++i) value[i] = load_stream(from + at + i * threads);
        GIMLET_UNROLL
        for (std::uint64_t i = 0; i < batch; ++i) store_stream(to + at + i * threads, value[i]);
    }
    for (; at < count; at += threads) store_stream(to + at, load_stream(from + at));
}

/// One warp's ring of slots. Only its first lane copies.
struct BulkRing {
    std::byte* slots;
    Mbarrier* barriers;

    GIMLET_DEVICE BulkRing() {
        const std::int32_t first = warp_index() * kBulkSlots;
        slots = dynamic_shared_memory() + static_cast<std::uint32_t>(first) * kBulkSlotBytes;
        barriers = reinterpret_cast<Mbarrier*>(
                       dynamic_shared_memory() +
                       static_cast<std::uint32_t>(warp_count() * kBulkSlots) * kBulkSlotBytes) +
                   first;
        if (elect()) {
            for (std::int32_t i = 0; i < kBulkSlots; ++i) mbarrier_init(barriers + i, 1);
            mbarrier_init_fence();
        }
        warp_sync();
    }
};

/// This warp's share of `copies` copies: pieces in turn over all warps of the grid. `turn` counts
/// the pieces that the ring has seen. First lane only; complete when it returns.
GIMLET_DEVICE void copy_by_bulk(const PutBenchArgs& args, const BulkRing& ring, std::int32_t copies,
                                std::uint32_t* turn) {
    const std::byte* const from = local_pointer(args.peers, args.source_offset);
    std::byte* const to = peer_pointer(args.peers, args.to_rank, args.target_offset);
    const std::uint64_t pieces = (args.bytes + kBulkSlotBytes - 1) / kBulkSlotBytes;
    const auto warps = static_cast<std::uint64_t>(block_count() * warp_count());
    const auto first = static_cast<std::uint64_t>(block_index() * warp_count() + warp_index());
    const std::uint64_t all = pieces * static_cast<std::uint64_t>(copies);
    const std::uint64_t mine = first < all ? (all - first + warps - 1) / warps : 0;
    const auto slot_of = [&](std::uint64_t n) {
        return static_cast<std::uint32_t>((*turn + n) % kBulkSlots);
    };
    const auto offset_of = [&](std::uint64_t n) {
        return (first + n * warps) % pieces * kBulkSlotBytes;
    };
    const auto bytes_of = [&](std::uint64_t n) {
        const std::uint64_t left = args.bytes - offset_of(n);
        return static_cast<std::uint32_t>(left < kBulkSlotBytes ? left : kBulkSlotBytes);
    };
    const auto load = [&](std::uint64_t n) {
        if (n >= mine) return;
        mbarrier_arrive_expect_tx(ring.barriers + slot_of(n), bytes_of(n));
        bulk_load(ring.slots + slot_of(n) * kBulkSlotBytes, from + offset_of(n), bytes_of(n),
                  ring.barriers + slot_of(n));
    };
    for (std::uint64_t n = 0; n + 1 < kBulkSlots; ++n) load(n);
    for (std::uint64_t n = 0; n < mine; ++n) {
        // The slot of the next load was stored from one turn ago.
        bulk_wait_read<0>();
        load(n + kBulkSlots - 1);
        const auto round = static_cast<std::uint32_t>((*turn + n) / kBulkSlots);
        mbarrier_wait(ring.barriers + slot_of(n), round & 1u);
        bulk_store(to + offset_of(n), ring.slots + slot_of(n) * kBulkSlotBytes, bytes_of(n));
        bulk_commit();
    }
    *turn += static_cast<std::uint32_t>(mine);
    bulk_wait<0>();
}

GIMLET_GLOBAL void store_kernel(const GIMLET_GRID_CONSTANT PutBenchArgs args) {
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < args.put_count; ++i) copy_by_stores(args);
}

GIMLET_GLOBAL void bulk_kernel(const GIMLET_GRID_CONSTANT PutBenchArgs args) {
    const BulkRing ring;
    std::uint32_t turn = 0;
    if (elect()) copy_by_bulk(args, ring, args.put_count, &turn);
}

/// One copy by the whole block, handed over to whoever acquires `flag` of the peer.
GIMLET_DEVICE void send(const PutBenchArgs& args, const BulkRing& ring, std::uint64_t number,
                        std::uint32_t* turn) {
    if (args.path == PutPath::store) {
        copy_by_stores(args);
    } else if (elect()) {
        copy_by_bulk(args, ring, 1, turn);
        fence_proxy_async();
    }
    block_sync();
    if (thread_index() == 0) {
        store_release<Scope::system>(
            peer_word<std::uint64_t>(args.peers, args.to_rank, args.flags_offset,
                                     static_cast<std::uint64_t>(args.peers.rank)),
            number);
    }
}

/// Rounds of: one rank copies and sets a flag, its partner waits for the flag and does the same.
/// The lower rank begins. One block.
GIMLET_GLOBAL void round_kernel(const GIMLET_GRID_CONSTANT PutBenchArgs args) {
    const PeerHandles& peers = args.peers;
    const BulkRing ring;
    const auto* const flag = local_word<std::uint64_t>(peers, args.flags_offset,
                                                       static_cast<std::uint64_t>(args.from_rank));
    auto* const epochs = local_word<EpochWords>(peers, peers.layout.epochs);
    const bool begins = peers.rank < args.to_rank;
    BenchTimer timer;
    std::uint32_t turn = 0;
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < args.warmup_count + args.round_count && good; ++i) {
        if (i == args.warmup_count) timer.start();
        const std::uint64_t number = args.first_epoch + static_cast<std::uint64_t>(i);
        if (begins) send(args, ring, number, &turn);
        WaitStatus status = WaitStatus::ok;
        if (thread_index() == 0) {
            const WaitScope scope =
                wait_scope(peers, Tag::user, Primitive::user, number, &epochs->barrier_poison);
            status =
                wait_until(scope, WaitTarget{args.from_rank, -1, number}, [&](std::uint64_t& seen) {
                    seen = load_acquire<Scope::system>(flag);
                    return static_cast<std::int64_t>(seen - number) >= 0;
                });
        }
        good = block_ok(status);
        if (!begins && good) send(args, ring, number, &turn);
    }
    if (good && thread_index() == 0) timer.stop(args.time);
}

constexpr std::uint32_t bulk_shared_bytes() {
    return kBulkWarps * kBulkSlots *
           (kBulkSlotBytes + static_cast<std::uint32_t>(sizeof(Mbarrier)));
}

}  // namespace
}  // namespace device

cudaError_t prepare_bench_kernels() {
    for (const auto kernel : {device::bulk_kernel, device::round_kernel}) {
        if (const cudaError_t error = raise_shared_limit(kernel); error != cudaSuccess)
            return error;
    }
    return prepare_pipeline_bench();
}

cudaError_t launch_put_bench(const PutBenchArgs& args, std::int32_t block_count,
                             cudaStream_t stream) {
    KernelShape shape{};
    shape.block_count = block_count;
    switch (args.path) {
        case PutPath::store:
            shape.thread_count = device::kStoreThreads;
            return launch(device::store_kernel, shape, stream, args);
        case PutPath::bulk:
            shape.thread_count = kWarpSize * device::kBulkWarps;
            shape.shared_bytes = device::bulk_shared_bytes();
            return launch(device::bulk_kernel, shape, stream, args);
        case PutPath::gin_single:
        case PutPath::gin_batch: return launch_gin_put_stream_bench(args, stream);
    }
    return cudaErrorInvalidValue;
}

cudaError_t launch_put_round_bench(const PutBenchArgs& args, cudaStream_t stream) {
    if (args.path == PutPath::gin_single || args.path == PutPath::gin_batch)
        return launch_gin_put_round_bench(args, stream);
    KernelShape shape{};
    shape.block_count = 1;
    shape.thread_count = kWarpSize * device::kBulkWarps;
    shape.shared_bytes = device::bulk_shared_bytes();
    return launch(device::round_kernel, shape, stream, args);
}

}  // namespace gimlet

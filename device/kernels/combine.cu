// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"

namespace gimlet {
namespace device {
namespace {

/// Threads per block and blocks per multiprocessor that the registers must allow: Plan launches no
/// larger blocks.
inline constexpr int kCombineThreads = 256;
inline constexpr int kCombineBlocksPerSm = 4;

/// Loads of a thread that are in flight together; more would cost resident blocks.
inline constexpr std::int32_t kInFlight = 4;

/// acc += weight * row for rows[0 .. count) at vector `index`, in that order; a weight of 1 changes
/// no bit. Warp-uniform rows.
template <ElementType E>
GIMLET_DEVICE void add_rows(const WarpRows& rows, std::int32_t count, std::int32_t index,
                            float (&acc)[Pack16<E>::count]) {
    for (std::int32_t first = 0; first < count; first += kInFlight) {
        Vec16 data[kInFlight];
#pragma unroll
        for (std::int32_t i = 0; i < kInFlight; ++i) {
            if (first + i < count) {
                data[i] =
                    load_stream(reinterpret_cast<const Vec16*>(rows.address[first + i]) + index);
            }
        }
#pragma unroll
        for (std::int32_t i = 0; i < kInFlight; ++i) {
            if (first + i >= count) break;
            Pack16<E>::accumulate_scaled(acc, data[i], rows.weight[first + i]);
        }
    }
}

/// A lane's choice of one token: address of its row, 0 if the choice opened none.
struct LaneRow {
    std::uint64_t address;
    float weight;
    SlotRef slot;
    HomeRef home;
};

GIMLET_DEVICE LaneRow lane_row(const CombineContext& ctx, std::int32_t token) {
    LaneRow out{0, 1.0f, {-1, -1}, {-1, -1}};
    if (token >= ctx.args.token_count || lane_index() >= ctx.exchange.topk) return out;
    const std::int64_t at = static_cast<std::int64_t>(token) * ctx.exchange.topk + lane_index();
    out.slot = ctx.args.routing.slots[at];
    if (out.slot.rank < 0) return out;
    if (ctx.args.weights != nullptr) out.weight = ctx.args.weights[at];
    const std::uint64_t base = ctx.peer_base[out.slot.rank];
    if (base != 0) {
        out.address = base + ctx.exchange.regions.combine_rows[ctx.parity] +
                      static_cast<std::uint64_t>(out.slot.slot) * ctx.args.row_bytes;
        return out;
    }
    out.home = ctx.args.routing.home[at];
    out.address = reinterpret_cast<std::uint64_t>(ctx.peers.local) +
                  ctx.exchange.regions.home_rows +
                  static_cast<std::uint64_t>(out.home.row) * ctx.args.row_bytes;
    return out;
}

/// Compacts the lanes' rows into the warp's list, choices ascending, which fixes the order of the
/// sum. Returns their number. Contains warp barriers on both sides of the writes.
GIMLET_DEVICE std::int32_t list_rows(const WarpRows& rows, const LaneRow& lane) {
    const std::uint32_t mask = warp_ballot(lane.address != 0);
    warp_sync();
    if (lane.address != 0) {
        const std::int32_t at = __popc(mask & ((1u << lane_index()) - 1u));
        rows.address[at] = lane.address;
        rows.weight[at] = lane.weight;
    }
    warp_sync();
    return __popc(mask);
}

/// Sums one token. All warps of the block share its vectors.
template <ElementType E>
GIMLET_DEVICE void sum_token(const CombineContext& ctx, std::int32_t token, const LaneRow& lane) {
    const auto vectors = static_cast<std::int32_t>(ctx.args.row_bytes / 16u);
    const WarpRows rows = ctx.warp_rows(warp_index());
    const std::int32_t count = list_rows(rows, lane);
    auto* out = reinterpret_cast<Vec16*>(ctx.args.out) + static_cast<std::int64_t>(token) * vectors;
    const auto* bias =
        reinterpret_cast<const Vec16*>(ctx.args.bias) + static_cast<std::int64_t>(token) * vectors;
    for (std::int32_t index = thread_index(); index < vectors; index += block_threads()) {
        float acc[Pack16<E>::count] = {};
        add_rows<E>(rows, count, index, acc);
        if (ctx.args.bias != nullptr) Pack16<E>::accumulate(acc, load_stream(bias + index));
        store_stream(out + index, Pack16<E>::round(acc));
    }
}

/// Block 0: tells every peer that this rank has entered the step, so its rows of this parity are
/// ready and its home rows are free. LSA: release at system scope after the kernel boundary that
/// ended the writers.
GIMLET_DEVICE void announce_ready(const CombineContext& ctx) {
    if (block_index() != 0) return;
    for (std::int32_t peer = thread_index(); peer < ctx.peers.rank_count; peer += block_threads()) {
        if (is_lsa_peer(ctx.peers, peer)) {
            auto* words = reinterpret_cast<std::uint64_t*>(
                peer_pointer(ctx.peers, peer, ctx.peers.layout.combine_ready));
            store_release<Scope::system>(words + ctx.peers.rank, ctx.epoch);
        } else {
            const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
            gin.signal(world_team(ctx.peers), peer,
                       ncclGin_WeakSignalInc{ctx.signals().combine_ready(ctx.peers.rank)});
        }
    }
}

/// Every block waits for every rank. Block-uniform verdict.
GIMLET_DEVICE bool await_ready(const CombineContext& ctx) {
    const WaitScope scope = ctx.wait_scope(Primitive::combine_ready);
    const auto* ready =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.combine_ready);
    const SignalShadow shadow(ctx.peers);
    bool good = true;
    for (std::int32_t rank = thread_index(); rank < ctx.peers.rank_count; rank += block_threads()) {
        WaitStatus status = WaitStatus::ok;
        if (is_lsa_peer(ctx.peers, rank)) {
            status = wait_until(scope, WaitTarget{rank, -1, ctx.epoch}, [&](std::uint64_t& seen) {
                seen = load_acquire<Scope::system>(ready + rank);
                return static_cast<std::int64_t>(seen - ctx.epoch) >= 0;
            });
        } else {
            status = shadow.wait_meet(scope, rank, ctx.contexts().notify_context(),
                                      ctx.signals().combine_ready(rank), 1);
        }
        good = good && status == WaitStatus::ok;
    }
    return block_all(good);
}

template <ElementType E>
GIMLET_DEVICE bool sum_tokens(const CombineContext& ctx, const LaneRow& first) {
    bool good = true;
    LaneRow next = first;
    for (std::int32_t token = block_index(); token < ctx.args.token_count && good;
         token += block_count()) {
        const LaneRow lane = next;
        next = lane_row(ctx, token + block_count());
        if (ctx.has_gin_peers()) good = await_chunks(ctx, lane.slot.rank, lane.home);
        if (good) sum_token<E>(ctx, token, lane);
    }
    return good;
}

/// The last block to come closes the step: shadows advance, pushed rows become reusable.
GIMLET_DEVICE void finish(const CombineContext& ctx) {
    block_sync();
    if (thread_index() == 0) {
        const auto last = static_cast<std::uint32_t>(block_count()) - 1u;
        *ctx.verdict =
            fetch_inc_wrap_acq_rel<Scope::gpu>(&ctx.epochs->combine_finished, last) == last ? 1u
                                                                                            : 0u;
    }
    block_sync();
    if (*ctx.verdict == 0) return;
    if (!block_any(ctx.poisoned())) settle_chunks(ctx);
    block_sync();
    if (thread_index() == 0) store_relaxed<Scope::gpu>(&ctx.epochs->combine, ctx.epoch);
}

template <ElementType E>
GIMLET_GLOBAL void __launch_bounds__(kCombineThreads, kCombineBlocksPerSm)
    combine_kernel(const CombineArgs args) {
    const CombineContext ctx(args);
    fill_combine_tables(ctx);
    announce_ready(ctx);
    const LaneRow first = lane_row(ctx, block_index());
    if (await_ready(ctx)) {
        if (ctx.has_gin_peers()) push_chunks(ctx);
        sum_tokens<E>(ctx, first);
    }
    finish(ctx);
}

}  // namespace
}  // namespace device

namespace {

using CombineKernel = void (*)(CombineArgs);

/// Null for types that cannot be summed.
CombineKernel combine_kernel_of(ElementType type) {
    switch (type) {
        case ElementType::float32: return device::combine_kernel<ElementType::float32>;
        case ElementType::float16: return device::combine_kernel<ElementType::float16>;
        case ElementType::bfloat16: return device::combine_kernel<ElementType::bfloat16>;
        case ElementType::float8_e4m3: return nullptr;
    }
    return nullptr;
}

}  // namespace

cudaError_t prepare_combine() {
    for (const ElementType type :
         {ElementType::float32, ElementType::float16, ElementType::bfloat16}) {
        const cudaError_t error = raise_shared_limit(combine_kernel_of(type));
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream) {
    const CombineKernel kernel = combine_kernel_of(args.element_type);
    if (kernel == nullptr) return cudaErrorInvalidValue;
    KernelShape shape = args.exchange.shape;
    shape.shared_bytes =
        CombineSharedLayout::build(args.exchange.peers.rank_count, shape.thread_count / kWarpSize)
            .total_bytes;
    return launch(kernel, shape, stream, args);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/combine_chunks.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"

namespace gimlet {
namespace device {
namespace {

/// Rows in flight per thread and vector: the usual top-k fits one batch.
inline constexpr std::int32_t kBatch = 8;

/// Up to kBatch rows of one token, warp-uniform.
struct RowBatch {
    const Vec16* row[kBatch];
    float weight[kBatch];
    std::int32_t count;
};

/// Takes the lowest kBatch choices out of `left` (returned: the rest). Choices come in ascending order, which fixes the
/// order of the sum. Whole warp.
GIMLET_DEVICE std::uint32_t take_batch(std::uint32_t left, std::uint64_t row, float weight, RowBatch& out) {
    out.count = 0;
#pragma unroll
    for (std::int32_t i = 0; i < kBatch; ++i) {
        out.row[i] = nullptr;
        out.weight[i] = 0.0f;
        if (left == 0) continue;
        const std::int32_t lane = __ffs(static_cast<int>(left)) - 1;
        out.row[i] = reinterpret_cast<const Vec16*>(shuffle(row, lane));
        out.weight[i] = shuffle(weight, lane);
        out.count = i + 1;
        left &= left - 1;
    }
    return left;
}

/// acc += the batch's vectors at `index`, loads first so that all are in flight together.
template <ElementType E>
GIMLET_DEVICE void add_batch(const RowBatch& batch, std::int32_t index, bool weighted,
                             float (&acc)[Pack16<E>::count]) {
    Vec16 data[kBatch];
#pragma unroll
    for (std::int32_t i = 0; i < kBatch; ++i) {
        if (i < batch.count) data[i] = load_stream(batch.row[i] + index);
    }
#pragma unroll
    for (std::int32_t i = 0; i < kBatch; ++i) {
        if (i >= batch.count) break;
        if (weighted) {
            Pack16<E>::accumulate_scaled(acc, data[i], batch.weight[i]);
        } else {
            Pack16<E>::accumulate(acc, data[i]);
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
    out.address = reinterpret_cast<std::uint64_t>(ctx.peers.local) + ctx.exchange.regions.home_rows +
                  static_cast<std::uint64_t>(out.home.row) * ctx.args.row_bytes;
    return out;
}

/// Sums one token. All warps of the block share its vectors.
template <ElementType E>
GIMLET_DEVICE void sum_token(const CombineContext& ctx, std::int32_t token, const LaneRow& lane) {
    constexpr std::int32_t kElements = Pack16<E>::count;
    const auto vectors = static_cast<std::int32_t>(ctx.args.row_bytes / 16u);
    const bool weighted = ctx.args.weights != nullptr;
    RowBatch first;
    const std::uint32_t rest = take_batch(warp_ballot(lane.address != 0), lane.address, lane.weight, first);
    auto* out = reinterpret_cast<Vec16*>(ctx.args.out) + static_cast<std::int64_t>(token) * vectors;
    const auto* bias = reinterpret_cast<const Vec16*>(ctx.args.bias) + static_cast<std::int64_t>(token) * vectors;
    for (std::int32_t base = warp_index() * kWarpSize; base < vectors; base += block_threads()) {
        const std::int32_t index = base + lane_index();
        const bool active = index < vectors;
        float acc[kElements] = {};
        if (active) add_batch<E>(first, index, weighted, acc);
        for (std::uint32_t left = rest; left != 0;) {
            RowBatch more;
            left = take_batch(left, lane.address, lane.weight, more);
            if (active) add_batch<E>(more, index, weighted, acc);
        }
        if (!active) continue;
        if (ctx.args.bias != nullptr) Pack16<E>::accumulate(acc, load_stream(bias + index));
        store_stream(out + index, Pack16<E>::round(acc));
    }
}

/// Block 0: tells every peer that this rank has entered the step, so its rows of this parity are ready and its home
/// rows are free. LSA: release at system scope after the kernel boundary that ended the writers.
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
    const auto* ready = reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.combine_ready);
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
GIMLET_DEVICE bool sum_tokens(const CombineContext& ctx) {
    bool good = true;
    LaneRow next = lane_row(ctx, block_index());
    for (std::int32_t token = block_index(); token < ctx.args.token_count && good; token += block_count()) {
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
        *ctx.verdict = fetch_inc_wrap_acq_rel<Scope::gpu>(&ctx.epochs->combine_finished, last) == last ? 1u : 0u;
    }
    block_sync();
    if (*ctx.verdict == 0) return;
    if (!block_any(ctx.poisoned())) settle_chunks(ctx);
    block_sync();
    if (thread_index() == 0) store_relaxed<Scope::gpu>(&ctx.epochs->combine, ctx.epoch);
}

template <ElementType E>
GIMLET_GLOBAL void combine_kernel(const CombineArgs args) {
    const CombineContext ctx(args);
    fill_combine_tables(ctx);
    announce_ready(ctx);
    if (await_ready(ctx)) {
        if (ctx.has_gin_peers()) push_chunks(ctx);
        sum_tokens<E>(ctx);
    }
    finish(ctx);
}

}  // namespace
}  // namespace device

cudaError_t prepare_combine() {
    if (const cudaError_t error = raise_shared_limit(device::combine_kernel<ElementType::float32>);
        error != cudaSuccess) {
        return error;
    }
    if (const cudaError_t error = raise_shared_limit(device::combine_kernel<ElementType::float16>);
        error != cudaSuccess) {
        return error;
    }
    return raise_shared_limit(device::combine_kernel<ElementType::bfloat16>);
}

cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream) {
    KernelShape shape = args.exchange.shape;
    shape.shared_bytes = CombineSharedLayout::build(args.exchange.peers.rank_count).total_bytes;
    switch (args.element_type) {
        case ElementType::float32:
            return launch(device::combine_kernel<ElementType::float32>, shape, stream, args);
        case ElementType::float16:
            return launch(device::combine_kernel<ElementType::float16>, shape, stream, args);
        case ElementType::bfloat16:
            return launch(device::combine_kernel<ElementType::bfloat16>, shape, stream, args);
        case ElementType::float8_e4m3: break;
    }
    return cudaErrorInvalidValue;
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "device/kernels/dispatch_copy.hpp"
#include "device/kernels/hybrid_dispatch.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/kernels/stream_dispatch.hpp"
#include "device/kernels/stream_relay.hpp"

namespace gimlet {
namespace device {
namespace {

/// Plan launches no larger blocks; one fits a multiprocessor.
inline constexpr int kDispatchThreads = 512;

/// Says that this rank is here and zeroes the shared tables. Ends with a block barrier.
template <Reach R>
GIMLET_DEVICE void set_up(const DispatchContext<R>& ctx, const DispatchSharedLayout& layout) {
    send_headers(ctx);
    auto* words = reinterpret_cast<std::uint32_t*>(dynamic_shared_memory());
    GIMLET_ROLLED
    for (std::uint32_t i = layout.key_base / 4u + static_cast<std::uint32_t>(thread_index());
         i < layout.total_bytes / 4u; i += static_cast<std::uint32_t>(block_threads())) {
        words[i] = 0;
    }
    fill_peer_bases(ctx);
    block_sync();
}

/// Counts, exchanges counts, computes slots, and starts the first loads on the way. Block-uniform:
/// false = the step failed, nothing may be sent.
template <Reach R>
GIMLET_DEVICE bool find_slots(const DispatchContext<R>& ctx, const TokenBatch& first) {
    const bool fresh = ctx.args.mode == RoutingMode::fresh;
    if (thread_index() == 0) ctx.note(EventKind::begin);
    if (thread_index() == 0 && refuse_if_asked(ctx)) ctx.fail_block();
    if (fresh) {
        count_tokens(ctx, first);
    } else {
        block_sync();  // the verdict
    }
    // Not before the choices are here, which these loads would delay.
    start_loads(ctx);
    if (!send_counts(ctx)) return false;
    if constexpr (has_rail(R)) {
        if (!hand_on_counts(ctx)) return false;
    }
    if (!receive_counts(ctx)) return false;
    if (thread_index() == 0) ctx.note(EventKind::counts_known);
    if (!build_key_tables(ctx)) return false;
    if (fresh) assign_slots(ctx, first);
    const bool good = !block_any(ctx.poisoned());
    // Not by a copy warp, which the release would hold up.
    if (!has_channels(R) && fresh && good && thread_index() == block_threads() - 1)
        publish_slots(ctx);
    return good;
}

/// Last block of the grid, all threads: tells every peer that this rank's rows of the step are
/// complete (hybrid: the peers of its team, including the rows that came over the rail). Before:
/// all blocks' writes happen-before (acq_rel on the finished counter, then a block barrier).
template <Reach R>
GIMLET_DEVICE void announce_rows(const DispatchContext<R>& ctx) {
    const std::int32_t contexts = ctx.contexts().data_context_count();
    GIMLET_ROLLED
    for (std::int32_t peer = thread_index(); peer < ctx.peers.rank_count; peer += block_threads()) {
        if (!ctx.is_lsa(peer) || ctx.excluded(peer)) continue;
        auto* words = reinterpret_cast<std::uint64_t*>(
            peer_pointer(ctx.peers, peer, ctx.peers.layout.dispatch_arrival));
        if (mutated(Mutant::dispatch_arrival_relaxed)) {
            store_relaxed<Scope::system>(words + ctx.peers.rank, ctx.epoch);
        } else if (mutated(Mutant::dispatch_arrival_narrow)) {
            store_release<Scope::gpu>(words + ctx.peers.rank, ctx.epoch);
        } else {
            store_release<Scope::system>(words + ctx.peers.rank, ctx.epoch);
        }
    }
    if constexpr (R != Reach::gin) return;
    // A strong signal covers one (context, peer): every context that may have carried rows rings
    // once. It also rings the doorbell of whatever is still queued there.
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < ctx.peers.rank_count * contexts;
         i += block_threads()) {
        const std::int32_t peer = i / contexts;
        if (ctx.is_lsa(peer) || ctx.excluded(peer)) continue;
        const std::int32_t which = mutate(Mutant::dispatch_arrival_one_context, i % contexts, 0);
        const ncclGin gin = gin_context(ctx.peers, ctx.contexts().data_context(which));
        if (mutated(Mutant::dispatch_arrival_weak)) {
            gin.signal(world_team(ctx.peers), peer,
                       ncclGin_WeakSignalInc{ctx.signals().dispatch_arrival(ctx.peers.rank)});
            continue;
        }
        gin.signal(world_team(ctx.peers), peer,
                   ncclGin_StrongSignalInc{ctx.signals().dispatch_arrival(ctx.peers.rank)});
    }
}

/// Last block, all threads: waits until the rows of every source have landed here (hybrid: all come
/// from this team). Block-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool await_rows(const DispatchContext<R>& ctx) {
    const WaitScope scope = ctx.wait_scope(Primitive::dispatch_arrival);
    const auto* arrival =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.dispatch_arrival);
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t source = thread_index(); source < ctx.peers.rank_count;
         source += block_threads()) {
        if (!ctx.is_lsa(source) || ctx.excluded(source)) continue;
        const WaitStatus status =
            wait_until(scope, WaitTarget{source, -1, ctx.epoch}, [&](std::uint64_t& seen) {
                seen = mutated(Mutant::dispatch_arrival_not_acquired)
                           ? load_relaxed<Scope::system>(arrival + source)
                           : load_acquire<Scope::system>(arrival + source);
                return static_cast<std::int64_t>(seen - ctx.epoch) >= 0 ||
                       mutated(Mutant::dispatch_rows_not_awaited);
            });
        good = good && status == WaitStatus::ok;
    }
    if constexpr (R != Reach::gin) return block_all(good);
    const SignalShadow shadow(ctx.peers);
    const std::int32_t contexts = ctx.contexts().data_context_count();
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < ctx.peers.rank_count * contexts;
         i += block_threads()) {
        const std::int32_t source = i / contexts;
        if (ctx.is_lsa(source) || ctx.excluded(source)) continue;
        const std::int32_t context = ctx.contexts().data_context(i % contexts);
        const WaitStatus status =
            shadow.wait_meet(scope, source, context, ctx.signals().dispatch_arrival(source),
                             mutate(Mutant::dispatch_gin_rows_not_awaited, 1, 0));
        good = good && status == WaitStatus::ok;
    }
    return block_all(good);
}

/// Last block: advances the shadows of this step's signals and frees the send buffers (flush =
/// sources reusable).
template <Reach R>
GIMLET_DEVICE void settle_gin(const DispatchContext<R>& ctx) {
    if constexpr (is_lsa_only(R)) return;
    const SignalShadow shadow(ctx.peers);
    const std::int32_t contexts = ctx.contexts().data_context_count();
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < ctx.peers.rank_count * (contexts + 1);
         i += block_threads()) {
        const std::int32_t source = i / (contexts + 1);
        if (ctx.is_lsa(source)) continue;
        const std::int32_t which = i % (contexts + 1);
        if (which == contexts) {
            shadow.advance(ctx.contexts().notify_context(), ctx.signals().count_row(source),
                           mutate(Mutant::dispatch_count_shadow_stays, 1, 0));
        } else {
            shadow.advance(ctx.contexts().data_context(which),
                           ctx.signals().dispatch_arrival(source),
                           mutate(Mutant::dispatch_arrival_shadow_stays, 1, 0));
        }
    }
    GIMLET_ROLLED
    for (std::int32_t context = warp_index(); context < ctx.peers.gin_context_count;
         context += warp_count()) {
        const ncclGin gin = gin_context(ctx.peers, context);
        if (!mutated(Mutant::dispatch_no_flush)) gin.flush(ncclCoopWarp());
    }
}

/// All threads of every block. The last block to come announces, waits and closes the step.
template <Reach R>
GIMLET_DEVICE void finish(const DispatchContext<R>& ctx) {
    block_sync();
    if (thread_index() == 0) {
        const auto last = static_cast<std::uint32_t>(block_count()) - 1u;
        *ctx.verdict = fetch_inc_wrap_acq_rel<Scope::gpu>(&ctx.epochs->dispatch_finished, last) ==
                               mutate(Mutant::dispatch_closes_early, last, last > 0 ? last - 1 : 0)
                           ? 1u
                           : 0u;
    }
    block_sync();
    if (*ctx.verdict == 0) return;
    // fifo: every block has seen its own rings' ends.
    if constexpr (R == Reach::stream_rail) {
        if (!block_any(ctx.poisoned())) settle_rail(ctx);
    }
    if (!has_rings(R) &&
        (!block_any(ctx.poisoned()) || mutated(Mutant::dispatch_ignores_refusal))) {
        announce_rows(ctx);
        if (thread_index() == 0) ctx.note(EventKind::rows_sent);
        if (await_rows(ctx)) {
            if (thread_index() == 0) ctx.note(EventKind::rows_here);
            if constexpr (R == Reach::rail) {
                settle_rail(ctx);
            } else {
                settle_gin(ctx);
            }
        }
    }
    close_step<R>(ctx.peers, ctx.epochs, Tag::dispatch, ctx.epoch, block_any(ctx.poisoned()));
    if (thread_index() != 0) return;
    if (!mutated(Mutant::copy_tickets_stay))
        store_relaxed<Scope::gpu>(&ctx.epochs->dispatch_tickets, 0);
    store_relaxed<Scope::gpu>(&ctx.epochs->dispatch,
                              ctx.epoch - mutate(Mutant::dispatch_epoch_stays, 0, 1));
}

template <Reach R>
GIMLET_GLOBAL void __launch_bounds__(kDispatchThreads, 1)
    dispatch_kernel(const GIMLET_GRID_CONSTANT DispatchKernelArgs args) {
    const DispatchContext<R> ctx(args);
    TokenBatch first{};
    if (args.args.mode == RoutingMode::fresh) {
        const TokenRange range = warp_tokens(ctx, warp_index());
        first = load_choices(ctx, TokenGroups(ctx), range.begin, range.end);
    }
    set_up(ctx, args.shared);
    if constexpr (has_rings(R)) clear_next_ready(ctx);
    if (find_slots(ctx, first)) {
        if constexpr (has_rings(R)) {
            fill_gaps(ctx);
            stream_rows(ctx);
        } else if constexpr (R == Reach::rail) {
            move_rows_by_rail(ctx);
        } else if (warp_index() < ctx.exchange.shape.copy_warps) {
            copy_rows(ctx);
        } else {
            record_step(ctx);
            write_records(ctx, ctx.exchange.shape.copy_warps);
        }
        if constexpr (!has_rings(R)) fill_gaps(ctx);
    } else {
        abandon_loads(ctx);
    }
    finish(ctx);
}

}  // namespace
}  // namespace device

namespace {

using DispatchKernel = void (*)(device::DispatchKernelArgs);

DispatchKernel kernel_of(Reach reach) {
    switch (reach) {
        case Reach::gin: return device::dispatch_kernel<Reach::gin>;
        case Reach::rail: return device::dispatch_kernel<Reach::rail>;
        case Reach::stream: return device::dispatch_kernel<Reach::stream>;
        case Reach::stream_rail: return device::dispatch_kernel<Reach::stream_rail>;
        default: return device::dispatch_kernel<Reach::lsa>;
    }
}

/// log2 of the smallest power of two that is not below `value` (1 .. 32).
std::int32_t bits_for(std::int32_t value) {
    std::int32_t bits = 0;
    while ((1 << bits) < value) ++bits;
    return bits;
}

}  // namespace

std::uint32_t dispatch_shared_bytes(const ExchangeArgs& exchange, const KernelShape& shape) {
    return DispatchSharedLayout::build(shape, exchange.peers.rank_count,
                                       exchange.experts.expert_count, exchange.layout,
                                       exchange.rail, exchange.stream)
        .total_bytes;
}

cudaError_t prepare_dispatch() {
    for (const auto kernel :
         {device::dispatch_kernel<Reach::lsa>, device::dispatch_kernel<Reach::gin>,
          device::dispatch_kernel<Reach::rail>, device::dispatch_kernel<Reach::stream>,
          device::dispatch_kernel<Reach::stream_rail>}) {
        if (const cudaError_t error = raise_shared_limit(kernel); error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

namespace {

/// Steps of a count warp that take less than an exchange of counts: 3 us on an H200, two steps 2
/// to 4.
constexpr std::int32_t kStepsAlone = 1;
/// Fewer have little to exchange, and small devices go both ways.
constexpr std::int32_t kLeastBlocksAlone = 3;

/// Whether every block counts all of the rank's tokens.
device::CountRange count_range(const DispatchArgs& args) {
    const KernelShape& shape = args.exchange.shape;
    const std::int32_t tokens_a_step = 32 >> bits_for(args.exchange.topk);
    const bool few = args.token_count <= kStepsAlone * tokens_a_step * shape.count_warps;
    return few && shape.block_count >= kLeastBlocksAlone ? device::CountRange::rank
                                                         : device::CountRange::block;
}

}  // namespace

cudaError_t launch_dispatch(const DispatchArgs& args, cudaStream_t stream) {
    const ExchangeArgs& exchange = args.exchange;
    const KernelShape& shape = exchange.shape;
    const Reach reach = reach_of(exchange);
    std::int32_t per_block =
        args.token_count / shape.block_count + (args.token_count % shape.block_count > 0 ? 1 : 0);
    // Channels of equal size: a block's tokens are those of its copy warps.
    if (has_channels(reach))
        per_block = (per_block + shape.copy_warps - 1) / shape.copy_warps * shape.copy_warps;
    const device::CountRange range = count_range(args);
    const std::int32_t counted = range == device::CountRange::rank ? args.token_count : per_block;
    const device::DispatchKernelArgs kernel_args{
        args,
        DispatchSharedLayout::build(shape, exchange.peers.rank_count, exchange.experts.expert_count,
                                    exchange.layout, exchange.rail, exchange.stream),
        ExpertLookup::from(exchange.experts),
        per_block,
        (counted + shape.count_warps - 1) / shape.count_warps,
        bits_for(exchange.topk),
        range};
    return launch(kernel_of(reach), shape, stream, kernel_args);
}

}  // namespace gimlet

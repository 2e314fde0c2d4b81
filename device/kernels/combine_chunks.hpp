// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/context_map.hpp"
#include "device/core/bulk.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/numeric.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/combine_shared.hpp"
#include "device/kernels/reach.hpp"
#include "device/kernels/report_board.hpp"
#include "device/sync/signal_shadow.hpp"

// The GIN half of combine: ranks that processed a token push its rows home in chunks of consecutive
// rows, the same chunks (and contexts) in which dispatch brought them.
namespace gimlet {

namespace device {

template <Reach R>
struct CombineContext {
    const CombineArgs& args;
    const ExchangeArgs& exchange;
    const PeerHandles& peers;
    std::uint64_t* peer_base;
    std::int32_t* first_chunk;
    std::uint32_t* verdict;
    EpochWords* epochs;
    std::uint64_t epoch;
    std::uint64_t step;  ///< number among all steps of the window
    std::int32_t parity;
    std::uint32_t excluded_ranks;  ///< how many there are
    bool failed;                   ///< an earlier step has failed; threads may see this differently

    GIMLET_DEVICE explicit CombineContext(const CombineArgs& a)
        : args(a), exchange(a.exchange), peers(a.exchange.peers) {
        std::byte* shared = dynamic_shared_memory();
        const auto layout = CombineSharedLayout::build(exchange.shape, peers.rank_count);
        peer_base = reinterpret_cast<std::uint64_t*>(shared + layout.peer_base);
        first_chunk = reinterpret_cast<std::int32_t*>(shared + layout.first_chunk);
        verdict = reinterpret_cast<std::uint32_t*>(shared + layout.verdict);
        epochs = reinterpret_cast<EpochWords*>(peers.local + peers.layout.epochs);
        epoch = epochs->combine + 1;
        step = epochs->dispatch + epochs->combine + 1;
        excluded_ranks = epochs->excluded_count;
        failed = failed_before(epochs);
        parity =
            static_cast<std::int32_t>(mutate(Mutant::combine_one_buffer, epoch, 1) % kBufferCount);
    }
    GIMLET_DEVICE bool rank_major() const { return exchange.layout == Layout::rank_major; }
    GIMLET_DEVICE bool is_lsa(std::int32_t rank) const {
        return is_lsa_only(R) || is_lsa_peer(peers, rank);
    }
    /// The step belongs to the other buffer than the addresses of this call.
    GIMLET_DEVICE bool wrong_buffer() const {
        return args.expected_parity >= 0 && args.expected_parity != parity;
    }
    /// This rank gives nothing in this step.
    GIMLET_DEVICE bool refuses() const {
        return failed || wrong_buffer() || args.refuse != 0 || rails_left();
    }
    /// The launch is older than an exclusion, after which the Exchange left hybrid mode.
    GIMLET_DEVICE bool rails_left() const { return has_rail(R) && excluded_ranks != 0; }
    GIMLET_DEVICE bool tells_refusal() const {
        return device::tells_refusal(&epochs->combine_refused, epoch);
    }
    /// Whether a peer's word or signal, `beyond` what this step waits for, refuses this step.
    GIMLET_DEVICE bool says_refused(std::uint64_t beyond) const {
        const std::uint64_t other = refused_mark(epoch + 1);
        return (beyond & (refused_mark(epoch) |
                          mutate(Mutant::combine_refusal_of_next, std::uint64_t{0}, other))) != 0;
    }
    GIMLET_DEVICE bool excluded(std::int32_t rank) const {
        return is_excluded(peers, excluded_ranks, rank);
    }
    GIMLET_DEVICE SignalMap signals() const { return SignalMap{peers.rank_count}; }
    GIMLET_DEVICE ContextMap contexts() const { return ContextMap{peers.gin_context_count}; }
    GIMLET_DEVICE std::int32_t count(std::int32_t source, std::int32_t word) const {
        return args.routing
            .counts[static_cast<std::int64_t>(source) * peers.shape.count_row_words() + word];
    }
    /// Keys of `rank` as a range: itself (rank_major) or its experts (expert_major).
    GIMLET_DEVICE std::int32_t first_key(std::int32_t rank) const {
        return rank_major() ? rank : exchange.experts.first(rank);
    }
    GIMLET_DEVICE std::int32_t key_end(std::int32_t rank) const {
        return rank_major() ? rank + 1
                            : exchange.experts.first(rank) + exchange.experts.local_count(rank);
    }
    GIMLET_DEVICE std::int32_t key_word(std::int32_t key) const {
        return rank_major() ? 1 + key : 1 + peers.rank_count + key;
    }
    GIMLET_DEVICE std::int32_t chunks_of(std::int32_t rows) const {
        return (rows + exchange.chunk_rows - 1) / exchange.chunk_rows;
    }
    GIMLET_DEVICE bool same_team(std::int32_t a, std::int32_t b) const {
        return a / peers.lsa_size == b / peers.lsa_size;
    }
    GIMLET_DEVICE WaitScope wait_scope(Primitive primitive) const {
        return WaitScope{.deadline_ns = peers.deadline_ns,
                         .error = peers.error,
                         .poison = &epochs->combine_poison,
                         .epoch = epoch,
                         .rank = peers.rank,
                         .tag = Tag::combine,
                         .primitive = primitive,
                         .group = &peers,
                         .step = step};
    }
    GIMLET_DEVICE bool poisoned() const {
        return load_relaxed<Scope::gpu>(&epochs->combine_poison) == epoch;
    }
};

/// A lane's choice of one token: address of its row, 0 if the choice opened none.
struct LaneRow {
    std::uint64_t address;
    float weight;
    SlotRef slot;
    HomeRef home;
    std::int32_t needed = 0;  ///< hybrid: the tail that brings the row home, 0 = it is in this team
};

/// Rows and chunks of source rank `home` that lie, in its own numbering over GIN keys, before the
/// keys of `rank`.
struct HomePosition {
    std::int32_t row;
    std::int32_t chunk;
};

template <Reach R>
GIMLET_DEVICE HomePosition home_position(const CombineContext<R>& ctx, std::int32_t home,
                                         std::int32_t rank) {
    HomePosition out{0, 0};
    GIMLET_ROLLED
    for (std::int32_t other = 0; other < rank; ++other) {
        if (ctx.same_team(other, home)) continue;
        GIMLET_ROLLED
        for (std::int32_t key = ctx.first_key(other); key < ctx.key_end(other); ++key) {
            const std::int32_t rows = ctx.count(home, ctx.key_word(key));
            out.row += rows;
            out.chunk += ctx.chunks_of(rows);
        }
    }
    return out;
}

/// Fills peer_base and first_chunk. Ends with a block barrier.
template <Reach R>
GIMLET_DEVICE void fill_combine_tables(const CombineContext<R>& ctx) {
    GIMLET_ROLLED
    for (std::int32_t rank = thread_index(); rank <= ctx.peers.rank_count;
         rank += block_threads()) {
        if constexpr (R == Reach::gin)
            ctx.first_chunk[rank] = home_position(ctx, ctx.peers.rank, rank).chunk;
        if (rank == ctx.peers.rank_count) break;
        const bool lsa = ctx.is_lsa(rank);
        ctx.peer_base[rank] = lsa ? reinterpret_cast<std::uint64_t>(peer_pointer(
                                        ctx.peers, rank, ctx.exchange.regions.rank_skew(rank)))
                                  : 0;
    }
    block_sync();
}

/// Row of combine_rows where the rows of `home` for `key` start: aligned block starts plus the
/// sources below.
template <Reach R>
GIMLET_DEVICE std::int64_t key_start(const CombineContext<R>& ctx, std::int32_t home,
                                     std::int32_t key) {
    std::int64_t start = 0;
    GIMLET_ROLLED
    for (std::int32_t other = ctx.first_key(ctx.peers.rank); other < key; ++other) {
        std::int64_t total = 0;
        GIMLET_ROLLED
        for (std::int32_t s = 0; s < ctx.peers.rank_count; ++s)
            total += ctx.count(s, ctx.key_word(other));
        const std::int64_t alignment = ctx.exchange.expert_alignment;
        start += (total + alignment - 1) / alignment * alignment;
    }
    GIMLET_ROLLED
    for (std::int32_t s = 0; s < home; ++s) start += ctx.count(s, ctx.key_word(key));
    return start;
}

/// One thread pushes all chunks of one (home rank, context), in chunk order, each with a strong
/// signal: the n-th signal means that n chunks of this pair have landed.
template <Reach R>
GIMLET_DEVICE void push_pair(const CombineContext<R>& ctx, std::int32_t home,
                             std::int32_t context) {
    const ncclGin gin = gin_context(ctx.peers, context);
    const std::uint64_t row_bytes = ctx.args.row_bytes;
    HomePosition at = home_position(ctx, home, ctx.peers.rank);
    GIMLET_ROLLED
    for (std::int32_t key = ctx.first_key(ctx.peers.rank); key < ctx.key_end(ctx.peers.rank);
         ++key) {
        const std::int32_t rows = ctx.count(home, ctx.key_word(key));
        const std::int64_t from = rows > 0 ? key_start(ctx, home, key) : 0;
        GIMLET_ROLLED
        for (std::int32_t chunk = 0; chunk < ctx.chunks_of(rows); ++chunk) {
            if (ctx.contexts().data_context(at.chunk + chunk) != context) continue;
            const std::int32_t first = chunk * ctx.exchange.chunk_rows;
            const std::int32_t left = rows - first;
            const std::int32_t batch =
                left < ctx.exchange.chunk_rows ? left : ctx.exchange.chunk_rows;
            const auto push = [&](auto signal) {
                gin.put(world_team(ctx.peers), home, ctx.peers.window,
                        ctx.exchange.regions.home_rows +
                            static_cast<std::uint64_t>(at.row + first) * row_bytes,
                        ctx.peers.window,
                        ctx.exchange.regions.combine_rows[ctx.parity] +
                            ctx.exchange.regions.rank_skew(ctx.peers.rank) +
                            static_cast<std::uint64_t>(from + first) * row_bytes,
                        static_cast<std::uint64_t>(batch) * row_bytes, signal);
            };
            const std::uint32_t id = ctx.signals().combine_chunk(ctx.peers.rank);
            if (mutated(Mutant::combine_chunk_weak)) {
                push(ncclGin_WeakSignalInc{id});
            } else {
                push(ncclGin_StrongSignalInc{id});
            }
        }
        at.row += rows;
        at.chunk += ctx.chunks_of(rows);
    }
}

/// Pairs are dealt to blocks first, then to threads. The peers' ready signals must have been seen:
/// home rows are free.
template <Reach R>
GIMLET_DEVICE void push_chunks(const CombineContext<R>& ctx) {
    const std::int32_t contexts = ctx.contexts().data_context_count();
    const std::int32_t pairs = ctx.peers.rank_count * contexts;
    const std::int32_t lane = thread_index() * block_count() + block_index();
    GIMLET_ROLLED
    for (std::int32_t pair = lane; pair < pairs; pair += block_threads() * block_count()) {
        const std::int32_t home = pair / contexts;
        if (!ctx.is_lsa(home)) push_pair(ctx, home, ctx.contexts().data_context(pair % contexts));
    }
    warp_sync();
}

/// Chunks of `rank` with numbers below `chunk_end` that travel on `context`, counted from this
/// rank's first there.
template <Reach R>
GIMLET_DEVICE std::int32_t chunks_on_context(const CombineContext<R>& ctx, std::int32_t rank,
                                             std::int32_t context, std::int32_t chunk_end) {
    std::int32_t count = 0;
    const std::int32_t stride = ctx.contexts().data_context_count();
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < stride; ++i) {
        const std::int32_t first = ctx.first_chunk[rank] + i;
        if (ctx.contexts().data_context(first) != context || first >= chunk_end) continue;
        count += (chunk_end - first + stride - 1) / stride;
    }
    return count;
}

/// Waits, lane by lane, for the chunk that brings the lane's row home. Warp-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool await_chunks(const CombineContext<R>& ctx, std::int32_t rank,
                                const HomeRef& home) {
    WaitStatus status = WaitStatus::ok;
    if (home.row >= 0) {
        const std::int32_t context = ctx.contexts().data_context(home.chunk);
        const std::int32_t needed = chunks_on_context(
            ctx, rank, context, home.chunk + mutate(Mutant::combine_chunk_off_by_one, 1, 0));
        const SignalShadow shadow(ctx.peers);
        status = shadow.wait_meet(
            ctx.wait_scope(Primitive::combine_chunk), rank, context,
            ctx.signals().combine_chunk(rank),
            static_cast<std::uint64_t>(mutate(Mutant::combine_chunk_not_awaited, needed, 0)));
    }
    return warp_ok(status);
}

/// Last block: shadows move past this step's signals; flush makes the pushed rows reusable.
template <Reach R>
GIMLET_DEVICE void settle_chunks(const CombineContext<R>& ctx) {
    if constexpr (is_lsa_only(R)) return;
    const SignalShadow shadow(ctx.peers);
    const std::int32_t contexts = ctx.contexts().data_context_count();
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < ctx.peers.rank_count * (contexts + 1);
         i += block_threads()) {
        const std::int32_t rank = i / (contexts + 1);
        if (ctx.is_lsa(rank)) continue;
        const std::int32_t which = i % (contexts + 1);
        if (which == contexts) {
            shadow.advance(ctx.contexts().notify_context(), ctx.signals().combine_ready(rank),
                           mutate(Mutant::combine_ready_shadow_stays, 1, 0));
            continue;
        }
        const std::int32_t context = ctx.contexts().data_context(which);
        const std::int32_t chunks =
            chunks_on_context(ctx, rank, context, ctx.first_chunk[rank + 1]);
        shadow.advance(
            context, ctx.signals().combine_chunk(rank),
            mutate(Mutant::combine_chunk_shadow_stays, static_cast<std::uint64_t>(chunks), 0));
    }
    GIMLET_ROLLED
    for (std::int32_t context = warp_index(); context < ctx.peers.gin_context_count;
         context += warp_count()) {
        const ncclGin gin = gin_context(ctx.peers, context);
        if (!mutated(Mutant::combine_no_flush)) gin.flush(ncclCoopWarp());
    }
}

}  // namespace device
}  // namespace gimlet

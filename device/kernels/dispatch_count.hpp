// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/dispatch_context.hpp"
#include "device/sync/signal_shadow.hpp"

// Phase 1 of a fresh dispatch: every block counts its own tokens, the blocks exchange counts
// through local memory, and block p sends this rank's count row to peer p (p, p + blocks, ...).
namespace gimlet::device {

struct TokenRange {
    std::int32_t begin;
    std::int32_t end;
};

/// The part of the block's tokens that count warp `warp` owns; empty for the other warps.
template <Reach R>
GIMLET_DEVICE TokenRange warp_tokens(const DispatchContext<R>& ctx, std::int32_t warp) {
    TokenRange range{ctx.token_begin + warp * ctx.tokens_per_warp,
                     ctx.token_begin + (warp + 1) * ctx.tokens_per_warp};
    if (range.begin > ctx.token_end || warp >= ctx.exchange.shape.count_warps)
        range.begin = ctx.token_end;
    if (range.end > ctx.token_end || warp >= ctx.exchange.shape.count_warps)
        range.end = ctx.token_end;
    return range;
}

/// The lane's choice of some consecutive tokens. -1: masked, lane >= K, or no token; below -1 or at
/// least E: a fault.
inline constexpr std::int32_t kTokensAhead = 8;
struct TokenBatch {
    std::int32_t expert[kTokensAhead];

    /// expert[i] by selection: an index would move the array out of registers.
    GIMLET_DEVICE std::int32_t at(std::int32_t i) const {
        std::int32_t value = expert[0];
        GIMLET_UNROLL
        for (std::int32_t j = 1; j < kTokensAhead; ++j) value = i == j ? expert[j] : value;
        return value;
    }
};

/// Loads the choices of tokens [first, first + kTokensAhead) that lie below `end`; all loads are in
/// flight together.
template <Reach R>
GIMLET_DEVICE TokenBatch load_choices(const DispatchContext<R>& ctx, std::int32_t first,
                                      std::int32_t end) {
    TokenBatch batch;
    GIMLET_UNROLL
    for (std::int32_t i = 0; i < kTokensAhead; ++i) {
        const bool mine = first + i < end && lane_index() < ctx.exchange.topk;
        const std::int64_t raw = mine ? ctx.raw_expert(first + i, lane_index()) : -1;
        const bool odd = raw < -1 || raw >= ctx.experts.expert_count;
        batch.expert[i] = odd ? -2 : static_cast<std::int32_t>(raw);
    }
    return batch;
}

/// Reports a faulty choice of `token` and fails the step. Takes values: a reference to the context
/// would put all of it into local memory.
GIMLET_DEVICE_COLD void refuse_choice(WaitScope scope, std::int64_t raw, std::int32_t expert_count,
                                      std::int32_t token, DeviceFault fault) {
    const WaitTarget target{-1, -1, static_cast<std::uint64_t>(expert_count)};
    report_fault(scope, target, fault, static_cast<std::uint64_t>(raw), 0, token);
    poison_step(scope);
}

/// Reports a choice below -1, at or above E, or named twice by its token. Warp-uniform result: true
/// = fault.
template <Reach R>
GIMLET_DEVICE bool check_choices(const DispatchContext<R>& ctx, std::int32_t token,
                                 std::int32_t expert) {
    const std::uint32_t same = __match_any_sync(0xffffffffu, expert);
    const bool duplicate = expert >= 0 && (same & (same - 1)) != 0;
    if (!warp_any(duplicate || expert < -1)) return false;
    if (duplicate || expert < -1) {
        refuse_choice(ctx.wait_scope(Primitive::none), ctx.raw_expert(token, lane_index()),
                      ctx.experts.expert_count, token,
                      duplicate ? DeviceFault::duplicate_expert : DeviceFault::expert_out_of_range);
    }
    return true;
}

/// Adds one token to the warp's keys and the block's counts. Whole warp.
template <Reach R>
GIMLET_DEVICE void count_token(const DispatchContext<R>& ctx, std::int32_t* keys,
                               std::int32_t expert) {
    const TokenChoices choice = token_choices(ctx, expert);
    if (choice.key >= 0) keys[choice.key] += 1;
    bool opens_rank = ctx.rank_major() && choice.key >= 0;
    if (!ctx.rank_major()) {
        const std::uint32_t same = __match_any_sync(0xffffffffu, choice.rank);
        opens_rank = choice.rank >= 0 && __ffs(static_cast<int>(same)) - 1 == lane_index();
    }
    if (opens_rank) atomicAdd(ctx.block_counts + choice.rank, 1);
    if (choice.expert >= 0) atomicAdd(ctx.block_counts + ctx.peers.rank_count + choice.expert, 1);
    warp_sync();
}

/// Publishes block_counts to the other blocks. A fault shows in bit 31 of the words: every block
/// that reads one refuses the step with it. Whole block, behind a block barrier.
template <Reach R>
GIMLET_DEVICE void publish_block_counts(const DispatchContext<R>& ctx) {
    const std::int32_t words = ctx.peers.shape.block_row_words();
    auto* row =
        reinterpret_cast<std::uint64_t*>(ctx.peers.local + ctx.peers.layout.block_counts) +
        (static_cast<std::int64_t>(ctx.parity) * ctx.peers.shape.block_count + block_index()) *
            words;
    const std::uint32_t mark = *ctx.verdict != 0 ? 1u << 31 : 0u;
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < words; i += block_threads()) {
        store_relaxed<Scope::gpu>(
            row + i, tagged(ctx.epoch, static_cast<std::uint32_t>(ctx.block_counts[i]) | mark));
    }
}

/// Fills block_counts and warp_keys (both zero before) from this block's tokens and publishes the
/// former. `first` holds the choices of the warp's first tokens. Contains block barriers.
template <Reach R>
GIMLET_DEVICE void count_tokens(const DispatchContext<R>& ctx, const TokenBatch& first) {
    const std::int32_t warp = warp_index();
    const TokenRange range = warp_tokens(ctx, warp);
    std::int32_t* keys = ctx.warp_keys + warp * ctx.key_total_count();
    bool fault = false;
    TokenBatch batch = first;
    GIMLET_ROLLED
    for (std::int32_t begin = range.begin; begin < range.end; begin += kTokensAhead) {
        if (begin > range.begin) batch = load_choices(ctx, begin, range.end);
        GIMLET_ROLLED
        for (std::int32_t i = 0; i < kTokensAhead && begin + i < range.end; ++i) {
            const std::int32_t expert = batch.at(i);
            const bool bad = check_choices(ctx, begin + i, expert);
            fault = fault || bad;
            if (!bad) count_token(ctx, keys, expert);
        }
    }
    if (fault && lane_index() == 0) *ctx.verdict = 1;
    block_sync();
    publish_block_counts(ctx);
}

/// Sum over blocks [0, block_end) of word `word` of their rows; kShare neighbouring lanes share one
/// sum. Fails the wait scope by status; sets `refused` if any block found a fault.
inline constexpr std::int32_t kShare = 4;

struct BlockSum {
    std::int32_t value;
    WaitStatus status;
    bool refused;
};

/// Waits for one block's word unless `value`, as just loaded, has this step's tag; adds it to the
/// sum.
template <Reach R>
GIMLET_DEVICE void add_block_word(const DispatchContext<R>& ctx, const std::uint64_t* at,
                                  std::uint64_t value, BlockSum& sum) {
    if (!has_tag(value, ctx.epoch) && sum.status == WaitStatus::ok) {
        const WaitScope scope = ctx.wait_scope(Primitive::count_exchange);
        sum.status =
            wait_until(scope, WaitTarget{ctx.peers.rank, -1, ctx.epoch}, [&](std::uint64_t& seen) {
                value = load_relaxed<Scope::gpu>(at);
                seen = value >> 32;
                return has_tag(value, ctx.epoch);
            });
    }
    const auto low = static_cast<std::uint32_t>(value);
    sum.refused = sum.refused || (low >> 31) != 0;
    sum.value += static_cast<std::int32_t>(low & 0x7fffffffu);
}

template <Reach R>
GIMLET_DEVICE BlockSum sum_over_blocks(const DispatchContext<R>& ctx, std::int32_t word,
                                       std::int32_t block_end) {
    constexpr std::int32_t kAhead = 8;  // loads in flight
    const std::int32_t words = ctx.peers.shape.block_row_words();
    const auto* rows =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.block_counts) +
        static_cast<std::int64_t>(ctx.parity) * ctx.peers.shape.block_count * words + word;
    BlockSum out{0, WaitStatus::ok, false};
    GIMLET_ROLLED
    for (std::int32_t first = lane_index() % kShare; first < block_end; first += kShare * kAhead) {
        std::uint64_t value[kAhead];
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kAhead; ++i) {
            const std::int32_t block = first + i * kShare;
            value[i] =
                block < block_end
                    ? load_relaxed<Scope::gpu>(rows + static_cast<std::int64_t>(block) * words)
                    : 0;
        }
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kAhead; ++i) {
            const std::int32_t block = first + i * kShare;
            if (block < block_end)
                add_block_word(ctx, rows + static_cast<std::int64_t>(block) * words, value[i], out);
        }
    }
    return out;
}

/// Adds the kShare lanes' shares; every lane of the warp must call.
GIMLET_DEVICE std::int32_t reduce_share(std::int32_t value) {
    GIMLET_ROLLED
    for (std::int32_t step = kShare / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/// Turns warp_keys from counts into the running ordinals that slots start from: for every key,
/// tokens of lower blocks plus tokens of lower count warps. Block-uniform verdict; contains block
/// barriers.
template <Reach R>
GIMLET_DEVICE bool start_ordinals(const DispatchContext<R>& ctx) {
    const std::int32_t keys = ctx.key_total_count();
    const std::int32_t first_word = ctx.rank_major() ? 0 : ctx.peers.rank_count;
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t base = 0; base < keys; base += block_threads() / kShare) {
        const std::int32_t key = base + thread_index() / kShare;
        BlockSum sum{0, WaitStatus::ok, false};
        if (key < keys) sum = sum_over_blocks(ctx, first_word + key, block_index());
        std::int32_t running = reduce_share(sum.value);
        good = good && sum.status == WaitStatus::ok && !sum.refused;
        if (key < keys && lane_index() % kShare == 0) {
            GIMLET_ROLLED
            for (std::int32_t warp = 0; warp < ctx.exchange.shape.count_warps; ++warp) {
                std::int32_t& cell = ctx.warp_keys[warp * keys + key];
                const std::int32_t here = cell;
                cell = running;
                running += here;
            }
        }
    }
    return block_all(good && *ctx.verdict == 0);
}

/// The count word `index` (1 ..) that peer `peer` gets: rank counts, then the expert counts that it
/// needs.
template <Reach R>
GIMLET_DEVICE std::int32_t source_word(const DispatchContext<R>& ctx, std::int32_t peer,
                                       std::int32_t index) {
    const std::int32_t ranks = ctx.peers.rank_count;
    if (index < 1 + ranks) return index - 1;
    const std::int32_t expert = index - 1 - ranks;
    if (!ctx.rank_major()) return ranks + expert;
    return expert < ctx.experts.local_count(peer) ? ranks + ctx.experts.first(peer) + expert : -1;
}

/// Writes this rank's count row to one peer: LSA peers by stores, other peers by one put with a
/// weak signal. A refused step sends the header alone, so that peers leave at once instead of at
/// their deadline. Whole block; contains block barriers.
template <Reach R>
GIMLET_DEVICE void send_count_row(const DispatchContext<R>& ctx, std::int32_t peer) {
    const std::int32_t words = 1 + ctx.peers.rank_count + ctx.peers.shape.expert_words;
    const bool lsa = ctx.is_lsa(peer);
    const std::uint64_t row =
        (static_cast<std::uint64_t>(ctx.parity) * ctx.peers.rank_count + peer) *
        ctx.peers.shape.count_row_words() * 8u;
    const std::uint64_t target_offset = ctx.count_row_offset(ctx.peers.rank);
    auto* out =
        reinterpret_cast<std::uint64_t*>(lsa ? peer_pointer(ctx.peers, peer, target_offset)
                                             : ctx.peers.local + ctx.peers.layout.count_send + row);
    bool refused = *ctx.verdict != 0;
    const bool fresh = ctx.args.mode == RoutingMode::fresh;
    GIMLET_ROLLED
    for (std::int32_t base = 1; fresh && base < words; base += block_threads() / kShare) {
        const std::int32_t index = base + thread_index() / kShare;
        const std::int32_t word = index < words ? source_word(ctx, peer, index) : -1;
        BlockSum sum{0, WaitStatus::ok, false};
        if (word >= 0) sum = sum_over_blocks(ctx, word, block_count());
        const std::int32_t value = reduce_share(sum.value);
        refused = refused || sum.refused || sum.status != WaitStatus::ok;
        if (index < words && lane_index() % kShare == 0) {
            store_relaxed<Scope::system>(out + index,
                                         tagged(ctx.epoch, static_cast<std::uint32_t>(value)));
        }
    }
    refused = block_any(refused);
    if (thread_index() != 0) return;
    const StepHeader header = refused ? StepHeader::refused
                              : fresh ? StepHeader::fresh
                                      : StepHeader::cached;
    // Release: what this rank read of the receive buffers in earlier steps is over before the peer
    // may write them.
    store_release<Scope::system>(out, tagged(ctx.epoch, static_cast<std::uint32_t>(header)));
    if (lsa) return;
    const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(fresh ? ctx.peers.shape.count_row_words() : 2) * 8u;
    gin.put(world_team(ctx.peers), peer, ctx.peers.window, target_offset, ctx.peers.window,
            ctx.peers.layout.count_send + row, bytes,
            ncclGin_WeakSignalInc{ctx.signals().count_row(ctx.peers.rank)});
}

/// Block b serves peers b, b + blocks, ...
template <Reach R>
GIMLET_DEVICE void send_count_rows(const DispatchContext<R>& ctx) {
    GIMLET_ROLLED
    for (std::int32_t peer = block_index(); peer < ctx.peers.rank_count; peer += block_count()) {
        send_count_row(ctx, peer);
        block_sync();
    }
}

/// Adds word `index` (>= 1) of a source's count row to the block's tables: key_total, key_base
/// (sources below this rank), key_count (this rank), and what this rank receives by source and by
/// local expert.
template <Reach R>
GIMLET_DEVICE void take_count(const DispatchContext<R>& ctx, std::int32_t source,
                              std::int32_t index, std::int32_t rows) {
    const std::int32_t ranks = ctx.peers.rank_count;
    const std::int32_t me = ctx.peers.rank;
    const std::int32_t entry = index - 1;
    const bool is_rank = entry < ranks;
    if (is_rank == ctx.rank_major()) {
        const std::int32_t key = is_rank ? entry : entry - ranks;
        atomicAdd(ctx.key_total + key, rows);
        if (source < me) atomicAdd(ctx.key_base + key, rows);
        if (source == me) ctx.key_count[key] = rows;
    }
    if (is_rank) {
        if (ctx.rank_major() && entry == me) ctx.source_rows[source] = rows;
        return;
    }
    const std::int32_t local =
        ctx.rank_major() ? entry - ranks : entry - ranks - ctx.experts.first(me);
    if (local < 0 || local >= ctx.experts.local_count(me)) return;
    atomicAdd(ctx.expert_rows + local, rows);
    if (!ctx.rank_major()) atomicAdd(ctx.source_rows + source, rows);
}

/// Words of a count row that this block needs beside the header.
template <Reach R>
GIMLET_DEVICE std::int32_t needed_words(const DispatchContext<R>& ctx) {
    const bool experts = !ctx.rank_major() || block_index() == 0;
    return ctx.peers.rank_count + (experts ? ctx.peers.shape.expert_words : 0);
}

/// Waits for one word of a count row; checks the header, or takes the count. Block 0 also keeps it
/// for the routing. The header is acquired: what its rank read of the receive buffers in earlier
/// steps is over.
template <Reach R>
GIMLET_DEVICE bool receive_count_word(const DispatchContext<R>& ctx, std::int32_t source,
                                      std::int32_t index) {
    const std::uint64_t* at = ctx.count_row(source) + index;
    const WaitScope scope = ctx.wait_scope(Primitive::count_exchange);
    std::uint64_t value = 0;
    const WaitStatus status =
        wait_until(scope, WaitTarget{source, -1, ctx.epoch}, [&](std::uint64_t& seen) {
            value = index == 0 ? load_acquire<Scope::system>(at) : load_relaxed<Scope::system>(at);
            seen = value >> 32;
            return has_tag(value, ctx.epoch);
        });
    if (status != WaitStatus::ok) return false;
    const auto low = static_cast<std::uint32_t>(value);
    if (index > 0) {
        take_count(ctx, source, index, static_cast<std::int32_t>(low));
        if (block_index() == 0) {
            const std::int64_t row =
                static_cast<std::int64_t>(source) * ctx.peers.shape.count_row_words();
            ctx.args.routing.counts[row + index] = static_cast<std::int32_t>(low);
        }
        return true;
    }
    const StepHeader own =
        ctx.args.mode == RoutingMode::fresh ? StepHeader::fresh : StepHeader::cached;
    const auto header = static_cast<StepHeader>(low);
    if (header == own) return true;
    report_fault(
        scope, WaitTarget{source, -1, static_cast<std::uint64_t>(own)},
        header == StepHeader::refused ? DeviceFault::peer_refused : DeviceFault::mode_mismatch,
        static_cast<std::uint64_t>(low), 0);
    ctx.poison();
    return false;
}

/// Waits for the count rows that come over GIN. Block-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool receive_gin_rows(const DispatchContext<R>& ctx) {
    bool good = true;
    const SignalShadow shadow(ctx.peers);
    GIMLET_ROLLED
    for (std::int32_t source = thread_index(); source < ctx.peers.rank_count;
         source += block_threads()) {
        if (ctx.is_lsa(source)) continue;
        good = good && shadow.wait_meet(ctx.wait_scope(Primitive::count_exchange), source,
                                        ctx.contexts().notify_context(),
                                        ctx.signals().count_row(source), 1) == WaitStatus::ok;
    }
    return block_all(good);
}

/// Waits until every rank's count row of this step is here, and fills the block's count tables
/// (zero before) from the rows (fresh) or from the routing (cached). Block-uniform verdict.
/// Afterwards every peer has entered this step, so what it read of the receive buffers two steps
/// ago is over.
template <Reach R>
GIMLET_DEVICE bool receive_counts(const DispatchContext<R>& ctx) {
    if constexpr (R == Reach::gin) {
        if (!receive_gin_rows(ctx)) return false;
    }
    const bool fresh = ctx.args.mode == RoutingMode::fresh;
    const std::int32_t words = needed_words(ctx);
    const std::int32_t waited = 1 + (fresh ? words : 0);
    bool good = true;
    const std::int64_t all = static_cast<std::int64_t>(waited) * ctx.peers.rank_count;
    GIMLET_ROLLED
    for (std::int64_t i = thread_index(); i < all && good; i += block_threads()) {
        good = receive_count_word(ctx, static_cast<std::int32_t>(i / waited),
                                  static_cast<std::int32_t>(i % waited));
    }
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); !fresh && i < words * ctx.peers.rank_count;
         i += block_threads()) {
        const std::int32_t source = i / words;
        const std::int64_t row =
            static_cast<std::int64_t>(source) * ctx.peers.shape.count_row_words();
        const std::int32_t index = 1 + i % words;
        take_count(ctx, source, index, ctx.args.routing.counts[row + index]);
    }
    return block_all(good);
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/dispatch_context.hpp"
#include "device/sync/signal_shadow.hpp"

// Phase 1 of a fresh dispatch: every block counts its own tokens, the blocks exchange counts
// through local memory, and block p sends this rank's count row to peer p (p, p + blocks, ...). Of
// a few tokens every block counts all.
namespace gimlet::device {

struct TokenRange {
    std::int32_t begin;
    std::int32_t end;
};

/// The part of the tokens which the block counts that count warp `warp` owns; empty for the other
/// warps.
template <Reach R>
GIMLET_DEVICE TokenRange warp_tokens(const DispatchContext<R>& ctx, std::int32_t warp) {
    const bool alone = ctx.counts_alone() && !mutated(Mutant::count_alone_own_tokens);
    const std::int32_t first = alone ? 0 : ctx.token_begin;
    const std::int32_t end = alone ? ctx.args.token_count : ctx.token_end;
    TokenRange range{first + warp * ctx.tokens_per_warp, first + (warp + 1) * ctx.tokens_per_warp};
    if (range.begin > end || warp >= ctx.exchange.shape.count_warps) range.begin = end;
    if (range.end > end || warp >= ctx.exchange.shape.count_warps) range.end = end;
    return range;
}

/// The lanes of a warp in groups: each group looks at one token, each lane at one choice.
struct TokenGroups {
    std::int32_t count;   ///< tokens that the warp looks at together
    std::int32_t group;   ///< the lane's group
    std::int32_t choice;  ///< the lane's choice, may be K or more

    template <Reach R>
    GIMLET_DEVICE explicit TokenGroups(const DispatchContext<R>& ctx) {
        count = kWarpSize >> ctx.group_bits;
        group = lane_index() >> ctx.group_bits;
        choice = lane_index() - (group << ctx.group_bits);
    }
};

/// The lane's choice in some consecutive steps of TokenGroups::count tokens, as it was loaded. -1:
/// masked, lane beyond K, or no token.
inline constexpr std::int32_t kStepsAhead = 4;
struct TokenBatch {
    std::int64_t raw[kStepsAhead];

    /// raw[i] by selection: an index would move the array out of registers.
    GIMLET_DEVICE std::int64_t at(std::int32_t i) const {
        std::int64_t value = raw[0];
        GIMLET_UNROLL
        for (std::int32_t j = 1; j < kStepsAhead; ++j) value = i == j ? raw[j] : value;
        return value;
    }
};

/// Loads the choices of the steps that start at token `first`, of tokens below `end`; all loads are
/// in flight together, and nobody looks at them here.
template <Reach R>
GIMLET_DEVICE TokenBatch load_choices(const DispatchContext<R>& ctx, const TokenGroups& groups,
                                      std::int32_t first, std::int32_t end) {
    TokenBatch batch;
    GIMLET_UNROLL
    for (std::int32_t i = 0; i < kStepsAhead; ++i) {
        const std::int32_t token = first + i * groups.count + groups.group;
        const bool mine = token < end && groups.choice < ctx.exchange.topk;
        batch.raw[i] = mine ? ctx.raw_expert(token, groups.choice) : -1;
    }
    return batch;
}

/// The expert of a loaded choice, -1 = masked (or on an excluded rank), below: a fault.
template <Reach R>
GIMLET_DEVICE std::int32_t checked_expert(const DispatchContext<R>& ctx, std::int64_t raw) {
    const bool odd = raw < -1 || raw >= ctx.experts.expert_count;
    return odd                   ? mutate(Mutant::count_range_accepted, -2, -1)
           : ctx.is_dropped(raw) ? -1
                                 : static_cast<std::int32_t>(raw);
}

/// Calls `visit(token, expert)` for each step of `range`: `token` is the lane's, `expert` its
/// choice there (-1: none). Whole warp. `first` holds the choices of the range's first steps.
template <Reach R, class Visit>
GIMLET_DEVICE void visit_tokens(const DispatchContext<R>& ctx, const TokenGroups& groups,
                                const TokenRange& range, const TokenBatch& first,
                                const Visit& visit) {
    TokenBatch batch = first;
    std::int32_t step = 0;
    GIMLET_ROLLED
    for (std::int32_t begin = range.begin; begin < range.end; begin += groups.count, ++step) {
        if (step == kStepsAhead) {
            batch = load_choices(ctx, groups, begin, range.end);
            step = 0;
        }
        visit(begin + groups.group, checked_expert(ctx, batch.at(step)));
    }
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
GIMLET_DEVICE bool check_choices(const DispatchContext<R>& ctx, const TokenGroups& groups,
                                 std::int32_t token, std::int32_t expert) {
    const std::int32_t mark =
        expert >= 0 ? groups.group * ctx.experts.expert_count + expert : expert;
    const std::uint32_t same = __match_any_sync(0xffffffffu, mark);
    const bool duplicate =
        expert >= 0 && (same & (same - 1)) != 0 && !mutated(Mutant::count_duplicate_accepted);
    if (!warp_any(duplicate || expert < -1)) return false;
    if (duplicate || expert < -1) {
        refuse_choice(ctx.wait_scope(Primitive::none), ctx.raw_expert(token, groups.choice),
                      ctx.experts.expert_count, token,
                      duplicate ? DeviceFault::duplicate_expert : DeviceFault::expert_out_of_range);
    }
    return true;
}

/// Lanes of the warp with the same key, and the lane's place among them.
struct KeyPeers {
    std::int32_t before;
    std::int32_t count;

    GIMLET_DEVICE explicit KeyPeers(std::int32_t key) {
        const std::uint32_t same = __match_any_sync(0xffffffffu, key);
        before = __popc(same & ((1u << lane_index()) - 1u));
        count = __popc(same);
    }
    GIMLET_DEVICE bool leads() const { return before == 0; }
};

/// Adds one token a group to the warp's keys and the block's counts. Whole warp.
template <Reach R>
GIMLET_DEVICE void count_step(const DispatchContext<R>& ctx, const TokenGroups& groups,
                              std::int32_t* keys, std::int32_t expert) {
    const TokenChoices choice = token_choices(ctx, groups.group, expert);
    const KeyPeers peers(choice.key);
    if (choice.key >= 0 && peers.leads()) keys[choice.key] += peers.count;
    if (!ctx.rank_major() && choice.opens_rank) atomicAdd(ctx.block_counts + choice.rank, 1);
    if (ctx.rank_major() && expert >= 0)
        atomicAdd(ctx.block_counts + ctx.peers.rank_count + expert, 1);
    warp_sync();
}

/// Word `word` of this block's counts (tokens per rank, then per expert): counts of keys are kept
/// by warp.
template <Reach R>
GIMLET_DEVICE std::int32_t block_count_word(const DispatchContext<R>& ctx, std::int32_t word) {
    const std::int32_t key = ctx.rank_major() ? word : word - ctx.peers.rank_count;
    const std::int32_t keys = ctx.key_total_count();
    if (key < 0 || key >= keys) return ctx.block_counts[word];
    std::int32_t sum = 0;
    GIMLET_ROLLED
    for (std::int32_t warp = 0; warp < ctx.exchange.shape.count_warps; ++warp)
        sum += ctx.warp_keys[warp * keys + key];
    return sum;
}

/// Publishes block_counts to the other blocks. A fault shows in all words: every block that reads
/// one refuses the step with it. Whole block, behind a block barrier.
template <Reach R>
GIMLET_DEVICE void publish_block_counts(const DispatchContext<R>& ctx) {
    const std::int32_t words = ctx.peers.shape.block_row_words();
    auto* row =
        reinterpret_cast<std::uint64_t*>(ctx.peers.local + ctx.peers.layout.block_counts) +
        (static_cast<std::int64_t>(ctx.parity) * ctx.peers.shape.block_count + block_index()) *
            words;
    const std::uint32_t mark = *ctx.verdict != 0 ? kRefused : 0u;
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < words; i += block_threads()) {
        store_relaxed<Scope::gpu>(
            row + i,
            tagged(ctx.epoch, static_cast<std::uint32_t>(block_count_word(ctx, i)) | mark));
    }
}

/// Fills block_counts and warp_keys (both zero before) from the block's tokens, or the rank's, and
/// publishes the counts of its own. `first` holds the choices of the warp's first tokens. Contains
/// block barriers.
template <Reach R>
GIMLET_DEVICE void count_tokens(const DispatchContext<R>& ctx, const TokenBatch& first) {
    const std::int32_t warp = warp_index();
    const TokenGroups groups(ctx);
    std::int32_t* keys = ctx.warp_keys + warp * ctx.key_total_count();
    bool fault = false;
    visit_tokens(ctx, groups, warp_tokens(ctx, warp), first,
                 [&](std::int32_t token, std::int32_t expert) {
                     const bool bad = check_choices(ctx, groups, token, expert);
                     fault = fault || bad;
                     if (!bad) count_step(ctx, groups, keys, expert);
                 });
    if (fault && lane_index() == 0) ctx.fail_block();
    block_sync();
    if (ctx.counts_alone()) return;
    publish_block_counts(ctx);
    block_sync();  // what was published is about to become ordinals
}

/// A sum over the blocks' count words; kShare neighbouring lanes share one sum.
inline constexpr std::int32_t kShare = 4;

struct BlockSum {
    std::int32_t value;
    WaitStatus status;
    bool refused;  ///< some block found a fault
};

/// The lane's share of the sum over blocks [0, block_end) of word `word` of their rows; waits for
/// the words.
template <Reach R>
GIMLET_DEVICE BlockSum sum_over_blocks(const DispatchContext<R>& ctx, std::int32_t word,
                                       std::int32_t block_end) {
    constexpr std::int32_t kAhead = 8;  // loads in flight
    const std::int32_t words = ctx.peers.shape.block_row_words();
    const auto* rows =
        reinterpret_cast<const std::uint64_t*>(ctx.peers.local + ctx.peers.layout.block_counts) +
        static_cast<std::int64_t>(ctx.parity) * ctx.peers.shape.block_count * words + word;
    // Own blocks publish before they wait for others. Whatever ends a wait for others (poison, the
    // board) must not end this one: peers would be told of a refusal that is none.
    WaitScope scope = ctx.wait_scope(Primitive::count_exchange);
    scope.poison = nullptr;
    scope.group = nullptr;
    const WaitTarget target{ctx.peers.rank, -1, ctx.epoch};
    BlockSum out{0, WaitStatus::ok, false};
    GIMLET_ROLLED
    for (std::int32_t first = lane_index() % kShare; first < block_end; first += kShare * kAhead) {
        std::uint64_t value[kAhead];
        const WaitStatus status = wait_until(scope, target, [&](std::uint64_t& seen) {
            GIMLET_UNROLL
            for (std::int32_t i = 0; i < kAhead; ++i) {
                const std::int32_t block = first + i * kShare;
                value[i] =
                    block < block_end
                        ? load_relaxed<Scope::gpu>(rows + static_cast<std::int64_t>(block) * words)
                        : tagged(ctx.epoch, 0);
            }
            bool all = true;
            GIMLET_UNROLL
            for (std::int32_t i = 0; i < kAhead; ++i) {
                if (has_tag(value[i], ctx.epoch)) continue;
                all = false;
                seen = value[i] >> 32;
            }
            return all;
        });
        if (status != WaitStatus::ok) {
            out.status = status;
            ctx.poison();
        }
        GIMLET_UNROLL
        for (std::int32_t i = 0; i < kAhead; ++i) {
            const auto low = static_cast<std::uint32_t>(value[i]);
            out.refused = out.refused || (low & kRefused) != 0;
            out.value += static_cast<std::int32_t>(low & ~kRefused);
        }
    }
    return out;
}

/// True in all kShare lanes of a sum if it is in one of them; every lane of the warp must call.
GIMLET_DEVICE bool group_any(bool value) {
    const std::uint32_t shares = (1u << kShare) - 1u;
    return (warp_ballot(value) & shares << (lane_index() / kShare * kShare)) != 0;
}

/// Adds the kShare lanes' shares; every lane of the warp must call.
GIMLET_DEVICE std::int32_t reduce_share(std::int32_t value) {
    GIMLET_ROLLED
    for (std::int32_t step = kShare / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/// Turns the warps' counts of `key` into the running ordinals that slots start from: `before`
/// tokens of lower blocks, plus those of lower count warps. One thread.
template <Reach R>
GIMLET_DEVICE void start_ordinals(const DispatchContext<R>& ctx, std::int32_t key,
                                  std::int32_t before) {
    const std::int32_t keys = ctx.key_total_count();
    std::int32_t running = before;
    GIMLET_ROLLED
    for (std::int32_t warp = 0; warp < ctx.exchange.shape.count_warps; ++warp) {
        std::int32_t& cell = ctx.warp_keys[warp * keys + key];
        const std::int32_t here = cell;
        cell = running;
        running += mutate(Mutant::count_warps_not_summed, here, 0);
    }
}

/// The block word behind word `index` (1 ..) of the count row that `peer` gets: rank counts, then
/// the expert counts that it needs; -1: none, the word is 0.
template <Reach R>
GIMLET_DEVICE std::int32_t source_word(const DispatchContext<R>& ctx, std::int32_t peer,
                                       std::int32_t index) {
    const std::int32_t ranks = ctx.peers.rank_count;
    if (index < 1 + ranks) return index - 1;
    const std::int32_t expert = index - 1 - ranks;
    if (ctx.wide_counts()) return ranks + expert;
    return expert < ctx.experts.local_count(peer) ? ranks + ctx.experts.first(peer) + expert : -1;
}

/// Block b tells peers number b, b + blocks, ... this rank's counts: how many those are. The peers
/// are all ranks; hybrid: the members of this team, then the other ranks of this rail, who hand the
/// counts on to their teams.
template <Reach R>
GIMLET_DEVICE std::int32_t served_count(const DispatchContext<R>& ctx) {
    const std::int32_t peers =
        has_rail(R) ? ctx.peers.lsa_size + ctx.exchange.rail.peer_count() : ctx.peers.rank_count;
    const std::int32_t left = peers - block_index();
    return left > 0 ? (left + block_count() - 1) / block_count() : 0;
}

/// The `i`-th of them.
template <Reach R>
GIMLET_DEVICE std::int32_t served_peer(const DispatchContext<R>& ctx, std::int32_t i) {
    const std::int32_t number = block_index() + i * block_count();
    if constexpr (!has_rail(R)) return number;
    const std::int32_t other = number - ctx.peers.lsa_size;
    if (other < 0) return lsa_member(ctx.peers, number);
    return ctx.exchange.rail.team_of(other) * ctx.peers.lsa_size + ctx.peers.lsa_rank;
}

/// Row offset of `peer` among the rows that wait to be put.
template <Reach R>
GIMLET_DEVICE std::uint64_t count_send_offset(const DispatchContext<R>& ctx, std::int32_t peer) {
    const std::uint64_t row = static_cast<std::uint64_t>(ctx.parity) * ctx.peers.rank_count + peer;
    return ctx.peers.layout.count_send + row * ctx.peers.shape.count_row_words() * 8u;
}

/// Where this rank's count row for `peer` is written: there, or to be put there.
template <Reach R>
GIMLET_DEVICE std::uint64_t* count_row_out(const DispatchContext<R>& ctx, std::int32_t peer) {
    return reinterpret_cast<std::uint64_t*>(
        ctx.is_lsa(peer) ? peer_pointer(ctx.peers, peer, ctx.count_row_offset(ctx.peers.rank))
                         : ctx.peers.local + count_send_offset(ctx, peer));
}

/// Writes word `index` of the count row of `peer`: with the refusal, if this rank refuses and says
/// so for the first time.
template <Reach R>
GIMLET_DEVICE void write_count(const DispatchContext<R>& ctx, std::int32_t peer, std::int32_t index,
                               std::int32_t value, bool refused) {
    if (refused && !ctx.tells_refusal()) return;
    const bool says = refused && !mutated(Mutant::count_refusal_unsaid);
    store_relaxed<Scope::system>(
        count_row_out(ctx, peer) + index,
        tagged(ctx.epoch, static_cast<std::uint32_t>(value) | (says ? kRefused : 0u)));
}

/// sum_counts of a block that has counted all of the rank's tokens: it waits for nobody. Contains
/// a block barrier.
template <Reach R>
GIMLET_DEVICE bool tell_counts(const DispatchContext<R>& ctx) {
    const std::int32_t words = ctx.peers.rank_count + ctx.peers.shape.expert_words;
    const bool refused = *ctx.verdict != 0;
    GIMLET_ROLLED
    for (std::int32_t task = thread_index(); task < served_count(ctx) * words;
         task += block_threads()) {
        const std::int32_t peer = served_peer(ctx, task / words);
        if (ctx.excluded(peer)) continue;
        const std::int32_t index = 1 + task % words;
        const std::int32_t word = source_word(ctx, peer, index);
        write_count(ctx, peer, index, word < 0 ? 0 : block_count_word(ctx, word), refused);
    }
    // What was told is about to become ordinals.
    if (!mutated(Mutant::count_alone_no_sync)) block_sync();
    GIMLET_ROLLED
    for (std::int32_t key = thread_index(); key < ctx.key_total_count(); key += block_threads())
        start_ordinals(ctx, key, 0);
    return !refused;
}

/// Sums over the blocks, all side by side: words for the peers that this block serves, and the
/// ordinals of this block's own tokens. Returns false if a wait failed or a block found a fault;
/// then the words carry the refusal, so that peers leave at once instead of at their deadline.
template <Reach R>
GIMLET_DEVICE bool sum_counts(const DispatchContext<R>& ctx) {
    const std::int32_t words = ctx.peers.rank_count + ctx.peers.shape.expert_words;
    const std::int32_t sends = served_count(ctx) * words;
    const std::int32_t first_key_word = ctx.rank_major() ? 0 : ctx.peers.rank_count;
    const std::int32_t tasks = sends + ctx.key_total_count();
    bool good = true;
    GIMLET_ROLLED
    for (std::int32_t base = 0; base < tasks; base += block_threads() / kShare) {
        const std::int32_t task = base + thread_index() / kShare;
        const bool send = task < sends;
        const std::int32_t peer = served_peer(ctx, send ? task / words : 0);
        const bool skip = send && ctx.excluded(peer);
        const std::int32_t index = 1 + task % words;
        std::int32_t word = -1;
        if (skip) {
            word = -1;
        } else if (send) {
            word = source_word(ctx, peer, index);
        } else if (task < tasks) {
            word = first_key_word + task - sends;
        }
        const std::int32_t lower = mutate(Mutant::count_blocks_not_summed, block_index(), 0);
        BlockSum sum{0, WaitStatus::ok, false};
        if (word >= 0) sum = sum_over_blocks(ctx, word, send ? block_count() : lower);
        const std::int32_t value = reduce_share(sum.value);
        const bool refused = group_any(sum.refused || sum.status != WaitStatus::ok);
        good = good && !refused;
        if (lane_index() % kShare != 0 || task >= tasks || skip) continue;
        if (send) {
            write_count(ctx, peer, index, value, refused);
        } else {
            start_ordinals(ctx, task - sends, value);
        }
    }
    return good;
}

/// Header of this step's count rows.
template <Reach R>
GIMLET_DEVICE StepHeader step_header(const DispatchContext<R>& ctx) {
    return ctx.args.mode == RoutingMode::fresh ? StepHeader::fresh : StepHeader::cached;
}

/// Last warp of the block: tells the served peers that this rank has entered the step. Early, since
/// nobody here waits for it.
template <Reach R>
GIMLET_DEVICE void send_headers(const DispatchContext<R>& ctx) {
    if (warp_index() != warp_count() - 1) return;
    const bool refuses = ctx.refuses();
    if (refuses && !ctx.tells_refusal()) return;
    const std::uint64_t header =
        tagged(ctx.epoch, static_cast<std::uint32_t>(step_header(ctx)) | (refuses ? kRefused : 0u));
    GIMLET_ROLLED
    for (std::int32_t i = lane_index(); i < served_count(ctx); i += kWarpSize) {
        // Release: what this rank read of the receive buffers in earlier steps is over before the
        // peer may write them. (Behind GIN the put of the row releases.)
        const std::int32_t peer = served_peer(ctx, i);
        if (ctx.excluded(peer)) continue;
        if (mutated(Mutant::count_header_relaxed)) {
            store_relaxed<Scope::system>(count_row_out(ctx, peer), header);
        } else {
            store_release<Scope::system>(count_row_out(ctx, peer), header);
        }
    }
}

/// Puts this rank's count rows to the served peers that have no LSA, each with a weak signal.
/// Behind a block barrier after all words of the rows.
template <Reach R>
GIMLET_DEVICE void put_count_rows(const DispatchContext<R>& ctx) {
    const bool fresh = ctx.args.mode == RoutingMode::fresh;
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(fresh ? ctx.peers.shape.count_row_words() : 2) * 8u -
        mutate(Mutant::count_row_short, 0, fresh ? 16 : 0);
    const ncclGin gin = gin_context(ctx.peers, ctx.contexts().notify_context());
    GIMLET_ROLLED
    for (std::int32_t i = thread_index(); i < served_count(ctx); i += block_threads()) {
        const std::int32_t peer = served_peer(ctx, i);
        if (ctx.is_lsa(peer) || ctx.excluded(peer)) continue;
        const std::uint64_t target = has_rail(R)
                                         ? ctx.rail_count_row_offset(ctx.exchange.rail.team_index)
                                         : ctx.count_row_offset(ctx.peers.rank);
        gin.put(world_team(ctx.peers), peer, ctx.peers.window, target, ctx.peers.window,
                count_send_offset(ctx, peer), bytes,
                ncclGin_WeakSignalInc{ctx.signals().count_row(ctx.peers.rank)});
    }
}

/// Tells the served peers this rank's counts (cached: nothing beyond the header) or, once, that it
/// refuses; and turns warp_keys into running ordinals. Whole block; contains block barriers.
/// Block-uniform: false = refused.
template <Reach R>
GIMLET_DEVICE bool send_counts(const DispatchContext<R>& ctx) {
    const bool good = ctx.args.mode != RoutingMode::fresh ||
                      (ctx.counts_alone() ? tell_counts(ctx) : sum_counts(ctx));
    const bool all_good = block_all(good && *ctx.verdict == 0);
    if constexpr (!is_lsa_only(R)) {
        if (all_good || ctx.tells_refusal()) put_count_rows(ctx);
    }
    return all_good;
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
        if (source < me + mutate(Mutant::count_base_off_by_one, 0, 1))
            atomicAdd(ctx.key_base + key, rows);
        if (source == me) ctx.key_count[key] = rows;
    }
    if (is_rank) {
        if (ctx.rank_major() && entry == me) ctx.source_rows[source] = rows;
        return;
    }
    const std::int32_t local =
        ctx.wide_counts() ? entry - ranks - ctx.experts.first(me) : entry - ranks;
    if (local < 0 || local >= ctx.experts.local_count(me)) return;
    atomicAdd(ctx.expert_rows + local, rows);
    if (!ctx.rank_major()) atomicAdd(ctx.source_rows + source, rows);
}

/// Words of a count row that this block needs beside the header.
template <Reach R>
GIMLET_DEVICE std::int32_t needed_words(const DispatchContext<R>& ctx) {
    const bool experts = !ctx.rank_major() || block_index() == 0;  // record_step needs them
    return ctx.peers.rank_count + (experts ? ctx.peers.shape.expert_words : 0);
}

/// Block 0 keeps the counts for the routing.
template <Reach R>
GIMLET_DEVICE void keep_count(const DispatchContext<R>& ctx, std::int32_t source,
                              std::int32_t index, std::int32_t rows) {
    if (block_index() != 0 || index == 0) return;
    const std::int64_t row = static_cast<std::int64_t>(source) * ctx.peers.shape.count_row_words();
    ctx.args.routing.counts[row + index] = rows;
}

/// Waits for one word of a count row; checks the header, or takes the count. Block 0 also keeps it
/// for the routing. The header is acquired: what its rank read of the receive buffers in earlier
/// steps is over.
template <Reach R>
GIMLET_DEVICE bool receive_count_word(const DispatchContext<R>& ctx, std::int32_t source,
                                      std::int32_t index) {
    const std::uint64_t* at = ctx.count_row(source) + index;
    if (ctx.excluded(source)) {
        keep_count(ctx, source, index, 0);
        return true;
    }
    const WaitScope scope = ctx.wait_scope(Primitive::count_exchange);
    std::uint64_t value = 0;
    const WaitStatus status =
        wait_until(scope, WaitTarget{source, -1, ctx.epoch}, [&](std::uint64_t& seen) {
            value = index == 0 && !mutated(Mutant::count_header_not_acquired)
                        ? load_acquire<Scope::system>(at)
                        : load_relaxed<Scope::system>(at);
            seen = value >> 32;
            return has_tag(value, ctx.epoch);
        });
    if (status != WaitStatus::ok) return false;
    const auto low = static_cast<std::uint32_t>(value);
    const bool counts = index > 0;
    const StepHeader own = step_header(ctx);
    const bool refused = (low & kRefused) != 0 && !mutated(Mutant::count_refusal_ignored);
    if (refused || (!counts && static_cast<StepHeader>(low) != own)) {
        report_fault(scope, WaitTarget{source, -1, static_cast<std::uint64_t>(own)},
                     refused ? DeviceFault::peer_refused : DeviceFault::mode_mismatch, low, 0);
        ctx.poison();
        return false;
    }
    if (!counts) return true;
    take_count(ctx, source, index, static_cast<std::int32_t>(low));
    keep_count(ctx, source, index, static_cast<std::int32_t>(low));
    return true;
}

/// Waits for the count rows that come over GIN. Block-uniform verdict.
template <Reach R>
GIMLET_DEVICE bool receive_gin_rows(const DispatchContext<R>& ctx) {
    bool good = true;
    const SignalShadow shadow(ctx.peers);
    GIMLET_ROLLED
    for (std::int32_t source = thread_index(); source < ctx.peers.rank_count;
         source += block_threads()) {
        if (ctx.is_lsa(source) || ctx.excluded(source)) continue;
        good = good &&
               shadow.wait_meet(ctx.wait_scope(Primitive::count_exchange), source,
                                ctx.contexts().notify_context(), ctx.signals().count_row(source),
                                mutate(Mutant::count_row_not_awaited, 1, 0)) == WaitStatus::ok;
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

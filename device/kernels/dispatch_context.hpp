// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/context_map.hpp"
#include "device/core/bulk.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/dispatch_shared.hpp"
#include "device/kernels/reach.hpp"
#include "device/kernels/report_board.hpp"

namespace gimlet::device {

/// Header word of a count row: what kind of step the sender is in.
enum class StepHeader : std::uint32_t { fresh = 0, cached = 1 };

/// Mark of a header or count word: its sender refuses the step and will send no rows.
inline constexpr std::uint32_t kRefused = 1u << 31;

/// Tagged words carry their epoch's low half beside a 32-bit value, so that one relaxed 8-byte
/// store is both data and flag, and no word is ever reset.
GIMLET_DEVICE std::uint64_t tagged(std::uint64_t epoch, std::uint32_t value) {
    return epoch << 32 | value;
}
GIMLET_DEVICE bool has_tag(std::uint64_t word, std::uint64_t epoch) {
    if (mutated(Mutant::count_tag_ignored)) return true;
    if (mutated(Mutant::count_tag_one_bit)) return (word >> 32 & 1u) == (epoch & 1u);
    return static_cast<std::uint32_t>(word >> 32) == static_cast<std::uint32_t>(epoch);
}

/// Tokens of its block that a copy warp moves first: their rows are on the way before slots are
/// known, and their slots are written by its own block.
inline constexpr std::int32_t kOwnTokensPerWarp = 2;

/// Whose tokens the count warps of a block count. `rank`: every block counts all of the rank's
/// tokens, which for a few is faster than an exchange of counts between the blocks.
enum class CountRange : std::int32_t { block, rank };

/// What the kernel gets: the caller's arguments, and what the host worked out from them once.
struct DispatchKernelArgs {
    DispatchArgs args;
    DispatchSharedLayout shared;
    ExpertLookup experts;
    std::int32_t tokens_per_block;
    std::int32_t tokens_per_warp;  ///< of the count warps
    std::int32_t group_bits;       ///< log2 of the lanes that look at one token: at least K
    CountRange count_range;
};

/// One block's view of a running dispatch: its pointers into shared memory, its tokens, its epoch.
template <Reach R>
struct DispatchContext {
    const DispatchArgs& args;
    const ExchangeArgs& exchange;
    const PeerHandles& peers;
    const ExpertLookup& experts;
    std::byte* slots;
    Mbarrier* mbarriers;
    std::uint64_t* peer_base;
    std::int32_t* key_base;
    std::int32_t* key_count;
    std::int32_t* key_send;
    std::int32_t* key_chunk;
    std::int32_t* key_total;
    std::int32_t* block_counts;
    std::int32_t* warp_keys;
    std::int32_t* source_rows;
    std::int32_t* expert_rows;
    std::int32_t* rail_words;
    std::uint64_t* stream_words;
    std::uint32_t* verdict;
    EpochWords* epochs;
    std::uint64_t epoch;
    std::uint64_t step;  ///< number among all steps of the window
    std::int32_t parity;
    std::uint32_t excluded_ranks;  ///< how many there are
    bool failed;                   ///< an earlier step has failed; threads may see this differently
    std::int32_t token_begin;      ///< this block's tokens: [token_begin, token_end)
    std::int32_t token_end;
    std::int32_t tokens_per_block;
    std::int32_t tokens_per_warp;
    std::int32_t group_bits;
    CountRange count_range;

    GIMLET_DEVICE explicit DispatchContext(const DispatchKernelArgs& k)
        : args(k.args),
          exchange(k.args.exchange),
          peers(k.args.exchange.peers),
          experts(k.experts) {
        std::byte* shared = dynamic_shared_memory();
        const DispatchSharedLayout& layout = k.shared;
        slots = shared + layout.slots;
        mbarriers = reinterpret_cast<Mbarrier*>(shared + layout.mbarriers);
        peer_base = reinterpret_cast<std::uint64_t*>(shared + layout.peer_base);
        key_base = reinterpret_cast<std::int32_t*>(shared + layout.key_base);
        key_count = reinterpret_cast<std::int32_t*>(shared + layout.key_count);
        key_send = reinterpret_cast<std::int32_t*>(shared + layout.key_send);
        key_chunk = reinterpret_cast<std::int32_t*>(shared + layout.key_chunk);
        key_total = reinterpret_cast<std::int32_t*>(shared + layout.key_total);
        block_counts = reinterpret_cast<std::int32_t*>(shared + layout.block_counts);
        warp_keys = reinterpret_cast<std::int32_t*>(shared + layout.warp_keys);
        source_rows = reinterpret_cast<std::int32_t*>(shared + layout.source_rows);
        expert_rows = reinterpret_cast<std::int32_t*>(shared + layout.expert_rows);
        rail_words = reinterpret_cast<std::int32_t*>(shared + layout.rail);
        stream_words = reinterpret_cast<std::uint64_t*>(shared + layout.stream);
        verdict = reinterpret_cast<std::uint32_t*>(shared + layout.verdict);
        epochs = reinterpret_cast<EpochWords*>(peers.local + peers.layout.epochs);
        epoch = epochs->dispatch + 1;
        step = epochs->dispatch + epochs->combine + 1;
        excluded_ranks = epochs->excluded_count;
        failed = failed_before(epochs);
        parity =
            static_cast<std::int32_t>(mutate(Mutant::dispatch_one_buffer, epoch, 1) % kBufferCount);
        tokens_per_block = k.tokens_per_block;
        tokens_per_warp = k.tokens_per_warp;
        group_bits = k.group_bits;
        count_range = k.count_range;
        const std::int32_t begin = block_index() * k.tokens_per_block;
        token_begin = begin < args.token_count ? begin : args.token_count;
        token_end = begin + k.tokens_per_block;
        if (token_end > args.token_count) token_end = args.token_count;
        if (token_end < token_begin) token_end = token_begin;
    }

    /// Tokens of one copy warp, where it has a channel.
    GIMLET_DEVICE std::int32_t tokens_per_channel() const {
        return tokens_per_block / exchange.shape.copy_warps;
    }
    GIMLET_DEVICE bool counts_alone() const { return count_range == CountRange::rank; }
    GIMLET_DEVICE bool is_own_token(std::int32_t token) const {
        return token >= token_begin && token < token_end;
    }
    /// Tokens of each block, from its first, that its own copy warps move; the others are drawn.
    GIMLET_DEVICE std::int32_t own_copy_tokens() const {
        const std::int32_t own = kOwnTokensPerWarp * exchange.shape.copy_warps;
        return own < tokens_per_block ? own : tokens_per_block;
    }
    /// The token that `ticket` stands for, -1 = all are given away. Block after block: tickets that
    /// are drawn at the same time give neighbouring rows, which the memory likes.
    GIMLET_DEVICE std::int32_t drawn_token(std::uint32_t ticket) const {
        const std::int32_t own = own_copy_tokens();
        const auto rest = static_cast<std::uint32_t>(tokens_per_block - own);
        if (rest == 0) return -1;
        const auto token = static_cast<std::int32_t>(ticket / rest) * tokens_per_block + own +
                           static_cast<std::int32_t>(ticket % rest);
        return token < args.token_count ? token : -1;
    }
    GIMLET_DEVICE bool rank_major() const { return exchange.layout == Layout::rank_major; }
    GIMLET_DEVICE std::int32_t key_total_count() const {
        return rank_major() ? peers.rank_count : experts.expert_count;
    }
    GIMLET_DEVICE std::int32_t rank_of_key(std::int32_t key) const {
        return rank_major() ? key : experts.rank_of(key);
    }
    /// Whether count rows hold the experts of all ranks, or only those of the rank that gets them.
    GIMLET_DEVICE bool wide_counts() const { return has_rail(R) || !rank_major(); }
    /// Index of a key's count in a count row.
    GIMLET_DEVICE std::int32_t key_word(std::int32_t key) const {
        return rank_major() ? 1 + key : 1 + peers.rank_count + key;
    }
    GIMLET_DEVICE bool is_lsa(std::int32_t rank) const {
        return is_lsa_only(R) || is_lsa_peer(peers, rank);
    }
    /// The step belongs to the other buffer than the addresses of this call.
    GIMLET_DEVICE bool wrong_buffer() const {
        return args.expected_parity >= 0 && args.expected_parity != parity;
    }
    /// This rank sends nothing in this step, whatever its tokens are.
    GIMLET_DEVICE bool refuses() const {
        return failed || wrong_buffer() || args.refuse != 0 || rails_left();
    }
    /// The launch is older than an exclusion, after which the Exchange left hybrid mode.
    GIMLET_DEVICE bool rails_left() const { return has_rail(R) && excluded_ranks != 0; }
    GIMLET_DEVICE bool tells_refusal() const {
        return device::tells_refusal(&epochs->dispatch_refused, epoch);
    }
    GIMLET_DEVICE bool excluded(std::int32_t rank) const {
        return is_excluded(peers, excluded_ranks, rank);
    }
    GIMLET_DEVICE SignalMap signals() const { return SignalMap{peers.rank_count}; }
    GIMLET_DEVICE ContextMap contexts() const { return ContextMap{peers.gin_context_count}; }

    /// This rank's received rows of the step.
    GIMLET_DEVICE std::byte* own_rows() const {
        if constexpr (has_rings(R)) return args.out_rows[parity];
        return reinterpret_cast<std::byte*>(peer_base[peers.rank]) +
               exchange.regions.recv_rows[parity];
    }
    GIMLET_DEVICE std::byte* own_records() const {
        if constexpr (has_rings(R)) return args.out_records[parity];
        return reinterpret_cast<std::byte*>(peer_base[peers.rank]) +
               exchange.regions.recv_meta[parity];
    }

    /// Rows of source `s` in the count table of this epoch's parity.
    GIMLET_DEVICE std::uint64_t count_row_offset(std::int32_t source) const {
        const std::uint64_t row = static_cast<std::uint64_t>(parity) * peers.rank_count + source;
        return peers.layout.count_rows + row * peers.shape.count_row_words() * 8u;
    }
    /// Where the count row of team `team`'s member of this rail lands, for this rank to hand on.
    GIMLET_DEVICE std::uint64_t rail_count_row_offset(std::int32_t team) const {
        const std::uint64_t row =
            static_cast<std::uint64_t>(parity) * peers.shape.rail_team_count + team;
        return peers.layout.count_rail + row * peers.shape.count_row_words() * 8u;
    }
    GIMLET_DEVICE const std::uint64_t* count_row(std::int32_t source) const {
        return reinterpret_cast<const std::uint64_t*>(peers.local + count_row_offset(source));
    }
    /// Choice `k` of `token`, -1 if masked. Out-of-range values are reported by count_tokens and
    /// read as masked here.
    GIMLET_DEVICE std::int64_t raw_expert(std::int32_t token, std::int32_t k) const {
        const std::int64_t at = static_cast<std::int64_t>(token) * exchange.topk + k;
        if (args.index_type == IndexType::int64)
            return static_cast<const std::int64_t*>(args.expert_indices)[at];
        return static_cast<const std::int32_t*>(args.expert_indices)[at];
    }
    /// Whether a valid expert lives on an excluded rank: it counts as masked.
    GIMLET_DEVICE bool is_dropped(std::int64_t expert) const {
        return excluded_ranks != 0 && expert >= 0 && expert < experts.expert_count &&
               excluded(experts.rank_of(static_cast<std::int32_t>(expert)));
    }
    GIMLET_DEVICE std::int32_t lane_expert(std::int32_t token, std::int32_t lane) const {
        if (lane >= exchange.topk) return -1;
        const std::int64_t expert = raw_expert(token, lane);
        return expert >= 0 && expert < experts.expert_count ? static_cast<std::int32_t>(expert)
                                                            : -1;
    }

    /// A step behind a failed one says nothing: the ring keeps what led to the failure.
    GIMLET_DEVICE void note(EventKind kind) const {
        if (!failed) note_event(peers, Tag::dispatch, epoch, kind);
    }
    GIMLET_DEVICE WaitScope wait_scope(Primitive primitive) const {
        return WaitScope{.deadline_ns = peers.deadline_ns,
                         .error = peers.error,
                         .poison = &epochs->dispatch_poison,
                         .epoch = epoch,
                         .rank = peers.rank,
                         .tag = Tag::dispatch,
                         .primitive = primitive,
                         .group = &peers,
                         .step = step};
    }
    /// Any threads before the block's counts are published: the block refuses the step. Several may
    /// find a reason at once.
    GIMLET_DEVICE void fail_block() const { store_relaxed<Scope::block>(verdict, 1u); }
    /// Marks the step as failed: other blocks stop waiting and nobody announces the step's rows.
    GIMLET_DEVICE void poison() const {
        store_relaxed<Scope::gpu>(&epochs->dispatch_poison, epoch);
    }
    /// True once any block of this kernel has failed; block-uniform only behind a block barrier.
    GIMLET_DEVICE bool poisoned() const {
        return load_relaxed<Scope::gpu>(&epochs->dispatch_poison) == epoch;
    }
};

/// What a lane knows of its choice of a token.
struct TokenChoices {
    std::int32_t rank;  ///< -1 = masked
    std::int32_t key;   ///< key of the row this choice opens, -1 = none
    bool opens_rank;    ///< the lowest choice of its rank in this token
};

/// Whole warp; lanes with the same `group` hold the choices of one token. rank_major: the lowest
/// choice of each distinct rank opens the row; expert_major: every choice does.
template <Reach R>
GIMLET_DEVICE TokenChoices token_choices(const DispatchContext<R>& ctx, std::int32_t group,
                                         std::int32_t expert) {
    TokenChoices out{-1, -1, false};
    if (expert >= 0) out.rank = ctx.experts.rank_of(expert);
    const std::int32_t mark = expert >= 0 ? group * ctx.peers.rank_count + out.rank : -1;
    const std::uint32_t same = __match_any_sync(0xffffffffu, mark);
    out.opens_rank = expert >= 0 && __ffs(static_cast<int>(same)) - 1 == lane_index();
    if (!ctx.rank_major()) {
        out.key = expert;
    } else if (out.opens_rank) {
        out.key = out.rank;
    }
    return out;
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/signal_map.hpp"
#include "device/abi/types.hpp"

namespace gimlet {

/// Two-level exchange. A rail is the ranks of one LSA index, one in each team. A channel is the
/// tokens of one copy warp of a dispatch; its rows to one team are numbered from 0 and travel in
/// that order on one GIN context. A lane of the rail is a (other team, channel): `pair`.
///
/// Both ends number pairs alike: team `t` is number `index_of(t)` among the teams other than one's
/// own, and pair = index * channel_count + channel.
struct RailShape {
    std::int32_t team_count;     ///< S_out; 0 = direct mode
    std::int32_t team_index;     ///< this rank's LSA team
    std::int32_t channel_count;  ///< copy warps of the dispatch grid
    std::int32_t channel_rows;   ///< most tokens of one channel
    std::int32_t publish_rows;   ///< rows between two moves of a tail
    std::int32_t copy_count;     ///< home rows of one (token, team): 1 with the pre-sum
    PreSum pre_sum;
    std::int32_t padding;

    /// Tokens of each channel but the last ones, of `token_count` tokens.
    constexpr std::int32_t channel_tokens(std::int32_t token_count) const {
        return token_count / channel_count + (token_count % channel_count > 0 ? 1 : 0);
    }
    constexpr bool active() const { return team_count > 0; }
    constexpr std::int32_t peer_count() const { return active() ? team_count - 1 : 0; }
    constexpr std::int32_t pair_count() const { return peer_count() * channel_count; }

    /// Number of team `team` among the teams other than `own`.
    static constexpr std::int32_t index_from(std::int32_t own, std::int32_t team) {
        return team < own ? team : team - 1;
    }
    constexpr std::int32_t index_of(std::int32_t team) const {
        return index_from(team_index, team);
    }
    constexpr std::int32_t team_of(std::int32_t index) const {
        return index < team_index ? index : index + 1;
    }
    constexpr std::int32_t channel_of(std::int32_t pair) const { return pair % channel_count; }
    constexpr std::int32_t team_of_pair(std::int32_t pair) const {
        return team_of(pair / channel_count);
    }
    /// The number that the other end of `pair` gives it.
    constexpr std::int32_t pair_there(std::int32_t pair) const {
        return index_from(team_of_pair(pair), team_index) * channel_count + channel_of(pair);
    }
    /// First row of a pair in the rail buffers.
    constexpr std::int64_t first_row(std::int32_t pair) const {
        return static_cast<std::int64_t>(pair) * channel_rows;
    }
    constexpr std::int64_t row_count() const { return first_row(pair_count()); }
    /// Rows by which the first batch of `pair` is shorter than the others, 0 to publish_rows - 1.
    /// Channels move alike: with equal batches all of them would ring at the same time, and the
    /// rail would rest until then.
    constexpr std::int32_t head_start(std::int32_t pair) const {
        return static_cast<std::int32_t>(static_cast<std::int64_t>(channel_of(pair)) *
                                         publish_rows / channel_count);
    }
};

/// Signals of the rail, behind those of SignalMap. Each is a tail (see SignaledTail) with one
/// sender.
struct RailSignals {
    std::int32_t rank_count;
    std::int32_t team_count;
    std::int32_t channel_count;
    std::int32_t data_context_count;

    /// Channels that share one context.
    constexpr std::int32_t round_count() const {
        return (channel_count + data_context_count - 1) / data_context_count;
    }
    /// Rows that `team`'s member of this rail dispatches on `channel`.
    constexpr std::uint32_t dispatch_tail(std::int32_t team, std::int32_t channel) const {
        return id(0, team, channel);
    }
    /// Rows that `team`'s member of this rail brings home on `channel`.
    constexpr std::uint32_t combine_tail(std::int32_t team, std::int32_t channel) const {
        return id(1, team, channel);
    }
    /// Signals that a context needs beside those of SignalMap.
    constexpr std::int32_t signal_count() const { return 2 * round_count() * team_count; }

  private:
    constexpr std::uint32_t id(std::int32_t purpose, std::int32_t team,
                               std::int32_t channel) const {
        const std::int32_t round = purpose * round_count() + channel / data_context_count;
        return SignalMap{rank_count}.signal_count() +
               static_cast<std::uint32_t>(round * team_count + team);
    }
};

/// A row on the rail: the payload, then a header of 32-bit words that says where it goes.
///
///     0            source token index
///     1 ..         K expert indices (over all ranks), -1 = masked
///     1+K ..       K weights, fp32
///     1+2K ..      K final slots; -1 = the choice opens no row in the destination team
///     1+3K ..      scale words
struct RailRowLayout {
    std::uint32_t row_bytes;
    std::uint32_t topk;
    std::uint32_t scale_words;

    constexpr std::uint32_t index_word() const { return 1; }
    constexpr std::uint32_t weight_word() const { return 1 + topk; }
    constexpr std::uint32_t slot_word() const { return 1 + 2 * topk; }
    constexpr std::uint32_t scale_word() const { return 1 + 3 * topk; }
    constexpr std::uint32_t header_words() const { return 1 + 3 * topk + scale_words; }
    /// A multiple of 16.
    constexpr std::uint32_t header_bytes() const { return (header_words() * 4u + 15u) / 16u * 16u; }
    /// Bytes from one row to the next, a multiple of 16.
    constexpr std::uint32_t stride() const { return row_bytes + header_bytes(); }
};

}  // namespace gimlet

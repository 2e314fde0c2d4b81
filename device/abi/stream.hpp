// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "device/abi/rail.hpp"

namespace gimlet {

/// Sync::fifo: rows pass through rings of few slots instead of full-size buffers in the window.
///
/// A channel is a range of consecutive tokens of their home rank: `channels_per_block` for each
/// block, the same in dispatch and combine. Each (channel, other rank) has a ring in either
/// direction, and each ring one sending and one receiving warp. Dispatch and combine use the same
/// rings, one after the other.
///
/// With several LSA teams, rings lie between members of a team only. Ring (channel, s) carries rows
/// of rank s's tokens; if s is in another team, the member of its rail stands for it at the other
/// end. A second kind of ring, the rail's, goes over GIN from each rank to the others of its rail,
/// one for each (channel, other team).
struct StreamShape {
    std::int32_t channels_per_block;  ///< 0 = Sync::barrier
    std::int32_t channel_count;
    std::int32_t token_rows;     ///< most rows of one token at one rank
    std::int32_t channel_rows;   ///< most rows of one rank's answers to the tokens of a channel
    std::uint32_t slot_count;    ///< slots of one ring
    std::uint32_t slot_bytes;    ///< header and row, or combine row
    std::uint32_t header_bytes;  ///< of a dispatched row, in front of it
    std::int32_t dispatch_rows;  ///< rows between two moves of a dispatch ring's tail
    std::int32_t combine_rows;   ///< the same of a combine ring
    std::int32_t ready_rows;     ///< rows of a block that is counted by itself
    std::int32_t ready_blocks;   ///< such blocks of one output tensor
    std::int32_t relay_warps;    ///< several teams: dispatch warps of a block that hand on rows
    std::uint32_t rail_slots;    ///< slots of one rail ring
    std::int32_t rail_dispatch_rows;  ///< rows between two moves of a rail ring's tail
    std::int32_t rail_combine_rows;
    std::int32_t rail_token_rows;  ///< most rows that come home for one token from one team

    constexpr bool active() const { return channels_per_block > 0; }
    constexpr std::int32_t ring_count(std::int32_t rank_count) const {
        return channel_count * rank_count;
    }
    /// Number of the ring between this rank and `rank`, and of whatever is kept for it.
    constexpr std::int32_t ring(std::int32_t channel, std::int32_t rank,
                                std::int32_t rank_count) const {
        return channel * rank_count + rank;
    }
    /// Tokens of each channel but the last ones, of `token_count` tokens.
    constexpr std::int32_t channel_tokens(std::int32_t token_count) const {
        const std::int32_t blocks = channel_count / channels_per_block;
        // Not rounded up by an addition first: token_count may be the largest number.
        const std::int32_t in_block = token_count / blocks + (token_count % blocks != 0 ? 1 : 0);
        return in_block / channels_per_block + (in_block % channels_per_block != 0 ? 1 : 0);
    }
    /// A sender asks for one slot at a time, a receiver for the rows of one token. Heads move
    /// lazily: several freed slots at a time.
    constexpr FifoOptions ring_options() const {
        const auto rows = static_cast<std::uint32_t>(token_rows);
        const std::uint32_t spare = slot_count > rows ? slot_count - rows : 0;
        return FifoOptions{
            FifoLink::lsa, slot_count, slot_bytes, 1, rows, spare >= 8 ? spare / 4 : 1};
    }
    /// One ring's words and slots.
    constexpr FifoLayout ring_layout() const { return FifoLayout::build(ring_options()); }

    /// The same for the rings between teams.
    constexpr FifoOptions rail_options() const {
        const auto rows = static_cast<std::uint32_t>(rail_token_rows);
        const std::uint32_t spare = rail_slots > rows ? rail_slots - rows : 0;
        return FifoOptions{
            FifoLink::gin, rail_slots, slot_bytes, 1, rows, spare >= 8 ? spare / 4 : 1};
    }
    constexpr FifoLayout rail_layout() const { return FifoLayout::build(rail_options()); }
    /// Regions of `pair` (see RailShape) in a window: of the ring that leads away, and of the one
    /// that comes.
    static constexpr std::int32_t rail_out(std::int32_t pair) { return 2 * pair; }
    static constexpr std::int32_t rail_in(std::int32_t pair) { return 2 * pair + 1; }
};

/// Signals of the rings between teams, behind those of SignalMap: at the rank that is added to,
/// named by the team of the one that adds.
struct StreamSignals {
    std::int32_t rank_count;
    std::int32_t team_count;
    std::int32_t channel_count;
    std::int32_t data_context_count;

    /// Rows that `team`'s member of this rail has put into its ring.
    constexpr std::uint32_t tail(std::int32_t team, std::int32_t channel) const {
        return id(0, team, channel);
    }
    /// Rows that it has taken out of this rank's ring.
    constexpr std::uint32_t head(std::int32_t team, std::int32_t channel) const {
        return id(1, team, channel);
    }
    /// It has dispatched all rows of the step, and how many (see SignaledTail).
    constexpr std::uint32_t end(std::int32_t team, std::int32_t channel) const {
        return id(2, team, channel);
    }
    /// Signals that a context needs beside those of SignalMap.
    constexpr std::int32_t signal_count() const { return 3 * rounds() * team_count; }

  private:
    constexpr std::int32_t rounds() const {
        return (channel_count + data_context_count - 1) / data_context_count;
    }
    constexpr std::uint32_t id(std::int32_t purpose, std::int32_t team,
                               std::int32_t channel) const {
        const std::int32_t round = purpose * rounds() + channel / data_context_count;
        return SignalMap{rank_count}.signal_count() +
               static_cast<std::uint32_t>(round * team_count + team);
    }
};

}  // namespace gimlet

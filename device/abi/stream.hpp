// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/fifo.hpp"

namespace gimlet {

/// Sync::fifo: rows pass through rings of few slots instead of full-size buffers in the window.
///
/// A channel is a range of consecutive tokens of their home rank: `channels_per_block` for each
/// block, the same in dispatch and combine. Each (channel, other rank) has a ring in either
/// direction, and each ring one sending and one receiving warp. Dispatch and combine use the same
/// rings, one after the other.
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
};

}  // namespace gimlet

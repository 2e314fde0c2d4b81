// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/limits.hpp"
#include "device/abi/types.hpp"

namespace gimlet {

/// The metadata record beside each received row, in 32-bit words:
///
///     0            source token index on the source rank (-1 = padding row)
///     1            source rank
///     2 .. 2+C-1   rank_major: local expert index per choice, -1 = expert of another rank or
///     masked
///                  expert_major: the choice (position in the token's top-k) that this row serves
///     2+C ..       fp32 weight per choice (0 where the caller passed none)
///     then         scale words, as the caller passed them
///
/// with C = K for rank_major and C = 1 for expert_major. Records are padded to 16 bytes.
struct TokenLayout {
    std::uint32_t row_bytes;     ///< payload of one dispatched row, a multiple of 16
    std::uint32_t choice_count;  ///< C
    std::uint32_t scale_words;   ///< 32-bit words of scales a token, 0 = none

    constexpr std::uint32_t token_word() const { return 0; }
    constexpr std::uint32_t source_word() const { return 1; }
    constexpr std::uint32_t index_word() const { return 2; }
    constexpr std::uint32_t weight_word() const { return index_word() + choice_count; }
    constexpr std::uint32_t scale_word() const { return weight_word() + choice_count; }
    constexpr std::uint32_t used_words() const { return scale_word() + scale_words; }
    constexpr std::uint32_t record_words() const { return (used_words() + 3u) / 4u * 4u; }
    constexpr std::uint32_t record_bytes() const { return record_words() * 4u; }
};

constexpr TokenLayout make_token_layout(Layout layout, std::uint32_t row_bytes, std::uint32_t topk,
                                        std::uint32_t scale_words) {
    return TokenLayout{row_bytes, layout == Layout::rank_major ? topk : 1u, scale_words};
}

/// Where one choice of one token went. rank = -1: masked, or (rank_major) served by an earlier
/// choice's row.
struct SlotRef {
    std::int32_t rank;
    std::int32_t slot;
};
static_assert(sizeof(SlotRef) == 8);

/// Where a row of a GIN destination waits on this rank: on its way out (send_rows) and on its way
/// back (home_rows).
struct HomeRef {
    std::int32_t
        row;  ///< row in send_rows and home_rows, -1 = destination reached by loads and stores
    /// direct: chunk of consecutive rows it travels in, counted over all GIN destinations.
    /// hybrid: number of this choice among the choices of the row's pair, in order of tokens.
    std::int32_t chunk;
};
static_assert(sizeof(HomeRef) == 8);

}  // namespace gimlet

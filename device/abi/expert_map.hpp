// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gimlet {

/// Placement of E experts on R ranks in consecutive blocks; the first E % R ranks own one expert
/// more. E may be smaller than R: the last ranks then own none.
struct ExpertMap {
    std::int32_t expert_count;
    std::int32_t rank_count;

    constexpr std::int32_t base() const { return expert_count / rank_count; }
    constexpr std::int32_t extra() const { return expert_count % rank_count; }

    /// Experts owned by `rank`.
    constexpr std::int32_t local_count(std::int32_t rank) const {
        return base() + (rank < extra() ? 1 : 0);
    }

    /// The largest local_count of any rank.
    constexpr std::int32_t max_local_count() const { return base() + (extra() > 0 ? 1 : 0); }

    /// First expert owned by `rank`; first(rank_count) == expert_count.
    constexpr std::int32_t first(std::int32_t rank) const {
        return rank * base() + (rank < extra() ? rank : extra());
    }

    /// Owner of `expert`, 0 <= expert < expert_count.
    constexpr std::int32_t rank_of(std::int32_t expert) const {
        const std::int32_t wide = (base() + 1) * extra();
        if (expert < wide) return expert / (base() + 1);
        return extra() + (expert - wide) / base();
    }
};

}  // namespace gimlet

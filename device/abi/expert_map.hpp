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

/// An ExpertMap prepared for kernels: no divisions. A quotient n / d is the high half of n *
/// ceil(2^32 / d), exact while n * d < 2^32; experts and ranks stay far below that.
struct ExpertLookup {
    std::int32_t expert_count;
    std::int32_t base;         ///< experts of the ranks from `extra` on
    std::int32_t extra;        ///< ranks that own base + 1
    std::int32_t wide;         ///< experts of those ranks together
    std::uint32_t magic_base;  ///< for n / base; 0 where base <= 1
    std::uint32_t magic_wide;  ///< for n / (base + 1); 0 where base = 0

    static constexpr ExpertLookup from(const ExpertMap& map) {
        return ExpertLookup{map.expert_count,  map.base(),
                            map.extra(),       (map.base() + 1) * map.extra(),
                            magic(map.base()), magic(map.base() + 1)};
    }
    constexpr std::int32_t local_count(std::int32_t rank) const {
        return base + (rank < extra ? 1 : 0);
    }
    constexpr std::int32_t max_local_count() const { return base + (extra > 0 ? 1 : 0); }
    constexpr std::int32_t first(std::int32_t rank) const {
        return rank * base + (rank < extra ? rank : extra);
    }
    constexpr std::int32_t rank_of(std::int32_t expert) const {
        if (expert < wide) return quotient(expert, magic_wide);
        return extra + quotient(expert - wide, magic_base);
    }

  private:
    static constexpr std::uint32_t magic(std::int32_t divisor) {
        if (divisor <= 1) return 0;
        const std::uint64_t d = static_cast<std::uint64_t>(divisor);
        return static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + d - 1) / d);
    }
    static constexpr std::int32_t quotient(std::int32_t n, std::uint32_t magic) {
        if (magic == 0) return n;
        return static_cast<std::int32_t>(
            static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * magic >> 32);
    }
};

}  // namespace gimlet

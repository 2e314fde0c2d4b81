// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gimlet {

/// What a dispatch tells about its step. Lives in device memory (for kernels that follow) and, when
/// the caller wants host counts, also in host-mapped memory. The header is followed by int32 arrays
/// (see StepCountsLayout). `epoch` is written last (release, system scope): a host that sees the
/// step's epoch sees the rest.
struct StepCounts {
    std::uint64_t epoch;
    std::int32_t row_count;        ///< rows received, padding rows of expert_major included
    std::int32_t token_row_count;  ///< rows received without padding
    std::int32_t local_expert_count;
    std::int32_t sent_row_count;  ///< rows that this rank sent, itself included
    std::int32_t partial;  ///< 1: some ranks are excluded, their tokens and experts are missing
    std::int32_t padding;
};
static_assert(sizeof(StepCounts) == 32);
static_assert(offsetof(StepCounts, row_count) == 8);

/// Byte offsets of the arrays behind a StepCounts header.
struct StepCountsLayout {
    std::int32_t rank_count;
    std::int32_t max_local_experts;

    /// int32[local experts]: rows per local expert (rank_major: tokens that name it), no padding.
    constexpr std::uint32_t expert_counts() const { return sizeof(StepCounts); }
    /// int32[local experts + 1]: first row of each local expert's block; expert_major only.
    constexpr std::uint32_t expert_offsets() const {
        return expert_counts() + 4u * static_cast<std::uint32_t>(max_local_experts);
    }
    /// int32[R + 1]: rank_major: first row of each source rank; last = row_count.
    /// expert_major: rows per source as a running sum.
    constexpr std::uint32_t source_offsets() const {
        return expert_offsets() + 4u * static_cast<std::uint32_t>(max_local_experts + 1);
    }
    constexpr std::uint32_t total_bytes() const {
        return (source_offsets() + 4u * static_cast<std::uint32_t>(rank_count + 1) + 15u) / 16u *
               16u;
    }
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// What dispatch and combine must produce, worked out plainly from the routing of all ranks. Shares
// no code with the kernels: placement, record layout and arithmetic are written out here a second
// time, from their specification.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/abi/types.hpp"
#include "runtime/routing_table.hpp"

namespace gimlet {

struct ReferenceShape {
    std::int32_t expert_count = 0;
    Layout layout = Layout::rank_major;
    std::int32_t expert_alignment = 1;
};

/// One row of a receive buffer.
struct ReferenceRow {
    std::int32_t source = -1;  ///< -1 = padding
    std::int32_t token = -1;
    std::int32_t choice = -1;  ///< expert_major: the choice that the row serves; rank_major: -1
};

/// Where the row of one choice went; rank -1: masked, or (rank_major) an earlier choice has the
/// row.
struct ReferenceSlot {
    std::int32_t rank = -1;
    std::int32_t slot = -1;
};

struct ReferenceRank {
    std::int32_t first_expert = 0;
    std::int32_t local_expert_count = 0;
    std::vector<ReferenceRow> rows;    ///< padding included
    std::int32_t token_row_count = 0;  ///< without padding
    std::int32_t sent_row_count = 0;
    std::vector<std::int32_t> expert_counts;   ///< [local experts]
    std::vector<std::int32_t> expert_offsets;  ///< [local experts + 1]; meaningful for expert_major
    std::vector<std::int32_t> source_offsets;  ///< [R + 1] running sum of rows by source
    std::vector<std::int32_t> rows_to;         ///< [R] rows that this rank sends to each rank
    std::vector<ReferenceSlot> slots;          ///< [T][K] of this rank's own tokens
};

struct Reference {
    ReferenceShape shape;
    std::vector<ReferenceRank> ranks;
};

/// The table must be free of routing_faults().
Reference make_reference(const RoutingTable& table, const ReferenceShape& shape);

/// The caller's data, by rank and token. Absent functions mean "none".
struct ReferenceInputs {
    std::uint32_t row_bytes = 0;
    std::uint32_t scale_words = 0;
    std::function<void(int rank, int token, std::byte* row)> row;
    std::function<std::uint32_t(int rank, int token, int word)> scale;
    /// Whether dispatch was given the table's weights; absent ones arrive as 0.
    enum class Weights { carried, absent };
    Weights weights = Weights::carried;
};

/// The metadata words of a received row, without the padding behind them. Padding rows have token,
/// source and first index -1.
std::vector<std::uint32_t> reference_record(const RoutingTable& table, const Reference& reference,
                                            int rank, int row, const ReferenceInputs& inputs);

/// What a rank received, as downloaded.
struct ReceivedBytes {
    std::span<const std::byte> rows;
    std::span<const std::byte> records;
    std::uint32_t record_bytes = 0;      ///< stride of records
    bool check_padding_payload = false;  ///< padding rows must be zero
};

/// Empty if rows and records are right to the byte, else one line about the first difference.
std::string compare_received(const RoutingTable& table, const Reference& reference, int rank,
                             const ReferenceInputs& inputs, const ReceivedBytes& received);

/// One combine, for one rank's tokens.
struct ReferenceCombine {
    ElementType type = ElementType::bfloat16;
    std::int32_t hidden = 0;
    /// Row `slot` of rank `rank`'s combine buffer.
    std::function<const std::byte*(int rank, int slot)> row;
    /// expert_major: whether the routing's weights multiply the rows.
    enum class Weights { ignored, applied };
    Weights weights = Weights::ignored;
    /// Ranks of an LSA team whose rows come home as one sum, rounded to `type`; 0 = every row comes
    /// by itself. Rows of the rank's own team always do.
    int pre_sum_team = 0;
    /// Row of the bias, or null.
    std::function<const std::byte*(int token)> bias;
};

/// out[T][hidden]: for each element an fp32 sum that starts at 0 and takes the contributions in the
/// order of the choices (with weights: one fused multiply-add each), then the bias (with pre-sums:
/// a team's sum, made in the same way, has the place of its first choice), and is rounded once to
/// the type. NaN becomes the type's all-ones positive pattern in the 16-bit types.
std::vector<std::byte> reference_combine(const RoutingTable& table, const Reference& reference,
                                         int rank, const ReferenceCombine& combine);

}  // namespace gimlet

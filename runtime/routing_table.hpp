// SPDX-License-Identifier: Apache-2.0
// Routing of all ranks, on the host: what the generators make, the .npy reader reads, and the
// reference walks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gimlet {

/// `[T, K]` expert indices (-1 = masked) with fp32 weights, of one rank.
struct RankRouting {
    std::int32_t token_count = 0;
    std::vector<std::int64_t> indices;  ///< [T][K]
    std::vector<float> weights;         ///< [T][K], or empty = the caller has none
};

struct RoutingTable {
    std::int32_t topk = 0;
    std::vector<RankRouting> ranks;

    std::int32_t max_token_count() const {
        std::int32_t most = 0;
        for (const auto& rank : ranks) most = rank.token_count > most ? rank.token_count : most;
        return most;
    }
    std::int64_t index(int rank, int token, int choice) const {
        return ranks[static_cast<std::size_t>(rank)]
            .indices[static_cast<std::size_t>(token) * static_cast<std::size_t>(topk) +
                     static_cast<std::size_t>(choice)];
    }
};

/// Everything that dispatch would refuse in this table, at most `limit` lines, each naming rank,
/// token, value and bound: indices >= expert_count or < -1, an expert named twice by one token.
/// Empty = acceptable.
std::vector<std::string> routing_faults(const RoutingTable& table, std::int32_t expert_count,
                                        int limit = 8);

}  // namespace gimlet

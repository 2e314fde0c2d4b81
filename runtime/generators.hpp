// SPDX-License-Identifier: Apache-2.0
// Made-up routings, seeded, equal on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/abi/types.hpp"
#include "runtime/routing_table.hpp"

namespace gimlet {

/// uniform: each token takes K different experts, all equally likely.
/// log_normal: experts have log-normal popularity with standard deviation `skew`.
/// hot: expert `hot_expert` is among the choices of `hot_fraction` of the tokens, the rest is
/// uniform. grouped: DeepSeek-V3's gate: score = sigmoid(logit), choice by score + a bias per
/// expert; the best
///   `selected_group_count` of `group_count` groups by the sum of their two best; then the best K
///   experts of those. The weight is the score without bias, normalised over the choices.
enum class RoutingKind { uniform, log_normal, hot, grouped };

const char* name_of(RoutingKind kind) noexcept;
/// Returns false, and leaves *kind alone, if there is no such name.
bool parse_routing_kind(std::string_view name, RoutingKind* kind) noexcept;

/// How many tokens each rank has.
enum class TokenSpread {
    equal,   ///< token_count on each rank
    random,  ///< 0..token_count, one rank has all of them
};

struct GeneratorOptions {
    RoutingKind kind = RoutingKind::uniform;
    std::uint64_t seed = 1;
    std::int32_t rank_count = 1;
    std::int32_t token_count = 64;
    std::int32_t expert_count = 32;
    std::int32_t topk = 4;
    TokenSpread spread = TokenSpread::equal;
    double skew = 1.0;                      ///< log_normal
    std::int32_t hot_expert = 0;            ///< hot
    double hot_fraction = 1.0;              ///< hot, 0..1
    std::int32_t group_count = 8;           ///< grouped
    std::int32_t selected_group_count = 4;  ///< grouped
    double masked_choice_fraction = 0;      ///< single choices that become -1
    double masked_row_fraction = 0;         ///< tokens whose choices all become -1
    std::vector<std::int32_t> empty_ranks;  ///< ranks with T = 0
};

/// All that is wrong with the options, one line each with value, limit and cure.
std::vector<std::string> generator_faults(const GeneratorOptions& options);

/// Raises Error(invalid_argument) with all faults. Weights are positive and sum to about 1 a token
/// before masking.
RoutingTable generate_routing(const GeneratorOptions& options);

/// Payload of one token row: small values that every element type holds exactly, so that sums of a
/// few hundred rows are exact in fp32. Depends on (seed, rank, token) only. `bytes` is a multiple
/// of the element.
void fill_row_pattern(std::uint64_t seed, std::int32_t rank, std::int32_t token, ElementType type,
                      void* row, std::size_t bytes);

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// One scenario of dispatch and combine in simulation: all ranks, several steps, everything compared
// with the plain reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"
#include "runtime/config.hpp"
#include "runtime/generators.hpp"
#include "runtime/routing_table.hpp"

namespace gimlet::test {

enum class StepKind { fresh, cached };

struct Scenario {
    emu::SimOptions sim;
    MoeConfig config;
    GeneratorOptions
        routing;  ///< rank_count, token_count, expert_count and topk follow sim and config
    IndexType index_type = IndexType::int32;
    std::vector<StepKind> steps = {StepKind::fresh};
    bool weights = true;  ///< dispatch carries weights; expert_major combines apply them
    bool bias = false;
    bool host_counts = false;
    bool combine = true;  ///< each dispatch is followed by a combine
    std::uint64_t data_seed = 1;
};

/// A small scenario: `ranks` ranks in LSA teams of `team`, 12 tokens of 64 bf16 elements, top-3 of
/// 7 experts.
Scenario small_scenario(int ranks, int team, emu::GinMode gin, std::uint64_t seed);

/// Runs it; throws with the seed and the first difference. Returns the simulation's report.
emu::SimReport run_scenario(const Scenario& scenario);

/// Reads like "ranks 4 team 2 gin gdaki seed 17 rank_major bf16 ...", for INFO lines.
std::string describe(const Scenario& scenario);

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
//
// Scenarios by name: a seed and a fault plan decide everything about a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"
#include "runtime/sim/plan_file.hpp"

namespace gimlet::sim {

struct ScenarioInfo {
    const char* name;
    const char* summary;
    bool many_ranks = false;  ///< takes long: few seeds are enough
};

/// All of them, in the order in which `all` runs them.
const std::vector<ScenarioInfo>& scenario_list();

/// Sizes that the seed would choose. Scenarios take those that mean something to them.
struct SimSizes {
    std::optional<int> ranks;
    std::optional<int> team;  ///< ranks of an LSA team, 0 = all
    std::optional<int> tokens;
    std::optional<int> hidden;
    std::optional<int> topk;
    std::optional<int> experts;
};

struct SimCase {
    std::string scenario;
    std::uint64_t seed = 1;
    SimPlan plan;
    SimSizes sizes;
};

struct SimResult {
    bool good = false;
    std::string fault;        ///< empty if good
    std::string description;  ///< what the seed made of the scenario
    emu::SimReport report;    ///< trace_hash covers every scheduling decision
};

/// Runs one case. Raises Error(invalid_argument) for an unknown scenario, sizes that it cannot
/// have, or a plan that it cannot run; whatever happens in the run itself is in the result.
SimResult run_case(const SimCase& which, emu::Tracer* tracer = nullptr);

/// The random plan of the case's seed, as far as the scenario can run it (some have no use for a
/// broken rank).
SimPlan random_case_plan(const SimCase& which);

}  // namespace gimlet::sim

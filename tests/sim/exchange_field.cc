// SPDX-License-Identifier: Apache-2.0
// Inputs and configurations that broke other systems of this kind; tests/README.md has the list.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

void run_field(Scenario scenario) {
    CAPTURE(describe(scenario));
    REQUIRE_NOTHROW(run_scenario(scenario));
}

Scenario field_scenario(int ranks, int team, std::uint64_t seed) {
    Scenario scenario =
        small_scenario(ranks, team, team == 0 ? emu::GinMode::off : emu::GinMode::gdaki, seed);
    scenario.config.max_tokens = 2;
    return scenario;
}

}  // namespace

TEST_CASE("field: every hidden size that others refuse", "[sim][field]") {
    const int hidden =
        GENERATE(1024, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192);
    Scenario scenario = field_scenario(2, hidden % 1024 == 0 ? 1 : 0, 800);
    scenario.config.hidden = hidden;
    run_field(scenario);
}

TEST_CASE("field: every top-k that others refuse", "[sim][field]") {
    const int topk = GENERATE(1, 8, 9, 10, 12, 16, 22, 24, 32);
    Scenario scenario = field_scenario(3, topk % 2, 810);
    scenario.config.expert_count = 34;
    scenario.config.topk = topk;
    run_field(scenario);
}

TEST_CASE("field: 256 experts over 3 ranks, 2 nodes of one rank, 6 ranks", "[sim][field]") {
    const auto [ranks, team] =
        GENERATE(table<int, int>({{3, 0}, {3, 1}, {2, 1}, {6, 3}, {6, 2}, {5, 1}}));
    Scenario scenario = field_scenario(ranks, team, 820);
    scenario.config.expert_count = 256;
    scenario.config.topk = 8;
    run_field(scenario);
}

TEST_CASE("field: identical tokens, router collapse, exactly the most tokens", "[sim][field]") {
    const int team = GENERATE(0, 2);
    // Odd, and no multiple of a warp, a block or a chunk.
    const int tokens = GENERATE(1, 33, 42);
    const int topk = GENERATE(1, 3);
    Scenario scenario = field_scenario(4, team, 830);
    scenario.config.max_tokens = tokens;
    scenario.config.topk = topk;
    scenario.routing.kind = RoutingKind::hot;
    scenario.routing.hot_fraction = 1.0;
    scenario.routing.hot_expert = 6;
    scenario.steps = {StepKind::fresh, StepKind::fresh, StepKind::cached};
    run_field(scenario);
}

TEST_CASE("field: odd counts of blocks and few multiprocessors", "[sim][field]") {
    const int blocks = GENERATE(1, 3, 5);
    Scenario scenario = field_scenario(3, GENERATE(0, 1), 840);
    scenario.sim.sm_count = 5;
    scenario.config.max_tokens = 20;
    scenario.config.sm_budget = blocks;
    run_field(scenario);
}

TEST_CASE("field: small queues push back and lose nothing", "[sim][field]") {
    const auto gin = GENERATE(emu::GinMode::gdaki, emu::GinMode::proxy);
    Scenario scenario = field_scenario(3, 1, 850);
    scenario.sim.gin = gin;
    scenario.sim.gin_queue_depth = 20;
    scenario.config.max_tokens = 40;
    scenario.config.chunk_rows = 1;
    scenario.config.gin_context_count = 2;
    scenario.steps = {StepKind::fresh, StepKind::fresh};
    run_field(scenario);
}

TEST_CASE("field: a late rank and a stalled block are waited for", "[sim][field]") {
    Scenario scenario = field_scenario(4, GENERATE(0, 2), 860);
    scenario.config.deadline_ns = 0;
    if (GENERATE(true, false)) {
        scenario.sim.faults.late_rank = 1;
        scenario.sim.faults.late_ns = 1'000'000'000;
    } else {
        scenario.sim.faults.stall_rank = 2;
        scenario.sim.faults.stall_ns = 1'000'000'000;
    }
    run_field(scenario);
}

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine against the reference, over seeds, teams, GIN personalities and layouts.
#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

/// Seeds are different in every call, so that all calls together walk more than 200 of them.
void run_seeds(Scenario scenario, std::uint64_t first, std::uint64_t count) {
    static std::uint64_t calls = 0;
    first += 100 * calls++;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        scenario.sim.seed = seed;
        scenario.routing.seed = seed;
        scenario.data_seed = seed + 1;
        scenario.sim.schedule = static_cast<emu::Schedule>(seed % 3);
        CAPTURE(describe(scenario));
        REQUIRE_NOTHROW(run_scenario(scenario));
    }
}

}  // namespace

TEST_CASE("dispatch and combine: one LSA team", "[sim][exchange]") {
    const int ranks = GENERATE(1, 2, 3, 4, 6, 8);
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    Scenario scenario = small_scenario(ranks, 0, emu::GinMode::off, 1);
    scenario.config.layout = layout;
    scenario.steps = {StepKind::fresh, StepKind::fresh, StepKind::cached};
    run_seeds(scenario, 100, 10);
}

TEST_CASE("dispatch and combine: several LSA teams over GIN", "[sim][exchange]") {
    const auto [ranks, team] = GENERATE(
        table<int, int>({{2, 1}, {3, 1}, {4, 1}, {4, 2}, {6, 2}, {6, 3}, {8, 4}, {8, 2}, {6, 1}}));
    const emu::GinMode gin = GENERATE(emu::GinMode::gdaki, emu::GinMode::proxy);
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    Scenario scenario = small_scenario(ranks, team, gin, 1);
    scenario.config.layout = layout;
    scenario.steps = {StepKind::fresh, StepKind::cached, StepKind::fresh};
    run_seeds(scenario, 300, 5);
}

TEST_CASE("dispatch and combine: few seeds", "[sim][exchange]") {
    const int team = GENERATE(0, 2, 1);
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    Scenario scenario =
        small_scenario(4, team, team == 0 ? emu::GinMode::off : emu::GinMode::gdaki, 1);
    scenario.config.layout = layout;
    scenario.config.max_tokens = 6;
    scenario.steps = {StepKind::fresh, StepKind::cached};
    run_seeds(scenario, 900, 2);
}

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
// Every protocol once more, few seeds each: sanitizers see what no oracle asks for.
#include <cstdint>
#include <string>

#include "runtime/sim/scenarios.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

enum class Plan { none, random };

void run_one(const std::string& scenario, std::uint64_t seed, Plan plan) {
    sim::SimCase which;
    which.scenario = scenario;
    which.seed = seed;
    if (plan == Plan::random) which.plan = sim::random_case_plan(which);
    CAPTURE(scenario, seed, plan == Plan::random);
    const sim::SimResult result = sim::run_case(which);
    CHECK(result.fault == "");
    CHECK(result.good);
}

void run_all(std::uint64_t seed, Plan plan) {
    for (const sim::ScenarioInfo& scenario : sim::scenario_list()) {
        // Many ranks take minutes under ThreadSanitizer, and their kernels are the others'.
        if (!scenario.many_ranks) run_one(scenario.name, seed, plan);
    }
}

}  // namespace

TEST_CASE("every scenario", "[sanitize]") {
    const std::uint64_t seed = GENERATE(11, 12);
    run_all(seed, Plan::none);
}

TEST_CASE("every scenario under a random fault plan", "[sanitize]") {
    const std::uint64_t seed = GENERATE(13, 14);
    run_all(seed, Plan::random);
}

// Most warps of all stand between its rings.
TEST_CASE("rings between LSA teams, more seeds", "[sanitize]") {
    for (std::uint64_t seed = 21; seed <= 26; ++seed)
        run_one("stream-teams", seed, seed % 3 == 0 ? Plan::random : Plan::none);
}

}  // namespace gimlet::test

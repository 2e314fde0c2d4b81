// SPDX-License-Identifier: Apache-2.0
// Every protocol once more, few seeds each: sanitizers see what no oracle asks for.
#include <cstdint>

#include "runtime/sim/scenarios.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

enum class Plan { none, random };

void run_all(std::uint64_t seed, Plan plan) {
    for (const sim::ScenarioInfo& scenario : sim::scenario_list()) {
        // Many ranks take minutes under ThreadSanitizer, and their kernels are the others'.
        if (scenario.many_ranks) continue;
        sim::SimCase which;
        which.scenario = scenario.name;
        which.seed = seed;
        if (plan == Plan::random) which.plan = sim::random_case_plan(which);
        CAPTURE(which.scenario, seed, plan == Plan::random);
        const sim::SimResult result = sim::run_case(which);
        CHECK(result.fault == "");
        CHECK(result.good);
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

}  // namespace gimlet::test

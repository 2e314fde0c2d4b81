// SPDX-License-Identifier: Apache-2.0
// Every protocol once more, few seeds each: sanitizers see what no oracle asks for.
#include <cstdint>
#include <string>

#include "runtime/sim/scenarios.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

constexpr const char* kTeams = "stream-teams";

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
        // Many ranks take minutes under ThreadSanitizer, and their kernels are the others'. Rings
        // between teams have seeds of their own, which are small.
        if (scenario.many_ranks || scenario.name == kTeams) continue;
        run_one(scenario.name, seed, plan);
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

TEST_CASE("rings between LSA teams", "[sanitize]") {
    for (const std::uint64_t seed : {22, 23}) run_one(kTeams, seed, Plan::none);
    for (const std::uint64_t seed : {24, 28}) run_one(kTeams, seed, Plan::random);
}

}  // namespace gimlet::test

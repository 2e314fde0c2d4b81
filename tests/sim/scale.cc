// SPDX-License-Identifier: Apache-2.0
// Worlds with many ranks, as `gimlet_sim_benchmark --scale` runs them, but smaller: still crowds to
// the emulator, which schedules those in its own way.
#include "runtime/sim/scenarios.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet::sim;

namespace {

SimResult run_many(const char* scenario, int ranks, std::uint64_t seed) {
    SimCase which;
    which.scenario = scenario;
    which.seed = seed;
    which.sizes.ranks = ranks;
    return run_case(which);
}

}  // namespace

// Each world has 4,096 threads: a crowd to the emulator.
TEST_CASE("scale: many ranks get their work done", "[scale]") {
    const SimResult notified = run_many("many-notify", 128, 2);
    CHECK(notified.fault == "");
    const SimResult dispatched = run_many("many-dispatch", 64, 3);
    CHECK(dispatched.fault == "");
}

TEST_CASE("scale: a crowd's run repeats with its seed", "[scale]") {
    const SimResult first = run_many("many-barriers", 128, 1);
    CHECK(first.fault == "");
    CHECK(first.report.trace_hash == run_many("many-barriers", 128, 1).report.trace_hash);
}

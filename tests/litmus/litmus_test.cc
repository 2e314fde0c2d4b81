// SPDX-License-Identifier: Apache-2.0
// In simulation each program reaches every allowed outcome, and never another one, within kSeeds
// seeds of each world.
#include <cstdio>

#include "host/emulator/simulation.hpp"
#include "tests/litmus/world.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

using namespace gimlet;
using namespace gimlet::litmus;

namespace {

constexpr int kSeeds = 120;
constexpr int kQueueDepth = 16;

struct World {
    const char* name;
    emu::GinMode gin;
    int lsa_team_size;
    int rounds;  ///< of each program and seed
};

emu::SimOptions options_of(const World& world, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = 2;
    options.seed = seed;
    options.gin = world.gin;
    options.lsa_team_size = world.lsa_team_size;
    options.gin_queue_depth = kQueueDepth;
    options.memory.stale_loads = world.lsa_team_size > 1;
    options.schedule = static_cast<emu::Schedule>(seed % 3);
    return options;
}

void add(Histogram* to, const Histogram& from) {
    for (const auto& [outcome, count] : from) (*to)[outcome] += count;
}

/// All programs that the world can run, one after the other. Rank 0's histograms.
std::map<std::string, Histogram> run_seed(const World& world, std::uint64_t seed) {
    std::map<std::string, Histogram> seen;
    emu::simulate(options_of(world, seed), [&](int rank) {
        const auto communicator = Communicator::create(make_sim_bootstrap(rank));
        LitmusOptions options;
        options.rounds_max = world.rounds;
        options.gin_queue_depth = world.gin == emu::GinMode::gdaki ? kQueueDepth : 0;
        LitmusWorld litmus(*communicator, options);
        for (const Program& program : programs()) {
            if (!litmus.missing(program).empty()) continue;
            const Histogram outcomes = litmus.run(program, world.rounds);
            if (rank == 0) seen[program.name] = outcomes;
        }
        litmus.close();
        communicator->close();
    });
    return seen;
}

}  // namespace

TEST_CASE("litmus programs: every allowed outcome, and no other", "[litmus]") {
    const World worlds[] = {
        {"GIN gdaki, no LSA", emu::GinMode::gdaki, 1, 2},
        {"GIN proxy, no LSA", emu::GinMode::proxy, 1, 2},
        {"LSA and GIN gdaki", emu::GinMode::gdaki, 2, 1},
        {"LSA, no GIN", emu::GinMode::off, 2, 16},
    };
    std::map<std::string, Histogram> seen;
    for (const World& world : worlds) {
        for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
            INFO(world.name << ", seed " << seed);
            for (const auto& [name, outcomes] : run_seed(world, seed)) {
                add(&seen[name], outcomes);
                for (const Program& program : programs()) {
                    if (name == program.name) REQUIRE(forbidden_text(program, outcomes) == "");
                }
            }
        }
    }
    std::string unreached;
    for (const Program& program : programs()) {
        unreached += unreached_text(program, seen[program.name]);
    }
    CHECK(unreached == "");
}

TEST_CASE("a forbidden and an unreached outcome are told apart", "[litmus]") {
    const Program program{ProgramId::put_put, "a/program", 0, "the claim", "x", {{0}, {1}}};
    CHECK(forbidden_text(program, {{{0}, 3}, {{2}, 1}}) ==
          "a/program: forbidden outcome (2) came 1 times; registers: x; the claim\n");
    CHECK(unreached_text(program, {{{0}, 3}}) ==
          "a/program: allowed outcome (1) did not come; registers: x\n");
    CHECK(forbidden_text(program, {{{0, kTimedOut}, 1}}).find("timed out") != std::string::npos);
}

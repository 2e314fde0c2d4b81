// SPDX-License-Identifier: Apache-2.0
// How long simulations take. Prints a line a scenario; asserts nothing about time. With --scale,
// the largest worlds instead, which take minutes.
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <set>
#include <string>

#include "device/abi/expert_map.hpp"
#include "host/emulator/gin_traffic.hpp"
#include "runtime/sim/scenarios.hpp"
#include "tests/sim/exchange_world.hpp"

namespace {

using namespace gimlet;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
}

double processor_seconds() {
    return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// Of this process; only ever grows.
double peak_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

struct Size {
    const char* name;
    int ranks;
    int team;
    int tokens;
    int hidden;
    int topk;
    int experts;
};

/// Rows that one dispatch moves over all ranks: one for each token and rank that it goes to, and
/// with hybrid one more for each token and other team that it goes to.
std::int64_t rows_moved(const test::Scenario& scenario, const Size& size, ExchangeMode mode) {
    GeneratorOptions options = scenario.routing;
    options.rank_count = size.ranks;
    options.token_count = size.tokens;
    options.expert_count = size.experts;
    options.topk = size.topk;
    const RoutingTable table = generate_routing(options);
    const ExpertMap experts{size.experts, size.ranks};
    std::int64_t rows = 0;
    for (int rank = 0; rank < size.ranks; ++rank) {
        const RankRouting& mine = table.ranks[static_cast<std::size_t>(rank)];
        for (int token = 0; token < mine.token_count; ++token) {
            std::set<int> reached;
            std::set<int> other_teams;
            for (int k = 0; k < table.topk; ++k) {
                const std::int64_t expert = table.index(rank, token, k);
                if (expert < 0) continue;
                const int to = experts.rank_of(static_cast<std::int32_t>(expert));
                reached.insert(to);
                if (to / size.team != rank / size.team) other_teams.insert(to / size.team);
            }
            rows += static_cast<std::int64_t>(reached.size());
            if (mode == ExchangeMode::hybrid) rows += static_cast<std::int64_t>(other_teams.size());
        }
    }
    return rows;
}

void run_exchange(const Size& size, ExchangeMode mode) {
    constexpr int kSeeds = 3;
    for (int seed = 1; seed <= kSeeds; ++seed) {
        test::Scenario scenario = test::small_scenario(size.ranks, size.team, emu::GinMode::gdaki,
                                                       static_cast<std::uint64_t>(seed));
        scenario.config.max_tokens = size.tokens;
        scenario.config.hidden = size.hidden;
        scenario.config.topk = size.topk;
        scenario.config.expert_count = size.experts;
        scenario.config.mode = mode;
        emu::gin_traffic() = {};
        const auto start = Clock::now();
        const emu::SimReport report = test::run_scenario(scenario);
        std::printf(
            "%-44s %-6s seed %d: %6.2f s, %8llu steps, %9llu switches, %4.0f a row moved, %6llu "
            "puts, "
            "peak memory %7.1f MiB\n",
            size.name, name_of(mode), seed, seconds_since(start),
            static_cast<unsigned long long>(report.steps),
            static_cast<unsigned long long>(report.switches),
            static_cast<double>(report.switches) /
                static_cast<double>(rows_moved(scenario, size, mode)),
            static_cast<unsigned long long>(emu::gin_traffic().puts), peak_mib());
    }
}

/// The yardstick: under a minute.
void run_thousand_seeds() {
    const double start = processor_seconds();
    int failed = 0;
    for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
        sim::SimCase which;
        which.scenario = "four-ranks";
        which.seed = seed;
        failed += sim::run_case(which).good ? 0 : 1;
    }
    std::printf(
        "1000 seeds of four-ranks (4 ranks, 8 tokens each): %.1f s of processor time, %d failed\n",
        processor_seconds() - start, failed);
}

bool run_large(const char* scenario, int ranks, int team) {
    sim::SimCase which;
    which.scenario = scenario;
    which.sizes.ranks = ranks;
    which.sizes.team = team;
    const double start = processor_seconds();
    const sim::SimResult result = sim::run_case(which);
    std::printf(
        "%-13s %4d ranks in teams of %d: %s, %.1f s of processor time, %.1f million steps, peak "
        "memory %.0f MiB\n",
        scenario, ranks, team, result.good ? "ok" : result.fault.c_str(),
        processor_seconds() - start, static_cast<double>(result.report.steps) / 1e6, peak_mib());
    std::fflush(stdout);
    return result.good;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 1 && std::string(argv[1]) == "--scale") {
        bool good = run_large("many-barriers", 1024, 8);
        good = run_large("many-notify", 1024, 1) && good;
        good = run_large("many-dispatch", 256, 8) && good;
        return good ? 0 : 1;
    }
    run_thousand_seeds();
    for (const auto mode : {ExchangeMode::direct, ExchangeMode::hybrid}) {
        run_exchange({"8 ranks in 2 teams, T 64, H 512, K 4", 8, 4, 64, 512, 4, 32}, mode);
        run_exchange({"64 ranks in 8 teams, T 8, H 512, K 4", 64, 8, 8, 512, 4, 128}, mode);
    }
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// How long a simulated step takes: dispatch, combine and both checks, per seed. Prints a line a
// scenario; asserts nothing about time.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "host/emulator/gin_traffic.hpp"
#include "tests/sim/exchange_world.hpp"

namespace {

struct Size {
    const char* name;
    int ranks;
    int team;
    int tokens;
    int hidden;
    int topk;
    int experts;
};

double peak_mib() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) / 1024.0;
}

void run(const Size& size, gimlet::ExchangeMode mode) {
    using namespace gimlet;
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
        const auto start = std::chrono::steady_clock::now();
        const emu::SimReport report = test::run_scenario(scenario);
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        std::printf(
            "%-44s %-6s seed %d: %6.2f s, %8llu steps, %9llu switches, %6llu puts, peak memory "
            "%7.1f MiB\n",
            size.name, name_of(mode), seed, seconds.count(),
            static_cast<unsigned long long>(report.steps),
            static_cast<unsigned long long>(report.switches),
            static_cast<unsigned long long>(emu::gin_traffic().puts), peak_mib());
    }
}

}  // namespace

int main() {
    for (const auto mode : {gimlet::ExchangeMode::direct, gimlet::ExchangeMode::hybrid}) {
        run({"8 ranks in 2 teams, T 64, H 512, K 4", 8, 4, 64, 512, 4, 32}, mode);
        run({"64 ranks in 8 teams, T 8, H 512, K 4", 64, 8, 8, 512, 4, 128}, mode);
    }
    return 0;
}

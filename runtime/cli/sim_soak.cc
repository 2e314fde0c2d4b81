// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/sim_soak.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "host/base/error.hpp"
#include "host/base/version.hpp"
#include "runtime/sim/scenarios.hpp"

namespace gimlet::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Tally {
    std::uint64_t runs = 0;
    std::uint64_t failures = 0;
    std::uint64_t steps = 0;
    double seconds = 0;
    std::size_t peak_bytes = 0;
};

struct Failure {
    std::string replay;
    std::string plan;
    std::string fault;
};

double seconds_since(Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
}

std::string report_text(const SoakOptions& options, const std::vector<Tally>& tallies,
                        const std::vector<Failure>& failures, std::uint64_t seed_end) {
    std::string text = fmt::format("# Soak\n\nCommit {}, seeds {} to {}, random plans.\n\n",
                                   git_hash(), options.first_seed, seed_end - 1);
    text += "| scenario | runs | failed | million steps | seconds | device memory, MiB |\n";
    text += "|---|---|---|---|---|---|\n";
    for (std::size_t i = 0; i < tallies.size(); ++i) {
        const Tally& tally = tallies[i];
        text += fmt::format("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} |\n", options.scenarios[i],
                            tally.runs, tally.failures, static_cast<double>(tally.steps) / 1e6,
                            tally.seconds, static_cast<double>(tally.peak_bytes) / 1048576.0);
    }
    for (const Failure& failure : failures) {
        text += fmt::format("\n## Failure\n\n    {}\n\nplan {}\n\n```\n{}\n```\n", failure.replay,
                            failure.plan, failure.fault);
    }
    return text;
}

}  // namespace

int run_soak(const SoakOptions& options) {
    const Clock::time_point start = Clock::now();
    const double limit_s = options.minutes * 60;
    std::vector<Tally> tallies(options.scenarios.size());
    std::vector<Failure> failures;
    std::uint64_t seed = options.first_seed;
    std::uint64_t runs = 0;
    double next_line_s = 5;
    for (; seconds_since(start) < limit_s; ++seed) {
        for (std::size_t i = 0; i < tallies.size() && seconds_since(start) < limit_s; ++i) {
            sim::SimCase which;
            which.scenario = options.scenarios[i];
            which.seed = seed;
            which.plan = sim::random_case_plan(which);
            const Clock::time_point from = Clock::now();
            const sim::SimResult result = sim::run_case(which);
            Tally& tally = tallies[i];
            ++runs;
            ++tally.runs;
            tally.steps += result.report.steps;
            tally.seconds += seconds_since(from);
            tally.peak_bytes = std::max(tally.peak_bytes, result.report.peak_bytes);
            if (!result.good) {
                ++tally.failures;
                failures.push_back(
                    {fmt::format("gimlet sim --scenario {} --seed {} --plan random --commit {} "
                                 "--trace-hash {:016x}",
                                 which.scenario, seed, git_hash(), result.report.trace_hash),
                     sim::plan_text(which.plan), result.fault});
                fmt::print("FAILED: {}\n{}\n", failures.back().replay, result.fault);
            }
        }
        if (seconds_since(start) >= next_line_s) {
            fmt::print("soak: {:.0f} of {:.0f} s, {} runs, {} failed, at seed {}\n",
                       seconds_since(start), limit_s, runs, failures.size(), seed);
            std::fflush(stdout);
            next_line_s = seconds_since(start) + std::max(5.0, limit_s / 100);
        }
    }
    const std::string report = report_text(options, tallies, failures, seed);
    if (!options.report_path.empty()) {
        std::ofstream file(options.report_path);
        file << report;
        file.close();
        if (!file)
            raise(ErrorCode::system, kNoRank, "{}: the report cannot be written",
                  options.report_path);
    }
    fmt::print("{} runs, {} failed, seeds {} to {}\n", runs, failures.size(), options.first_seed,
               seed - 1);
    return failures.empty() && runs > 0 ? 0 : 1;
}

}  // namespace gimlet::cli

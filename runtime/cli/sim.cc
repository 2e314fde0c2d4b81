// SPDX-License-Identifier: Apache-2.0
// `gimlet sim`: whole programs on the emulator's deterministic simulation, under fault plans.
// Only in builds for the emulator.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/base/progress.hpp"
#include "host/base/version.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/sim_soak.hpp"
#include "runtime/sim/scenarios.hpp"
#include "runtime/sim/timeline.hpp"

namespace gimlet::cli {
namespace {

struct SimCommand {
    sim::SimCase which;
    std::string scenario = "all";
    std::optional<std::uint64_t> seed;
    std::optional<std::uint64_t> seed_count;
    std::string plan = "none";
    std::string trace_path;
    std::string commit;
    std::string trace_hash;
    std::size_t timeline = 12;
    double minutes = 0;
    std::string report_path;
    bool list = false;
    bool json = false;
    bool mutants = false;
    std::vector<std::string> mutant_names;
    int jobs = 0;
};

std::uint64_t fresh_seed() {
    std::random_device source;
    return source() % 1'000'000'000u;
}

sim::SimCase case_of(const SimCommand& command, const std::string& scenario, std::uint64_t seed) {
    sim::SimCase which = command.which;
    which.scenario = scenario;
    which.seed = seed;
    if (command.plan == "random") {
        which.plan = sim::random_case_plan(which);
    } else if (command.plan != "none") {
        which.plan = sim::read_plan(command.plan);
    }
    return which;
}

std::string size_arguments(const sim::SimSizes& sizes) {
    std::string text;
    const auto add = [&text](const char* name, const std::optional<int>& value) {
        if (value) text += fmt::format(" --{} {}", name, *value);
    };
    add("ranks", sizes.ranks);
    add("team", sizes.team);
    add("tokens", sizes.tokens);
    add("hidden", sizes.hidden);
    add("topk", sizes.topk);
    add("experts", sizes.experts);
    return text;
}

std::string replay_text(const SimCommand& command, const sim::SimCase& which,
                        const sim::SimResult& result) {
    return fmt::format(
        "gimlet sim --scenario {} --seed {} --plan {}{} --commit {} --trace-hash {:016x}",
        which.scenario, which.seed, command.plan, size_arguments(which.sizes), git_hash(),
        result.report.trace_hash);
}

void print_json(const sim::SimCase& which, const sim::SimResult& result,
                const std::string& replay) {
    nlohmann::ordered_json json;
    json["scenario"] = which.scenario;
    json["seed"] = which.seed;
    json["plan"] = nlohmann::ordered_json::parse(sim::plan_text(which.plan));
    json["commit"] = git_hash();
    json["ok"] = result.good;
    json["description"] = result.description;
    json["fault"] = result.fault;
    json["trace_hash"] = fmt::format("{:016x}", result.report.trace_hash);
    json["steps"] = result.report.steps;
    json["virtual_ns"] = result.report.virtual_ns;
    json["device_bytes"] = result.report.peak_bytes;
    json["replay"] = replay;
    std::puts(json.dump().c_str());
}

/// What the replayed run should have been, and was not. Empty if it is the same run.
std::string replay_fault(const SimCommand& command, const sim::SimResult& result) {
    if (command.trace_hash.empty()) return {};
    const std::string hash = fmt::format("{:016x}", result.report.trace_hash);
    if (hash == command.trace_hash) return {};
    const bool other = !command.commit.empty() && command.commit != git_hash();
    return fmt::format(
        "this is another run: trace hash {} instead of {}{}", hash, command.trace_hash,
        other ? fmt::format("; it was made by commit {}, this program is of commit {}, so the seed "
                            "need not reproduce it: build {} to see it again",
                            command.commit, git_hash(), command.commit)
              : "; program, plan or sizes differ");
}

/// One run, told in full.
int run_one(const SimCommand& command, const sim::SimCase& which) {
    const bool traced = !command.trace_path.empty();
    sim::Timeline timeline(
        traced ? sim::Timeline::Keep::everything : sim::Timeline::Keep::last_events,
        command.timeline);
    const sim::SimResult result = sim::run_case(which, &timeline);
    if (traced) timeline.write_chrome_trace(command.trace_path);
    const std::string replay = replay_text(command, which, result);
    const std::string other_run = replay_fault(command, result);
    if (command.json) {
        print_json(which, result, replay);
    } else {
        fmt::print(
            "{}, seed {}, plan {}\n  {}\n  {}: {} steps, {:.3f} ms of virtual time, {:.1f} "
            "MiB of device memory, trace hash {:016x}\n",
            which.scenario, which.seed, sim::plan_text(which.plan), result.description,
            result.good ? "ok" : "FAILED", result.report.steps,
            static_cast<double>(result.report.virtual_ns) / 1e6,
            static_cast<double>(result.report.peak_bytes) / (1024.0 * 1024.0),
            result.report.trace_hash);
        if (!result.good) {
            fmt::print("{}\n\n{}\nreplay: {}\n", result.fault, timeline.last_events(), replay);
        }
        if (traced) fmt::print("  trace: {}\n", command.trace_path);
    }
    if (!other_run.empty()) fmt::print(stderr, "gimlet sim: {}\n", other_run);
    return result.good && other_run.empty() ? 0 : 1;
}

std::vector<std::string> scenarios_of(const SimCommand& command) {
    if (command.scenario != "all") return {command.scenario};
    std::vector<std::string> out;
    for (const sim::ScenarioInfo& info : sim::scenario_list()) out.emplace_back(info.name);
    return out;
}

/// Many runs; a failed one is told in full.
int run_many(const SimCommand& command, std::uint64_t first_seed) {
    const std::vector<std::string> scenarios = scenarios_of(command);
    const std::uint64_t seed_end = first_seed + command.seed_count.value_or(1);
    const std::uint64_t total = (seed_end - first_seed) * scenarios.size();
    Progress progress("sim", total);
    std::uint64_t done = 0;
    int failed = 0;
    std::uint64_t hash = 0;
    for (std::uint64_t seed = first_seed; seed < seed_end; ++seed) {
        for (const std::string& scenario : scenarios) {
            const sim::SimCase which = case_of(command, scenario, seed);
            const sim::SimResult result = sim::run_case(which);
            hash = hash * 31 + result.report.trace_hash;
            if (!result.good) {
                ++failed;
                run_one(command, which);  // the same run once more, watched
            }
            progress.update(++done);
        }
    }
    fmt::print("{} runs, {} failed; seeds {} to {}, plan {}, hash of all traces {:016x}\n", total,
               failed, first_seed, seed_end - 1, command.plan, hash);
    return failed == 0 ? 0 : 1;
}

/// Becomes gimlet_mutants, which has the wrong variants of the device code and lies beside this
/// program.
int run_mutants(const SimCommand& command) {
    const auto program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "gimlet_mutants";
    std::vector<std::string> words = {program.string()};
    const auto add = [&words](const char* name, const std::string& value) {
        words.insert(words.end(), {name, value});
    };
    if (command.seed) add("--seed", fmt::to_string(*command.seed));
    if (command.seed_count) add("--seeds", fmt::to_string(*command.seed_count));
    if (command.jobs > 0) add("--jobs", fmt::to_string(command.jobs));
    for (const std::string& name : command.mutant_names) add("--mutant", name);
    if (!command.report_path.empty()) add("--report", command.report_path);
    if (command.list) words.emplace_back("--list");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    execv(program.c_str(), arguments.data());
    raise(ErrorCode::system, kNoRank,
          "{}: {}; it is built with the tests (target gimlet_mutants), beside this program",
          program.string(), std::strerror(errno));
}

int run(const SimCommand& command) {
    if (command.mutants || !command.mutant_names.empty()) return run_mutants(command);
    if (command.list) {
        for (const sim::ScenarioInfo& info : sim::scenario_list())
            fmt::print("{:<14} {}\n", info.name, info.summary);
        return 0;
    }
    if (!command.commit.empty() && command.commit != git_hash()) {
        fmt::print(stderr,
                   "gimlet sim: the replay is of commit {}, this program is of commit {}; the run "
                   "may differ\n",
                   command.commit, git_hash());
    }
    // Failures that a scenario provokes are its business; GIMLET_LOG shows them all the same.
    set_log_sink([](const LogRecord&) {});
    const std::uint64_t seed = command.seed.value_or(fresh_seed());
    if (command.minutes > 0) {
        SoakOptions soak{command.minutes, seed, scenarios_of(command), command.report_path};
        return run_soak(soak);
    }
    if (command.scenario == "all" || command.seed_count.value_or(1) > 1)
        return run_many(command, seed);
    return run_one(command, case_of(command, command.scenario, seed));
}

void add_options(CLI::App* sub, SimCommand* command) {
    sub->add_option("--scenario", command->scenario, "A name of --list, or all")
        ->capture_default_str();
    sub->add_flag("--list", command->list, "Names the scenarios and leaves");
    sub->add_option("--seed", command->seed, "Decides everything; drawn and printed if not given");
    sub->add_option("--seeds", command->seed_count, "How many seeds, counting up from --seed")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40));
    sub->add_option("--plan", command->plan,
                    "Faults: none, random (by the seed), or a JSON file; runtime/sim/README.md "
                    "lists its fields")
        ->capture_default_str();
    sub->add_option("--trace", command->trace_path,
                    "Writes all events of the run to this file, for Perfetto or chrome://tracing");
    sub->add_option("--timeline", command->timeline, "Events a rank that a failure shows")
        ->check(CLI::Range(1, 10000))
        ->capture_default_str();
    sub->add_option("--commit", command->commit, "Replay: commit that made the run");
    sub->add_option("--trace-hash", command->trace_hash,
                    "Replay: fails unless the run has this trace hash");
    sub->add_option("--minutes", command->minutes,
                    "Soak: fresh seeds and random plans until the time is up")
        ->check(CLI::PositiveNumber);
    sub->add_option("--report", command->report_path,
                    "--minutes, --mutants: writes a report to this file");
    sub->add_flag("--json", command->json, "One line of JSON for a run");
    sub->add_flag("--mutants", command->mutants,
                  "Runs wrong variants of the device code and counts those that are noticed "
                  "(2000 seeds each, unless --seeds says otherwise)");
    sub->add_option("--mutant", command->mutant_names, "Only this one; may be repeated");
    sub->add_option("--jobs", command->jobs, "Mutants: processes at a time")
        ->check(CLI::Range(1, 1024));
    sim::SimSizes& sizes = command->which.sizes;
    const auto size = [sub](const char* name, std::optional<int>* value, const char* text) {
        sub->add_option(name, *value, text)->check(CLI::Range(0, 1 << 20));
    };
    size("--ranks", &sizes.ranks, "Ranks, if not by the seed");
    size("--team", &sizes.team, "Ranks of an LSA team, 0 = all");
    size("--tokens", &sizes.tokens, "Tokens a rank (at most)");
    size("--hidden", &sizes.hidden, "Elements of a row");
    size("--topk", &sizes.topk, "Experts of a token");
    size("--experts", &sizes.experts, "Experts in all");
}

}  // namespace

void add_sim(CLI::App* app, const Arguments&, Action* action) {
    auto command = std::make_shared<SimCommand>();
    CLI::App* sub = app->add_subcommand(
        "sim",
        "Runs the shipped kernels in a deterministic simulation of several ranks, under a fault "
        "plan.\n"
        "The same seed, plan and commit give the same run. Times are virtual.");
    add_options(sub, command.get());
    sub->callback([command, action] { *action = [command] { return run(*command); }; });
}

}  // namespace gimlet::cli

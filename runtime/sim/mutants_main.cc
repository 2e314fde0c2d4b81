// SPDX-License-Identifier: Apache-2.0
// gimlet_mutants, which `gimlet sim --mutants` starts: how many wrong variants are noticed?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "host/base/version.hpp"
#include "runtime/sim/mutant_hunt.hpp"

namespace {

using namespace gimlet::sim;

constexpr double kShareWanted = 0.95;

void print_result(const MutantInfo& mutant, const Catch& result) {
    if (result.caught) {
        fmt::print("caught   {:<30} after {:>4} seeds, {:.1f} s, {} seed {}: {}\n", mutant.name,
                   result.seeds, result.seconds, result.scenario, result.seed,
                   result.how.substr(0, result.how.find('\n')));
    } else {
        fmt::print(
            "SURVIVED {:<30} {:>4} seeds, {:.1f} s, {}\n", mutant.name, result.seeds,
            result.seconds,
            result.hits == 0 ? "never reached" : fmt::format("reached {} times", result.hits));
    }
    std::fflush(stdout);
}

std::vector<MutantInfo> chosen(const std::vector<std::string>& names) {
    if (names.empty()) return mutant_list();
    std::vector<MutantInfo> out;
    for (const std::string& name : names) {
        const auto found = std::find_if(mutant_list().begin(), mutant_list().end(),
                                        [&](const MutantInfo& m) { return m.name == name; });
        if (found == mutant_list().end())
            throw std::invalid_argument("mutant '" + name + "' is unknown; --list shows them");
        out.push_back(*found);
    }
    return out;
}

void write_seed_hints(const std::string& path, const std::vector<MutantInfo>& mutants,
                      const std::vector<Catch>& results) {
    std::ofstream file(path);
    file << "# Seeds that catch: gimlet_mutants tries them first (--hints). Written by "
            "--write-hints."
            "\n";
    for (std::size_t i = 0; i < mutants.size(); ++i)
        if (results[i].caught) file << mutants[i].name << ' ' << results[i].seed << '\n';
    file.close();
    if (!file) throw std::runtime_error(path + ": cannot be written");
}

/// First line of what was seen, short.
std::string short_text(const std::string& text) {
    constexpr std::size_t kTextMax = 90;
    std::string line = text.substr(0, text.find('\n'));
    if (line.size() > kTextMax) line = line.substr(0, kTextMax) + " ...";
    std::replace(line.begin(), line.end(), '|', '/');
    return line;
}

void write_report(const std::string& path, const std::string& command,
                  const std::vector<MutantInfo>& mutants, const std::vector<Catch>& results) {
    const auto caught = static_cast<std::size_t>(
        std::count_if(results.begin(), results.end(), [](const Catch& c) { return c.caught; }));
    double seconds = 0;
    for (const Catch& result : results) seconds += result.seconds;
    char day[16] = "";
    const std::time_t now = std::time(nullptr);
    std::strftime(day, sizeof day, "%Y-%m-%d", std::gmtime(&now));
    std::ofstream file(path);
    file << fmt::format(
        "# Mutants, {}\n\nCommit {}, `{}`: {} of {} caught ({:.1f} %), {:.0f} s of processor "
        "time.\n\n| mutant | in device/ | seeds needed | caught in, seed | what was seen |\n"
        "|---|---|---|---|---|\n",
        day, gimlet::git_hash(), command, caught, results.size(),
        100.0 * static_cast<double>(caught) / static_cast<double>(results.size()), seconds);
    for (std::size_t i = 0; i < results.size(); ++i) {
        const Catch& result = results[i];
        file << fmt::format("| `{}` | `{}` | {} | {} | {} |\n", mutants[i].name, mutants[i].place,
                            result.seeds,
                            result.caught ? fmt::format("`{}` {}", result.scenario, result.seed)
                                          : std::string("**not caught**"),
                            result.caught ? short_text(result.how) : "breaks: " + mutants[i].rule);
    }
    file.close();
    if (!file) throw std::runtime_error(path + ": cannot be written");
}

/// Files to write; empty: not asked for.
struct Outputs {
    std::string hints;
    std::string report;
    std::string command;  ///< for the report
};

int run(const std::vector<MutantInfo>& mutants, const HuntOptions& options,
        const Outputs& outputs) {
    const std::vector<Catch> results = hunt(mutants, options, print_result);
    if (results.size() == 1 && results[0].caught) fmt::print("{}\n", results[0].how);
    if (!outputs.hints.empty()) write_seed_hints(outputs.hints, mutants, results);
    if (!outputs.report.empty()) write_report(outputs.report, outputs.command, mutants, results);
    std::size_t caught = 0;
    for (const Catch& result : results) caught += result.caught;
    const double share = static_cast<double>(caught) / static_cast<double>(results.size());
    fmt::print("{} mutants, {} caught ({:.1f} %) within {} seeds each from {}\n", results.size(),
               caught, 100 * share, options.seed_count, options.first_seed);
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i].caught) continue;
        fmt::print("survivor: {} ({}): {}\n", mutants[i].name, mutants[i].place, mutants[i].rule);
    }
    return share >= kShareWanted ? 0 : 1;
}

/// Exit code: 0 if no seed shows anything.
int run_right_version(const HuntOptions& options, const std::vector<std::string>& scenarios) {
    MutantInfo right = right_version();
    for (const std::string& name : scenarios) {
        if (std::find(right.scenarios.begin(), right.scenarios.end(), name) ==
            right.scenarios.end())
            throw std::invalid_argument(fmt::format("scenario '{}' is not one of {}", name,
                                                    fmt::join(right.scenarios, " ")));
    }
    if (!scenarios.empty()) right.scenarios = scenarios;
    const Catch result = hunt({right}, options, print_result).front();
    fmt::print("the right code: {} of {} seeds, {}\n", result.seeds, options.seed_count,
               result.caught ? "something was noticed" : "nothing was noticed");
    if (result.caught) fmt::print("{}\n", result.how);
    return result.caught ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{
        "Runs wrong variants of the shipped device code in simulation.\n"
        "Exit codes: 0 at least 95 % are caught, 1 fewer, 2 could not run.",
        "gimlet_mutants"};
    HuntOptions options;
    options.jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::string> names;
    std::vector<std::string> scenarios;
    std::string hints;
    Outputs outputs;
    bool hinted_only = false;
    bool list = false;
    bool right = false;
    app.add_option("--mutant", names, "Only these; may be repeated");
    app.add_option("--seeds", options.seed_count, "Seeds each")
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
        ->capture_default_str();
    app.add_option("--seed", options.first_seed, "The first seed")->capture_default_str();
    app.add_option("--jobs", options.jobs, "Processes at a time")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    app.add_option("--hints", hints,
                   "File of lines `mutant seed`: seeds that are tried first, and that count");
    app.add_flag("--hinted-only", hinted_only, "Only the mutants of the --hints file");
    app.add_option("--write-hints", outputs.hints, "Writes the seeds that caught to this file");
    app.add_option("--report", outputs.report,
                   "Writes what was found to this file, as a table in Markdown");
    app.add_flag("--list", list, "Names the mutants and leaves");
    app.add_flag("--right", right,
                 "The code as it ships instead, in the mutants' scenarios: exit 0 if nothing is "
                 "noticed");
    app.add_option("--scenario", scenarios, "--right: only these; may be repeated");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    try {
        if (right) return run_right_version(options, scenarios);
        if (!hints.empty()) options.hints = read_seed_hints(hints);
        if (hinted_only)
            for (const auto& [name, seed] : options.hints) names.push_back(name);
        outputs.command = "gimlet_mutants";
        for (int i = 1; i < argc; ++i) outputs.command += std::string(" ") + argv[i];
        if (!list) return run(chosen(names), options, outputs);
        for (const MutantInfo& mutant : mutant_list())
            fmt::print("{:<30} device/{:<24} {}\n", mutant.name, mutant.place, mutant.rule);
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "gimlet_mutants: {}\n", error.what());
        return 2;
    }
}

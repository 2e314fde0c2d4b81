// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/mutant_hunt.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <type_traits>

#include "device/core/mutation.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "runtime/sim/scenarios.hpp"

namespace gimlet::sim {
namespace {

constexpr int kRunSecondsMax = 120;
/// Behind a scenario's name in the table: its memory is watched; flushes and counters come late;
/// puts and signals arrive long after the flush.
constexpr const char* kWatched = "+memory";
constexpr const char* kLate = "+late";
constexpr const char* kFar = "+far";
constexpr double kLateChance = 0.5;

/// What a child process tells; in memory that both see, so that it survives a crash.
struct Note {
    bool caught;
    bool done;
    std::uint64_t seeds;
    std::uint64_t hits;
    std::uint64_t seed;
    char scenario[32];
    char how[2000];
};
static_assert(std::is_trivially_copyable_v<Note>);

void copy_text(char* to, std::size_t room, const std::string& from) {
    std::snprintf(to, room, "%s", from.c_str());
}

/// The scenario, with what is added to it.
const std::string& word_of(const MutantInfo& mutant, std::uint64_t seed) {
    return mutant.scenarios[seed % mutant.scenarios.size()];
}

/// Every other seed runs under the seed's fault plan, but for faults that excuse errors.
SimCase case_of(const MutantInfo& mutant, std::uint64_t seed) {
    SimCase which;
    const std::string& word = word_of(mutant, seed);
    const bool watched = word.find(kWatched) != std::string::npos;
    which.scenario = word.substr(0, word.find('+'));
    which.seed = seed;
    if (seed / mutant.scenarios.size() % 2 == 1) which.plan = random_case_plan(which);
    which.plan.memory.stale_loads = which.plan.memory.find_races = watched;
    if (word.find(kLate) != std::string::npos)
        which.plan.faults.late_completion_chance = kLateChance;
    if (word.find(kFar) != std::string::npos) which.plan.faults.late_arrival_chance = kLateChance;
    which.plan.faults.stop_rank = -1;
    which.plan.faults.fail_put_rank = -1;
    return which;
}

void run_child(const MutantInfo& mutant, const HuntOptions& options, Note* note) {
    device::selected_mutant = static_cast<device::Mutant>(mutant.id);
    set_log_sink([](const LogRecord&) {});
    std::vector<std::uint64_t> seeds;
    const auto hint = options.hints.find(mutant.name);
    if (hint != options.hints.end()) seeds.push_back(hint->second);
    for (std::uint64_t seed = options.first_seed; seeds.size() < options.seed_count; ++seed)
        seeds.push_back(seed);
    for (std::size_t i = 0; i < seeds.size() && !note->caught; ++i) {
        const SimCase which = case_of(mutant, seeds[i]);
        note->seeds = i + 1;
        note->seed = which.seed;
        copy_text(note->scenario, sizeof note->scenario, word_of(mutant, which.seed));
        // Of processor time: a busy machine is no endless run.
        const itimerval limit{{0, 0}, {kRunSecondsMax, 0}};
        setitimer(ITIMER_PROF, &limit, nullptr);
        const SimResult result = run_case(which);
        note->hits = device::mutant_hits;
        if (result.good) continue;
        copy_text(note->how, sizeof note->how, result.fault);
        note->caught = true;
    }
    note->done = true;
}

double seconds_of(const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

Catch catch_of(const Note& note, int status, const rusage& used) {
    Catch out;
    out.seconds = seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
    out.caught = note.caught || !note.done;
    out.seeds = note.seeds;
    out.hits = note.hits;
    out.seed = note.seed;
    out.scenario = note.scenario;
    out.how = note.how;
    if (!note.done && !note.caught) {
        const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        out.how = signal == SIGPROF ? "the run does not end"
                                    : fmt::format("the run crashes ({})", strsignal(signal));
    }
    return out;
}

}  // namespace

const std::vector<MutantInfo>& mutant_list() {
    static const std::vector<MutantInfo> list = [] {
        struct Row {
            const char* name;
            const char* scenarios;
            const char* place;
            const char* rule;
        };
#define GIMLET_MUTANT_ROW(name, scenarios, place, rule) {#name, scenarios, place, rule},
        const Row rows[] = {GIMLET_MUTANTS(GIMLET_MUTANT_ROW)};
#undef GIMLET_MUTANT_ROW
        std::vector<MutantInfo> out;
        for (const Row& row : rows) {
            MutantInfo info{static_cast<int>(out.size()) + 1, row.name, {}, row.place, row.rule};
            std::istringstream words(row.scenarios);
            for (std::string word; words >> word;) info.scenarios.push_back(word);
            out.push_back(std::move(info));
        }
        return out;
    }();
    return list;
}

MutantInfo right_version() {
    MutantInfo right{0, "(none: the right code)", {}, "", ""};
    for (const MutantInfo& mutant : mutant_list()) {
        for (const std::string& word : mutant.scenarios) {
            if (std::find(right.scenarios.begin(), right.scenarios.end(), word) ==
                right.scenarios.end())
                right.scenarios.push_back(word);
        }
    }
    return right;
}

SeedHints read_seed_hints(const std::string& path) {
    std::ifstream file(path);
    if (!file) raise(ErrorCode::invalid_argument, kNoRank, "{}: cannot be read", path);
    SeedHints hints;
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.empty() || line[0] == '#') continue;
        std::istringstream words(line);
        std::string name;
        std::uint64_t seed = 0;
        std::string rest;
        const bool good = words >> name >> seed && !(words >> rest);
        const bool known = std::any_of(mutant_list().begin(), mutant_list().end(),
                                       [&](const MutantInfo& m) { return m.name == name; });
        if (!good || !known) {
            raise(ErrorCode::invalid_argument, kNoRank, "{}:{}: '{}' is not `mutant seed`{}", path,
                  number, line, good ? "; there is no such mutant (--list shows them)" : "");
        }
        hints[name] = seed;
    }
    return hints;
}

std::vector<Catch> hunt(const std::vector<MutantInfo>& mutants, const HuntOptions& options,
                        void (*on_result)(const MutantInfo&, const Catch&)) {
    const std::size_t bytes = std::max<std::size_t>(mutants.size(), 1) * sizeof(Note);
    void* const shared =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        raise(ErrorCode::system, kNoRank, "no {} B of shared memory: {}", bytes,
              std::strerror(errno));
    auto* const notes = static_cast<Note*>(shared);
    std::vector<Catch> results(mutants.size());
    std::map<pid_t, std::size_t> running;
    std::size_t next = 0;
    while (next < mutants.size() || !running.empty()) {
        if (next < mutants.size() && static_cast<int>(running.size()) < options.jobs) {
            const pid_t child = fork();
            if (child < 0) raise(ErrorCode::system, kNoRank, "fork: {}", std::strerror(errno));
            if (child == 0) {
                run_child(mutants[next], options, notes + next);
                _exit(0);
            }
            running[child] = next++;
            continue;
        }
        int status = 0;
        rusage used{};
        const pid_t ended = wait4(-1, &status, 0, &used);
        const auto found = running.find(ended);
        if (found == running.end()) continue;
        const std::size_t index = found->second;
        running.erase(found);
        results[index] = catch_of(notes[index], status, used);
        on_result(mutants[index], results[index]);
    }
    munmap(shared, bytes);
    return results;
}

}  // namespace gimlet::sim

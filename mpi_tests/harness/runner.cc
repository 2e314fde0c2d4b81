// SPDX-License-Identifier: Apache-2.0
#include "mpi_tests/harness/runner.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "host/base/text.hpp"
#include "host/bootstrap/mpi_bootstrap.hpp"

namespace gimlet::mpi_tests {
namespace {

enum class Outcome : int { passed = 0, skipped = 1, failed = 2 };

/// Between the first rank that gives a case up and the end of the job.
constexpr std::chrono::seconds kLastWords{2};

struct Tally {
    int passed = 0;
    int failed = 0;
    int skipped = 0;

    std::string line() const {
        return fmt::format("{} passed, {} failed, {} skipped\n", passed, failed, skipped);
    }
};

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

void print(const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

/// What this rank's device has to say when a case hangs.
std::string last_reports(int rank) {
    std::string out;
    for (const DeviceError& error : device_errors())
        out += fmt::format("         rank {}: {}\n", rank, describe(error));
    if (out.empty())
        out = fmt::format("         rank {}: no step has failed on its device\n", rank);
    return out;
}

/// Ends the job if a case does not. Every rank has one, so that each can say what it waits for.
class Watchdog {
  public:
    Watchdog(std::uint64_t deadline_s, int rank)
        : deadline_(deadline_s), rank_(rank), thread_([this] { watch(); }) {}
    ~Watchdog() {
        {
            const std::lock_guard lock(mutex_);
            stopped_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }

    void start(const std::string& name, const Tally& tally) {
        const std::lock_guard lock(mutex_);
        name_ = name;
        tally_ = tally;
        due_ = std::chrono::steady_clock::now() + deadline_;
    }
    void stop() {
        const std::lock_guard lock(mutex_);
        name_.clear();
    }

  private:
    void watch() {
        std::unique_lock lock(mutex_);
        while (!stopped_) {
            changed_.wait_for(lock, std::chrono::milliseconds(200));
            if (stopped_ || name_.empty() || std::chrono::steady_clock::now() < due_) continue;
            ++tally_.failed;
            print(fmt::format("FAILED   {}: rank {} is not done after {} s; the job ends\n{}{}",
                              name_, rank_, deadline_.count(), last_reports(rank_), tally_.line()));
            // The other ranks' time is over now, too; ending the job would silence them.
            std::this_thread::sleep_for(kLastWords);
            mpi_abort(1);
        }
    }

    std::chrono::seconds deadline_;
    int rank_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::string name_;
    Tally tally_;
    std::chrono::steady_clock::time_point due_;
    bool stopped_ = false;
    std::thread thread_;
};

bool chosen(const std::string& name, const std::vector<std::string>& only) {
    if (only.empty()) return true;
    return std::any_of(only.begin(), only.end(),
                       [&](const auto& part) { return name.find(part) != std::string::npos; });
}

struct CaseResult {
    Outcome outcome = Outcome::passed;
    std::string text;  ///< reason or failures, of all ranks
};

/// Local part of a case.
CaseResult run_locally(const Case& test, CaseContext* context) {
    if (context->size() < test.least_ranks) {
        return {Outcome::skipped, fmt::format("needs {} ranks", test.least_ranks)};
    }
    try {
        test.body(*context);
    } catch (const Skip& skip) {
        return {Outcome::skipped, skip.reason};
    }
    if (context->failures().empty()) return {};
    return {Outcome::failed, fmt::format("{}", fmt::join(context->failures(), "\n         "))};
}

/// Collective: the worst of all ranks. Ranks that do not agree on skipping have failed.
CaseResult agree(Bootstrap& bootstrap, const CaseResult& mine) {
    const auto outcomes = bootstrap.all_gather_values(static_cast<int>(mine.outcome));
    const auto texts = bootstrap.all_gather_texts(mine.text);
    CaseResult all;
    const int worst = *std::max_element(outcomes.begin(), outcomes.end());
    const int least = *std::min_element(outcomes.begin(), outcomes.end());
    all.outcome = static_cast<Outcome>(worst);
    if (all.outcome == Outcome::skipped && least != worst) all.outcome = Outcome::failed;
    for (const auto& text : texts) {
        if (text.empty()) continue;
        if (!all.text.empty()) all.text += "\n         ";
        all.text += text;
        if (all.outcome == Outcome::skipped) break;
    }
    return all;
}

const char* word(Outcome outcome) {
    switch (outcome) {
        case Outcome::passed: return "passed";
        case Outcome::skipped: return "skipped";
        case Outcome::failed: return "FAILED";
    }
    return "?";
}

void report(const Case& test, const CaseResult& result, std::uint64_t ns, bool json) {
    if (json) {
        nlohmann::json line;
        line["case"] = test.name;
        line["outcome"] = result.outcome == Outcome::failed ? "failed" : word(result.outcome);
        line["ns"] = ns;
        line["text"] = result.text;
        print(line.dump() + "\n");
        return;
    }
    print(fmt::format("{:<8} {:<52} {:>8}{}{}\n", word(result.outcome), test.name,
                      format_duration_ns(ns), result.text.empty() ? "" : "\n         ",
                      result.text));
}

}  // namespace

int run_cases(const std::vector<Case>& cases, const RunnerOptions& options,
              std::shared_ptr<Bootstrap> bootstrap) {
    Tally tally;
    const int rank = bootstrap->rank();
    Watchdog watchdog(options.deadline_s, rank);
    std::string at = "creation of the runtime";
    try {
        watchdog.start(at, tally);
        const auto runtime = Runtime::create(bootstrap);
        for (const Case& test : cases) {
            if (!chosen(test.name, options.only)) continue;
            at = test.name;
            watchdog.start(at, tally);
            const auto begin = now_ns();
            CaseContext context(bootstrap, runtime.get(), options.effort);
            const auto result = agree(*bootstrap, run_locally(test, &context));
            tally.passed += result.outcome == Outcome::passed;
            tally.failed += result.outcome == Outcome::failed;
            tally.skipped += result.outcome == Outcome::skipped;
            if (rank == 0) report(test, result, now_ns() - begin, options.json);
        }
        at = "end of the runtime";
        watchdog.start(at, tally);
        runtime->close();
        watchdog.stop();
    } catch (const std::exception& error) {
        ++tally.failed;
        print(fmt::format("FAILED   {}: rank {}: {}; the job ends\n{}", at, rank, error.what(),
                          tally.line()));
        mpi_abort(1);
    }
    if (rank == 0) print(tally.line());
    return tally.failed == 0 && tally.passed > 0 ? 0 : 1;
}

}  // namespace gimlet::mpi_tests

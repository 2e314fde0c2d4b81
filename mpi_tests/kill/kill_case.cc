// SPDX-License-Identifier: Apache-2.0
// One rank is killed (SIGKILL) at a given moment of a step. The others must get an error that names
// it in time, exclude it, and work on. Run by mpi_tests/run_kills.sh, which counts the lines
// "survived"; mpirun needs --enable-recovery.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.hpp"
#include "host/bootstrap/mpi_bootstrap.hpp"
#include "host/nccl/topology.hpp"
#include "mpi_tests/cases/support.hpp"

namespace {

using namespace gimlet;
using Clock = std::chrono::steady_clock;

enum class Moment {
    before_dispatch,
    in_dispatch,
    before_combine,
    in_combine,
    in_barrier,
    in_life,
    in_recover,
    in_exclude,
    no_deadline,  ///< before a dispatch that the others wait in without a deadline
    at_exit,  ///< it is not killed, but ends by exit() with everything alive and a step in flight
};

const std::map<std::string, Moment> kMoments = {
    {"before-dispatch", Moment::before_dispatch}, {"in-dispatch", Moment::in_dispatch},
    {"before-combine", Moment::before_combine},   {"in-combine", Moment::in_combine},
    {"in-barrier", Moment::in_barrier},           {"in-life", Moment::in_life},
    {"in-recover", Moment::in_recover},           {"in-exclude", Moment::in_exclude},
    {"no-deadline", Moment::no_deadline},         {"at-exit", Moment::at_exit}};

struct KillOptions {
    int victim = 1;
    Moment moment = Moment::in_dispatch;
    int after_us = 0;
    int deadline_ms = 2000;
    bool hybrid = false;
};

/// Everything that may follow the error: the deadline and one second more.
constexpr std::chrono::milliseconds kGrace{1000};

/// The victim is dead long before.
constexpr std::chrono::seconds kLongestLife{10};

/// The process ends while its ranks go on.
void kill_later(int after_us) {
    std::thread([after_us] {
        std::this_thread::sleep_for(std::chrono::microseconds(after_us));
        ::kill(::getpid(), SIGKILL);
    }).detach();
}

class KillCase {
  public:
    KillCase(const KillOptions& options, std::shared_ptr<Bootstrap> bootstrap)
        : options_(options), runtime_(Runtime::create(std::move(bootstrap), runtime_config())) {
        mpi_tests::StepPlan plan = mpi_tests::small_plan(runtime_->size());
        if (options_.hybrid) plan.config.mode = ExchangeMode::hybrid;
        table_ = generate_routing(plan.routing);
        exchange_ = runtime_->create_exchange(plan.config);
        stream_ = Stream::create(runtime_->rank());
    }

    /// What a survivor has to say; empty = all as it should be. The victim does not come back.
    std::string run() {
        std::vector<int> lost = {options_.victim};
        if (options_.moment == Moment::in_recover) {
            if (std::string wrong = lose_while([&] { runtime_->recover(); }); !wrong.empty())
                return wrong;
        } else {
            Rehearsal rehearsal(*exchange_, table_);
            for (int i = 0; i < 2; ++i) step(rehearsal, Kill::nobody);
            if (std::string wrong = lose(rehearsal); !wrong.empty()) return wrong;
        }
        if (options_.moment == Moment::in_exclude) {
            lost.push_back(second_victim());
            std::sort(lost.begin(), lost.end());
            const std::vector<int> first = {options_.victim};
            if (runtime_->rank() == second_victim()) kill_later(options_.after_us);
            // The second call excludes nobody more: it is a recovery.
            if (std::string wrong = lose_while([&] { runtime_->exclude(first); }); !wrong.empty())
                return wrong;
        }
        const GroupReport report = exclude(lost);
        if (report.excluded != lost)
            return "the report of exclude() does not name the lost rank: " + report.text;
        if (exchange_->plan().mode != ExchangeMode::direct)
            return "exclude() has not ended hybrid mode";
        RehearsalOptions without;
        without.excluded = lost;
        {
            Rehearsal rehearsal(*exchange_, table_, without);
            for (int i = 0; i < 3; ++i) step(rehearsal, Kill::nobody);
            if (!exchange_->received(rehearsal.routing()).partial)
                return "a step without the lost rank is not marked partial";
        }
        close();
        return {};
    }

    /// Nobody notices that the victim is gone. Whoever has waited long enough gives up; its kernel
    /// runs on until the process ends, which it must not delay.
    std::string wait_in_vain() {
        // Left alone: freeing its memory waits for all kernels.
        Rehearsal& rehearsal = *new Rehearsal(*exchange_, table_);
        for (int i = 0; i < 2; ++i) step(rehearsal, Kill::nobody);
        if (runtime_->rank() == options_.victim) ::kill(::getpid(), SIGKILL);
        rehearsal.dispatch(CountMode::device, stream_.get());
        std::this_thread::sleep_for(std::chrono::seconds(1));
        if (cudaStreamQuery(stream_.get()) != cudaErrorNotReady)
            return "a step without a deadline has ended";
        if (exchange_->health().state != HealthState::open) return "the Exchange has failed";
        const auto start = Clock::now();
        exchange_->abort();
        runtime_->abort();
        const std::chrono::duration<double> took = Clock::now() - start;
        if (took > kGrace) return fmt::format("abort() took {:.2f} s", took.count());
        return cudaStreamQuery(stream_.get()) == cudaErrorNotReady ? "" : "abort() has waited";
    }

    /// One life: a step, and the end.
    void live() {
        {
            Rehearsal rehearsal(*exchange_, table_);
            step(rehearsal, Kill::nobody);
        }
        close();
    }

  private:
    void close() {
        exchange_->close();
        runtime_->close();
    }

    /// Others may still name fewer ranks; then all hear of it, and name these.
    GroupReport exclude(const std::vector<int>& lost) {
        for (int attempt = 1;; ++attempt) {
            try {
                return runtime_->exclude(lost);
            } catch (const Error& error) {
                if (error.code() != ErrorCode::config_mismatch || attempt == 3) throw;
            }
        }
    }

    int second_victim() const { return (options_.victim + 1) % runtime_->size(); }

    /// Repeats a collective call on the host until it fails: it has the bootstrap's deadline.
    template <typename Call>
    std::string lose_while(const Call& call) {
        if (options_.moment == Moment::in_recover && runtime_->rank() == options_.victim)
            kill_later(options_.after_us);
        const auto begin = Clock::now();
        while (Clock::now() - begin < kLongestLife) {
            const auto start = Clock::now();
            try {
                call();
            } catch (const Error&) {
                failed_after_s_ = std::chrono::duration<double>(Clock::now() - start).count();
                return {};
            }
        }
        return "all calls went well; nobody was lost";
    }

    enum class Kill { nobody, victim };

    RuntimeConfig runtime_config() const {
        RuntimeConfig config;
        config.deadline_ns = options_.moment == Moment::no_deadline
                                 ? 0
                                 : static_cast<std::uint64_t>(options_.deadline_ms) * 1000000u;
        return config;
    }

    /// Steps until one fails: a rank that dies late may have sent all that its step needs, and a
    /// GPU makes many steps until then.
    std::string lose(Rehearsal& rehearsal) {
        const auto begin = Clock::now();
        for (int i = 0; Clock::now() - begin < kLongestLife; ++i) {
            const auto start = Clock::now();
            try {
                step(rehearsal, i == 0 ? Kill::victim : Kill::nobody);
            } catch (const Error& error) {
                const auto took = Clock::now() - start;
                const auto limit = std::chrono::milliseconds(options_.deadline_ms) + kGrace;
                const std::string text = error.what();
                if (took > limit)
                    return fmt::format("the error came after {:.2f} s: {}",
                                       std::chrono::duration<double>(took).count(), text);
                if (text.find(fmt::format("rank {}", options_.victim)) == std::string::npos)
                    return "the error does not name the lost rank: " + text;
                failed_after_s_ = std::chrono::duration<double>(took).count();
                return {};
            }
        }
        return "all steps went well; nobody was lost";
    }

    void step(Rehearsal& rehearsal, Kill kill) {
        const bool mine = kill == Kill::victim && runtime_->rank() == options_.victim;
        const auto at = [&](Moment moment) {
            if (mine && options_.moment == moment) ::kill(::getpid(), SIGKILL);
        };
        const auto during = [&](Moment moment) {
            if (!mine || options_.moment != moment) return;
            kill_later(options_.after_us);
        };
        at(Moment::before_dispatch);
        at(Moment::in_exclude);
        during(Moment::in_dispatch);
        rehearsal.dispatch(CountMode::device, stream_.get());
        if (mine && options_.moment == Moment::at_exit) std::exit(0);
        expect_same(rehearsal.check_dispatch(stream_.get()));
        rehearsal.answer(stream_.get());
        at(Moment::before_combine);
        during(Moment::in_combine);
        rehearsal.combine(stream_.get());
        expect_same(rehearsal.check_combine(stream_.get()));
        during(Moment::in_barrier);
        runtime_->barrier(stream_.get());
        runtime_->synchronize(stream_.get());
    }

    void expect_same(const std::string& difference) const {
        if (!difference.empty()) raise_text(ErrorCode::internal, runtime_->rank(), difference);
    }

    KillOptions options_;
    std::unique_ptr<Runtime> runtime_;
    RoutingTable table_;
    std::unique_ptr<Exchange> exchange_;
    Stream stream_;

  public:
    double failed_after_s_ = 0;
};

/// Ends the process without MPI_Finalize, which would wait for the dead.
[[noreturn]] void leave(int code) {
    std::fflush(nullptr);
    std::_Exit(code);
}

/// Lives are made and ended until the victim dies in one of them, wherever that is: creation, use
/// or close. Whoever is left makes a new life of its own.
[[noreturn]] void live_and_lose(const KillOptions& options,
                                const std::shared_ptr<Bootstrap>& bootstrap) {
    const int rank = bootstrap->rank();
    if (rank == options.victim) kill_later(options.after_us);
    std::vector<int> left;
    for (int r = 0; r < bootstrap->size(); ++r) {
        if (r != options.victim) left.push_back(r);
    }
    const auto begin = Clock::now();
    auto start = begin;
    try {
        while (Clock::now() - begin < kLongestLife) {
            start = Clock::now();
            KillCase(options, bootstrap).live();
        }
        std::printf("FAILED rank %d: all lives went well; nobody was lost\n", rank);
        leave(1);
    } catch (const Error&) {
    }
    const std::chrono::duration<double> took = Clock::now() - start;
    KillCase(options, bootstrap->survivors(left)).live();
    std::printf("survived: rank %d, error after %.2f s\n", rank, took.count());
    leave(0);
}

}  // namespace

int main(int argc, char** argv) {
    KillOptions options;
    CLI::App app{"Kills one rank in the middle of a step; the others must go on without it.",
                 "gimlet_kill_case"};
    app.add_option("--victim", options.victim, "Rank to be killed")->capture_default_str();
    app.add_option("--moment", options.moment, "When")
        ->transform(CLI::CheckedTransformer(kMoments));
    app.add_option("--after-us", options.after_us, "in-...: microseconds after the call")
        ->capture_default_str();
    app.add_option("--deadline-ms", options.deadline_ms, "Longest wait of a kernel")
        ->capture_default_str();
    app.add_flag("--hybrid", options.hybrid, "Rows cross to other LSA teams over rails");
    CLI11_PARSE(app, argc, argv);
    set_log_level(LogLevel::off);
    const MpiSession session(&argc, &argv);
    int rank = kNoRank;
    try {
        std::shared_ptr<Bootstrap> bootstrap = make_mpi_bootstrap();
        rank = bootstrap->rank();
        take_device_in_turn(*bootstrap);
        if (options.moment == Moment::in_life) live_and_lose(options, bootstrap);
        // Static, so that exit() destroys it.
        static KillCase test(options, bootstrap);
        const bool in_vain = options.moment == Moment::no_deadline;
        const std::string wrong = in_vain ? test.wait_in_vain() : test.run();
        if (!wrong.empty()) {
            std::printf("FAILED rank %d: %s\n", rank, wrong.c_str());
            leave(1);
        }
        std::printf("survived: rank %d, error after %.2f s\n", rank, test.failed_after_s_);
        std::fflush(nullptr);
        if (in_vain) std::exit(0);
        leave(0);
    } catch (const std::exception& error) {
        std::printf("FAILED rank %d: %s\n", rank, error.what());
        leave(1);
    }
}

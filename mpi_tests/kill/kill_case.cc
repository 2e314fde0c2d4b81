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
#include <exception>
#include <map>
#include <string>
#include <thread>

#include "host/base/log.hpp"
#include "host/bootstrap/mpi_bootstrap.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/exchange.hpp"
#include "runtime/generators.hpp"
#include "runtime/rehearsal.hpp"
#include "runtime/runtime.hpp"

namespace {

using namespace gimlet;
using Clock = std::chrono::steady_clock;

enum class Moment { before_dispatch, in_dispatch, before_combine, in_combine, in_barrier };

const std::map<std::string, Moment> kMoments = {{"before-dispatch", Moment::before_dispatch},
                                                {"in-dispatch", Moment::in_dispatch},
                                                {"before-combine", Moment::before_combine},
                                                {"in-combine", Moment::in_combine},
                                                {"in-barrier", Moment::in_barrier}};

struct KillOptions {
    int victim = 1;
    Moment moment = Moment::in_dispatch;
    int after_us = 0;
    int deadline_ms = 2000;
};

/// Everything that may follow the error: the deadline and one second more.
constexpr std::chrono::milliseconds kGrace{1000};

/// The victim is dead long before.
constexpr std::chrono::seconds kLongestLife{10};

class KillCase {
  public:
    KillCase(const KillOptions& options, std::shared_ptr<Bootstrap> bootstrap)
        : options_(options), runtime_(Runtime::create(std::move(bootstrap), runtime_config())) {
        config_.expert_count = 2 * runtime_->size() + 1;
        config_.topk = 3;
        config_.hidden = 64;
        config_.max_tokens = 16;
        config_.gin_context_count = 3;
        GeneratorOptions generate;
        generate.rank_count = runtime_->size();
        generate.token_count = config_.max_tokens;
        generate.expert_count = config_.expert_count;
        generate.topk = config_.topk;
        table_ = generate_routing(generate);
        exchange_ = runtime_->create_exchange(config_);
        stream_ = Stream::create(runtime_->rank());
    }

    /// What a survivor has to say; empty = all as it should be. The victim does not come back.
    std::string run() {
        {
            Rehearsal rehearsal(*exchange_, table_);
            for (int i = 0; i < 2; ++i) step(rehearsal, Kill::nobody);
            if (std::string wrong = lose(rehearsal); !wrong.empty()) return wrong;
        }
        const int lost[] = {options_.victim};
        const GroupReport report = runtime_->exclude(lost);
        if (report.excluded != std::vector<int>{options_.victim})
            return "the report of exclude() does not name the lost rank: " + report.text;
        RehearsalOptions without;
        without.excluded = {options_.victim};
        {
            Rehearsal rehearsal(*exchange_, table_, without);
            for (int i = 0; i < 3; ++i) step(rehearsal, Kill::nobody);
            if (!exchange_->received(rehearsal.routing()).partial)
                return "a step without the lost rank is not marked partial";
        }
        exchange_->close();
        runtime_->close();
        return {};
    }

  private:
    enum class Kill { nobody, victim };

    RuntimeConfig runtime_config() const {
        RuntimeConfig config;
        config.deadline_ns = static_cast<std::uint64_t>(options_.deadline_ms) * 1000000u;
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
            std::thread([after = options_.after_us] {
                std::this_thread::sleep_for(std::chrono::microseconds(after));
                ::kill(::getpid(), SIGKILL);
            }).detach();
        };
        at(Moment::before_dispatch);
        during(Moment::in_dispatch);
        rehearsal.dispatch(CountMode::device, stream_.get());
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
    MoeConfig config_;
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
    CLI11_PARSE(app, argc, argv);
    set_log_level(LogLevel::off);
    const MpiSession session(&argc, &argv);
    int rank = kNoRank;
    try {
        std::shared_ptr<Bootstrap> bootstrap = make_mpi_bootstrap();
        rank = bootstrap->rank();
        cuda_check(cudaSetDevice(rank % device_count(rank)), "cudaSetDevice", rank);
        KillCase test(options, bootstrap);
        const std::string wrong = test.run();
        if (!wrong.empty()) {
            std::printf("FAILED rank %d: %s\n", rank, wrong.c_str());
            leave(1);
        }
        std::printf("survived: rank %d, error after %.2f s\n", rank, test.failed_after_s_);
        leave(0);
    } catch (const std::exception& error) {
        std::printf("FAILED rank %d: %s\n", rank, error.what());
        leave(1);
    }
}

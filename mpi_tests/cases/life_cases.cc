// SPDX-License-Identifier: Apache-2.0
// Several Exchanges, early ends, and ranks as threads of one process.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "host/base/env.hpp"
#include "host/base/version.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

/// Two Exchanges of different shape, their steps interleaved on two streams.
void two_exchanges(CaseContext& context) {
    StepPlan narrow = small_plan(context.size());
    StepPlan wide = small_plan(context.size());
    wide.config.layout = Layout::expert_major;
    wide.config.hidden = 128;
    wide.config.expert_count = wide.routing.expert_count = 3 * context.size();
    // Both are in flight at once, and ranks may share a GPU: all their blocks must be resident.
    const int share = context.runtime().device().sm_count / (2 * context.size());
    narrow.config.sm_budget = wide.config.sm_budget = std::clamp(share, 1, 8);
    const auto a = context.runtime().create_exchange(narrow.config);
    const auto b = context.runtime().create_exchange(wide.config);
    const Stream stream_a = Stream::create(context.rank());
    const Stream stream_b = Stream::create(context.rank());
    {
        const RoutingTable table_a = generate_routing(narrow.routing);
        const RoutingTable table_b = generate_routing(wide.routing);
        Rehearsal in_a(*a, table_a, narrow.rehearsal);
        Rehearsal in_b(*b, table_b, wide.rehearsal);
        for (int i = 0; i < 3; ++i) {
            in_a.dispatch(CountMode::device, stream_a.get());
            in_b.dispatch(CountMode::device, stream_b.get());
            context.expect_same(in_b.check_dispatch(stream_b.get()), "dispatch of the second");
            context.expect_same(in_a.check_dispatch(stream_a.get()), "dispatch of the first");
            in_b.answer(stream_b.get());
            in_a.answer(stream_a.get());
            in_a.combine(stream_a.get());
            in_b.combine(stream_b.get());
            context.expect_same(in_a.check_combine(stream_a.get()), "combine of the first");
            context.expect_same(in_b.check_combine(stream_b.get()), "combine of the second");
        }
        const Routing foreign = b->make_routing();
        context.expect_error(ErrorCode::invalid_argument, {"another Exchange"},
                             [&] { a->combine({}, foreign, stream_a.get()); });
    }
    context.expect_error(ErrorCode::invalid_usage, {"2 Exchange(s)"},
                         [&] { context.runtime().close(); });
    b->close();
    a->close();
    a->close();
    context.expect_error(ErrorCode::closed, {}, [&] { (void)a->make_routing(); });
    context.expect(a->health().state == HealthState::closed,
                   "a closed Exchange says that it is open");
}

void again_and_again(CaseContext& context) {
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    for (int i = 0; i < context.repeats(6, 2); ++i) run_steps(context, plan);
}

int open_descriptors() {
    const std::filesystem::directory_iterator entries("/proc/self/fd");
    return static_cast<int>(std::distance(begin(entries), end(entries)));
}

/// Memory of this process's own that is resident. Pages shared with others are left out: MPI
/// touches more and more of its own.
std::int64_t private_bytes() {
    std::ifstream file("/proc/self/status");
    std::string word;
    while (file >> word) {
        std::int64_t kib = 0;
        if (word == "RssAnon:" && file >> kib) return kib << 10;
    }
    return 0;
}

/// A Runtime with an Exchange made, used once and closed, many times: nothing may pile up.
void many_lives(CaseContext& context) {
    const bool emulated = std::string(backend_name()) == "emulator";
    const int cycles = context.repeats(emulated ? 1000 : 20, emulated ? 40 : 5);
    const StepPlan plan = small_plan(context.size());
    const RoutingTable table = generate_routing(plan.routing);
    const Stream stream = Stream::create(context.rank());
    const auto live = [&] {
        const auto runtime = Runtime::create(context.shared_bootstrap());
        const auto exchange = runtime->create_exchange(plan.config);
        {
            Rehearsal rehearsal(*exchange, table, plan.rehearsal);
            context.expect_same(rehearsal.step(plan.mode, stream.get()), "a step");
        }
        exchange->close();
        runtime->close();
    };
    // Pools fill, and caches.
    const int warmups = std::max(5, cycles / 10);
    for (int i = 0; i < warmups; ++i) live();
    const int descriptors = open_descriptors();
    const std::int64_t before = private_bytes();
    for (int i = 0; i < cycles; ++i) live();
    context.expect(open_descriptors() == descriptors,
                   fmt::format("{} file descriptors are open after {} lives, {} before",
                               open_descriptors(), cycles, descriptors));
    // Real NCCL keeps pools of its own that still grow.
    const std::int64_t allowed = emulated ? std::int64_t{4} << 20 : std::int64_t{64} << 20;
    const std::int64_t grown = private_bytes() - before;
    context.expect(grown < allowed, fmt::format("{} lives cost {} bytes of memory, {} are allowed",
                                                cycles, grown, allowed));
}

/// Asks NCCL for errors of the background as fast as it can, as watchdogs do.
class Watchdog {
  public:
    explicit Watchdog(const Communicator& communicator)
        : thread_([this, &communicator] {
              try {
                  for (; !over_; ++asked_) communicator.check_async_error();
              } catch (const Error& error) {
                  failure_ = error.what();
              }
              ended_ = true;
          }) {}
    ~Watchdog() {
        over_ = true;
        if (thread_.joinable()) thread_.join();
    }
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;
    /// Empty = nothing was wrong.
    std::string stop() {
        while (asked_ == 0 && !ended_) std::this_thread::yield();
        over_ = true;
        thread_.join();
        return failure_;
    }

  private:
    std::atomic<bool> over_{false};
    std::atomic<bool> ended_{false};
    std::atomic<int> asked_{0};
    std::string failure_;  // the thread's until it has joined
    std::thread thread_;
};

/// Windows, device communicators and queue pairs come and go, and steps pass, while a thread asks.
void watched_set_up(CaseContext& context) {
    Watchdog watchdog(context.runtime().communicator());
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    for (int i = 0; i < 2; ++i) run_steps(context, plan);
    context.expect_same(watchdog.stop(), "an error in the background");
}

/// One process of the job runs ranks as threads; the others wait.
void threads(CaseContext& context) {
    constexpr int kThreads = 2;
    const bool enough =
        device_count(context.rank()) >= kThreads || env_text(EnvVar::nccl_multi_rank_gpu) == "1";
    const auto all = context.bootstrap().all_gather_values(enough ? 1 : 0);
    if (all[0] == 0) throw Skip{"rank 0 has one device, and NCCL_MULTI_RANK_GPU_ENABLE is not 1"};
    if (context.rank() == 0) {
        const auto group = ThreadGroup::create(kThreads);
        std::vector<std::vector<std::string>> failures(kThreads);
        std::vector<std::thread> workers;
        for (int rank = 0; rank < kThreads; ++rank) {
            workers.emplace_back([&, rank] {
                try {
                    cuda_check(cudaSetDevice(rank % device_count(rank)), "cudaSetDevice", rank);
                    const std::shared_ptr<Bootstrap> member = group->member(rank);
                    const auto runtime = Runtime::create(member);
                    CaseContext inner(member, runtime.get(), Effort::quick);
                    run_steps(inner, small_plan(kThreads));
                    failures[static_cast<std::size_t>(rank)] = inner.failures();
                    runtime->close();
                } catch (const std::exception& error) {
                    failures[static_cast<std::size_t>(rank)].push_back(error.what());
                    group->abort(error.what());
                }
            });
        }
        for (auto& worker : workers) worker.join();
        for (const auto& list : failures) {
            for (const auto& failure : list) context.expect(false, "thread: " + failure);
        }
    }
    context.bootstrap().barrier();
}

}  // namespace

void add_life_cases(std::vector<Case>* cases) {
    cases->push_back({"life/two exchanges", 1, two_exchanges});
    cases->push_back({"life/again and again", 1, again_and_again});
    cases->push_back({"life/made and closed many times", 1, many_lives});
    cases->push_back({"life/asynchronous errors polled during set-up", 1, watched_set_up});
    cases->push_back({"life/ranks as threads", 1, threads});
}

}  // namespace gimlet::mpi_tests

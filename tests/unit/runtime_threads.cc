// SPDX-License-Identifier: Apache-2.0
// Threads of one process that live and give up beside each other.
#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/exchange.hpp"
#include "runtime/runtime.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/smallest_config.hpp"

namespace gimlet::test {
namespace {

constexpr int kRanks = 2;

void step(Exchange& exchange, cudaStream_t stream) {
    Routing routing = exchange.make_routing();
    exchange.dispatch({}, &routing, CountMode::host, stream);
    exchange.combine({}, routing, stream);
    exchange.synchronize(stream);
}

/// One life: `kind` 0 ends in good order, 1 gives up an Exchange and goes on, 2 gives up everything
/// with a step in flight.
void live(const std::shared_ptr<Bootstrap>& bootstrap, int kind) {
    const int rank = bootstrap->rank();
    RuntimeConfig config;
    config.deadline_ns = 60'000'000'000;  // threads of a loaded machine come late
    const auto runtime = Runtime::create(bootstrap, config);
    const auto exchange = runtime->create_exchange(smallest_config());
    const auto other = runtime->create_exchange(smallest_config());
    const Stream stream = Stream::create(rank);
    step(*exchange, stream.get());
    bootstrap->barrier();
    if (kind == 2) {
        Routing routing = exchange->make_routing();
        DispatchInputs alone;
        alone.deadline_ns = 20'000'000;
        if (rank == 0) exchange->dispatch(alone, &routing, CountMode::device, stream.get());
        exchange->abort();
        runtime->abort();
        (void)Runtime::reclaim();
        return;
    }
    if (kind == 1) {
        other->abort();
        (void)Runtime::reclaim();
        runtime->recover();
        step(*exchange, stream.get());
    } else {
        other->close();
    }
    exchange->close();
    runtime->close();
}

/// Runs `body` on pairs of threads, a Runtime's two ranks each, and fails with what it throws.
void run_pairs(int pair_count,
               const std::function<void(const std::shared_ptr<Bootstrap>&, int pair)>& body) {
    const LogCapture quiet;
    std::mutex mutex;
    std::vector<std::string> failures;
    std::vector<std::thread> threads;
    for (int pair = 0; pair < pair_count; ++pair) {
        const auto group = ThreadGroup::create(kRanks);
        for (int rank = 0; rank < kRanks; ++rank) {
            threads.emplace_back([&, group, rank, pair] {
                try {
                    cudaSetDevice(rank);  // all pairs share them
                    body(group->member(rank), pair);
                } catch (const std::exception& error) {
                    group->abort(error.what());
                    const std::lock_guard lock(mutex);
                    failures.push_back(error.what());
                }
            });
        }
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& failure : failures) FAIL_CHECK(failure);
}

}  // namespace

TEST_CASE("two threads with two communicators each give up and reclaim beside each other",
          "[lifecycle]") {
    run_pairs(2, [](const std::shared_ptr<Bootstrap>& member, int pair) {
        for (int life = 0; life < 6; ++life) live(member, (life + pair) % 3);
    });
}

}  // namespace gimlet::test

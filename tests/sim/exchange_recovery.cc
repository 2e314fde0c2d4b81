// SPDX-License-Identifier: Apache-2.0
// The way back: after a failed step all ranks recover together and go on, byte for byte right; or
// they go on without those that are lost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/env.hpp"
#include "host/base/fault.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/engine.hpp"
#include "host/nccl/communicator.hpp"
#include "runtime/core.hpp"
#include "tests/sim/exchange_member.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"
#include "tests/support/smallest_config.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kHourNs = 3'600'000'000'000;

/// A graph in a simulation.
class Graph {
  public:
    template <typename Body>
    Graph(cudaStream_t stream, Body body) {
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
        body();
        cuda_check(cudaStreamEndCapture(stream, &graph_), "end");
        cuda_check(cudaGraphInstantiate(&exec_, graph_, 0), "instantiate");
    }
    ~Graph() {
        cuda_warn(cudaGraphExecDestroy(exec_), "cudaGraphExecDestroy");
        cuda_warn(cudaGraphDestroy(graph_), "cudaGraphDestroy");
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch(cudaStream_t stream) const { cuda_check(cudaGraphLaunch(exec_, stream), "launch"); }

  private:
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
};

void queue_step(Rehearsal& rehearsal, cudaStream_t stream) {
    rehearsal.dispatch(CountMode::device, stream);
    rehearsal.repeat_answer(stream);
    rehearsal.combine(stream);
}

void check_step(const Member& me, Rehearsal& rehearsal, const std::string& when) {
    const std::string received = rehearsal.check_dispatch(me.stream);
    require(received.empty(), fmt::format("rank {}, {}: {}", me.rank, when, received));
    const std::string combined = rehearsal.check_combine(me.stream);
    require(combined.empty(), fmt::format("rank {}, {}: {}", me.rank, when, combined));
    rehearsal.spoil_output();
}

/// What a watchdog of rank `rank` would be told; here all ranks live in one process.
std::ptrdiff_t errors_of(int rank) {
    const std::vector<DeviceError> all = device_errors();
    return std::count_if(all.begin(), all.end(),
                         [&](const DeviceError& error) { return error.rank == rank; });
}

/// Queues a dispatch whose only token names an expert that does not exist.
void queue_bad_dispatch(const Member& me, const DeviceBuffer<std::byte>& row,
                        const DeviceBuffer<std::int32_t>& experts) {
    DispatchInputs inputs;
    inputs.rows = row.get();
    inputs.expert_indices = experts.get();
    inputs.token_count = 1;
    me.exchange.dispatch(inputs, &me.rehearsal.routing(), CountMode::device, me.stream);
}

/// The last rank lets the others wait until they give up.
void fail_together(const Member& me) {
    const int absent = me.world.ranks - 1;
    if (me.rank == absent) return;
    me.fails(ErrorCode::timeout, {fmt::format("rank {}", absent), "it never entered the step"},
             "alone", [&] { me.step("alone"); });
}

}  // namespace

TEST_CASE("a rank that stays away is named by the group, and all recover", "[sim][recovery]") {
    for (World world : worlds()) {
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            const std::vector<int> absent{world.ranks - 1};
            const LogCapture log;
            run_world(world, [&](Member& me) {
                me.step("before");
                fail_together(me);
                if (me.rank != absent[0]) {
                    const Health health = me.exchange.health();
                    require(health.state == HealthState::failed, "health is not failed");
                    require(errors_of(me.rank) == 1, "a watchdog does not see the record");
                    require(health.group && health.group->suspects == absent, "suspects");
                    for (int r = 0; r < world.ranks; ++r) {
                        const auto& record = health.group->records[static_cast<std::size_t>(r)];
                        require(record.has_value() == (r != absent[0]), health.group->text);
                    }
                    me.fails(ErrorCode::timeout, {"it never entered the step"}, "again",
                             [&] { me.exchange.combine({}, me.rehearsal.routing(), me.stream); });
                }
                const GroupReport report = me.exchange.recover();
                require(report.suspects == absent, "recover: " + report.text);
                require(me.exchange.health().state == HealthState::open, "not open");
                require(errors_of(me.rank) == 0, "a watchdog sees the record of what is over");
                for (int i = 0; i < 3; ++i) me.step(fmt::format("step {} after", i));
            });
            // One rank speaks for all, and says what each of them knows.
            CHECK(log.count(LogLevel::error, "the Exchange: the step failed") == 1);
            CHECK(log.count(LogLevel::error) == 1);
        }
    }
}

TEST_CASE("a bad argument on one rank fails the others at once", "[sim][recovery]") {
    for (World world : worlds()) {
        for (world.seed = 1; world.seed <= 4; ++world.seed) {
            CAPTURE(text_of(world));
            const bool in_combine = world.seed % 2 == 0;
            run_world(world, [&](Member& me) {
                me.step("before");
                const bool bad = me.rank == 1;
                if (in_combine) me.rehearsal.dispatch(CountMode::device, me.stream);
                DispatchInputs inputs;
                inputs.token_count = bad ? me.exchange.plan().config.max_tokens + 1 : 0;
                inputs.deadline_ns = kHourNs;
                CombineInputs outputs;
                DeviceBuffer<float> out(1 << 12);
                outputs.out = bad ? nullptr : out.get();
                outputs.deadline_ns = kHourNs;
                Routing routing = me.exchange.make_routing();
                const ErrorCode code = bad ? ErrorCode::invalid_argument : ErrorCode::peer_failed;
                me.fails(code, {}, "the bad call", [&] {
                    if (in_combine) {
                        me.exchange.combine(outputs, me.rehearsal.routing(), me.stream);
                    } else {
                        me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
                    }
                    me.exchange.synchronize(me.stream);
                });
                const GroupReport report = me.exchange.recover();
                require(report.suspects == std::vector<int>{1}, "recover: " + report.text);
                for (int i = 0; i < 2; ++i) me.step(fmt::format("step {} after", i));
            });
        }
    }
}

TEST_CASE("a refusal is heard in its own step, however late a peer is", "[sim][recovery]") {
    for (World world : worlds()) {
        for (world.seed = 1; world.seed <= 4; ++world.seed) {
            world.faults.slow_rank = world.ranks - 1;
            world.faults.slow_factor = 40;
            // The bad step is the third, and may be number 0.
            world.first_step = world.seed > 2 ? ~std::uint64_t{0} - 2 : 0;
            CAPTURE(text_of(world));
            const bool in_combine = world.seed % 2 == 0;
            run_world(world, [&](Member& me) {
                me.step("before");
                DeviceBuffer<std::byte> row(dispatch_row_bytes(me.exchange.plan().config));
                const auto topk = static_cast<std::size_t>(me.exchange.plan().config.topk);
                DeviceBuffer<std::int32_t> experts(topk);
                experts.upload(std::vector<std::int32_t>(topk, 1 << 20));
                queue_step(me.rehearsal, me.stream);
                if (me.rank > 0) {
                    check_step(me, me.rehearsal, "the step before");
                    me.fails(ErrorCode::peer_failed, {"rank 0"}, "the bad step", [&] {
                        in_combine ? me.rehearsal.combine(me.stream)
                                   : queue_step(me.rehearsal, me.stream);
                        me.exchange.synchronize(me.stream);
                    });
                } else {
                    me.fails(ErrorCode::invalid_argument, {}, "the bad step", [&] {
                        if (in_combine)
                            me.exchange.combine({}, me.rehearsal.routing(), me.stream);
                        else
                            queue_bad_dispatch(me, row, experts);
                        for (int i = 0; i < 4; ++i) queue_step(me.rehearsal, me.stream);
                        me.exchange.synchronize(me.stream);
                    });
                }
                me.exchange.recover();
                me.step("after");
            });
        }
    }
}

TEST_CASE("steps queued behind a failed one end at once", "[sim][recovery]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            if (me.rank != 0) {
                me.fails(ErrorCode::timeout, {"rank 0"}, "queued steps", [&] {
                    for (int i = 0; i < 8; ++i) {
                        me.rehearsal.dispatch(CountMode::device, me.stream);
                        me.rehearsal.combine(me.stream);
                    }
                    me.exchange.synchronize(me.stream);
                });
                const auto error = me.exchange.health().error;
                require(error && error->epoch == 1, "the first record was overwritten");
            }
            me.runtime.recover();
            me.step("after");
        });
    }
}

TEST_CASE("a failed barrier names the group's suspect and recovers", "[sim][recovery]") {
    for (World world : worlds()) {
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            run_world(world, [&](Member& me) {
                me.runtime.barrier(me.stream);
                me.runtime.synchronize(me.stream);
                if (me.rank != 0) {
                    me.fails(ErrorCode::timeout, {"rank 0"}, "barrier", [&] {
                        me.runtime.barrier(me.stream, 3);
                        me.runtime.synchronize(me.stream);
                    });
                    me.fails(ErrorCode::timeout, {"rank 0"}, "again",
                             [&] { me.runtime.barrier(me.stream); });
                }
                const GroupReport report = me.runtime.recover();
                require(report.suspects == std::vector<int>{0}, "recover: " + report.text);
                me.runtime.barrier(me.stream, 5);
                me.runtime.synchronize(me.stream);
                me.step("after");
            });
        }
    }
}

TEST_CASE("recover() in good health changes nothing but the step number", "[sim][recovery]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            me.step("before");
            for (int i = 0; i < 3; ++i) {
                const GroupReport report = me.runtime.recover();
                require(report.cause.empty() && report.suspects.empty(), report.text);
                me.fails(ErrorCode::invalid_usage, {"recover()"}, "an old routing",
                         [&] { (void)me.exchange.received(me.rehearsal.routing()); });
                me.step("after");
            }
        });
    }
}

TEST_CASE("numbers that wrap: steps near 2^32 and 2^64, signals near their ends",
          "[sim][recovery][wrap]") {
    for (World world : worlds()) {
        for (const std::uint64_t first :
             {(std::uint64_t{1} << 32) - 3, (std::uint64_t{1} << 32) - 1, ~std::uint64_t{0} - 2,
              ~std::uint64_t{0} / 2 - 1}) {
            world.first_step = first;
            world.faults.near_wrap_counters = true;
            CAPTURE(text_of(world));
            run_world(world, [&](Member& me) {
                for (int i = 0; i < 3; ++i) {
                    const std::string difference = me.rehearsal.step(CountMode::host, me.stream);
                    require(difference.empty(), difference);
                    me.runtime.barrier(me.stream);
                    me.runtime.synchronize(me.stream);
                }
                fail_together(me);
                me.runtime.recover();
                for (int i = 0; i < 3; ++i) me.step("after");
            });
        }
    }
}

TEST_CASE("a barrier that one rank refuses fails at once on all", "[sim][recovery]") {
    for (World world : worlds()) {
        for (const bool wrong_device : {false, true}) {
            CAPTURE(text_of(world), wrong_device);
            const LogCapture quiet;
            run_world(world, [&](Member& me) {
                me.runtime.barrier(me.stream);
                me.runtime.synchronize(me.stream);
                const bool bad = me.rank == 1;
                const std::uint64_t before_ns = emu::Engine::get().now_ns();
                me.fails(!bad           ? ErrorCode::peer_failed
                         : wrong_device ? ErrorCode::invalid_usage
                                        : ErrorCode::invalid_argument,
                         {!bad           ? "rank 1"
                          : wrong_device ? "device"
                                         : "repeat_count is -3"},
                         "one refuses", [&] {
                             const DeviceGuard guard(bad && wrong_device ? 0 : me.rank, me.rank);
                             me.runtime.barrier(me.stream, bad && !wrong_device ? -3 : 2, kHourNs);
                             me.runtime.synchronize(me.stream);
                         });
                require(emu::Engine::get().now_ns() - before_ns < kHourNs / 2, "a deadline");
                const GroupReport report = me.runtime.recover();
                require(report.suspects == std::vector<int>{1}, "recover: " + report.text);
                me.runtime.barrier(me.stream, 2);
                me.runtime.synchronize(me.stream);
            });
        }
    }
}

TEST_CASE("rows copied by pack and unpack, barriers in between: seeds", "[sim][exchange]") {
    for (World world : worlds()) {
        world.access = RowAccess::copied;
        for (world.seed = 1; world.seed <= 6; ++world.seed) {
            CAPTURE(text_of(world));
            run_world(world, [&](Member& me) {
                for (int i = 0; i < 3; ++i) {
                    me.step(fmt::format("step {}", i));
                    me.runtime.barrier(me.stream, 1 + i);
                }
                me.runtime.synchronize(me.stream);
            });
        }
    }
}

TEST_CASE("NaN weights are carried", "[sim][field]") {
    for (World world : worlds()) {
        const float nan = std::numeric_limits<float>::quiet_NaN();
        world.weights = {nan, 1.0f, -nan, 0.0f, std::numeric_limits<float>::infinity()};
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) { me.step("with NaN"); });
    }
}

TEST_CASE("field: choices that only their weights mask are counted and carried", "[sim][field]") {
    for (World world : worlds()) {
        // Counts come from the ids that were sent, and from nowhere else.
        world.weights = std::vector<float>(64, 0.0f);
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const std::string difference = me.rehearsal.step(CountMode::host, me.stream);
            require(difference.empty(), fmt::format("rank {}: {}", me.rank, difference));
        });
    }
}

TEST_CASE("field: outputs that the caller's stream fills just before a step on a stream of its own",
          "[sim][field][stream]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const Stream comm = Stream::create(me.rank);
            me.exchange.set_comm_stream(comm.get());
            const auto tokens = me.table.ranks[static_cast<std::size_t>(me.rank)].token_count;
            const auto bytes = static_cast<std::size_t>(tokens) *
                               static_cast<std::size_t>(me.exchange.plan().combine_row_bytes);
            for (int i = 0; i < 3; ++i) {
                me.rehearsal.dispatch(CountMode::device, me.stream);
                me.rehearsal.answer(me.stream);
                // As a framework does that fills fresh tensors with NaN.
                auto* const out = const_cast<std::byte*>(me.rehearsal.output());
                cuda_check(cudaMemsetAsync(out, 0xff, bytes, me.stream), "cudaMemsetAsync");
                me.rehearsal.combine(me.stream);
                const std::string difference = me.rehearsal.check_combine(me.stream);
                require(difference.empty(), fmt::format("rank {}: {}", me.rank, difference));
                // And what comes behind the step on the caller's stream comes behind it.
                me.rehearsal.dispatch(CountMode::device, me.stream);
                me.rehearsal.repeat_answer(me.stream);
                me.rehearsal.combine(me.stream);
                cuda_check(cudaMemsetAsync(out, 0xff, bytes, me.stream), "cudaMemsetAsync");
                me.exchange.synchronize(me.stream);
                std::vector<std::byte> got(bytes);
                detail::device_copy(got.data(), out, bytes, me.rank);
                require(std::all_of(got.begin(), got.end(),
                                    [](std::byte b) { return b == std::byte{0xff}; }),
                        "the step has overtaken the fill behind it");
            }
        });
    }
}

TEST_CASE("field: steps pass beside a kernel that sleeps on another stream", "[sim][field]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            // A barrier that the last rank enters much later.
            const Stream side = Stream::create(me.rank);
            const bool last = me.rank == me.world.ranks - 1;
            if (!last) me.runtime.barrier(side.get(), 1, 0);
            for (int i = 0; i < 3; ++i) me.step("beside it");
            require(last || cudaStreamQuery(side.get()) == cudaErrorNotReady, "nobody slept");
            emu::host_barrier();  // the last rank may be done with its steps long before
            if (last) me.runtime.barrier(side.get(), 1, 0);
            me.runtime.synchronize(side.get());
            me.step("after it");
        });
    }
}

TEST_CASE("graphs: several over one Exchange, replayed after recover()", "[sim][recovery][graph]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            Rehearsal other(me.exchange, me.table);
            me.step("before");
            const std::string difference = other.step(CountMode::device, me.stream);
            require(difference.empty(), difference);
            {
                const Graph first(me.stream, [&] {
                    for (int i = 0; i < 2; ++i) queue_step(me.rehearsal, me.stream);
                });
                me.exchange.end_capture();
                const Graph second(me.stream, [&] {
                    queue_step(other, me.stream);
                    queue_step(me.rehearsal, me.stream);
                });
                me.exchange.end_capture();
                for (int i = 0; i < 4; ++i) {
                    (i % 2 == 0 ? first : second).launch(me.stream);
                    check_step(me, me.rehearsal, fmt::format("replay {}", i));
                }
                // A replay that fails on the device is found by the next call.
                const int absent = world.ranks - 1;
                if (me.rank != absent) {
                    first.launch(me.stream);
                    me.fails(ErrorCode::timeout, {fmt::format("rank {}", absent)}, "a replay",
                             [&] { me.exchange.synchronize(me.stream); });
                }
                me.exchange.recover();
                second.launch(me.stream);
                check_step(me, me.rehearsal, "replay after recover()");
                check_step(me, other, "the other routing");
                first.launch(me.stream);
                check_step(me, me.rehearsal, "the first graph");
            }
        });
    }
}

TEST_CASE("graphs: other parity", "[sim][recovery][graph]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            me.step("before");
            {
                const Graph graph(me.stream, [&] {
                    for (int i = 0; i < 2; ++i) queue_step(me.rehearsal, me.stream);
                });
                me.exchange.end_capture();
                me.step("one step between");
                me.fails(ErrorCode::invalid_usage, {"buffer", "odd number"}, "the launch", [&] {
                    graph.launch(me.stream);
                    me.exchange.synchronize(me.stream);
                });
                me.exchange.recover();
                graph.launch(me.stream);
                check_step(me, me.rehearsal, "replay after recover()");
            }
        });
    }
}

TEST_CASE("graphs: copied rows, any number of steps in any step", "[sim][recovery][graph]") {
    for (World world : worlds()) {
        world.access = RowAccess::copied;
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            me.exchange.reserve(GraphAddresses::copied);
            me.step("before");
            {
                const Graph odd(me.stream, [&] { queue_step(me.rehearsal, me.stream); });
                me.exchange.end_capture();
                for (int i = 0; i < 3; ++i) {
                    odd.launch(me.stream);
                    check_step(me, me.rehearsal, fmt::format("replay {}", i));
                    if (i == 1) me.step("eager");
                }
                me.fails(ErrorCode::invalid_usage, {"pack()"}, "an address",
                         [&] { (void)me.exchange.combine_input(); });
                me.fails(ErrorCode::invalid_usage, {"before the first capture"}, "reserve",
                         [&] { me.exchange.reserve(); });
            }
        });
    }
}

TEST_CASE("a rank stopped at any moment is named, excluded, and the others work on",
          "[sim][recovery][exclude]") {
    int named = 0;
    for (World world : worlds()) {
        if (has_rail_rings(world)) continue;
        const std::uint64_t start = run_world(world, [](Member&) {}).steps;
        const auto steps = [](Member& me) {
            for (int i = 0; i < 2; ++i) {
                me.step("shared");
                me.runtime.barrier(me.stream);
                me.runtime.synchronize(me.stream);
            }
        };
        const std::uint64_t end = run_world(world, steps).steps;
        constexpr int kMoments = 12;
        for (int i = 0; i < kMoments; ++i) {
            const int lost = i % world.ranks;
            world.faults.stop_rank = lost;
            world.faults.stop_at_step =
                start + (end - start) * static_cast<std::uint64_t>(i) / kMoments;
            CAPTURE(text_of(world));
            run_world(world, [&](Member& me) {
                try {
                    steps(me);
                } catch (const Error& error) {
                    const std::string text = error.what();
                    require(text.find(fmt::format("rank {}", lost)) != std::string::npos,
                            "not named: " + text);
                    if (me.rank != lost) ++named;
                }
                // One that was not stopped in time waits for it here.
                if (me.rank == lost) {
                    emu::Engine::get().wait("its end", [] { return false; });
                }
                work_on(me, {lost});
            });
        }
    }
    INFO("errors that named the rank: " << named);
    REQUIRE(named >= 20);
}

TEST_CASE("who stops in the middle of a streamed step is not said to have stayed away",
          "[sim][recovery][exclude]") {
    World world = worlds()[3];
    REQUIRE(world.sync == Sync::fifo);
    const LogCapture log;
    std::atomic<int> seen{0};
    const std::uint64_t start = run_world(world, [](Member&) {}).steps;
    const auto steps = [](Member& me) {
        for (int i = 0; i < 2; ++i) me.step("shared");
    };
    const std::uint64_t end = run_world(world, steps).steps;
    constexpr int kMoments = 16;
    for (int i = 0; i < kMoments; ++i) {
        const int lost = i % world.ranks;
        world.faults.stop_rank = lost;
        world.faults.stop_at_step =
            start + (end - start) * static_cast<std::uint64_t>(i) / kMoments;
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            try {
                steps(me);
            } catch (const Error&) {
            }
            if (me.rank == lost) emu::Engine::get().wait("its end", [] { return false; });
            const auto group = me.exchange.health().group;
            const auto error = me.exchange.health().error;
            const bool in_channel = error && error->peer == lost &&
                                    (error->primitive == Primitive::fifo_wait ||
                                     error->primitive == Primitive::fifo_reserve);
            if (in_channel) {
                ++seen;
                require(group->suspects == std::vector<int>{lost}, group->text);
                require(group->cause.find("entered the step, but") != std::string::npos,
                        group->text);
                require(group->cause.find("never entered") == std::string::npos, group->text);
            }
            work_on(me, {lost});
        });
    }
    INFO("records of waits in a channel: " << seen);
    REQUIRE(seen >= 4);
}

TEST_CASE("two ranks excluded, one after the other", "[sim][recovery][exclude]") {
    World world;
    world.ranks = 5;
    for (const int team : {0, 1}) {
        world.team = team;
        CAPTURE(text_of(world));
        // abort() drops what is still on its way to others: who leaves waits until they have it.
        std::atomic<int> settled{0};
        const auto settle = [&](int count) {
            ++settled;
            emu::Engine::get().progress();
            emu::Engine::get().wait("the others", [&, count] { return settled >= count; });
        };
        run_world(world, [&](Member& me) {
            me.step("all");
            settle(5);
            me.fails(ErrorCode::invalid_argument, {"cannot be excluded"}, "itself", [&] {
                const int self[] = {me.rank};
                (void)me.runtime.exclude(self);
            });
            // They leave in good order; their memory stays until the others have closed.
            if (me.rank == 4) {
                me.exchange.abort();
                me.runtime.abort();
                return;
            }
            work_on(me, {4});
            settle(9);
            if (me.rank == 0) {
                me.exchange.abort();
                me.runtime.abort();
                return;
            }
            work_on(me, {0, 4});
            require(me.runtime.live_ranks() == std::vector<int>{1, 2, 3}, "live ranks");
        });
    }
}

TEST_CASE("ranks that exclude different ranks hear it at once, with both lists",
          "[sim][recovery][exclude]") {
    World world;
    std::atomic<int> refused{0};
    run_world(world, [&](Member& me) {
        me.step("before");
        // Everybody lives, and nobody waits for a deadline: a simulation's bootstrap has none.
        const std::vector<int> out = me.rank == 0   ? std::vector{3}
                                     : me.rank == 3 ? std::vector<int>{}
                                                    : std::vector{0};
        if (me.rank != 3) {
            me.fails(ErrorCode::config_mismatch,
                     {fmt::format("rank {} names {}", me.rank, me.rank == 0 ? "0-2" : "1-3")},
                     "other ranks", [&] { (void)me.runtime.exclude(out); });
        } else {
            me.fails(ErrorCode::config_mismatch, {"rank 3 names 0-3"}, "nobody",
                     [&] { (void)me.runtime.exclude(out); });
        }
        require(me.runtime.live_ranks().size() == 4, "live ranks");
        ++refused;
        emu::Engine::get().progress();
        emu::Engine::get().wait("the others", [&] { return refused == world.ranks; });
        // Nothing has happened; and agreeing on nobody is a recovery.
        (void)me.runtime.exclude(std::vector<int>{});
        for (int i = 0; i < 2; ++i) me.step("after");
    });
}

TEST_CASE("without a deadline a rank is waited for, however late", "[sim][recovery]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            me.step("before");
            const auto step = [&](std::uint64_t deadline_ns) {
                Routing routing = me.exchange.make_routing();
                DispatchInputs inputs;
                inputs.deadline_ns = deadline_ns;
                me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
                CombineInputs outputs;
                outputs.deadline_ns = deadline_ns;
                me.exchange.combine(outputs, routing, me.stream);
                me.exchange.synchronize(me.stream);
            };
            // Twice the deadline of this world, and more.
            if (me.rank == 1) emu::Engine::get().sleep_ns(50'000'000, "a late rank");
            step(0);
            for (int i = 0; i < 2; ++i) me.step("after");
        });
    }
}

namespace {

/// Gives up while kernels wait for the last rank, which never comes. `together` returns once all
/// ranks have called it.
void give_up_in_a_step(const World& world, int rank, const std::function<void()>& together) {
    RuntimeConfig config;
    config.deadline_ns = 20'000'000;
    const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
    auto runtime = Runtime::create(bootstrap, config);
    auto exchange = runtime->create_exchange(smallest_config());
    const Stream stream = Stream::create(rank);
    {
        Routing routing = exchange->make_routing();
        const bool waits = rank + 1 < world.ranks;
        if (waits) {
            exchange->dispatch({}, &routing, CountMode::device, stream.get());
            runtime->barrier(stream.get());
        }
        if (rank % 2 == 0) runtime->abort();
        exchange->abort();
        runtime->abort();
        require(cudaStreamQuery(stream.get()) == (waits ? cudaErrorNotReady : cudaSuccess),
                "abort() has waited");
        require(exchange->health().state == HealthState::closed, "open");
        exchange.reset();
        runtime.reset();
        together();
        cuda_check(cudaStreamSynchronize(stream.get()), "synchronize");
        together();
    }
    runtime = Runtime::create(bootstrap, config);
    require(Runtime::reclaim() == 0, "create() has left something");
    exchange = runtime->create_exchange(smallest_config());
    Routing routing = exchange->make_routing();
    exchange->dispatch({}, &routing, CountMode::device, stream.get());
    exchange->abort();
    cuda_check(cudaStreamSynchronize(stream.get()), "synchronize");
    together();
    require(Runtime::reclaim() == 0, "the Exchange of an open Runtime");
    runtime->close();
    require(Runtime::reclaim() == 0, "close() has left something");
}

}  // namespace

TEST_CASE("abort() with a step in flight: nothing waits, nothing is freed too early",
          "[sim][recovery][lifecycle]") {
    const LogCapture quiet;
    for (World world : worlds()) {
        if (world.sync == Sync::fifo) continue;
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            emu::SimOptions options;
            options.ranks = world.ranks;
            options.lsa_team_size = world.team;
            options.gin = world.team == 0 ? emu::GinMode::off : world.gin;
            options.seed = world.seed;
            options.sm_count = 2;
            std::atomic<int> arrived{0};
            emu::simulate(options, [&](int rank) {
                int meetings = 0;
                give_up_in_a_step(world, rank, [&] {
                    const int wanted = ++meetings * world.ranks;
                    ++arrived;
                    emu::Engine::get().progress();
                    emu::Engine::get().wait("the others", [&] { return arrived >= wanted; });
                });
            });
        }
    }
}

namespace {

/// Waits without a deadline for rank `lost`, which never comes, and gives up.
void wait_in_vain(int rank, int lost) {
    auto runtime = Runtime::create(std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank)));
    auto exchange = runtime->create_exchange(smallest_config());
    const Stream stream = Stream::create(rank);
    emu::arm_faults();
    emu::Engine& engine = emu::Engine::get();
    if (rank == lost) engine.wait("its end", [] { return false; });
    const auto records_before = errors_of(rank);  // of ranks that earlier tests stopped
    {
        Routing routing = exchange->make_routing();
        DispatchInputs inputs;
        inputs.deadline_ns = 0;
        exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
        engine.sleep_ns(kHourNs, "a long wait");
        require(cudaStreamQuery(stream.get()) == cudaErrorNotReady, "the step has ended");
        require(exchange->health().state == HealthState::open, "a failure");
        require(errors_of(rank) == records_before, "a record");
    }
    const std::uint64_t before_ns = engine.now_ns();
    exchange->abort();
    runtime->abort();
    exchange.reset();
    runtime.reset();
    require(engine.now_ns() - before_ns < 1'000'000, "somebody has waited");
    require(cudaStreamQuery(stream.get()) == cudaErrorNotReady, "the step has ended at last");
}

}  // namespace

TEST_CASE("without a deadline a dead rank is waited for until the waiting one gives up",
          "[sim][recovery][lifecycle]") {
    const LogCapture log;
    for (const int team : {0, 1}) {
        emu::SimOptions options;
        options.ranks = 3;
        options.lsa_team_size = team;
        options.sm_count = 2;
        options.faults.wait_until_armed = true;
        options.faults.stop_rank = 1;
        options.faults.stop_at_step = 0;
        INFO("team " << team);
        emu::simulate(options, [&](int rank) {
            try {
                wait_in_vain(rank, options.faults.stop_rank);
            } catch (const Error&) {
                // A stopped rank is unwound at the end.
                if (rank != options.faults.stop_rank) throw;
            }
        });
    }
    CHECK(log.count(LogLevel::error, "the step failed") == 0);
}

TEST_CASE("what is destroyed or aborted beside running kernels waits for none of them",
          "[sim][recovery][lifecycle]") {
    const LogCapture quiet;
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const auto other = me.runtime.create_exchange(smallest_config());
            const auto& kept = me.runtime.core()->kept_routing_count;
            const bool late = me.rank == 1;
            const auto still_running = [&](const char* what) {
                require(late || cudaStreamQuery(me.stream) == cudaErrorNotReady, what);
            };
            me.step("before");
            require(kept == 0, "kept without need");
            if (late) emu::Engine::get().sleep_ns(10'000'000, "a late rank");
            {
                Routing routing = me.exchange.make_routing();
                me.exchange.dispatch({}, &routing, CountMode::device, me.stream);
                me.exchange.combine({}, routing, me.stream);
                Routing next = me.exchange.make_routing();
                me.exchange.dispatch({}, &next, CountMode::device, me.stream);
                still_running("make_routing() has waited");
                next = std::move(routing);
                still_running("the assignment has waited");
            }
            still_running("~Routing has waited");
            { Routing idle = other->make_routing(); }
            other->abort();
            still_running("abort() has waited");
            require(late || kept == 3, fmt::format("{} kept", kept.load()));
            // Without bound they are not kept.
            for (int i = 0; i < 70; ++i) (void)me.exchange.make_routing();
            require(kept <= 64, fmt::format("{} kept", kept.load()));
            me.exchange.synchronize(me.stream);
            for (int i = 0; i < 2; ++i) me.step("after");
            me.exchange.recover();  // waits for all: the aborted Exchange may go, whatever GIN does
            const Routing last = me.exchange.make_routing();
            require(kept == 0, fmt::format("{} kept at last", kept.load()));
        });
    }
}

TEST_CASE("a stream of its own: joined at once, joined later, captured", "[sim][stream]") {
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const Stream comm = Stream::create(me.rank);
            me.exchange.set_comm_stream(comm.get());
            for (int i = 0; i < 2; ++i) me.step("joined at once");
            {
                const Graph graph(me.stream, [&] {
                    for (int i = 0; i < 2; ++i) queue_step(me.rehearsal, me.stream);
                });
                me.exchange.end_capture();
                graph.launch(me.stream);
                check_step(me, me.rehearsal, "captured");
            }
            me.exchange.set_comm_stream(comm.get(), Join::later);
            for (int i = 0; i < 2; ++i) {
                me.rehearsal.dispatch(CountMode::device, me.stream);
                me.exchange.join(me.stream);
                me.rehearsal.answer(me.stream);
                me.rehearsal.combine(me.stream);
                me.exchange.join(me.stream);
                check_step(me, me.rehearsal, "joined later");
            }
            // The stream is left with a step on it that nobody has waited for.
            me.rehearsal.dispatch(CountMode::device, me.stream);
            me.exchange.set_comm_stream(nullptr);
            me.exchange.join(me.stream);
            me.rehearsal.answer(me.stream);
            me.rehearsal.combine(me.stream);
            check_step(me, me.rehearsal, "left behind");
            me.exchange.set_comm_stream(comm.get(), Join::later);
            me.rehearsal.dispatch(CountMode::device, me.stream);
            me.exchange.set_comm_stream(nullptr);
            me.step("on the caller's stream again");
        });
    }
}

TEST_CASE("the newest events of a failed step are there", "[sim][recovery][events]") {
    for (World world : worlds()) {
        world.events = true;
        CAPTURE(text_of(world));
        const LogCapture quiet;
        run_world(world, [&](Member& me) {
            for (int i = 0; i < 6; ++i) me.step("before");
            const auto good = me.exchange.health().events;
            require(good.size() > 8, fmt::format("{} events", good.size()));
            require(good.back().kind == EventKind::end, "the last is no end");
            require(good.back().epoch == 6, "not the newest step");
            for (std::size_t i = 1; i < good.size(); ++i)
                require(good[i].number == good[i - 1].number + 1, "a gap");
            fail_together(me);
            if (me.rank == world.ranks - 1) return;
            const auto bad = me.exchange.health().events;
            require(bad.back().kind == EventKind::failed && bad.back().epoch == 7, "not failed");
            require(bad.back().tag == static_cast<std::uint16_t>(Tag::dispatch), "no dispatch");
        });
    }
}

namespace {

/// What a rank was in when it failed, in words: "dispatch begin".
std::string last_of(const Health& health, EventKind kind) {
    for (auto at = health.events.rbegin(); at != health.events.rend(); ++at)
        if (at->kind == kind)
            return fmt::format("{} {}", name_of(static_cast<Tag>(at->tag)), at->epoch);
    return "none";
}

/// Fails in the way that `kind` says, with 20 more steps queued behind. Returns the health of what
/// has failed.
Health fail_with_events(Member& me, int kind) {
    const int absent = me.world.ranks - 1;
    const auto wait = [&] { me.exchange.synchronize(me.stream); };
    if (kind == 2) {
        if (me.rank != absent) me.runtime.barrier(me.stream);
        if (me.rank != absent)
            me.fails(ErrorCode::timeout, {}, "alone", [&] { me.runtime.synchronize(me.stream); });
        return me.runtime.health();
    }
    DispatchInputs inputs;
    CombineInputs outputs;
    Routing routing = me.exchange.make_routing();
    const int queued = kind == 1 ? 1 : 21;
    if (kind == 3) inputs.token_count = me.rank == absent ? -1 : 0;
    if (kind == 0 && me.rank == absent) return me.exchange.health();
    if (kind == 1) {
        me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
        wait();
        if (me.rank == absent) return me.exchange.health();
    }
    const ErrorCode code = kind != 3           ? ErrorCode::timeout
                           : me.rank == absent ? ErrorCode::invalid_argument
                                               : ErrorCode::peer_failed;
    me.fails(code, {}, "alone", [&] {
        for (int i = 0; i < queued; ++i) {
            if (kind != 1) me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
            me.exchange.combine(outputs, routing, me.stream);
        }
        wait();
    });
    // The record may come before the kernel ends.
    cuda_check(cudaStreamSynchronize(me.stream), "the steps behind the failed one");
    return me.exchange.health();
}

}  // namespace

TEST_CASE("the ring keeps what led to a failure, whatever failed", "[sim][recovery][events]") {
    const std::array<const char*, 4> failed = {"dispatch 4", "combine 4", "barrier 1",
                                               "dispatch 4"};
    for (World world : worlds()) {
        world.events = true;
        for (int kind = 0; kind < 4; ++kind) {
            if (kind == 1 && has_rail_rings(world)) continue;  // no tokens: some do not wait
            CAPTURE(text_of(world), kind);
            const LogCapture log;
            run_world(world, [&](Member& me) {
                for (int i = 0; i < 3; ++i) me.step("before");
                const Health health = fail_with_events(me, kind);
                const bool absent = me.rank == world.ranks - 1;
                if (!absent) {
                    const std::string what = last_of(health, EventKind::failed);
                    require(what == failed[static_cast<std::size_t>(kind)], "failed: " + what);
                    require(health.events.back().kind == EventKind::failed, "steps behind it");
                    if (kind != 2)
                        require(last_of(health, EventKind::end) ==
                                    (kind == 1 ? "dispatch 4" : "combine 3"),
                                "end: " + last_of(health, EventKind::end));
                }
                me.runtime.recover();
                me.step("after");
                require(me.exchange.health().events.back().kind == EventKind::end, "no end");
            });
            CHECK(log.count(LogLevel::error, "the newest events") > 0);
        }
    }
}

TEST_CASE("the ring of a step that never ends is read beside it", "[sim][recovery][events]") {
    for (World world : worlds()) {
        world.events = true;
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            me.step("before");
            Routing routing = me.exchange.make_routing();
            DispatchInputs inputs;
            inputs.deadline_ns = 0;
            emu::Engine& engine = emu::Engine::get();
            if (me.rank == 1) engine.sleep_ns(kHourNs, "a late rank");
            const std::uint64_t before_ns = engine.now_ns();
            me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
            if (me.rank != 1) {
                engine.sleep_ns(kHourNs / 2, "a watchdog's patience");
                require(cudaStreamQuery(me.stream) == cudaErrorNotReady, "the step has ended");
                const Health health = me.exchange.health();
                require(last_of(health, EventKind::begin) == "dispatch 2", "no begin");
                require(last_of(health, EventKind::end) == "combine 1", "an end");
                require(engine.now_ns() - before_ns < kHourNs, "somebody has waited");
            }
            me.exchange.synchronize(me.stream);
        });
    }
}

namespace {

void live_and_die(int rank, int kind) {
    auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
    auto runtime = Runtime::create(bootstrap);
    auto first = runtime->create_exchange(smallest_config());
    auto second = runtime->create_exchange(smallest_config());
    const Stream stream = Stream::create(rank);
    Routing routing = second->make_routing();
    second->dispatch({}, &routing, CountMode::host, stream.get());
    second->synchronize(stream.get());
    emu::host_barrier();
    if (kind == 0) {  // in good order, twice
        first->close();
        second->close();
        first->close();
        runtime->close();
        runtime->close();
        require(first->health().state == HealthState::closed, "open");
    } else if (kind == 1) {  // destructors only, the Runtime first
        runtime.reset();
        second.reset();
        first.reset();
    } else {  // given up; the routing outlives everything
        first->abort();
        runtime->abort();
        ErrorCode code = ErrorCode::ok;
        try {
            second->dispatch({}, &routing, CountMode::device, stream.get());
        } catch (const Error& error) {
            code = error.code();
        }
        require(code == ErrorCode::closed, error_code_name(code));
        require(second->health().state == HealthState::closed, "open without a communicator");
        // A rank that has given up waits for nobody, whatever it calls.
        if (rank == 0) second->close();
        second->abort();
        runtime->abort();
        runtime.reset();
    }
}

}  // namespace

TEST_CASE("lifecycle: any order, again and again, and nothing is left", "[sim][lifecycle]") {
    for (const int team : {0, 1}) {
        emu::SimOptions options;
        options.ranks = 2;
        options.lsa_team_size = team;
        options.sm_count = 1;
        const LogCapture quiet;
        const auto peak = [&](int rounds) {
            return emu::simulate(options,
                                 [&](int rank) {
                                     for (int i = 0; i < rounds; ++i) live_and_die(rank, i % 3);
                                 })
                .peak_bytes;
        };
        // Device memory of thirty lives is that of three.
        REQUIRE(peak(30) == peak(3));
    }
}

TEST_CASE("lifecycle: a captured barrier may be replayed, so abort() frees nothing below it",
          "[sim][lifecycle][graph]") {
    emu::SimOptions options;
    options.ranks = 1;
    options.sm_count = 1;
    emu::simulate(options, [&](int rank) {
        auto runtime = Runtime::create(std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank)));
        const Stream stream = Stream::create(rank);
        const Graph graph(stream.get(), [&] { runtime->barrier(stream.get()); });
        runtime->synchronize(stream.get());
        graph.launch(stream.get());
        runtime->abort();
        runtime.reset();
        require(Runtime::reclaim() == 1, "the Runtime is freed when the device is idle");
    });
}

TEST_CASE("lifecycle: on a lent communicator, in any order, and it stays usable",
          "[sim][lifecycle]") {
    const LogCapture quiet;
    for (const int team : {0, 1}) {
        CAPTURE(team);
        emu::SimOptions options;
        options.ranks = 2;
        options.lsa_team_size = team;
        options.sm_count = 1;
        emu::simulate(options, [&](int rank) {
            const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
            const auto lender = Communicator::create(bootstrap);
            const Stream stream = Stream::create(rank);
            for (int kind = 0; kind < 5; ++kind) {
                auto runtime = Runtime::adopt(lender->handle(), bootstrap);
                auto exchange = runtime->create_exchange(smallest_config());
                Routing routing = exchange->make_routing();
                exchange->dispatch({}, &routing, CountMode::host, stream.get());
                exchange->synchronize(stream.get());
                emu::host_barrier();
                switch (kind) {
                    case 0:
                        exchange->close();
                        runtime->close();
                        break;
                    case 1: runtime.reset(); break;
                    case 2: exchange.reset(); break;
                    case 3: exchange->abort(); break;
                    default:
                        // The lender's communicator goes while the objects are there.
                        runtime->abort();
                        emu::host_barrier();
                        lender->close();
                        break;
                }
                runtime.reset();
                exchange.reset();
                emu::host_barrier();
                if (kind < 4) lender->check_async_error();
            }
        });
    }
}

TEST_CASE("lifecycle: an environment that is wrong on one rank fails all", "[sim][lifecycle]") {
    emu::SimOptions options;
    options.ranks = 2;
    options.sm_count = 1;
    const LogCapture quiet;
    const EnvOverride wrong(EnvVar::timeout_ms, "-5");
    emu::simulate(options, [&](int rank) {
        const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
        RuntimeConfig config;
        if (rank == 0) config.deadline_ns = kHourNs;  // does not look at the environment
        ErrorCode code = ErrorCode::ok;
        try {
            (void)Runtime::create(bootstrap, config);
        } catch (const Error& error) {
            code = error.code();
        }
        const auto expected = rank == 0 ? ErrorCode::peer_failed : ErrorCode::invalid_argument;
        require(code == expected, error_code_name(code));
        config.deadline_ns = kHourNs;
        Runtime::create(bootstrap, config)->close();
    });
}

TEST_CASE("lifecycle: a config that is faulty on one rank fails all, at once and with the reason",
          "[sim][lifecycle]") {
    emu::SimOptions options;
    options.ranks = 3;
    options.sm_count = 1;
    const LogCapture quiet;
    // Nobody waits for a deadline: a simulation's bootstrap has none.
    emu::simulate(options, [&](int rank) {
        const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
        const auto fails = [&](int bad, const std::string& reason, const auto& create) {
            ErrorCode code = ErrorCode::ok;
            std::string text;
            try {
                create(rank == bad);
            } catch (const Error& error) {
                code = error.code();
                text = error.message();
            }
            const bool own = rank == bad;
            require(code == (own ? ErrorCode::invalid_argument : ErrorCode::peer_failed),
                    error_code_name(code));
            require(text.find(reason) != std::string::npos, text);
            require(own || text.find(fmt::format("rank {}", bad)) != std::string::npos, text);
        };
        fails(1, "barrier_gin_context_count is 0", [&](bool bad) {
            RuntimeConfig config;
            if (bad) config.barrier_gin_context_count = 0;
            (void)Runtime::create(bootstrap, config);
        });
        fails(2, "max_cta_count is -1", [&](bool bad) {
            RuntimeConfig config;
            if (bad) config.communicator.max_cta_count = -1;
            (void)Runtime::create(bootstrap, config);
        });
        fails(0, "no such file", [&](bool bad) {
            (void)Runtime::create_from(bootstrap, [&]() -> RuntimeConfig {
                if (bad) throw Error(ErrorCode::invalid_argument, rank, "no such file");
                return {};
            });
        });
        auto runtime = Runtime::create(bootstrap);
        fails(2, "topk is 33", [&](bool bad) {
            MoeConfig config = smallest_config();
            if (bad) config.topk = 33;
            (void)runtime->create_exchange(config);
        });
        fails(1, "no such layer", [&](bool bad) {
            (void)runtime->create_exchange_from([&] {
                if (bad) throw Error(ErrorCode::invalid_argument, rank, "no such layer");
                return smallest_config();
            });
        });
        runtime->create_exchange(smallest_config())->close();
        runtime->close();
    });
}

TEST_CASE("lifecycle: a creation that fails leaves nothing and works again", "[sim][lifecycle]") {
    emu::SimOptions options;
    options.ranks = 2;
    options.sm_count = 1;
    const LogCapture quiet;
    for (const FaultPoint point : {FaultPoint::window_allocate, FaultPoint::window_register,
                                   FaultPoint::device_comm_create, FaultPoint::host_allocate}) {
        CAPTURE(fault_point_name(point));
        emu::simulate(options, [&](int rank) {
            auto runtime = Runtime::create(make_sim_bootstrap(rank));
            MoeConfig config;
            config.expert_count = config.topk = 1;
            config.hidden = 8;
            config.max_tokens = 2;
            emu::host_barrier();
            ErrorCode code = ErrorCode::ok;
            {
                std::optional<FaultScope> fault;
                if (rank == 1) fault.emplace(point, 1);
                emu::host_barrier();
                try {
                    (void)runtime->create_exchange(config);
                } catch (const Error& error) {
                    code = error.code();
                }
                emu::host_barrier();
            }
            require(code != ErrorCode::ok, "no failure");
            require((code == ErrorCode::peer_failed) == (rank == 0), error_code_name(code));
            if (rank == 1 && point == FaultPoint::window_allocate)
                require(code == ErrorCode::out_of_memory, error_code_name(code));
            runtime->create_exchange(config)->close();
            runtime->close();
        });
    }
}

namespace {

std::size_t used_bytes() {
    std::size_t free_bytes = 0, total_bytes = 0;
    cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
    return total_bytes - free_bytes;
}

enum class Scope { local, collective };

/// Lets allocation after allocation of `part` fail on rank 1, until none is left. A collective part
/// fails on all, a local one there alone. Each time it leaves no memory behind and can be tried
/// again; what it makes at last is kept. Returns how many failed.
int fail_each(FaultPoint point, int rank, Scope scope, const std::function<void()>& part) {
    if (scope == Scope::local && rank != 1) {
        part();
        return 0;
    }
    const auto meet = [&] {
        if (scope == Scope::collective) emu::host_barrier();
    };
    for (int skip = 0;; ++skip) {
        std::optional<FaultScope> fault;
        meet();  // the scope of the round before has ended
        if (rank == 1) fault.emplace(point, 1, skip);
        meet();
        const std::size_t before = used_bytes();
        ErrorCode code = ErrorCode::ok;
        std::string text;
        try {
            part();
        } catch (const Error& error) {
            code = error.code();
            text = error.message();
        }
        if (code == ErrorCode::ok) {
            require(rank != 1 || fault->fired() == 0, "a failure was swallowed");
            return skip;
        }
        require(code == (rank == 1 ? ErrorCode::out_of_memory : ErrorCode::peer_failed), text);
        require(rank == 1 || text.find("rank 1") != std::string::npos, text);
        (void)Runtime::reclaim();
        require(used_bytes() == before, "memory is left: " + text);
    }
}

MoeConfig config_that_allocates_all() {
    MoeConfig config = smallest_config();
    config.sync = Sync::fifo;
    config.tensors = StreamTensors::library;
    return config;
}

}  // namespace

TEST_CASE("lifecycle: each allocation may fail on one rank, nothing stays, and it works again",
          "[sim][lifecycle]") {
    emu::SimOptions options;
    options.ranks = 3;
    options.sm_count = 1;
    const LogCapture quiet;
    int failed = 0;
    for (const FaultPoint point :
         {FaultPoint::window_allocate, FaultPoint::host_allocate, FaultPoint::device_allocate}) {
        CAPTURE(fault_point_name(point));
        emu::simulate(options, [&](int rank) {
            const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
            RuntimeConfig with_events;
            with_events.event_ring = RuntimeConfig::EventRing::on;
            const std::size_t before = used_bytes();
            std::unique_ptr<Runtime> runtime;
            std::unique_ptr<Exchange> exchange;
            std::optional<Routing> routing;
            int count = fail_each(point, rank, Scope::collective,
                                  [&] { runtime = Runtime::create(bootstrap, with_events); });
            count += fail_each(point, rank, Scope::collective, [&] {
                exchange = runtime->create_exchange(config_that_allocates_all());
            });
            count += fail_each(point, rank, Scope::local, [&] { exchange->reserve(); });
            count += fail_each(point, rank, Scope::local,
                               [&] { routing.emplace(exchange->make_routing()); });
            const Stream stream = Stream::create(rank);
            count += fail_each(point, rank, Scope::local, [&] {
                exchange->dispatch({}, &*routing, CountMode::host, stream.get());
                exchange->combine({}, *routing, stream.get());
                exchange->synchronize(stream.get());
            });
            count += fail_each(point, rank, Scope::collective, [&] { runtime->recover(); });
            routing.reset();
            exchange->close();
            runtime->close();
            (void)Runtime::reclaim();
            require(used_bytes() == before, "memory is left at the end");
            if (rank == 1) failed += count;
        });
    }
    CHECK(failed >= 12);
}

}  // namespace gimlet::test

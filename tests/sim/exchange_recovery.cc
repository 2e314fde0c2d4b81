// SPDX-License-Identifier: Apache-2.0
// The way back: after a failed step all ranks recover together and go on, byte for byte right.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/exchange.hpp"
#include "runtime/rehearsal.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kDeadlineNs = 20'000'000;

void expect(bool good, const std::string& what) {
    if (!good) throw std::runtime_error(what);
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// One rank in the middle of a test.
struct Member {
    int rank;
    Runtime& runtime;
    Exchange& exchange;
    Rehearsal& rehearsal;
    cudaStream_t stream;

    /// A whole step, checked.
    void step(const std::string& when) {
        const std::string difference = rehearsal.step(CountMode::device, stream);
        expect(difference.empty(), fmt::format("rank {}, {}: {}", rank, when, difference));
    }
    /// Runs `body` and returns what it raised.
    ErrorCode fails(const std::function<void()>& body, const std::vector<std::string>& parts = {}) {
        try {
            body();
        } catch (const Error& error) {
            for (const auto& part : parts) {
                expect(contains(error.what(), part),
                       fmt::format("rank {}: '{}' is missing in: {}", rank, part, error.what()));
            }
            return error.code();
        }
        return ErrorCode::ok;
    }
    void expect_code(ErrorCode got, ErrorCode wanted, const std::string& when) {
        expect(got == wanted, fmt::format("rank {}, {}: {} instead of {}", rank, when,
                                          error_code_name(got), error_code_name(wanted)));
    }
};

struct World {
    int ranks = 4;
    int team = 0;
    emu::GinMode gin = emu::GinMode::gdaki;
    std::uint64_t seed = 1;
    Layout layout = Layout::rank_major;
};

std::string text_of(const World& world) {
    return fmt::format("ranks {} team {} gin {} seed {}", world.ranks, world.team,
                       static_cast<int>(world.gin), world.seed);
}

void run(const World& world, const std::function<void(Member&)>& body) {
    Scenario scenario = small_scenario(world.ranks, world.team,
                                       world.team == 0 ? emu::GinMode::off : world.gin, world.seed);
    scenario.config.deadline_ns = kDeadlineNs;
    scenario.config.layout = world.layout;
    scenario.config.hidden = 32;
    GeneratorOptions options = scenario.routing;
    options.rank_count = world.ranks;
    options.token_count = scenario.config.max_tokens;
    options.expert_count = scenario.config.expert_count;
    options.topk = scenario.config.topk;
    const RoutingTable table = generate_routing(options);
    emu::simulate(scenario.sim, [&](int rank) {
        RuntimeConfig runtime_config;
        runtime_config.deadline_ns = kDeadlineNs;
        auto runtime = Runtime::create(make_sim_bootstrap(rank), runtime_config);
        auto exchange = runtime->create_exchange(scenario.config);
        const Stream stream = Stream::create(rank);
        {
            Rehearsal rehearsal(*exchange, table);
            Member member{rank, *runtime, *exchange, rehearsal, stream.get()};
            body(member);
        }
        exchange->close();
        runtime->close();
    });
}

const World kWorlds[] = {{3, 0, emu::GinMode::off, 1, Layout::rank_major},
                         {4, 2, emu::GinMode::gdaki, 1, Layout::expert_major},
                         {3, 1, emu::GinMode::proxy, 1, Layout::rank_major}};

}  // namespace

TEST_CASE("a rank that stays away is named by the group, and all recover", "[sim][recovery]") {
    for (World world : kWorlds) {
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            const int absent = world.ranks - 1;
            run(world, [&](Member& me) {
                me.step("before");
                if (me.rank != absent) {
                    const ErrorCode code =
                        me.fails([&] { me.step("alone"); },
                                 {fmt::format("rank {}", absent), "it never entered the step"});
                    me.expect_code(code, ErrorCode::timeout, "alone");
                    const Health health = me.exchange.health();
                    expect(health.state == HealthState::failed, "health is not failed");
                    expect(health.group && health.group->suspects == std::vector<int>{absent},
                           "suspects: " + (health.group ? health.group->text : "none"));
                    for (int r = 0; r < world.ranks; ++r) {
                        expect(health.group->records[static_cast<std::size_t>(r)].has_value() ==
                                   (r != absent),
                               "records: " + health.group->text);
                    }
                    const ErrorCode again = me.fails(
                        [&] { me.exchange.combine({}, me.rehearsal.routing(), me.stream); },
                        {fmt::format("rank {}", absent)});
                    me.expect_code(again, ErrorCode::timeout, "again");
                }
                const GroupReport report = me.exchange.recover();
                expect(report.suspects == std::vector<int>{absent}, "recover: " + report.text);
                expect(me.exchange.health().state == HealthState::open, "not open after recover");
                for (int i = 0; i < 3; ++i) me.step(fmt::format("step {} after", i));
            });
        }
    }
}

TEST_CASE("a bad argument on one rank fails the others at once", "[sim][recovery]") {
    for (World world : kWorlds) {
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            const bool in_combine = world.seed % 2 == 0;
            run(world, [&](Member& me) {
                me.step("before");
                const bool bad = me.rank == 1;
                if (in_combine) me.rehearsal.dispatch(CountMode::device, me.stream);
                const std::uint64_t hour_ns = 3'600'000'000'000;
                DispatchInputs inputs;
                inputs.token_count = bad ? -1 : 0;
                inputs.deadline_ns = hour_ns;
                CombineInputs outputs;
                DeviceBuffer<float> out(1 << 12);
                outputs.out = bad ? nullptr : out.get();
                outputs.deadline_ns = hour_ns;
                Routing routing = me.exchange.make_routing();
                const ErrorCode code = me.fails([&] {
                    if (in_combine) {
                        me.exchange.combine(outputs, me.rehearsal.routing(), me.stream);
                    } else {
                        me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
                    }
                    me.exchange.synchronize(me.stream);
                });
                me.expect_code(code, bad ? ErrorCode::invalid_argument : ErrorCode::peer_failed,
                               "the bad call");
                const GroupReport report = me.exchange.recover();
                expect(report.suspects == std::vector<int>{1}, "recover: " + report.text);
                for (int i = 0; i < 2; ++i) me.step(fmt::format("step {} after", i));
            });
        }
    }
}

TEST_CASE("steps queued behind a failed one end at once", "[sim][recovery]") {
    for (World world : kWorlds) {
        CAPTURE(text_of(world));
        run(world, [&](Member& me) {
            if (me.rank != 0) {
                // Eight steps are queued before the first has waited; one deadline is paid, not 16.
                const ErrorCode code = me.fails([&] {
                    for (int i = 0; i < 8; ++i) {
                        me.rehearsal.dispatch(CountMode::device, me.stream);
                        me.rehearsal.combine(me.stream);
                    }
                    me.exchange.synchronize(me.stream);
                });
                me.expect_code(code, ErrorCode::timeout, "queued steps");
                const auto error = me.exchange.health().error;
                expect(error && error->epoch == 1, "the first record was overwritten");
            }
            me.runtime.recover();
            me.step("after");
        });
    }
}

TEST_CASE("a failed barrier names the group's suspect and recovers", "[sim][recovery]") {
    for (World world : kWorlds) {
        for (world.seed = 1; world.seed <= 3; ++world.seed) {
            CAPTURE(text_of(world));
            run(world, [&](Member& me) {
                me.runtime.barrier(me.stream);
                me.runtime.synchronize(me.stream);
                if (me.rank != 0) {
                    const ErrorCode code = me.fails(
                        [&] {
                            me.runtime.barrier(me.stream, 3);
                            me.runtime.synchronize(me.stream);
                        },
                        {"rank 0"});
                    me.expect_code(code, ErrorCode::timeout, "barrier");
                    me.expect_code(me.fails([&] { me.runtime.barrier(me.stream); }),
                                   ErrorCode::timeout, "barrier again");
                }
                const GroupReport report = me.runtime.recover();
                expect(report.suspects == std::vector<int>{0}, "recover: " + report.text);
                me.runtime.barrier(me.stream, 5);
                me.runtime.synchronize(me.stream);
                me.step("after");
            });
        }
    }
}

TEST_CASE("recover() in good health changes nothing but the step number", "[sim][recovery]") {
    for (World world : kWorlds) {
        CAPTURE(text_of(world));
        run(world, [&](Member& me) {
            me.step("before");
            for (int i = 0; i < 3; ++i) {
                const GroupReport report = me.runtime.recover();
                expect(report.cause.empty() && report.suspects.empty(), report.text);
                me.expect_code(
                    me.fails([&] { me.exchange.received(me.rehearsal.routing()); }, {"recover()"}),
                    ErrorCode::invalid_usage, "an old routing");
                me.step("after");
            }
        });
    }
}

}  // namespace gimlet::test

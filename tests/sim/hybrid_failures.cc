// SPDX-License-Identifier: Apache-2.0
// Two levels when a rank stops: failures travel over rails, the right rank is named, and those that
// are left go on in direct mode.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/emulator/engine.hpp"
#include "tests/sim/exchange_member.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

World two_levels(int ranks, int team, std::uint64_t seed) {
    World world;
    world.ranks = ranks;
    world.team = team;
    world.mode = ExchangeMode::hybrid;
    world.seed = seed;
    world.gin = seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy;
    world.layout = seed / 2 % 2 == 0 ? Layout::rank_major : Layout::expert_major;
    world.pre_sum = seed / 4 % 2 == 0 ? PreSum::on : PreSum::off;
    return world;
}

/// A rank that was not stopped in time waits for it here.
void wait_for_the_end(const Member& me) {
    if (me.rank == me.world.faults.stop_rank)
        emu::Engine::get().wait("its end", [] { return false; });
}

/// Scheduling steps of a world that lives for `body`.
std::uint64_t steps_of(World world, const std::function<void(Member&)>& body) {
    world.faults.stop_rank = -1;
    return run_world(world, body).steps;
}

/// Stops `lost` at `count` moments of two steps, spread evenly.
template <typename Body>
void at_moments(World world, int lost, int count, Body body) {
    const auto two_steps = [](Member& me) {
        for (int i = 0; i < 2; ++i) me.step("shared");
    };
    const std::uint64_t start = steps_of(world, [](Member&) {});
    const std::uint64_t end = steps_of(world, two_steps);
    world.faults.stop_rank = lost;
    for (int i = 0; i < count; ++i) {
        world.faults.stop_at_step = start + (end - start) * static_cast<std::uint64_t>(i) /
                                                static_cast<std::uint64_t>(count);
        CAPTURE(text_of(world));
        body(world);
    }
}

/// Steps until `lost` is missed, which every survivor must say, soon after the impatient rank's
/// deadline; but whoever is in an earlier step than that rank has its own deadline, and may be
/// suspected until then.
void miss(const Member& me, int lost) {
    std::optional<Error> error;
    try {
        for (int i = 0; i < 3; ++i) me.step("shared");
    } catch (const Error& raised) {
        error = raised;
    }
    wait_for_the_end(me);
    require(error.has_value(), "all went well");
    const std::string text = fmt::format("rank {}: {}", me.rank, error->what());
    require(error->code() == ErrorCode::timeout, "no timeout: " + text);
    const Health health = me.exchange.health();
    require(health.error.has_value() && health.group.has_value(), "no record: " + text);
    const auto& records = health.group->records;
    const auto& first = records[static_cast<std::size_t>(me.world.impatient)];
    const bool earlier = first && health.error->step < first->step;
    require(health.error->elapsed_ns < 3 * kDeadlineNs || earlier,
            fmt::format("waited {} ns: {}", health.error->elapsed_ns, text));
    // Of rings: its own, held up by others.
    const bool own_ring =
        me.world.sync == Sync::fifo && health.error->fault == DeviceFault::cut_short;
    require(health.error->peer != me.rank || own_ring, "names itself: " + text);
    const auto& suspects = health.group->suspects;
    const auto silent =
        std::count_if(records.begin(), records.end(), [](const auto& record) { return !record; });
    require(std::find(suspects.begin(), suspects.end(), lost) != suspects.end() &&
                (silent > 1 || suspects.size() == 1),
            fmt::format("suspects {}: {}", format_ranks(suspects), text));
    require(text.find(fmt::format("rank {}", lost)) != std::string::npos, "not named: " + text);
}

void expect_direct(const Member& me) {
    const Plan& plan = me.exchange.plan();
    require(plan.mode == ExchangeMode::direct && !plan.rail.active(), "still hybrid");
    require(plan.mode_reason.find("excluded") != std::string::npos, plan.mode_reason);
    require(plan.text().find(plan.mode_reason) != std::string::npos, "the plan does not say why");
}

/// Ranks 0, stride, 2 * stride, ... are lost, each in worlds of its own.
void exclude_at_moments(const World& world, int stride, int moments) {
    for (int lost = 0; lost < world.ranks; lost += stride) {
        at_moments(world, lost, moments, [lost](const World& faulty) {
            run_world(faulty, [&](Member& me) {
                try {
                    for (int i = 0; i < 2; ++i) me.step("shared");
                } catch (const Error& error) {
                    const std::string text = error.what();
                    require(text.find(fmt::format("rank {}", lost)) != std::string::npos,
                            "not named: " + text);
                }
                wait_for_the_end(me);
                work_on(me, {lost});
                expect_direct(me);
            });
        });
    }
}

/// Worlds over GIN in which messages come late, and the last may overtake the first.
World slow_network(std::uint64_t seed) {
    World world = two_levels(4, 2, seed);
    if (seed % 3 == 0) {
        world.team = seed % 2 == 0 ? 2 : 1;
        world.mode = ExchangeMode::direct;
    } else if (seed % 4 == 1) {
        world.sync = Sync::fifo;
    }
    world.faults.delay_chance = 0.5;
    world.faults.delay_min_ns = 1'000;
    world.faults.delay_mean_ns = 40'000;
    return world;
}

/// A step whose waits give up after `deadline_ns`.
std::optional<Error> failure_of_step(const Member& me, std::uint64_t deadline_ns) {
    RehearsalOptions options;
    options.deadline_ns = deadline_ns;
    Rehearsal rehearsal(me.exchange, me.table, options);
    try {
        const std::string difference = rehearsal.step(CountMode::device, me.stream);
        require(difference.empty(), fmt::format("rank {}: {}", me.rank, difference));
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

/// Whoever ends its combine first enters the next dispatch and gives up at once, while what ends
/// the combine is still on its way to others: theirs must succeed all the same.
struct Hasty {
    std::atomic<int> rank{-1};
    std::atomic<bool> gave_up{false};
};

void give_up_early(const Member& me, Hasty& first) {
    me.step("before");
    me.rehearsal.dispatch(CountMode::device, me.stream);
    me.rehearsal.repeat_answer(me.stream);
    me.rehearsal.combine(me.stream);
    const std::string combined = me.rehearsal.check_combine(me.stream);
    require(combined.empty(), fmt::format("rank {}: {}", me.rank, combined));
    int nobody = -1;
    const bool hasty = first.rank.compare_exchange_strong(nobody, me.rank);
    if (!hasty) emu::Engine::get().wait("the hasty rank", [&] { return first.gave_up.load(); });
    const auto error = failure_of_step(me, hasty ? 2'000 : kPatienceNs);
    if (hasty) first.gave_up = true;
    emu::Engine::get().progress();
    require(error.has_value(), fmt::format("rank {}: all went well", me.rank));
    const auto record = me.exchange.health().error;
    require(record.has_value(), "no record");
    // So short a deadline may end the hasty rank's wait for its own blocks: then it refuses.
    const bool told =
        record->fault == DeviceFault::cut_short || record->fault == DeviceFault::peer_refused;
    require(hasty ? record->fault == DeviceFault::timed_out : told,
            fmt::format("rank {}: {}", me.rank, error->what()));
    // Two whole steps were before the dispatch.
    require(record->tag == static_cast<std::uint32_t>(Tag::dispatch) && record->step == 5,
            fmt::format("rank {}: step {}: {}", me.rank, record->step, error->what()));
    me.exchange.recover();
    me.step("after");
}

/// Gives up a step in the middle, on all ranks within microseconds, and ends there.
void end_in_the_middle(const Member& me) {
    for (int i = 0; i < 4; ++i)
        if (failure_of_step(me, me.rank == 1 ? 3'000 : kPatienceNs)) return;
}

}  // namespace

TEST_CASE("a failure ends no wait of an earlier step", "[sim][hybrid][recovery]") {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        const World world = slow_network(seed);
        CAPTURE(text_of(world));
        Hasty first;
        run_world(world, [&](Member& me) { give_up_early(me, first); });
    }
}

TEST_CASE("a failure ends no wait of an earlier step, many seeds",
          "[.][sim][hybrid][recovery][soak]") {
    for (std::uint64_t seed = 1000; seed < 1100; ++seed) {
        const World world = slow_network(seed);
        CAPTURE(text_of(world));
        Hasty first;
        run_world(world, [&](Member& me) { give_up_early(me, first); });
    }
}

TEST_CASE("who ends after a failure waits for what is on its way", "[sim][hybrid][recovery]") {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        const World world = slow_network(seed);
        CAPTURE(text_of(world));
        run_world(world, end_in_the_middle);
        std::atomic<int> over{0};
        run_world(world, [&](Member& me) {
            end_in_the_middle(me);
            ++over;
            emu::Engine::get().progress();
            emu::Engine::get().wait("the others", [&] { return over >= me.world.ranks; });
            me.exchange.abort();
            me.runtime.abort();
        });
    }
}

TEST_CASE("who ends after a failure waits, many seeds", "[.][sim][hybrid][recovery][soak]") {
    for (std::uint64_t seed = 1000; seed < 1100; ++seed) {
        const World world = slow_network(seed);
        CAPTURE(text_of(world));
        run_world(world, end_in_the_middle);
    }
}

TEST_CASE("hybrid: a rank stopped at any moment is excluded, and the others go on in direct mode",
          "[sim][hybrid][exclude]") {
    std::uint64_t seed = 20;
    for (const auto& [ranks, team] : std::vector<std::pair<int, int>>{{6, 3}, {6, 2}}) {
        World world = two_levels(ranks, team, seed++);
        world.faults.delay_chance = 0.3;
        world.faults.split_chance = 0.5;
        exclude_at_moments(world, 4, 2);
    }
}

TEST_CASE("hybrid: exclusion, many moments", "[.][sim][hybrid][exclude][soak]") {
    for (std::uint64_t seed = 100; seed < 116; ++seed) {
        const std::pair<int, int> shapes[] = {{4, 2}, {6, 3}, {6, 2}, {8, 4}};
        const auto [ranks, team] = shapes[seed % 4];
        World world = two_levels(ranks, team, seed / 4 + seed);
        world.faults.delay_chance = 0.3;
        world.faults.split_chance = 0.5;
        world.faults.stall_rank = static_cast<int>(seed) % ranks;
        world.faults.stall_ns = 200'000;
        exclude_at_moments(world, 1, 12);
    }
}

TEST_CASE("hybrid: a failure travels over rails, and all name the rank that stopped",
          "[sim][hybrid][recovery]") {
    // Rank 0 sends to team 1 over rank 2, which forwards to rank 3; one rank alone has a short
    // deadline, and every rank's turn comes.
    std::uint64_t seed = 40;
    for (const int lost : {0, 2, 3}) {
        World world = two_levels(4, 2, seed++);
        world.sender = 0;
        world.impatient = (lost + 1 + static_cast<int>(seed % 3)) % 4;
        at_moments(world, lost, 3, [lost](const World& faulty) {
            run_world(faulty, [lost](Member& me) {
                miss(me, lost);
                work_on(me, {lost});
            });
        });
    }
}

TEST_CASE("fifo between teams: a failure travels over rails, exclude() is refused with the cure",
          "[sim][fifo][recovery]") {
    std::uint64_t seed = 50;
    for (const int lost : {0, 3}) {
        World world = two_levels(4, 2, seed++);
        world.sync = Sync::fifo;
        world.impatient = (lost + 1 + static_cast<int>(seed % 3)) % 4;
        at_moments(world, lost, 3, [lost](const World& faulty) {
            run_world(faulty, [lost](Member& me) {
                miss(me, lost);
                const int ranks[] = {lost};
                me.fails(ErrorCode::not_supported, {"sync is fifo", "abort() it first"}, "exclude",
                         [&] { me.runtime.exclude(ranks); });
                me.exchange.abort();
                me.runtime.exclude(ranks);
                me.runtime.barrier(me.stream, 2);
                me.runtime.synchronize(me.stream);
            });
        });
    }
}

TEST_CASE("hybrid: failures travel, many seeds", "[.][sim][hybrid][recovery][soak]") {
    for (std::uint64_t seed = 200; seed < 240; ++seed) {
        const std::pair<int, int> shapes[] = {{4, 2}, {6, 3}, {6, 2}, {9, 3}};
        const auto [ranks, team] = shapes[seed % 4];
        World world = two_levels(ranks, team, seed / 4 + seed);
        const int lost = static_cast<int>(seed) % ranks;
        world.impatient = (lost + 1 + static_cast<int>(seed / 5) % (ranks - 1)) % ranks;
        world.faults.delay_chance = 0.3;
        world.faults.split_chance = 0.5;
        at_moments(world, lost, 6, [lost](const World& faulty) {
            run_world(faulty, [lost](Member& me) {
                miss(me, lost);
                work_on(me, {lost});
            });
        });
    }
}

TEST_CASE("hybrid: graphs and routings of before an exclusion are refused by name",
          "[sim][hybrid][exclude][graph]") {
    const World world = two_levels(4, 2, 0);
    std::atomic<int> settled{0};
    run_world(world, [&](Member& me) {
        const auto queue_step = [&] {
            me.rehearsal.dispatch(CountMode::device, me.stream);
            me.rehearsal.repeat_answer(me.stream);
            me.rehearsal.combine(me.stream);
        };
        me.step("all");
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        cuda_check(cudaStreamBeginCapture(me.stream, cudaStreamCaptureModeThreadLocal), "begin");
        for (int i = 0; i < 2; ++i) queue_step();
        cuda_check(cudaStreamEndCapture(me.stream, &graph), "end");
        cuda_check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
        me.exchange.end_capture();
        cuda_check(cudaGraphLaunch(exec, me.stream), "launch");
        me.exchange.synchronize(me.stream);
        // abort() drops what is still on its way to others: who leaves waits until they have it.
        ++settled;
        emu::Engine::get().progress();
        emu::Engine::get().wait("the others", [&] { return settled >= me.world.ranks; });
        if (me.rank == 1) {
            me.exchange.abort();
            me.runtime.abort();
        } else {
            const int lost[] = {1};
            me.runtime.exclude(lost);
            expect_direct(me);
            me.fails(ErrorCode::invalid_usage, {"recover()"}, "an old routing",
                     [&] { (void)me.exchange.received(me.rehearsal.routing()); });
            cuda_check(cudaGraphLaunch(exec, me.stream), "launch");
            me.fails(ErrorCode::invalid_usage, {"hybrid mode", "capture it again"}, "an old graph",
                     [&] { me.exchange.synchronize(me.stream); });
            me.exchange.recover();
            work_on(me, {1});
        }
        cuda_warn(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
        cuda_warn(cudaGraphDestroy(graph), "cudaGraphDestroy");
    });
}

}  // namespace gimlet::test

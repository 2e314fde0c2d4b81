// SPDX-License-Identifier: Apache-2.0
//
// FIFO channels, windowed tails and pipelines under the faults that they are made for.
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/sim/channel_world.hpp"
#include "runtime/sim/primitives_world.hpp"
#include "tests/sim/primitives_races.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

using sim::FlowCase;
using sim::FlowShape;
using sim::MeetingOutcome;
using sim::SlotAccess;

emu::SimOptions options_of(int ranks, FifoLink link, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = link == FifoLink::lsa ? ranks : 1;
    options.gin = link == FifoLink::lsa ? emu::GinMode::off
                  : seed % 2 == 0       ? emu::GinMode::gdaki
                                        : emu::GinMode::proxy;
    options.seed = seed;
    options.schedule = static_cast<emu::Schedule>(seed % 3);
    options.step_limit = 100'000'000;
    options.memory.find_races = true;
    options.memory.stale_loads = true;
    options.faults.wait_until_armed = true;
    return options;
}

void require_good(const MeetingOutcome& outcome, const std::string& what) {
    INFO(what);
    INFO(outcome.message);
    REQUIRE(outcome.message.empty());
    REQUIRE(outcome.failures == 0);
    REQUIRE(outcome.mismatches == 0);
}

void run_flows(const FlowCase& which, int ranks, emu::FaultPlan faults, int seeds) {
    for (int i = 1; i <= seeds_to_run(seeds); ++i) {
        emu::SimOptions options =
            options_of(ranks, which.options.link, static_cast<std::uint64_t>(i));
        faults.wait_until_armed = true;
        options.faults = faults;
        require_good(run_flow(options, which), sim::text_of(options) + ", " + sim::text_of(which));
    }
}

}  // namespace

TEST_CASE("fifo: one slot, empty channels, many kernels", "[sim][channels]") {
    for (const FifoLink link : {FifoLink::lsa, FifoLink::gin}) {
        FlowCase which;
        which.options = {link, 1, 48, 1, 1, 1};
        which.rows = {0, 5, 0, 1, 9};
        which.channels = 2;
        run_flows(which, 2, {}, 8);
        which.rows = {0};
        run_flows(which, 3, {}, 2);
    }
}

TEST_CASE("fifo: a rank that comes much later", "[sim][channels]") {
    for (const FifoLink link : {FifoLink::lsa, FifoLink::gin}) {
        for (int late = 0; late < 3; ++late) {
            FlowCase which;
            which.shape = FlowShape::chain;
            which.options = {link, 5, 64, 2, 1, 2};
            which.rows = {17, 3};
            emu::FaultPlan faults;
            faults.late_rank = late;
            faults.late_ns = 3'000'000;
            run_flows(which, 3, faults, 4);
        }
    }
}

TEST_CASE("fifo: slow consumers and forwarders hold their sender, and no more", "[sim][channels]") {
    for (const FifoLink link : {FifoLink::lsa, FifoLink::gin}) {
        for (int slow = 0; slow < 3; ++slow) {
            FlowCase which;
            which.shape = FlowShape::chain;
            which.options = {link, 3, 64, 1, 1, 2};
            which.writes = slow == 0 ? SlotAccess::plain : SlotAccess::bulk;
            which.reads = slow == 1 ? SlotAccess::plain : SlotAccess::bulk;
            which.channels = 2;
            which.rows = {20};
            which.slow_rank = slow;
            which.pause_ns = 30'000;
            emu::FaultPlan faults;
            faults.slow_rank = slow;
            faults.slow_factor = 6;
            run_flows(which, 3, faults, 4);
        }
    }
}

TEST_CASE("fifo: positions and signals wrap, rings of any size", "[sim][channels]") {
    for (const FifoLink link : {FifoLink::lsa, FifoLink::gin}) {
        for (const std::uint32_t capacity : {1u, 3u, 7u}) {
            for (std::uint64_t before = 0; before < 4; ++before) {
                FlowCase which;
                which.options = {link, capacity, 16, (capacity + 1) / 2, 1, 1};
                which.rows = {11, 11};
                if (link == FifoLink::lsa) which.first_position = ~std::uint64_t{0} - 5 * before;
                emu::FaultPlan faults;
                faults.near_wrap_counters = link == FifoLink::gin;
                run_flows(which, 2, faults, 2);
            }
        }
    }
}

TEST_CASE("fifo: deadlines name who was missed", "[sim][channels]") {
    // The sink's rank comes when the sender has given up long ago: credits are missing; and the
    // other way round: rows are.
    for (const FifoLink link : {FifoLink::lsa, FifoLink::gin}) {
        for (const int late : {0, 1}) {
            FlowCase which;
            which.shape = FlowShape::chain;
            which.options = {link, 2, 16, 1, 1, 1};
            which.rows = {6};
            which.deadline_ns = 40'000;
            emu::SimOptions options = options_of(2, link, 5);
            options.memory = {};
            options.faults.late_rank = late;
            options.faults.late_ns = 50'000'000;
            const MeetingOutcome outcome = run_flow(options, which);
            INFO(sim::text_of(options) << ", rank " << late << " late: " << outcome.message);
            const auto there = static_cast<std::size_t>(1 - late);
            REQUIRE(outcome.message.empty());
            REQUIRE(outcome.failures_of_rank[there] > 0);
            const DeviceError& error = outcome.errors[there];
            REQUIRE(error.state == kDeviceErrorComplete);
            REQUIRE(error.fault == DeviceFault::timed_out);
            REQUIRE(error.primitive ==
                    (late == 1 ? Primitive::fifo_reserve : Primitive::fifo_wait));
            REQUIRE(error.peer == late);
            REQUIRE(error.context == 0);
            REQUIRE(error.expected == 1);
            REQUIRE(error.seen == 0);
        }
    }
}

TEST_CASE("windowed tail: all 32 positions of the window at once", "[sim][channels]") {
    for (int i = 1; i <= seeds_to_run(8); ++i) {
        sim::WindowCase which;
        which.options = {FifoLink::lsa, 64, 32, 1, 1, 1};
        which.producers = 3;
        // The first of every 40 is late by far: the others fill the window behind it.
        which.rows = {120, 80};
        which.slow_every = 40;
        which.pause_ns = 400'000;
        which.first_position = i % 2 == 0 ? 0 : ~std::uint64_t{0} - 50;
        emu::SimOptions options = options_of(2, FifoLink::lsa, static_cast<std::uint64_t>(i));
        require_good(run_window(options, which),
                     sim::text_of(options) + ", " + sim::text_of(which));
    }
}

TEST_CASE("pipeline: plain and bulk on either side", "[sim][channels]") {
    std::uint64_t seed = 0;
    for (const SlotAccess fill : {SlotAccess::plain, SlotAccess::bulk}) {
        for (const SlotAccess drain : {SlotAccess::plain, SlotAccess::bulk}) {
            for (const std::uint32_t stages : {1u, 2u, 5u}) {
                sim::PipelineCase which;
                which.options = {stages, 96};
                which.rounds = 13;
                which.producers = 2;
                which.consumers = 2;
                which.fill = fill;
                which.drain = drain;
                which.producer_pause_ns = stages == 2 ? 4'000 : 0;
                which.consumer_pause_ns = stages == 5 ? 4'000 : 0;
                emu::SimOptions options = options_of(1, FifoLink::lsa, ++seed);
                require_good(run_pipeline(options, which), sim::text_of(which));
            }
        }
    }
}

}  // namespace gimlet::test

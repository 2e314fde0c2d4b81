// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine with Sync::fifo against the reference: rings of every length, shapes at
// their edges, far more tokens than slots, slow and late ranks, numbers that wrap, and a kernel
// that uses rows while the dispatch runs.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/sim/scenarios.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

Scenario stream_scenario(int ranks, Layout layout, std::uint64_t seed) {
    Scenario scenario = small_scenario(ranks, 0, emu::GinMode::off, seed);
    scenario.config.sync = Sync::fifo;
    scenario.config.layout = layout;
    // Two channels a block need two more warps.
    scenario.config.dispatch_threads = seed % 3 == 0 ? 64 : 160;
    const int least = layout == Layout::rank_major ? 1 : scenario.config.topk;
    scenario.config.chunks.nvl_recv = least + static_cast<std::int32_t>(seed % 4);
    scenario.config.chunks.nvl_send = seed % 2 == 0 ? 1 : scenario.config.chunks.nvl_recv;
    scenario.config.ready_rows = static_cast<std::int32_t>(seed % 5 + 1);
    scenario.consume = seed % 2 == 0;
    scenario.sim.schedule = static_cast<emu::Schedule>(seed % 3);
    scenario.steps = {StepKind::fresh, StepKind::cached, StepKind::fresh};
    return scenario;
}

/// Between LSA teams: rings over GIN from one slot on.
Scenario rail_scenario(int ranks, int team, Layout layout, PreSum pre_sum, std::uint64_t seed) {
    Scenario scenario = stream_scenario(ranks, layout, seed);
    scenario.sim.lsa_team_size = team;
    scenario.sim.gin = seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy;
    scenario.config.pre_sum = pre_sum;
    scenario.config.dispatch_threads = seed % 3 == 0 ? 96 : 224;
    const bool sums = layout == Layout::rank_major && pre_sum == PreSum::on;
    scenario.config.chunks.rdma_recv =
        (sums ? 1 : scenario.config.topk) + static_cast<std::int32_t>(seed / 2 % 3);
    return scenario;
}

void run(const Scenario& scenario) {
    CAPTURE(describe(scenario));
    REQUIRE_NOTHROW(run_scenario(scenario));
}

using Change = std::function<void(Scenario&)>;

/// Each runs with both layouts.
const std::vector<std::pair<const char*, Change>>& variants() {
    static const std::vector<std::pair<const char*, Change>> all = {
        {"fp32, int64 indices, bias",
         [](Scenario& s) {
             s.config.dispatch_type = s.config.combine_type = ElementType::float32;
             s.index_type = IndexType::int64;
             s.bias = true;
         }},
        {"fp8 with scales, fp16 back, host counts",
         [](Scenario& s) {
             s.config.hidden = 256;
             s.config.dispatch_type = ElementType::float8_e4m3;
             s.config.scale_words = fp8_float_scale_words(256);
             s.config.combine_type = ElementType::float16;
             s.host_counts = true;
         }},
        {"32 choices",
         [](Scenario& s) {
             s.config.expert_count = 40, s.config.topk = 32, s.config.chunks = {0, 0, 40, 0, 0};
         }},
        {"rows of 16 bytes", [](Scenario& s) { s.config.hidden = 8; }},
        {"rows in pieces", [](Scenario& s) { s.config.hidden = 2056, s.config.max_tokens = 5; }},
        // Dispatch takes all of a multiprocessor's shared memory: a consumer that is there first
        // would keep it out.
        {"rows in many pieces",
         [](Scenario& s) {
             s.config.hidden = 90000, s.config.max_tokens = 2;
             s.consume = false;
         }},
        {"padding",
         [](Scenario& s) {
             if (s.config.layout == Layout::rank_major) return;
             s.config.expert_alignment = 4, s.config.pad_fill = PadFill::zero;
         }},
        {"fewer experts than ranks",
         [](Scenario& s) { s.config.expert_count = 2, s.config.topk = 2; }},
        {"masked choices and rows, no weights",
         [](Scenario& s) {
             s.routing.masked_choice_fraction = 0.4, s.routing.masked_row_fraction = 0.3;
             s.weights = false;
         }},
        {"no tokens anywhere",
         [](Scenario& s) {
             for (int r = 0; r < s.sim.ranks; ++r) s.routing.empty_ranks.push_back(r);
         }},
        {"different token counts, an empty rank",
         [](Scenario& s) { s.routing.spread = TokenSpread::random, s.routing.empty_ranks = {0}; }},
        {"hot expert",
         [](Scenario& s) { s.routing.kind = RoutingKind::hot, s.routing.hot_expert = 3; }},
        {"one token, one block",
         [](Scenario& s) { s.config.max_tokens = 1, s.config.sm_budget = 1; }},
        {"far more tokens than slots", [](Scenario& s) { s.config.max_tokens = 150; }},
        {"numbers that wrap",
         [](Scenario& s) {
             s.sim.faults.near_wrap_counters = true;
             s.steps = {StepKind::fresh, StepKind::fresh, StepKind::fresh, StepKind::fresh,
                        StepKind::cached};
         }},
        {"a slow rank",
         [](Scenario& s) { s.sim.faults.slow_rank = 1, s.sim.faults.slow_factor = 40; }},
        {"a block that stalls",
         [](Scenario& s) {
             s.sim.faults.stall_rank = 0, s.sim.faults.stall_block = 1;
             s.sim.faults.stall_ns = 3'000'000;
         }},
        {"a late rank",
         [](Scenario& s) { s.sim.faults.late_rank = 0, s.sim.faults.late_ns = 2'000'000; }},
        {"copies in pieces, out of order",
         [](Scenario& s) { s.sim.faults.split_chance = 0.8, s.sim.faults.delay_chance = 0.5; }},
    };
    return all;
}

}  // namespace

TEST_CASE("fifo: rings of one slot and more", "[sim][fifo]") {
    const int ranks = GENERATE(1, 2, 3, 4, 8);
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    for (std::uint64_t seed = 2000; seed < 2004; ++seed)
        run(stream_scenario(ranks, layout, seed + static_cast<std::uint64_t>(100 * ranks)));
}

TEST_CASE("fifo: every variant", "[sim][fifo]") {
    std::uint64_t seed = 3000;
    for (const auto& [name, change] : variants()) {
        for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
            for (int i = 0; i < 2; ++i) {
                Scenario scenario = stream_scenario(3, layout, ++seed);
                change(scenario);
                CAPTURE(name);
                run(scenario);
            }
        }
    }
}

TEST_CASE("fifo: few seeds", "[sim][fifo]") {
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    for (std::uint64_t seed = 4000; seed < 4002; ++seed) {
        Scenario scenario = stream_scenario(3, layout, seed);
        scenario.config.max_tokens = 6;
        scenario.steps = {StepKind::fresh, StepKind::cached};
        run(scenario);
    }
}

TEST_CASE("fifo: between teams of any shape", "[sim][fifo]") {
    const auto [ranks, team] = GENERATE(table<int, int>({{4, 2}, {3, 1}, {6, 3}}));
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    for (const PreSum pre_sum : {PreSum::on, PreSum::off}) {
        if (layout == Layout::expert_major && pre_sum == PreSum::on) continue;
        const auto seed =
            static_cast<std::uint64_t>(6000 + 10 * ranks + team) + (pre_sum == PreSum::on ? 0 : 3);
        run(rail_scenario(ranks, team, layout, pre_sum, seed));
    }
}

TEST_CASE("fifo: between teams, every variant", "[sim][fifo]") {
    std::uint64_t seed = 7000;
    for (const auto& [name, change] : variants()) {
        const Layout layout = seed % 2 == 0 ? Layout::rank_major : Layout::expert_major;
        Scenario scenario =
            rail_scenario(4, 2, layout, seed % 4 == 0 ? PreSum::on : PreSum::off, seed);
        change(scenario);
        if (scenario.config.topk > 3) scenario.config.chunks.rdma_recv = 40;
        if (scenario.config.max_tokens > 100) scenario.config.max_tokens = 60;
        CAPTURE(name);
        run(scenario);
        seed += 3;
    }
}

TEST_CASE("fifo: between teams, faults of the network", "[sim][fifo]") {
    for (std::uint64_t seed = 8000; seed < 8004; ++seed) {
        Scenario scenario =
            rail_scenario(4, 2, seed % 2 == 0 ? Layout::rank_major : Layout::expert_major,
                          seed / 2 % 2 == 0 ? PreSum::on : PreSum::off, seed);
        emu::FaultPlan& faults = scenario.sim.faults;
        faults.delay_chance = 0.3;
        faults.split_chance = 0.7;
        faults.duplicate_doorbell_chance = 0.3;
        faults.late_rank = static_cast<int>(seed % 4);
        faults.late_ns = 300'000;
        run(scenario);
    }
}

// 1305326063: credits of the last rows were on their way when the signals went.
TEST_CASE("fifo: between teams, seeds that once failed", "[sim][fifo]") {
    sim::SimCase which;
    which.scenario = "stream-teams";
    which.seed = 1305326063;
    which.plan.schedule = emu::Schedule::priority;
    which.plan.faults.delay_chance = 0.88;
    which.plan.faults.slow_rank = 1;
    which.plan.faults.slow_factor = 6;
    which.plan.faults.near_wrap_counters = true;
    CHECK(sim::run_case(which).fault == "");
}

TEST_CASE("fifo: between teams, many seeds", "[.][sim][fifo][soak]") {
    for (std::uint64_t seed = 20'000; seed < 20'300; ++seed) {
        const std::pair<int, int> shapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 4}, {3, 1}, {8, 2}};
        const auto [ranks, team] = shapes[seed % 6];
        Scenario scenario = rail_scenario(
            ranks, team, seed / 6 % 2 == 0 ? Layout::rank_major : Layout::expert_major,
            seed / 12 % 2 == 0 ? PreSum::on : PreSum::off, seed);
        variants()[seed % variants().size()].second(scenario);
        if (scenario.config.topk > 3) scenario.config.chunks.rdma_recv = 40;
        // While a rank of so many threads runs at a fortieth of its speed, time leaps over
        // deadlines.
        if (ranks > 4)
            scenario.sim.faults.slow_factor = std::min(scenario.sim.faults.slow_factor, 8u);
        run(scenario);
    }
}

TEST_CASE("fifo: 32 ranks, the most", "[sim][fifo]") {
    Scenario scenario = stream_scenario(32, Layout::rank_major, 5001);
    scenario.config.expert_count = 64;
    scenario.config.max_tokens = 4;
    scenario.steps = {StepKind::fresh};
    run(scenario);
}

}  // namespace gimlet::test

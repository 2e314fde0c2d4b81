// SPDX-License-Identifier: Apache-2.0
// Hybrid dispatch and combine against the reference: teams of any shape, both GIN personalities,
// layouts, types, with and without the pre-sum; what it costs on the rail.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "device/abi/expert_map.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/gin_traffic.hpp"
#include "runtime/exchange.hpp"
#include "runtime/rehearsal.hpp"
#include "runtime/runtime.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

Scenario hybrid_scenario(int ranks, int team, emu::GinMode gin, std::uint64_t seed) {
    Scenario out = small_scenario(ranks, team, gin, seed);
    out.config.mode = ExchangeMode::hybrid;
    out.config.publish_rows = 2;
    out.config.chunk_rows = 1;
    return out;
}

void run_seed(Scenario scenario, std::uint64_t seed) {
    scenario.sim.seed = seed;
    scenario.routing.seed = seed;
    scenario.data_seed = seed + 1;
    scenario.sim.schedule = static_cast<emu::Schedule>(seed % 3);
    CAPTURE(describe(scenario));
    REQUIRE_NOTHROW(run_scenario(scenario));
}

/// Rows of a dispatch of all ranks: those that must cross rails, one for each token and other team
/// with one of its experts; those that are moved at all; and the doorbells that the issue allows
/// for the rails' rows, ceil(rows / 6) + 1 for each channel and other team.
struct LeastRows {
    std::uint64_t rail = 0;
    std::uint64_t final = 0;
    std::uint64_t doorbells = 0;
};

LeastRows least_rows(const Scenario& scenario, int channels) {
    const RoutingTable table = generate_routing(routing_options(scenario));
    const ExpertMap experts{scenario.config.expert_count, scenario.sim.ranks};
    const int team_size = scenario.sim.lsa_team_size;
    const int others = scenario.sim.ranks / team_size - 1;
    LeastRows out;
    for (int rank = 0; rank < scenario.sim.ranks; ++rank) {
        const int tokens = table.ranks[static_cast<std::size_t>(rank)].token_count;
        std::map<std::pair<int, int>, std::uint64_t> rows;  // by channel and team
        for (int token = 0; token < tokens; ++token) {
            std::set<int> teams;
            std::set<int> ranks;
            for (int k = 0; k < table.topk; ++k) {
                const auto expert = table.index(rank, token, k);
                if (expert < 0) continue;
                ranks.insert(experts.rank_of(static_cast<std::int32_t>(expert)));
                teams.insert(experts.rank_of(static_cast<std::int32_t>(expert)) / team_size);
            }
            teams.erase(rank / team_size);
            out.rail += teams.size();
            out.final += ranks.size();
            const int channel = token / ((tokens + channels - 1) / channels);
            for (const int team : teams) ++rows[{channel, team}];
        }
        out.doorbells += static_cast<std::uint64_t>(channels * others);
        for (const auto& [stream, count] : rows) out.doorbells += (count + 5) / 6;
    }
    return out;
}

/// Overwrites a region that only puts write, when everybody has ended the step, and looks again
/// when the network has had its time.
void expect_quiet(const Exchange& exchange, std::byte* window, std::uint64_t offset,
                  std::int64_t rows, std::uint32_t row_bytes, Runtime& runtime,
                  cudaStream_t stream) {
    const std::vector<std::byte> pattern(static_cast<std::size_t>(rows) * row_bytes,
                                         std::byte{0x77});
    emu::host_barrier();
    detail::device_copy(window + offset, pattern.data(), pattern.size(), exchange.rank());
    for (int i = 0; i < 3; ++i) runtime.barrier(stream);
    runtime.synchronize(stream);
    emu::host_barrier();
    std::vector<std::byte> seen(pattern.size());
    detail::device_copy(seen.data(), window + offset, seen.size(), exchange.rank());
    if (seen != pattern) throw std::runtime_error("a put landed after the end of its step");
}

void run_quiet_steps(const Scenario& scenario) {
    const RoutingTable table = generate_routing(routing_options(scenario));
    emu::simulate(scenario.sim, [&](int rank) {
        auto runtime = Runtime::create(make_sim_bootstrap(rank));
        auto exchange = Exchange::create(*runtime, scenario.config);
        const Stream stream = Stream::create(rank);
        {
            Rehearsal rehearsal(*exchange, table);
            const Plan& plan = exchange->plan();
            std::byte* const window = exchange->combine_input() -
                                      plan.regions.rank_skew(plan.rank) -
                                      plan.regions.combine_rows[1];
            for (int step = 0; step < 2; ++step) {
                rehearsal.dispatch(CountMode::device, stream.get());
                exchange->synchronize(stream.get());
                expect_quiet(*exchange, window, plan.regions.rail_rows, plan.rail.row_count(),
                             plan.send_row_bytes(), *runtime, stream.get());
                rehearsal.combine(stream.get());
                exchange->synchronize(stream.get());
                expect_quiet(*exchange, window, plan.regions.home_rows, plan.home_capacity(),
                             plan.combine_row_bytes, *runtime, stream.get());
            }
        }
        exchange->close();
        runtime->close();
    });
}

/// Two dispatches in flight, then their two combines, queued back to back and with weights of their
/// own; few rows, so that many streams have none. Three times, without a wait between.
void run_combines_in_a_row(const Scenario& scenario) {
    GeneratorOptions options = routing_options(scenario);
    const RoutingTable first = generate_routing(options);
    options.seed += 1000;
    const RoutingTable second = generate_routing(options);
    emu::simulate(scenario.sim, [&](int rank) {
        auto runtime = Runtime::create(make_sim_bootstrap(rank));
        auto exchange = Exchange::create(*runtime, scenario.config);
        const Stream stream = Stream::create(rank);
        {
            RehearsalOptions weighted;
            if (scenario.config.layout == Layout::expert_major)
                weighted.combine_weights = RehearsalOptions::Part::present;
            Rehearsal one(*exchange, first, weighted);
            weighted.seed = 2;
            Rehearsal two(*exchange, second, weighted);
            const auto require_same = [&](const std::string& difference) {
                if (!difference.empty())
                    throw std::runtime_error(fmt::format("rank {}: {}", rank, difference));
            };
            for (Rehearsal* rehearsal : {&one, &two}) {
                require_same(rehearsal->step(CountMode::device, stream.get()));
                rehearsal->spoil_output();
            }
            for (int i = 0; i < 3; ++i) {
                for (Rehearsal* rehearsal : {&one, &two})
                    rehearsal->dispatch(CountMode::device, stream.get());
                for (Rehearsal* rehearsal : {&one, &two}) {
                    rehearsal->repeat_answer(stream.get());
                    rehearsal->combine(stream.get());
                }
            }
            require_same(one.check_combine(stream.get()));
            require_same(two.check_combine(stream.get()));
        }
        exchange->close();
        runtime->close();
    });
}

Scenario combines_in_a_row(std::uint64_t seed) {
    const std::pair<int, int> shapes[] = {{4, 2}, {6, 2}, {6, 3}};
    const auto [ranks, team] = shapes[seed % 3];
    Scenario out = hybrid_scenario(ranks, team,
                                   seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
    out.config.layout = seed % 5 == 0 ? Layout::rank_major : Layout::expert_major;
    out.config.max_tokens = 4;
    out.config.topk = 2;
    out.routing.masked_row_fraction = 0.4;
    out.sim.schedule = static_cast<emu::Schedule>(seed % 3);
    out.sim.faults.delay_chance = 0.6;
    out.sim.faults.delay_min_ns = 500;
    out.sim.faults.delay_mean_ns = 30'000;
    out.sim.faults.split_chance = 0.5;
    if (seed % 4 == 0) {
        out.sim.faults.slow_rank = static_cast<int>(seed) % ranks;
        out.sim.faults.slow_factor = 8;
    }
    return out;
}

using Change = std::function<void(Scenario&)>;

/// Each with a seed of its own.
const std::vector<std::pair<const char*, Change>>& variants() {
    static const std::vector<std::pair<const char*, Change>> all = {
        {"fp32, int64 indices",
         [](Scenario& s) {
             s.config.dispatch_type = s.config.combine_type = ElementType::float32;
             s.index_type = IndexType::int64;
         }},
        {"fp8 with scales, fp16 back",
         [](Scenario& s) {
             s.config.hidden = 256;
             s.config.dispatch_type = ElementType::float8_e4m3;
             s.config.combine_type = ElementType::float16;
             s.config.scale_words = fp8_float_scale_words(256);
         }},
        {"32 choices",
         [](Scenario& s) {
             s.config.expert_count = 40, s.config.topk = 32, s.config.max_tokens = 5;
         }},
        {"one choice", [](Scenario& s) { s.config.topk = 1; }},
        {"rows in pieces", [](Scenario& s) { s.config.hidden = 2056, s.config.max_tokens = 5; }},
        {"fewer experts than ranks",
         [](Scenario& s) { s.config.expert_count = 2, s.config.topk = 2; }},
        {"zeroed padding",
         [](Scenario& s) {
             s.config.expert_count = 13;
             s.config.expert_alignment = s.config.layout == Layout::expert_major ? 8 : 1;
             s.config.pad_fill = PadFill::zero;
         }},
        {"masked choices and rows, no weights, bias, host counts",
         [](Scenario& s) {
             s.routing.masked_choice_fraction = 0.4, s.routing.masked_row_fraction = 0.3;
             s.weights = false, s.bias = true, s.host_counts = true;
         }},
        {"everything masked", [](Scenario& s) { s.routing.masked_row_fraction = 1.0; }},
        {"empty ranks",
         [](Scenario& s) {
             s.routing.empty_ranks = {0, 3};
         }},
        {"different token counts", [](Scenario& s) { s.routing.spread = TokenSpread::random; }},
        {"hot expert",
         [](Scenario& s) { s.routing.kind = RoutingKind::hot, s.routing.hot_expert = 3; }},
        {"one token, one context, one block",
         [](Scenario& s) {
             s.config.max_tokens = 1, s.config.gin_context_count = 1, s.config.sm_budget = 1;
         }},
        {"warps to spare, default tails",
         [](Scenario& s) {
             s.config.dispatch_threads = 160, s.config.combine_threads = 128;
             s.config.publish_rows = 0, s.config.chunk_rows = 0, s.config.max_tokens = 30;
         }},
        {"more channels than tokens",
         [](Scenario& s) {
             s.sim.sm_count = 4, s.config.sm_budget = 4, s.config.max_tokens = 3;
             s.config.dispatch_threads = 128;
         }},
    };
    return all;
}

}  // namespace

TEST_CASE("hybrid: teams of any shape", "[sim][hybrid]") {
    const auto [ranks, team] = GENERATE(table<int, int>({{4, 2}, {6, 2}, {6, 3}, {9, 3}}));
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    const PreSum pre_sum = GENERATE(PreSum::on, PreSum::off);
    for (std::uint64_t seed = 300; seed < 302; ++seed) {
        Scenario scenario = hybrid_scenario(
            ranks, team, seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
        scenario.config.layout = layout;
        scenario.config.pre_sum = pre_sum;
        scenario.steps = {StepKind::fresh, StepKind::cached, StepKind::fresh};
        run_seed(scenario, seed);
    }
}

TEST_CASE("hybrid: every variant", "[sim][hybrid]") {
    std::uint64_t seed = 500;
    for (const auto& [name, change] : variants()) {
        for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
            Scenario scenario = hybrid_scenario(
                6, 2, seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
            scenario.config.layout = layout;
            scenario.config.pre_sum = seed % 3 == 0 ? PreSum::off : PreSum::on;
            scenario.steps = {StepKind::fresh, StepKind::cached};
            change(scenario);
            CAPTURE(name);
            run_seed(scenario, seed++);
        }
    }
}

TEST_CASE("hybrid: without the pre-sum, sums are those of direct", "[sim][hybrid]") {
    // The reference of both is the same; that of the pre-sum is another one.
    Scenario scenario = hybrid_scenario(4, 2, emu::GinMode::gdaki, 7);
    scenario.config.pre_sum = PreSum::off;
    scenario.config.topk = 6;
    run_seed(scenario, 7);
    scenario.config.mode = ExchangeMode::direct;
    run_seed(scenario, 7);
}

TEST_CASE("hybrid: one team, and teams of one rank, fall back to direct", "[sim][hybrid]") {
    const auto [ranks, team] = GENERATE(table<int, int>({{3, 3}, {3, 1}}));
    Scenario scenario =
        hybrid_scenario(ranks, team, team == ranks ? emu::GinMode::off : emu::GinMode::gdaki, 11);
    run_seed(scenario, 11);
}

TEST_CASE("hybrid: a row crosses to a team once, and tails ring every publish_rows rows",
          "[sim][hybrid]") {
    for (const int team : {2, 4}) {
        Scenario scenario = hybrid_scenario(8, team, emu::GinMode::gdaki, 5);
        scenario.config.max_tokens = 40;
        scenario.config.topk = 4;
        scenario.config.expert_count = 32;
        scenario.config.publish_rows = 0;
        scenario.config.chunk_rows = 0;
        scenario.combines = 0;
        CAPTURE(describe(scenario));
        emu::gin_traffic() = {};
        run_scenario(scenario);
        const emu::GinTraffic traffic = emu::gin_traffic();
        const std::uint64_t ranks = 8;
        const std::uint64_t others = ranks / static_cast<std::uint64_t>(team) - 1;
        const std::uint64_t channels = 2;
        const LeastRows least = least_rows(scenario, static_cast<int>(channels));
        const std::uint64_t rows = least.rail;
        // Chunks are longer than a batch, so a put is a batch; count rows are puts as well.
        REQUIRE(traffic.puts >= rows / 6 + ranks * others);
        REQUIRE(traffic.puts <= rows / 6 + ranks * others * (channels + 1));
        REQUIRE(traffic.doorbells <= least.doorbells + ranks * others);  // one a count row
        // The bytes name the rows exactly.
        const RailRowLayout layout{64 * 2, 4, 0};
        const std::uint64_t count_words = 2 * ((1 + ranks + 32 + 1) / 2);
        REQUIRE(traffic.put_bytes == rows * layout.stride() + ranks * others * count_words * 8);
    }
}

TEST_CASE("hybrid: at most 1.5 times the fiber switches of direct, for each row moved",
          "[sim][hybrid]") {
    Scenario scenario = small_scenario(8, 4, emu::GinMode::gdaki, 1);
    scenario.config.max_tokens = 64;
    scenario.config.hidden = 512;
    scenario.config.topk = 4;
    scenario.config.expert_count = 32;
    const LeastRows rows = least_rows(scenario, 2);
    const auto direct = static_cast<double>(run_scenario(scenario).switches);
    scenario.config.mode = ExchangeMode::hybrid;
    const auto hybrid = static_cast<double>(run_scenario(scenario).switches);
    const double a_row = direct / static_cast<double>(rows.final);
    CAPTURE(direct, hybrid, rows.final, rows.rail);
    REQUIRE(hybrid / static_cast<double>(rows.final + rows.rail) <= 1.5 * a_row);
}

TEST_CASE("hybrid: faults of the network and of scheduling", "[sim][hybrid]") {
    for (std::uint64_t seed = 40; seed < 46; ++seed) {
        Scenario scenario =
            hybrid_scenario(6, 3, seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
        emu::FaultPlan& faults = scenario.sim.faults;
        faults.delay_chance = 0.3;
        faults.split_chance = 0.7;
        faults.duplicate_doorbell_chance = 0.3;
        faults.stall_rank = static_cast<int>(seed % 6);
        faults.stall_ns = 200'000;
        faults.late_rank = static_cast<int>((seed + 1) % 6);
        faults.late_ns = 300'000;
        scenario.steps = {StepKind::fresh, StepKind::cached, StepKind::fresh};
        run_seed(scenario, seed);
    }
}

TEST_CASE("hybrid: no put of a step lands after it", "[sim][hybrid]") {
    const emu::GinMode gin = GENERATE(emu::GinMode::gdaki, emu::GinMode::proxy);
    for (std::uint64_t seed = 60; seed < 63; ++seed) {
        Scenario scenario = hybrid_scenario(4, 2, gin, seed);
        scenario.sim.faults.delay_chance = 0.6;
        scenario.sim.faults.split_chance = 0.8;
        scenario.routing.seed = seed;
        CAPTURE(describe(scenario));
        REQUIRE_NOTHROW(run_quiet_steps(scenario));
    }
}

TEST_CASE("hybrid: combines in a row have their own weights", "[sim][hybrid]") {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        const Scenario scenario = combines_in_a_row(seed);
        CAPTURE(describe(scenario));
        REQUIRE_NOTHROW(run_combines_in_a_row(scenario));
    }
}

TEST_CASE("hybrid: combines in a row, many seeds", "[.][sim][hybrid][soak]") {
    for (std::uint64_t seed = 1000; seed < 1300; ++seed) {
        const Scenario scenario = combines_in_a_row(seed);
        CAPTURE(describe(scenario));
        REQUIRE_NOTHROW(run_combines_in_a_row(scenario));
    }
}

TEST_CASE("hybrid: more than 32 teams, more than 64 ranks a team", "[.][sim][hybrid][large]") {
    const auto [ranks, team] = GENERATE(table<int, int>({{66, 2}, {130, 65}, {105, 3}}));
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    Scenario scenario = hybrid_scenario(ranks, team, emu::GinMode::gdaki, 77);
    scenario.config.layout = layout;
    scenario.config.expert_count = ranks + 5;
    scenario.config.topk = 8;
    scenario.config.max_tokens = 4;
    scenario.config.sm_budget = 1;
    scenario.config.deadline_ns = 3'600'000'000'000;  // one step takes minutes of a busy machine
    scenario.steps = {StepKind::fresh, StepKind::cached};
    run_seed(scenario, 77);
}

TEST_CASE("hybrid: many seeds", "[.][sim][hybrid][soak]") {
    for (std::uint64_t seed = 10'000; seed < 10'500; ++seed) {
        const std::pair<int, int> shapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 4}, {8, 2}, {10, 5}};
        const auto [ranks, team] = shapes[seed % 6];
        Scenario scenario = hybrid_scenario(
            ranks, team, seed / 6 % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
        scenario.config.layout = seed / 12 % 2 == 0 ? Layout::rank_major : Layout::expert_major;
        scenario.config.pre_sum = seed / 24 % 2 == 0 ? PreSum::on : PreSum::off;
        scenario.steps = {StepKind::fresh, StepKind::fresh, StepKind::cached};
        variants()[seed % variants().size()].second(scenario);
        run_seed(scenario, seed);
    }
}

}  // namespace gimlet::test

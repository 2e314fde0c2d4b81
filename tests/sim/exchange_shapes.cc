// SPDX-License-Identifier: Apache-2.0
// Types, shapes and routings at their edges: zero tokens, one choice, 32 choices, fewer experts
// than ranks, padding.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

struct Variant {
    const char* name;
    std::function<void(Scenario&)> apply;
};

void expert_major(Scenario& s, std::int32_t alignment, PadFill fill) {
    s.config.layout = Layout::expert_major;
    s.config.expert_alignment = alignment;
    s.config.pad_fill = fill;
}

const std::vector<Variant>& variants() {
    static const std::vector<Variant> all = {
        {"fp32",
         [](Scenario& s) {
             s.config.dispatch_type = s.config.combine_type = ElementType::float32;
         }},
        {"fp16, int64 indices",
         [](Scenario& s) {
             s.config.dispatch_type = s.config.combine_type = ElementType::float16;
             s.index_type = IndexType::int64;
         }},
        {"fp8 with fp32 scales",
         [](Scenario& s) {
             s.config.hidden = 256;
             s.config.dispatch_type = ElementType::float8_e4m3;
             s.config.scale_words = fp8_float_scale_words(256);
         }},
        {"fp8 with packed scales, expert_major",
         [](Scenario& s) {
             s.config.hidden = 1024;
             s.config.dispatch_type = ElementType::float8_e4m3;
             s.config.scale_words = fp8_packed_scale_words(1024);
             expert_major(s, 1, PadFill::none);
         }},
        {"one choice", [](Scenario& s) { s.config.topk = 1; }},
        {"32 choices", [](Scenario& s) { s.config.expert_count = 40, s.config.topk = 32; }},
        {"32 choices, expert_major, weighted",
         [](Scenario& s) {
             s.config.expert_count = 33, s.config.topk = 32;
             expert_major(s, 4, PadFill::none);
         }},
        {"rows of 16 bytes", [](Scenario& s) { s.config.hidden = 8; }},
        {"rows in pieces", [](Scenario& s) { s.config.hidden = 2056, s.config.max_tokens = 5; }},
        {"fewer experts than ranks",
         [](Scenario& s) { s.config.expert_count = 2, s.config.topk = 2; }},
        {"experts not divisible, expert_major, zeroed padding",
         [](Scenario& s) {
             s.config.expert_count = 13;
             expert_major(s, 8, PadFill::zero);
         }},
        {"masked choices and rows",
         [](Scenario& s) {
             s.routing.masked_choice_fraction = 0.4, s.routing.masked_row_fraction = 0.3;
         }},
        {"everything masked", [](Scenario& s) { s.routing.masked_row_fraction = 1.0; }},
        {"an empty rank", [](Scenario& s) { s.routing.empty_ranks = {0}; }},
        {"no tokens anywhere",
         [](Scenario& s) {
             for (int r = 0; r < s.sim.ranks; ++r) s.routing.empty_ranks.push_back(r);
         }},
        {"different token counts", [](Scenario& s) { s.routing.spread = TokenSpread::random; }},
        {"hot expert",
         [](Scenario& s) {
             s.routing.kind = RoutingKind::hot;
             s.routing.hot_expert = 3;
         }},
        {"grouped gate",
         [](Scenario& s) {
             s.config.expert_count = 16, s.routing.kind = RoutingKind::grouped;
             s.routing.group_count = 4, s.routing.selected_group_count = 2;
         }},
        {"no weights, bias, host counts",
         [](Scenario& s) {
             s.weights = false;
             s.bias = true;
             s.host_counts = true;
         }},
        {"one token, one GIN context, chunks of one row",
         [](Scenario& s) {
             s.config.max_tokens = 1, s.config.chunk_rows = 1;
             if (s.config.gin_context_count > 0) s.config.gin_context_count = 1;
         }},
        {"one block", [](Scenario& s) { s.config.sm_budget = 1; }},
    };
    return all;
}

void run_variant(const Variant& variant, int ranks, int team, std::uint64_t seed) {
    Scenario scenario = small_scenario(
        ranks, team, seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
    scenario.sim.schedule = static_cast<emu::Schedule>(seed % 3);
    scenario.steps = {StepKind::fresh, StepKind::cached, StepKind::fresh};
    variant.apply(scenario);
    CAPTURE(variant.name, describe(scenario));
    REQUIRE_NOTHROW(run_scenario(scenario));
}

}  // namespace

TEST_CASE("dispatch and combine: every variant, one team and two", "[sim][exchange]") {
    for (const Variant& variant : variants()) {
        for (const auto& [ranks, team] : std::vector<std::pair<int, int>>{{3, 0}, {4, 2}, {2, 1}}) {
            for (std::uint64_t seed = 500; seed < 504; ++seed)
                run_variant(variant, ranks, team, seed);
        }
    }
}

TEST_CASE("dispatch and combine: 16 ranks", "[sim][exchange]") {
    const int team = GENERATE(0, 1, 2, 4, 8);
    const Layout layout = GENERATE(Layout::rank_major, Layout::expert_major);
    for (std::uint64_t seed = 700; seed < 702; ++seed) {
        Scenario scenario =
            small_scenario(16, team, team == 0 ? emu::GinMode::off : emu::GinMode::gdaki, seed);
        scenario.config.layout = layout;
        scenario.config.expert_count = 35;
        scenario.config.max_tokens = 5;
        scenario.steps = {StepKind::fresh, StepKind::cached};
        CAPTURE(describe(scenario));
        REQUIRE_NOTHROW(run_scenario(scenario));
    }
}

TEST_CASE("dispatch and combine: the same seed gives the same run", "[sim][exchange]") {
    const Scenario scenario = small_scenario(4, 2, emu::GinMode::gdaki, 42);
    const emu::SimReport first = run_scenario(scenario);
    const emu::SimReport second = run_scenario(scenario);
    REQUIRE(first.trace_hash == second.trace_hash);
    REQUIRE(first.steps == second.steps);
    Scenario other = scenario;
    other.sim.seed = 43;
    REQUIRE(run_scenario(other).trace_hash != first.trace_hash);
}

}  // namespace gimlet::test

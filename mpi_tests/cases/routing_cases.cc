// SPDX-License-Identifier: Apache-2.0
// Routings that break such systems: empty, masked, skewed, uneven; and routings that are used
// again.
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

using Change = std::function<void(StepPlan*, int ranks)>;

/// In both layouts.
void add(std::vector<Case>* cases, const std::string& name, Change change, int least_ranks = 1) {
    for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
        cases->push_back({fmt::format("routing/{}, {}", name, name_of(layout)), least_ranks,
                          [change, layout](CaseContext& context) {
                              StepPlan plan = small_plan(context.size());
                              plan.config.layout = layout;
                              plan.steps = 2;
                              change(&plan, context.size());
                              run_steps(context, plan);
                          }});
    }
}

void cached(CaseContext& context, Layout layout) {
    StepPlan plan = small_plan(context.size());
    plan.config.layout = layout;
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        plan.routing.spread = TokenSpread::random;
        const RoutingTable table = generate_routing(plan.routing);
        plan.routing.seed = 12;
        const RoutingTable other_table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        Rehearsal other(*exchange, other_table, plan.rehearsal);
        context.expect_same(rehearsal.step(CountMode::device, stream.get()), "fresh");
        for (std::uint64_t step = 0; step < 4; ++step) {
            // Fresh steps of another routing in between, so that both buffers and both kinds meet.
            if (step == 2)
                context.expect_same(other.step(CountMode::host, stream.get()), "fresh between");
            rehearsal.refill(50 + step);
            rehearsal.dispatch_cached(stream.get());
            context.expect_same(rehearsal.check_dispatch(stream.get()),
                                fmt::format("cached {}", step));
            rehearsal.answer(stream.get());
            rehearsal.combine(stream.get());
            context.expect_same(rehearsal.check_combine(stream.get()),
                                fmt::format("cached combine {}", step));
        }
        context.expect(exchange->stats().cached_dispatches == 4,
                       "cached dispatches are not counted");
    }
    exchange->close();
}

/// Two dispatches before the first combine: both receive buffers are in use.
void overlapped(CaseContext& context) {
    StepPlan plan = small_plan(context.size());
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        const RoutingTable first_table = generate_routing(plan.routing);
        plan.routing.seed = 99;
        const RoutingTable second_table = generate_routing(plan.routing);
        Rehearsal first(*exchange, first_table, plan.rehearsal);
        Rehearsal second(*exchange, second_table, plan.rehearsal);
        for (int round = 0; round < 3; ++round) {
            first.dispatch(CountMode::device, stream.get());
            second.dispatch(CountMode::device, stream.get());
            context.expect_same(first.check_dispatch(stream.get()), "first dispatch");
            context.expect_same(second.check_dispatch(stream.get()), "second dispatch");
            second.answer(stream.get());
            second.combine(stream.get());
            first.answer(stream.get());
            first.combine(stream.get());
            context.expect_same(second.check_combine(stream.get()), "second combine");
            context.expect_same(first.check_combine(stream.get()), "first combine");
        }
    }
    exchange->close();
}

}  // namespace

void add_routing_cases(std::vector<Case>* cases) {
    add(cases, "masked rows and choices", [](StepPlan* plan, int) {
        plan->routing.masked_row_fraction = 0.3;
        plan->routing.masked_choice_fraction = 0.3;
    });
    add(cases, "everything masked",
        [](StepPlan* plan, int) { plan->routing.masked_row_fraction = 1; });
    add(cases, "empty first and last rank", [](StepPlan* plan, int ranks) {
        plan->routing.empty_ranks = {0, ranks - 1};
    });
    add(cases, "all ranks empty", [](StepPlan* plan, int ranks) {
        for (int r = 0; r < ranks; ++r) plan->routing.empty_ranks.push_back(r);
    });
    add(cases, "another T on each rank",
        [](StepPlan* plan, int) { plan->routing.spread = TokenSpread::random; });
    add(cases, "one hot expert",
        [](StepPlan* plan, int) { plan->routing.kind = RoutingKind::hot; });
    add(cases, "all tokens to one rank, K = 1", [](StepPlan* plan, int) {
        plan->routing.kind = RoutingKind::hot;
        plan->config.topk = plan->routing.topk = 1;
    });
    add(cases, "log-normal skew", [](StepPlan* plan, int) {
        plan->routing.kind = RoutingKind::log_normal;
        plan->routing.skew = 2;
    });
    add(cases, "grouped gate", [](StepPlan* plan, int) {
        plan->routing.kind = RoutingKind::grouped;
        plan->config.expert_count = plan->routing.expert_count = 32;
        plan->config.topk = plan->routing.topk = 8;
        plan->mode = CountMode::host;
    });
    add(
        cases, "fewer experts than ranks",
        [](StepPlan* plan, int ranks) {
            plan->config.expert_count = plan->routing.expert_count = ranks - 1;
            plan->config.topk = plan->routing.topk = 1;
        },
        2);
    cases->push_back({"routing/cached, rank_major", 1,
                      [](CaseContext& context) { cached(context, Layout::rank_major); }});
    cases->push_back({"routing/cached, expert_major", 1,
                      [](CaseContext& context) { cached(context, Layout::expert_major); }});
    cases->push_back({"routing/two dispatches in flight", 1, overlapped});
}

}  // namespace gimlet::mpi_tests

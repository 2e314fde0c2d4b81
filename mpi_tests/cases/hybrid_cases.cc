// SPDX-License-Identifier: Apache-2.0
// Hybrid exchanges between processes.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "host/base/version.hpp"
#include "host/cuda/buffer.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

using Part = RehearsalOptions::Part;

StepPlan hybrid_plan(int ranks) {
    StepPlan plan = small_plan(ranks);
    plan.config.mode = ExchangeMode::hybrid;
    plan.config.publish_rows = 2;
    // Enough for each of a GPU's many streams to have a chunk.
    if (std::string(backend_name()) != "emulator")
        plan.config.max_tokens = plan.routing.token_count = 1024;
    plan.steps = 2;
    return plan;
}

/// The rows of all ranks that crossed rails, and the least number that could.
void expect_few_rows(CaseContext& context) {
    StepPlan plan = hybrid_plan(context.size());
    plan.config.publish_rows = 0;
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    const Plan& made = exchange->plan();
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        context.expect_same(rehearsal.step(CountMode::host, stream.get()), "step");
        const StepTraffic traffic = exchange->traffic(rehearsal.routing());
        const auto& slots =
            rehearsal.reference().ranks[static_cast<std::size_t>(context.rank())].slots;
        std::int64_t wanted = 0;
        for (std::size_t first = 0; first < slots.size();
             first += static_cast<std::size_t>(plan.config.topk)) {
            std::vector<int> teams;
            for (std::size_t k = 0; k < static_cast<std::size_t>(plan.config.topk); ++k) {
                const int rank = slots[first + k].rank;
                const int team = rank < 0 ? -1 : rank / made.lsa_size;
                if (team < 0 || team == context.rank() / made.lsa_size) continue;
                if (std::find(teams.begin(), teams.end(), team) == teams.end())
                    teams.push_back(team);
            }
            wanted += static_cast<std::int64_t>(teams.size());
        }
        if (made.mode == ExchangeMode::hybrid) {
            context.expect(traffic.gin_rows_sent == wanted,
                           fmt::format("{} rail rows, {} pairs of token and team",
                                       traffic.gin_rows_sent, wanted));
            const std::int32_t streams = made.rail.pair_count();
            std::vector<std::int32_t> sent(static_cast<std::size_t>(streams));
            detail::device_copy(sent.data(), rehearsal.routing().view().rail_sent,
                                sent.size() * sizeof sent[0], context.rank());
            std::int64_t allowed = made.rail.peer_count();  // count rows
            for (const std::int32_t rows : sent) allowed += (rows + 5) / 6 + 1;
            context.expect(traffic.dispatch_doorbells <= allowed,
                           fmt::format("{} doorbells for {} rows on {} streams, {} allowed",
                                       traffic.dispatch_doorbells, wanted, streams, allowed));
        }
    }
    exchange->close();
}

}  // namespace

void add_hybrid_cases(std::vector<Case>* cases) {
    const auto add = [cases](const std::string& name, std::function<void(CaseContext&)> body) {
        cases->push_back({"hybrid/" + name, 1, [body](CaseContext& context) {
                              const Topology& topology = context.runtime().topology();
                              if (topology.lsa_team_count == 1 || topology.lsa_size == 1)
                                  throw Skip{"not several LSA teams of several ranks"};
                              body(context);
                          }});
    };
    for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
        for (const auto pre_sum : {PreSum::on, PreSum::off}) {
            add(fmt::format("{}, {} pre-sum", name_of(layout),
                            pre_sum == PreSum::on ? "with" : "without"),
                [=](CaseContext& context) {
                    StepPlan plan = hybrid_plan(context.size());
                    plan.config.layout = layout;
                    plan.config.pre_sum = pre_sum;
                    if (layout == Layout::expert_major)
                        plan.rehearsal.combine_weights = Part::present;
                    run_steps(context, plan);
                });
        }
    }
    add("skew, empty rank, masked rows, fp8", [](CaseContext& context) {
        run_steps(context, with_skew_and_fp8(hybrid_plan(context.size())));
    });
    add("a row crosses to a team once", expect_few_rows);
    cases->push_back({"hybrid/asked for on any topology", 1, [](CaseContext& context) {
                          StepPlan plan = hybrid_plan(context.size());
                          plan.steps = 1;
                          run_steps(context, plan);
                      }});
}

}  // namespace gimlet::mpi_tests

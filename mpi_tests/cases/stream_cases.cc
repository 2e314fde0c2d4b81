// SPDX-License-Identifier: Apache-2.0
// Sync::fifo between processes.
#include <functional>
#include <string>
#include <vector>

#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

using Part = RehearsalOptions::Part;

StepPlan stream_plan(int ranks) {
    StepPlan plan = small_plan(ranks);
    plan.config.sync = Sync::fifo;
    return plan;
}

}  // namespace

void add_stream_cases(std::vector<Case>* cases) {
    const auto add = [cases](const std::string& name, std::function<void(CaseContext&)> body) {
        cases->push_back({"fifo/" + name, 1, body});
    };
    for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
        for (const int slots : {0, 3}) {
            add(fmt::format("{}, rings of {} rows", name_of(layout), slots),
                [=](CaseContext& context) {
                    StepPlan plan = stream_plan(context.size());
                    plan.config.layout = layout;
                    plan.config.chunks.nvl_recv = plan.config.chunks.rdma_recv = slots;
                    if (layout == Layout::expert_major)
                        plan.rehearsal.combine_weights = Part::present;
                    run_steps(context, plan);
                });
        }
    }
    add("one slot, many more tokens than slots", [](CaseContext& context) {
        StepPlan plan = stream_plan(context.size());
        plan.config.chunks.nvl_recv = plan.config.chunks.nvl_send = 1;
        plan.config.chunks.rdma_recv = 1;
        // Each row is a turn from process to process, and each turn may cost a time slice.
        plan.config.max_tokens = plan.routing.token_count = context.repeats(300, 40);
        plan.steps = 2;
        run_steps(context, plan);
    });
    add("skew, empty rank, masked rows, fp8, unpack and pack", [](CaseContext& context) {
        StepPlan plan = with_skew_and_fp8(stream_plan(context.size()));
        plan.rehearsal.access = RowAccess::copied;
        run_steps(context, plan);
    });
}

}  // namespace gimlet::mpi_tests

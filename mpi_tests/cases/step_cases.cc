// SPDX-License-Identifier: Apache-2.0
// Dispatch and combine in every layout, type, index type and way of counting.
#include "host/base/version.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

using Change = std::function<void(StepPlan*)>;
using Part = RehearsalOptions::Part;

void add(std::vector<Case>* cases, const std::string& name, Change change) {
    cases->push_back({"steps/" + name, 1, [change](CaseContext& context) {
                          StepPlan plan = small_plan(context.size());
                          change(&plan);
                          plan.steps = context.repeats(plan.steps, std::min(plan.steps, 2));
                          run_steps(context, plan);
                      }});
}

void add_types(std::vector<Case>* cases) {
    struct Types {
        const char* name;
        ElementType out;
        ElementType back;
        int scale_words;
    };
    const Types types[] = {
        {"fp32", ElementType::float32, ElementType::float32, 0},
        {"fp16", ElementType::float16, ElementType::float16, 0},
        {"bf16", ElementType::bfloat16, ElementType::bfloat16, 0},
        {"fp8 with fp32 scales", ElementType::float8_e4m3, ElementType::bfloat16, 1},
        {"fp8 with packed scales", ElementType::float8_e4m3, ElementType::float16, 3}};
    for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
        for (const auto& type : types) {
            const auto index = layout == Layout::rank_major ? IndexType::int32 : IndexType::int64;
            add(cases, fmt::format("{}, {}", name_of(layout), type.name), [=](StepPlan* plan) {
                plan->config.layout = layout;
                plan->config.dispatch_type = type.out;
                plan->config.combine_type = type.back;
                plan->config.scale_words = type.scale_words;
                plan->rehearsal.index_type = index;
                plan->rehearsal.bias = type.scale_words == 0 ? Part::present : Part::absent;
            });
        }
    }
}

void add_options(std::vector<Case>* cases) {
    add(cases, "int64 indices, copied rows, host counts", [](StepPlan* plan) {
        plan->rehearsal.index_type = IndexType::int64;
        plan->rehearsal.access = RowAccess::copied;
        plan->mode = CountMode::host;
    });
    add(cases, "expert_major, aligned, zero-filled, copied rows", [](StepPlan* plan) {
        plan->config.layout = Layout::expert_major;
        plan->config.expert_alignment = 4;
        plan->config.pad_fill = PadFill::zero;
        plan->config.scale_words = 2;
        plan->rehearsal.access = RowAccess::copied;
    });
    add(cases, "expert_major, weights in combine, host counts", [](StepPlan* plan) {
        plan->config.layout = Layout::expert_major;
        plan->rehearsal.combine_weights = Part::present;
        plan->mode = CountMode::host;
    });
    add(cases, "no weights", [](StepPlan* plan) { plan->rehearsal.weights = Part::absent; });
    add(cases, "one row a put, one context", [](StepPlan* plan) {
        plan->config.chunk_rows = 1;
        plan->config.gin_context_count = 1;
    });
    add(cases, "large chunks, two contexts", [](StepPlan* plan) {
        plan->config.chunk_rows = 1000;
        plan->config.gin_context_count = 2;
    });
    add(cases, "many puts", [](StepPlan* plan) {
        plan->config.max_tokens = plan->routing.token_count = 150;
        plan->config.hidden = 8;
        plan->config.chunk_rows = 1;
        plan->steps = 2;
    });
    add(cases, "one block", [](StepPlan* plan) { plan->config.sm_budget = 1; });
    add(cases, "smallest row", [](StepPlan* plan) { plan->config.hidden = 8; });
    add(cases, "odd row", [](StepPlan* plan) { plan->config.hidden = 1096; });
}

void add_topk(std::vector<Case>* cases) {
    for (const int topk : {1, 2, 8, 9, 17, 32}) {
        for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
            // Every second K in each layout.
            if ((topk % 2 == 0) != (layout == Layout::expert_major)) continue;
            add(cases, fmt::format("K = {}", topk), [=](StepPlan* plan) {
                plan->config.layout = layout;
                plan->config.topk = plan->routing.topk = topk;
                plan->config.expert_count = plan->routing.expert_count = 37;
                plan->config.max_tokens = plan->routing.token_count = 7;
                plan->steps = 2;
            });
        }
    }
}

/// The checks bite: payload, routing and sums that are not what was moved are noticed.
void differences_are_found(CaseContext& context) {
    const StepPlan plan = small_plan(context.size());
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        context.expect_same(rehearsal.step(CountMode::device, stream.get()), "step");
        rehearsal.spoil_output();
        context.expect(!rehearsal.check_combine(stream.get()).empty(), "a spoilt output passes");
        rehearsal.refill(plan.rehearsal.seed + 1);
        context.expect(!rehearsal.check_dispatch(stream.get()).empty(), "stale rows pass");
        context.expect(!rehearsal.check_combine(stream.get()).empty(), "a stale output passes");
    }
    exchange->close();
}

}  // namespace

void add_step_cases(std::vector<Case>* cases) {
    add_types(cases);
    add_options(cases);
    add_topk(cases);
    cases->push_back({"steps/differences are found", 1, differences_are_found});
    cases->push_back({"steps/many, bit-exact", 1, [](CaseContext& context) {
                          StepPlan plan = small_plan(context.size());
                          plan.config.hidden = 16;
                          plan.config.max_tokens = plan.routing.token_count = 8;
                          // A checked step takes about a millisecond on a GPU.
                          const bool emulated = std::string(backend_name()) == "emulator";
                          plan.steps = context.repeats(emulated ? 100 : 10000, 12);
                          run_steps(context, plan);
                      }});
}

}  // namespace gimlet::mpi_tests

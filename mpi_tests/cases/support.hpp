// SPDX-License-Identifier: Apache-2.0
// What most cases need: a small config, a routing, and steps that are checked.
#pragma once

#include <memory>
#include <string>

#include "host/cuda/stream.hpp"
#include "mpi_tests/harness/case.hpp"
#include "runtime/exchange.hpp"
#include "runtime/generators.hpp"
#include "runtime/rehearsal.hpp"

namespace gimlet::mpi_tests {

/// Small enough for emulated devices; E is not a multiple of the ranks.
inline MoeConfig small_config(int ranks) {
    MoeConfig config;
    config.expert_count = 2 * ranks + 1;
    config.topk = 3;
    config.hidden = 64;
    config.max_tokens = 16;
    config.chunk_rows = 3;
    config.gin_context_count = 3;
    return config;
}

inline GeneratorOptions small_routing(const MoeConfig& config, int ranks) {
    GeneratorOptions options;
    options.rank_count = ranks;
    options.token_count = config.max_tokens;
    options.expert_count = config.expert_count;
    options.topk = config.topk;
    options.seed = 11;
    return options;
}

/// What one checked exchange looks like.
struct StepPlan {
    MoeConfig config;
    GeneratorOptions routing;
    RehearsalOptions rehearsal;
    CountMode mode = CountMode::device;
    int steps = 3;
};

inline StepPlan small_plan(int ranks) {
    StepPlan plan;
    plan.config = small_config(ranks);
    plan.routing = small_routing(plan.config, ranks);
    return plan;
}

/// fp8 with scales and bias, one hot expert, other T on each rank, masked rows, an empty rank.
inline StepPlan with_skew_and_fp8(StepPlan plan) {
    plan.config.dispatch_type = ElementType::float8_e4m3;
    plan.config.scale_words = 1;
    plan.routing.kind = RoutingKind::hot;
    plan.routing.spread = TokenSpread::random;
    plan.routing.masked_row_fraction = 0.2;
    plan.routing.empty_ranks = {0};
    plan.rehearsal.bias = RehearsalOptions::Part::present;
    return plan;
}

/// Collective: a new Exchange, `steps` steps with new payload each, all checked.
inline void run_steps(CaseContext& context, const StepPlan& plan) {
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        for (int step = 0; step < plan.steps; ++step) {
            if (step > 0) rehearsal.refill(plan.rehearsal.seed + static_cast<std::uint64_t>(step));
            context.expect_same(rehearsal.step(plan.mode, stream.get()),
                                fmt::format("step {}", step));
        }
    }
    exchange->close();
}

}  // namespace gimlet::mpi_tests

// SPDX-License-Identifier: Apache-2.0
// Bad input: an error that names value, limit and rank, on every rank that it concerns, and nothing
// half-made.
#include <limits>

#include "host/cuda/buffer.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

/// Creation fails everywhere with this code and text, and the next one works.
void creation_fails(CaseContext& context, const MoeConfig& config, ErrorCode code,
                    const std::vector<std::string>& parts) {
    context.expect_error(code, parts, [&] { (void)context.runtime().create_exchange(config); });
}

void bad_configs(CaseContext& context) {
    MoeConfig config = small_config(context.size());
    config.topk = 33;
    config.hidden = 7;
    config.max_tokens = 0;
    creation_fails(context, config, ErrorCode::invalid_argument,
                   {"3 faults", "topk is 33; it must be 1..32", "14 bytes, not a multiple of 16",
                    "max_tokens is 0"});
    config = small_config(context.size());
    config.max_tokens = std::numeric_limits<std::int32_t>::max();
    config.topk = 1;
    config.hidden = 8;
    creation_fails(context, config, ErrorCode::invalid_argument, {"max_tokens"});
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    run_steps(context, plan);
}

void ranks_disagree(CaseContext& context) {
    struct Difference {
        const char* field;
        std::function<void(MoeConfig*)> change;
    };
    const std::vector<Difference> differences = {
        {"expert_count", [](MoeConfig* c) { c->expert_count += 1; }},
        {"topk", [](MoeConfig* c) { c->topk -= 1; }},
        {"hidden", [](MoeConfig* c) { c->hidden *= 2; }},
        {"max_tokens", [](MoeConfig* c) { c->max_tokens -= 1; }},
        {"combine_type", [](MoeConfig* c) { c->combine_type = ElementType::float32; }},
        {"layout", [](MoeConfig* c) { c->layout = Layout::expert_major; }},
        {"chunk_rows", [](MoeConfig* c) { c->chunk_rows = 5; }},
        {"deadline_ns", [](MoeConfig* c) { c->deadline_ns = 77; }},
    };
    const int odd = context.size() - 1;
    for (const auto& difference : differences) {
        MoeConfig config = small_config(context.size());
        if (context.rank() == odd) difference.change(&config);
        // With two ranks it is a tie, and rank 0's value counts as right.
        creation_fails(context, config, ErrorCode::config_mismatch,
                       {difference.field, fmt::format("rank {}", odd)});
    }
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    run_steps(context, plan);
}

void faulty_on_one_rank(CaseContext& context) {
    const int odd = context.size() - 1;
    MoeConfig config = small_config(context.size());
    if (context.rank() == odd) config.topk = 40;
    const bool own = context.rank() == odd;
    std::vector<std::string> parts = {"topk is 40; it must be 1..32"};
    if (!own) parts.push_back(fmt::format("failed on rank {}", odd));
    creation_fails(context, config, own ? ErrorCode::invalid_argument : ErrorCode::peer_failed,
                   parts);
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    run_steps(context, plan);
}

void bad_calls(CaseContext& context) {
    const MoeConfig config = small_config(context.size());
    const auto exchange = context.runtime().create_exchange(config);
    const Stream stream = Stream::create(context.rank());
    {
        Routing routing = exchange->make_routing();
        Routing empty;
        DeviceBuffer<std::byte> rows(4096, context.rank());
        DispatchInputs inputs;
        const auto refuses = [&](const std::vector<std::string>& parts) {
            auto all = parts;
            all.push_back(fmt::format("rank {}", context.rank()));
            context.expect_error(ErrorCode::invalid_argument, all, [&] {
                exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
            });
            exchange->recover();
        };
        inputs.token_count = config.max_tokens + 1;
        refuses({"token_count is 17", "0..16"});
        inputs.token_count = -1;
        refuses({"token_count is -1"});
        inputs.token_count = 1;
        refuses({"rows is null with token_count 1"});
        inputs.rows = rows.get();
        refuses({"expert_indices is null"});
        inputs.expert_indices = rows.get();
        inputs.rows = rows.get() + 8;
        refuses({"rows is at address", "multiple of 16"});
        inputs.rows = rows.get();
        inputs.scales = reinterpret_cast<const std::uint32_t*>(rows.get());
        refuses({"scale_words 0"});
        context.expect_error(ErrorCode::invalid_argument, {"routing is empty"}, [&] {
            exchange->dispatch({}, &empty, CountMode::device, stream.get());
        });
        exchange->recover();
        context.expect_error(ErrorCode::invalid_usage, {"no dispatch has filled"},
                             [&] { exchange->dispatch_cached({}, &routing, stream.get()); });
        exchange->recover();
        context.expect_error(ErrorCode::invalid_usage, {"no dispatch has filled"},
                             [&] { exchange->combine({}, routing, stream.get()); });
        exchange->recover();
        const RoutingTable table = generate_routing(small_routing(config, context.size()));
        Rehearsal rehearsal(*exchange, table);
        context.expect_same(rehearsal.step(CountMode::device, stream.get()), "after refused calls");
        Rehearsal second(*exchange, table);
        second.dispatch(CountMode::device, stream.get());
        second.dispatch(CountMode::device, stream.get());
        context.expect_error(ErrorCode::invalid_usage, {"are gone"},
                             [&] { (void)exchange->received(rehearsal.routing()); });
        exchange->synchronize(stream.get());
    }
    exchange->close();
}

/// Rank `bad_rank` names the experts given; everybody else's input is good.
void bad_expert(CaseContext& context, const std::vector<std::int32_t>& first_row,
                const std::string& words) {
    MoeConfig config = small_config(context.size());
    config.deadline_ns = 5000000000;
    const auto exchange = context.runtime().create_exchange(config);
    const Stream stream = Stream::create(context.rank());
    const int bad_rank = context.size() - 1;
    const bool bad = context.rank() == bad_rank;
    {
        std::vector<std::int32_t> indices(6, -1);
        indices[0] = 0;
        if (bad) std::copy(first_row.begin(), first_row.end(), indices.begin() + 3);
        DeviceBuffer<std::int32_t> device_indices(indices.size(), context.rank());
        device_indices.upload(indices);
        DeviceBuffer<std::byte> rows(2 * 128, context.rank());
        rows.fill_bytes(0);
        Routing routing = exchange->make_routing();
        DispatchInputs inputs;
        inputs.rows = rows.get();
        inputs.expert_indices = device_indices.get();
        inputs.token_count = 2;
        const auto code = bad ? ErrorCode::invalid_argument : ErrorCode::peer_failed;
        const std::string part = bad ? words : fmt::format("rank {}", bad_rank);
        context.expect_error(code, {part}, [&] {
            exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
            exchange->synchronize(stream.get());
        });
        context.expect(exchange->health().state == HealthState::failed,
                       "a failed Exchange says that it is well");
        // The same report again, at once.
        context.expect_error(code, {part}, [&] {
            exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
        });
    }
    exchange->close();
    // The device and the runtime survive.
    StepPlan plan = small_plan(context.size());
    plan.steps = 1;
    run_steps(context, plan);
}

void too_many_rows(CaseContext& context) {
    StepPlan plan = small_plan(context.size());
    plan.config.max_recv_rows = 2;
    plan.config.deadline_ns = 5000000000;
    plan.routing.kind = RoutingKind::hot;
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        context.expect_error(ErrorCode::overflow, {"rows would arrive", "holds 2", "max_recv_rows"},
                             [&] {
                                 rehearsal.dispatch(CountMode::device, stream.get());
                                 exchange->synchronize(stream.get());
                             });
    }
    exchange->close();
}

void rank_stays_away(CaseContext& context) {
    StepPlan plan = small_plan(context.size());
    // Long enough for those who come, on a crowded machine.
    plan.config.deadline_ns = 2000000000;
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    const int absent = context.size() - 1;
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        if (context.rank() != absent) {
            context.expect_error(ErrorCode::timeout,
                                 {fmt::format("for rank {}", absent), "count_exchange",
                                  "has not entered this dispatch", "epoch 1"},
                                 [&] {
                                     rehearsal.dispatch(CountMode::host, stream.get());
                                     exchange->synchronize(stream.get());
                                 });
            const auto health = exchange->health();
            context.expect(health.error.has_value() && health.error->peer == absent,
                           "the record names another peer");
        }
    }
    exchange->close();
}

}  // namespace

void add_refusal_cases(std::vector<Case>* cases) {
    cases->push_back({"refusal/bad configs", 1, bad_configs});
    cases->push_back({"refusal/ranks disagree", 2, ranks_disagree});
    cases->push_back({"refusal/faulty on one rank", 2, faulty_on_one_rank});
    cases->push_back({"refusal/bad calls", 1, bad_calls});
    cases->push_back(
        {"refusal/expert too large", 1, [](CaseContext& c) {
             const int e = small_config(c.size()).expert_count;
             bad_expert(
                 c, {-1, e, 0},
                 fmt::format("token 1 names expert {}; it must be -1 (masked) or 0..{}", e, e - 1));
         }});
    cases->push_back({"refusal/expert below -1", 1, [](CaseContext& c) {
                          bad_expert(c, {-2, 0, 1}, "token 1 names expert -2");
                      }});
    cases->push_back({"refusal/expert named twice", 1, [](CaseContext& c) {
                          bad_expert(c, {1, 0, 1}, "token 1 names expert 1 twice");
                      }});
    cases->push_back({"refusal/more rows than fit", 1, too_many_rows});
    cases->push_back({"refusal/a rank stays away", 2, rank_stays_away});
}

}  // namespace gimlet::mpi_tests

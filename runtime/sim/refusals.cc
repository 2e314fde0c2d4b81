// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/refusals.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/engine.hpp"
#include "runtime/exchange.hpp"
#include "runtime/leftovers.hpp"
#include "runtime/runtime.hpp"
#include "runtime/sim/sim_bootstrap.hpp"

namespace gimlet::sim {
namespace {

std::vector<std::int32_t> experts_of(const Scenario& scenario, const RefusalCase& bad, int rank) {
    const std::int32_t count = scenario.config.expert_count;
    std::vector<std::int32_t> out;
    for (std::int32_t t = 0; t < RefusalCase::kTokens; ++t) {
        out.push_back((t + rank) % count);
        out.push_back((t + rank + 3) % count);
    }
    if (rank != bad.rank) return out;
    std::int32_t* const choice = out.data() + 2 * bad.token;
    switch (bad.kind) {
        case RefusalCase::Kind::expert_too_high: choice[1] = count; break;
        case RefusalCase::Kind::expert_below: choice[1] = -2; break;
        case RefusalCase::Kind::expert_twice: choice[1] = choice[0]; break;
        case RefusalCase::Kind::too_many_rows:
        case RefusalCase::Kind::no_output: break;
    }
    return out;
}

struct Answer {
    ErrorCode code = ErrorCode::ok;
    std::string text;
};

template <typename Call>
Answer answer_of(Call&& call) {
    try {
        call();
    } catch (const Error& error) {
        return {error.code(), error.what()};
    }
    return {};
}

/// What the bad rank's own error says.
std::string fault_of(const RefusalCase& bad) {
    return bad.kind == RefusalCase::Kind::no_output ? "out is null"
                                                    : fmt::format("token {}", bad.token);
}

void check_answer(const RefusalCase& bad, int rank, const Answer& answer) {
    const bool crowded = bad.kind == RefusalCase::Kind::too_many_rows;
    const ErrorCode wanted = crowded            ? ErrorCode::overflow
                             : rank == bad.rank ? ErrorCode::invalid_argument
                                                : ErrorCode::peer_failed;
    const std::string word = crowded            ? "rows"
                             : rank == bad.rank ? fault_of(bad)
                                                : fmt::format("rank {}", bad.rank);
    if (answer.code == wanted && answer.text.find(word) != std::string::npos) return;
    throw std::runtime_error(fmt::format("rank {}: expected {} with \"{}\", got {}: {}", rank,
                                         error_code_name(wanted), word,
                                         error_code_name(answer.code), answer.text));
}

/// A failed step publishes nothing: nobody has said that its rows have arrived.
void check_nothing_announced(const std::byte* window, const Plan& plan, int rank) {
    std::vector<std::uint64_t> arrival(static_cast<std::size_t>(plan.shape.rank_count));
    detail::device_copy(arrival.data(), window + plan.workspace.dispatch_arrival,
                        arrival.size() * sizeof(std::uint64_t), rank);
    for (std::size_t source = 0; source < arrival.size(); ++source) {
        if (arrival[source] == 0) continue;
        throw std::runtime_error(
            fmt::format("rank {}: rank {} has announced rows of a failed step", rank, source));
    }
}

void run_rank(const Scenario& scenario, const RefusalCase& bad, int rank) {
    auto runtime = Runtime::create(make_sim_bootstrap(rank));
    auto exchange = Exchange::create(*runtime, scenario.config);
    const Stream stream = Stream::create(rank);
    Routing routing = exchange->make_routing();
    DeviceBuffer<std::byte> rows(RefusalCase::kTokens * dispatch_row_bytes(scenario.config));
    rows.fill_bytes(0);
    const std::vector<std::int32_t> host_experts = experts_of(scenario, bad, rank);
    DeviceBuffer<std::int32_t> experts(host_experts.size());
    experts.upload(host_experts);
    DispatchInputs inputs;
    inputs.rows = rows.get();
    inputs.expert_indices = experts.get();
    inputs.token_count = RefusalCase::kTokens;
    DeviceBuffer<std::byte> out(RefusalCase::kTokens * combine_row_bytes(scenario.config));
    CombineInputs outputs;
    outputs.out = out.get();
    const auto dispatch = [&] {
        exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
    };
    const auto combine = [&] { exchange->combine(outputs, routing, stream.get()); };
    const std::byte* const window = exchange->combine_input() -
                                    exchange->plan().regions.rank_skew(rank) -
                                    exchange->plan().regions.combine_rows[1 % kBufferCount];
    emu::host_barrier();
    const emu::Engine& engine = emu::Engine::get();
    const std::uint64_t from_ns = engine.now_ns();
    const bool in_combine = bad.kind == RefusalCase::Kind::no_output;
    if (in_combine) {
        dispatch();
        combine();
        if (rank != bad.rank) exchange->synchronize(stream.get());
    }
    const Answer first = answer_of([&] {
        if (rank == bad.rank) outputs.out = nullptr;
        in_combine ? combine() : dispatch();
        // What is queued behind it must not reach peers that are still in the bad step.
        for (int i = 0; rank == bad.rank && i < 4; ++i) dispatch();
        exchange->synchronize(stream.get());
    });
    check_answer(bad, rank, first);
    const std::uint64_t took_ns = engine.now_ns() - from_ns;
    if (took_ns >= exchange->plan().deadline_ns) {
        throw std::runtime_error(
            fmt::format("rank {}: heard of the refusal after {} ns only", rank, took_ns));
    }
    const Answer again = answer_of(dispatch);
    if (again.code != first.code) {
        throw std::runtime_error(fmt::format("rank {}: the next call says {} instead of {}", rank,
                                             error_code_name(again.code),
                                             error_code_name(first.code)));
    }
    cuda_check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize", rank);
    emu::host_barrier();
    if (!in_combine) check_nothing_announced(window, exchange->plan(), rank);
    exchange->abort();
    runtime->abort();
}

}  // namespace

emu::SimReport run_refusal(const Scenario& given, const RefusalCase& bad) {
    Scenario scenario = given;
    if (bad.kind == RefusalCase::Kind::too_many_rows) scenario.config.max_recv_rows = 1;
    retire_leftovers();
    return emu::simulate(scenario.sim, [&](int rank) { run_rank(scenario, bad, rank); });
}

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
// Lesson: experts that start before dispatch has ended. Rows stream through rings of a few rows
// (Sync::fifo); a grouped GEMM on a stream of its own takes each block of rows as soon as it is
// complete; the answers go home through the same rings.
//
//   mpirun -n 4 gimlet_example_streamed_experts
//
// The tensors for received rows and answers are the program's own (StreamTensors::caller), so the
// library's memory does not depend on the number of tokens.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "host/bootstrap/mpi_bootstrap.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/stream.hpp"
#include "mpi_tests/examples/kernels.hpp"
#include "runtime/exchange.hpp"
#include "runtime/runtime.hpp"

namespace {

using namespace gimlet;
using namespace gimlet::examples;

constexpr int kHidden = kServingHidden;
constexpr int kTopk = 2;
constexpr int kExperts = 6;
constexpr int kTokens = 200;  // through rings of 4 rows
constexpr int kSteps = 3;

float element(int rank, int token, int column) {
    return static_cast<float>(1 + (rank + token + column) % 4);
}

std::int32_t chosen_expert(int token, int choice) {
    return (token * 5 + choice * 3) % kExperts;
}

MoeConfig model_config() {
    MoeConfig config;
    config.expert_count = kExperts;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    config.dispatch_type = config.combine_type = ElementType::float32;
    config.layout = Layout::expert_major;
    config.sync = Sync::fifo;
    config.tensors = StreamTensors::caller;
    config.chunks.nvl_recv = 4;
    config.ready_rows = 16;  // rows that a block of the GEMM takes
    return config;
}

std::vector<float> expected_output(int rank) {
    std::vector<float> out(kTokens * kHidden, 0.0F);
    for (int t = 0; t < kTokens; ++t) {
        for (int choice = 0; choice < kTopk; ++choice) {
            for (int k = 0; k < kHidden; ++k) {
                const int column = (k + 1) % kHidden;
                out[static_cast<std::size_t>(t * kHidden + column)] +=
                    element(rank, t, k) * expert_weight(chosen_expert(t, choice), k, column);
            }
        }
    }
    return out;
}

int run(std::shared_ptr<Bootstrap> bootstrap) {
    const int rank = bootstrap->rank();
    cuda_check(cudaSetDevice(rank % device_count(rank)), "cudaSetDevice", rank);
    const auto runtime = Runtime::create(bootstrap);
    const auto exchange = runtime->create_exchange(model_config());
    const Plan& plan = exchange->plan();
    const Stream stream = Stream::create(rank);
    const Stream experts_stream = Stream::create(rank);
    Event answered = Event::create(EventTiming::off, rank);
    Event free_again = Event::create(EventTiming::off, rank);
    Routing routing = exchange->make_routing();

    const auto capacity = static_cast<std::size_t>(plan.row_capacity);
    DeviceBuffer<float> received_rows(capacity * kHidden, rank);
    DeviceBuffer<std::byte> records(capacity * plan.token_layout.record_bytes(), rank);
    DeviceBuffer<float> answers(capacity * kHidden, rank);
    DeviceBuffer<float> tokens(kTokens * kHidden, rank);
    DeviceBuffer<std::int32_t> experts(kTokens * kTopk, rank);
    DeviceBuffer<float> result(kTokens * kHidden, rank);
    std::vector<float> rows;
    std::vector<std::int32_t> chosen;
    for (int t = 0; t < kTokens; ++t) {
        for (int c = 0; c < kHidden; ++c) rows.push_back(element(rank, t, c));
        for (int choice = 0; choice < kTopk; ++choice) chosen.push_back(chosen_expert(t, choice));
    }
    tokens.upload(rows);
    experts.upload(chosen);

    int wrong = 0;
    for (int step = 0; step < kSteps; ++step) {
        // 1. The experts' stream may overwrite the answers once the step before has used them.
        free_again.record(stream.get());
        free_again.make_wait(experts_stream.get());

        // 2. Dispatch. It returns at once, with a view of what has arrived.
        DispatchInputs inputs;
        inputs.rows = tokens.get();
        inputs.expert_indices = experts.get();
        inputs.token_count = kTokens;
        inputs.out_rows = received_rows.get();
        inputs.out_records = records.get();
        const Received received =
            exchange->dispatch(inputs, &routing, CountMode::device, stream.get());

        // 3. Beside it: the experts, block by block. (It needs SMs of its own: sm_budget.)
        const auto* counts = reinterpret_cast<const std::byte*>(received.step);
        const StreamedGemmArgs gemm{
            received.ready,
            {received_rows.get(), answers.get(), nullptr,
             reinterpret_cast<const std::int32_t*>(counts + plan.step_layout.expert_offsets()),
             plan.experts.local_count(rank), plan.experts.first(rank)}};
        cuda_check(launch_streamed_gemm(gemm, experts_stream.get()), "streamed_gemm", rank);
        answered.record(experts_stream.get());
        answered.make_wait(stream.get());

        // 4. Combine, when dispatch and experts have ended.
        CombineInputs combine;
        combine.out = result.get();
        combine.answers = answers.get();
        exchange->combine(combine, routing, stream.get());
        exchange->synchronize(stream.get());

        std::vector<float> out(kTokens * kHidden);
        result.download(out);
        if (out != expected_output(rank)) ++wrong;
    }
    std::printf("rank %d: %d tokens through rings of %u rows; %d steps of %d came out wrong\n",
                rank, kTokens, plan.stream.slot_count, wrong, kSteps);
    exchange->close();
    runtime->close();
    return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const MpiSession session(&argc, &argv);
    try {
        return run(make_mpi_bootstrap());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        mpi_abort(2);
    }
}

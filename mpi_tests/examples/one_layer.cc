// SPDX-License-Identifier: Apache-2.0
// Lesson: one MoE layer, from process start to its end.
//
//   NCCL_LSA_TEAM_SIZE=2 mpirun -n 4 gimlet_example_one_layer
//
// Each rank has three tokens of 64 bf16 elements, filled with 1.0. Token t goes to experts t and t
// + 1 of four. Every expert returns its rows unchanged, so that each token comes back as 1.0 + 1.0
// when the layout is expert_major.
#include <cuda_runtime.h>

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
#include "runtime/exchange.hpp"
#include "runtime/runtime.hpp"

namespace {

constexpr int kTokens = 3;
constexpr int kHidden = 64;
constexpr int kTopk = 2;
constexpr std::uint16_t kOne = 0x3f80;  // bf16
constexpr std::uint16_t kTwo = 0x4000;

int run(std::shared_ptr<gimlet::Bootstrap> bootstrap) {
    using namespace gimlet;
    const int rank = bootstrap->rank();
    cuda_check(cudaSetDevice(rank % device_count(rank)), "cudaSetDevice", rank);

    // 1. Collective set-up: communicator, then windows and queue pairs for one layer's shape.
    const auto runtime = Runtime::create(bootstrap);
    MoeConfig config;
    config.expert_count = 4;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    config.layout = Layout::expert_major;
    const auto exchange = runtime->create_exchange(config);
    if (rank == 0) std::fputs(exchange->plan().text().c_str(), stdout);

    // 2. The model's tensors: tokens, chosen experts, and a place for the result.
    const Stream stream = Stream::create(rank);
    DeviceBuffer<std::uint16_t> tokens(kTokens * kHidden, rank);
    tokens.upload(std::vector<std::uint16_t>(kTokens * kHidden, kOne));
    DeviceBuffer<std::int32_t> experts(kTokens * kTopk, rank);
    experts.upload(std::vector<std::int32_t>{0, 1, 1, 2, 2, 3});
    DeviceBuffer<std::uint16_t> result(kTokens * kHidden, rank);
    Routing routing = exchange->make_routing();

    // 3. Dispatch. With CountMode::host the number of received rows is known when the call returns.
    DispatchInputs inputs;
    inputs.rows = tokens.get();
    inputs.expert_indices = experts.get();
    inputs.token_count = kTokens;
    const Received received = exchange->dispatch(inputs, &routing, CountMode::host, stream.get());
    const std::size_t bytes =
        static_cast<std::size_t>(received.counts->row_count) * received.row_bytes;

    // 4. The experts' work goes here: read received.rows, write exchange->combine_input(), same row
    // order.
    cuda_check(cudaMemcpyAsync(exchange->combine_input(), received.rows, bytes,
                               cudaMemcpyDeviceToDevice, stream.get()),
               "cudaMemcpyAsync", rank);

    // 5. Combine: every token gets the sum of its experts' answers.
    CombineInputs combine;
    combine.out = result.get();
    exchange->combine(combine, routing, stream.get());
    exchange->synchronize(stream.get());

    std::vector<std::uint16_t> out(kTokens * kHidden);
    result.download(out);
    const bool right = out == std::vector<std::uint16_t>(kTokens * kHidden, kTwo);
    std::printf("rank %d received %d rows; its tokens came back %s\n", rank,
                received.counts->row_count, right ? "right" : "WRONG");

    // 6. Collective end, in the opposite order.
    exchange->close();
    runtime->close();
    return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const gimlet::MpiSession session(&argc, &argv);
    try {
        return run(gimlet::make_mpi_bootstrap());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        gimlet::mpi_abort(2);
    }
}

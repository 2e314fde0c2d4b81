// SPDX-License-Identifier: Apache-2.0
// Lesson: a serving loop. Continuous batching with another T in every step and on every rank,
// experts as one grouped GEMM, and decode steps replayed from CUDA graphs.
//
//   mpirun -n 4 gimlet_example_serving_loop
//
// The model has two MoE layers, which share one Exchange. So every forward pass makes two
// dispatches and two combines: an even number, as graphs need (the two buffers of an Exchange
// alternate). Prefill runs eagerly with the T that it has. Decode pads its batch to the next bucket
// with masked tokens (-1) and replays the bucket's graph; other ranks may replay another bucket in
// the same step.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
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

using namespace gimlet::examples;

constexpr int kLayers = 2;
constexpr int kHidden = kServingHidden;
constexpr int kTopk = 2;
constexpr int kExperts = 6;
constexpr int kMaxTokens = 12;
constexpr int kBuckets[] = {4, 8};

/// The fake router: two different experts for a token of a request.
std::int32_t chosen_expert(int token_id, int layer, int choice) {
    return (token_id * 5 + layer * 3 + choice) % kExperts;
}

float first_value(int token_id, int column) {
    return static_cast<float>(1 + (token_id + column) % 4);
}

/// What both layers must make of a token.
std::vector<float> expected_token(int token_id) {
    std::vector<float> row(kHidden);
    for (int c = 0; c < kHidden; ++c) row[static_cast<std::size_t>(c)] = first_value(token_id, c);
    for (int layer = 0; layer < kLayers; ++layer) {
        std::vector<float> next(kHidden, 0.0F);
        for (int choice = 0; choice < kTopk; ++choice) {
            const int expert = chosen_expert(token_id, layer, choice);
            for (int k = 0; k < kHidden; ++k) {
                const auto to = static_cast<std::size_t>((k + 1) % kHidden);
                next[to] +=
                    row[static_cast<std::size_t>(k)] * expert_weight(expert, k, (k + 1) % kHidden);
            }
        }
        row = next;
    }
    return row;
}

gimlet::MoeConfig model_config() {
    gimlet::MoeConfig config;
    config.expert_count = kExperts;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kMaxTokens;
    config.dispatch_type = gimlet::ElementType::float32;
    config.combine_type = gimlet::ElementType::float32;
    config.layout = gimlet::Layout::expert_major;
    return config;
}

/// One rank's model: fixed tensors, and a graph for each bucket.
class Model {
  public:
    Model(gimlet::Runtime& runtime, const gimlet::Stream& stream)
        : rank_(runtime.rank()),
          stream_(stream.get()),
          exchange_(runtime.create_exchange(model_config())),
          hidden_(kMaxTokens * kHidden, rank_) {
        for (int layer = 0; layer < kLayers; ++layer) {
            routings_.push_back(exchange_->make_routing());
            experts_.emplace_back(kMaxTokens * kTopk, rank_);
        }
        exchange_->reserve();  // before any capture
        for (const int bucket : kBuckets) capture(bucket);
    }

    ~Model() {
        for (const auto& [bucket, graph] : graphs_) {
            gimlet::cuda_warn(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy", rank_);
        }
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    /// Eager, any T.
    bool prefill(const std::vector<int>& token_ids) {
        upload(token_ids, static_cast<int>(token_ids.size()));
        queue_forward(static_cast<int>(token_ids.size()));
        return check(token_ids);
    }

    /// The smallest bucket that holds the batch, padded with masked tokens.
    bool decode(const std::vector<int>& token_ids) {
        const auto at = graphs_.lower_bound(static_cast<int>(token_ids.size()));
        upload(token_ids, at->first);
        gimlet::cuda_check(cudaGraphLaunch(at->second, stream_), "cudaGraphLaunch", rank_);
        return check(token_ids);
    }

    void close() { exchange_->close(); }

  private:
    /// Layer by layer: dispatch, experts, combine back into the hidden state.
    void queue_forward(int token_count) {
        for (int layer = 0; layer < kLayers; ++layer) {
            gimlet::Routing& routing = routings_[static_cast<std::size_t>(layer)];
            gimlet::DispatchInputs inputs;
            inputs.rows = hidden_.get();
            inputs.expert_indices = experts_[static_cast<std::size_t>(layer)].get();
            inputs.token_count = token_count;
            const gimlet::Received received =
                exchange_->dispatch(inputs, &routing, gimlet::CountMode::device, stream_);
            queue_experts(received);
            gimlet::CombineInputs combine;
            combine.out = hidden_.get();
            exchange_->combine(combine, routing, stream_);
        }
    }

    void queue_experts(const gimlet::Received& received) {
        const gimlet::Plan& plan = exchange_->plan();
        const auto* step = reinterpret_cast<const std::byte*>(received.step);
        GemmArgs args{};
        args.rows = reinterpret_cast<const float*>(received.rows);
        args.answers = reinterpret_cast<float*>(exchange_->combine_input());
        args.row_count =
            reinterpret_cast<const std::int32_t*>(step + offsetof(gimlet::StepCounts, row_count));
        args.expert_ends =
            reinterpret_cast<const std::int32_t*>(step + plan.step_layout.expert_offsets());
        args.local_experts = plan.experts.local_count(rank_);
        args.first_expert = plan.experts.first(rank_);
        gimlet::cuda_check(launch_expert_gemm(args, stream_), "expert_gemm", rank_);
    }

    void capture(int bucket) {
        gimlet::cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                           "cudaStreamBeginCapture", rank_);
        queue_forward(bucket);
        cudaGraph_t graph = nullptr;
        gimlet::cuda_check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture", rank_);
        exchange_->end_capture();  // refuses an odd number of steps
        gimlet::cuda_check(cudaGraphInstantiate(&graphs_[bucket], graph, 0), "cudaGraphInstantiate",
                           rank_);
        gimlet::cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy", rank_);
    }

    /// Embeddings and routing of the batch; -1 for the padding.
    void upload(const std::vector<int>& token_ids, int padded_count) {
        std::vector<float> rows;
        for (const int id : token_ids) {
            for (int c = 0; c < kHidden; ++c) rows.push_back(first_value(id, c));
        }
        hidden_.upload(rows);
        for (int layer = 0; layer < kLayers; ++layer) {
            std::vector<std::int32_t> indices(static_cast<std::size_t>(padded_count * kTopk), -1);
            for (std::size_t t = 0; t < token_ids.size(); ++t) {
                for (int choice = 0; choice < kTopk; ++choice) {
                    indices[t * kTopk + static_cast<std::size_t>(choice)] =
                        chosen_expert(token_ids[t], layer, choice);
                }
            }
            experts_[static_cast<std::size_t>(layer)].upload(indices);
        }
    }

    bool check(const std::vector<int>& token_ids) {
        exchange_->synchronize(stream_);
        std::vector<float> rows(token_ids.size() * kHidden);
        hidden_.download(rows);
        std::vector<float> expected;
        for (const int id : token_ids) {
            const auto token = expected_token(id);
            expected.insert(expected.end(), token.begin(), token.end());
        }
        return rows == expected;
    }

    int rank_;
    cudaStream_t stream_;
    std::unique_ptr<gimlet::Exchange> exchange_;
    gimlet::DeviceBuffer<float> hidden_;
    std::vector<gimlet::Routing> routings_;
    std::vector<gimlet::DeviceBuffer<std::int32_t>> experts_;
    std::map<int, cudaGraphExec_t> graphs_;
};

/// Requests come, live for some steps, and go. Every step is a prefill on all ranks or a decode on
/// all ranks: the scheduler's agreement, as the same calls come in the same order everywhere.
int serve(Model* model, int rank) {
    std::vector<int> running;  // one token a request and step
    int next_id = 100 * rank;
    int wrong = 0;
    int served = 0;
    for (int step = 0; step < 12; ++step) {
        if (step % 3 == 0) {
            // Rank r has (step + r) % 4 new prompts, of 2 tokens each: on some ranks none.
            std::vector<int> prompt;
            for (int i = 0; i < (step + rank) % 4; ++i) {
                running.push_back(next_id);
                prompt.push_back(next_id++);
                prompt.push_back(next_id++);
            }
            served += static_cast<int>(prompt.size());
            if (!model->prefill(prompt)) ++wrong;
            continue;
        }
        if (!running.empty() && step % 2 == 0) running.erase(running.begin());
        if (running.size() > 8) running.resize(8);
        for (int& id : running) ++id;
        served += static_cast<int>(running.size());
        if (!model->decode(running)) ++wrong;
    }
    std::printf("rank %d served %d tokens; %d steps of 12 came out wrong\n", rank, served, wrong);
    return wrong == 0 ? 0 : 1;
}

int run(std::shared_ptr<gimlet::Bootstrap> bootstrap) {
    const int rank = bootstrap->rank();
    gimlet::cuda_check(cudaSetDevice(rank % gimlet::device_count(rank)), "cudaSetDevice", rank);
    const auto runtime = gimlet::Runtime::create(bootstrap);
    const gimlet::Stream stream = gimlet::Stream::create(rank);
    Model model(*runtime, stream);
    const int status = serve(&model, rank);
    model.close();
    runtime->close();
    return status;
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

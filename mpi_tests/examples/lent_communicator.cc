// SPDX-License-Identifier: Apache-2.0
// Lesson: a framework that has an NCCL communicator already lends it, and goes on using it.
//
//   mpirun -n 4 gimlet_example_lent_communicator
//
// `Framework` stands for the other library: it owns the communicator, a window, and a kernel of its
// own that sums gradients over all ranks with NCCL's device API. Its all-reduce runs between the
// dispatch and the combine of every step, on the same stream and on another one. Gimlet never
// finalises or destroys what it was lent. Needs ranks that reach each other by loads and stores.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
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

constexpr int kCount = 48;

void must(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result));
    }
}

/// The other library.
class Framework {
  public:
    explicit Framework(gimlet::Bootstrap& bootstrap)
        : rank_(bootstrap.rank()), size_(bootstrap.size()), sums_(kCount, rank_) {
        ncclUniqueId id{};
        if (rank_ == 0) must(ncclGetUniqueId(&id), "ncclGetUniqueId");
        bootstrap.broadcast(&id, sizeof id, 0);
        must(ncclCommInitRank(&comm_, size_, id, rank_), "ncclCommInitRank");
        must(ncclMemAlloc(&gradients_, kBytes), "ncclMemAlloc");
        must(ncclCommWindowRegister(comm_, gradients_, kBytes, &window_, NCCL_WIN_COLL_SYMMETRIC),
             "ncclCommWindowRegister");
        ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
        requirements.lsaBarrierCount = 1;
        must(ncclDevCommCreate(comm_, &requirements, &dev_comm_), "ncclDevCommCreate");
        if (dev_comm_.lsaSize != size_) throw std::runtime_error("ranks outside the LSA team");
    }

    ncclComm_t comm() const { return comm_; }

    /// Collective on the device.
    void all_reduce(float value, cudaStream_t stream) {
        const std::vector<float> mine(kCount, value);
        gimlet::cuda_check(
            cudaMemcpyAsync(gradients_, mine.data(), kBytes, cudaMemcpyHostToDevice, stream),
            "cudaMemcpyAsync", rank_);
        gimlet::cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank_);
        gimlet::cuda_check(
            gimlet::examples::launch_sum_gradients(window_, sums_.get(), kCount, dev_comm_, stream),
            "sum_gradients", rank_);
    }

    bool sums_are(float expected, cudaStream_t stream) {
        gimlet::cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank_);
        std::vector<float> sums(kCount);
        sums_.download(sums);
        return sums == std::vector<float>(kCount, expected);
    }

    /// Collective. After the borrower's close().
    void close(gimlet::Bootstrap& bootstrap) {
        bootstrap.barrier();
        must(ncclDevCommDestroy(comm_, &dev_comm_), "ncclDevCommDestroy");
        must(ncclCommWindowDeregister(comm_, window_), "ncclCommWindowDeregister");
        must(ncclMemFree(gradients_), "ncclMemFree");
        must(ncclCommFinalize(comm_), "ncclCommFinalize");
        must(ncclCommDestroy(comm_), "ncclCommDestroy");
    }

  private:
    static constexpr std::size_t kBytes = kCount * sizeof(float);
    int rank_;
    int size_;
    ncclComm_t comm_ = nullptr;
    void* gradients_ = nullptr;
    ncclWindow_t window_ = nullptr;
    ncclDevComm dev_comm_{};
    gimlet::DeviceBuffer<float> sums_;
};

/// Tokens of 1.0 to one expert each, which sends them back.
class Layer {
  public:
    explicit Layer(gimlet::Runtime& runtime)
        : rank_(runtime.rank()), tokens_(kCount, rank_), experts_(kTokens, rank_) {
        gimlet::MoeConfig config;
        config.expert_count = runtime.size();
        config.topk = 1;
        config.hidden = kHidden;
        config.max_tokens = kTokens;
        config.dispatch_type = gimlet::ElementType::float32;
        config.combine_type = gimlet::ElementType::float32;
        exchange_ = runtime.create_exchange(config);
        routing_ = exchange_->make_routing();
        experts_.upload(std::vector<std::int32_t>(
            kTokens, (rank_ + 1) % static_cast<std::int32_t>(runtime.size())));
    }

    void dispatch(float value, cudaStream_t stream) {
        tokens_.upload(std::vector<float>(kCount, value));
        gimlet::DispatchInputs inputs;
        inputs.rows = tokens_.get();
        inputs.expert_indices = experts_.get();
        inputs.token_count = kTokens;
        const auto received =
            exchange_->dispatch(inputs, &routing_, gimlet::CountMode::host, stream);
        const std::size_t bytes =
            static_cast<std::size_t>(received.counts->row_count) * received.row_bytes;
        gimlet::cuda_check(cudaMemcpyAsync(exchange_->combine_input(), received.rows, bytes,
                                           cudaMemcpyDeviceToDevice, stream),
                           "cudaMemcpyAsync", rank_);
    }

    bool combine(float value, cudaStream_t stream) {
        gimlet::CombineInputs inputs;
        inputs.out = tokens_.get();
        exchange_->combine(inputs, routing_, stream);
        exchange_->synchronize(stream);
        std::vector<float> out(kCount);
        tokens_.download(out);
        return out == std::vector<float>(kCount, value);
    }

    void close() { exchange_->close(); }

  private:
    static constexpr int kHidden = 16;
    static constexpr int kTokens = kCount / kHidden;
    int rank_;
    gimlet::DeviceBuffer<float> tokens_;
    gimlet::DeviceBuffer<std::int32_t> experts_;
    std::unique_ptr<gimlet::Exchange> exchange_;
    gimlet::Routing routing_;
};

int run(std::shared_ptr<gimlet::Bootstrap> bootstrap) {
    const int rank = bootstrap->rank();
    const int size = bootstrap->size();
    gimlet::cuda_check(cudaSetDevice(rank % gimlet::device_count(rank)), "cudaSetDevice", rank);
    Framework framework(*bootstrap);
    const auto runtime = gimlet::Runtime::adopt(framework.comm(), bootstrap);
    Layer layer(*runtime);
    const gimlet::Stream stream = gimlet::Stream::create(rank);
    const gimlet::Stream other = gimlet::Stream::create(rank);
    bool right = true;
    for (int step = 1; step <= 4; ++step) {
        const auto value = static_cast<float>(step);
        const cudaStream_t theirs = step % 2 == 0 ? stream.get() : other.get();
        layer.dispatch(value, stream.get());
        framework.all_reduce(value, theirs);
        right = layer.combine(value, stream.get()) && right;
        right = framework.sums_are(value * static_cast<float>(size), theirs) && right;
    }
    layer.close();
    runtime->close();
    // The communicator is still the framework's.
    framework.all_reduce(7, stream.get());
    right = framework.sums_are(7.0F * static_cast<float>(size), stream.get()) && right;
    framework.close(*bootstrap);
    std::printf("rank %d: steps and all-reduces came out %s\n", rank, right ? "right" : "WRONG");
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

// SPDX-License-Identifier: Apache-2.0
// What a step costs the caller's thread: no allocation, and no wait for the device.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "host/base/version.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/check.hpp"
#include "mpi_tests/cases/support.hpp"

namespace {

// The whole program's operator new counts for the thread that asks.
thread_local bool counts_news = false;
thread_local int news = 0;

}  // namespace

void* operator new(std::size_t bytes) {
    if (counts_news) ++news;
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace gimlet::mpi_tests {
namespace {

/// Holds a stream up until it is let go.
class Gate {
  public:
    explicit Gate(cudaStream_t stream) {
        cuda_check(cudaLaunchHostFunc(stream, hold, this), "cudaLaunchHostFunc");
    }
    ~Gate() { open(); }
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;

    void open() { open_ = true; }
    /// Whether what is queued behind it cannot have begun.
    bool held() const { return !expired_; }

  private:
    static void hold(void* self) {
        auto* const gate = static_cast<Gate*>(self);
        const auto due = std::chrono::steady_clock::now() + std::chrono::seconds(5);
        while (!gate->open_ && !gate->expired_) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            if (std::chrono::steady_clock::now() >= due) gate->expired_ = true;
        }
    }

    std::atomic<bool> open_{false};
    std::atomic<bool> expired_{false};
};

/// One token is enough: what a call does on the host does not depend on T.
struct HotPath {
    Exchange& exchange;
    cudaStream_t stream;
    Routing routing;
    DeviceBuffer<std::byte> rows;
    DeviceBuffer<std::int32_t> experts;
    DeviceBuffer<std::byte> out;
    DispatchInputs inputs;
    CombineInputs outputs;

    HotPath(Exchange& of, cudaStream_t on)
        : exchange(of),
          stream(on),
          routing(of.make_routing()),
          rows(dispatch_row_bytes(of.plan().config)),
          experts(static_cast<std::size_t>(of.plan().config.topk)),
          out(combine_row_bytes(of.plan().config)) {
        rows.fill_bytes(0);
        std::vector<std::int32_t> choices(static_cast<std::size_t>(of.plan().config.topk));
        for (std::size_t k = 0; k < choices.size(); ++k) choices[k] = static_cast<std::int32_t>(k);
        experts.upload(choices);
        inputs.rows = rows.get();
        inputs.expert_indices = experts.get();
        inputs.token_count = 1;
        outputs.out = out.get();
    }
    void fresh() {
        exchange.dispatch(inputs, &routing, CountMode::device, stream);
        exchange.combine(outputs, routing, stream);
    }
    void cached() {
        exchange.dispatch_cached(inputs, &routing, stream);
        exchange.combine(outputs, routing, stream);
    }
};

void calls_cost_nothing(CaseContext& context) {
    StepPlan plan = small_plan(context.size());
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        HotPath path(*exchange, stream.get());
        for (int i = 0; i < 3; ++i) {
            path.fresh();
            path.cached();
        }
        exchange->synchronize(stream.get());
        bool held = false;
        {
            Gate gate(stream.get());
            news = 0;
            counts_news = true;
            for (int i = 0; i < 4; ++i) {
                path.fresh();
                path.cached();
            }
            counts_news = false;
            held = gate.held();
            gate.open();
            exchange->synchronize(stream.get());
        }
        context.expect(held, "a call waited for the stream that it was queued on");
        // Every launch of the emulator's allocates.
        if (std::string(backend_name()) != "emulator")
            context.expect(news == 0, fmt::format("16 calls allocated {} times", news));
    }
    exchange->close();
}

}  // namespace

void add_hot_path_cases(std::vector<Case>* cases) {
    cases->push_back({"steps/calls allocate nothing and wait for nothing", 1, calls_cost_nothing});
}

}  // namespace gimlet::mpi_tests

// SPDX-License-Identifier: Apache-2.0
// Steps inside CUDA graphs.
#include <cuda_runtime.h>

#include "host/base/version.hpp"
#include "host/cuda/check.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

/// A captured graph, ready to be launched.
class Graph {
  public:
    template <typename Body>
    Graph(cudaStream_t stream, int rank, Body body) : rank_(rank) {
        cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                   "cudaStreamBeginCapture", rank);
        body();
        cuda_check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture", rank);
        cuda_check(cudaGraphInstantiate(&exec_, graph_, 0), "cudaGraphInstantiate", rank);
    }
    ~Graph() {
        cuda_warn(cudaGraphExecDestroy(exec_), "cudaGraphExecDestroy", rank_);
        cuda_warn(cudaGraphDestroy(graph_), "cudaGraphDestroy", rank_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch(cudaStream_t stream) const {
        cuda_check(cudaGraphLaunch(exec_, stream), "cudaGraphLaunch", rank_);
    }

  private:
    int rank_;
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t exec_ = nullptr;
};

void queue_step(Rehearsal* rehearsal, cudaStream_t stream) {
    rehearsal->dispatch(CountMode::device, stream);
    rehearsal->repeat_answer(stream);
    rehearsal->combine(stream);
}

void replay(CaseContext& context, Layout layout) {
    StepPlan plan = small_plan(context.size());
    plan.config.layout = layout;
    plan.config.hidden = 16;
    plan.config.max_tokens = plan.routing.token_count = 6;
    plan.routing.masked_choice_fraction = 0.2;
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        // Eager steps before and after: an even number, as the rule says.
        for (int i = 0; i < 2; ++i)
            context.expect_same(rehearsal.step(CountMode::host, stream.get()), "before");
        {
            const Graph graph(stream.get(), context.rank(), [&] {
                queue_step(&rehearsal, stream.get());
                queue_step(&rehearsal, stream.get());
            });
            exchange->end_capture();
            // A replay takes microseconds on a GPU, ten milliseconds on the stand-in.
            const bool emulated = std::string(backend_name()) == "emulator";
            const int replays = context.repeats(emulated ? 200 : 1000, 15);
            for (int i = 0; i < replays; ++i) {
                graph.launch(stream.get());
                if (i % 100 != 0 && i != replays - 1) continue;
                context.expect_same(rehearsal.check_dispatch(stream.get()),
                                    fmt::format("replay {}", i));
                context.expect_same(rehearsal.check_combine(stream.get()),
                                    fmt::format("replay {} combine", i));
                rehearsal.spoil_output();
            }
            for (int i = 0; i < 2; ++i) {
                context.expect_same(rehearsal.step(CountMode::host, stream.get()), "between");
            }
            graph.launch(stream.get());
            context.expect_same(rehearsal.check_combine(stream.get()), "replay after eager steps");
        }
        context.expect(exchange->stats().captured_calls == 4, "captured calls are not counted");
    }
    exchange->close();
}

/// What a capture must not do is refused by name, and leaves the Exchange usable.
void refused(CaseContext& context) {
    const StepPlan plan = small_plan(context.size());
    const auto exchange = context.runtime().create_exchange(plan.config);
    const Stream stream = Stream::create(context.rank());
    const Stream other = Stream::create(context.rank());
    {
        const RoutingTable table = generate_routing(plan.routing);
        Rehearsal rehearsal(*exchange, table, plan.rehearsal);
        {
            const Graph empty(stream.get(), context.rank(), [&] {
                context.expect_error(ErrorCode::invalid_usage, {"reserve()"},
                                     [&] { rehearsal.dispatch(CountMode::device, stream.get()); });
            });
        }
        exchange->reserve();
        {
            const Graph odd(stream.get(), context.rank(), [&] {
                context.expect_error(ErrorCode::invalid_usage, {"host counts", "CountMode::device"},
                                     [&] { rehearsal.dispatch(CountMode::host, stream.get()); });
                rehearsal.dispatch(CountMode::device, stream.get());
            });
            context.expect_error(ErrorCode::invalid_usage,
                                 {"1 dispatches and 0 combines", "even number"},
                                 [&] { exchange->end_capture(); });
        }
        context.expect_same(rehearsal.step(CountMode::device, stream.get()),
                            "after refused captures");
    }
    exchange->close();
}

void barriers(CaseContext& context) {
    const Stream stream = Stream::create(context.rank());
    {
        const Graph graph(stream.get(), context.rank(), [&] {
            context.runtime().barrier(stream.get());
            context.runtime().barrier(stream.get(), 3);
        });
        for (int i = 0; i < context.repeats(200, 10); ++i) graph.launch(stream.get());
        context.runtime().synchronize(stream.get());
    }
}

}  // namespace

void add_graph_cases(std::vector<Case>* cases) {
    cases->push_back(
        {"graph/replays, rank_major", 1, [](CaseContext& c) { replay(c, Layout::rank_major); }});
    cases->push_back({"graph/replays, expert_major", 1,
                      [](CaseContext& c) { replay(c, Layout::expert_major); }});
    cases->push_back({"graph/refused captures", 1, refused});
    cases->push_back({"graph/barriers", 1, barriers});
}

}  // namespace gimlet::mpi_tests

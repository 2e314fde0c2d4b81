// SPDX-License-Identifier: Apache-2.0
// Communicators, windows, barriers.
#include <nccl.h>

#include <cstring>

#include "host/bootstrap/callback_bootstrap.hpp"
#include "host/cuda/check.hpp"
#include "host/nccl/check.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "mpi_tests/cases/support.hpp"

namespace gimlet::mpi_tests {
namespace {

void window(CaseContext& context) {
    Communicator& communicator = context.runtime().communicator();
    WindowLayout layout;
    layout.add("words", 1000);
    layout.add("empty", 0);
    layout.add("rows", 4096, 256);
    const auto first = SymmetricWindow::create(communicator, layout);
    const auto second = SymmetricWindow::create(communicator, layout);
    std::vector<std::uint32_t> words(250, 1);
    cuda_check(cudaMemcpy(words.data(), first->local(), 1000, cudaMemcpyDeviceToHost), "cudaMemcpy",
               context.rank());
    context.expect(words == std::vector<std::uint32_t>(250, 0), "a fresh window is not zero");
    const Topology& topology = context.runtime().topology();
    for (int peer = 0; peer < context.size(); ++peer) {
        const bool lsa = topology.lsa_team_of(peer) == topology.lsa_team_index;
        context.expect((first->peer(peer) != nullptr) == lsa,
                       fmt::format("pointer to rank {}", peer));
    }
    context.expect(first->handle() != second->handle(), "two windows have one handle");
    first->close();
    second->close();
    first->close();
    context.expect_error(ErrorCode::closed, {}, [&] { (void)first->handle(); });
}

void windows_differ(CaseContext& context) {
    WindowLayout layout;
    layout.add("rows", context.rank() == 1 ? 8192 : 4096);
    context.expect_error(ErrorCode::config_mismatch, {"rank 1"}, [&] {
        (void)SymmetricWindow::create(context.runtime().communicator(), layout);
    });
}

void adopted(CaseContext& context) {
    ncclUniqueId id{};
    if (context.rank() == 0) nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId", 0);
    context.bootstrap().broadcast(&id, sizeof id, 0);
    ncclComm_t comm = nullptr;
    nccl_check(ncclCommInitRank(&comm, context.size(), id, context.rank()), "ncclCommInitRank",
               context.rank());
    for (int round = 0; round < 2; ++round) {
        const auto runtime = Runtime::adopt(comm, context.shared_bootstrap());
        context.expect(runtime->communicator().ownership() == Ownership::adopted, "ownership");
        CaseContext inner(context.shared_bootstrap(), runtime.get(), Effort::quick);
        run_steps(inner, small_plan(context.size()));
        for (const auto& failure : inner.failures()) context.expect(false, failure);
        runtime->close();
    }
    nccl_check(ncclCommDestroy(comm), "ncclCommDestroy", context.rank());
    context.expect_error(ErrorCode::invalid_argument, {"null"},
                         [&] { (void)Runtime::adopt(nullptr, context.shared_bootstrap()); });
}

/// Even and odd ranks work apart, at the same time.
void split(CaseContext& context) {
    const std::shared_ptr<Bootstrap> half =
        context.bootstrap().split(context.rank() % 2, context.rank());
    const auto runtime = Runtime::create(half);
    context.expect(runtime->size() == (context.size() + 1 - context.rank() % 2) / 2,
                   "size of the half");
    CaseContext inner(half, runtime.get(), Effort::quick);
    StepPlan plan = small_plan(half->size());
    plan.routing.seed = 100 + static_cast<std::uint64_t>(context.rank() % 2);
    run_steps(inner, plan);
    for (const auto& failure : inner.failures()) context.expect(false, failure);
    runtime->close();
}

void barriers(CaseContext& context) {
    const Stream stream = Stream::create(context.rank());
    const auto before = context.runtime().barrier_count();
    for (int i = 0; i < context.repeats(50, 8); ++i) context.runtime().barrier(stream.get());
    context.runtime().barrier(stream.get(), context.repeats(200, 20));
    context.runtime().synchronize(stream.get());
    const auto issued = context.runtime().barrier_count() - before;
    context.expect(issued == static_cast<std::uint64_t>(context.repeats(250, 28)),
                   fmt::format("{} barriers are counted", issued));
    context.expect_error(ErrorCode::invalid_argument, {"repeat_count is 0"},
                         [&] { context.runtime().barrier(stream.get(), 0); });
    context.runtime().recover();
    const bool bad = context.rank() == 0;
    context.expect_error(bad ? ErrorCode::invalid_argument : ErrorCode::peer_failed,
                         {bad ? "repeat_count is -1" : "rank 0"}, [&] {
                             context.runtime().barrier(stream.get(), bad ? -1 : 2);
                             context.runtime().synchronize(stream.get());
                         });
    context.runtime().recover();
    context.runtime().barrier(stream.get());
    context.runtime().synchronize(stream.get());
}

/// A barrier does not let a rank through before the last one has come.
void late_rank(CaseContext& context) {
    const Stream stream = Stream::create(context.rank());
    if (context.rank() != 0) context.runtime().barrier(stream.get());
    context.bootstrap().barrier();
    if (context.rank() != 0) {
        context.expect(cudaStreamQuery(stream.get()) == cudaErrorNotReady,
                       "the barrier did not wait for rank 0");
    }
    context.bootstrap().barrier();
    if (context.rank() == 0) context.runtime().barrier(stream.get());
    context.runtime().synchronize(stream.get());
}

}  // namespace

void add_communicator_cases(std::vector<Case>* cases) {
    cases->push_back({"communicator/window", 1, window});
    cases->push_back({"communicator/windows that differ", 2, windows_differ});
    cases->push_back({"communicator/barriers", 1, barriers});
    cases->push_back({"communicator/barrier waits for the last rank", 2, late_rank});
    cases->push_back({"communicator/adopted", 1, adopted});
    cases->push_back({"communicator/split", 2, split});
}

}  // namespace gimlet::mpi_tests

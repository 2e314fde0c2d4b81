// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/session.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "host/base/env.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#if GIMLET_WITH_MPI
#include "host/bootstrap/mpi_bootstrap.hpp"
#include "host/nccl/topology.hpp"
#endif

namespace gimlet::cli {
namespace {

constexpr int kFailed = 2;

void print_failure(int rank, const char* what) {
    std::fputs(fmt::format("gimlet: rank {} failed: {}\n", rank, what).c_str(), stderr);
}

int run_threads(int ranks, const std::function<int(std::shared_ptr<Bootstrap>)>& body) {
    const auto group = ThreadGroup::create(ranks);
    std::vector<int> codes(static_cast<std::size_t>(ranks), kFailed);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                cuda_check(cudaSetDevice(rank % device_count(rank)), "cudaSetDevice", rank);
                codes[static_cast<std::size_t>(rank)] = body(group->member(rank));
            } catch (const std::exception& error) {
                print_failure(rank, error.what());
                group->abort(fmt::format("rank {} failed", rank));
            }
        });
    }
    for (auto& thread : threads) thread.join();
    return *std::max_element(codes.begin(), codes.end());
}

#if GIMLET_WITH_MPI
int run_mpi(int* argc, char*** argv, const std::function<int(std::shared_ptr<Bootstrap>)>& body) {
    const MpiSession session(argc, argv);
    std::shared_ptr<Bootstrap> bootstrap = make_mpi_bootstrap();
    try {
        take_device_in_turn(*bootstrap);
        const int code = body(bootstrap);
        const auto codes = bootstrap->all_gather_values(code);
        return *std::max_element(codes.begin(), codes.end());
    } catch (const std::exception& error) {
        print_failure(bootstrap->rank(), error.what());
        // The others may be waiting for this rank in a call that it will not make.
        mpi_abort(kFailed);
    }
}
#endif

}  // namespace

bool under_launcher() {
    return env_is_set(EnvVar::launcher_ompi) || env_is_set(EnvVar::launcher_pmi) ||
           env_is_set(EnvVar::launcher_pmix);
}

int run_ranks(const SessionOptions& options, int* argc, char*** argv,
              const std::function<int(std::shared_ptr<Bootstrap>)>& body) {
#if GIMLET_WITH_MPI
    if (under_launcher()) return run_mpi(argc, argv, body);
#else
    (void)argc;
    (void)argv;
    if (under_launcher()) {
        std::fputs(
            "gimlet: this build has no MPI, so it cannot join the processes of mpirun; use --ranks "
            "N\n",
            stderr);
        return kFailed;
    }
#endif
    return run_threads(options.thread_ranks, body);
}

}  // namespace gimlet::cli

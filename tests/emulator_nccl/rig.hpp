// SPDX-License-Identifier: Apache-2.0
// A small test bench: a simulated world in which every rank has a communicator, a window and a
// device communicator.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {

using emu::GinMode;
using emu::SimFailure;
using emu::SimOptions;
using emu::simulate;

/// Fails the run (not only the test) when a call does not return what it should.
inline void expect(ncclResult_t got, ncclResult_t wanted, const char* call, int line) {
    if (got == wanted) return;
    throw std::runtime_error(std::string(call) + " at line " + std::to_string(line) + ": " +
                             ncclGetErrorString(got) + " (" + ncclGetLastError(nullptr) + ")");
}
#define NCCL_OK(call) ::gimlet::test::expect((call), ncclSuccess, #call, __LINE__)
#define NCCL_GIVES(code, call) ::gimlet::test::expect((call), (code), #call, __LINE__)

inline void verify(bool holds, const char* text, int line) {
    if (!holds)
        throw std::runtime_error(std::string("does not hold at line ") + std::to_string(line) +
                                 ": " + text);
}
/// For checks inside simulations, where a failed REQUIRE would be reported as the run's failure
/// anyway.
#define VERIFY(condition) ::gimlet::test::verify((condition), #condition, __LINE__)

inline void body_kernel(const std::function<void()>* body) {
    (*body)();
}

/// Starts `body` on a grid of the current device and waits for it.
inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& body) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    const std::function<void()>* argument = &body;
    VERIFY(cudaLaunchKernelEx(&config, body_kernel, argument) == cudaSuccess);
    VERIFY(cudaDeviceSynchronize() == cudaSuccess);
}

/// The unique id of a simulation's only communicator, handed out by rank 0.
inline ncclComm_t join_world(int rank, int ranks) {
    ncclUniqueId id = {};
    if (rank == 0) NCCL_OK(ncclGetUniqueId(&id));
    const auto all = emu::host_all_gather(&id, sizeof(id));
    std::memcpy(&id, all[0].data(), sizeof(id));
    ncclComm_t comm = nullptr;
    NCCL_OK(ncclCommInitRank(&comm, ranks, id, rank));
    return comm;
}

/// One rank's things. `words` is the window's memory, zeroed.
struct Rank {
    int rank;
    int ranks;
    ncclComm_t comm = nullptr;
    ncclWindow_t window = nullptr;
    uint64_t* words = nullptr;
    size_t word_count;
    ncclDevComm dev = {};

    Rank(int rank_in, int ranks_in, const ncclDevCommRequirements& reqs, size_t words_in = 1024)
        : rank(rank_in), ranks(ranks_in), word_count(words_in) {
        comm = join_world(rank, ranks);
        void* memory = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, word_count * 8));
        words = static_cast<uint64_t*>(memory);
        std::memset(memory, 0, word_count * 8);
        NCCL_OK(ncclCommWindowRegister(comm, memory, word_count * 8, &window,
                                       NCCL_WIN_STRICT_ORDERING));
        VERIFY(window != nullptr);
        NCCL_OK(ncclDevCommCreate(comm, &reqs, &dev));
    }
    /// Ends in good order: all must be quiet. Not called by tests that leave operations in flight.
    void close() {
        emu::host_barrier();
        NCCL_OK(ncclDevCommDestroy(comm, &dev));
        NCCL_OK(ncclCommWindowDeregister(comm, window));
        emu::host_barrier();
        NCCL_OK(ncclMemFree(words));
        NCCL_OK(ncclCommDestroy(comm));
    }
    void run(const std::function<void()>& body, unsigned threads = 1, unsigned blocks = 1) const {
        launch(blocks, threads, body);
    }
};

inline ncclDevCommRequirements lsa_requirements(int barriers = 4) {
    ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.lsaBarrierCount = barriers;
    return reqs;
}

inline ncclDevCommRequirements gin_requirements(int signals = 8, int counters = 4,
                                                int contexts = 2) {
    ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    reqs.ginSignalCount = signals;
    reqs.ginCounterCount = counters;
    reqs.ginContextCount = contexts;
    return reqs;
}

/// The failure's text; empty when the run ended well.
inline std::string failure_of(const SimOptions& options, const std::function<void(int)>& program) {
    try {
        simulate(options, program);
    } catch (const SimFailure& failure) {
        return failure.what();
    }
    return {};
}

}  // namespace gimlet::test

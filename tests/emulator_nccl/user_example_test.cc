// SPDX-License-Identifier: Apache-2.0
// A program as users of NCCL's device API write it: all-to-all, LSA peers by stores, the others by
// GIN. Only the launch differs from what nvcc would take.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include "tests/emulator_nccl/rig.hpp"
#include "tests/emulator_nccl/user_example.cuh"

using namespace gimlet::test;

namespace {

void exchange(int rank, int ranks, size_t count) {
    ncclComm_t comm = join_world(rank, ranks);
    const size_t bytes = static_cast<size_t>(ranks) * count * sizeof(float);

    void* send_buffer = nullptr;
    void* receive_buffer = nullptr;
    NCCL_OK(ncclMemAlloc(&send_buffer, bytes));
    NCCL_OK(ncclMemAlloc(&receive_buffer, bytes));
    ncclWindow_t send_window, receive_window;
    NCCL_OK(ncclCommWindowRegister(comm, send_buffer, bytes, &send_window, NCCL_WIN_DEFAULT));
    NCCL_OK(ncclCommWindowRegister(comm, receive_buffer, bytes, &receive_window, NCCL_WIN_DEFAULT));

    ncclDevComm dev_comm;
    ncclDevCommRequirements reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.barrierCount = kExampleBlocks;
    reqs.ginSignalCount = kExampleBlocks;
    reqs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    NCCL_OK(ncclDevCommCreate(comm, &reqs, &dev_comm));

    std::vector<float> host(static_cast<size_t>(ranks) * count);
    for (size_t i = 0; i < host.size(); ++i)
        host[i] = static_cast<float>(rank * 1000 + static_cast<int>(i));
    cudaStream_t stream;
    VERIFY(cudaStreamCreate(&stream) == cudaSuccess);
    VERIFY(cudaMemcpyAsync(send_buffer, host.data(), bytes, cudaMemcpyHostToDevice, stream) ==
           cudaSuccess);

    for (int round = 0; round < 2; ++round) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(kExampleBlocks);
        config.blockDim = dim3(kExampleThreads);
        config.stream = stream;
        VERIFY(cudaLaunchKernelEx(&config, all_to_all<float>, send_window, size_t{0},
                                  receive_window, size_t{0}, count, dev_comm) == cudaSuccess);
    }
    VERIFY(cudaMemcpyAsync(host.data(), receive_buffer, bytes, cudaMemcpyDeviceToHost, stream) ==
           cudaSuccess);
    VERIFY(cudaStreamSynchronize(stream) == cudaSuccess);
    for (int peer = 0; peer < ranks; ++peer) {
        for (size_t i = 0; i < count; ++i) {
            const float wanted = static_cast<float>(
                peer * 1000 + static_cast<int>(static_cast<size_t>(rank) * count + i));
            VERIFY(host[static_cast<size_t>(peer) * count + i] == wanted);
        }
    }
    gimlet::emu::host_barrier();
    NCCL_OK(ncclDevCommDestroy(comm, &dev_comm));
    NCCL_OK(ncclCommWindowDeregister(comm, send_window));
    NCCL_OK(ncclCommWindowDeregister(comm, receive_window));
    gimlet::emu::host_barrier();
    NCCL_OK(ncclMemFree(send_buffer));
    NCCL_OK(ncclMemFree(receive_buffer));
    NCCL_OK(ncclCommFinalize(comm));
    NCCL_OK(ncclCommDestroy(comm));
}

}  // namespace

TEST_CASE("a user's all-to-all", "[emulator][nccl][example]") {
    const int team = GENERATE(1, 2, 4);
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        SimOptions options;
        options.ranks = 4;
        options.lsa_team_size = team;
        options.seed = seed;
        options.gin = seed % 2 == 0 ? GinMode::gdaki : GinMode::proxy;
        INFO("seed " << seed << ", LSA teams of " << team);
        REQUIRE(failure_of(options, [](int rank) { exchange(rank, 4, 37); }) == "");
    }
}

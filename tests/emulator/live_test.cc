// SPDX-License-Identifier: Apache-2.0
//
// The live world: real host threads, kernels on the background thread.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "host/emulator/engine.hpp"
#include "tests/emulator/emulator_test.hpp"

namespace gimlet::emu::test {
namespace {

__global__ void sum_into(const int* values, int count, int* total) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
        atomicAdd(total, values[i]);
    }
}

__global__ void wait_then_set(unsigned* flag, unsigned* seen) {
    while (__ldcv(flag) == 0) {
    }
    atomicExch(seen, 1u);
}

}  // namespace

TEST_CASE("live: several host threads, each with its device", "[emulator][live]") {
    std::vector<std::thread> threads;
    std::vector<int> totals(4, -1);
    std::atomic<int> failures{0};
    for (int device = 0; device < 4; ++device) {
        threads.emplace_back([device, &totals, &failures] {
            try {
                EMU_CHECK(cudaSetDevice(device));
                std::vector<int> values(500, device + 1);
                int* on_device = nullptr;
                int* total = nullptr;
                EMU_CHECK(cudaMalloc(&on_device, 2000));
                EMU_CHECK(cudaMalloc(&total, 4));
                EMU_CHECK(cudaMemcpy(on_device, values.data(), 2000, cudaMemcpyHostToDevice));
                EMU_CHECK(cudaMemset(total, 0, 4));
                EMU_CHECK(launch({.block = 64}, sum_into, on_device, 500, total));
                EMU_CHECK(cudaMemcpy(&totals[device], total, 4, cudaMemcpyDeviceToHost));
                EMU_CHECK(cudaFree(on_device));
                EMU_CHECK(cudaFree(total));
            } catch (const std::exception&) {
                ++failures;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(failures == 0);
    for (int device = 0; device < 4; ++device) REQUIRE(totals[device] == 500 * (device + 1));
}

TEST_CASE("live: a kernel waits for a host thread", "[emulator][live]") {
    unsigned* words = nullptr;
    EMU_CHECK(cudaHostAlloc(&words, 8, cudaHostAllocMapped));
    words[0] = words[1] = 0;
    EMU_CHECK(launch({.block = 32}, wait_then_set, words, words + 1));
    REQUIRE(cudaStreamQuery(nullptr) == cudaErrorNotReady);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    __atomic_store_n(words, 1u, __ATOMIC_RELEASE);
    while (cudaStreamQuery(nullptr) == cudaErrorNotReady) {
    }
    REQUIRE(words[1] == 1);
    EMU_CHECK(cudaFreeHost(words));
}

TEST_CASE("live: errors belong to the thread", "[emulator][live]") {
    REQUIRE(cudaSetDevice(10000) == cudaErrorInvalidDevice);
    std::thread([] { REQUIRE(cudaPeekAtLastError() == cudaSuccess); }).join();
    REQUIRE(cudaGetLastError() == cudaErrorInvalidDevice);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    REQUIRE_FALSE(Engine::get().simulating());
    REQUIRE(current_place() == nullptr);
}

TEST_CASE("live and simulated worlds live side by side", "[emulator][live]") {
    int count = 0;
    EMU_CHECK(cudaGetDeviceCount(&count));
    REQUIRE(count >= 4);
    SimOptions options;
    options.ranks = 3;
    simulate(options, [](int rank) {
        int inside = 0;
        int device = -1;
        EMU_CHECK(cudaGetDeviceCount(&inside));
        EMU_CHECK(cudaGetDevice(&device));
        REQUIRE(inside == 3);
        REQUIRE(device == rank);
        REQUIRE(Engine::get().simulating());
        REQUIRE(Engine::get().host_rank() == rank);
    });
}

}  // namespace gimlet::emu::test

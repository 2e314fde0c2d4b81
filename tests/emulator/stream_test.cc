// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "tests/emulator/emulator_test.hpp"

namespace gimlet::emu::test {
namespace {

constexpr uint64_t kSeeds = 40;

__global__ void append(int* list, unsigned* length, int value) {
    if (threadIdx.x == 0) list[atomicAdd(length, 1u)] = value;
}

__global__ void wait_for(unsigned* flag, unsigned value) {
    while (__ldcv(flag) != value) {
    }
}

__global__ void set_flag(unsigned* flag, unsigned value) {
    atomicExch(flag, value);
}

struct Streams {
    explicit Streams(unsigned flags = cudaStreamNonBlocking) {
        EMU_CHECK(cudaStreamCreateWithFlags(&a, flags));
        EMU_CHECK(cudaStreamCreateWithFlags(&b, flags));
        EMU_CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
        EMU_CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    }
    ~Streams() {
        cudaEventDestroy(join);
        cudaEventDestroy(fork);
        cudaStreamDestroy(b);
        cudaStreamDestroy(a);
    }
    cudaStream_t a = nullptr;
    cudaStream_t b = nullptr;
    cudaEvent_t fork = nullptr;
    cudaEvent_t join = nullptr;
};

}  // namespace

TEST_CASE("one stream keeps order, two streams do not", "[emulator][stream]") {
    bool other_first = false;
    bool own_first = false;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [&](int) {
            Streams streams;
            Pinned<int> list(8);
            Pinned<unsigned> length(1);
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 1));
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 2));
            EMU_CHECK(launch({.stream = streams.b}, append, list.get(), length.get(), 10));
            EMU_CHECK(cudaStreamSynchronize(streams.a));
            EMU_CHECK(cudaStreamSynchronize(streams.b));
            REQUIRE(length[0] == 3);
            std::vector<int> of_a;
            for (int i = 0; i < 3; ++i) {
                if (list[i] < 10) of_a.push_back(list[i]);
            }
            REQUIRE(of_a == std::vector<int>{1, 2});
            (list[0] == 10 ? other_first : own_first) = true;
        });
    }
    REQUIRE(other_first);
    REQUIRE(own_first);
}

TEST_CASE("kernels of two streams run at the same time", "[emulator][stream]") {
    simulate(one_rank(4), [](int) {
        Streams streams;
        Pinned<unsigned> flag(1);
        EMU_CHECK(launch({.stream = streams.a}, wait_for, flag.get(), 7u));
        REQUIRE(cudaStreamQuery(streams.a) == cudaErrorNotReady);
        EMU_CHECK(launch({.stream = streams.b}, set_flag, flag.get(), 7u));
        EMU_CHECK(cudaStreamSynchronize(streams.a));
        REQUIRE(cudaStreamQuery(streams.a) == cudaSuccess);
        REQUIRE(cudaGetLastError() == cudaSuccess);
    });
}

TEST_CASE("events order streams", "[emulator][stream]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Streams streams;
            Pinned<int> list(4);
            Pinned<unsigned> length(1);
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 1));
            EMU_CHECK(cudaEventRecord(streams.fork, streams.a));
            EMU_CHECK(cudaStreamWaitEvent(streams.b, streams.fork));
            EMU_CHECK(launch({.stream = streams.b}, append, list.get(), length.get(), 2));
            EMU_CHECK(cudaStreamSynchronize(streams.b));
            REQUIRE(cudaEventQuery(streams.fork) == cudaSuccess);
            REQUIRE(list[0] == 1);
            REQUIRE(list[1] == 2);
        });
    }
}

TEST_CASE("the legacy stream takes turns with blocking streams", "[emulator][stream]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Streams streams(cudaStreamDefault);
            Pinned<int> list(4);
            Pinned<unsigned> length(1);
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 1));
            EMU_CHECK(launch({}, append, list.get(), length.get(), 2));
            EMU_CHECK(launch({.stream = streams.b}, append, list.get(), length.get(), 3));
            EMU_CHECK(cudaDeviceSynchronize());
            for (int i = 0; i < 3; ++i) REQUIRE(list[i] == i + 1);
        });
    }
}

TEST_CASE("elapsed time and host functions", "[emulator][stream]") {
    simulate(one_rank(1), [](int) {
        cudaStream_t stream = nullptr;
        cudaEvent_t start = nullptr;
        cudaEvent_t end = nullptr;
        EMU_CHECK(cudaStreamCreate(&stream));
        EMU_CHECK(cudaEventCreate(&start));
        EMU_CHECK(cudaEventCreate(&end));
        int calls = 0;
        EMU_CHECK(cudaEventRecord(start, stream));
        EMU_CHECK(cudaLaunchHostFunc(
            stream, [](void* count) { ++*static_cast<int*>(count); }, &calls));
        EMU_CHECK(cudaEventRecord(end, stream));
        EMU_CHECK(cudaEventSynchronize(end));
        float elapsed = -1;
        EMU_CHECK(cudaEventElapsedTime(&elapsed, start, end));
        REQUIRE(elapsed >= 0);
        REQUIRE(calls == 1);
        EMU_CHECK(cudaEventDestroy(start));
        EMU_CHECK(cudaEventDestroy(end));
        EMU_CHECK(cudaStreamDestroy(stream));
    });
}

TEST_CASE("a captured fork and join is replayed in order", "[emulator][graph]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            constexpr int kReplays = 5;
            Streams streams;
            Pinned<int> list(4 * kReplays);
            Pinned<unsigned> length(1);
            EMU_CHECK(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeThreadLocal));
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 1));
            EMU_CHECK(cudaEventRecord(streams.fork, streams.a));
            EMU_CHECK(cudaStreamWaitEvent(streams.b, streams.fork));
            EMU_CHECK(launch({.stream = streams.b}, append, list.get(), length.get(), 2));
            EMU_CHECK(cudaEventRecord(streams.join, streams.b));
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 3));
            EMU_CHECK(cudaStreamWaitEvent(streams.a, streams.join));
            EMU_CHECK(launch({.stream = streams.a}, append, list.get(), length.get(), 4));
            cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
            EMU_CHECK(cudaStreamIsCapturing(streams.b, &status));
            REQUIRE(status == cudaStreamCaptureStatusActive);
            cudaGraph_t graph = nullptr;
            EMU_CHECK(cudaStreamEndCapture(streams.a, &graph));
            REQUIRE(length[0] == 0);
            cudaGraphExec_t executable = nullptr;
            EMU_CHECK(cudaGraphInstantiate(&executable, graph));
            EMU_CHECK(cudaGraphDestroy(graph));
            for (int i = 0; i < kReplays; ++i) EMU_CHECK(cudaGraphLaunch(executable, streams.b));
            EMU_CHECK(cudaStreamSynchronize(streams.b));
            EMU_CHECK(cudaGraphExecDestroy(executable));
            REQUIRE(length[0] == 4 * kReplays);
            for (int i = 0; i < kReplays; ++i) {
                REQUIRE(list[4 * i] == 1);
                REQUIRE(list[4 * i + 1] + list[4 * i + 2] == 5);
                REQUIRE(list[4 * i + 3] == 4);
            }
        });
    }
}

TEST_CASE("what a capture forbids", "[emulator][graph]") {
    simulate(one_rank(1), [](int) {
        Streams streams;
        cudaGraph_t graph = nullptr;
        void* memory = nullptr;
        SECTION("allocation, in global mode") {
            EMU_CHECK(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeGlobal));
            REQUIRE(cudaMalloc(&memory, 16) == cudaErrorStreamCaptureUnsupported);
            REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaErrorStreamCaptureInvalidated);
        }
        SECTION("not in relaxed mode") {
            EMU_CHECK(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeRelaxed));
            REQUIRE(cudaMalloc(&memory, 16) == cudaSuccess);
            EMU_CHECK(cudaStreamEndCapture(streams.a, &graph));
            EMU_CHECK(cudaGraphDestroy(graph));
            EMU_CHECK(cudaFree(memory));
        }
        SECTION("synchronisation of the stream") {
            EMU_CHECK(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeRelaxed));
            REQUIRE(cudaStreamSynchronize(streams.a) == cudaErrorStreamCaptureUnsupported);
            REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaErrorStreamCaptureInvalidated);
        }
        SECTION("a fork that does not come back") {
            EMU_CHECK(cudaStreamBeginCapture(streams.a, cudaStreamCaptureModeRelaxed));
            EMU_CHECK(cudaEventRecord(streams.fork, streams.a));
            EMU_CHECK(cudaStreamWaitEvent(streams.b, streams.fork));
            EMU_CHECK(launch({.stream = streams.b}, set_flag, static_cast<unsigned*>(nullptr), 0u));
            REQUIRE(cudaStreamEndCapture(streams.a, &graph) == cudaErrorStreamCaptureUnjoined);
        }
        REQUIRE(cudaStreamQuery(streams.a) == cudaSuccess);
        cudaGetLastError();
    });
}

TEST_CASE("memory calls", "[emulator][memory]") {
    simulate(one_rank(6), [](int) {
        unsigned char* device = nullptr;
        EMU_CHECK(cudaMalloc(&device, 64));
        std::vector<unsigned char> host(64, 1);
        EMU_CHECK(cudaMemcpy(host.data(), device, 64, cudaMemcpyDeviceToHost));
        REQUIRE(host == std::vector<unsigned char>(64, 0x7f));  // fresh memory is poisoned
        EMU_CHECK(cudaMemset(device, 3, 64));
        EMU_CHECK(cudaMemcpy2D(host.data(), 8, device, 16, 4, 3, cudaMemcpyDeviceToHost));
        REQUIRE(host[0] == 3);
        REQUIRE(host[4] == 0x7f);
        REQUIRE(host[19] == 3);
        cudaPointerAttributes attributes{};
        EMU_CHECK(cudaPointerGetAttributes(&attributes, device + 63));
        REQUIRE(attributes.type == cudaMemoryTypeDevice);
        EMU_CHECK(cudaPointerGetAttributes(&attributes, host.data()));
        REQUIRE(attributes.type == cudaMemoryTypeUnregistered);
        REQUIRE(cudaFree(device + 16) == cudaErrorInvalidValue);
        EMU_CHECK(cudaFree(device));
        REQUIRE(cudaMalloc(&device, std::size_t{1} << 40) == cudaErrorMemoryAllocation);
        cudaGetLastError();
    });
}

}  // namespace gimlet::emu::test

// SPDX-License-Identifier: Apache-2.0
// Random operations (rma_player.hpp) for threads and processes, host and device memory.
#include <cstdlib>

#include "tests/rma/rma_player.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet::test;

TEST_CASE("rma: random operations on host memory", "[rma]") {
    play({2, RankKind::threads, MemoryPlace::host, 1, 400});
    play({8, RankKind::threads, MemoryPlace::host, 2, 200});
    play({2, RankKind::processes, MemoryPlace::host, 3, 400});
    play({3, RankKind::processes, MemoryPlace::host, 4, 300});
    play({8, RankKind::processes, MemoryPlace::host, 5, 100});
}

TEST_CASE("rma: random operations on device memory of the stand-in driver", "[rma]") {
    play({1, RankKind::threads, MemoryPlace::device, 11, 300});
    play({2, RankKind::threads, MemoryPlace::device, 12, 400});
    play({4, RankKind::threads, MemoryPlace::device, 13, 200});
    play({2, RankKind::processes, MemoryPlace::device, 14, 400});
    play({3, RankKind::processes, MemoryPlace::device, 15, 200});
}

TEST_CASE("rma: random operations where the driver can do less", "[rma]") {
    const char* variable = GENERATE("FAKE_CUDA_NO_CONTEXT", "FAKE_CUDA_NO_KERNELS");
    INFO(variable);
    (void)setenv(variable, "1", 1);
    (void)setenv("FAKE_CUDA_MPS", "1", 1);
    play({3, RankKind::processes, MemoryPlace::device, 21, 200});
    play({3, RankKind::threads, MemoryPlace::device, 22, 200});
    (void)unsetenv("FAKE_CUDA_MPS");
    (void)unsetenv(variable);
}

// Whatever the plugin enqueued in the application's context would never run.
TEST_CASE("rma: kernels of the application stand in front of nothing", "[rma]") {
    (void)setenv("FAKE_CUDA_PRIMARY_STUCK", "1", 1);
    play({3, RankKind::processes, MemoryPlace::device, 31, 200});
    play({3, RankKind::threads, MemoryPlace::device, 32, 200});
    (void)unsetenv("FAKE_CUDA_PRIMARY_STUCK");
}

TEST_CASE("rma: random operations between GPUs", "[rma]") {
    Shape shape{3, RankKind::threads, MemoryPlace::device, 61, 200};
    shape.device_each = true;
    play(shape);
    shape.kind = RankKind::processes;
    play(shape);
}

TEST_CASE("rma: random operations with the copier", "[rma]") {
    (void)setenv("FAKE_CUDA_MPS", "1", 1);
    play({2, RankKind::threads, MemoryPlace::device, 51, 400});
    play({4, RankKind::threads, MemoryPlace::device, 52, 300});
    play({2, RankKind::processes, MemoryPlace::device, 53, 400});
    play({3, RankKind::processes, MemoryPlace::device, 54, 300});
    (void)setenv("GIMLET_RMA_COPIER_BLOCKS", "3", 1);
    play({3, RankKind::processes, MemoryPlace::device, 55, 300});
    // Some copies by the copier and some by the driver, for one peer and at the same time.
    (void)setenv("GIMLET_RMA_COPIER_LIMIT", "4000", 1);
    play({3, RankKind::threads, MemoryPlace::device, 56, 300});
    (void)unsetenv("GIMLET_RMA_COPIER_LIMIT");
    (void)unsetenv("GIMLET_RMA_COPIER_BLOCKS");
    (void)unsetenv("FAKE_CUDA_MPS");
}

// 10,000 operations a rank, 100 seeds: tests/README.md says how long that takes.
TEST_CASE("rma: random operations for long", "[.rma-long]") {
    for (std::uint64_t seed = 1000; seed < 1100; ++seed) {
        (void)(seed % 8 < 4 ? setenv("FAKE_CUDA_MPS", "1", 1) : unsetenv("FAKE_CUDA_MPS"));
        const auto kind = seed % 2 == 0 ? RankKind::threads : RankKind::processes;
        const auto place = seed % 4 < 2 ? MemoryPlace::host : MemoryPlace::device;
        const int size = static_cast<int>(2 + seed % 7);
        play({size, kind, place, seed, 10000});
    }
}

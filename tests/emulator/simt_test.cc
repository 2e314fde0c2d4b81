// SPDX-License-Identifier: Apache-2.0
#include <cooperative_groups.h>

#include <vector>

#include "tests/emulator/emulator_test.hpp"

namespace cg = cooperative_groups;

namespace gimlet::emu::test {
namespace {

constexpr unsigned kFull = 0xffffffffu;
constexpr uint64_t kSeeds = 20;

__global__ void write_places(uint32_t* out) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    out[block * threads + thread] = block << 16 | thread;
}

__global__ void warp_operations(int64_t* out) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    int64_t* const mine = out + threadIdx.x * 16;
    mine[0] = __shfl_sync(kFull, lane * 10, 5);
    mine[1] = __shfl_up_sync(kFull, lane, 2);
    mine[2] = __shfl_down_sync(kFull, lane, 3, 8);
    mine[3] = __shfl_xor_sync(kFull, static_cast<long long>(lane) << 40, 1);
    mine[4] = __ballot_sync(kFull, lane % 3 == 0);
    mine[5] = __any_sync(kFull, lane == 31) + 2 * __all_sync(kFull, lane < 31);
    mine[6] = __match_any_sync(kFull, lane / 8);
    mine[7] = __reduce_add_sync(kFull, lane);
    mine[8] = __reduce_max_sync(kFull, -lane);
    mine[9] = static_cast<int64_t>(__shfl_sync(kFull, 0.5f * static_cast<float>(lane), 6));
    int same = 7;
    mine[10] = __match_all_sync(kFull, 3, &same) == kFull && same == 1;
    // Two halves that do not wait for each other, many times over.
    int sum = 0;
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    for (int i = 0; i < 5; ++i) sum += __shfl_sync(half, lane, lane < 16 ? i : 16 + i);
    mine[11] = sum;
}

__global__ void block_operations(int* out, int rounds) {
    int* const shared = static_cast<int*>(dev::dynamic_shared());
    int sum = 0;
    for (int round = 0; round < rounds; ++round) {
        shared[threadIdx.x] = round + static_cast<int>(threadIdx.x);
        __syncthreads();
        sum += shared[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
    }
    out[threadIdx.x * 4] = sum;
    out[threadIdx.x * 4 + 1] = __syncthreads_or(threadIdx.x == 3);
    out[threadIdx.x * 4 + 2] = __syncthreads_and(threadIdx.x < 1000);
    out[threadIdx.x * 4 + 3] = __syncthreads_count(threadIdx.x % 2 == 0);
}

__global__ void early_exit(int* out) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    if (threadIdx.x < 32) {
        atomicAdd(out, 1);
        if (threadIdx.x % 2 == 0) return;
        __syncwarp();
        atomicAdd(out, 100);
    }
}

__global__ void named_barriers(int* out) {
    int* const shared = static_cast<int*>(dev::dynamic_shared());
    if (threadIdx.x < 64) {
        shared[threadIdx.x] = static_cast<int>(threadIdx.x);
        dev::named_barrier_arrive(1, 128);
    } else {
        dev::named_barrier_sync(1, 128);
        out[threadIdx.x - 64] = shared[threadIdx.x - 64];
    }
}

__global__ void grid_rounds(unsigned* counter, int* wrong, int rounds) {
    const unsigned threads = gridDim.x * blockDim.x;
    for (int round = 1; round <= rounds; ++round) {
        atomicAdd(counter, 1u);
        cg::this_grid().sync();
        if (__ldcg(counter) != threads * static_cast<unsigned>(round)) atomicAdd(wrong, 1);
        cg::this_grid().sync();
    }
}

[[maybe_unused]] __global__ void static_shared(int* out) {
    __shared__ int words[64];
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    words[threadIdx.x] = static_cast<int>(blockIdx.x * 100 + threadIdx.x);
    __syncthreads();
    atomicAdd(&total, words[(threadIdx.x + 7) % 64]);
    __syncthreads();
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

__global__ void atomics(unsigned* words, float* real) {
    atomicAdd(&words[0], 2u);
    atomicMax(&words[1], threadIdx.x);
    atomicMin(&words[2], threadIdx.x + 5);
    atomicOr(&words[3], 1u << threadIdx.x % 32);
    atomicInc(&words[4], 9u);
    atomicAdd(real, 0.5f);
    unsigned seen = __ldcg(&words[5]);
    for (;;) {
        const unsigned before = atomicCAS(&words[5], seen, seen + 3);
        if (before == seen) break;
        seen = before;
    }
}

__global__ void bad_mask() {
    __syncwarp(1u << ((threadIdx.x + 1) % 32));
}

enum class Misuse { two_operations, two_counts, named_id, named_count, trap };

__global__ void misuse(Misuse kind) {
    const bool first = threadIdx.x == 0;
    switch (kind) {
        case Misuse::two_operations:
            if (first) {
                __syncwarp();
            } else {
                __ballot_sync(kFull, 1);
            }
            break;
        case Misuse::two_counts: dev::named_barrier_sync(1, threadIdx.x < 32 ? 64 : 96); break;
        case Misuse::named_id: dev::named_barrier_sync(16, 64); break;
        case Misuse::named_count: dev::named_barrier_sync(1, 40); break;
        case Misuse::trap: __trap();
    }
}

std::string misuse_failure(Misuse kind) {
    return failure_of(one_rank(1), [kind](int) {
        EMU_CHECK(launch({.block = 96}, misuse, kind));
        EMU_CHECK(cudaDeviceSynchronize());
    });
}

__global__ void tiles(int* out) {
    const auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int sum = static_cast<int>(threadIdx.x);
    for (int step = 4; step > 0; step /= 2) sum += tile.shfl_xor(sum, step);
    tile.sync();
    out[threadIdx.x] = sum;
}

}  // namespace

TEST_CASE("indices of a three-dimensional launch", "[emulator][simt]") {
    simulate(one_rank(1), [](int) {
        Pinned<uint32_t> out(2 * 3 * 2 * 4 * 3 * 5);
        EMU_CHECK(launch({.grid = {2, 3, 2}, .block = {4, 3, 5}}, write_places, out.get()));
        EMU_CHECK(cudaDeviceSynchronize());
        for (uint32_t block = 0; block < 12; ++block) {
            for (uint32_t thread = 0; thread < 60; ++thread) {
                REQUIRE(out[block * 60 + thread] == (block << 16 | thread));
            }
        }
    });
}

TEST_CASE("warp operations", "[emulator][simt]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Pinned<int64_t> out(64 * 16);
            EMU_CHECK(launch({.block = 64}, warp_operations, out.get()));
            EMU_CHECK(cudaDeviceSynchronize());
            for (int thread = 0; thread < 64; ++thread) {
                const int lane = thread % 32;
                int64_t* const got = &out[thread * 16];
                REQUIRE(got[0] == 50);
                REQUIRE(got[1] == (lane < 2 ? lane : lane - 2));
                REQUIRE(got[2] == (lane % 8 >= 5 ? lane : lane + 3));
                REQUIRE(got[3] == static_cast<int64_t>(lane ^ 1) << 40);
                REQUIRE(got[4] == 0x49249249);
                REQUIRE(got[5] == 1);
                REQUIRE(got[6] == int64_t{0xff} << (lane / 8 * 8));
                REQUIRE(got[7] == 496);
                REQUIRE(got[8] == 0);
                REQUIRE(got[9] == 3);
                REQUIRE(got[10] == 1);
                REQUIRE(got[11] == (lane < 16 ? 10 : 90));
            }
        });
    }
}

TEST_CASE("block barriers and their reductions", "[emulator][simt]") {
    for (const Schedule schedule :
         {Schedule::uniform, Schedule::priority, Schedule::run_to_block}) {
        SimOptions options = one_rank(3);
        options.schedule = schedule;
        simulate(options, [](int) {
            Pinned<int> out(96 * 4);
            EMU_CHECK(
                launch({.block = 96, .shared_bytes = 96 * 4}, block_operations, out.get(), 10));
            EMU_CHECK(cudaDeviceSynchronize());
            for (int thread = 0; thread < 96; ++thread) {
                REQUIRE(out[thread * 4] == 45 + 10 * ((thread + 1) % 96));
                REQUIRE(out[thread * 4 + 1] == 1);
                REQUIRE(out[thread * 4 + 2] == 1);
                REQUIRE(out[thread * 4 + 3] == 48);
            }
        });
    }
}

TEST_CASE("exited threads do not hold barriers up", "[emulator][simt]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Pinned<int> out(1);
            EMU_CHECK(launch({.block = 50}, early_exit, out.get()));
            EMU_CHECK(cudaDeviceSynchronize());
            REQUIRE(out[0] == 32 + 16 * 100);
        });
    }
}

TEST_CASE("named barriers: producers arrive, consumers wait", "[emulator][simt]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Pinned<int> out(64);
            EMU_CHECK(launch({.block = 128, .shared_bytes = 256}, named_barriers, out.get()));
            EMU_CHECK(cudaDeviceSynchronize());
            for (int i = 0; i < 64; ++i) REQUIRE(out[i] == i);
        });
    }
}

TEST_CASE("grid sync of a cooperative launch", "[emulator][simt]") {
    simulate(one_rank(5), [](int) {
        Pinned<unsigned> counter(1);
        Pinned<int> wrong(1);
        EMU_CHECK(launch({.grid = 6, .block = 64, .cooperative = true}, grid_rounds, counter.get(),
                         wrong.get(), 4));
        EMU_CHECK(cudaDeviceSynchronize());
        REQUIRE(counter[0] == 6 * 64 * 4);
        REQUIRE(wrong[0] == 0);
        // 8 SMs x 2 blocks of 1024 threads are resident; 17 are not.
#if !defined(GIMLET_TSAN)  // it knows 8,128 threads at most
        REQUIRE(launch({.grid = 16, .block = 1024, .cooperative = true}, grid_rounds, counter.get(),
                       wrong.get(), 0) == cudaSuccess);
#endif
        REQUIRE(launch({.grid = 17, .block = 1024, .cooperative = true}, grid_rounds, counter.get(),
                       wrong.get(), 0) == cudaErrorCooperativeLaunchTooLarge);
        REQUIRE(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
        REQUIRE(cudaGetLastError() == cudaSuccess);
        EMU_CHECK(cudaDeviceSynchronize());
    });
    const std::string failure = failure_of(one_rank(1), [](int) {
        Pinned<unsigned> counter(1);
        Pinned<int> wrong(1);
        EMU_CHECK(launch({.grid = 2}, grid_rounds, counter.get(), wrong.get(), 1));
        EMU_CHECK(cudaDeviceSynchronize());
    });
    REQUIRE_THAT(failure, contains_text("not launched cooperatively"));
    REQUIRE_THAT(failure, contains_text("grid_rounds"));
}

#if !defined(GIMLET_TSAN)  // blocks take turns at one address, which TSAN takes for races
TEST_CASE("static shared variables belong to their block", "[emulator][simt]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        simulate(one_rank(seed), [](int) {
            Pinned<int> out(12);
            EMU_CHECK(launch({.grid = 12, .block = 64}, static_shared, out.get()));
            EMU_CHECK(cudaDeviceSynchronize());
            for (int block = 0; block < 12; ++block)
                REQUIRE(out[block] == 64 * 100 * block + 63 * 32);
        });
    }
}
#endif

TEST_CASE("atomics", "[emulator][simt]") {
    simulate(one_rank(2), [](int) {
        Pinned<unsigned> words(6);
        Pinned<float> real(1);
        words[2] = 1000;
        EMU_CHECK(launch({.grid = 2, .block = 48}, atomics, words.get(), real.get()));
        EMU_CHECK(cudaDeviceSynchronize());
        REQUIRE(words[0] == 192);
        REQUIRE(words[1] == 47);
        REQUIRE(words[2] == 5);
        REQUIRE(words[3] == 0xffffffffu);
        REQUIRE(words[4] == 96 % 10);
        REQUIRE(words[5] == 96 * 3);
        REQUIRE(real[0] == 48.0f);
    });
}

TEST_CASE("tiles of a warp", "[emulator][simt]") {
    simulate(one_rank(2), [](int) {
        Pinned<int> out(64);
        EMU_CHECK(launch({.block = 64}, tiles, out.get()));
        EMU_CHECK(cudaDeviceSynchronize());
        for (int i = 0; i < 64; ++i) REQUIRE(out[i] == i / 8 * 64 + 28);
    });
}

TEST_CASE("a lane outside of its own mask is refused", "[emulator][simt]") {
    const std::string failure = failure_of(one_rank(9), [](int) {
        EMU_CHECK(launch({}, bad_mask));
        EMU_CHECK(cudaDeviceSynchronize());
    });
    REQUIRE_THAT(failure, contains_text("mask that does not name it"));
    REQUIRE_THAT(failure, contains_text("[seed 9]"));
}

TEST_CASE("threads that do not do the same are refused", "[emulator][simt]") {
    REQUIRE_THAT(misuse_failure(Misuse::two_operations),
                 contains_text("different warp operations"));
    REQUIRE_THAT(misuse_failure(Misuse::two_counts), contains_text("different thread counts"));
    REQUIRE_THAT(misuse_failure(Misuse::named_id), contains_text("barrier 16 with 64 threads"));
    REQUIRE_THAT(misuse_failure(Misuse::named_count), contains_text("barrier 1 with 40 threads"));
    REQUIRE_THAT(misuse_failure(Misuse::trap), contains_text("trap"));
}

TEST_CASE("impossible launches return errors", "[emulator][simt]") {
    simulate(one_rank(1), [](int) {
        REQUIRE(launch({.block = 1025}, bad_mask) == cudaErrorInvalidConfiguration);
        REQUIRE(launch({.grid = 0}, bad_mask) == cudaErrorInvalidConfiguration);
        REQUIRE(launch({.shared_bytes = 100000}, bad_mask) == cudaErrorInvalidValue);
        REQUIRE(cudaFuncSetAttribute(bad_mask, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     1 << 20) == cudaErrorInvalidValue);
        int blocks = 0;
        EMU_CHECK(
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bad_mask, 512, 100 * 1024));
        REQUIRE(blocks == 2);
    });
}

}  // namespace gimlet::emu::test

// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "tests/emulator/emulator_test.hpp"

namespace gimlet::emu::test {
namespace {

constexpr uint64_t kSeeds = 100;
constexpr uint32_t kRowBytes = 256;
constexpr int kRows = 8;

enum class Wrong { none, read_early, reuse_early, publish_early };

// One thread copies rows through one slot of shared memory.
__global__ void copy_rows(const char* from, char* to, unsigned* published, Wrong wrong) {
    char* const slot = static_cast<char*>(dev::dynamic_shared());
    uint64_t* const bar = reinterpret_cast<uint64_t*>(slot + kRowBytes);
    if (threadIdx.x != 0) return;
    dev::mbarrier_init(bar, 1);
    for (int row = 0; row < kRows; ++row) {
        dev::mbarrier_arrive_expect_tx(bar, kRowBytes);
        dev::bulk_load(slot, from + row * kRowBytes, kRowBytes, bar);
        const auto wait_loaded = [&] {
            while (!dev::mbarrier_try_wait(bar, row & 1)) {
            }
        };
        if (wrong != Wrong::read_early) wait_loaded();
        dev::bulk_store(to + row * kRowBytes, slot, kRowBytes);
        dev::bulk_commit();
        if (wrong != Wrong::reuse_early) dev::bulk_wait_read(0);
        if (wrong == Wrong::read_early) wait_loaded();
    }
    if (wrong == Wrong::publish_early) {
        dev::bulk_wait_read(0);
    } else {
        dev::bulk_wait(0);
    }
    __threadfence();
    atomicExch(published, 1u);
}

__global__ void check_rows(const char* from, const char* to, unsigned* published, int* bad) {
    while (__ldcv(published) == 0) {
    }
    __threadfence();
    for (uint32_t i = 0; i < kRows * kRowBytes; ++i) *bad += to[i] != from[i];
}

// Bad bytes that a reader of the published copy sees.
int bad_bytes(uint64_t seed, Wrong wrong) {
    int result = 0;
    simulate(one_rank(seed), [&](int) {
        Pinned<char> from(kRows * kRowBytes);
        Pinned<unsigned> published(1);
        Pinned<int> bad(1);
        for (uint32_t i = 0; i < kRows * kRowBytes; ++i)
            from[i] = static_cast<char>(1 + i % 61 + i / kRowBytes);
        char* to = nullptr;
        EMU_CHECK(cudaMalloc(&to, kRows * kRowBytes));
        cudaStream_t a = nullptr;
        cudaStream_t b = nullptr;
        EMU_CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
        EMU_CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
        EMU_CHECK(launch({.shared_bytes = kRowBytes + 16, .stream = a}, copy_rows, from.get(), to,
                         published.get(), wrong));
        EMU_CHECK(launch({.block = 1, .stream = b}, check_rows, from.get(), to, published.get(),
                         bad.get()));
        EMU_CHECK(cudaDeviceSynchronize());
        result = bad[0];
        EMU_CHECK(cudaStreamDestroy(a));
        EMU_CHECK(cudaStreamDestroy(b));
        EMU_CHECK(cudaFree(to));
    });
    return result;
}

int seeds_that_catch(Wrong wrong) {
    int caught = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) caught += bad_bytes(seed, wrong) != 0;
    return caught;
}

enum class Misuse {
    unaligned,
    odd_size,
    outside,
    never_waited,
    no_barrier,
    extra_bytes,
    load_unseen,
    odd_barrier,
    no_arrivals,
    initialised_twice,
    overwritten,
    arrives_too_often,
    too_many_bytes,
    invalidated_in_flight,
    left_in_flight
};

__global__ void misuse(char* memory, Misuse kind) {
    char* const slot = static_cast<char*>(dev::dynamic_shared());
    uint64_t* const bar = reinterpret_cast<uint64_t*>(slot + 128);
    if (threadIdx.x != 0) return;
    if (kind != Misuse::no_barrier) dev::mbarrier_init(bar, 1);
    switch (kind) {
        case Misuse::unaligned: dev::bulk_store(memory, slot + 8, 16); break;
        case Misuse::odd_size: dev::bulk_store(memory, slot, 24); break;
        case Misuse::outside: dev::bulk_store(memory, slot + 160, 32); break;
        case Misuse::never_waited:
            dev::bulk_store(memory, slot, 16);
            dev::bulk_commit();
            break;
        case Misuse::no_barrier: dev::mbarrier_arrive(bar); break;
        case Misuse::extra_bytes: dev::mbarrier_expect_tx(bar, 64); break;
        case Misuse::load_unseen:
            dev::mbarrier_arrive_expect_tx(bar, 16);
            dev::bulk_load(slot, memory, 16, bar);
            dev::sleep_ns(1000000);
            break;
        case Misuse::odd_barrier:
            dev::mbarrier_init(reinterpret_cast<uint64_t*>(slot + 132), 1);
            break;
        case Misuse::no_arrivals: dev::mbarrier_init(bar + 1, 0); break;
        case Misuse::initialised_twice: dev::mbarrier_init(bar, 1); break;
        case Misuse::overwritten:
            *bar = 7;
            dev::mbarrier_arrive(bar);
            break;
        case Misuse::arrives_too_often:
            dev::mbarrier_arrive_expect_tx(bar, 64);
            dev::mbarrier_arrive(bar);
            break;
        case Misuse::too_many_bytes: dev::mbarrier_expect_tx(bar, 1u << 20); break;
        case Misuse::invalidated_in_flight:
            dev::mbarrier_arrive_expect_tx(bar, 16);
            dev::bulk_load(slot, memory, 16, bar);
            dev::mbarrier_inval(bar);
            break;
        case Misuse::left_in_flight:
            dev::mbarrier_arrive_expect_tx(bar, 16);
            dev::bulk_load(slot, memory, 16, bar);
            break;
    }
}

std::string misuse_failure(Misuse kind, uint64_t seed = 1) {
    return failure_of(one_rank(seed), [kind](int) {
        Pinned<char> memory(256);
        EMU_CHECK(launch({.shared_bytes = 176}, misuse, memory.get(), kind));
        EMU_CHECK(cudaDeviceSynchronize());
    });
}

}  // namespace

TEST_CASE("a right copy through shared memory is right under every seed", "[emulator][bulk]") {
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        CAPTURE(seed);
        REQUIRE(bad_bytes(seed, Wrong::none) == 0);
    }
}

TEST_CASE("wrong copies are seen", "[emulator][bulk]") {
    // Chances differ; that at least a tenth of the seeds sees each is what the simulations rely on.
    REQUIRE(seeds_that_catch(Wrong::read_early) >= 10);
    REQUIRE(seeds_that_catch(Wrong::reuse_early) >= 10);
    REQUIRE(seeds_that_catch(Wrong::publish_early) >= 10);
}

TEST_CASE("misuse of bulk copies is refused", "[emulator][bulk]") {
    REQUIRE_THAT(misuse_failure(Misuse::unaligned), contains_text("multiples of 16"));
    REQUIRE_THAT(misuse_failure(Misuse::odd_size), contains_text("24 bytes"));
    REQUIRE_THAT(misuse_failure(Misuse::outside), contains_text("dynamic shared memory"));
    REQUIRE_THAT(misuse_failure(Misuse::never_waited), contains_text("never waited"));
    REQUIRE_THAT(misuse_failure(Misuse::no_barrier), contains_text("no initialised mbarrier"));
    REQUIRE_THAT(misuse_failure(Misuse::extra_bytes), contains_text("differ by 64"));
    REQUIRE_THAT(misuse_failure(Misuse::load_unseen), contains_text("nobody waited for its last"));
    REQUIRE_THAT(misuse_failure(Misuse::odd_barrier), contains_text("not 8-byte aligned"));
    REQUIRE_THAT(misuse_failure(Misuse::no_arrivals), contains_text("count 0 is not in [1,"));
    REQUIRE_THAT(misuse_failure(Misuse::initialised_twice),
                 contains_text("already holds an mbarrier"));
    REQUIRE_THAT(misuse_failure(Misuse::overwritten), contains_text("or it was overwritten"));
    REQUIRE_THAT(misuse_failure(Misuse::arrives_too_often),
                 contains_text("all 1 arrivals of this phase have come already"));
    REQUIRE_THAT(misuse_failure(Misuse::too_many_bytes), contains_text("1048576 pending bytes"));
    REQUIRE_THAT(misuse_failure(Misuse::invalidated_in_flight),
                 contains_text("mbarrier inval: bulk loads"));
    // Under some seeds the load has landed by then, and only the wait for it is missing.
    int in_flight = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::string failure = misuse_failure(Misuse::left_in_flight, seed);
        REQUIRE_THAT(failure, contains_text("a block exits"));
        in_flight += failure.find("its shared memory are in flight") != std::string::npos;
    }
    REQUIRE(in_flight > 0);
}

}  // namespace gimlet::emu::test

// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator_nccl/compile_probe.cuh"
#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

namespace {

void one_rank(unsigned threads, const std::function<void()>& body) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        SimOptions options;
        options.ranks = 1;
        options.seed = seed;
        simulate(options, [&](int) { launch(2, threads, body); });
    }
}

template <typename Coop>
void check_coop(Coop coop, int rank, int size) {
    VERIFY(coop.thread_rank() == rank && coop.size() == size && coop.num_threads() == size);
    coop.sync();
    for (int root = 0; root < size; root += 5) {
        const uint64_t mine = 1000 * blockIdx.x + static_cast<uint64_t>(rank);
        const uint64_t got = ncclCoopBcast(coop, mine, root);
        VERIFY(got == 1000 * blockIdx.x + static_cast<uint64_t>(root));
    }
    ncclCoopAny any(coop);
    VERIFY(any.thread_rank() == rank && any.size() == size);
    any.sync();
}

}  // namespace

TEST_CASE("coops know their threads and broadcast", "[emulator][nccl]") {
    one_rank(96, [] {
        const int t = static_cast<int>(threadIdx.x);
        VERIFY(ncclCoopThread().size() == 1 && ncclCoopThread().thread_rank() == 0);
        VERIFY(ncclCoopIsThread(ncclCoopThread()) && !ncclCoopIsThread(ncclCoopWarp()));
        VERIFY(ncclCoopWithinWarp(ncclCoopWarp()) && !ncclCoopWithinWarp(ncclCoopCta()));
        check_coop(ncclCoopWarp(), t % 32, 32);
        check_coop(ncclCoopCta(), t, 96);
        if (t >= 32) check_coop(ncclCoopWarpSpan(1, 2, 3), t - 32, 64);
        const ncclCoopTile<8> tile;
        VERIFY(tile.laneMask() == 0xffu << (t % 32 / 8 * 8) && tile.thread_rank() == t % 8);
        VERIFY(ncclCoopBcast(tile, t, 2) == t / 8 * 8 + 2);
        const uint32_t odd = 0xaaaaaaaau;
        if (t % 2 == 1) check_coop(ncclCoopLanes(odd), t % 32 / 2, 16);
    });
}

TEST_CASE("a warp span id without a stash is refused", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 1;
    const std::string text = failure_of(options, [&](int) {
        launch(1, 32, [] { ncclCoopBcast(ncclCoopWarpSpan(0, 1, 15), 1, 0, false); });
    });
    REQUIRE_THAT(text, contains_text("stash"));
}

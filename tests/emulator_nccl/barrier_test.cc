// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

namespace {

constexpr auto kAcqRel = cuda::memory_order_acq_rel;

ncclDevCommRequirements barrier_requirements() {
    ncclDevCommRequirements reqs = gin_requirements(2, 0, 2);
    reqs.lsaBarrierCount = 3;
    reqs.railGinBarrierCount = 2;
    reqs.worldGinBarrierCount = 2;
    reqs.barrierCount = 2;
    return reqs;
}

struct Shape {
    int ranks;
    int team;
};

/// Runs `body` on all ranks under several seeds and both backends; nothing may fail.
void everywhere(const Shape& shape, unsigned threads, const std::function<void(Rank&)>& body) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        SimOptions options;
        options.ranks = shape.ranks;
        options.lsa_team_size = shape.team;
        options.seed = seed;
        options.gin = seed % 2 == 0 ? GinMode::gdaki : GinMode::proxy;
        options.schedule =
            seed % 3 == 0 ? gimlet::emu::Schedule::priority : gimlet::emu::Schedule::uniform;
        INFO("seed " << seed << ", " << shape.ranks << " ranks, LSA teams of " << shape.team);
        REQUIRE(failure_of(options, [&](int rank) {
                    Rank r(rank, shape.ranks, barrier_requirements());
                    gimlet::emu::host_barrier();
                    r.run([&] { body(r); }, threads);
                    r.close();
                }) == "");
    }
}

}  // namespace

TEST_CASE("LSA barrier: everybody's stores are visible, for any coop size",
          "[emulator][nccl][barrier]") {
    const Shape shape =
        GENERATE(Shape{1, 0}, Shape{2, 0}, Shape{3, 0}, Shape{4, 2}, Shape{8, 0}, Shape{8, 4});
    const unsigned threads = GENERATE(1u, 32u, 64u);
    everywhere(shape, threads, [](Rank& r) {
        ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), r.dev, ncclTeamTagLsa(), 2);
        const ncclTeam lsa = ncclTeamLsa(r.dev);
        for (uint64_t step = 1; step <= 3; ++step) {
            if (threadIdx.x == blockDim.x - 1) {
                for (int p = 0; p < lsa.nRanks; ++p)
                    ncclSymPtr<uint64_t>(r.window).lsaPtr(p)[lsa.rank] = step;
            }
            barrier.sync(ncclCoopCta(), kAcqRel);
            for (int p = 0; p < lsa.nRanks; ++p) VERIFY(r.words[p] == step);
            barrier.sync(ncclCoopCta(), kAcqRel);
        }
    });
}

TEST_CASE("LSA barrier: split arrive and wait, and epochs that outlive the session",
          "[emulator][nccl][barrier]") {
    everywhere({4, 0}, 32, [](Rank& r) {
        for (int i = 0; i < 4; ++i) {
            ncclLsaBarrierSession<ncclCoopWarp> barrier(ncclCoopWarp(), r.dev, ncclTeamTagLsa(), 0);
            barrier.arrive(ncclCoopWarp(), cuda::memory_order_release);
            barrier.wait(ncclCoopWarp(), cuda::memory_order_acquire);
            VERIFY(barrier.sync(ncclCoopWarp(), kAcqRel, 1ull << 40) == ncclSuccess);
        }
    });
}

TEST_CASE("GIN barrier: one coop at a time", "[emulator][nccl][barrier]") {
    ncclDevCommRequirements reqs = gin_requirements();
    reqs.worldGinBarrierCount = 2;
    SimOptions options;
    options.ranks = 2;
    // Each block has its own index, or its own context, or neither; or one takes all contexts.
    const auto run = [&](auto&& barrier) {
        return failure_of(options, [&](int rank) {
            Rank r(rank, 2, reqs);
            r.run([&] { barrier(r); }, 1, 2);
            r.run([&] { barrier(r); }, 1, 2);
            r.close();
        });
    };
    const ncclCoopThread thread;
    REQUIRE(run([&](Rank& r) {
                ncclGinBarrier(thread, ncclGin(r.dev, 0), ncclTeamTagWorld(), blockIdx.x);
            }) == "");
    REQUIRE(run([&](Rank& r) {
                const auto context = static_cast<int>(blockIdx.x);
                ncclGinBarrier(thread, ncclGin(r.dev, context), ncclTeamTagWorld(), 0);
            }) == "");
    REQUIRE_THAT(
        run([&](Rank& r) { ncclGinBarrier(thread, ncclGin(r.dev, 1), ncclTeamTagWorld(), 1); }),
        contains_text("is used by two coops at once on context 1"));
    REQUIRE_THAT(run([&](Rank& r) {
                     if (blockIdx.x == 0) {
                         ncclGinBarrier(thread, ncclGinAllContexts(r.dev), ncclTeamTagWorld(), 0);
                     } else {
                         ncclGinBarrier(thread, ncclGin(r.dev, 1), ncclTeamTagWorld(), 0);
                     }
                 }),
                 contains_text("is used by two coops at once on context 1"));
}

TEST_CASE("LSA barrier: misuse", "[emulator][nccl][barrier]") {
    SimOptions options;
    options.ranks = 2;
    std::string text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, lsa_requirements(2));
        r.run([&] {
            ncclLsaBarrierSession<ncclCoopThread> b(ncclCoopThread(), r.dev, ncclTeamTagLsa(), 2);
        });
    });
    REQUIRE_THAT(text, contains_text("index 2 of 2"));
    text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, lsa_requirements(2));
        r.run(
            [&] {
                ncclLsaBarrierSession<ncclCoopThread> b(ncclCoopThread(), r.dev, ncclTeamTagLsa(),
                                                        1);
                b.sync(ncclCoopThread(), kAcqRel);
            },
            1, 2);
    });
    REQUIRE_THAT(text, contains_text("used by two coops at once"));
    text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, lsa_requirements(2));
        if (rank == 1) return;
        r.run([&] {
            ncclLsaBarrierSession<ncclCoopThread> b(ncclCoopThread(), r.dev, ncclTeamTagLsa(), 1);
            b.sync(ncclCoopThread(), kAcqRel);
        });
    });
    REQUIRE_THAT(text, contains_text("LSA barrier 1: team rank 0 waits for 1"));
    text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, lsa_requirements(2));
        if (rank == 1) return;
        r.run([&] {
            ncclLsaBarrierSession<ncclCoopThread> b(ncclCoopThread(), r.dev, ncclTeamTagLsa(), 1);
            VERIFY(b.sync(ncclCoopThread(), kAcqRel, 10000) == ncclTimeout);
        });
    });
    REQUIRE(text == "");
}

TEST_CASE("GIN barrier: earlier puts on its context are there, and gets have landed",
          "[emulator][nccl][barrier]") {
    const Shape shape =
        GENERATE(Shape{1, 0}, Shape{2, 1}, Shape{3, 1}, Shape{4, 2}, Shape{8, 4}, Shape{8, 1});
    everywhere(shape, 32, [](Rank& r) {
        const ncclGin gin(r.dev, 1);
        const ncclTeam all = ncclTeamWorld(r.dev);
        ncclGinBarrierSession<ncclCoopWarp> barrier(ncclCoopWarp(), gin, ncclTeamTagWorld(), 1);
        for (uint64_t step = 1; step <= 3; ++step) {
            for (int p = threadIdx.x; p < all.nRanks; p += 32) {
                gin.putValue(all, p, r.window, 8 * r.rank, step * 100 + r.rank);
            }
            barrier.sync(ncclCoopWarp(), kAcqRel);
            for (int p = 0; p < all.nRanks; ++p) VERIFY(r.words[p] == step * 100 + p);
            // My barrier says what has reached me; what has reached my neighbour, its next one
            // says.
            barrier.sync(ncclCoopWarp(), kAcqRel);
            if (threadIdx.x == 0)
                gin.get(all, (r.rank + 1) % all.nRanks, r.window, 0, r.window, 1024, 8);
            barrier.sync(ncclCoopWarp(), kAcqRel);
            VERIFY(r.words[128] == step * 100);
            ncclGinBarrier(ncclCoopWarp(), gin, ncclTeamTagRail(), 0);
            barrier.sync(ncclCoopWarp(), kAcqRel, ncclGinFenceLevel::None);
        }
    });
}

TEST_CASE("GIN barrier over all contexts fences all contexts; over one, only that one",
          "[emulator][nccl][barrier]") {
    const bool all_contexts = GENERATE(true, false);
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 60; ++seed) {
        SimOptions options;
        options.ranks = 3;
        options.lsa_team_size = 1;
        options.seed = seed;
        const std::string text = failure_of(options, [&](int rank) {
            Rank r(rank, 3, barrier_requirements());
            r.run(
                [&] {
                    const ncclTeam team = ncclTeamWorld(r.dev);
                    if (threadIdx.x == 0) {
                        ncclGin(r.dev, 1).putValue(team, (rank + 1) % 3, r.window, 0, uint64_t{7});
                    }
                    if (all_contexts) {
                        ncclGinBarrier(ncclCoopWarp(), ncclGinAllContexts(r.dev),
                                       ncclTeamTagWorld(), 0);
                    } else {
                        ncclGinBarrier(ncclCoopWarp(), ncclGin(r.dev, 0), ncclTeamTagWorld(), 0);
                    }
                    VERIFY(r.words[0] == 7);
                },
                32);
        });
        wrong += text.find("does not hold") != std::string::npos;
    }
    REQUIRE((wrong > 0) == !all_contexts);
}

TEST_CASE("GIN barrier: a coop needs nRanks - 1 threads", "[emulator][nccl][barrier]") {
    const int ranks = GENERATE(2, 3, 4, 6);
    const int size = GENERATE(1, 2, 3, 4, 5);
    const bool with_put = GENERATE(true, false);
    SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = 1;
    const std::string text = failure_of(options, [&](int rank) {
        Rank r(rank, ranks, barrier_requirements());
        r.run(
            [&] {
                const ncclCoopLanes lanes((1u << size) - 1);
                if (static_cast<int>(threadIdx.x) >= size) return;
                ncclGinBarrier(lanes, ncclGin(r.dev, 0), ncclTeamTagWorld(), 0, kAcqRel,
                               with_put ? ncclGinFenceLevel::Put : ncclGinFenceLevel::None);
            },
            32);
    });
    INFO(ranks << " ranks, coop of " << size);
    if (size >= ranks - 1) {
        REQUIRE(text == "");
    } else {
        REQUIRE_THAT(text, contains_text("GIN signal"));
    }
}

TEST_CASE("GIN barrier: the deadline ends a wait", "[emulator][nccl][barrier]") {
    SimOptions options;
    options.ranks = 2;
    options.lsa_team_size = 1;
    REQUIRE(failure_of(options, [&](int rank) {
                Rank r(rank, 2, barrier_requirements());
                if (rank == 1) return;
                r.run([&] {
                    ncclGinBarrierSession<ncclCoopThread> b(ncclCoopThread(), ncclGin(r.dev, 0),
                                                            ncclTeamTagWorld(), 0);
                    VERIFY(b.sync(ncclCoopThread(), kAcqRel, ncclGinFenceLevel::Put, 20000) ==
                           ncclTimeout);
                });
            }) == "");
}

TEST_CASE("hybrid barrier", "[emulator][nccl][barrier]") {
    const Shape shape =
        GENERATE(Shape{1, 0}, Shape{2, 1}, Shape{3, 0}, Shape{4, 2}, Shape{8, 4}, Shape{8, 2});
    everywhere(shape, 64, [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        const ncclTeam all = ncclTeamWorld(r.dev), lsa = ncclTeamLsa(r.dev);
        ncclBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), ncclTeamTagWorld(), gin, 1);
        for (uint64_t step = 1; step <= 2; ++step) {
            if (threadIdx.x == 0) {
                for (int p = 0; p < all.nRanks; ++p)
                    gin.putValue(all, p, r.window, 8 * r.rank, step);
            }
            barrier.sync(ncclCoopCta(), kAcqRel);
            for (int p = 0; p < all.nRanks; ++p) VERIFY(r.words[p] == step);
            // Without Put: LSA inside the team, GIN signals between teams.
            if (threadIdx.x < static_cast<unsigned>(lsa.nRanks)) {
                ncclSymPtr<uint64_t>(r.window, 512).lsaPtr(threadIdx.x)[lsa.rank] = step;
            }
            barrier.sync(ncclCoopCta(), kAcqRel, ncclGinFenceLevel::None);
            for (int p = 0; p < lsa.nRanks; ++p) VERIFY(r.words[64 + p] == step);
            VERIFY(barrier.sync(ncclCoopCta(), kAcqRel, ncclGinFenceLevel::Get, 1ull << 40) ==
                   ncclSuccess);
        }
    });
}

TEST_CASE("hybrid barrier: team and rail tags", "[emulator][nccl][barrier]") {
    everywhere({8, 4}, 32, [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        {
            ncclBarrierSession<ncclCoopWarp> team(ncclCoopWarp(), ncclTeamTagLsa(), r.dev, 0);
            team.sync(ncclCoopWarp(), kAcqRel);
            team.lsaBarrier().sync(ncclCoopWarp(), kAcqRel);
        }
        ncclBarrier(ncclCoopWarp(), ncclTeamTagRail(), gin, 0);
        ncclBarrier(ncclCoopWarp(), ncclTeamTagWorld(), gin, 0);
    });
}

TEST_CASE("barriers without GIN", "[emulator][nccl][barrier]") {
    SimOptions options;
    options.ranks = 4;
    options.gin = GinMode::off;
    REQUIRE(failure_of(options, [&](int rank) {
                Rank r(rank, 4, lsa_requirements());
                VERIFY(r.dev.ginContextCount == 0);
                r.run(
                    [&] {
                        ncclLsaBarrierSession<ncclCoopCta> b(ncclCoopCta(), r.dev, ncclTeamTagLsa(),
                                                             0);
                        b.sync(ncclCoopCta(), kAcqRel);
                    },
                    64);
                r.close();
            }) == "");
}

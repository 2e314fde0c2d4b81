// SPDX-License-Identifier: Apache-2.0
// Each guarantee of GIN holds under every seed; each thing that is not guaranteed does go wrong
// under some seed.
#include <set>

#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

namespace {

constexpr int kSeeds = 60;

/// Runs `sender` on rank 0 and `receiver` on rank 1 of fresh worlds. Either may be empty.
struct Pair {
    std::function<void(Rank&)> sender;
    std::function<void(Rank&)> receiver;
    ncclDevCommRequirements reqs = gin_requirements();
    GinMode mode = GinMode::gdaki;
    unsigned threads = 1;
    int depth = 128;

    std::string run(uint64_t seed, bool orderly = false) const {
        SimOptions options;
        options.ranks = 2;
        options.lsa_team_size = 1;
        options.seed = seed;
        options.gin = mode;
        options.gin_queue_depth = depth;
        return failure_of(options, [&](int rank) {
            Rank r(rank, 2, reqs);
            for (size_t i = 0; i < r.word_count; ++i) r.words[i] = rank == 0 ? 1000 + i : 0;
            gimlet::emu::host_barrier();
            const auto& body = rank == 0 ? sender : receiver;
            if (body) r.run([&] { body(r); }, threads);
            if (orderly) r.close();
        });
    }
    /// Every seed must end well.
    void must_hold() const {
        for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
            INFO("seed " << seed);
            REQUIRE(run(seed) == "");
        }
    }
    /// Some seed must fail with this text, and some (unless `always`) must not.
    void must_fail_sometimes(const char* text, bool always = false) const {
        int failures = 0;
        // Hangs cost more to find, and come always.
        const int seeds = always ? 5 : kSeeds;
        for (int seed = 1; seed <= seeds; ++seed) {
            const std::string failure = run(seed);
            if (failure.empty()) continue;
            INFO("seed " << seed);
            REQUIRE_THAT(failure, contains_text(text));
            ++failures;
        }
        INFO("failed under " << failures << " of " << seeds << " seeds");
        REQUIRE(failures > 0);
        REQUIRE((failures == seeds) == always);
    }
};

const ncclCoopThread kThread;

ncclTeam world(const Rank& r) {
    return ncclTeamWorld(r.dev);
}

void check_words(const Rank& r, size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) VERIFY(r.words[i] == 1000 + i);
}

}  // namespace

TEST_CASE("a put is there when its own weak or strong signal is", "[emulator][nccl][gin]") {
    const bool strong = GENERATE(false, true);
    Pair pair;
    pair.mode = GENERATE(GinMode::gdaki, GinMode::proxy);
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 1);
        if (strong) {
            gin.put(world(r), 1, r.window, 0, r.window, 0, 800, ncclGin_StrongSignalInc{3});
        } else {
            gin.put(world(r), 1, r.window, 0, r.window, 0, 800, ncclGin_WeakSignalInc{3});
        }
    };
    pair.receiver = [&](Rank& r) {
        const ncclGin gin(r.dev, 1);
        gin.waitSignal(kThread, 3, 1);
        check_words(r, 0, 100);
        VERIFY(r.words[100] == 0);
    };
    pair.must_hold();
}

TEST_CASE("a strong signal covers earlier puts; a weak one does not", "[emulator][nccl][gin]") {
    const bool strong = GENERATE(true, false);
    const bool with_data = GENERATE(true, false);
    Pair pair;
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        for (int i = 0; i < 4; ++i) gin.put(world(r), 1, r.window, 80 * i, r.window, 80 * i, 80);
        if (with_data && strong)
            gin.put(world(r), 1, r.window, 320, r.window, 320, 8, ncclGin_StrongSignalInc{0});
        if (with_data && !strong)
            gin.put(world(r), 1, r.window, 320, r.window, 320, 8, ncclGin_WeakSignalInc{0});
        if (!with_data && strong) gin.signal(world(r), 1, ncclGin_StrongSignalAdd{0, 1});
        if (!with_data && !strong) gin.signal(world(r), 1, ncclGin_WeakSignalAdd{0, 1});
    };
    pair.receiver = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.waitSignal(kThread, 0, 1);
        check_words(r, 0, 40);
    };
    if (strong) {
        pair.must_hold();
    } else {
        pair.must_fail_sometimes("does not hold");
    }
}

TEST_CASE("the legacy signal is what the requirements say", "[emulator][nccl][gin]") {
    const bool strong = GENERATE(true, false);
    Pair pair;
    pair.reqs.ginStrongSignalsRequired = strong;
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.put(world(r), 1, r.window, 0, r.window, 0, 640);
        gin.signal(world(r), 1, ncclGin_SignalInc{0});
    };
    pair.receiver = [&](Rank& r) {
        ncclGin(r.dev, 0).waitSignal(kThread, 0, 1);
        check_words(r, 0, 80);
    };
    if (strong) {
        pair.must_hold();
    } else {
        pair.must_fail_sometimes("does not hold");
    }
}

TEST_CASE("a strong signal says nothing about another context", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [&](Rank& r) {
        ncclGin(r.dev, 0).put(world(r), 1, r.window, 0, r.window, 0, 640);
        ncclGin(r.dev, 1).signal(world(r), 1, ncclGin_StrongSignalInc{0});
    };
    pair.receiver = [&](Rank& r) {
        ncclGin(r.dev, 1).waitSignal(kThread, 0, 1);
        check_words(r, 0, 80);
    };
    pair.must_fail_sometimes("does not hold");
}

TEST_CASE("strong signals arrive in order; weak ones may overtake", "[emulator][nccl][gin]") {
    const bool strong = GENERATE(true, false);
    Pair pair;
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        if (strong) {
            gin.signal(world(r), 1, ncclGin_StrongSignalInc{0});
            gin.signal(world(r), 1, ncclGin_StrongSignalInc{1});
        } else {
            gin.signal(world(r), 1, ncclGin_WeakSignalInc{0});
            gin.signal(world(r), 1, ncclGin_WeakSignalInc{1});
        }
    };
    pair.receiver = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.waitSignal(kThread, 1, 1);
        VERIFY(gin.readSignal(0) == 1);
    };
    if (strong) {
        pair.must_hold();
    } else {
        pair.must_fail_sometimes("does not hold");
    }
}

TEST_CASE("the bytes of a put land in pieces and in any order", "[emulator][nccl][gin]") {
    int high_half_first = 0, torn = 0;
    for (uint64_t seed = 1; seed <= 200; ++seed) {
        SimOptions options;
        options.ranks = 2;
        options.seed = seed;
        options.faults.split_chance = 0.7;
        REQUIRE(failure_of(options, [&](int rank) {
                    Rank r(rank, 2, gin_requirements());
                    for (size_t i = 0; i < 64; ++i) r.words[i] = rank == 0 ? ~0ull : 0;
                    gimlet::emu::host_barrier();
                    r.run([&] {
                        const ncclGin gin(r.dev, 0);
                        if (rank == 0) {
                            gin.put(world(r), 1, r.window, 0, r.window, 0, 512,
                                    ncclGin_WeakSignalInc{0});
                            return;
                        }
                        volatile uint64_t* words = r.words;
                        while (gin.readSignal(0) == 0) {
                            if (words[0] == 0 && words[63] != 0) ++high_half_first;
                            for (int i = 0; i < 64; ++i) torn += words[i] != 0 && words[i] != ~0ull;
                        }
                        for (int i = 0; i < 64; ++i) VERIFY(words[i] == ~0ull);
                    });
                }) == "");
    }
    REQUIRE(high_half_first > 0);
    REQUIRE(torn > 0);
}

TEST_CASE("flush means reusable, not arrived", "[emulator][nccl][gin]") {
    Pair pair;
    pair.mode = GENERATE(GinMode::gdaki, GinMode::proxy);
    int late = 0;
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        static uint64_t* destination;
        destination = nullptr;
        pair.receiver = [](Rank& r) {
            destination = r.words;
            ncclGin(r.dev, 0).waitSignal(kThread, 0, 1);
            check_words(r, 0, 80);  // and not what the sender wrote after its flush
        };
        pair.sender = [&](Rank& r) {
            const ncclGin gin(r.dev, 0);
            gin.put(world(r), 1, r.window, 0, r.window, 0, 640, ncclGin_WeakSignalInc{0});
            gin.flush(kThread);
            if (destination != nullptr && destination[79] != 1079) ++late;
            for (int i = 0; i < 80; ++i) r.words[i] = 5;
        };
        REQUIRE(pair.run(seed) == "");
    }
    INFO("not arrived after flush under " << late << " seeds");
    REQUIRE(late > 0);
    REQUIRE(late < kSeeds);
}

TEST_CASE("a source changed before local completion is refused", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        ncclGin(r.dev, 0).put(world(r), 1, r.window, 0, r.window, 0, 640, ncclGin_WeakSignalInc{0});
        gimlet::emu::nccl::poll_point();
        r.words[40] = 5;
    };
    pair.receiver = [](Rank& r) { ncclGin(r.dev, 0).waitSignal(kThread, 0, 1); };
    pair.must_fail_sometimes("the source of a put was changed before the put was locally complete");
    REQUIRE_THAT(pair.run(1) + pair.run(2) + pair.run(3) + pair.run(4),
                 contains_text("block 0 thread 0"));
}

TEST_CASE("a counter says that the source may be reused", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.put(world(r), 1, r.window, 0, r.window, 0, 640, ncclGin_WeakSignalInc{0},
                ncclGin_WeakCounterInc{2});
        gin.waitCounter(kThread, 2, 1);
        r.words[40] = 5;
        VERIFY(gin.readCounter(2) == 1 && gin.readCounter(1) == 0);
        gin.resetCounter(2);
        VERIFY(gin.readCounter(2) == 0);
    };
    pair.receiver = [](Rank& r) {
        ncclGin(r.dev, 0).waitSignal(kThread, 0, 1);
        check_words(r, 0, 80);
    };
    pair.must_hold();
}

TEST_CASE("a get is there after flush, or after flushAsync and wait, and not before",
          "[emulator][nccl][gin]") {
    const int way = GENERATE(0, 1, 2);
    Pair pair;
    pair.mode = GENERATE(GinMode::gdaki, GinMode::proxy);
    pair.receiver = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.get(world(r), 0, r.window, 0, r.window, 0, 640);
        if (way == 0) gin.flush(kThread);
        if (way == 1) {
            ncclGinRequest_t request;
            gin.flushAsync(world(r), 0, &request);
            gin.wait(request);
        }
        if (way == 2) gimlet::emu::nccl::poll_point();
        check_words(r, 0, 80);
    };
    if (way == 2) {
        pair.must_fail_sometimes("does not hold", /*always=*/false);
    } else {
        pair.must_hold();
    }
}

TEST_CASE("putValue carries 1 to 8 bytes", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        const ncclSymPtr<uint32_t> quarter(r.window, 16);
        gin.putValue(world(r), 1, r.window, 0, uint64_t{0x1122334455667788});
        gin.putValue(world(r), 1, r.window, 8, uint8_t{7});
        gin.putValue(world(r), 1, quarter + 1, uint32_t{9}, ncclGin_StrongSignalAdd{4, 5});
    };
    pair.receiver = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.waitSignal(kThread, 4, 5);
        VERIFY(r.words[0] == 0x1122334455667788 && r.words[1] == 7 &&
               r.words[2] == uint64_t{9} << 32);
    };
    pair.must_hold();
}

TEST_CASE("a typed put counts elements", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        const ncclSymPtr<uint64_t> base(r.window);
        ncclGin(r.dev, 0).put(world(r), 1, base + 10, base + 10, 30, ncclGin_WeakSignalInc{0},
                              ncclGin_None{}, kThread, ncclGin_None{}, cuda::thread_scope_system,
                              cuda::thread_scope_system);
    };
    pair.receiver = [](Rank& r) {
        ncclGin(r.dev, 0).waitSignal(kThread, 0, 1);
        check_words(r, 10, 30);
        VERIFY(r.words[9] == 0 && r.words[40] == 0);
    };
    pair.must_hold();
}

TEST_CASE("signals by address add to a word of a window", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.put(world(r), 1, r.window, 0, r.window, 0, 160);
        gin.put(world(r), 1, r.window, 160, r.window, 160, 160,
                ncclGin_StrongVASignalAdd{r.window, 4000, 3});
        gin.signal(world(r), 1, ncclGin_WeakVASignalInc{r.window, 4008});
    };
    pair.receiver = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.waitSignal(kThread, r.window, 4000, 3);
        check_words(r, 0, 40);
        VERIFY(gin.readSignal(r.window, 4000) == 3);
        gin.resetSignal(r.window, 4000);
        VERIFY(gin.readSignal(r.window, 4000) == 0);
        gin.waitSignal(kThread, r.window, 4008, 1);
    };
    pair.must_hold();
}

TEST_CASE("gdaki: an aggregated put needs a doorbell, and flush does not ring",
          "[emulator][nccl][gin]") {
    const auto mode = GENERATE(GinMode::gdaki, GinMode::proxy);
    const bool closed = GENERATE(false, true);
    Pair pair;
    pair.mode = mode;
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        for (int i = 0; i < 3; ++i) {
            const bool last = closed && i == 2;
            gin.put(world(r), 1, r.window, 80 * i, r.window, 80 * i, 80, ncclGin_WeakSignalInc{0},
                    ncclGin_None{}, kThread, ncclGin_None{}, cuda::thread_scope_thread,
                    cuda::thread_scope_device,
                    last ? ncclGinOptFlagsDefault : ncclGinOptFlagsAggregateRequests);
        }
        gin.flush(kThread);
    };
    pair.receiver = [&](Rank& r) {
        ncclGin(r.dev, 0).waitSignal(kThread, 0, 3);
        check_words(r, 0, 30);
    };
    if (mode == GinMode::proxy || closed) {
        pair.must_hold();
    } else {
        pair.must_fail_sometimes("3 without a doorbell", /*always=*/true);
    }
}

TEST_CASE("gdaki: a get outstanding makes flush ring", "[emulator][nccl][gin]") {
    Pair pair;
    pair.receiver = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.get(world(r), 0, r.window, 0, r.window, 0, 160, kThread, ncclGin_None{},
                ncclGinOptFlagsAggregateRequests);
        gin.flush(kThread);
        check_words(r, 0, 20);
    };
    pair.must_hold();
}

TEST_CASE("gdaki: a queue full of unrung operations hangs; a rung one drains",
          "[emulator][nccl][gin]") {
    const bool hold = GENERATE(true, false);
    Pair pair;
    pair.depth = 8;
    pair.sender = [&](Rank& r) {
        const ncclGin gin(r.dev, 0);
        for (int i = 0; i < 20; ++i) {
            gin.put(world(r), 1, r.window, 8 * i, r.window, 8 * i, 8, ncclGin_None{},
                    ncclGin_None{}, kThread, ncclGin_None{}, cuda::thread_scope_thread,
                    cuda::thread_scope_device,
                    hold ? ncclGinOptFlagsAggregateRequests : ncclGinOptFlagsDefault);
        }
        gin.signal(world(r), 1, ncclGin_StrongSignalInc{0});
    };
    pair.receiver = [&](Rank& r) {
        ncclGin(r.dev, 0).waitSignal(kThread, 0, 1);
        check_words(r, 0, 20);
    };
    if (hold) {
        pair.must_fail_sometimes("GIN queue full", /*always=*/true);
    } else {
        pair.must_hold();
    }
}

TEST_CASE("shadows: meet and follow", "[emulator][nccl][gin]") {
    Pair pair;
    pair.threads = 32;
    pair.sender = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        for (int i = 0; i < 3; ++i)
            gin.signal(world(r), 1, ncclGin_WeakSignalAdd{2, 10}, ncclCoopWarp());
    };
    pair.receiver = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        if (threadIdx.x == 0) gin.increaseSignalShadow(2, 10);
        __syncwarp();
        gin.waitSignalMeetShadow(ncclCoopWarp(), 2);
        VERIFY(gin.readSignal(2) >= 10);
        uint32_t before = 0, delta = 0, total = 10;
        while (total < 30) {
            gin.waitSignalFollowShadow(ncclCoopWarp(), 2, 1u, &before, &delta);
            VERIFY(before == total && delta >= 10 && delta % 10 == 0);
            total += delta;
        }
        VERIFY(*gin.getSignalShadowPtr(2) == 30);
        __syncwarp();
        if (threadIdx.x == 0) {
            gin.resetSignal(2);
            VERIFY(gin.readSignal(2) == 0 && *gin.getSignalShadowPtr(2) == 0);
        }
    };
    pair.must_hold();
}

TEST_CASE("follow-shadow by a whole CTA can lose the delta in slow warps",
          "[emulator][nccl][gin]") {
    Pair pair;
    pair.threads = 64;
    pair.sender = [](Rank& r) {
        ncclGin(r.dev, 0).signal(world(r), 1, ncclGin_WeakSignalInc{0}, ncclCoopCta());
    };
    pair.receiver = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        // The signal is there already, so that thread 0 need not wait.
        gin.waitSignal(ncclCoopCta(), 0, 1);
        uint64_t before = 0, delta = 0;
        gin.waitSignalFollowShadow(ncclCoopCta(), 0, uint64_t{1}, &before, &delta);
        VERIFY(delta == 1);
    };
    pair.must_fail_sometimes("does not hold");
}

TEST_CASE("rolling compares", "[emulator][nccl][gin]") {
    REQUIRE(nccl::utility::rollingLessEq(0xfffffff0, 5, 32));
    REQUIRE(!nccl::utility::rollingLessEq(5, 0xfffffff0, 32));
    REQUIRE(nccl::utility::rollingLessEq(7, 7, 1 + 31));
    REQUIRE(nccl::utility::rollingLessEq(~uint64_t{0}, 0, 64));
    REQUIRE(!nccl::utility::rollingLessEq(1, 0, 56));
    Pair pair;
    pair.sender = [](Rank& r) {
        ncclGin(r.dev, 0).signal(world(r), 1, ncclGin_StrongSignalAdd{0, 0xfffffff0});
        ncclGin(r.dev, 0).signal(world(r), 1, ncclGin_StrongSignalAdd{0, 0x20});
    };
    pair.receiver = [](Rank& r) {
        const ncclGin gin(r.dev, 0);
        gin.waitSignal(kThread, 0, 0x100000010, 64);
        VERIFY(gin.readSignal(0, 32) == 0x10);
        gin.waitSignal(kThread, 0, 0xfffffff8, 32);  // passed already, on the circle of 32 bits
    };
    pair.must_hold();
}

TEST_CASE("a rank may send to itself", "[emulator][nccl][gin]") {
    SimOptions options;
    options.ranks = 1;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        options.seed = seed;
        REQUIRE(failure_of(options, [&](int rank) {
                    Rank r(rank, 1, gin_requirements());
                    r.words[0] = 77;
                    r.run([&] {
                        const ncclGin gin(r.dev, 0);
                        gin.put(world(r), 0, r.window, 8, r.window, 0, 8, ncclGin_WeakSignalInc{0},
                                ncclGin_CounterInc{0});
                        gin.waitSignal(kThread, 0, 1);
                        VERIFY(r.words[1] == 77);
                    });
                    r.close();
                }) == "");
    }
}

TEST_CASE("rail connections turn a peer off the rail into its team's rank on the rail",
          "[emulator][nccl][gin]") {
    SimOptions options;
    options.ranks = 4;
    options.lsa_team_size = 2;
    ncclDevCommRequirements reqs = gin_requirements();
    reqs.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
    REQUIRE(failure_of(options, [&](int rank) {
                Rank r(rank, 4, reqs);
                r.run([&] {
                    const ncclGin gin(r.dev, 0);
                    if (rank == 0)
                        gin.signal(world(r), 3, ncclGin_StrongSignalInc{0});  // lands on 2
                    if (rank == 2) gin.waitSignal(kThread, 0, 1);
                    if (rank == 1) gin.signal(ncclTeamRail(r.dev), 1, ncclGin_StrongSignalInc{1});
                    if (rank == 3) gin.waitSignal(kThread, 1, 1);
                });
                if (rank == 3) r.run([&] { VERIFY(ncclGin(r.dev, 0).readSignal(0) == 0); });
                r.close();
            }) == "");
}

TEST_CASE("the plain-function form does the same", "[emulator][nccl][gin]") {
    Pair pair;
    pair.sender = [](Rank& r) {
        alignas(ncclGin_C) char space[sizeof(ncclGin_C)];
        auto* net = reinterpret_cast<ncclGin_C*>(space);
        ncclGin_C_init(net, NCCL_GIN_BACKEND_MASK_ALL, r.dev, 1);
        ncclGinPut_v2(net, world(r), 1, r.window, 0, r.window, 0, 80, true, 0, ncclGinSignalInc, 0,
                      true, 1, ncclCoopAny(kThread), false, nullptr, cuda::thread_scope_thread,
                      cuda::thread_scope_device, 0);
        ncclGinWaitCounter(net, ncclCoopAny(kThread), 1, 1, 56, cuda::memory_order_acquire);
        ncclGinPutValue(net, world(r), 1, r.window, 80, 1010, 8, true, 1, ncclGinSignalAdd, 4,
                        ncclCoopAny(kThread), false, nullptr, cuda::thread_scope_thread,
                        cuda::thread_scope_device);
        ncclGinFlush(net, ncclCoopAny(kThread), cuda::memory_order_acquire);
    };
    pair.receiver = [](Rank& r) {
        ncclGin_C net(r.dev, NCCL_GIN_BACKEND_MASK_ALL, 1);
        ncclGinWaitSignal(&net, ncclCoopAny(kThread), 0, 1, 64, cuda::memory_order_acquire);
        ncclGinWaitSignal(&net, ncclCoopAny(kThread), 1, 4, 64, cuda::memory_order_acquire);
        check_words(r, 0, 11);
        VERIFY(ncclGinReadSignal(&net, 1, 64, cuda::memory_order_acquire) == 4);
    };
    pair.must_hold();
}

TEST_CASE("the same seed gives the same run", "[emulator][nccl][gin]") {
    const auto hash_of = [](uint64_t seed) {
        SimOptions options;
        options.ranks = 3;
        options.seed = seed;
        return simulate(options,
                        [&](int rank) {
                            Rank r(rank, 3, gin_requirements());
                            r.run([&] {
                                const ncclGin gin(r.dev, 0);
                                for (int p = 0; p < 3; ++p) {
                                    gin.put(world(r), p, r.window, 800, r.window, 0, 400,
                                            ncclGin_StrongSignalInc{0});
                                }
                                gin.waitSignal(kThread, 0, 3);
                            });
                        })
            .trace_hash;
    };
    std::set<uint64_t> hashes;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
        REQUIRE(hash_of(seed) == hash_of(seed));
        hashes.insert(hash_of(seed));
    }
    REQUIRE(hashes.size() == 10);
}

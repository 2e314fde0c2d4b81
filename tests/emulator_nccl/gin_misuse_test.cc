// SPDX-License-Identifier: Apache-2.0
// What hardware leaves undefined is refused, with a message that says what and where.
#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

namespace {

const ncclCoopThread kThread;

/// Both ranks run `use`; returns the failure's text.
std::string misuse(const std::function<void(Rank&, const ncclGin&)>& use,
                   const ncclDevCommRequirements& reqs = gin_requirements(), int context = 0,
                   unsigned threads = 1, unsigned blocks = 1, uint64_t seed = 1,
                   ncclGinResourceSharingMode mode = NCCL_GIN_RESOURCE_SHARING_GPU) {
    SimOptions options;
    options.ranks = 2;
    options.seed = seed;
    return failure_of(options, [&](int rank) {
        Rank r(rank, 2, reqs);
        r.run([&] { use(r, ncclGin(r.dev, context, mode)); }, threads, blocks);
    });
}

ncclTeam world(const Rank& r) {
    return ncclTeamWorld(r.dev);
}

}  // namespace

TEST_CASE("ids, ranges and peers out of bounds are refused", "[emulator][nccl][gin]") {
    using Use = std::function<void(Rank&, const ncclGin&)>;
    const std::pair<const char*, Use> cases[] = {
        {"peer 2 in a team of 2",
         [](Rank& r, const ncclGin& g) { g.signal(world(r), 2, ncclGin_WeakSignalInc{0}); }},
        {"peer -1",
         [](Rank& r, const ncclGin& g) { g.signal(world(r), -1, ncclGin_WeakSignalInc{0}); }},
        {"signal 8 of 8",
         [](Rank& r, const ncclGin& g) { g.signal(world(r), 0, ncclGin_WeakSignalInc{8}); }},
        {"signal 9 of 8", [](Rank&, const ncclGin& g) { g.readSignal(9); }},
        {"signal 9 of 8", [](Rank&, const ncclGin& g) { g.getSignalShadowPtr(9); }},
        {"counter 4 of 4", [](Rank&, const ncclGin& g) { g.readCounter(4); }},
        {"57 bits", [](Rank&, const ncclGin& g) { g.readCounter(0, 57); }},
        {"0 bits", [](Rank&, const ncclGin& g) { g.readSignal(0, 0); }},
        {"destination range [8184, +16)",
         [](Rank& r, const ncclGin& g) { g.put(world(r), 1, r.window, 8184, r.window, 0, 16); }},
        {"source range [8192, +1)",
         [](Rank& r, const ncclGin& g) { g.put(world(r), 1, r.window, 0, r.window, 8192, 1); }},
        {"remote range",
         [](Rank& r, const ncclGin& g) { g.get(world(r), 1, r.window, 9000, r.window, 0, 1); }},
        {"destination window is NULL",
         [](Rank& r, const ncclGin& g) { g.put(world(r), 1, nullptr, 0, r.window, 0, 16); }},
        {"offset 12 is not a multiple of 8",
         [](Rank& r, const ncclGin& g) {
             g.signal(world(r), 1, ncclGin_WeakVASignalInc{r.window, 12});
         }},
        {"unknown optFlags",
         [](Rank& r, const ncclGin& g) {
             g.signal(world(r), 1, ncclGin_WeakSignalInc{0}, kThread, ncclGin_None{},
                      cuda::thread_scope_thread, cuda::thread_scope_device, 64);
         }},
        {"not one of flushAsync",
         [](Rank&, const ncclGin& g) {
             ncclGinRequest_t request = {{1, 2}};
             g.wait(request);
         }},
    };
    for (const auto& [text, use] : cases) {
        INFO(text);
        REQUIRE_THAT(misuse(use), contains_text(text));
    }
    const auto nothing = [](Rank&, const ncclGin& g) { g.readSignal(0); };
    REQUIRE(misuse(nothing).empty());
    REQUIRE_THAT(misuse(nothing, gin_requirements(), 2), contains_text("context 2 of 2"));
    REQUIRE_THAT(misuse(nothing, gin_requirements(), -1), contains_text("context 4294967295 of 2"));
    REQUIRE_THAT(misuse(nothing, lsa_requirements()), contains_text("created without GIN"));
}

TEST_CASE("strong and address signals need what the requirements declared",
          "[emulator][nccl][gin]") {
    ncclDevCommRequirements reqs = gin_requirements();
    reqs.ginStrongSignalsRequired = false;
    const auto strong = [](Rank& r, const ncclGin& g) {
        g.signal(world(r), 1, ncclGin_StrongSignalInc{0});
    };
    REQUIRE_THAT(misuse(strong, reqs), contains_text("ginStrongSignalsRequired"));
    reqs = gin_requirements();
    reqs.ginVaSignalsRequired = false;
    const auto address = [](Rank& r, const ncclGin& g) {
        g.signal(world(r), 1, ncclGin_WeakVASignalInc{r.window, 8});
    };
    REQUIRE_THAT(misuse(address, reqs), contains_text("ginVaSignalsRequired"));
    SimOptions options;
    options.ranks = 2;
    const std::string text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, gin_requirements());
        void* memory = nullptr;
        ncclWindow_t loose = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, 4096));
        NCCL_OK(ncclCommWindowRegister(r.comm, memory, 4096, &loose, 0));
        r.run([&] { ncclGin(r.dev, 0).signal(world(r), 0, ncclGin_WeakVASignalInc{loose, 8}); });
    });
    REQUIRE_THAT(text, contains_text("NCCL_WIN_STRICT_ORDERING"));
}

TEST_CASE("Inc and Add on one signal need a reset in between", "[emulator][nccl][gin]") {
    const bool reset = GENERATE(false, true);
    const bool by_address = GENERATE(false, true);
    const auto use = [&](Rank& r, const ncclGin& g) {
        if (r.rank != 0) return;
        if (by_address) {
            g.signal(world(r), 0, ncclGin_StrongVASignalInc{r.window, 64});
            g.waitSignal(kThread, r.window, 64, 1);
            if (reset) g.resetSignal(r.window, 64);
            g.signal(world(r), 0, ncclGin_StrongVASignalAdd{r.window, 64, 5});
            g.waitSignal(kThread, r.window, 64, 5);
        } else {
            g.signal(world(r), 0, ncclGin_StrongSignalInc{1});
            g.waitSignal(kThread, 1, 1);
            if (reset) g.resetSignal(1);
            g.signal(world(r), 0, ncclGin_StrongSignalAdd{1, 5});
            g.waitSignal(kThread, 1, 5);
        }
    };
    const std::string text = misuse(use);
    if (reset) {
        REQUIRE(text == "");
    } else {
        REQUIRE_THAT(text, contains_text("an Add after Incs without a reset"));
    }
}

TEST_CASE("reset with operations in flight is refused", "[emulator][nccl][gin]") {
    const bool counter = GENERATE(false, true);
    int refused = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::string text = misuse(
            [&](Rank& r, const ncclGin& g) {
                g.put(world(r), 0, r.window, 8 * (1 + r.rank), r.window, 0, 8,
                      ncclGin_WeakSignalInc{0}, ncclGin_WeakCounterInc{0});
                if (counter) {
                    g.resetCounter(0);
                } else if (r.rank == 0) {
                    g.resetSignal(0);
                }
            },
            gin_requirements(), 0, 1, 1, seed);
        if (text.empty()) continue;
        REQUIRE_THAT(text, contains_text("operations in flight"));
        ++refused;
    }
    REQUIRE(refused > 0);
}

TEST_CASE("sharing modes", "[emulator][nccl][gin]") {
    const auto put = [](Rank& r, const ncclGin& g) {
        for (int i = 0; i < 4; ++i) g.putValue(world(r), 1, r.window, 8 * blockIdx.x, uint64_t{1});
    };
    const auto refused = [&](ncclGinResourceSharingMode mode, unsigned threads, unsigned blocks,
                             const char* text) {
        int count = 0;
        for (uint64_t seed = 1; seed <= 20; ++seed) {
            const std::string failure =
                misuse(put, gin_requirements(), 0, threads, blocks, seed, mode);
            if (failure.empty()) continue;
            REQUIRE_THAT(failure, contains_text(text));
            ++count;
        }
        return count;
    };
    REQUIRE(refused(NCCL_GIN_RESOURCE_SHARING_GPU, 4, 3, "") == 0);
    REQUIRE(refused(NCCL_GIN_RESOURCE_SHARING_CTA, 4, 1, "") == 0);
    REQUIRE(refused(NCCL_GIN_RESOURCE_SHARING_THREAD, 1, 1, "") == 0);
    REQUIRE(refused(NCCL_GIN_RESOURCE_SHARING_CTA, 1, 3, "two CTAs") > 0);
    REQUIRE(refused(NCCL_GIN_RESOURCE_SHARING_THREAD, 2, 1, "two threads") > 0);
    int mixed = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::string failure = misuse(
            [&](Rank& r, const ncclGin& g) {
                const auto mode =
                    blockIdx.x == 0 ? NCCL_GIN_RESOURCE_SHARING_GPU : NCCL_GIN_RESOURCE_SHARING_CTA;
                put(r, ncclGin(g.comm, 0, mode));
            },
            gin_requirements(), 0, 1, 2, seed);
        if (failure.empty()) continue;
        REQUIRE_THAT(failure, contains_text("sharing modes"));
        ++mixed;
    }
    REQUIRE(mixed > 0);
}

TEST_CASE("MaySkipCreditCheck on a full queue is refused", "[emulator][nccl][gin]") {
    ncclDevCommRequirements reqs = gin_requirements();
    reqs.ginQueueDepth = 4;
    const std::string text = misuse(
        [](Rank& r, const ncclGin& g) {
            for (int i = 0; i < 5; ++i) {
                g.putValue(world(r), 1, r.window, 0, 1, ncclGin_None{}, kThread, ncclGin_None{},
                           cuda::thread_scope_thread, cuda::thread_scope_device,
                           ncclGinOptFlagsMaySkipCreditCheck | ncclGinOptFlagsAggregateRequests);
            }
        },
        reqs);
    REQUIRE_THAT(text, contains_text("MaySkipCreditCheck on a full queue"));
}

TEST_CASE("things must not be destroyed under operations in flight", "[emulator][nccl][gin]") {
    const int what = GENERATE(0, 1, 2, 3);
    const char* texts[] = {"ncclDevCommDestroy with", "ncclCommWindowDeregister with",
                           "ncclMemFree of", "ncclCommDestroy with"};
    int refused = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        SimOptions options;
        options.ranks = 2;
        options.seed = seed;
        const std::string text = failure_of(options, [&](int rank) {
            Rank r(rank, 2, gin_requirements());
            gimlet::emu::host_barrier();
            if (rank == 1) {
                r.run([] {});
                return;
            }
            r.run([&] {
                // Held back for ever: there is no doorbell.
                ncclGin(r.dev, 0).put(world(r), 1, r.window, 0, r.window, 0, 8,
                                      ncclGin_WeakSignalInc{0}, ncclGin_None{}, kThread,
                                      ncclGin_None{}, cuda::thread_scope_thread,
                                      cuda::thread_scope_device, ncclGinOptFlagsAggregateRequests);
            });
            if (what == 0) NCCL_OK(ncclDevCommDestroy(r.comm, &r.dev));
            if (what == 1) NCCL_OK(ncclCommWindowDeregister(r.comm, r.window));
            if (what == 2) NCCL_OK(ncclMemFree(r.words));
            if (what == 3) NCCL_OK(ncclCommDestroy(r.comm));
        });
        refused += text.find(texts[what]) != std::string::npos;
    }
    REQUIRE(refused == 20);
}

TEST_CASE("abort drops what is in flight and waits for nobody", "[emulator][nccl][gin]") {
    SimOptions options;
    options.ranks = 2;
    const std::string text = failure_of(options, [&](int rank) {
        Rank r(rank, 2, gin_requirements());
        if (rank == 1) return;
        r.run([&] {
            for (int i = 0; i < 9; ++i)
                ncclGin(r.dev, 0).put(world(r), 1, r.window, 0, r.window, 0, 4096);
        });
        NCCL_OK(ncclCommAbort(r.comm));
        NCCL_OK(ncclMemFree(r.words));
    });
    REQUIRE(text == "");
}

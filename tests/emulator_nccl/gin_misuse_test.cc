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

TEST_CASE("a signal by address belongs to GIN alone", "[emulator][nccl][gin]") {
    const auto use = [](Rank& r, uint64_t written, uint64_t by_gin) {
        const ncclGin gin(r.dev, 0);
        gin.signal(world(r), 0, ncclGin_StrongVASignalAdd{r.window, 64, 3});
        gin.waitSignal(kThread, r.window, 64, 3);
        r.words[8] = written;
        gin.signal(world(r), 0, ncclGin_StrongVASignalAdd{r.window, 64, 2});
        gin.waitSignal(kThread, r.window, 64, by_gin);
        gin.flush(kThread);
    };
    for (const auto& [written, by_gin, text] :
         {std::tuple{3, 5, ""}, std::tuple{0, 2, ""},  // cleared
          std::tuple{4, 6, "changed by something else than GIN"}}) {
        const std::string failure = misuse([&, w = written, g = by_gin](Rank& r, const ncclGin&) {
            if (r.rank == 0) use(r, static_cast<uint64_t>(w), static_cast<uint64_t>(g));
        });
        CAPTURE(written, failure);
        REQUIRE_THAT(failure, contains_text(text));
        REQUIRE(failure.empty() == (*text == 0));
    }
}

TEST_CASE("a word that was a signal is free when its window is gone", "[emulator][nccl][gin]") {
    SimOptions options;
    options.ranks = 1;
    REQUIRE(failure_of(options, [](int rank) {
                Rank r(rank, 1, gin_requirements());
                for (int life = 0; life < 2; ++life) {
                    r.run([&] {
                        const ncclGin gin(r.dev, 0);
                        if (life == 0) {
                            gin.signal(world(r), 0, ncclGin_StrongVASignalInc{r.window, 64});
                        } else {
                            gin.signal(world(r), 0, ncclGin_StrongVASignalAdd{r.window, 64, 1});
                        }
                        gin.waitSignal(kThread, r.window, 64, static_cast<uint64_t>(life) + 1);
                        gin.flush(kThread);
                    });
                    NCCL_OK(ncclCommWindowDeregister(r.comm, r.window));
                    NCCL_OK(ncclCommWindowRegister(r.comm, r.words, r.word_count * 8, &r.window,
                                                   NCCL_WIN_STRICT_ORDERING));
                }
                r.close();
            }) == "");
}

TEST_CASE("windows and device communicators that are gone, or another's", "[emulator][nccl][gin]") {
    const auto refusal = [](const std::function<void(Rank&, ncclComm_t, ncclWindow_t)>& use) {
        SimOptions options;
        options.ranks = 1;
        return failure_of(options, [&](int rank) {
            Rank r(rank, 1, gin_requirements());
            const ncclComm_t other = join_world(rank, 1);
            void* memory = nullptr;
            ncclWindow_t foreign = nullptr;
            NCCL_OK(ncclMemAlloc(&memory, 4096));
            NCCL_OK(ncclCommWindowRegister(other, memory, 4096, &foreign, 0));
            use(r, other, foreign);
        });
    };
    REQUIRE_THAT(refusal([](Rank& r, ncclComm_t, ncclWindow_t foreign) {
                     r.run([&] { ncclGin(r.dev, 0).put(world(r), 0, foreign, 0, foreign, 8, 8); });
                 }),
                 contains_text("window is of another communicator"));
    REQUIRE_THAT(
        refusal([](Rank& r, ncclComm_t, ncclWindow_t) {
            NCCL_OK(ncclCommWindowDeregister(r.comm, r.window));
            r.run([&] { ncclGin(r.dev, 0).put(world(r), 0, r.window, 0, r.window, 8, 8); });
        }),
        contains_text("window is not registered"));
    REQUIRE_THAT(refusal([](Rank& r, ncclComm_t other, ncclWindow_t foreign) {
                     NCCL_OK(ncclCommWindowDeregister(other, foreign));
                     r.run([&] { ncclGetLocalPointer(foreign, 0); });
                 }),
                 contains_text("the window was deregistered"));
    REQUIRE_THAT(refusal([](Rank& r, ncclComm_t, ncclWindow_t) {
                     ncclDevComm copy = r.dev;
                     NCCL_OK(ncclDevCommDestroy(r.comm, &r.dev));
                     r.run([&] { ncclGin(copy, 0).readSignal(0); });
                 }),
                 contains_text("the device communicator was destroyed"));
    REQUIRE_THAT(refusal([](Rank& r, ncclComm_t, ncclWindow_t) {
                     ncclDevComm made_up = r.dev;
                     std::memset(static_cast<void*>(&made_up), 0, sizeof made_up);
                     r.run([&] { ncclGin(made_up, 0).readSignal(0); });
                 }),
                 contains_text("not a device communicator of ncclDevCommCreate"));
}

TEST_CASE("reset with operations in flight is refused", "[emulator][nccl][gin]") {
    enum class What { signal, signal_by_address, counter };
    const What what = GENERATE(What::signal, What::signal_by_address, What::counter);
    int refused = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const std::string text = misuse(
            [&](Rank& r, const ncclGin& g) {
                if (what == What::signal_by_address) {
                    g.signal(world(r), 0, ncclGin_WeakVASignalInc{r.window, 64});
                    if (r.rank == 0) g.resetSignal(r.window, 64);
                    return;
                }
                g.put(world(r), 0, r.window, 8 * (1 + r.rank), r.window, 0, 8,
                      ncclGin_WeakSignalInc{0}, ncclGin_WeakCounterInc{0});
                if (what == What::counter) {
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

TEST_CASE("things must not be taken from under a running kernel", "[emulator][nccl][gin]") {
    struct What {
        const char* text;  ///< of the refusal; empty: it is legal
        std::function<void(Rank&)> take;
    };
    const What whats[] = {
        {"ncclDevCommDestroy while a kernel uses it",
         [](Rank& r) { NCCL_OK(ncclDevCommDestroy(r.comm, &r.dev)); }},
        {"ncclCommWindowDeregister while a kernel uses the window",
         [](Rank& r) { NCCL_OK(ncclCommWindowDeregister(r.comm, r.window)); }},
        {"ncclMemFree of memory that a running kernel uses",
         [](Rank& r) { NCCL_OK(ncclMemFree(r.words)); }},
        {"",
         [](Rank& r) {
             NCCL_OK(ncclCommAbort(r.comm));
             NCCL_OK(ncclMemFree(r.words));
         }},
    };
    for (const What& what : whats) {
        INFO(what.text);
        SimOptions options;
        options.ranks = 2;
        const std::string text = failure_of(options, [&](int rank) {
            Rank r(rank, 2, gin_requirements());
            if (rank == 1) return;
            bool begun = false;
            bool over = false;
            const std::function<void()> body = [&] {
                const ncclGin gin(r.dev, 0);
                gin.put(world(r), 0, r.window, 64, r.window, 0, 8, ncclGin_WeakSignalInc{0});
                gin.flush(kThread);
                gin.waitSignal(kThread, 0, 1);
                begun = true;
                while (!over) __nanosleep(100);
            };
            cudaLaunchConfig_t config = {};
            config.gridDim = dim3(1);
            config.blockDim = dim3(1);
            VERIFY(cudaLaunchKernelEx(&config, body_kernel, &body) == cudaSuccess);
            while (!begun) VERIFY(cudaStreamQuery(nullptr) == cudaErrorNotReady);
            what.take(r);
            over = true;
            VERIFY(cudaDeviceSynchronize() == cudaSuccess);
        });
        if (*what.text == 0) REQUIRE(text == "");
        REQUIRE_THAT(
            text, contains_text(what.text) && contains_text(*what.text == 0 ? "" : "body_kernel"));
    }
}

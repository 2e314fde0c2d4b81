// SPDX-License-Identifier: Apache-2.0
// The race checker finds what is wrong, and nothing else: small right and wrong programs, then
// whole dispatch and combine steps. This program's device code is instrumented (access_hooks.cc).
#include <functional>

#include "device/core/bulk.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "tests/emulator_nccl/rig.hpp"
#include "tests/sim/exchange_world.hpp"

using namespace gimlet;
using namespace gimlet::device;
using gimlet::test::failure_of;

namespace {

constexpr int kSeeds = 12;

/// A word for data, one for a flag, and room for a row, in each rank's memory.
struct Place {
    alignas(128) std::uint64_t data[8];
    alignas(128) std::uint64_t flag;
    alignas(128) std::uint64_t flag2;
};

struct Machine {
    int rank;
    Place* own;
    Place* other;
};

using Body = std::function<void(const Machine&)>;

void kernel(const Body* body, Machine machine) {
    (*body)(machine);
}

void launch_body(const Body& body, const Machine& machine) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(32);
    config.dynamicSmemBytes = 512;
    VERIFY(cudaLaunchKernelEx(&config, kernel, &body, machine) == cudaSuccess);
    VERIFY(cudaDeviceSynchronize() == cudaSuccess);
}

/// What the checker says of two ranks that run `body`, under this seed; empty: no race.
std::string races_of(const Body& body, std::uint64_t seed) {
    emu::SimOptions options;
    options.seed = seed;
    options.gin = emu::GinMode::off;
    options.memory.find_races = true;
    options.memory.stale_loads = true;
    return failure_of(options, [&](int rank) {
        void* memory = nullptr;
        VERIFY(cudaMalloc(&memory, sizeof(Place)) == cudaSuccess);
        VERIFY(cudaMemset(memory, 0, sizeof(Place)) == cudaSuccess);
        VERIFY(cudaDeviceSynchronize() == cudaSuccess);
        const auto all = emu::host_all_gather(&memory, sizeof(memory));
        Machine machine{rank, static_cast<Place*>(memory), nullptr};
        std::memcpy(&machine.other, all[static_cast<std::size_t>(1 - rank)].data(), sizeof(void*));
        launch_body(body, machine);
        emu::host_barrier();
        VERIFY(cudaFree(memory) == cudaSuccess);
    });
}

void must_be_clean(const Body& body) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        INFO("seed " << seed);
        REQUIRE(races_of(body, seed) == "");
    }
}

/// Some seed finds it, and the report has all parts; no other failure comes.
void must_be_found(const Body& body, const std::vector<std::string>& parts) {
    int found = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const std::string text = races_of(body, seed);
        if (text.empty()) continue;
        INFO("seed " << seed);
        for (const std::string& part : parts) REQUIRE_THAT(text, test::contains_text(part));
        if (++found == 2) break;  // each report runs addr2line
    }
    CHECK(found > 0);
}

bool acts() {
    return thread_index() == 0 && block_index() == 0;
}

template <class Publish, class Await>
Body message(Publish publish, Await await) {
    return [=](const Machine& m) {
        if (!acts()) return;
        if (m.rank == 0) {
            m.other->data[0] = 7;
            publish(&m.other->flag);
        } else {
            while (!await(&m.own->flag)) {
            }
            VERIFY(m.own->data[0] == 7);
        }
    };
}

std::uint64_t* shared_words() {
    return reinterpret_cast<std::uint64_t*>(dynamic_shared_memory());
}

/// Rank 0 releases a word; rank 1 reads it by a bulk load.
Body bulk_read(bool fenced) {
    return [=](const Machine& m) {
        if (!acts()) return;
        if (m.rank == 0) {
            m.other->data[0] = 7;
            store_release<Scope::system>(&m.other->flag, 1);
            return;
        }
        while (load_acquire<Scope::system>(&m.own->flag) == 0) {
        }
        if (fenced) fence_proxy_async();
        auto* const bar = reinterpret_cast<Mbarrier*>(dynamic_shared_memory() + 256);
        mbarrier_init(bar, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect_tx(bar, 64);
        bulk_load(shared_words(), m.own->data, 64, bar);
        mbarrier_wait(bar, 0);
        VERIFY(!fenced || shared_words()[0] == 7);
    };
}

/// Rank 0 sends a row by a bulk store.
Body bulk_write(bool fenced, bool waited) {
    return [=](const Machine& m) {
        if (!acts()) return;
        if (m.rank == 0) {
            for (int i = 0; i < 8; ++i) shared_words()[i] = 7;
            if (fenced) fence_proxy_async_shared();
            bulk_store(m.other->data, shared_words(), 64);
            bulk_commit();
            waited ? bulk_wait<0>() : bulk_wait_read<0>();
            store_release<Scope::system>(&m.other->flag, 1);
            return;
        }
        while (load_acquire<Scope::system>(&m.own->flag) == 0) {
        }
        const std::uint64_t seen = m.own->data[7];
        VERIFY(!waited || seen == 7);
    };
}

/// A row is written by bulk stores twice: by two threads of a block, or by two blocks.
Body bulk_write_again(bool same_block, bool fenced) {
    return [=](const Machine& m) {
        if (m.rank != 0) return;
        const auto store = [&] {
            bulk_store(m.other->data, shared_words(), 64);
            bulk_commit();
            bulk_wait<0>();
        };
        if (block_index() == 0) {
            if (lane_index() < 8) shared_words()[lane_index()] = 7;
            fence_proxy_async_shared();
            warp_sync();
            if (thread_index() == 0) store();
            warp_sync();
            if (thread_index() == 1 && same_block) store();
            if (thread_index() == 0) store_release<Scope::gpu>(&m.own->flag, 1);
        } else if (thread_index() == 0 && !same_block) {
            for (int i = 0; i < 8; ++i) shared_words()[i] = 7;
            fence_proxy_async_shared();
            while (load_acquire<Scope::gpu>(&m.own->flag) == 0) {
            }
            if (fenced) fence_proxy_async();
            store();
        }
    };
}

/// Rank 0 sends over GIN, or is asked; rank 1 receives. The first words of a window are the data.
struct GinBodies {
    std::function<void(const test::Rank&)> sender;
    std::function<void(const test::Rank&)> receiver;
};

std::string gin_races_of(const GinBodies& bodies, std::uint64_t seed) {
    emu::SimOptions options;
    options.seed = seed;
    options.lsa_team_size = 1;
    options.memory.find_races = true;
    return failure_of(options, [&](int rank) {
        test::Rank me(rank, 2, test::gin_requirements());
        const auto& body = rank == 0 ? bodies.sender : bodies.receiver;
        if (body != nullptr) me.run([&] { body(me); });
        // Nothing may be on its way when the window goes.
        me.run([&] {
            for (int context = 0; context < 2; ++context) {
                const ncclGin gin(me.dev, context);
                if (rank == 0) {
                    gin.signal(ncclTeamWorld(me.dev), 1, ncclGin_StrongSignalAdd{1, 1});
                } else {
                    gin.waitSignal(ncclCoopThread(), 1, 1);
                }
            }
        });
        me.close();
    });
}

void gin_must_be_clean(const GinBodies& bodies) {
    for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
        INFO("seed " << seed);
        REQUIRE(gin_races_of(bodies, seed) == "");
    }
}

void gin_must_be_found(const GinBodies& bodies, const std::vector<std::string>& parts) {
    int found = 0;
    for (std::uint64_t seed = 1; seed <= kSeeds && found < 2; ++seed) {
        const std::string text = gin_races_of(bodies, seed);
        if (text.empty()) continue;
        INFO("seed " << seed);
        for (const std::string& part : parts) REQUIRE_THAT(text, test::contains_text(part));
        ++found;
    }
    CHECK(found > 0);
}

void put_row(const test::Rank& r, int context, bool closes) {
    const ncclGin gin(r.dev, context);
    const ncclTeam world = ncclTeamWorld(r.dev);
    if (closes) {
        gin.put(world, 1, r.window, 0, r.window, 0, 64, ncclGin_StrongSignalInc{0});
    } else {
        gin.put(world, 1, r.window, 0, r.window, 0, 64);
    }
}

void await_signal(const test::Rank& r, int context) {
    ncclGin(r.dev, context).waitSignal(ncclCoopThread(), 0, 1);
}

/// Waits for the signal on `context`, then reads.
std::function<void(const test::Rank&)> read_after_signal(int context) {
    return [context](const test::Rank& r) {
        await_signal(r, context);
        VERIFY(r.words[7] != 1);  // a read
    };
}

}  // namespace

TEST_CASE("races: puts, signals and gets", "[races]") {
    gin_must_be_clean({[](const auto& r) { put_row(r, 0, true); }, read_after_signal(0)});
    SECTION("a weak signal without the data") {
        gin_must_be_found(
            {[](const auto& r) {
                 put_row(r, 0, false);
                 ncclGin(r.dev, 0).signal(ncclTeamWorld(r.dev), 1, ncclGin_WeakSignalAdd{0, 1});
             },
             read_after_signal(0)},
            {"plain read at tests/races/races_test.cc:", "put"});
    }
    SECTION("a strong signal on another context") {
        gin_must_be_found(
            {[](const auto& r) {
                 put_row(r, 0, false);
                 ncclGin(r.dev, 1).signal(ncclTeamWorld(r.dev), 1, ncclGin_StrongSignalAdd{0, 1});
             },
             read_after_signal(1)},
            {"plain read", "put"});
    }
    SECTION("what a put overwrites is read beside it, or a GPU adds to it") {
        gin_must_be_found({[](const auto& r) { put_row(r, 0, true); },
                           [](const auto& r) {
                               VERIFY(r.words[7] != 1);
                               await_signal(r, 0);
                           }},
                          {"plain read", "put"});
        gin_must_be_found({[](const auto& r) { put_row(r, 0, true); },
                           [](const auto& r) {
                               add_release<Scope::system>(r.words, std::uint64_t{1});
                               await_signal(r, 0);
                           }},
                          {"ordered write at system scope", "put"});
    }
    SECTION("a get is read after flush, and not before") {
        const auto get = [](bool flushes) {
            return [flushes](const test::Rank& r) {
                const ncclGin gin(r.dev, 0);
                gin.get(ncclTeamWorld(r.dev), 0, r.window, 0, r.window, 0, 64);
                if (flushes) gin.flush(ncclCoopThread());
                VERIFY(r.words[7] != 1);
                gin.flush(ncclCoopThread());
            };
        };
        gin_must_be_clean({nullptr, get(true)});
        gin_must_be_found({nullptr, get(false)}, {"plain read", "get"});
    }
}

TEST_CASE("races: messages by release and acquire", "[races]") {
    const auto release = [](std::uint64_t* flag) { store_release<Scope::system>(flag, 1); };
    const auto acquire = [](std::uint64_t* flag) { return load_acquire<Scope::system>(flag) != 0; };
    must_be_clean(message(release, acquire));
    must_be_clean(message(
        [](std::uint64_t* flag) {
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(flag, 1);
        },
        [](std::uint64_t* flag) {
            if (load_relaxed<Scope::system>(flag) == 0) return false;
            fence_acq_rel<Scope::system>();
            return true;
        }));
    must_be_clean(
        message([](std::uint64_t* flag) { add_release<Scope::system>(flag, 1); }, acquire));
    SECTION("release at too small a scope") {
        must_be_found(
            message([](std::uint64_t* flag) { store_release<Scope::gpu>(flag, 1); }, acquire),
            {"race: two accesses to memory of rank 1", "tests/races/races_test.cc:", "rank 0",
             "rank 1", "block 0, thread 0", "at gpu scope", "scope does not include"});
    }
    SECTION("acquire at too small a scope") {
        must_be_found(
            message(release,
                    [](std::uint64_t* flag) { return load_acquire<Scope::gpu>(flag) != 0; }),
            {"at gpu scope", "scope does not include"});
    }
    SECTION("no release") {
        must_be_found(
            message([](std::uint64_t* flag) { store_relaxed<Scope::system>(flag, 1); }, acquire),
            {"plain write at tests/races/races_test.cc:",
             "plain read at tests/races/races_test.cc:",
             "no release and acquire of sufficient scope"});
    }
    SECTION("no acquire") {
        must_be_found(
            message(release,
                    [](std::uint64_t* flag) { return load_relaxed<Scope::system>(flag) != 0; }),
            {"plain write", "plain read"});
    }
    SECTION("fences at too small a scope") {
        must_be_found(message(
                          [](std::uint64_t* flag) {
                              fence_acq_rel<Scope::gpu>();
                              store_relaxed<Scope::system>(flag, 1);
                          },
                          acquire),
                      {"plain write", "plain read"});
    }
    SECTION("a plain flag") {
        must_be_found(message([](std::uint64_t* flag) { *flag = 1; }, acquire),
                      {"plain write", "ordered read at system scope"});
    }
}

TEST_CASE("races: bulk copies and proxy fences", "[races]") {
    must_be_clean(bulk_read(true));
    must_be_found(
        bulk_read(false),
        {"plain write", "bulk load (async proxy) at tests/races/races_test.cc:", "no proxy fence"});
    must_be_clean(bulk_write(true, true));
    must_be_found(bulk_write(false, true),
                  {"a block's shared memory", "bulk store's read", "no proxy fence"});
    must_be_found(bulk_write(true, false), {"bulk store's write (async proxy)", "plain read"});
    // One proxy and one block: the wait orders the second behind the first. Blocks need the fence.
    must_be_clean(bulk_write_again(true, false));
    must_be_clean(bulk_write_again(false, true));
    must_be_found(bulk_write_again(false, false), {"bulk store's write", "no proxy fence"});
}

TEST_CASE("races: inside a block", "[races]") {
    const auto pass = [](auto meet) {
        return Body([=](const Machine&) {
            if (block_index() != 0) return;
            shared_words()[lane_index()] = 7;
            meet();
            VERIFY(shared_words()[31 - lane_index()] != 1);  // a read
        });
    };
    must_be_clean(pass([] { warp_sync(); }));
    must_be_clean(pass([] { block_sync(); }));
    // Shuffles and votes make lanes meet, and order no memory.
    must_be_found(pass([] { (void)shuffle(1, 0); }), {"a block's shared memory", "plain"});
    must_be_found(pass([] { (void)warp_any(true); }), {"a block's shared memory", "plain"});
    // Two blocks of one GPU.
    must_be_found(
        [](const Machine& m) {
            if (thread_index() == 0) m.own->data[0] = 7;
        },
        {"plain write", "block 0, thread 0", "block 1, thread 0"});
}

TEST_CASE("races: whole steps of dispatch and combine are clean", "[races]") {
    const int team = GENERATE(0, 2, 1);
    test::Scenario scenario =
        test::small_scenario(4, team, team == 0 ? emu::GinMode::off : emu::GinMode::gdaki, 1);
    scenario.config.max_tokens = 6;
    scenario.steps = {test::StepKind::fresh, test::StepKind::cached};
    scenario.sim.memory.find_races = true;
    scenario.sim.memory.stale_loads = true;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
        scenario.sim.seed = seed;
        scenario.events = seed == 2;
        CAPTURE(test::describe(scenario));
        emu::SimReport report;
        REQUIRE_NOTHROW(report = test::run_scenario(scenario));
        CHECK(report.accesses_watched > 10'000);
    }
}

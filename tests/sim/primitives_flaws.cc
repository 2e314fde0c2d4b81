// SPDX-License-Identifier: Apache-2.0
//
// Proof that the checks bite: each deliberately wrong variant must be caught within a stated number
// of seeds.
#include <cstdint>
#include <string>

#include "tests/sim/primitives_kernels.hpp"
#include "tests/sim/primitives_meeting.hpp"
#include "tests/sim/primitives_races.hpp"
#include "tests/sim/primitives_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

struct FlawCase {
    const char* name;
    MeetingCase meeting;
    int ranks = 4;
    int team_size = 4;
    emu::GinMode gin = emu::GinMode::off;
    int seeds = 40;
};

MeetingCase flawed(Meeting meeting, Flaw flaw, int blocks = 1, int threads = 32, int contexts = 1) {
    MeetingCase which;
    which.meeting = meeting;
    which.flaw = flaw;
    which.blocks = blocks;
    which.threads = threads;
    which.contexts = contexts;
    which.rounds = 8;
    which.deadline_ns = 2'000'000;
    if (flaw == Flaw::no_bulk_flush) which.store = StoreKind::bulk;
    return which;
}

emu::SimOptions options_of(const FlawCase& which, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = which.ranks;
    options.lsa_team_size = which.team_size;
    options.gin = which.gin;
    options.seed = seed;
    options.schedule = seed % 2 == 0 ? emu::Schedule::uniform : emu::Schedule::priority;
    return options;
}

void require_caught(const FlawCase& which) {
    for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(which.seeds); ++seed) {
        if (run_meeting(options_of(which, seed), which.meeting).caught()) {
            WARN(which.name << ": caught with seed " << seed);
            return;
        }
    }
    FAIL(which.name << ": not caught within " << which.seeds << " seeds");
}

TEST_CASE("wrong barriers over NVLink are caught", "[sim][primitives][flaws]") {
    require_caught({"nvlink: no wait", flawed(Meeting::nvlink, Flaw::no_wait)});
    require_caught({"nvlink: the counter stays", flawed(Meeting::nvlink, Flaw::counter_stays)});
    require_caught({"nvlink: the flag of the last", flawed(Meeting::nvlink, Flaw::flag_of_last)});
    require_caught({"block: no wait", flawed(Meeting::block, Flaw::no_wait)});
    require_caught({"block: one-sided", flawed(Meeting::block, Flaw::one_sided)});
}

TEST_CASE("wrong barriers over GIN are caught", "[sim][primitives][flaws]") {
    const emu::GinMode gdaki = emu::GinMode::gdaki;
    require_caught({"gin: no wait", flawed(Meeting::gin, Flaw::no_wait), 4, 1, gdaki});
    require_caught({"gin: weak signal", flawed(Meeting::gin, Flaw::weak_signal), 4, 1, gdaki});
    require_caught({"gin: signal on one context, puts on two",
                    flawed(Meeting::gin, Flaw::first_context_only, 1, 64, 2), 4, 1, gdaki});
    require_caught(
        {"gin: shadows stay behind", flawed(Meeting::gin, Flaw::no_shadow_advance), 4, 1, gdaki});
}

TEST_CASE("gpu_barrier without one of its parts is caught", "[sim][primitives][flaws]") {
    const emu::GinMode gdaki = emu::GinMode::gdaki;
    require_caught(
        {"gpu: bulk stores not flushed", flawed(Meeting::gpu, Flaw::no_bulk_flush, 2), 4, 4});
    require_caught({"gpu: no grid sync at the start", flawed(Meeting::gpu, Flaw::no_start_sync, 3),
                    4, 2, gdaki});
    require_caught(
        {"gpu: no grid sync at the end", flawed(Meeting::gpu, Flaw::no_end_sync, 3), 4, 2, gdaki});
}

TEST_CASE("a grid barrier that does not wait is caught", "[sim][primitives][flaws]") {
    GridCase which;
    which.blocks = 4;
    which.flaw = Flaw::no_wait;
    bool caught = false;
    for (std::uint64_t seed = 1; seed <= 40 && !caught; ++seed) {
        emu::SimOptions options;
        options.ranks = 1;
        options.gin = emu::GinMode::off;
        options.seed = seed;
        caught = run_grid(options, which).caught();
    }
    REQUIRE(caught);
}

// Orders do not matter to a simulation on one thread; the race detector sees them. A report takes
// long, so these worlds are as small as can be.
TEST_CASE("relaxed barriers are reported as races", "[sim][primitives][flaws][races]") {
    if (!race_detection_built_in()) return;
    for (const Meeting meeting : {Meeting::nvlink, Meeting::block}) {
        for (const Flaw flaw : {Flaw::none, Flaw::relaxed_arrival, Flaw::relaxed_wait}) {
            FlawCase which{"", flawed(meeting, flaw), 2, 2};
            which.meeting.rounds = 1;
            std::uint64_t races = 0;
            for (std::uint64_t seed = 1; seed <= 5 && races == 0; ++seed) {
                const RaceCounter counter;
                run_meeting(options_of(which, seed), which.meeting);
                races += counter.count();
            }
            INFO("meeting " << static_cast<int>(meeting) << ", flaw " << static_cast<int>(flaw));
            REQUIRE((races > 0) == (flaw != Flaw::none));
        }
    }
    for (const Flaw flaw : {Flaw::none, Flaw::relaxed_arrival, Flaw::relaxed_wait}) {
        GridCase grid;
        grid.rounds = 1;
        grid.flaw = flaw;
        std::uint64_t races = 0;
        for (std::uint64_t seed = 1; seed <= 5 && races == 0; ++seed) {
            emu::SimOptions options;
            options.ranks = 1;
            options.gin = emu::GinMode::off;
            options.seed = seed;
            const RaceCounter counter;
            run_grid(options, grid);
            races += counter.count();
        }
        INFO("grid, flaw " << static_cast<int>(flaw));
        REQUIRE((races > 0) == (flaw != Flaw::none));
    }
}

}  // namespace
}  // namespace gimlet::test

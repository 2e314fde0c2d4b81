// SPDX-License-Identifier: Apache-2.0
//
// Every barrier, over rank counts, team sizes, GIN flavours and schedules: back to back rounds that
// hand over data.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/primitives_kernels.hpp"
#include "tests/sim/primitives_meeting.hpp"
#include "tests/sim/primitives_races.hpp"
#include "tests/sim/primitives_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

const std::vector<int> kRankCounts = {1, 2, 3, 4, 6, 8, 16};

/// LSA team sizes that divide the world.
std::vector<int> team_sizes(int ranks) {
    std::vector<int> sizes;
    for (const int size : {1, 2, 4, ranks}) {
        bool known = false;
        for (const int other : sizes) known = known || other == size;
        if (!known && ranks % size == 0) sizes.push_back(size);
    }
    return sizes;
}

/// Fewer seeds where a world is expensive; more than 200 over the whole grid.
int seed_count(int ranks) {
    return seeds_to_run(ranks <= 4 ? 16 : ranks <= 8 ? 9 : 4);
}

emu::SimOptions options_of(int ranks, int team_size, emu::GinMode gin, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = team_size;
    options.gin = gin;
    options.seed = seed;
    const emu::Schedule schedules[] = {emu::Schedule::uniform, emu::Schedule::priority,
                                       emu::Schedule::run_to_block};
    options.schedule = schedules[seed % 3];
    return options;
}

void require_clean(const emu::SimOptions& options, const MeetingCase& which) {
    const MeetingOutcome outcome = run_meeting(options, which);
    INFO(text_of(options) << ", " << text_of(which));
    INFO(outcome.message);
    REQUIRE(outcome.message.empty());
    REQUIRE(outcome.mismatches == 0);
    REQUIRE(outcome.failures == 0);
}

TEST_CASE("nvlink_barrier hands stores over", "[sim][primitives]") {
    std::uint64_t seed = 1000;
    for (const int ranks : kRankCounts) {
        for (const int team_size : team_sizes(ranks)) {
            const emu::GinMode gin = team_size == ranks ? emu::GinMode::off : emu::GinMode::gdaki;
            for (int i = 0; i < seed_count(ranks); ++i) {
                MeetingCase which;
                which.meeting = Meeting::nvlink;
                which.threads = i % 2 == 0 ? 32 : 64;
                which.store = i % 3 == 0 ? StoreKind::bulk : StoreKind::plain;
                which.start_near_wrap = i % 4 == 1;
                require_clean(options_of(ranks, team_size, gin, ++seed), which);
            }
        }
    }
}

TEST_CASE("block_barrier hands stores over", "[sim][primitives]") {
    std::uint64_t seed = 2000;
    for (const int ranks : kRankCounts) {
        for (const int team_size : team_sizes(ranks)) {
            const emu::GinMode gin = team_size == ranks ? emu::GinMode::off : emu::GinMode::gdaki;
            for (int i = 0; i < seed_count(ranks); ++i) {
                MeetingCase which;
                which.meeting = Meeting::block;
                which.threads = i % 2 == 0 ? 32 : 64;
                which.store = i % 3 == 0 ? StoreKind::bulk : StoreKind::plain;
                require_clean(options_of(ranks, team_size, gin, ++seed), which);
            }
        }
    }
}

TEST_CASE("nvlink_barrier and block_barrier serve teams that are larger than the block",
          "[sim][primitives]") {
    for (const Meeting meeting : {Meeting::nvlink, Meeting::block}) {
        for (int i = 0; i < seeds_to_run(3); ++i) {
            const auto seed = static_cast<std::uint64_t>(2900 + i);
            MeetingCase which;
            which.meeting = meeting;
            which.threads = 32;
            which.rounds = 3;
            require_clean(options_of(40, 40, emu::GinMode::off, seed), which);
        }
    }
}

TEST_CASE("gin_barrier covers puts on every named context", "[sim][primitives]") {
    std::uint64_t seed = 3000;
    for (const int ranks : kRankCounts) {
        for (const int team_size : team_sizes(ranks)) {
            for (int i = 0; i < seed_count(ranks); ++i) {
                MeetingCase which;
                which.meeting = Meeting::gin;
                which.gin_team = static_cast<GinTeamChoice>(i % 3);
                which.contexts = 1 + i % 3;
                which.first_context = i % 5 == 4 ? 1 : 0;
                which.threads = i % 2 == 0 ? 32 : 96;
                which.start_near_wrap = i % 4 == 2;
                const emu::GinMode gin = i % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy;
                require_clean(options_of(ranks, team_size, gin, ++seed), which);
            }
        }
    }
}

TEST_CASE("gpu_barrier hands over between all blocks of all ranks", "[sim][primitives]") {
    std::uint64_t seed = 4000;
    for (const int ranks : kRankCounts) {
        for (const int team_size : team_sizes(ranks)) {
            for (int i = 0; i < seed_count(ranks); ++i) {
                MeetingCase which;
                which.meeting = Meeting::gpu;
                which.blocks = 1 + i % 4;
                which.threads = i % 2 == 0 ? 32 : 64;
                which.store = i % 2 == 0 ? StoreKind::bulk : StoreKind::plain;
                which.contexts = 1 + i % 2;
                // Mostly the world; the parts of it in turn.
                which.teams =
                    i % 4 == 3 ? static_cast<TeamsChoice>(1 + i / 4 % 3) : TeamsChoice::world;
                const emu::GinMode gin = team_size == ranks && i % 3 == 0 ? emu::GinMode::off
                                         : i % 2 == 0                     ? emu::GinMode::gdaki
                                                                          : emu::GinMode::proxy;
                require_clean(options_of(ranks, team_size, gin, ++seed), which);
            }
        }
    }
}

TEST_CASE("grid_barrier hands over between blocks", "[sim][primitives]") {
    std::uint64_t seed = 5000;
    for (const int blocks : {1, 2, 3, 5, 8}) {
        for (int i = 0; i < seeds_to_run(45); ++i) {
            GridCase which;
            which.blocks = blocks;
            which.threads = i % 2 == 0 ? 32 : 64;
            // At rest the word is 0 or 2^31; from the latter the next flip wraps.
            which.start = i % 3 == 0 ? 0x80000000u : 0u;
            const emu::SimOptions options = options_of(1, 1, emu::GinMode::off, ++seed);
            const MeetingOutcome outcome = run_grid(options, which);
            INFO(text_of(options) << ", blocks " << blocks << ", threads " << which.threads);
            INFO(outcome.message);
            REQUIRE(outcome.message.empty());
            REQUIRE(outcome.mismatches == 0);
            REQUIRE(outcome.failures == 0);
        }
    }
}

}  // namespace
}  // namespace gimlet::test

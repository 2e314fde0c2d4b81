// SPDX-License-Identifier: Apache-2.0
//
// Aggregated puts and signal shadows.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/primitives_kernels.hpp"
#include "tests/sim/primitives_meeting.hpp"
#include "tests/sim/primitives_puts.hpp"
#include "tests/sim/primitives_races.hpp"
#include "tests/sim/primitives_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

emu::SimOptions options_of(int ranks, emu::GinMode gin, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = 1;
    options.gin = gin;
    options.gin_queue_depth = 64;
    options.seed = seed;
    options.schedule = seed % 2 == 0 ? emu::Schedule::uniform : emu::Schedule::priority;
    options.step_limit = 40'000'000;
    return options;
}

TEST_CASE("aggregated_put delivers batches of any length", "[sim][primitives]") {
    std::uint64_t seed = 6000;
    for (const int put_count : {0, 1, 2, 15, 16, 17, 40}) {
        for (const int ranks : {1, 2, 3, 6}) {
            for (int i = 0; i < seeds_to_run(8); ++i) {
                PutCase which;
                which.put_count = put_count;
                which.context = i % 3;
                which.threads = i % 2 == 0 ? 32 : 64;
                const emu::SimOptions options = options_of(
                    ranks, i % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, ++seed);
                const MeetingOutcome outcome = run_puts(options, which);
                INFO(text_of(options) << ", puts " << put_count << ", context " << which.context);
                INFO(outcome.message);
                REQUIRE(outcome.message.empty());
                REQUIRE(outcome.mismatches == 0);
                REQUIRE(outcome.failures == 0);
            }
        }
    }
}

void require_caught(const char* name, const PutCase& which) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
        if (run_puts(options_of(3, emu::GinMode::gdaki, seed), which).caught()) {
            WARN(name << ": caught with seed " << seed);
            return;
        }
    }
    FAIL(name << ": not caught within 40 seeds");
}

TEST_CASE("wrong batches of puts are caught", "[sim][primitives][flaws]") {
    PutCase which;
    which.put_count = 6;
    which.deadline_ns = 2'000'000;
    which.flaw = PutFlaw::not_closed;
    require_caught("puts: last one flagged too", which);
    which.flaw = PutFlaw::weak_last_signal;
    require_caught("puts: weak signal for a batch", which);
    which.flaw = PutFlaw::no_flush;
    require_caught("puts: sources written again without a flush", which);
}

TEST_CASE("signal_shadow follows signals in whatever portions they come", "[sim][primitives]") {
    for (int i = 0; i < seeds_to_run(200); ++i) {
        const auto seed = static_cast<std::uint64_t>(7001 + i);
        const emu::SimOptions options =
            options_of(1 + static_cast<int>(seed % 5),
                       seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
        INFO(text_of(options));
        const MeetingOutcome outcome = run_follow(options, 7);
        INFO(outcome.message);
        REQUIRE(outcome.message.empty());
        REQUIRE(outcome.mismatches == 0);
        REQUIRE(outcome.failures == 0);
    }
}

}  // namespace
}  // namespace gimlet::test

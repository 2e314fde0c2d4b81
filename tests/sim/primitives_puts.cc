// SPDX-License-Identifier: Apache-2.0
//
// Aggregated puts and signal shadows.
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

constexpr std::uint64_t kRowBytes = 64;

struct PutCase {
    int put_count = 4;
    int rounds = 4;
    int threads = 64;
    int context = 0;
    PutFlaw flaw = PutFlaw::none;
    std::uint64_t deadline_ns = 0;
};

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

MeetingOutcome run_puts(const emu::SimOptions& options, const PutCase& which) {
    MeetingOutcome outcome;
    outcome.mismatches_of_rank.resize(static_cast<std::size_t>(options.ranks));
    outcome.failures_of_rank.resize(static_cast<std::size_t>(options.ranks));
    const auto rows =
        static_cast<std::uint64_t>(options.ranks) * static_cast<std::uint64_t>(which.put_count);
    WorldShape shape;
    shape.contexts = which.context + 1;
    shape.data_bytes = 2 * rows * kRowBytes;
    shape.deadline_ns = which.deadline_ns;
    try {
        emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, shape);
            PutArgs args{};
            args.peers = world.peers();
            args.rows_offset = world.data_offset();
            args.send_offset = world.data_offset() + rows * kRowBytes;
            args.mismatches = world.scratch(0);
            args.failures = world.scratch(1);
            args.first_epoch = 1;
            args.rounds = which.rounds;
            args.put_count = which.put_count;
            args.context = which.context;
            args.flaw = which.flaw;
            check(launch_put_rounds(args, which.threads, world.stream()), "launch_put_rounds");
            world.synchronize();
            outcome.mismatches_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(0);
            outcome.failures_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(1);
        });
    } catch (const emu::SimFailure& failure) {
        outcome.message = failure.what();
    }
    outcome.add_up();
    return outcome;
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
        std::vector<std::uint64_t> mismatches(static_cast<std::size_t>(options.ranks));
        std::vector<std::uint64_t> failures(static_cast<std::size_t>(options.ranks));
        WorldShape shape;
        shape.contexts = 1;
        INFO(text_of(options));
        emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, shape);
            FollowArgs args{};
            args.peers = world.peers();
            args.mismatches = world.scratch(0);
            args.failures = world.scratch(1);
            args.total = 7;
            for (int round = 0; round < 3; ++round) {
                check(launch_follow(args, 32, world.stream()), "launch_follow");
                world.synchronize();
                // A rank that is ahead would send signals that this round takes.
                emu::host_barrier();
            }
            mismatches[static_cast<std::size_t>(rank)] = world.read_scratch(0);
            failures[static_cast<std::size_t>(rank)] = world.read_scratch(1);
        });
        for (const std::uint64_t count : mismatches) REQUIRE(count == 0);
        for (const std::uint64_t count : failures) REQUIRE(count == 0);
    }
}

}  // namespace
}  // namespace gimlet::test

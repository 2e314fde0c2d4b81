// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/primitives_puts.hpp"

#include "runtime/sim/primitives_world.hpp"

namespace gimlet::sim {
namespace {

constexpr std::uint64_t kRowBytes = 64;

}  // namespace

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
        outcome.report = emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, shape);
            emu::arm_faults();
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
            args.flush = which.flush;
            check(launch_put_rounds(args, which.threads, world.stream()), "launch_put_rounds");
            world.synchronize();
            outcome.mismatches_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(0);
            outcome.failures_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(1);
        });
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.message = failure.what();
    }
    outcome.add_up();
    return outcome;
}

MeetingOutcome run_follow(const emu::SimOptions& options, int total) {
    constexpr int kRounds = 3;
    MeetingOutcome outcome;
    outcome.mismatches_of_rank.resize(static_cast<std::size_t>(options.ranks));
    outcome.failures_of_rank.resize(static_cast<std::size_t>(options.ranks));
    WorldShape shape;
    shape.contexts = 1;
    try {
        outcome.report = emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, shape);
            emu::arm_faults();
            FollowArgs args{};
            args.peers = world.peers();
            args.mismatches = world.scratch(0);
            args.failures = world.scratch(1);
            args.total = total;
            for (int round = 0; round < kRounds; ++round) {
                check(launch_follow(args, 32, world.stream()), "launch_follow");
                world.synchronize();
                // A rank that is ahead would send signals that this round takes.
                emu::host_barrier();
            }
            outcome.mismatches_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(0);
            outcome.failures_of_rank[static_cast<std::size_t>(rank)] = world.read_scratch(1);
        });
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.message = failure.what();
    }
    outcome.add_up();
    return outcome;
}

}  // namespace gimlet::sim

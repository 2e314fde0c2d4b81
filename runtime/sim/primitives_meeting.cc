// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/primitives_meeting.hpp"

#include <sstream>
#include <vector>

#include "runtime/sim/primitives_world.hpp"

namespace gimlet::sim {
namespace {

constexpr std::uint64_t kRowBytes = 64;
/// Far beyond what any of these runs needs; ends a run that goes round in circles.
constexpr std::uint64_t kStepLimit = 40'000'000;

MeetingArgs meeting_args(const RankWorld& world, const MeetingCase& which, std::uint64_t epoch) {
    MeetingArgs args{};
    args.peers = world.peers();
    args.writers = which.blocks * which.threads / 32;
    const auto region = 2 * static_cast<std::uint64_t>(args.peers.rank_count) *
                        static_cast<std::uint64_t>(args.writers) * kRowBytes;
    args.rows_offset = world.data_offset();
    args.send_offset = world.data_offset() + region;
    args.mismatches = world.scratch(0);
    args.failures = world.scratch(1);
    args.first_epoch = epoch;
    args.rounds = which.rounds;
    args.absent_block = args.peers.rank == which.absent_block_rank ? which.absent_block : -1;
    args.first_context = which.first_context;
    args.context_count = args.peers.gin_context_count > 0 ? which.contexts : 0;
    args.meeting = which.meeting;
    args.gin_team = which.gin_team;
    args.teams = which.teams;
    args.store = which.store;
    args.flaw = which.flaw;
    return args;
}

/// Puts counters and sums to just before they wrap, as if that many barriers had been.
void move_near_wrap(const RankWorld& world, const MeetingCase& which) {
    if (which.meeting == Meeting::nvlink) {
        const std::uint64_t counter = ~std::uint64_t{1};
        const std::vector<std::uint32_t> flags(static_cast<std::size_t>(world.peers().rank_count),
                                               static_cast<std::uint32_t>(counter));
        const WorkspaceLayout& layout = world.peers().layout;
        world.write_window(layout.nvlink_counter, &counter, sizeof counter);
        world.write_window(layout.nvlink_flags, flags.data(), flags.size() * sizeof flags[0]);
    }
    if (which.meeting == Meeting::gin) {
        check(launch_signal_prime(meeting_args(world, which, 1), ~std::uint64_t{1}, which.threads,
                                  world.stream()),
              "launch_signal_prime");
        world.synchronize();
        expect(world.read_scratch(1) == 0, "priming the signals failed");
    }
    emu::host_barrier();
}

void launch_once(const RankWorld& world, const MeetingCase& which, std::uint64_t epoch) {
    check(launch_meeting(meeting_args(world, which, epoch), which.blocks, which.threads,
                         world.stream()),
          "launch_meeting");
    world.synchronize();
}

}  // namespace

void MeetingOutcome::add_up() {
    for (const std::uint64_t count : mismatches_of_rank) mismatches += count;
    for (const std::uint64_t count : failures_of_rank) failures += count;
}

MeetingOutcome run_meeting(const emu::SimOptions& base, const MeetingCase& which) {
    emu::SimOptions options = base;
    if (options.step_limit == 0) options.step_limit = kStepLimit;
    MeetingOutcome outcome;
    const auto ranks = static_cast<std::size_t>(options.ranks);
    outcome.failures_of_rank.resize(ranks);
    outcome.mismatches_of_rank.resize(ranks);
    outcome.late_failures_of_rank.resize(ranks);
    outcome.errors.resize(ranks);
    WorldShape shape;
    shape.contexts = which.first_context + which.contexts;
    shape.data_bytes =
        4 * ranks * static_cast<std::uint64_t>(which.blocks * which.threads / 32) * kRowBytes;
    shape.deadline_ns = which.deadline_ns;
    try {
        const emu::SimReport report = emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, shape);
            emu::arm_faults();
            const auto index = static_cast<std::size_t>(rank);
            if (which.start_near_wrap) move_near_wrap(world, which);
            if (rank != which.absent_rank) launch_once(world, which, 1);
            outcome.errors[index] = world.error();
            outcome.failures_of_rank[index] = world.read_scratch(1);
            emu::host_barrier();
            if (which.catch_up) {
                if (rank == which.absent_rank) launch_once(world, which, 1);
                emu::host_barrier();
                const std::uint64_t before = world.read_scratch(1);
                launch_once(world, which, 1 + static_cast<std::uint64_t>(which.rounds));
                outcome.late_failures_of_rank[index] = world.read_scratch(1) - before;
            }
            outcome.mismatches_of_rank[index] = world.read_scratch(0);
        });
        outcome.report = report;
        outcome.trace_hash = report.trace_hash;
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.message = failure.what();
    }
    outcome.add_up();
    return outcome;
}

std::string text_of(const MeetingCase& which) {
    std::ostringstream out;
    out << "meeting " << static_cast<int>(which.meeting) << ", GIN team "
        << static_cast<int>(which.gin_team) << ", teams " << static_cast<int>(which.teams)
        << ", store " << static_cast<int>(which.store) << ", flaw " << static_cast<int>(which.flaw)
        << ", blocks " << which.blocks << ", threads " << which.threads << ", contexts "
        << which.first_context << "+" << which.contexts
        << (which.start_near_wrap ? ", near wrap" : "");
    return out.str();
}

MeetingOutcome run_grid(const emu::SimOptions& base, const GridCase& which) {
    emu::SimOptions options = base;
    if (options.step_limit == 0) options.step_limit = kStepLimit;
    MeetingOutcome outcome;
    outcome.errors.resize(1);
    try {
        outcome.report = emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, WorldShape{});
            emu::arm_faults();
            check(cudaMemcpyAsync(world.scratch(2), &which.start, sizeof which.start,
                                  cudaMemcpyHostToDevice, world.stream()),
                  "cudaMemcpyAsync");
            GridArgs args{};
            args.mismatches = world.scratch(0);
            args.failures = world.scratch(1);
            args.word = reinterpret_cast<std::uint32_t*>(world.scratch(2));
            args.poison = world.scratch(3);
            args.cells = world.scratch(16);
            args.error = world.peers().error;
            args.deadline_ns = which.deadline_ns;
            args.rounds = which.rounds;
            args.absent_block = which.absent_block;
            args.flaw = which.flaw;
            check(launch_grid_rounds(args, which.blocks, which.threads, world.stream()),
                  "launch_grid_rounds");
            world.synchronize();
            outcome.mismatches = world.read_scratch(0);
            outcome.failures = world.read_scratch(1);
            outcome.errors[0] = world.error();
        });
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.message = failure.what();
    }
    return outcome;
}

namespace {

std::string fault_of_wait(const FailedStep& which, int index, std::uint64_t status,
                          std::uint64_t elapsed_ns, std::uint64_t verdict) {
    constexpr std::uint64_t kTimedOut = 1;
    constexpr std::uint64_t kAborted = 2;
    constexpr std::uint64_t kDeadlinesMax = 16;  // the clock leaps
    // Only the impatient thread must have waited so long: others may have begun later.
    std::ostringstream out;
    out << "thread " << index << ": ";
    if (status != (index == which.impatient ? kTimedOut : kAborted)) {
        out << "status " << status;
    } else if (verdict != 0) {
        out << "was told that all is well";
    } else if ((index == which.impatient && elapsed_ns < which.deadline_ns) ||
               elapsed_ns > kDeadlinesMax * which.deadline_ns) {
        out << "left after " << elapsed_ns << " ns, the deadline that expired is "
            << which.deadline_ns << " ns";
    } else {
        return {};
    }
    return out.str();
}

}  // namespace

FailedStepOutcome run_failed_step(const emu::SimOptions& base, const FailedStep& which) {
    constexpr std::uint64_t kPatienceFactor = 200;
    constexpr int kPoison = 0;
    constexpr int kFirst = 16;
    emu::SimOptions options = base;
    if (options.step_limit == 0) options.step_limit = kStepLimit;
    FailedStepOutcome outcome;
    try {
        outcome.report = emu::simulate(options, [&](int rank) {
            const RankWorld world(rank, options, WorldShape{});
            emu::arm_faults();
            const int count = which.blocks * which.threads;
            FailedStepArgs args{};
            args.poison = world.scratch(kPoison);
            args.statuses = world.scratch(kFirst);
            args.elapsed_ns = world.scratch(kFirst + count);
            args.verdicts = world.scratch(kFirst + 2 * count);
            args.error = world.peers().error;
            args.deadline_ns = which.deadline_ns;
            args.patient_deadline_ns = kPatienceFactor * which.deadline_ns;
            args.impatient = which.impatient;
            check(launch_failed_step(args, which.blocks, which.threads, world.stream()),
                  "launch_failed_step");
            world.synchronize();
            for (int i = 0; i < count && outcome.fault.empty(); ++i) {
                outcome.fault = fault_of_wait(which, i, world.read_scratch(kFirst + i),
                                              world.read_scratch(kFirst + count + i),
                                              world.read_scratch(kFirst + 2 * count + i));
            }
            const DeviceError& error = world.error();
            if (outcome.fault.empty() && (error.state != kDeviceErrorComplete || error.peer != 5))
                outcome.fault = "the record is wrong: " + text_of(error);
        });
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.fault = failure.what();
    }
    return outcome;
}

}  // namespace gimlet::sim

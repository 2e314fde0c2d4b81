// SPDX-License-Identifier: Apache-2.0
//
// A peer that does not come: everybody returns, the record says who was missing, nobody publishes,
// and a peer that was only late does no harm.
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "device/abi/signal_map.hpp"
#include "host/base/clock.hpp"
#include "host/cuda/poll.hpp"
#include "host/emulator/engine.hpp"
#include "runtime/sim/sim_bootstrap.hpp"
#include "tests/sim/primitives_kernels.hpp"
#include "tests/sim/primitives_meeting.hpp"
#include "tests/sim/primitives_world.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kDeadlineNs = 30'000;

emu::SimOptions options_of(int ranks, int team_size, emu::GinMode gin, std::uint64_t seed) {
    emu::SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = team_size;
    options.gin = gin;
    options.seed = seed;
    return options;
}

void require_timeout(const DeviceError& error, Primitive primitive, int rank, int peer,
                     int context) {
    INFO(text_of(error));
    REQUIRE(error.state == kDeviceErrorComplete);
    REQUIRE(error.fault == DeviceFault::timed_out);
    REQUIRE(error.primitive == primitive);
    REQUIRE(error.rank == rank);
    REQUIRE(error.peer == peer);
    REQUIRE(error.context == context);
    REQUIRE(error.tag == static_cast<std::uint32_t>(Tag::user));
    REQUIRE(error.token == -1);
    REQUIRE(error.epoch == 1);
    REQUIRE(error.elapsed_ns >= kDeadlineNs);
}

MeetingCase absent_rank_case(Meeting meeting, int blocks) {
    MeetingCase which;
    which.meeting = meeting;
    which.rounds = 1;
    which.blocks = blocks;
    which.deadline_ns = kDeadlineNs;
    which.absent_rank = 1;
    which.catch_up = true;
    return which;
}

/// All threads of all ranks but the absent one were told, and the meeting after that is whole
/// again.
void require_told_and_recovered(const MeetingOutcome& outcome, const MeetingCase& which,
                                int ranks) {
    REQUIRE(outcome.message.empty());
    for (int rank = 0; rank < ranks; ++rank) {
        INFO("rank " << rank);
        const auto index = static_cast<std::size_t>(rank);
        const auto threads = static_cast<std::uint64_t>(which.blocks * which.threads);
        REQUIRE(outcome.failures_of_rank[index] == (rank == which.absent_rank ? 0 : threads));
        REQUIRE(outcome.late_failures_of_rank[index] == 0);
    }
    REQUIRE(outcome.mismatches == 0);
}

TEST_CASE("nvlink_barrier names the rank that is missing, which harms nobody if it was late",
          "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        const MeetingCase which = absent_rank_case(Meeting::nvlink, 1);
        const emu::SimOptions options = options_of(4, 4, emu::GinMode::off, seed);
        const MeetingOutcome outcome = run_meeting(options, which);
        INFO(text_of(options) << outcome.message);
        require_told_and_recovered(outcome, which, 4);
        for (const int rank : {0, 2, 3}) {
            const DeviceError& error = outcome.errors[static_cast<std::size_t>(rank)];
            require_timeout(error, Primitive::nvlink_barrier, rank, 1, -1);
            REQUIRE(error.expected == 1);
            REQUIRE(error.seen == 0);
        }
    }
}

TEST_CASE("block_barrier names the rank that is missing", "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        const MeetingCase which = absent_rank_case(Meeting::block, 1);
        const emu::SimOptions options = options_of(4, 4, emu::GinMode::off, seed);
        const MeetingOutcome outcome = run_meeting(options, which);
        INFO(text_of(options) << outcome.message);
        require_told_and_recovered(outcome, which, 4);
        for (const int rank : {0, 2, 3}) {
            const DeviceError& error = outcome.errors[static_cast<std::size_t>(rank)];
            require_timeout(error, Primitive::block_barrier, rank, 1, -1);
            REQUIRE(error.expected == 0);
            REQUIRE(error.seen == 1);
        }
    }
}

TEST_CASE("gin_barrier names the rank that is missing, and the context",
          "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        MeetingCase which = absent_rank_case(Meeting::gin, 1);
        which.first_context = 1;
        const emu::SimOptions options =
            options_of(3, 1, seed % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy, seed);
        const MeetingOutcome outcome = run_meeting(options, which);
        INFO(text_of(options) << outcome.message);
        require_told_and_recovered(outcome, which, 3);
        for (const int rank : {0, 2}) {
            const DeviceError& error = outcome.errors[static_cast<std::size_t>(rank)];
            require_timeout(error, Primitive::gin_barrier, rank, 1, 1);
            REQUIRE(error.expected == 1);
            REQUIRE(error.seen == 0);
        }
    }
}

TEST_CASE("gpu_barrier: every block learns that a rank is missing", "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        const MeetingCase which = absent_rank_case(Meeting::gpu, 1 + static_cast<int>(seed % 4));
        // Rank 1 is an LSA peer of rank 0 and behind GIN for ranks 2 and 3.
        const emu::SimOptions options = options_of(4, 2, emu::GinMode::gdaki, seed);
        const MeetingOutcome outcome = run_meeting(options, which);
        INFO(text_of(options) << ", " << text_of(which) << outcome.message);
        require_told_and_recovered(outcome, which, 4);
        require_timeout(outcome.errors[0], Primitive::nvlink_barrier, 0, 1, -1);
        require_timeout(outcome.errors[2], Primitive::gin_barrier, 2, 1, 0);
        require_timeout(outcome.errors[3], Primitive::gin_barrier, 3, 1, 0);
    }
}

TEST_CASE("gpu_barrier: a rank with a missing block tells nobody that it is ready",
          "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        MeetingCase which;
        which.meeting = Meeting::gpu;
        which.rounds = 1;
        which.blocks = 3;
        which.deadline_ns = kDeadlineNs;
        which.absent_block_rank = 1;
        which.absent_block = static_cast<int>(seed % 3);
        const emu::SimOptions options = options_of(4, 2, emu::GinMode::gdaki, seed);
        const MeetingOutcome outcome = run_meeting(options, which);
        INFO(text_of(options) << outcome.message);
        REQUIRE(outcome.message.empty());
        REQUIRE(outcome.mismatches == 0);
        for (int rank = 0; rank < 4; ++rank) {
            INFO("rank " << rank);
            REQUIRE(outcome.failures_of_rank[static_cast<std::size_t>(rank)] ==
                    (rank == 1 ? 64u : 96u));
        }
        // The rank itself waits twice as long for its own blocks as the others wait for it.
        require_timeout(outcome.errors[0], Primitive::nvlink_barrier, 0, 1, -1);
        require_timeout(outcome.errors[1], Primitive::grid_barrier, 1, -1, -1);
        require_timeout(outcome.errors[2], Primitive::gin_barrier, 2, 1, 0);
    }
}

TEST_CASE("grid_barrier: a missing block times the others out", "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        GridCase which;
        which.blocks = 4;
        which.absent_block = static_cast<int>(seed % 4);
        which.deadline_ns = kDeadlineNs;
        which.rounds = 1;
        const MeetingOutcome outcome = run_grid(options_of(1, 1, emu::GinMode::off, seed), which);
        INFO("seed " << seed << outcome.message);
        REQUIRE(outcome.message.empty());
        REQUIRE(outcome.failures == 3 * 32);
        require_timeout(outcome.errors[0], Primitive::grid_barrier, 0, -1, -1);
    }
}

struct WaitOutcome {
    std::vector<std::uint64_t> statuses;
    std::vector<std::uint64_t> verdicts;
    DeviceError error{};
    std::uint64_t poison = 0;
};

WaitOutcome run_wait(WaitCase which_case, std::uint64_t deadline_ns, std::uint64_t seed,
                     bool error_taken) {
    constexpr int threads = 64;
    WaitOutcome outcome;
    const emu::SimOptions options = options_of(1, 1, emu::GinMode::off, seed);
    emu::simulate(options, [&](int rank) {
        const RankWorld world(rank, options, WorldShape{});
        if (error_taken) {
            world.error().epoch = 99;
            world.error().state = kDeviceErrorComplete;
        }
        WaitArgs args{};
        args.word = world.scratch(0);
        args.poison = world.scratch(1);
        args.statuses = world.scratch(16);
        args.verdicts = world.scratch(16 + threads);
        args.error = world.peers().error;
        args.deadline_ns = deadline_ns;
        args.which = which_case;
        check(launch_wait(args, threads, world.stream()), "launch_wait");
        world.synchronize();
        for (int i = 0; i < threads; ++i) {
            outcome.statuses.push_back(world.read_scratch(16 + i));
            outcome.verdicts.push_back(world.read_scratch(16 + threads + i));
        }
        outcome.error = world.error();
        outcome.poison = world.read_scratch(1);
    });
    return outcome;
}

enum : std::uint64_t { kOk = 0, kTimedOut = 1, kAborted = 2 };

TEST_CASE("wait_until: verdicts, records and poison", "[sim][primitives][deadline]") {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        INFO("seed " << seed);
        SECTION("a condition that holds leaves no trace, seed " + std::to_string(seed)) {
            const WaitOutcome outcome = run_wait(WaitCase::holds_at_once, kDeadlineNs, seed, false);
            for (const std::uint64_t status : outcome.statuses) REQUIRE(status == kOk);
            for (const std::uint64_t verdict : outcome.verdicts) REQUIRE(verdict == 1);
            REQUIRE(outcome.error.state == kDeviceErrorFree);
            REQUIRE(outcome.poison == 0);
        }
        SECTION("one record for a whole block that times out, seed " + std::to_string(seed)) {
            const WaitOutcome outcome = run_wait(WaitCase::never, kDeadlineNs, seed, false);
            int timed_out = 0;
            for (const std::uint64_t status : outcome.statuses) {
                REQUIRE(status != kOk);
                timed_out += status == kTimedOut ? 1 : 0;
            }
            REQUIRE(timed_out >= 1);
            for (const std::uint64_t verdict : outcome.verdicts) REQUIRE(verdict == 0);
            INFO(text_of(outcome.error));
            REQUIRE(outcome.error.state == kDeviceErrorComplete);
            REQUIRE(outcome.error.primitive == Primitive::user);
            REQUIRE(outcome.error.fault == DeviceFault::timed_out);
            REQUIRE(outcome.error.rank == 3);
            REQUIRE(outcome.error.peer == 5);
            REQUIRE(outcome.error.context == 2);
            REQUIRE(outcome.error.expected == 11);
            REQUIRE(outcome.error.seen == 4);
            REQUIRE(outcome.error.epoch == 7);
            REQUIRE(outcome.error.elapsed_ns >= kDeadlineNs);
            REQUIRE(outcome.poison == 7);
        }
        SECTION("a poisoned step ends all waits without a record, seed " + std::to_string(seed)) {
            const WaitOutcome outcome = run_wait(WaitCase::poisoned, 0, seed, false);
            for (const std::uint64_t status : outcome.statuses) REQUIRE(status == kAborted);
            REQUIRE(outcome.error.state == kDeviceErrorFree);
        }
        SECTION("the poison of an earlier step is ignored, seed " + std::to_string(seed)) {
            const WaitOutcome outcome = run_wait(WaitCase::poisoned_earlier, 0, seed, false);
            for (const std::uint64_t status : outcome.statuses) REQUIRE(status == kOk);
            REQUIRE(outcome.poison == 6);
        }
        SECTION("one lane's failure is the block's verdict, seed " + std::to_string(seed)) {
            const WaitOutcome outcome =
                run_wait(WaitCase::one_lane_never, kDeadlineNs, seed, false);
            for (std::size_t i = 0; i < outcome.statuses.size(); ++i) {
                REQUIRE(outcome.statuses[i] == (i == 17 ? kTimedOut : kOk));
                REQUIRE(outcome.verdicts[i] == 0);
            }
        }
        SECTION("a record that is taken is kept, seed " + std::to_string(seed)) {
            const WaitOutcome outcome = run_wait(WaitCase::never, kDeadlineNs, seed, true);
            REQUIRE(outcome.error.epoch == 99);
            REQUIRE(outcome.error.primitive == Primitive::none);
            REQUIRE(outcome.poison == 7);
        }
    }
}

}  // namespace
namespace {

struct HostWait {
    PollResult result = PollResult::ready;
    std::uint64_t virtual_ns = 0;
    emu::SimReport report;
};

/// Waits for a kernel of 3 ms. Each of the first `slow_looks` looks at it takes 2 ms of the
/// machine's time.
HostWait wait_for_slow_kernel(std::uint64_t timeout_ns, int slow_looks) {
    HostWait out;
    const emu::SimOptions options = options_of(1, 0, emu::GinMode::off, 3);
    out.report = emu::simulate(options, [&](int rank) {
        const sim::RankWorld world(rank, options, sim::WorldShape{});
        const auto bootstrap = make_sim_bootstrap(rank);  // it brings the virtual clock
        sim::FailedStepArgs args{};
        args.poison = world.scratch(0);
        args.statuses = world.scratch(16);
        args.elapsed_ns = world.scratch(64);
        args.verdicts = world.scratch(128);
        args.error = world.peers().error;
        args.deadline_ns = args.patient_deadline_ns = 3'000'000;
        sim::check(sim::launch_failed_step(args, 1, 32, world.stream()), "launch_failed_step");
        const std::uint64_t from_ns = emu::Engine::get().now_ns();
        int looks = 0;
        const auto look = [&] {
            if (++looks <= slow_looks) std::this_thread::sleep_for(std::chrono::milliseconds(2));
            return false;
        };
        out.result = poll_stream(world.stream(), timeout_ns, look, "the kernel", rank);
        out.virtual_ns = emu::Engine::get().now_ns() - from_ns;
        world.synchronize();
    });
    return out;
}

}  // namespace

// A machine that is busy with something else, or stopped in a debugger, decides nothing.
TEST_CASE("a simulation's host deadlines run on its own clock", "[sim][deadline]") {
    constexpr std::uint64_t kPatientNs = 50'000'000;
    const HostWait patient = wait_for_slow_kernel(kPatientNs, 0);
    REQUIRE(patient.result == PollResult::stream_done);
    REQUIRE(patient.virtual_ns >= 3'000'000);
    REQUIRE(patient.virtual_ns < kPatientNs);
    // Longer than the deadline, in the machine's time.
    const HostWait slowed = wait_for_slow_kernel(kPatientNs, 30);
    REQUIRE(slowed.result == PollResult::stream_done);
    REQUIRE(slowed.virtual_ns == patient.virtual_ns);
    REQUIRE(slowed.report.trace_hash == patient.report.trace_hash);
    const HostWait hasty = wait_for_slow_kernel(500'000, 0);
    REQUIRE(hasty.result == PollResult::timeout);
    REQUIRE(hasty.virtual_ns >= 500'000);
    REQUIRE(wait_for_slow_kernel(500'000, 3).virtual_ns == hasty.virtual_ns);
    // Outside of a simulation the clock is the machine's.
    REQUIRE(host_clock().longest_gap_ns == steady_host_clock().longest_gap_ns);
}

}  // namespace gimlet::test

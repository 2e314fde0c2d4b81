// SPDX-License-Identifier: Apache-2.0
//
// Runs one meeting in one simulated world and says how it went.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/abi/device_error.hpp"
#include "host/emulator/simulation.hpp"
#include "runtime/sim/primitives_kernels.hpp"

namespace gimlet::sim {

struct MeetingCase {
    Meeting meeting = Meeting::nvlink;
    GinTeamChoice gin_team = GinTeamChoice::world;
    TeamsChoice teams = TeamsChoice::world;
    StoreKind store = StoreKind::plain;
    Flaw flaw = Flaw::none;
    int blocks = 1;
    int threads = 32;
    int rounds = 5;
    int first_context = 0;
    int contexts = 1;              ///< that puts use and the barrier names
    bool start_near_wrap = false;  ///< nvlink: the counter; gin: the signal sums
    std::uint64_t deadline_ns = 0;
    int absent_rank = -1;        ///< does not launch its first kernel
    int absent_block_rank = -1;  ///< on this rank ...
    int absent_block = -1;       ///< ... this block leaves at once
    /// After the first kernel the absent rank catches up alone, then all ranks meet once more.
    bool catch_up = false;
};

struct MeetingOutcome {
    std::string message;           ///< of the failed run; empty if it ended by itself
    std::uint64_t mismatches = 0;  ///< words that were not what the sender had written, all ranks
    std::uint64_t failures = 0;    ///< threads that were told of a failure, all ranks
    // Host programs of different ranks are not ordered: each writes its own element.
    std::vector<std::uint64_t> mismatches_of_rank;
    std::vector<std::uint64_t> failures_of_rank;
    std::vector<DeviceError> errors;                   ///< by rank
    std::vector<std::uint64_t> late_failures_of_rank;  ///< after catch_up
    std::uint64_t trace_hash = 0;
    emu::SimReport report;

    /// Sums of what the ranks found.
    void add_up();
    bool caught() const { return !message.empty() || mismatches > 0 || failures > 0; }
};

MeetingOutcome run_meeting(const emu::SimOptions& options, const MeetingCase& which);
std::string text_of(const MeetingCase& which);

struct GridCase {
    int blocks = 2;
    int threads = 32;
    int rounds = 6;
    std::uint32_t start = 0;
    Flaw flaw = Flaw::none;
    int absent_block = -1;
    std::uint64_t deadline_ns = 0;
};

MeetingOutcome run_grid(const emu::SimOptions& options, const GridCase& which);

/// One thread's wait expires; all others of the step have 200 times its deadline.
struct FailedStep {
    int blocks = 1;
    int threads = 32;
    int impatient = 0;  ///< that thread, counted over the grid
    std::uint64_t deadline_ns = 0;
};

struct FailedStepOutcome {
    std::string fault;  ///< what was wrong; empty if nothing
    emu::SimReport report;
};

FailedStepOutcome run_failed_step(const emu::SimOptions& options, const FailedStep& which);

}  // namespace gimlet::sim

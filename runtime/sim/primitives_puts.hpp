// SPDX-License-Identifier: Apache-2.0
//
// Rounds of aggregated puts in one simulated world.
#pragma once

#include <cstdint>

#include "host/emulator/simulation.hpp"
#include "runtime/sim/primitives_kernels.hpp"
#include "runtime/sim/primitives_meeting.hpp"

namespace gimlet::sim {

struct PutCase {
    int put_count = 4;
    int rounds = 4;
    int threads = 64;
    int context = 0;
    PutFlaw flaw = PutFlaw::none;
    PutFlush flush = PutFlush::each_batch;
    std::uint64_t deadline_ns = 0;
};

MeetingOutcome run_puts(const emu::SimOptions& options, const PutCase& which);

/// Rounds in which each rank sends `total` signals to each peer and takes those of the others as
/// they come.
MeetingOutcome run_follow(const emu::SimOptions& options, int total);

}  // namespace gimlet::sim

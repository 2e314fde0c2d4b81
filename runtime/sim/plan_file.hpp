// SPDX-License-Identifier: Apache-2.0
//
// Fault plans as JSON files with units, and at random from a seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "host/emulator/simulation.hpp"

namespace gimlet::sim {

/// What a plan file says. Everything is optional; an empty object is an empty plan.
///
///   {
///     "schedule": "uniform" | "priority" | "run_to_block",
///     "queue_depth": 32,
///     "reorder": 0.2, "split": 0.25, "duplicate_doorbell": 0.1, "late_completion": 0.5,
///     "late_arrival": 0.5,
///     "delay": {"chance": 0.1, "min": "2us", "mean": "20us"},
///     "stall_block": {"rank": 0, "block": 1, "time": "50us"},
///     "rest_block": {"rank": 0, "block": 1, "from": "10us", "time": "1ms"},
///     "slow": {"rank": 1, "block": 0, "factor": 8},
///     "late_rank": {"rank": 2, "time": "1ms"}        or {"rank": 2, "steps": 20000},
///     "stop_rank": {"rank": 3, "step": 20000},
///     "fail_put": {"rank": 0, "number": 5},
///     "near_wrap": true,
///     "memory": {"stale_loads": true, "find_races": true}
///   }
///
/// Times are virtual and written with a unit (ns, us, ms, s); chances are in [0, 1]; steps count
/// from the end of the scenario's set-up. One step is 2 ns of virtual time.
struct SimPlan {
    emu::FaultPlan faults;
    std::optional<emu::Schedule> schedule;  ///< unset: by the seed
    std::optional<int> queue_depth;
    emu::MemoryOptions memory;

    /// A rank stops or a put fails: ranks may give up, cleanly.
    bool breaks_something() const { return faults.stop_rank >= 0 || faults.fail_put_rank >= 0; }
};

/// Raises Error(invalid_argument) that names the field ("delay.min"), its value and what it must
/// be.
SimPlan parse_plan(const std::string& json_text);

/// Reads a file; messages begin with its name.
SimPlan read_plan(const std::string& path);

/// The plan that belongs to a seed. One in eight breaks something.
SimPlan random_plan(std::uint64_t seed, int ranks);

/// JSON that parse_plan reads back; only what differs from an empty plan.
std::string plan_text(const SimPlan& plan);

/// Raises Error(invalid_argument) if the plan names a rank that is not there.
void check_plan_ranks(const SimPlan& plan, int ranks);

const char* name_of(emu::Schedule schedule);

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
//
// Entry of the deterministic world: all ranks in one process, on the caller's thread, scheduled by
// a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace gimlet::emu {

/// Flavour of the emulated GIN backend. `off`: no GIN contexts exist, one LSA team must hold
/// everybody.
enum class GinMode { off, gdaki, proxy };

/// How the next fiber is chosen. `uniform`: any runnable one. `priority`: some CTAs are favoured
/// over others for a while, so that slow and fast ones drift far apart. `run_to_block`: a fiber
/// runs on until it blocks or spins.
enum class Schedule { uniform, priority, run_to_block };

/// Faults on top of the legal disorder. All are off by default. Chances are per decision, in [0,
/// 1].
struct FaultPlan {
    double delay_chance = 0;     ///< a worker that could move skips its turn
    double split_chance = 0.25;  ///< a bulk copy or put moves a piece instead of all that is left
    double duplicate_doorbell_chance = 0;  ///< a doorbell is rung twice
    int stall_rank = -1;                   ///< rank whose CTA `stall_block` does not run ...
    unsigned stall_block = 0;              ///< ... block index within its kernel ...
    uint64_t stall_ns = 0;                 ///< ... for this long after the CTA started
    int stop_rank = -1;                    ///< rank whose threads never run again ...
    uint64_t stop_at_step = 0;             ///< ... from this step on
    int late_rank = -1;                    ///< rank whose host program starts ...
    uint64_t late_ns = 0;                  ///< ... this much later
    bool near_wrap_counters =
        false;  ///< fresh signals and counters start near 2^32 and 2^56 (network's choice)
};

/// What a simulation looks like. Two runs of equal options and equal programs are equal step for
/// step.
struct SimOptions {
    int ranks = 2;
    uint64_t seed = 1;
    int lsa_team_size = 0;  ///< ranks of one LSA team; 0 = all ranks
    GinMode gin = GinMode::gdaki;
    Schedule schedule = Schedule::uniform;
    int sm_count = 8;  ///< SMs of each emulated device
    int gin_contexts_max = 16;
    int gin_queue_depth = 128;
    uint64_t step_limit = 0;        ///< end the run as failed after this many steps; 0 = no limit
    bool fill_fresh_memory = true;  ///< device memory starts as a poison pattern instead of zero
    FaultPlan faults;
};

/// What a run did. `trace_hash` covers every scheduling decision.
struct SimReport {
    uint64_t switches = 0;
    uint64_t steps = 0;
    uint64_t trace_hash = 0;
    uint64_t virtual_ns = 0;
    size_t peak_bytes = 0;  ///< largest sum of device memory allocated at one time
};

/// A run that ended badly: an exception of a host program, undefined behaviour that was refused, a
/// deadlock, or the step limit. The message holds the seed.
class SimFailure : public std::runtime_error {
  public:
    SimFailure(const std::string& message, uint64_t seed)
        : std::runtime_error(message), seed_(seed) {}
    uint64_t seed() const { return seed_; }

  private:
    uint64_t seed_;
};

/// Runs `host_program(rank)` for each rank as a fiber and returns when all have returned and the
/// machine is idle. Throws SimFailure. Not reentrant: a host program must not call simulate().
SimReport simulate(const SimOptions& options, const std::function<void(int rank)>& host_program);

/// Collective over all host programs of a simulation (call it from host programs only).
void host_barrier();

/// Collective: contributes `bytes` bytes; returns the contribution of each rank, by rank. Sizes may
/// differ.
std::vector<std::vector<std::byte>> host_all_gather(const void* data, size_t bytes);

}  // namespace gimlet::emu

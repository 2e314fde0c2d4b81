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

/// Faults on top of the legal disorder. All are off by default, but for reordering and splitting,
/// which are legal at any time. Chances are per decision, in [0, 1]; times are virtual.
struct FaultPlan {
    double delay_chance = 0;     ///< a worker that could move skips its turn
    uint64_t delay_min_ns = 0;   ///< a GIN operation rests at least this long once it is issued ...
    uint64_t delay_mean_ns = 0;  ///< ... and this long on average (exponential above the minimum)
    double reorder_chance = 0.2;  ///< a GIN operation lets others pass it for a while
    double split_chance = 0.25;   ///< a bulk copy or put moves a piece instead of all that is left
    double late_completion_chance = 0;     ///< a put or signal that has arrived is complete at its
                                           ///< sender (counter, flush) only much later
    double late_arrival_chance = 0;        ///< a put or signal that is complete at its sender
                                           ///< arrives only much later
    double duplicate_doorbell_chance = 0;  ///< a doorbell comes a second time, later: operations
                                           ///< that are held back may go early
    int stall_rank = -1;                   ///< rank whose CTA `stall_block` does not run ...
    unsigned stall_block = 0;              ///< ... block index within its kernel ...
    uint64_t stall_ns = 0;                 ///< ... for this long after the CTA started
    int rest_rank = -1;                    ///< rank whose CTA `rest_block` stands still ...
    unsigned rest_block = 0;               ///< ... (as if its SM were lent to somebody else) ...
    uint64_t rest_from_ns = 0;             ///< ... from this moment on, see wait_until_armed ...
    uint64_t rest_ns = 0;                  ///< ... for this long
    int slow_rank = -1;                    ///< rank whose threads get one turn of `slow_factor` ...
    int slow_block = -1;                   ///< ... only those of this block; -1 = all
    unsigned slow_factor = 1;
    int stop_rank = -1;               ///< rank whose threads never run again ...
    uint64_t stop_at_step = 0;        ///< ... from this step on
    int late_rank = -1;               ///< rank whose host program starts ...
    uint64_t late_ns = 0;             ///< ... this much later
    int fail_put_rank = -1;           ///< rank whose GIN connection breaks ...
    uint64_t fail_put_number = 0;     ///< ... with its n-th operation (the first is 1): it and what
                                      ///< follows to that peer on that context is lost, and done
                                      ///< locally all the same
    bool near_wrap_counters = false;  ///< fresh signals, their shadows and counters start just
                                      ///< below their wrap (2^64, 2^64, 2^56)
    /// Stop, rest, late and failing put count from the moment when all host programs have called
    /// arm_faults(), so that a program can be set up first. The late rank sleeps in arm_faults().
    bool wait_until_armed = false;
};

/// What every signal and shadow starts with when `near_wrap_counters` is set.
inline constexpr uint64_t kNearWrapSignal = ~uint64_t{0} - 2;

/// Something that happened, for timelines.
struct TraceEvent {
    enum class Kind : uint8_t { instant, begin, end };
    Kind kind = Kind::instant;
    int rank = -1;      ///< where it is shown
    int track = 0;      ///< 0 = host program and device, 1 + b = block b, -1 = network
    uint64_t ns = 0;    ///< virtual time
    uint64_t step = 0;  ///< scheduler steps so far
    std::string text;   ///< begin and end of one thing have equal text
};

/// Gets every event while fibers stand still. It must not call the emulator.
class Tracer {
  public:
    virtual ~Tracer() = default;
    virtual void event(TraceEvent event) = 0;
};

/// How memory behaves beyond plain interleaving. Both cost a vector clock a thread; see README.md.
struct MemoryOptions {
    /// An ordered load may return an older value, as long as its order and scope allow.
    bool stale_loads = false;
    /// Unordered accesses end the run with a report that names both.
    bool find_races = false;

    bool any() const { return stale_loads || find_races; }
};

/// Decides in the seed's place, so that a program can be walked through (SimOptions::chooser).
class Chooser {
  public:
    virtual ~Chooser() = default;
    /// One of `count` > 1 ways to go on. 0: the thread that ran last goes on, the oldest operation
    /// moves, a load returns the newest value.
    virtual uint32_t choose(uint32_t count) = 0;
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
    MemoryOptions memory;
    Tracer* tracer = nullptr;  ///< not owned; watching changes nothing about the run
    /// Not owned. From arm_faults() on (with FaultPlan::wait_until_armed) it chooses at every
    /// ordered access and store which CUDA thread or GIN operation moves, and which old value a
    /// stale load returns. A thread that polls four times without a change of anything waits for
    /// one. For programs without bulk copies; set reorder_chance and split_chance to 0.
    Chooser* chooser = nullptr;
};

/// What a run did. `trace_hash` covers every scheduling decision.
struct SimReport {
    uint64_t switches = 0;
    uint64_t steps = 0;
    uint64_t trace_hash = 0;
    uint64_t virtual_ns = 0;
    size_t peak_bytes = 0;          ///< largest sum of device memory allocated at one time
    uint64_t accesses_watched = 0;  ///< with SimOptions::memory
};

/// A run that ended badly: an exception of a host program, undefined behaviour that was refused, a
/// deadlock, or the step limit. The message holds the seed.
class SimFailure : public std::runtime_error {
  public:
    SimFailure(const std::string& message, uint64_t seed, const SimReport& report = {})
        : std::runtime_error(message), seed_(seed), report_(report) {}
    uint64_t seed() const { return seed_; }
    /// Of the run up to its end.
    const SimReport& report() const { return report_; }

  private:
    uint64_t seed_;
    SimReport report_;
};

/// Runs `host_program(rank)` for each rank as a fiber and returns when all have returned and the
/// machine is idle. Throws SimFailure. Not reentrant: a host program must not call simulate().
SimReport simulate(const SimOptions& options, const std::function<void(int rank)>& host_program);

/// Collective over all host programs of a simulation (call it from host programs only).
void host_barrier();

/// Collective, for FaultPlan::wait_until_armed: set-up is over, faults may begin. The late rank
/// comes back `late_ns` later than the others. Does nothing but the barrier without it.
void arm_faults();

/// Collective: contributes `bytes` bytes; returns the contribution of each rank, by rank. Sizes may
/// differ.
std::vector<std::vector<std::byte>> host_all_gather(const void* data, size_t bytes);

}  // namespace gimlet::emu

// SPDX-License-Identifier: Apache-2.0
// The smallest litmus programs, walked through: every schedule with at most so many departures from
// the plain one (the thread that ran last goes on until it polls in vain, then the oldest network
// operation moves; loads return the newest value). A departure is another thread, another
// operation, or an older value. Within that bound all orders of ordered accesses, stores, and moves
// of GIN operations come.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"
#include "tests/litmus/world.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

using namespace gimlet;
using namespace gimlet::litmus;

namespace {

/// Depth first through all strings of choices with at most `departures_max` that are not 0.
class Walk : public emu::Chooser {
  public:
    explicit Walk(int departures_max) : departures_max_(departures_max) {}

    std::uint32_t choose(std::uint32_t count) override {
        if (at_ == path_.size()) path_.push_back({0, count});
        Step& step = path_[at_++];
        if (step.count != count) diverged_ = true;
        return step.chosen;
    }
    /// Prepares the next string; false when all have been.
    bool next() {
        path_.resize(at_);
        at_ = 0;
        for (; !path_.empty(); path_.pop_back()) {
            Step& last = path_.back();
            if (last.chosen + 1 == last.count) continue;
            if (last.chosen == 0 && departures() == departures_max_) continue;
            ++last.chosen;
            return true;
        }
        return false;
    }
    /// A prefix did not lead to the same choices again.
    bool diverged() const { return diverged_; }

  private:
    struct Step {
        std::uint32_t chosen;
        std::uint32_t count;
    };
    int departures() const {
        int sum = 0;
        for (const Step& step : path_) sum += step.chosen != 0 ? 1 : 0;
        return sum;
    }

    int departures_max_;
    std::vector<Step> path_;
    std::size_t at_ = 0;
    bool diverged_ = false;
};

const Program& program_named(const std::string& name) {
    for (const Program& program : programs()) {
        if (name == program.name) return program;
    }
    throw std::invalid_argument("no program " + name);
}

/// Whether transfers land whole, or in two halves in any order.
enum class Transfers { whole, halves };

Histogram run_once(const Program& program, Transfers transfers, Walk& walk) {
    const bool lsa = (program.needs & kLsa) != 0;
    emu::SimOptions options;
    options.ranks = 2;
    options.sm_count = 1;
    options.gin = lsa ? emu::GinMode::off : emu::GinMode::gdaki;
    options.lsa_team_size = lsa ? 2 : 1;
    options.memory.stale_loads = lsa;
    options.faults.reorder_chance = 0;
    options.faults.split_chance = transfers == Transfers::halves ? 1 : 0;
    options.faults.wait_until_armed = true;
    options.chooser = &walk;
    Histogram seen;
    emu::simulate(options, [&](int rank) {
        const auto communicator = Communicator::create(make_sim_bootstrap(rank));
        LitmusOptions small;
        small.looks_max = 4;
        if ((program.needs & kManySignals) == 0) small.gin_signal_count = kFewSignalCount;
        LitmusWorld litmus(*communicator, small);
        emu::arm_faults();
        const Histogram outcome = litmus.run(program, 1);
        if (rank == 0) seen = outcome;
        litmus.close();
        communicator->close();
    });
    return seen;
}

/// Runs all schedules of the program; tells how many there were and how often each outcome came.
void walk_through(const std::string& name, int departures_max,
                  Transfers transfers = Transfers::whole) {
    const Program& program = program_named(name);
    Walk walk(departures_max);
    Histogram seen;
    std::uint64_t schedules = 0;
    do {
        for (const auto& [outcome, count] : run_once(program, transfers, walk))
            seen[outcome] += count;
        ++schedules;
        REQUIRE_FALSE(walk.diverged());
    } while (walk.next());
    std::string text = name + ": " + std::to_string(schedules) + " schedules with at most " +
                       std::to_string(departures_max) + " departures;";
    for (const auto& [outcome, count] : seen)
        text += " " + text_of(outcome) + " " + std::to_string(count);
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
    CHECK(forbidden_text(program, seen) == "");
    CHECK(unreached_text(program, seen) == "");
}

struct Bound {
    const char* name;
    int departures_max;
    Transfers transfers = Transfers::whole;
};

}  // namespace

TEST_CASE("the smallest litmus programs, walked through", "[litmus]") {
    for (const Bound& bound :
         {Bound{"gin/put_weak_signal", 1, Transfers::halves},
          Bound{"gin/put_then_strong_signal", 1}, Bound{"gin/put_then_weak_signal", 1},
          Bound{"gin/aggregate_open", 1}, Bound{"gin/get_flush", 1},
          Bound{"lsa/bulk_store_waited", 1, Transfers::halves}, Bound{"lsa/coherence", 2},
          Bound{"lsa/relaxed_relaxed", 1}, Bound{"lsa/atomic_add", 2}, Bound{"gpu/block_scope", 2},
          Bound{"lsa/store_buffering", 2}}) {
        walk_through(bound.name, bound.departures_max, bound.transfers);
    }
}

// All programs but gin/back_pressure: its 300 puts have too many orders. One of them: -c and its
// name.
TEST_CASE("litmus programs, walked through further", "[.][litmus][exhaustive]") {
    const std::vector<Bound> bounds = {Bound{"gin/put_put", 2},
                                       Bound{"gin/put_in_pieces", 2, Transfers::halves},
                                       Bound{"gin/put_weak_signal", 2},
                                       Bound{"gin/put_weak_signal", 1, Transfers::halves},
                                       Bound{"gin/put_strong_signal", 2},
                                       Bound{"gin/put_strong_signal", 1, Transfers::halves},
                                       Bound{"gin/put_then_weak_put", 2},
                                       Bound{"gin/put_then_weak_signal", 2},
                                       Bound{"gin/put_then_strong_put", 2},
                                       Bound{"gin/put_then_strong_signal", 2},
                                       Bound{"gin/two_contexts", 2},
                                       Bound{"gin/two_weak_signals", 2},
                                       Bound{"gin/strong_covers_signals", 2},
                                       Bound{"gin/put_value", 2},
                                       Bound{"gin/flush_is_local", 2},
                                       Bound{"gin/counter_is_local", 2},
                                       Bound{"gin/aggregate_closed", 2},
                                       Bound{"gin/aggregate_open", 2},
                                       Bound{"gin/get_flush", 2},
                                       Bound{"gin/get_before_flush", 2},
                                       Bound{"gin/loop_back", 2},
                                       Bound{"gin/signal_wrap", 1},
                                       Bound{"gin/shadow_meet", 2},
                                       Bound{"gin/shadow_follow", 2},
                                       Bound{"gin/high_signal_id", 1},
                                       Bound{"lsa/bulk_store_waited", 3, Transfers::halves},
                                       Bound{"lsa/bulk_store_read_only", 3, Transfers::halves},
                                       Bound{"lsa/bulk_store_unfenced", 3},
                                       Bound{"lsa/bulk_load_fenced", 3},
                                       Bound{"lsa/bulk_to_bulk_fenced", 3},
                                       Bound{"lsa/bulk_to_bulk_unfenced", 3},
                                       Bound{"lsa/bulk_load_unfenced", 3},
                                       Bound{"lsa/release_acquire", 3},
                                       Bound{"lsa/fence_fence", 3},
                                       Bound{"lsa/coherence", 3},
                                       Bound{"lsa/atomic_add", 3},
                                       Bound{"lsa/chain", 3},
                                       Bound{"gpu/release_acquire", 3},
                                       Bound{"lsa/relaxed_relaxed", 3},
                                       Bound{"lsa/release_relaxed", 3},
                                       Bound{"lsa/relaxed_acquire", 3},
                                       Bound{"lsa/release_gpu_scope", 3},
                                       Bound{"lsa/acquire_gpu_scope", 3},
                                       Bound{"lsa/fence_gpu_scope", 3},
                                       Bound{"lsa/release_block_scope", 3},
                                       Bound{"lsa/acquire_block_scope", 3},
                                       Bound{"lsa/fence_block_scope", 3},
                                       Bound{"lsa/acq_rel_add", 3},
                                       Bound{"lsa/release_sequence", 3},
                                       Bound{"gpu/block_scope", 3},
                                       Bound{"lsa/store_buffering", 3}};
    for (const Bound& bound : bounds) {
        DYNAMIC_SECTION(bound.name << (bound.transfers == Transfers::halves ? " halves" : "")) {
            walk_through(bound.name, bound.departures_max, bound.transfers);
        }
    }
}

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

Histogram run_once(const Program& program, Walk& walk) {
    const bool lsa = (program.needs & kLsa) != 0;
    emu::SimOptions options;
    options.ranks = 2;
    options.sm_count = 1;
    options.gin = lsa ? emu::GinMode::off : emu::GinMode::gdaki;
    options.lsa_team_size = lsa ? 2 : 1;
    options.memory.stale_loads = lsa;
    options.faults.reorder_chance = 0;
    options.faults.split_chance = 0;
    options.faults.wait_until_armed = true;
    options.chooser = &walk;
    Histogram seen;
    emu::simulate(options, [&](int rank) {
        const auto communicator = Communicator::create(make_sim_bootstrap(rank));
        LitmusOptions small;
        small.gin_signal_count = kFewSignalCount;
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
void walk_through(const std::string& name, int departures_max) {
    const Program& program = program_named(name);
    Walk walk(departures_max);
    Histogram seen;
    std::uint64_t schedules = 0;
    do {
        for (const auto& [outcome, count] : run_once(program, walk)) seen[outcome] += count;
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

}  // namespace

TEST_CASE("the smallest litmus programs, walked through", "[litmus]") {
    walk_through("gin/put_weak_signal", 1);
    walk_through("gin/put_then_strong_signal", 1);
    walk_through("gin/put_then_weak_signal", 1);
    walk_through("lsa/relaxed_relaxed", 1);
    walk_through("lsa/atomic_add", 1);
}

TEST_CASE("litmus programs, walked through further", "[.][litmus][exhaustive]") {
    for (const char* name :
         {"gin/put_weak_signal", "gin/put_strong_signal", "gin/put_then_weak_put",
          "gin/put_then_weak_signal", "gin/put_then_strong_put", "gin/put_then_strong_signal",
          "gin/two_contexts", "gin/two_weak_signals", "gin/strong_covers_signals",
          "gin/flush_is_local", "gin/aggregate_closed", "gin/loop_back"})
        walk_through(name, 2);
    for (const char* name :
         {"lsa/release_acquire", "lsa/fence_fence", "lsa/coherence", "lsa/atomic_add", "lsa/chain",
          "gpu/release_acquire", "lsa/relaxed_relaxed", "lsa/release_relaxed",
          "lsa/relaxed_acquire", "lsa/release_gpu_scope", "lsa/acquire_gpu_scope",
          "lsa/fence_gpu_scope", "gpu/block_scope", "lsa/store_buffering"})
        walk_through(name, 3);
}

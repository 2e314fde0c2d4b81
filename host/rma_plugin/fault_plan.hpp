// SPDX-License-Identifier: Apache-2.0
// Faults on purpose: the simulator's plan files (`gimlet sim`), as far as a plugin can act on them.
#pragma once

#include <cstdint>
#include <string>

namespace gimlet::rma {

/// Off by default. Chances are in [0, 1]; ranks below 0 mean nobody.
struct FaultPlan {
    double delay_chance = 0;  ///< an operation rests before it is carried out ...
    std::uint64_t delay_min_ns = 0;
    std::uint64_t delay_mean_ns = 0;  ///< ... this long on average, exponential above the minimum
    double reorder_chance = 0;        ///< a put lets later ones pass, up to the next signal
    double split_chance = 0;          ///< a put goes in two pieces, the second one later
    int slow_rank = -1;               ///< rank that makes progress in one call of slow_factor
    unsigned slow_factor = 1;
    int late_rank = -1;  ///< rank that does nothing for this long after it has connected
    std::uint64_t late_ns = 0;
    int stop_rank = -1;         ///< rank that never does anything again ...
    std::uint64_t stop_at = 0;  ///< ... from its n-th operation on
    int fail_rank =
        -1;  ///< rank whose n-th operation (from 1), and what follows to that peer on that
    std::uint64_t fail_number = 0;  ///< context, is lost and done locally all the same
    std::string ignored;            ///< fields that only the simulator knows, separated by commas
};

/// The file that GIMLET_RMA_FAULT names. Raises Error(invalid_argument) that names the file and the
/// field.
FaultPlan read_fault_plan(const std::string& path);
/// `name` begins the messages.
FaultPlan parse_fault_plan(const std::string& json_text, const std::string& name);

/// One rank's dice and counters for a plan.
class FaultInjector {
  public:
    /// Equal seed, rank and calls: equal decisions.
    FaultInjector(const FaultPlan& plan, int rank, std::uint64_t seed, std::uint64_t now_ns);

    /// An operation is handed over. Counts it.
    struct Decision {
        bool is_lost = false;
        bool may_be_passed = false;
        bool is_split = false;
        std::uint64_t rest_ns = 0;
    };
    Decision decide(int peer, int context, std::uint64_t bytes, bool has_signal);

    /// False: this call of progress does nothing.
    bool may_progress(std::uint64_t now_ns);
    bool has_stopped() const noexcept;
    /// In [0, limit).
    std::uint64_t below(std::uint64_t limit) noexcept;

  private:
    double chance() noexcept;

    const FaultPlan plan_;
    const int rank_;
    std::uint64_t state_;
    const std::uint64_t start_ns_;
    std::uint64_t operations_ = 0;
    std::uint64_t calls_ = 0;
    int lost_peer_ = -1;
    int lost_context_ = -1;
};

}  // namespace gimlet::rma

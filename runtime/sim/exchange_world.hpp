// SPDX-License-Identifier: Apache-2.0
// One scenario of dispatch and combine in simulation: all ranks, several steps, everything compared
// with the plain reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"
#include "runtime/config.hpp"
#include "runtime/generators.hpp"
#include "runtime/routing_table.hpp"

namespace gimlet::sim {

enum class StepKind { fresh, cached };

/// What a run must come to. `success`: every step right. `clean_failure`: something is broken on
/// purpose, so a rank may give up with an error of the right kind; what it got until then is right,
/// and nobody hangs.
enum class Expectation { success, clean_failure };

struct Scenario {
    emu::SimOptions sim;
    MoeConfig config;
    GeneratorOptions
        routing;  ///< rank_count, token_count, expert_count and topk follow sim and config
    IndexType index_type = IndexType::int32;
    std::vector<StepKind> steps = {StepKind::fresh};
    bool weights = true;  ///< dispatch carries weights; expert_major combines apply them
    bool bias = false;
    bool host_counts = false;
    bool consume = false;  ///< fifo: a kernel on another stream uses the rows as they come
    bool events = false;   ///< rings of events are on, and are read while kernels run
    int combines = 1;      ///< that follow each dispatch
    std::uint64_t data_seed = 1;
    std::uint64_t think_ns = 0;  ///< longest pause of a host program between its calls
    Expectation expectation = Expectation::success;
};

/// What the scenario's routing is generated from: `routing`, with what follows sim and config.
GeneratorOptions routing_options(const Scenario& scenario);

/// A small scenario: `ranks` ranks in LSA teams of `team`, 12 tokens of 64 bf16 elements, top-3 of
/// 7 experts.
Scenario small_scenario(int ranks, int team, emu::GinMode gin, std::uint64_t seed);

/// Runs it; throws with the seed and the first difference. Returns the simulation's report.
///
/// What is checked, by host programs that share no code with the kernels: counts, and every byte of
/// rows and records (each token once, at its place); rows stay as they are until their buffer's
/// turn comes again (they are compared once more just then, and then overwritten with a pattern, so
/// that a row written before this rank has entered the step, or not at all, is found); combined
/// output to the byte; an end of every kernel within its deadline; nothing in flight at the end.
emu::SimReport run_scenario(const Scenario& scenario);

/// Reads like "ranks 4 team 2 gin gdaki seed 17 rank_major bf16 ...", for INFO lines.
std::string describe(const Scenario& scenario);

}  // namespace gimlet::sim

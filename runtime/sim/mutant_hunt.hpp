// SPDX-License-Identifier: Apache-2.0
//
// Does the simulation notice wrong code? Runs scenarios with one mutant at a time. Only in
// gimlet_mutants, whose device code has its mutation points switched on.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace gimlet::sim {

struct MutantInfo {
    int id;
    std::string name;
    std::vector<std::string> scenarios;  ///< that should notice
    std::string place;                   ///< file, without folder device/ and extension
    std::string rule;                    ///< that the mutant breaks
};

/// device/core/mutation.hpp's table.
const std::vector<MutantInfo>& mutant_list();
/// The code as it ships, over the scenarios of all mutants: nothing may be noticed.
MutantInfo right_version();

/// A seed for each mutant (by name) that is tried before all others. A file of them has lines
/// `mutant seed`; empty lines and lines that begin with # say nothing.
using SeedHints = std::map<std::string, std::uint64_t>;

/// Throws Error{invalid_argument}, with the line, for what is not a hint; for an unknown mutant,
/// too.
SeedHints read_seed_hints(const std::string& path);

struct HuntOptions {
    std::uint64_t first_seed = 1;
    std::uint64_t seed_count = 2000;
    int jobs = 1;
    SeedHints hints;
};

struct Catch {
    bool caught = false;
    std::uint64_t seeds = 0;  ///< runs until it was caught, or all of them
    std::uint64_t hits = 0;   ///< times that the runs came by the mutation point
    std::string scenario;
    std::uint64_t seed = 0;
    std::string how;     ///< the fault
    double seconds = 0;  ///< of processor time
};

/// One result for each mutant, in order. Each mutant runs in a process of its own: a crash counts
/// as caught, and so does a run that takes more than two minutes. Calls `on_result` as results
/// come.
std::vector<Catch> hunt(const std::vector<MutantInfo>& mutants, const HuntOptions& options,
                        void (*on_result)(const MutantInfo&, const Catch&));

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gimlet::cli {

struct SoakOptions {
    double minutes = 1;
    std::uint64_t first_seed = 1;
    std::vector<std::string> scenarios;
    std::string report_path;  ///< empty = none
};

/// Fresh seeds and random plans over the scenarios in turn until time is up. A line a few seconds,
/// the replay command of each failure, and a report (Markdown). Exit code of the program.
int run_soak(const SoakOptions& options);

}  // namespace gimlet::cli

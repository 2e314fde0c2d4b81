// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mpi_tests/harness/case.hpp"

namespace gimlet::mpi_tests {

struct RunnerOptions {
    std::vector<std::string> only;  ///< cases whose name contains one of these; empty = all
    Effort effort = Effort::full;
    std::uint64_t deadline_s = 120;  ///< of one case
    bool json = false;
};

/// Runs the cases on all ranks, one after the other; a case fails if it fails on any rank. Rank 0
/// prints a line a case, and last "N passed, N failed, N skipped". Returns 0 if something passed
/// and nothing failed. A case that exceeds the deadline, or lets an exception out, ends the job
/// after that line.
int run_cases(const std::vector<Case>& cases, const RunnerOptions& options,
              std::shared_ptr<Bootstrap> bootstrap);

}  // namespace gimlet::mpi_tests

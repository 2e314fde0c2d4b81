// SPDX-License-Identifier: Apache-2.0
// How a command gets its ranks: the processes of mpirun, or threads of this process.
#pragma once

#include <functional>
#include <memory>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet::cli {

/// True if a launcher (Open MPI, MPICH, Slurm's PMI) started this process.
bool under_launcher();

struct SessionOptions {
    int thread_ranks = 1;  ///< ranks as threads, where no launcher is at work
};

/// Runs `body` once per rank of this process, with the rank's device current, and returns the
/// largest exit code. Under a launcher that is one call, with MPI started and ended around it;
/// otherwise `thread_ranks` threads. An exception of `body` is printed with its rank, ends the
/// other ranks (their collectives raise), and gives exit code 2.
int run_ranks(const SessionOptions& options, int* argc, char*** argv,
              const std::function<int(std::shared_ptr<Bootstrap>)>& body);

}  // namespace gimlet::cli

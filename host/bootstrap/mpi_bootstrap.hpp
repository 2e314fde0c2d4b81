// SPDX-License-Identifier: Apache-2.0
// Ranks of an MPI communicator (library target gimlet_mpi). This header does not need mpi.h.
#pragma once

#include <memory>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

/// Starts MPI if nobody has, and ends it at the end of the scope if it was the one that started it.
/// If an exception is under way by then, MPI_Finalize is left out, since it would wait for ranks
/// that may be gone; the caller ends the job (`mpi_abort`).
class MpiSession {
  public:
    MpiSession(int* argc, char*** argv);
    ~MpiSession();
    MpiSession(const MpiSession&) = delete;
    MpiSession& operator=(const MpiSession&) = delete;

  private:
    bool started_here_ = false;
    int exceptions_at_start_ = 0;
};

/// Collective over MPI_COMM_WORLD. Works on a duplicate, so it never meets the caller's messages.
/// Raises Error(invalid_usage) if MPI is not initialised.
std::unique_ptr<Bootstrap> make_mpi_bootstrap();

/// Collective over `*comm`, which points to an MPI_Comm; the caller keeps it.
std::unique_ptr<Bootstrap> make_mpi_bootstrap(const void* comm);

/// Ends all ranks of the job. For a rank that failed while others may be waiting for it.
[[noreturn]] void mpi_abort(int exit_code);

}  // namespace gimlet

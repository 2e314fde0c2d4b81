// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstdint>

#include "host/base/error.hpp"

namespace gimlet {

/// Error code that an NCCL result maps to: remote error -> peer_failed, CUDA failure -> cuda, and
/// so on.
ErrorCode error_code_of(ncclResult_t result) noexcept;

/// Raises unless `result` is ncclSuccess. The message names the call (`what`), NCCL's text for the
/// result, NCCL's last message of this communicator if there is one, and the cure.
void nccl_check(ncclResult_t result, const char* what, int rank, ncclComm_t comm = nullptr);

/// As nccl_check, for calls on a communicator that may be non-blocking: while the result is
/// ncclInProgress, polls the communicator until the call has ended or `timeout_ns` has passed
/// (Error(timeout)). 0 = the value of GIMLET_TIMEOUT_MS.
void nccl_complete(ncclResult_t result, const char* what, int rank, ncclComm_t comm,
                   std::uint64_t timeout_ns = 0);

/// For clean-up paths: logs a warning instead of raising.
void nccl_warn(ncclResult_t result, const char* what, int rank) noexcept;

}  // namespace gimlet

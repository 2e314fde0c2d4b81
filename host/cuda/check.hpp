// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "host/base/error.hpp"

namespace gimlet {

/// Raises unless `result` is cudaSuccess: out_of_memory for a failed allocation, cuda otherwise.
/// The message names the call (`what`), CUDA's name and text, and, for an error that makes the
/// context unusable, or that says more about the machine than about the call, what to do.
void cuda_check(cudaError_t result, const char* what, int rank = kNoRank);

/// For destructors: logs a warning instead of raising.
void cuda_warn(cudaError_t result, const char* what, int rank = kNoRank) noexcept;

/// True for errors after which every later call of the process fails too (illegal address, trap,
/// launch failure, ECC): only ending the process helps.
bool cuda_error_is_sticky(cudaError_t result) noexcept;

/// What to do about an error of the machine (MPS, driver, device in use); "" for all others.
std::string cuda_error_cure(cudaError_t result);

}  // namespace gimlet

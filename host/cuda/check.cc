// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/check.hpp"

#include "host/base/log.hpp"

namespace gimlet {

bool cuda_error_is_sticky(cudaError_t result) noexcept {
    // CUDA's numbers are fixed; some of these have names only in newer toolkits.
    constexpr int kEccUncorrectable = 214, kMpsClientTerminated = 809;
    constexpr int kHardwareStackError = 714,
                  kLaunchFailure = 719;  // 715..718: illegal instruction,
                                         // misaligned address, address space, pc
    const int number = static_cast<int>(result);
    if (number >= kHardwareStackError && number <= kLaunchFailure) return true;
    return result == cudaErrorIllegalAddress || result == cudaErrorLaunchTimeout ||
           result == cudaErrorAssert || number == kEccUncorrectable ||
           number == kMpsClientTerminated;
}

void cuda_check(cudaError_t result, const char* what, int rank) {
    if (result == cudaSuccess) return;
    // Takes a non-sticky error out of CUDA's per-thread slot: it is reported here, once.
    (void)cudaGetLastError();
    const ErrorCode code =
        result == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda;
    raise(
        code, rank, "{} failed: {} ({}){}", what, cudaGetErrorName(result),
        cudaGetErrorString(result),
        cuda_error_is_sticky(result)
            ? "; the CUDA context of this process is lost, every later call fails: end the process"
            : "");
}

void cuda_warn(cudaError_t result, const char* what, int rank) noexcept {
    if (result == cudaSuccess) return;
    (void)cudaGetLastError();
    log(LogLevel::warn, rank, "{} failed: {}", what, cudaGetErrorName(result));
}

}  // namespace gimlet

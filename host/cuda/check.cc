// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/check.hpp"

#include "host/base/log.hpp"

namespace gimlet {

bool cuda_error_is_sticky(cudaError_t result) noexcept {
    // CUDA's numbers are fixed; some of these have names only in newer toolkits.
    constexpr int kEccUncorrectable = 214, kMpsClientTerminated = 810;
    constexpr int kHardwareStackError = 714,
                  kLaunchFailure = 719;  // 715..718: illegal instruction,
                                         // misaligned address, address space, pc
    const int number = static_cast<int>(result);
    if (number >= kHardwareStackError && number <= kLaunchFailure) return true;
    return result == cudaErrorIllegalAddress || result == cudaErrorLaunchTimeout ||
           result == cudaErrorAssert || number == kEccUncorrectable ||
           number == kMpsClientTerminated;
}

std::string cuda_error_cure(cudaError_t result) {
    constexpr const char* kRestart =
        "end it (echo quit | nvidia-cuda-mps-control, with the same CUDA_MPS_PIPE_DIRECTORY) and "
        "start nvidia-cuda-mps-control -d anew, in a folder of your own";
    switch (static_cast<int>(result)) {
        case 35: return "the driver is older than this program's CUDA; install a newer driver";
        case 46:
            return std::string(
                       "another process holds the GPU in exclusive mode, or one that died under "
                       "MPS has left the daemon broken; ") +
                   kRestart;
        case 209: return "the GPU is not one that this program was built for (sm_90 and newer)";
        case 805:
            return std::string(
                       "CUDA_MPS_PIPE_DIRECTORY names an MPS daemon that does not answer, perhaps "
                       "of an earlier run; unset it, or ") +
                   kRestart;
        case 806:
        case 807: return std::string("the MPS daemon is not usable; ") + kRestart;
        case 808:
        case 809:
            return "the MPS daemon has no room for another process; fewer ranks a GPU, or unset "
                   "CUDA_DEVICE_MAX_CONNECTIONS";
        case 810:
            return std::string("the MPS daemon ended this process because another one failed; ") +
                   kRestart;
        default: return "";
    }
}

void cuda_check(cudaError_t result, const char* what, int rank) {
    if (result == cudaSuccess) return;
    // Takes a non-sticky error out of CUDA's per-thread slot: it is reported here, once.
    (void)cudaGetLastError();
    const ErrorCode code =
        result == cudaErrorMemoryAllocation ? ErrorCode::out_of_memory : ErrorCode::cuda;
    const std::string cure = cuda_error_cure(result);
    raise(
        code, rank, "{} failed: {} ({}){}{}{}", what, cudaGetErrorName(result),
        cudaGetErrorString(result), cure.empty() ? "" : "; ", cure,
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

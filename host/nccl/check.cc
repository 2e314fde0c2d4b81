// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/check.hpp"

#include <chrono>
#include <limits>
#include <string>
#include <thread>

#include "host/base/deadline.hpp"
#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"

namespace gimlet {

namespace {

std::string cure_of(ncclResult_t result) {
    switch (result) {
        case ncclUnhandledCudaError:
        case ncclSystemError: return "; NCCL_DEBUG=WARN shows the failing call";
        case ncclInvalidUsage:
            return "; NCCL_DEBUG=WARN shows the reason (several ranks on one GPU need "
                   "NCCL_MULTI_RANK_GPU_ENABLE=1, and NCCL_NVLS_ENABLE must not be 1 then)";
        case ncclRemoteError: return "; look at the log of the other ranks first";
        case ncclInternalError:
        case ncclInvalidArgument: return "; NCCL_DEBUG=INFO shows the reason";
        default: return "";
    }
}

std::string last_error_of(ncclComm_t comm) {
    const char* text = ncclGetLastError(comm);
    if (text == nullptr || *text == '\0') return "";
    return std::string(", NCCL says: ") + text;
}

}  // namespace

ErrorCode error_code_of(ncclResult_t result) noexcept {
    switch (result) {
        case ncclSuccess: return ErrorCode::ok;
        case ncclUnhandledCudaError: return ErrorCode::cuda;
        case ncclSystemError: return ErrorCode::system;
        case ncclRemoteError: return ErrorCode::peer_failed;
        case ncclTimeout: return ErrorCode::timeout;
        default: return ErrorCode::nccl;
    }
}

void nccl_check(ncclResult_t result, const char* what, int rank, ncclComm_t comm) {
    if (result == ncclSuccess) return;
    raise(error_code_of(result), rank, "{} failed: {} (result {}){}{}", what,
          ncclGetErrorString(result), static_cast<int>(result), last_error_of(comm),
          cure_of(result));
}

void nccl_complete(ncclResult_t result, const char* what, int rank, ncclComm_t comm,
                   std::uint64_t timeout_ns) {
    if (result != ncclInProgress) {
        nccl_check(result, what, rank, comm);
        return;
    }
    if (timeout_ns == 0) {
        timeout_ns = static_cast<std::uint64_t>(env_int(EnvVar::timeout_ms)) * 1'000'000;
        if (timeout_ns == 0) timeout_ns = std::numeric_limits<std::uint64_t>::max();
    }
    const auto deadline = deadline_after(timeout_ns);
    while (result == ncclInProgress) {
        if (std::chrono::steady_clock::now() > deadline) {
            raise(ErrorCode::timeout, rank,
                  "{} is not finished after {}; another rank may be missing (GIMLET_TIMEOUT_MS "
                  "raises the "
                  "limit)",
                  what, format_duration_ns(timeout_ns));
        }
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        nccl_check(ncclCommGetAsyncError(comm, &result), "ncclCommGetAsyncError", rank, comm);
    }
    nccl_check(result, what, rank, comm);
}

void nccl_warn(ncclResult_t result, const char* what, int rank) noexcept {
    if (result == ncclSuccess || result == ncclInProgress) return;
    log(LogLevel::warn, rank, "{} failed: {}", what, ncclGetErrorString(result));
}

}  // namespace gimlet

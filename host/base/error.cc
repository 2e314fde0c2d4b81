// SPDX-License-Identifier: Apache-2.0
#include "host/base/error.hpp"

#include "host/base/log.hpp"

namespace gimlet {

namespace {

std::string compose(ErrorCode code, int rank, const std::string& message) {
    if (rank == kNoRank) return fmt::format("gimlet {}: {}", error_code_name(code), message);
    return fmt::format("gimlet {}, rank {}: {}", error_code_name(code), rank, message);
}

}  // namespace

const char* error_code_name(ErrorCode code) noexcept {
    // No default: with -Wswitch a new code without a name does not compile.
    switch (code) {
        case ErrorCode::ok: return "ok";
        case ErrorCode::invalid_argument: return "invalid_argument";
        case ErrorCode::invalid_usage: return "invalid_usage";
        case ErrorCode::out_of_memory: return "out_of_memory";
        case ErrorCode::cuda: return "cuda";
        case ErrorCode::nccl: return "nccl";
        case ErrorCode::mpi: return "mpi";
        case ErrorCode::system: return "system";
        case ErrorCode::version_mismatch: return "version_mismatch";
        case ErrorCode::gin_unavailable: return "gin_unavailable";
        case ErrorCode::not_supported: return "not_supported";
        case ErrorCode::config_mismatch: return "config_mismatch";
        case ErrorCode::timeout: return "timeout";
        case ErrorCode::peer_failed: return "peer_failed";
        case ErrorCode::overflow: return "overflow";
        case ErrorCode::closed: return "closed";
        case ErrorCode::internal: return "internal";
    }
    return "unknown";
}

bool parse_error_code(std::string_view name, ErrorCode* code) noexcept {
    for (int number = 0; number < kErrorCodeCount; ++number) {
        if (name == error_code_name(static_cast<ErrorCode>(number))) {
            *code = static_cast<ErrorCode>(number);
            return true;
        }
    }
    return false;
}

Error::Error(ErrorCode code, int rank, std::string message)
    : std::runtime_error(compose(code, rank, message)),
      code_(code),
      rank_(rank),
      message_(std::move(message)) {}

void raise_text(ErrorCode code, int rank, std::string message) {
    log(LogLevel::error, rank, "{}: {}", error_code_name(code), message);
    throw Error(code, rank, std::move(message));
}

}  // namespace gimlet

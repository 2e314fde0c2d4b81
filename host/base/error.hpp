// SPDX-License-Identifier: Apache-2.0
// The one exception type of the project, its codes, and the one way to raise it.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gimlet {

/// What went wrong, coarsely. The numbers are part of the C ABI: append, never renumber.
enum class ErrorCode : std::int32_t {
    ok = 0,
    invalid_argument = 1,  ///< a value given by the caller is out of its documented range
    invalid_usage = 2,     ///< the call is not allowed in the object's present state
    out_of_memory = 3,     ///< device, host or window memory is exhausted
    cuda = 4,              ///< a CUDA call failed
    nccl = 5,              ///< an NCCL call failed
    mpi = 6,               ///< an MPI call failed
    system = 7,            ///< the operating system refused something
    version_mismatch = 8,  ///< compiled against one NCCL, running with another
    gin_unavailable = 9,   ///< a peer can only be reached through GIN, and there is none
    not_supported = 10,    ///< correct, but not on this machine or not in this build
    config_mismatch = 11,  ///< ranks disagree in something that must be equal
    timeout = 12,          ///< a wait passed its deadline
    peer_failed = 13,      ///< another rank reported a failure, or is gone
    overflow = 14,         ///< a size does not fit its integer type
    closed = 15,           ///< the object was closed or aborted before
    internal = 16,         ///< a defect of this library
};

inline constexpr int kErrorCodeCount = 17;

/// Rank of an error that belongs to no rank (parsing a file, reading the environment).
inline constexpr int kNoRank = -1;

/// Name as spelled above; "unknown" for a number that is no code.
const char* error_code_name(ErrorCode code) noexcept;

/// Code of that name. Returns false, and leaves *code alone, if there is none.
bool parse_error_code(std::string_view name, ErrorCode* code) noexcept;

/// What a host function of this library throws. `what()` reads
/// "gimlet invalid_argument, rank 3: <message>"; `message()` is the last part alone.
class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, int rank, std::string message);

    ErrorCode code() const noexcept { return code_; }
    int rank() const noexcept { return rank_; }
    const std::string& message() const noexcept { return message_; }

  private:
    ErrorCode code_;
    int rank_;
    std::string message_;
};

/// Logs the message once at level error and throws Error. Called where the failure is decided;
/// whoever merely passes an exception on does not log it again.
[[noreturn]] void raise_text(ErrorCode code, int rank, std::string message);

/// Formatting form of raise_text. `rank` is the world rank of the caller, or kNoRank.
template <typename... Args>
[[noreturn]] void raise(ErrorCode code, int rank, fmt::format_string<Args...> format,
                        Args&&... args) {
    raise_text(code, rank, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace gimlet

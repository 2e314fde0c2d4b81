// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/version.hpp"

#include <nccl.h>

#include "host/nccl/check.hpp"

// nvcc finds the toolkit's own, older nccl.h first unless NCCL's include folder is given before it.
static_assert(NCCL_VERSION_CODE >= gimlet::kOldestNcclVersion,
              "NCCL headers 2.30.5 or newer are needed; put NCCL's include folder before the CUDA "
              "toolkit's (scripts/install_deps.sh, or NCCL_HOME)");

namespace gimlet {

int nccl_compiled_version() noexcept {
    return NCCL_VERSION_CODE;
}

int nccl_runtime_version(int rank) {
    int version = 0;
    nccl_check(ncclGetVersion(&version), "ncclGetVersion", rank);
    return version;
}

std::string nccl_version_text(int version_code) {
    // Up to 2.8 the code was major * 1000 + minor * 100 + patch.
    const int scale = version_code < 10000 ? 1000 : 10000;
    return fmt::format("{}.{}.{}", version_code / scale, version_code % scale / 100,
                       version_code % 100);
}

std::optional<std::string> nccl_version_fault(int compiled, int runtime) {
    const std::string both = fmt::format("compiled with NCCL {}, running with NCCL {}",
                                         nccl_version_text(compiled), nccl_version_text(runtime));
    if (runtime < kOldestNcclVersion) {
        return fmt::format(
            "{}; {} or newer is needed: load a newer libnccl.so.2 (LD_LIBRARY_PATH, or upgrade the "
            "nvidia-nccl wheel)",
            both, nccl_version_text(kOldestNcclVersion));
    }
    if (compiled > runtime) {
        return fmt::format(
            "{}; NCCL refuses device code that is newer than itself: load NCCL {} or newer "
            "(LD_LIBRARY_PATH, or upgrade the nvidia-nccl wheel), or rebuild with the headers of "
            "{}",
            both, nccl_version_text(compiled), nccl_version_text(runtime));
    }
    if (compiled / 10000 != runtime / 10000) {
        return fmt::format("{}; the major versions differ: rebuild with the headers of {}", both,
                           nccl_version_text(runtime));
    }
    return std::nullopt;
}

void require_nccl_version(int rank) {
    if (const auto fault =
            nccl_version_fault(nccl_compiled_version(), nccl_runtime_version(rank))) {
        raise_text(ErrorCode::version_mismatch, rank, *fault);
    }
}

}  // namespace gimlet

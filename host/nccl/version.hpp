// SPDX-License-Identifier: Apache-2.0
// NCCL's version, at compile time and at run time.
#pragma once

#include <optional>
#include <string>

#include "host/base/error.hpp"

namespace gimlet {

/// Oldest NCCL that has every call used here (strong signals, RMA plugins).
inline constexpr int kOldestNcclVersion = 23005;

/// NCCL_VERSION_CODE of the headers that this library was built with.
int nccl_compiled_version() noexcept;
/// Version code of the library that is loaded now.
int nccl_runtime_version(int rank = kNoRank);
/// "2.30.7" for 23007.
std::string nccl_version_text(int version_code);

/// Null if a build against `compiled` may run on `runtime`; otherwise one line that names both and
/// says what to do. Pure.
std::optional<std::string> nccl_version_fault(int compiled, int runtime);

/// Raises Error(version_mismatch) if the loaded NCCL does not fit.
void require_nccl_version(int rank = kNoRank);

}  // namespace gimlet

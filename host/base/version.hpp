// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gimlet {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// "0.1.0"
const char* version_text() noexcept;
/// Short commit hash at configure time, "unknown" outside a git checkout.
const char* git_hash() noexcept;
/// "emulator" or "cuda".
const char* backend_name() noexcept;

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "host/base/version.hpp"

// All three come from host/CMakeLists.txt.
#if !defined(GIMLET_GIT_HASH) || !defined(GIMLET_BACKEND_NAME) || !defined(GIMLET_VERSION_TEXT)
#error "build this file through host/CMakeLists.txt"
#endif

namespace gimlet {

namespace {

constexpr bool same_text(const char* a, const char* b) {
    for (; *a != '\0' && *a == *b; ++a, ++b) {
    }
    return *a == *b;
}
// The numbers in the header and the project's version in CMake are one thing said twice.
static_assert(kVersionMajor == 0 && kVersionMinor == 1 && kVersionPatch == 0 &&
                  same_text(GIMLET_VERSION_TEXT, "0.1.0"),
              "change host/base/version.hpp, this check and project(VERSION) together");

}  // namespace

const char* version_text() noexcept {
    return GIMLET_VERSION_TEXT;
}

const char* git_hash() noexcept {
    return GIMLET_GIT_HASH;
}

const char* backend_name() noexcept {
    return GIMLET_BACKEND_NAME;
}

}  // namespace gimlet

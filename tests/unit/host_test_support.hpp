// SPDX-License-Identifier: Apache-2.0
// Shared by the host unit tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {

/// The Error that `call` throws. Fails the test if it throws nothing or something else. What
/// raise() logs on the way is swallowed.
inline Error error_of(const std::function<void()>& call) {
    const LogCapture quiet;
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    FAIL("no gimlet::Error was thrown");
    return Error(ErrorCode::ok, kNoRank, "");
}

/// Passes if `call` raises `code` with a message that has every one of `parts`.
inline void check_error(const std::function<void()>& call, ErrorCode code,
                        const std::vector<std::string>& parts) {
    const Error error = error_of(call);
    CHECK(std::string(error_code_name(error.code())) == error_code_name(code));
    for (const std::string& part : parts) CHECK_THAT(error.message(), contains_text(part));
}

}  // namespace gimlet::test

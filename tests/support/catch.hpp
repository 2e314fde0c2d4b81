// SPDX-License-Identifier: Apache-2.0
// One include for Catch2 v2 and v3. GIMLET_CATCH2_MAJOR comes from the gimlet_test_main target.
#pragma once

#include <string>

#if GIMLET_CATCH2_MAJOR >= 3
#include <catch2/catch_approx.hpp>
#include <catch2/catch_message.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_range.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>

// v2's name for the matcher that v3 calls ContainsSubstring.
namespace gimlet::test {
inline auto contains_text(const std::string& text) {
    return Catch::Matchers::ContainsSubstring(text);
}
}  // namespace gimlet::test

// v2 has it at global scope.
using Catch::Approx;
#else
#include <catch2/catch.hpp>

namespace gimlet::test {
inline auto contains_text(const std::string& text) {
    return Catch::Matchers::Contains(text);
}
}  // namespace gimlet::test
#endif

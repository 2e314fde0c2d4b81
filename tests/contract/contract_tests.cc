// SPDX-License-Identifier: Apache-2.0
// This program links one object per header of the project, so that it exists only if every header
// compiles alone. What the scripts check has its tests in scripts_test.py.
#include "tests/support/catch.hpp"

TEST_CASE("every header compiles alone", "[contract]") {
    // An empty list would mean that the search for headers is broken, not that all is well.
    REQUIRE(GIMLET_HEADER_COUNT >= 20);
}

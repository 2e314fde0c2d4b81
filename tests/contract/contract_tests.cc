// SPDX-License-Identifier: Apache-2.0
// Contracts of the tree itself. This program links one object per header, so that it exists only if every
// header compiles alone.
#include <cstdlib>
#include <string>

#include "tests/support/catch.hpp"

namespace {

// Runs a command in the source tree; true if it exits with 0.
bool succeeds(const std::string& command) {
    const std::string line = "cd '" GIMLET_SOURCE_DIR "' && " + command;
    return std::system(line.c_str()) == 0;
}

}  // namespace

TEST_CASE("every header compiles alone", "[contract]") {
    // The objects were linked; an empty list would mean that the search for headers is broken.
    REQUIRE(GIMLET_HEADER_COUNT >= 20);
}

TEST_CASE("includes run one way", "[contract]") {
    REQUIRE(succeeds("python3 scripts/check_includes.py"));
}

TEST_CASE("the scripts catch what they are for", "[contract]") {
    REQUIRE(succeeds("python3 tests/contract/scripts_test.py"));
}

// SPDX-License-Identifier: Apache-2.0
// Runs gimlet_mutants, as `gimlet sim --mutants` does, with few seeds.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

/// Exit status and output.
std::pair<int, std::string> run_program(const std::string& arguments) {
    const std::string command = std::string(GIMLET_MUTANTS_PROGRAM) + " " + arguments + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::string text;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe))
        text.push_back(static_cast<char>(c));
    const int status = pclose(pipe);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

}  // namespace

// Few seeds: nine of ten must do. With 2,000 seeds (`gimlet sim --mutants`) it is 95 %.
TEST_CASE("wrong variants of the device code are noticed", "[mutants]") {
    const std::string text = run_program("--seeds 60").second;
    INFO(text);
    const std::size_t line = text.rfind(" mutants, ");
    REQUIRE(line != std::string::npos);
    const int mutants = std::atoi(text.c_str() + text.rfind('\n', line) + 1);
    const int caught = std::atoi(text.c_str() + line + std::string(" mutants, ").size());
    REQUIRE(mutants >= 60);
    REQUIRE(caught * 10 >= mutants * 9);
    REQUIRE(caught <= mutants);
}

TEST_CASE("a mutant that nobody knows is refused", "[mutants]") {
    const auto [status, text] = run_program("--mutant nonsense");
    REQUIRE(status == 2);
    REQUIRE_THAT(text, contains_text("nonsense") && contains_text("--list"));
}

}  // namespace gimlet::test

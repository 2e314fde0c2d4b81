// SPDX-License-Identifier: Apache-2.0
// Runs gimlet_mutants, as `gimlet sim --mutants` does, with few seeds.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
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

// The mutants of seeds.txt, each with the seed that is known to catch it: about one run a mutant.
// When the code has changed and a seed catches no more, a few others are tried.
// `gimlet sim --mutants` runs all, with 2,000 seeds.
TEST_CASE("wrong variants of the device code are noticed", "[mutants]") {
    const std::string text =
        run_program("--hinted-only --seeds 20 --hints " GIMLET_MUTANT_SEEDS).second;
    INFO(text);
    const std::size_t line = text.rfind(" mutants, ");
    REQUIRE(line != std::string::npos);
    const int mutants = std::atoi(text.c_str() + text.rfind('\n', line) + 1);
    const int caught = std::atoi(text.c_str() + line + std::string(" mutants, ").size());
    REQUIRE(mutants >= 60);
    REQUIRE(caught * 20 >= mutants * 19);
    REQUIRE(caught <= mutants);
}

// What catches a mutant is the mutant: the code that ships shows nothing, also where memory is
// watched.
TEST_CASE("the right code is not taken for a mutant", "[mutants]") {
    const auto [status, text] = run_program(
        "--right --seeds 120 --scenario nvlink+memory --scenario block+memory --scenario "
        "grid+memory --scenario gpu+memory");
    INFO(text);
    REQUIRE(status == 0);
    REQUIRE_THAT(text, contains_text("nothing was noticed"));
}

TEST_CASE("a mutant that nobody knows is refused", "[mutants]") {
    const auto [status, text] = run_program("--mutant nonsense");
    REQUIRE(status == 2);
    REQUIRE_THAT(text, contains_text("nonsense") && contains_text("--list"));
    const std::string path = "mutant_hints.txt";
    for (const char* line :
         {"nonsense 3", "grid_no_wait", "grid_no_wait three", "grid_no_wait 3 4"}) {
        std::ofstream(path) << "# hints\n\n" << line << "\n";
        const auto [code, message] = run_program("--hints " + path);
        INFO(message);
        REQUIRE(code == 2);
        REQUIRE_THAT(message, contains_text("mutant_hints.txt:3") && contains_text(line));
    }
    std::remove(path.c_str());
}

}  // namespace gimlet::test

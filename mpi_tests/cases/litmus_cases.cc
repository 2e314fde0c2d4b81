// SPDX-License-Identifier: Apache-2.0
// The litmus programs of tests/litmus on this machine. A forbidden outcome fails; an allowed one
// that does not come is only told, because a real machine is free to be stronger.
#include <cstdio>
#include <cstdlib>

#include "mpi_tests/harness/case.hpp"
#include "tests/litmus/world.hpp"

namespace gimlet::mpi_tests {
namespace {

void litmus_case(CaseContext& context, const litmus::Program& program) {
    const int rounds = context.repeats(1000, 20);
    litmus::LitmusOptions options;
    options.rounds_max = rounds;
    options.spread_ns = 20'000;
    litmus::LitmusWorld world(context.runtime().communicator(), options);
    const std::string missing = world.missing(program);
    if (missing.empty()) {
        const litmus::Histogram seen = world.run(program, rounds);
        const std::string forbidden = litmus::forbidden_text(program, seen);
        context.expect(forbidden.empty(), forbidden);
        if (context.rank() == 0) std::fputs(litmus::unreached_text(program, seen).c_str(), stdout);
    }
    world.close();
    if (!missing.empty()) throw Skip{"needs " + missing};
}

}  // namespace

void add_litmus_cases(std::vector<Case>* cases) {
    for (const litmus::Program& program : litmus::programs()) {
        cases->push_back({std::string("litmus/") + program.name, 2,
                          [&program](CaseContext& context) { litmus_case(context, program); }});
    }
}

}  // namespace gimlet::mpi_tests

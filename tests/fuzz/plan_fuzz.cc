// SPDX-License-Identifier: Apache-2.0
// Any text as a fault plan: either a refusal that names the field, or a plan that survives being
// written and read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "host/base/error.hpp"
#include "runtime/sim/plan_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace gimlet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    fuzz::quiet();
    sim::SimPlan plan;
    try {
        plan = sim::parse_plan(std::string(reinterpret_cast<const char*>(data), bytes));
    } catch (const Error& error) {
        fuzz::require(error.code() == ErrorCode::invalid_argument, "plan: the code of a refusal");
        fuzz::require(error.message().rfind("plan: ", 0) == 0, "plan: the text of a refusal");
        return 0;
    }
    const std::string text = sim::plan_text(plan);
    const sim::SimPlan again = sim::parse_plan(text);
    fuzz::require(sim::plan_text(again) == text, "plan: written and read again");
    try {
        sim::check_plan_ranks(plan, 4);
    } catch (const Error& error) {
        fuzz::require(error.code() == ErrorCode::invalid_argument, "plan: the code for a rank");
    }
    return 0;
}

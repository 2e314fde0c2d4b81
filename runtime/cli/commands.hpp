// SPDX-License-Identifier: Apache-2.0
// The subcommands. Each adds itself to the application; `*action` is set when it is chosen, and run
// after parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace gimlet::cli {

/// What main() was given; MPI may want to see it.
struct Arguments {
    int* argc = nullptr;
    char*** argv = nullptr;
};

/// Exit codes: 0 = all right, 1 = ran and found something wrong, 2 = could not run.
using Action = std::function<int()>;

void add_demo(CLI::App* app, const Arguments& arguments, Action* action);
void add_bench(CLI::App* app, const Arguments& arguments, Action* action);
void add_doctor(CLI::App* app, const Arguments& arguments, Action* action);
/// Only in builds for the emulator (GIMLET_WITH_SIM).
void add_sim(CLI::App* app, const Arguments& arguments, Action* action);

}  // namespace gimlet::cli

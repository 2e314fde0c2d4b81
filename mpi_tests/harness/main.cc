// SPDX-License-Identifier: Apache-2.0
// gimlet_mpi_cases: run it under mpirun, or alone for one rank.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/bootstrap/mpi_bootstrap.hpp"
#include "host/nccl/topology.hpp"
#include "mpi_tests/harness/runner.hpp"

namespace {

using namespace gimlet;

std::vector<mpi_tests::Case> all_cases() {
    std::vector<mpi_tests::Case> cases;
    mpi_tests::add_communicator_cases(&cases);
    mpi_tests::add_step_cases(&cases);
    mpi_tests::add_hot_path_cases(&cases);
    mpi_tests::add_hybrid_cases(&cases);
    mpi_tests::add_stream_cases(&cases);
    mpi_tests::add_routing_cases(&cases);
    mpi_tests::add_graph_cases(&cases);
    mpi_tests::add_life_cases(&cases);
    mpi_tests::add_litmus_cases(&cases);
    mpi_tests::add_channel_cases(&cases);
    // Last: these end with failed steps.
    mpi_tests::add_refusal_cases(&cases);
    return cases;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{"Cases that several processes run together, on the emulator or on real GPUs.",
                 "gimlet_mpi_cases"};
    mpi_tests::RunnerOptions options;
    bool list = false;
    bool quick = false;
    app.add_flag("--list", list, "Names of the cases, and leave");
    app.add_option("--only", options.only, "Cases whose name contains this; may be repeated");
    app.add_flag("--quick", quick, "Fewer repetitions");
    app.add_option("--deadline", options.deadline_s, "Seconds that one case may take")
        ->capture_default_str();
    app.add_flag("--json", options.json, "One JSON line a case");
    CLI11_PARSE(app, argc, argv);
    options.effort = quick ? mpi_tests::Effort::quick : mpi_tests::Effort::full;
    // Many cases provoke errors; a case that fails says so itself.
    if (!env_is_set(EnvVar::log)) set_log_level(LogLevel::off);
    const auto cases = all_cases();
    if (list) {
        for (const auto& test : cases) std::puts(test.name.c_str());
        return 0;
    }
    const MpiSession session(&argc, &argv);
    try {
        std::shared_ptr<Bootstrap> bootstrap = make_mpi_bootstrap();
        take_device_in_turn(*bootstrap);
        return mpi_tests::run_cases(cases, options, bootstrap);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "gimlet_mpi_cases: %s\n0 passed, 1 failed, 0 skipped\n", error.what());
        mpi_abort(2);
    }
}

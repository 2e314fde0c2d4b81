// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstdio>
#include <exception>

#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/base/version.hpp"
#include "runtime/cli/commands.hpp"

namespace {

/// Errors reach the user as exceptions, once, with their rank; the log would only say them again.
/// Whoever sets GIMLET_LOG gets everything.
void print_no_error_twice() {
    if (gimlet::env_is_set(gimlet::EnvVar::log)) return;
    gimlet::set_log_sink([](const gimlet::LogRecord& record) {
        if (record.level == gimlet::LogLevel::error) return;
        std::fputs((gimlet::format_log_line(record) + "\n").c_str(), stderr);
    });
}

}  // namespace

int main(int argc, char** argv) {
    using namespace gimlet;
    CLI::App app{
        "Moves tokens to experts and back between GPUs, on NCCL's device API.\n"
        "Exit codes: 0 all right, 1 something is wrong, 2 could not run.",
        "gimlet"};
    app.require_subcommand(1);
    app.set_version_flag(
        "--version", fmt::format("gimlet {} ({}, {})", version_text(), git_hash(), backend_name()));
    app.add_flag_callback(
        "--environment",
        [] {
            std::fputs(env_dump_text().c_str(), stdout);
            throw CLI::Success();
        },
        "Print every environment variable that is read, with its value, and leave");
    cli::Action action;
    const cli::Arguments arguments{&argc, &argv};
    cli::add_demo(&app, arguments, &action);
    cli::add_bench(&app, arguments, &action);
    cli::add_doctor(&app, arguments, &action);
#if defined(GIMLET_WITH_SIM)
    cli::add_sim(&app, arguments, &action);
#endif
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    print_no_error_twice();
    try {
        return action();
    } catch (const std::exception& error) {
        std::fputs(fmt::format("gimlet: {}\n", error.what()).c_str(), stderr);
        return 2;
    }
}

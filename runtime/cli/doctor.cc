// SPDX-License-Identifier: Apache-2.0
// `gimlet doctor`: what is here, what is missing, and what to do about it.
#include <cstdio>
#include <memory>
#include <string>

#include "host/nccl/communicator.hpp"
#include "host/nccl/doctor.hpp"
#include "host/nccl/topology.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/session.hpp"

namespace gimlet::cli {
namespace {

struct DoctorOptions {
    int ranks = 1;
    bool json = false;
};

void print(const DoctorFacts& facts, bool json) {
    std::fputs((json ? facts.json() + "\n" : facts.text()).c_str(), stdout);
}

int examine(const DoctorOptions& options, std::shared_ptr<Bootstrap> bootstrap) {
    DoctorFacts facts = collect_doctor_facts();
    const int rank = bootstrap->rank();
    if (!facts.devices.empty()) {
        try {
            const auto communicator = Communicator::create(bootstrap);
            facts.topology = query_topology(*communicator);
            communicator->close();
        } catch (const Error& error) {
            facts.findings.clear();
            diagnose(&facts);
            facts.findings.push_back({Severity::obstacle, "communicator", error.what(), ""});
            if (rank == 0) print(facts, options.json);
            return 1;
        }
    }
    facts.findings.clear();
    diagnose(&facts);
    if (rank == 0) print(facts, options.json);
    return facts.healthy() ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App* app, const Arguments& arguments, Action* action) {
    const auto options = std::make_shared<DoctorOptions>();
    CLI::App* command = app->add_subcommand("doctor",
                                            "Say what this machine offers (versions, devices, LSA "
                                            "teams, GIN), what is missing and why");
    command
        ->add_option("--ranks", options->ranks,
                     "Ranks as threads of this process, when not under mpirun")
        ->check(CLI::Range(1, 1024))
        ->capture_default_str();
    command->add_flag("--json", options->json, "One JSON object instead of text");
    command->footer(
        "Examples:\n"
        "  gimlet doctor\n"
        "  mpirun -n 8 gimlet doctor        the same, with the topology of 8 ranks\n");
    command->callback([options, arguments, action] {
        *action = [options, arguments] {
            return run_ranks(
                {options->ranks}, arguments.argc, arguments.argv,
                [options](auto bootstrap) { return examine(*options, std::move(bootstrap)); });
        };
    });
}

}  // namespace gimlet::cli

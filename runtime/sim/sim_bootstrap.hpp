// SPDX-License-Identifier: Apache-2.0
// Ranks of one emulator simulation (host/emulator/simulation.hpp). Only in builds for the emulator.
#pragma once

#include <memory>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

/// Collective over all host programs of the running simulation; `rank` is the one that the host
/// program was given. Waiting is the simulation's own, so a rank that does not come shows up in its
/// deadlock table, and runs stay equal step for step.
std::unique_ptr<Bootstrap> make_sim_bootstrap(int rank);

}  // namespace gimlet

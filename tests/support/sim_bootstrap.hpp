// SPDX-License-Identifier: Apache-2.0
// Lives in runtime/sim, where `gimlet sim` uses it too.
#pragma once

#include "runtime/sim/sim_bootstrap.hpp"

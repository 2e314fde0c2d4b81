// SPDX-License-Identifier: Apache-2.0
// Lives in runtime/sim, where `gimlet sim` runs it too.
#pragma once

#include "runtime/sim/primitives_puts.hpp"

namespace gimlet::test {
using namespace gimlet::sim;
}

// SPDX-License-Identifier: Apache-2.0
//
// What the emulated GIN network was asked for by this thread, so by all ranks of a simulation.
#pragma once

#include <cstdint>
#include <string>

namespace gimlet::emu {

struct GinTraffic {
    uint64_t puts = 0;  ///< with or without a signal
    uint64_t put_bytes = 0;
    uint64_t doorbells = 0;  ///< operations that rang: on gdaki, those without the aggregate flag
};

/// Only ever counts up; whoever wants to know about one run sets it to zero before.
GinTraffic& gin_traffic();

/// An operation of this world that has been issued and has not arrived, in words; empty if there is
/// none. Call it where no rank is issuing any.
std::string gin_on_its_way();

}  // namespace gimlet::emu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/device_error.hpp"
#include "device/abi/limits.hpp"
#include "device/abi/step_counts.hpp"

namespace gimlet {

/// What a kernel needs to use the rows of a dispatch while it still runs (Sync::fifo): counters of
/// the rows that have arrived, by blocks of `block_rows` rows. Given out by Exchange::dispatch;
/// used through device/channel/ready.hpp. Good until the next dispatch but one is queued.
struct ReadyView {
    const std::uint32_t* arrived;  ///< [kReadySets][block_count]; null with Sync::barrier
    const StepCounts* step;        ///< of the routing
    std::uint64_t epoch;           ///< of the dispatch
    std::int32_t block_rows;
    std::int32_t block_count;   ///< blocks of the whole output tensor
    std::uint64_t deadline_ns;  ///< of one wait, 0 = none
    DeviceError* error;         ///< host-mapped, of the Exchange
    std::uint64_t* poison;      ///< epoch of the rank's failed dispatch
    std::int32_t rank;
    std::int32_t padding;
};

}  // namespace gimlet

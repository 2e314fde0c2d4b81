// SPDX-License-Identifier: Apache-2.0
// `gimlet bench --timeline`: where the time of one step goes, by the events of its kernels.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/health.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::cli {

/// When one rank's kernel of a step came by its events: ns of its GPU's clock, 0 = it did not.
/// `first` and `last` are those of its blocks.
struct StepMarks {
    std::uint64_t first_begin = 0;
    std::uint64_t last_begin = 0;
    std::uint64_t first_ready = 0;  ///< counts known, or peers ready
    std::uint64_t last_ready = 0;
    std::uint64_t rows_sent = 0;
    std::uint64_t rows_here = 0;
    std::uint64_t end = 0;
};

/// The marks of the newest step in `events`. Pure.
StepMarks marks_of(const std::vector<DeviceEvent>& events);

/// Collective: every rank's marks of the newest step, by rank, as microseconds since the first
/// block of any rank on the same GPU began. Absent marks are -1.
nlohmann::json timeline_of(Runtime& runtime, const std::vector<DeviceEvent>& events);

/// One line a rank.
std::string describe_timeline(const nlohmann::json& timeline);

}  // namespace gimlet::cli

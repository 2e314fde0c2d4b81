// SPDX-License-Identifier: Apache-2.0
//
// What a seed makes of the channels' worlds.
#pragma once

#include <cstdint>

#include "runtime/sim/channel_world.hpp"

namespace gimlet::sim {

/// Draws of a seed for one scenario. `near_wrap`: the plan asks for counters below their wrap.
FlowCase draw_flow(std::uint64_t seed, FifoLink link, FlowShape shape, bool near_wrap);
WindowCase draw_window(std::uint64_t seed, bool near_wrap);
PipelineCase draw_pipeline(std::uint64_t seed);

/// Ranks and LSA team of the world that draw_flow's case runs in.
struct FlowPlace {
    int ranks;
    int team;
};
FlowPlace draw_flow_place(std::uint64_t seed, FifoLink link, FlowShape shape);

}  // namespace gimlet::sim

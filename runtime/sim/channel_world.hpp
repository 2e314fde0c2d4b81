// SPDX-License-Identifier: Apache-2.0
//
// Rows through channels in one simulated world, over several kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/abi/fifo.hpp"
#include "host/emulator/simulation.hpp"
#include "runtime/sim/channel_kernels.hpp"
#include "runtime/sim/primitives_meeting.hpp"

namespace gimlet::sim {

enum class FlowShape : std::int32_t {
    ring,   ///< each rank sends to the next one; source and sink are warps of their own
    chain,  ///< rank 0 sends, the last one receives, those between forward
};

struct FlowCase {
    FlowShape shape = FlowShape::ring;
    FifoOptions options{FifoLink::lsa, 4, 64, 1, 1, 1};
    SlotAccess writes = SlotAccess::plain;
    SlotAccess reads = SlotAccess::plain;
    int channels = 1;  ///< 1 .. 3 between two ranks
    /// Rows of each kernel, the same on all channels and ranks.
    std::vector<std::uint32_t> rows{8};
    std::uint64_t first_position = 0;  ///< LSA: where positions begin
    int slow_rank = -1;                ///< its warps pause after each chunk
    std::uint32_t pause_ns = 0;
    std::uint64_t deadline_ns = 0;
};

MeetingOutcome run_flow(const emu::SimOptions& options, const FlowCase& which);
std::string text_of(const FlowCase& which);

/// Two ranks that send to each other through windowed tails.
struct WindowCase {
    FifoOptions options{FifoLink::lsa, 64, 32, 1, 1, 1};
    int producers = 4;
    std::vector<std::uint32_t> rows{100};
    std::uint64_t first_position = 0;
    std::uint32_t pause_ns = 0;
    std::uint32_t slow_every = 40;
    std::uint64_t deadline_ns = 0;
};

MeetingOutcome run_window(const emu::SimOptions& options, const WindowCase& which);
std::string text_of(const WindowCase& which);

/// One rank.
struct PipelineCase {
    PipelineOptions options{2, 64};
    std::uint32_t rounds = 10;
    int producers = 1;
    int consumers = 1;
    SlotAccess fill = SlotAccess::plain;
    SlotAccess drain = SlotAccess::plain;
    std::uint32_t producer_pause_ns = 0;
    std::uint32_t consumer_pause_ns = 0;
    std::uint64_t deadline_ns = 0;
};

MeetingOutcome run_pipeline(const emu::SimOptions& options, const PipelineCase& which);
std::string text_of(const PipelineCase& which);

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
//
// Kernels that move rows through channels the way real ones do, and check each row.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "device/abi/kernel_args.hpp"

namespace gimlet::sim {

/// How a warp writes and reads slots.
enum class SlotAccess : std::int32_t { plain, bulk };

enum class FlowRole : std::int32_t {
    none,
    source,   ///< makes rows, sends them on `out`
    sink,     ///< checks the rows that come on `in`
    forward,  ///< moves rows from `in` to `out`
};

/// What one warp does in one kernel.
struct FlowWarp {
    FlowRole role;
    std::int32_t flow;       ///< decides the rows' content
    std::uint32_t rows;      ///< of this kernel; the same at all warps of the flow
    std::uint32_t pause_ns;  ///< after each chunk: a slow warp
    FifoEnd in;
    FifoEnd out;
};

inline constexpr int kMaxFlowWarps = 6;

struct FlowArgs {
    PeerHandles peers;
    FifoOptions options;
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    std::uint64_t epoch;  ///< number of the kernel, > 0
    std::uint64_t seed;   ///< of chunk sizes
    SlotAccess writes;
    SlotAccess reads;
    FlowWarp warps[kMaxFlowWarps];
};

/// One block of kMaxFlowWarps warps, each with its own role.
cudaError_t launch_flow(const FlowArgs& args, cudaStream_t stream);

/// Collective: returns when no signal of the flows is on its way. GIN.
cudaError_t launch_settle(const FlowArgs& args, cudaStream_t stream);

/// Several producer warps fill one ring; one warp of the receiver checks it. LSA.
struct WindowArgs {
    PeerHandles peers;
    FifoOptions options;
    FifoEnd out;
    FifoEnd in;
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    std::uint64_t epoch;
    std::uint64_t seed;
    std::uint32_t rows;
    std::int32_t producers;  ///< warps 0 .. producers - 1; the next one receives
    /// Producer 0 holds the first position of every `slow_every` for this long: the others fill
    /// the window.
    std::uint32_t pause_ns;
    std::uint32_t slow_every;
    std::int32_t out_flow;
    std::int32_t in_flow;
};
cudaError_t launch_window(const WindowArgs& args, cudaStream_t stream);

/// Producer warps fill stages in shared memory, consumer warps check them.
struct PipelineArgs {
    PipelineOptions options;
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    std::byte* source;  ///< rounds * stage_bytes, for bulk loads
    std::byte* target;  ///< the same, for bulk stores
    DeviceError* error;
    std::uint64_t deadline_ns;
    std::uint64_t epoch;
    std::uint32_t rounds;
    std::int32_t producers;
    std::int32_t consumers;
    SlotAccess fill;
    SlotAccess drain;
    std::uint32_t producer_pause_ns;
    std::uint32_t consumer_pause_ns;
};
cudaError_t launch_pipeline(const PipelineArgs& args, cudaStream_t stream);

/// The 32-bit word `word` of row `row` of a flow. Never zero.
constexpr std::uint32_t flow_word(std::uint64_t epoch, std::int32_t flow, std::uint32_t row,
                                  std::uint32_t word) {
    std::uint64_t x =
        epoch * 0x9e3779b97f4a7c15ull ^
        (static_cast<std::uint64_t>(flow) << 52 ^ static_cast<std::uint64_t>(row) << 20 ^ word) *
            0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 29) * 0x94d049bb133111ebull;
    return static_cast<std::uint32_t>(x >> 32) | 1u;
}

}  // namespace gimlet::sim

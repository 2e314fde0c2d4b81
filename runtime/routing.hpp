// SPDX-License-Identifier: Apache-2.0
// What one dispatch decided: the handle that combine and cached dispatches reuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/abi/kernel_args.hpp"
#include "host/cuda/buffer.hpp"

namespace gimlet {

class Exchange;
struct Leftovers;

/// Counts of a step on the host. The spans point into the Routing and hold until its next dispatch.
struct HostCounts {
    std::int32_t row_count = 0;        ///< rows received, padding included
    std::int32_t token_row_count = 0;  ///< without padding
    std::int32_t sent_row_count = 0;
    bool partial = false;  ///< some ranks are excluded: their tokens and experts are missing
    std::span<const std::int32_t> expert_counts;   ///< [local experts]
    std::span<const std::int32_t> expert_offsets;  ///< [local experts + 1], expert_major
    std::span<const std::int32_t> source_offsets;  ///< [R + 1]
};

/// Device memory of one Routing. Internal.
struct RoutingMemory {
    DeviceBuffer<SlotRef> slots;
    DeviceBuffer<HomeRef> home;
    DeviceBuffer<std::int32_t> counts;
    DeviceBuffer<SlotRef> rail_slots;
    DeviceBuffer<std::int32_t> rail_counts;  // received, then sent
    DeviceBuffer<std::int32_t> stream_slots;
    DeviceBuffer<std::int32_t> stream_received;
    DeviceBuffer<std::byte> step;
    DeviceBuffer<std::uint32_t> dropped;
    MappedBuffer<std::byte> host_step;
};

/// Device buffers of one routing. Made by Exchange::make_routing(), used with that Exchange only.
/// Movable; several may be alive. Serves the Exchange's host thread. The destructor neither waits
/// nor takes memory away from steps that are queued: while some may run, the memory is kept, and
/// freed by a later make_routing() or as Runtime::abort() says. Graphs that use it must be gone.
class Routing {
  public:
    Routing() = default;  ///< empty: only to be assigned to

    /// Device pointers, for kernels of the caller's own. `step` holds epoch and row counts of the
    /// newest dispatch; step->epoch & 1 tells which of the two receive buffers holds its rows;
    /// step->partial and `dropped` tell what excluded ranks have cost.
    const RoutingView& view() const noexcept { return view_; }

    /// True once a dispatch has filled it.
    bool filled() const noexcept { return filled_; }
    /// T of the dispatch that filled it.
    std::int32_t token_count() const noexcept { return token_count_; }

  private:
    friend class Exchange;

    std::uint64_t exchange_id_ = 0;
    struct Release {
        void operator()(Leftovers* memory) const noexcept;
    };
    std::unique_ptr<Leftovers, Release> memory_;  // null = empty
    RoutingView view_{};
    bool filled_ = false;
    std::int32_t token_count_ = 0;
    std::uint64_t epoch_ = 0;           // of the newest dispatch, by the host's count
    std::int32_t host_row_count_ = -1;  // rows received, -1 = the host was not told
    std::uint64_t generation_ = 0;      // recoveries of the Exchange before the newest dispatch
    bool captured_ = false;             // replays may fill it unseen
    std::byte* out_rows_ = nullptr;     // StreamTensors::caller: of the newest dispatch
    std::byte* out_records_ = nullptr;
};

}  // namespace gimlet

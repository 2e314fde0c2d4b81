// SPDX-License-Identifier: Apache-2.0
// The events that the kernels of one window note, and how the host gets them. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "device/abi/device_event.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"

namespace gimlet {

/// A ring in device memory, where noting costs kernels next to nothing, and the host's copy of it.
/// Movable.
class EventRing {
  public:
    EventRing() = default;  ///< off
    /// Local. For kernels of up to `block_count` blocks of the current device.
    EventRing(std::int32_t block_count, int rank);

    EventSlot* device() const noexcept { return ring_.get(); }  ///< null = off
    std::uint32_t block_count() const noexcept { return block_count_; }

    /// Copies the ring, beside whatever kernels run: waits for none of them, and at most
    /// kEventCopyNs. Raises Error(cuda) or Error(timeout).
    void fetch();
    /// What the newest fetch() brought, oldest first; waits for nothing.
    std::vector<DeviceEvent> fetched() const;

  private:
    int rank_ = -1;
    std::uint32_t block_count_ = 0;
    DeviceBuffer<EventSlot> ring_;
    MappedBuffer<EventSlot> copy_;
    Stream stream_;  // of its own: nothing else is ever in front of a copy
};

/// A copy that takes longer than this is given up; it may still come.
inline constexpr std::uint64_t kEventCopyNs = 500'000'000;

/// The whole entries of a ring of `block_count` blocks, oldest first; of each kernel those of the
/// newest kEventSteps steps. `ring` is a copy that may have been made while kernels wrote; null =
/// no events.
std::vector<DeviceEvent> read_events(const EventSlot* ring, std::uint32_t block_count);

}  // namespace gimlet

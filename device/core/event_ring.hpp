// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/device_event.hpp"
#include "device/abi/kernel_args.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/platform.hpp"

namespace gimlet::device {

namespace detail {

GIMLET_DEVICE_COLD void write_event(EventSlot* ring, std::uint32_t block_count, Tag tag,
                                    std::uint64_t epoch, EventKind kind) {
    const auto block = static_cast<std::uint32_t>(block_index());
    if (block >= block_count) return;
    EventSlot* const entry = ring + event_index(block, tag, epoch, kind);
    // Several warps of a block have first rows; the first of them counts.
    if (kind == EventKind::first_row && load_relaxed<Scope::gpu>(&entry->words[0]) == epoch) return;
    const EventSlot slot = EventSlot::pack(epoch, now_ns());
    store_relaxed<Scope::gpu>(&entry->words[0], slot.words[0]);
    store_relaxed<Scope::gpu>(&entry->words[1], slot.words[1]);
}

}  // namespace detail

/// Notes that the step has come to `kind`; by one thread. Costs one test of an argument when the
/// ring is off, a look at the clock and two stores to device memory when it is on: nothing that
/// anybody waits for, nothing that crosses PCIe. No order: an entry shows by itself whether it is
/// whole, and the host's copy engine reads it while kernels run.
GIMLET_DEVICE void note_event(const PeerHandles& peers, Tag tag, std::uint64_t epoch,
                              EventKind kind) {
    if (peers.events == nullptr) return;
    detail::write_event(peers.events, peers.event_block_count, tag, epoch, kind);
}

}  // namespace gimlet::device

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

GIMLET_DEVICE_COLD void write_event(EventSlot* ring, std::uint64_t* counter, Tag tag,
                                    std::uint64_t epoch, EventKind kind) {
    const std::uint64_t before = fetch_add_relaxed<Scope::gpu>(counter, 1);
    const EventSlot slot = EventSlot::pack(
        DeviceEvent{before + 1, now_ns(), epoch, kind, static_cast<std::uint16_t>(tag),
                    static_cast<std::uint16_t>(block_index() & 0xffff)});
    EventSlot* const entry = ring + before % kEventRingSize;
    for (int i = 0; i < 4; ++i) store_relaxed<Scope::system>(&entry->words[i], slot.words[i]);
}

}  // namespace detail

/// Notes that the step has come to `kind`; by one thread. Costs one test of an argument when the
/// ring is off, an addition in device memory and four stores to the host when it is on. No order:
/// an entry shows by itself whether it is whole.
GIMLET_DEVICE void note_event(const PeerHandles& peers, Tag tag, std::uint64_t epoch,
                              EventKind kind) {
    if (peers.events == nullptr) return;
    auto* const epochs = reinterpret_cast<EpochWords*>(peers.local + peers.layout.epochs);
    detail::write_event(peers.events, &epochs->event_count, tag, epoch, kind);
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#include "runtime/event_ring.hpp"

#include <algorithm>
#include <array>
#include <tuple>

#include "host/cuda/check.hpp"
#include "host/cuda/poll.hpp"

namespace gimlet {
namespace {

std::size_t slot_count(std::uint32_t block_count) {
    return std::size_t{block_count} * kEventsPerBlock;
}

/// The entry of one place, if it is whole.
bool read_slot(const EventSlot& slot, DeviceEvent* event) {
    EventSlot copy;
    // The copy of a hung device may still be coming.
    for (int word = 0; word < 2; ++word)
        copy.words[word] = __atomic_load_n(&slot.words[word], __ATOMIC_RELAXED);
    return copy.unpack(&event->epoch, &event->time_ns);
}

}  // namespace

EventRing::EventRing(std::int32_t block_count, int rank)
    : rank_(rank),
      block_count_(static_cast<std::uint32_t>(block_count)),
      ring_(slot_count(block_count_), rank),
      copy_(slot_count(block_count_), rank),
      stream_(Stream::create(rank)) {
    ring_.fill_bytes(0);
}

void EventRing::fetch() {
    if (device() == nullptr) return;
    cuda_check(cudaMemcpyAsync(copy_.host(), ring_.get(), ring_.bytes(), cudaMemcpyDeviceToHost,
                               stream_.get()),
               "cudaMemcpyAsync of the event ring", rank_);
    wait_stream(stream_.get(), kEventCopyNs, "the copy of the event ring", rank_);
}

std::vector<DeviceEvent> EventRing::fetched() const {
    return read_events(copy_.host(), block_count_);
}

std::vector<DeviceEvent> read_events(const EventSlot* ring, std::uint32_t block_count) {
    std::vector<DeviceEvent> out;
    std::array<std::uint64_t, kEventTags + 1> newest{};
    std::array<bool, kEventTags + 1> any{};
    for (std::size_t i = 0; ring != nullptr && i < slot_count(block_count); ++i) {
        DeviceEvent event{};
        if (!read_slot(ring[i], &event)) continue;
        event.kind = static_cast<EventKind>(i % kEventKinds + 1);
        event.tag = static_cast<std::uint16_t>(i / (kEventKinds * kEventSteps) % kEventTags + 1);
        event.block = static_cast<std::uint16_t>(i / kEventsPerBlock);
        out.push_back(event);
        std::uint64_t& most = newest[event.tag];
        if (!any[event.tag] || static_cast<std::int64_t>(event.epoch - most) > 0)
            most = event.epoch;
        any[event.tag] = true;
    }
    // What the last block of a step notes, another block noted in the step eight before.
    std::erase_if(out, [&](const DeviceEvent& event) {
        return newest[event.tag] - event.epoch >= kEventSteps;
    });
    // Clocks of GPUs may stand still for a microsecond: within it, the order of a step.
    const auto key = [](const DeviceEvent& event) {
        return std::tuple(event.time_ns, event.epoch, event.tag, event.kind, event.block);
    };
    std::sort(out.begin(), out.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    for (std::size_t i = 0; i < out.size(); ++i) out[i].number = i + 1;
    return out;
}

}  // namespace gimlet

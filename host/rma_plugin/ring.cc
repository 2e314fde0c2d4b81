// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/ring.hpp"

#include <cstring>

namespace gimlet::rma {

bool RingProducer::try_send(const Message& message, const void* payload) noexcept {
    if (!has_room()) return false;
    RingSlot& slot = memory_->slots[position_ % kRingSlots];
    slot.message = message;
    if (message.payload_bytes > 0) {
        const std::uint64_t cell = payload_count_ % kPayloadCells;
        const bool cell_in_use =
            payload_count_ >= kPayloadCells &&
            memory_->consumed.load(std::memory_order_acquire) <= payload_position_[cell];
        if (cell_in_use) return false;
        std::memcpy(memory_->payload[cell].data(), payload, message.payload_bytes);
        slot.message.payload_index = static_cast<std::uint32_t>(cell);
        payload_position_[cell] = position_;
        ++payload_count_;
    }
    slot.ready.store(++position_, std::memory_order_release);
    return true;
}

}  // namespace gimlet::rma

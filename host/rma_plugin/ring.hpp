// SPDX-License-Identifier: Apache-2.0
// A bounded queue of messages from one rank to one other, in memory that both have mapped.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "host/rma_plugin/message.hpp"

namespace gimlet::rma {

inline constexpr std::uint64_t kRingSlots = 1024;
inline constexpr std::uint64_t kPayloadCells = 32;
inline constexpr std::size_t kPayloadCellBytes = 16384;

/// One message. `ready` is its position plus one once the rest may be read.
struct alignas(64) RingSlot {
    Message message;
    std::atomic<std::uint64_t> ready;
};
static_assert(sizeof(RingSlot) == 64 && offsetof(RingSlot, ready) == 56);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The shared part. All zero bytes is an empty ring.
struct RingMemory {
    alignas(64) std::atomic<std::uint64_t> consumed;  ///< written by the consumer
    alignas(64) std::atomic<std::uint32_t> closed;    ///< the producer has left in good order
    alignas(4096) std::array<RingSlot, kRingSlots> slots;
    alignas(4096) std::array<std::array<unsigned char, kPayloadCellBytes>, kPayloadCells> payload;
};
static_assert(sizeof(RingMemory) % 4096 == 0);

/// The producer's end. One thread at a time.
class RingProducer {
  public:
    explicit RingProducer(RingMemory* memory) : memory_(memory) {}

    bool has_room() const noexcept {
        return position_ - memory_->consumed.load(std::memory_order_acquire) < kRingSlots;
    }

    /// Publishes now. False, and nothing happened, if there is no room.
    bool try_send(const Message& message, const void* payload) noexcept;

    void close() noexcept { memory_->closed.store(1, std::memory_order_release); }
    RingMemory* memory() const noexcept { return memory_; }

  private:
    RingMemory* memory_;
    std::uint64_t position_ = 0;
    std::uint64_t payload_count_ = 0;
    std::array<std::uint64_t, kPayloadCells> payload_position_{};  // slot that used a cell last
};

/// The consumer's end. One thread at a time.
class RingConsumer {
  public:
    explicit RingConsumer(RingMemory* memory) : memory_(memory) {}

    /// The next message, or nullptr. Stays valid until pop().
    const Message* front() const noexcept {
        const RingSlot& slot = memory_->slots[position_ % kRingSlots];
        const bool is_ready = slot.ready.load(std::memory_order_acquire) == position_ + 1;
        return is_ready ? &slot.message : nullptr;
    }
    const unsigned char* payload(const Message& message) const noexcept {
        return memory_->payload[message.payload_index % kPayloadCells].data();
    }
    void pop() noexcept { memory_->consumed.store(++position_, std::memory_order_release); }
    bool producer_closed() const noexcept {
        return memory_->closed.load(std::memory_order_acquire) != 0;
    }

  private:
    RingMemory* memory_;
    std::uint64_t position_ = 0;
};

}  // namespace gimlet::rma

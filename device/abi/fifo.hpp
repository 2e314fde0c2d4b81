// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/abi/limits.hpp"
#include "device/abi/workspace.hpp"

// Options and memory of channels: rings of slots between two ranks (FIFO), rings of stages in
// shared memory (pipeline). Bytes are a function of the options alone.
namespace gimlet {

/// How the two ends of a channel reach each other.
enum class FifoLink : std::int32_t { lsa, gin };

/// Most slots of one ring: ring indices of two revolutions fit 32 bits.
inline constexpr std::uint32_t kMaxFifoCapacity = 1u << 30;

/// What an option set does wrong; see text_of.
enum class FifoRule : std::int32_t {
    none,
    no_slots,
    too_many_slots,
    slot_alignment,
    no_chunk,
    no_head_step,
    chunk_above_capacity,
    lazy_chunk_above_half,
    no_room,
    too_many_bytes,
    no_stages,
    stage_alignment,
};

/// The rule that is broken, as a sentence.
constexpr const char* text_of(FifoRule rule) {
    switch (rule) {
        case FifoRule::none: return "no rule is broken";
        case FifoRule::no_slots: return "a ring has at least one slot (capacity >= 1)";
        case FifoRule::too_many_slots: return "a ring has at most 2^30 slots";
        case FifoRule::slot_alignment: return "slot_bytes is a multiple of 16 above 0";
        case FifoRule::no_chunk: return "chunks have at least one slot (send_chunk, receive_chunk)";
        case FifoRule::no_head_step:
            return "the receiver tells of at least one freed slot at a time (head_every >= 1)";
        case FifoRule::chunk_above_capacity:
            return "the ring holds one chunk (send_chunk and receive_chunk <= capacity)";
        case FifoRule::lazy_chunk_above_half:
            return "with lazy heads (head_every > 1) a chunk is at most half of the ring "
                   "(send_chunk <= capacity / 2)";
        case FifoRule::no_room:
            return "sender and receiver never wait for each other "
                   "(send_chunk + receive_chunk + head_every - 2 <= capacity)";
        case FifoRule::too_many_bytes: return "the bytes of a channel fit 48 bits";
        case FifoRule::no_stages: return "a pipeline has at least one stage";
        case FifoRule::stage_alignment: return "stage_bytes is a multiple of 16 above 0";
    }
    return "?";
}

/// Options of one ring. Equal at both ends.
struct FifoOptions {
    FifoLink link;
    std::uint32_t capacity;       ///< slots, any number
    std::uint32_t slot_bytes;     ///< a multiple of 16
    std::uint32_t send_chunk;     ///< most slots that the sender reserves at once
    std::uint32_t receive_chunk;  ///< most slots that the receiver waits for at once
    std::uint32_t head_every;     ///< freed slots between two moves of the head; above 1: lazy

    /// The first rule that these options break. The `no_room` rule excludes a standstill: a
    /// receiver that waits for receive_chunk slots has left at most receive_chunk - 1 unread and
    /// head_every - 1 untold, so a sender that waits for send_chunk slots finds them.
    constexpr FifoRule broken_rule() const {
        if (capacity == 0) return FifoRule::no_slots;
        if (capacity > kMaxFifoCapacity) return FifoRule::too_many_slots;
        if (slot_bytes == 0 || slot_bytes % kBulkAlignment != 0) return FifoRule::slot_alignment;
        if (send_chunk == 0 || receive_chunk == 0) return FifoRule::no_chunk;
        if (head_every == 0) return FifoRule::no_head_step;
        if (send_chunk > capacity || receive_chunk > capacity)
            return FifoRule::chunk_above_capacity;
        if (head_every > 1 && send_chunk > capacity / 2) return FifoRule::lazy_chunk_above_half;
        if (std::uint64_t{send_chunk} + receive_chunk + head_every - 2 > capacity)
            return FifoRule::no_room;
        // Less than 2^62, so the product is exact.
        if (std::uint64_t{capacity} * slot_bytes > kMaxRingBytes) return FifoRule::too_many_bytes;
        return FifoRule::none;
    }

    static constexpr std::uint64_t kMaxRingBytes = std::uint64_t{1} << 47;
};

/// What one end keeps of a channel from kernel to kernel, in its own window. Read and written by
/// this rank's kernels only. Positions count slots since the channel was made, modulo 2^64; they
/// are never reset.
struct FifoCursor {
    std::uint64_t position;  ///< sender: slots published; receiver: slots freed
    std::uint64_t told;    ///< LSA: the other end's newest known position (sender), or the own one
                           ///< that it was told (receiver)
    std::uint64_t flags;   ///< tails (sender) or heads (receiver) sent
    std::uint64_t stalls;  ///< waits that did not hold at once
    std::uint32_t index;   ///< position in the ring: position modulo capacity, across wraps
    std::uint32_t most_used;  ///< most slots in use, as this end saw it
    std::uint32_t untold;     ///< receiver: freed slots that the sender does not know of
    std::uint32_t unflushed;  ///< GIN sender: slots published since the last flush
};
static_assert(sizeof(FifoCursor) == 48);
static_assert(offsetof(FifoCursor, index) == 32);

/// Byte offsets in one channel's region. Both ends use the same numbers in their own window; the
/// sender's `slots` are its send buffer with GIN, and are not used with LSA.
///
/// Writers, one domain a word: [P] the peer, by loads and stores; [L] this rank's kernels.
struct FifoLayout {
    std::uint64_t head;         ///< [P] u64, at the sender: slots that the receiver has freed (LSA)
    std::uint64_t tail;         ///< [P] u64, at the receiver: slots that are filled (LSA)
    std::uint64_t sender;       ///< [L] FifoCursor, at the sender
    std::uint64_t receiver;     ///< [L] FifoCursor, at the receiver
    std::uint64_t slots;        ///< capacity * slot_bytes
    std::uint64_t total_bytes;  ///< a multiple of kRegionAlignment

    /// For options that break no rule.
    static constexpr FifoLayout build(const FifoOptions& options) {
        constexpr std::uint64_t line = 128;
        FifoLayout layout{};
        layout.head = 0;
        layout.tail = line;
        layout.sender = 2 * line;
        layout.receiver = 3 * line;
        layout.slots = 4 * line;
        layout.total_bytes = align_up(
            layout.slots + std::uint64_t{options.capacity} * options.slot_bytes, kRegionAlignment);
        return layout;
    }
};

/// Where a channel's two ends are: window offsets of its region at this rank and at the peer.
struct FifoEnd {
    std::int32_t peer;     ///< world rank of the other end
    std::int32_t channel;  ///< number that error records name, GIN: the context
    std::uint64_t local_offset;
    std::uint64_t peer_offset;
    std::uint32_t tail_signal;  ///< GIN: signal of the receiver that this sender alone adds to
    std::uint32_t head_signal;  ///< GIN: signal of the sender that this receiver alone adds to
};

/// Options of a pipeline: a ring of stages in one block's shared memory.
struct PipelineOptions {
    std::uint32_t stage_count;
    std::uint32_t stage_bytes;  ///< a multiple of 16

    constexpr FifoRule broken_rule() const {
        if (stage_count == 0) return FifoRule::no_stages;
        if (stage_bytes == 0 || stage_bytes % kBulkAlignment != 0) return FifoRule::stage_alignment;
        if (std::uint64_t{stage_count} * (stage_bytes + 16u) > UINT32_MAX)
            return FifoRule::too_many_bytes;
        return FifoRule::none;
    }
    /// Mbarriers: full[stage_count], then empty[stage_count].
    constexpr std::uint32_t barrier_offset() const { return stage_count * stage_bytes; }
    /// Shared memory of the whole pipeline, 16-byte aligned.
    constexpr std::uint32_t total_bytes() const { return stage_count * (stage_bytes + 16u); }
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/device_error.hpp"
#include "device/abi/limits.hpp"
#include "device/abi/signal_map.hpp"

namespace gimlet {

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

/// What one workspace holds; every rank uses the same numbers, so offsets are symmetric.
struct WorkspaceShape {
    std::int32_t rank_count;
    std::int32_t expert_words;  ///< expert counts in one count row (local maximum, or all experts)
    std::int32_t gin_context_count;
    std::int32_t chunk_slots;         ///< entries of the send-chunk counters, 0 without GIN
    std::int32_t expert_count;        ///< E
    std::int32_t block_count;         ///< most blocks a dispatch is launched with
    std::int32_t rail_team_count;     ///< hybrid: LSA teams, else 0
    std::int32_t rail_signal_count;   ///< hybrid: signals a context beside SignalMap's, else 0
    std::int32_t stream_ring_count;   ///< fifo: rings in either direction, else 0
    std::int32_t ready_block_count;   ///< fifo: blocks of an output tensor that are counted
    std::uint64_t stream_ring_bytes;  ///< fifo: of one ring, see StreamShape
    std::int32_t stream_rail_count;   ///< fifo between teams: regions of rail rings, else 0
    std::int32_t padding;
    std::uint64_t stream_rail_bytes;  ///< of one such region

    /// For barriers alone.
    static constexpr WorkspaceShape for_barriers(std::int32_t rank_count,
                                                 std::int32_t gin_context_count) {
        WorkspaceShape out{};
        out.rank_count = rank_count;
        out.gin_context_count = gin_context_count;
        return out;
    }

    /// Words of one count row: header, R rank counts, expert counts; even, so that rows stay
    /// 16-byte aligned.
    constexpr std::int32_t count_row_words() const {
        return (1 + rank_count + expert_words + 1) / 2 * 2;
    }

    /// Words that one block of a dispatch publishes to the others: rank counts, then expert counts.
    constexpr std::int32_t block_row_words() const { return rank_count + expert_count; }

    /// Signals of one GIN context.
    constexpr std::uint32_t signal_count() const {
        return SignalMap{rank_count}.signal_count() + static_cast<std::uint32_t>(rail_signal_count);
    }
};

/// Byte offsets of the control words at the start of a window. One table gives offsets and total
/// (`build`); all words start at zero and are never reset by a kernel, except `finished` counters
/// that wrap by themselves.
///
/// Writers, one domain a word: [P] peers by LSA or GIN, [L] this rank's kernels only.
struct WorkspaceLayout {
    std::uint64_t nvlink_counter;  ///< [L] u64: number of the newest nvlink_barrier
    std::uint64_t nvlink_flags;   ///< [P] u32[R], by LSA index: number of the newest nvlink_barrier
                                  ///< that this member has arrived at
    std::uint64_t block_barrier;  ///< [P] int32 per rank
    std::uint64_t count_rows;  ///< [P] u64[kBufferCount][R][count_row_words]: epoch << 32 | value
    std::uint64_t
        dispatch_arrival;  ///< [P] u64[R]: epoch whose rows of source r are complete (LSA sources)
    std::uint64_t combine_ready;  ///< [P] u64[R]: combine epoch that rank r has entered (LSA peers)
    std::uint64_t count_send;  ///< [L] u64[kBufferCount][R][count_row_words]: rows sent by GIN puts
    std::uint64_t
        block_counts;  ///< [L] u64[kBufferCount][blocks][block_row_words]: epoch << 32 | value
    std::uint64_t
        slots_written;     ///< [L] u64[blocks]: dispatch epoch whose slots block b has written
    std::uint64_t epochs;  ///< [L] EpochWords
    std::uint64_t grid_barrier;     ///< [L] u32, one cache line
    std::uint64_t signal_expected;  ///< [L] u64[contexts][signals]: shadows
    std::uint64_t send_chunks;      ///< [L] u32[chunk_slots]: rows written per send chunk
    std::uint64_t reports;      ///< [P] DeviceError[R]: report board, entry r is rank r's record
    std::uint64_t report_send;  ///< [L] DeviceError: own record, source of GIN puts
    std::uint64_t alarm;  ///< [P] u64: nonzero = the board holds a report of an LSA peer; zeroed by
                          ///< recoveries only
    std::uint64_t count_rail;  ///< [P] u64[kBufferCount][teams][count_row_words]: count rows of
                               ///< this rail, handed on to count_rows of this team
    std::uint64_t excluded;  ///< [L] u64[kRankSetWords]: ranks that are neither served nor awaited;
                             ///< changed by recoveries only
    std::uint64_t stream_ends;   ///< [P] u64[rings]: epoch << 32 | rows that a ring carries in it
    std::uint64_t ready_rows;    ///< [L] u32[kReadySets][ready blocks]: rows that have arrived
    std::uint64_t stream_rings;  ///< fifo: the rings, words and slots
    std::uint64_t stream_rails;  ///< fifo: those between teams
    std::uint64_t total_bytes;

    static constexpr WorkspaceLayout build(const WorkspaceShape& shape) {
        WorkspaceLayout layout{};
        std::uint64_t at = 0;
        const auto ranks = static_cast<std::uint64_t>(shape.rank_count);
        const auto row = static_cast<std::uint64_t>(shape.count_row_words());
        const auto place = [&at](std::uint64_t bytes) {
            const std::uint64_t offset = at;
            at = align_up(at + bytes, kRegionAlignment);
            return offset;
        };
        layout.nvlink_counter = place(8);
        layout.nvlink_flags = place(ranks * 4);
        layout.block_barrier = place(ranks * 4);
        layout.count_rows = place(kBufferCount * ranks * row * 8);
        layout.dispatch_arrival = place(ranks * 8);
        layout.combine_ready = place(ranks * 8);
        layout.count_send = place(kBufferCount * ranks * row * 8);
        layout.block_counts = place(kBufferCount * static_cast<std::uint64_t>(shape.block_count) *
                                    static_cast<std::uint64_t>(shape.block_row_words()) * 8);
        layout.slots_written = place(static_cast<std::uint64_t>(shape.block_count) * 8);
        layout.epochs = place(128);
        layout.grid_barrier = place(128);
        layout.signal_expected =
            place(static_cast<std::uint64_t>(shape.gin_context_count) * shape.signal_count() * 8);
        layout.send_chunks = place(static_cast<std::uint64_t>(shape.chunk_slots) * 4);
        layout.reports = place(ranks * sizeof(DeviceError));
        layout.report_send = place(sizeof(DeviceError));
        layout.alarm = place(8);
        layout.count_rail =
            place(kBufferCount * static_cast<std::uint64_t>(shape.rail_team_count) * row * 8);
        layout.excluded = place(kRankSetWords * 8);
        layout.stream_ends = place(static_cast<std::uint64_t>(shape.stream_ring_count) * 8);
        layout.ready_rows = place(std::uint64_t{kReadySets} *
                                  static_cast<std::uint64_t>(shape.ready_block_count) * 4);
        layout.stream_rings =
            place(static_cast<std::uint64_t>(shape.stream_ring_count) * shape.stream_ring_bytes);
        layout.stream_rails =
            place(static_cast<std::uint64_t>(shape.stream_rail_count) * shape.stream_rail_bytes);
        layout.total_bytes = at;
        return layout;
    }
};

/// Step numbers and per-kernel bookkeeping of one rank. A step's epoch is the stored value plus
/// one; the last block of the kernel stores it. `finished` counts blocks with atomicInc and wraps
/// to zero by itself. `poison` holds the epoch of a failed step so that other blocks of the same
/// kernel leave early. `failed` is nonzero from the end of a failed step to the recovery: steps
/// that were queued behind it refuse at once instead of waiting for their own deadline.
struct EpochWords {
    std::uint64_t dispatch;
    std::uint64_t combine;
    std::uint64_t barrier;
    std::uint32_t dispatch_finished;
    std::uint32_t combine_finished;
    std::uint64_t dispatch_poison;
    std::uint64_t combine_poison;
    std::uint64_t barrier_poison;
    std::uint64_t failed;
    std::uint32_t excluded_count;    ///< ranks in the set `excluded` of the layout
    std::uint32_t dispatch_tickets;  ///< tokens that copy warps have drawn; 0 between steps
    /// First dispatch and first combine that this rank told its peers to be refused: twice its
    /// number plus 1, 0 = none. No later one is told: no peer gets beyond the first, and may still
    /// read words of the step before it, whose places the step after it would use again.
    std::uint64_t dispatch_refused;
    std::uint64_t combine_refused;
    std::uint32_t combine_tickets;  ///< tokens that rings have drawn; 0 between steps
    std::uint32_t unused;
};
static_assert(sizeof(EpochWords) == 96);

/// Added to a combine_ready word or signal by a rank that enters combine `epoch` and will not go on
/// with it. Far beyond every distance of epochs, so that a rolling compare still finds the word
/// arrived. Neighbouring steps have different marks: a peer may still wait in the step before, and
/// signals of two steps arrive in any order.
constexpr std::uint64_t refused_mark(std::uint64_t epoch) {
    return std::uint64_t{1} << (61u + (epoch & 1u));
}

}  // namespace gimlet

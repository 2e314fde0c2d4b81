// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <nccl.h>
#include <nccl_device.h>

#include "device/abi/device_error.hpp"
#include "device/abi/device_event.hpp"
#include "device/abi/expert_map.hpp"
#include "device/abi/kernel_plan.hpp"
#include "device/abi/limits.hpp"
#include "device/abi/rail.hpp"
#include "device/abi/signal_map.hpp"
#include "device/abi/step_counts.hpp"
#include "device/abi/stream.hpp"
#include "device/abi/token_layout.hpp"
#include "device/abi/types.hpp"
#include "device/abi/workspace.hpp"

namespace gimlet {

/// Where this rank stands and how it reaches its peers. Passed by value to every kernel.
/// World rank p is reachable by loads and stores iff p / lsa_size == rank / lsa_size.
struct PeerHandles {
    ncclDevComm dev_comm;
    ncclWindow_t window;
    std::byte* local;  ///< this rank's own window base, as ncclGetLocalPointer gives it
    std::int32_t rank;
    std::int32_t rank_count;
    std::int32_t lsa_rank;
    std::int32_t lsa_size;
    std::int32_t gin_context_count;  ///< contexts this kernel may use; 0 = GIN absent
    std::uint32_t rails_only;        ///< nonzero: GIN reaches the ranks of this rail only
    std::uint64_t deadline_ns;       ///< per wait, 0 = none
    DeviceError* error;              ///< host-mapped, one a rank
    EventSlot* events;  ///< ring [event_block_count][kEventsPerBlock] of device memory, null = off
    std::uint32_t event_block_count;  ///< blocks beyond note nothing
    WorkspaceShape shape;
    WorkspaceLayout layout;  ///< offsets of the control words in the window
    /// Window bases of the LSA team, as the host's getter gives them, for teams of up to
    /// kLsaTableSize. Kernels ask the window where this is null; the table saves two dependent
    /// loads at the start of every kernel.
    std::byte* lsa_bases[kLsaTableSize];
};

/// Byte offsets of the row regions in the window (behind the workspace). [b] alternates with the
/// epoch's parity.
///
/// On rank p, recv_rows, recv_meta and combine_rows lie rank_skew(p) beyond these offsets. NCCL
/// maps the windows of a team at equal low address bits, and the rows of one source have nearly
/// equal offsets on all ranks: without the skew, a multiprocessor that walks all peers side by side
/// asks one set of its address translation cache for all of them.
struct RegionOffsets {
    std::uint64_t recv_rows[kBufferCount];
    std::uint64_t recv_meta[kBufferCount];
    std::uint64_t combine_rows[kBufferCount];
    std::uint64_t send_rows;  ///< GIN only: dispatch rows by destination
    std::uint64_t send_meta;
    std::uint64_t home_rows;          ///< GIN only: combine rows that came home
    std::uint64_t rail_rows;          ///< hybrid: rows from the rail, on their way to this team
    std::uint64_t back_rows;          ///< hybrid: sums of this team's rows, on their way home
    std::uint64_t rail_weights;       ///< hybrid: combine weights from the rail, [pair row][K]
    std::uint64_t rail_weights_send;  ///< hybrid: the same, on their way
    std::uint64_t skew_bytes;         ///< between the skews of neighbouring ranks
    std::uint64_t total_bytes;

    /// Ranks beyond this many have the skews of the first ones again.
    static constexpr std::int32_t kSkewCount = 16;

    constexpr std::uint64_t rank_skew(std::int32_t rank) const {
        return static_cast<std::uint64_t>(rank % kSkewCount) * skew_bytes;
    }
};

/// What dispatch and combine of one Exchange share.
struct ExchangeArgs {
    PeerHandles peers;
    ExpertMap experts;
    RegionOffsets regions;
    TokenLayout token_layout;
    std::int32_t topk;
    Layout layout;
    PadFill pad_fill;
    std::int32_t expert_alignment;  ///< expert_major: block starts are multiples of this
    std::int32_t max_tokens;
    std::int32_t chunk_rows;    ///< rows of one GIN put
    std::int64_t row_capacity;  ///< rows of one receive buffer
    KernelShape shape;
    RailShape rail;      ///< all zero in direct mode
    StreamShape stream;  ///< all zero with Sync::barrier
};

/// Device memory of one Routing: what a dispatch decided, and combine or a cached dispatch reuses.
struct RoutingView {
    SlotRef* slots;  ///< [max_tokens][K]
    HomeRef* home;   ///< [max_tokens][K]
    std::int32_t*
        counts;  ///< [R][count_row_words]: word 0 tokens, then rank counts, then expert counts
    StepCounts* step;  ///< StepCounts followed by its arrays, see StepCountsLayout
    /// hybrid, null elsewhere. [pairs * channel_rows][K]: where this rank put the rows that came
    /// over the rail.
    SlotRef* rail_slots;
    std::int32_t* rail_received;  ///< hybrid: [pairs] rows that came over the rail
    std::int32_t* rail_sent;      ///< hybrid: [pairs] rows that this rank sent over the rail
    /// fifo, null elsewhere. [rings][channel_rows]: final slots of the rows that came through a
    /// ring, in the order in which their answers go back.
    std::int32_t* stream_slots;
    std::int32_t* stream_received;  ///< fifo: [rings] entries of stream_slots
    /// [max_tokens]: bit k = choice k named an expert of an excluded rank and counts as masked.
    std::uint32_t* dropped;
};

struct DispatchArgs {
    ExchangeArgs exchange;
    RoutingView routing;
    const std::byte* rows;        ///< [T][row_bytes]
    const std::uint32_t* scales;  ///< [T][scale_words], null without scales
    const void* expert_indices;   ///< [T][K] int32 or int64; -1 = masked
    const float* weights;         ///< [T][K] or null
    /// fifo: where received rows and records go, by the step's parity: [row_capacity] of each.
    std::byte* out_rows[kBufferCount];
    std::byte* out_records[kBufferCount];
    StepCounts* host_step;  ///< host-mapped copy of routing.step, or null
    IndexType index_type;
    RoutingMode mode;
    std::int32_t token_count;  ///< T
    std::int32_t refuse;       ///< nonzero: tell the peers that this rank sends nothing
    /// Buffer that the addresses of this call belong to, compared with the step's; -1 = any.
    std::int32_t expected_parity;
    std::int32_t padding;
};

struct CombineArgs {
    ExchangeArgs exchange;
    RoutingView routing;
    std::byte* out;         ///< [T][row_bytes]
    const std::byte* bias;  ///< [T][row_bytes] or null, added once
    /// fifo: [row_capacity][row_bytes], one for each received row; by the step's parity.
    const std::byte* answers[kBufferCount];
    const float* weights;      ///< [T][K] or null; expert_major only
    std::uint32_t row_bytes;   ///< of one combine row, a multiple of 16
    ElementType element_type;  ///< float32, float16 or bfloat16
    std::int32_t token_count;
    std::int32_t refuse;           ///< as in DispatchArgs
    std::int32_t expected_parity;  ///< as in DispatchArgs
    std::int32_t padding;
};

/// Barrier over the grid and the chosen teams.
struct BarrierArgs {
    PeerHandles peers;
    std::int32_t repeat_count;  ///< barriers done in one launch, >= 1
    std::int32_t refuse;        ///< 1: this rank does not enter, and the others are to hear it
};

/// Brings one window's control words into a state as after creation, at the given epochs.
struct RecoverArgs {
    PeerHandles peers;
    std::uint64_t dispatch_epoch;
    std::uint64_t combine_epoch;
    std::uint64_t barrier_epoch;
    std::uint64_t fence;        ///< number of this recovery, equal on all ranks; 0 = at creation
    std::uint64_t fence_delta;  ///< beyond the number that this rank has sent before
    std::uint64_t excluded[kRankSetWords];
};

/// Fetches the report board.
struct CollectArgs {
    PeerHandles peers;
    DeviceError* records;    ///< host-mapped [R]; `state` stays free for ranks that are silent
    std::uint64_t grace_ns;  ///< how long to wait for ranks that have not reported yet
};

/// Copies received rows and metadata into contiguous tensors of the caller. Null outputs are
/// skipped.
struct UnpackArgs {
    /// Receive rows and records of both buffers; the step's epoch picks.
    const std::byte* rows[kBufferCount];
    const std::byte* meta[kBufferCount];
    const StepCounts* step;     ///< row_count bounds the copy
    std::byte* out_rows;        ///< [rows][row_bytes]
    std::int32_t* out_indices;  ///< [rows][C]
    float* out_weights;         ///< [rows][C]
    std::uint32_t* out_scales;  ///< [rows][scale_words]
    std::int32_t* out_source;   ///< [rows][2]: source rank, source token
    TokenLayout token_layout;
    std::int64_t out_capacity;  ///< rows that fit the outputs; further rows are not written
};

/// Copies the caller's rows into the combine buffer that the next combine reads; row_count is read
/// from the step.
struct PackArgs {
    const std::byte* rows;
    std::byte* out[kBufferCount];
    const EpochWords* epochs;
    const StepCounts* step;
    std::uint32_t row_bytes;
    std::uint32_t padding;
};

}  // namespace gimlet

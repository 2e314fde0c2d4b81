// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "device/abi/kernel_args.hpp"

// Arguments of the kernels behind `gimlet bench`.
namespace gimlet {

/// What a bench kernel measured between its warm-up and its end, on its first thread. Host-mapped.
struct BenchTime {
    std::uint64_t elapsed_ns;
    std::uint64_t elapsed_cycles;
};

enum class BarrierKind : std::int32_t {
    grid,      ///< grid_barrier: the blocks of one rank
    nvlink,    ///< nvlink_barrier
    nccl_lsa,  ///< ncclLsaBarrierSession, barrier 0 of dev_comm
    gin,       ///< gin_barrier of the world on context 0
    nccl_gin,  ///< ncclGinBarrierSession of the world on context 0, barrier 0 of dev_comm
    gpu,       ///< gpu_barrier of the world
};

/// One launch does `warmup_count` barriers, then `repeat_count` that are timed. NCCL's barriers
/// have no deadline.
struct BarrierBenchArgs {
    PeerHandles peers;
    BenchTime* time;
    std::uint64_t first_epoch;  ///< > 0, larger than any of an earlier launch
    std::int32_t warmup_count;
    std::int32_t repeat_count;
};

enum class PutPath : std::int32_t {
    store,       ///< 16-byte loads and stores by all threads
    bulk,        ///< bulk load into shared memory, bulk store to the peer
    gin_single,  ///< GIN, each put rings
    gin_batch,   ///< GIN, aggregated
};

/// All offsets are window offsets; `bytes` is a multiple of 16.
struct PutBenchArgs {
    PeerHandles peers;
    BenchTime* time;
    std::uint64_t source_offset;
    std::uint64_t target_offset;  ///< in the peer's window
    std::uint64_t flags_offset;   ///< u64[R]: number of the newest arrival from that rank
    std::uint64_t bytes;          ///< of one put
    std::uint64_t first_epoch;    ///< > 0, larger than any of an earlier launch
    std::int32_t to_rank;         ///< whom this rank puts to
    std::int32_t from_rank;       ///< who puts to this rank
    std::int32_t put_count;       ///< puts in a round
    std::int32_t round_count;     ///< timed rounds
    std::int32_t warmup_count;    ///< rounds before them
    std::int32_t context_count;   ///< GIN contexts used side by side, one warp each
    PutPath path;
};

/// Who tells the next stage of a pipeline that rows are there.
enum class PipelineSync : std::int32_t {
    barrier,  ///< whole batches into full-size buffers, a gpu_barrier after each
    fifo,     ///< rings, chunk by chunk
};

/// What one block saw of one run; host-mapped, one a block. Times are of the GPU's global timer.
struct PipelineLaneRecord {
    std::uint64_t start_ns;  ///< all blocks of all ranks are there
    std::uint64_t first_ns;  ///< last stage: its first row may be read
    std::uint64_t last_ns;   ///< the stage has moved its last row
    std::uint64_t flags;     ///< words written to tell others
    std::uint64_t waits;     ///< barriers; waits for a tail or a head that did not hold at once
};

inline constexpr int kMaxPipelineBatches = 8;

/// T rows of `row_bytes` go through `stage_count` stages; stage s is on rank s % R, in its blocks
/// s / R * lane_count and following. Each stage moves every row once: from the source (stage 0) or
/// its own buffer, to the next stage's buffer or the target (last stage). Lane l moves the rows
/// that are l modulo lane_count. Source and target hold the rows modulo `kept_rows`.
struct PipelineBenchArgs {
    PeerHandles peers;
    FifoOptions fifo;             ///< of one lane's ring
    PipelineLaneRecord* records;  ///< [blocks]
    std::uint64_t source_offset;
    std::uint64_t target_offset;
    /// barrier: [places][2, or 1 for a single batch][largest batch] rows. fifo:
    /// [places][lane_count] channels; a place is s / R.
    std::uint64_t buffer_offset;
    std::uint64_t first_epoch;  ///< > 0; a run takes batch_count + stage_count numbers
    PipelineSync sync;
    std::int32_t stage_count;
    std::int32_t lane_count;
    std::int32_t slot_count;  ///< rows in a block's shared memory
    std::uint32_t row_bytes;
    std::uint32_t kept_rows;
    std::uint32_t batch_count;
    std::uint32_t batch_rows[kMaxPipelineBatches];
};

enum class HandoverKind : std::int32_t {
    flag,      ///< one release store, one acquire poll
    fifo,      ///< reserve, publish; wait, release: nothing in the slot
    fifo_row,  ///< the same with 16 bytes written and read
};

/// Round trips between a warp of rank 0 and a warp of rank 1 (one rank: of its own other block),
/// over loads and stores.
struct HandoverBenchArgs {
    PeerHandles peers;
    BenchTime* time;
    FifoOptions fifo;
    std::uint64_t fifo_offset;   ///< two channels: there, and back
    std::uint64_t flags_offset;  ///< u64[2]
    std::uint64_t first_epoch;
    std::int32_t warmup_count;
    std::int32_t repeat_count;
    HandoverKind kind;
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

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

}  // namespace gimlet

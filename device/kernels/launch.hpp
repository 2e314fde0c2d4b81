// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "device/abi/bench_args.hpp"
#include "device/abi/kernel_args.hpp"

// The only door from the runtime to the kernels. Each function enqueues one kernel on `stream` and
// returns the launch error; none allocates or synchronises.
namespace gimlet {

/// Raises the dynamic shared memory limit of all kernels on the current device. Once per device,
/// before any launch and outside of stream capture.
cudaError_t prepare_kernels();

/// Dynamic shared memory that the dispatch kernel needs for this geometry (copy slots, tables,
/// mbarriers).
std::uint32_t dispatch_shared_bytes(const ExchangeArgs& exchange, const KernelShape& shape);

/// The same for the combine kernel: a ring of shape.slots_per_warp pieces of shape.slot_bytes.
std::uint32_t combine_shared_bytes(const KernelShape& shape, std::int32_t rank_count);

/// The longest piece of a row that one of `ring_count` rings in a combine block of `thread_count`
/// threads can sum at once, in bytes.
std::uint32_t combine_max_slot_bytes(std::int32_t thread_count, std::int32_t ring_count);

/// Collective over the Exchange's ranks: counts (RoutingMode::fresh), exchange of counts, rows to
/// their final slots.
cudaError_t launch_dispatch(const DispatchArgs& args, cudaStream_t stream);

/// Collective: sums the rows of this rank's tokens, which the ranks left in combine_rows of the
/// step's parity.
cudaError_t launch_combine(const CombineArgs& args, cudaStream_t stream);

/// Collective: gpu_barrier over all ranks of the handles.
cudaError_t launch_barrier(const BarrierArgs& args, const KernelShape& shape, cudaStream_t stream);

/// Local: copies the report board of this rank into host-mapped memory; waits a grace for the ranks
/// that have not reported.
cudaError_t launch_collect(const CollectArgs& args, cudaStream_t stream);

/// Collective; no other kernel of the window runs on any rank from before the first call to after
/// the last one's end.
cudaError_t launch_recover(const RecoverArgs& args, cudaStream_t stream);

/// As prepare_kernels, for the two functions below.
cudaError_t prepare_bench_kernels();

/// Collective over the LSA team or the world of the handles (grid: local): barriers back to back,
/// timed. The block needs as many threads as there are ranks (NCCL's GIN barrier).
cudaError_t launch_barrier_bench(BarrierKind kind, const BarrierBenchArgs& args,
                                 const KernelShape& shape, cudaStream_t stream);

/// Stores and bulk copies: local, `put_count` copies to the peer on `block_count` blocks, not timed
/// by itself. GIN: collective, rounds that are timed.
cudaError_t launch_put_bench(const PutBenchArgs& args, std::int32_t block_count,
                             cudaStream_t stream);

/// Collective over the pairs of ranks that put to each other: round trips of put, signal and wait.
cudaError_t launch_put_round_bench(const PutBenchArgs& args, cudaStream_t stream);

/// Shared memory of one block of the pipeline bench.
std::uint32_t pipeline_bench_shared_bytes(std::uint32_t row_bytes, std::int32_t slot_count);

/// Collective over the LSA team, which is the world: one run of all rows, recorded by each block.
cudaError_t launch_pipeline_bench(const PipelineBenchArgs& args, cudaStream_t stream);

/// Collective over ranks 0 and 1; others return at once.
cudaError_t launch_handover_bench(const HandoverBenchArgs& args, cudaStream_t stream);

/// Local: see UnpackArgs.
cudaError_t launch_unpack(const UnpackArgs& args, std::int32_t block_count, cudaStream_t stream);

/// Local: see PackArgs.
cudaError_t launch_pack(const PackArgs& args, std::int32_t block_count, cudaStream_t stream);

}  // namespace gimlet

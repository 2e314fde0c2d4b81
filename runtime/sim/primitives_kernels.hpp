// SPDX-License-Identifier: Apache-2.0
//
// Kernels that use the device primitives the way real ones do, and check what the primitives
// promise.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/abi/kernel_args.hpp"

namespace gimlet::sim {

/// The barrier under test. The first three are barriers of one block of each rank; `gpu` is one of
/// whole kernels.
enum class Meeting : std::int32_t { nvlink, block, gin, gpu };

/// Values of device::GinTeam and device::BarrierTeams, which host code does not include.
enum class GinTeamChoice : std::int32_t { world, world_minus_lsa, rail };
enum class TeamsChoice : std::int32_t { world, scale_up, rail, scale_up_and_rail };

/// How rows reach LSA peers.
enum class StoreKind : std::int32_t { plain, bulk };

/// Deliberate faults of the code under test, or of its use. Each must be caught.
enum class Flaw : std::int32_t {
    none,
    no_wait,             ///< arrives, and goes on without waiting
    counter_stays,       ///< nvlink: the same number in every barrier
    flag_of_last,        ///< nvlink: content with the flag of the barrier before
    one_sided,           ///< block: takes no note of its own arrivals
    relaxed_arrival,     ///< arrives without release
    relaxed_wait,        ///< waits without acquire
    weak_signal,         ///< gin: the arrival does not cover earlier puts
    first_context_only,  ///< gin: signals on one context, puts on all
    no_shadow_advance,   ///< gin: takes old signals for new ones
    no_bulk_flush,       ///< gpu: bulk stores may still be under way
    no_start_sync,       ///< gpu: other blocks may still be writing
    no_end_sync,         ///< gpu: other blocks do not wait
};

struct MeetingArgs {
    PeerHandles peers;
    std::uint64_t rows_offset;  ///< in the window: [2][ranks][writers] rows of 64 bytes, received
    std::uint64_t
        send_offset;  ///< in the window: [2][ranks][writers] rows of 64 bytes, sources of puts
    std::uint64_t* mismatches;  ///< device word
    std::uint64_t* failures;    ///< device word: threads that were told of a failure
    std::uint64_t first_epoch;
    std::int32_t rounds;
    std::int32_t writers;       ///< warps of the grid
    std::int32_t absent_block;  ///< leaves at once; -1 = none
    std::int32_t first_context;
    std::int32_t context_count;  ///< contexts that puts use and the barrier names
    Meeting meeting;
    GinTeamChoice gin_team;
    TeamsChoice teams;
    StoreKind store;
    Flaw flaw;
};

/// Rounds of: write a row to every peer, meet, check the rows of every peer.
cudaError_t launch_meeting(const MeetingArgs& args, int blocks, int threads, cudaStream_t stream);

struct GridArgs {
    std::uint32_t* word;
    std::uint64_t* cells;  ///< [2][blocks * threads]
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    DeviceError* error;
    std::uint64_t* poison;
    std::uint64_t deadline_ns;
    std::int32_t rounds;
    std::int32_t absent_block;  ///< leaves at once; -1 = none
    Flaw flaw;                  ///< none, no_wait, relaxed_arrival or relaxed_wait
};

/// Rounds of: each thread writes a cell, grid_barrier, each thread checks some cells of other
/// blocks.
cudaError_t launch_grid_rounds(const GridArgs& args, int blocks, int threads, cudaStream_t stream);

/// Deliberate faults in the use of aggregated puts.
enum class PutFlaw : std::int32_t { none, not_closed, weak_last_signal, no_flush };

/// When a warp flushes and overwrites its sources: a flush looks at the queues to all peers.
enum class PutFlush : std::int32_t { each_batch, all_batches };

struct PutArgs {
    PeerHandles peers;
    std::uint64_t rows_offset;  ///< [ranks][put_count] rows of 64 bytes, received
    std::uint64_t send_offset;  ///< [ranks][put_count] rows
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    std::uint64_t first_epoch;
    std::int32_t rounds;
    std::int32_t put_count;  ///< puts of a batch to each peer
    std::int32_t context;
    PutFlaw flaw;
    PutFlush flush;
};

/// Rounds of: warp w sends a batch to peers w, w + warps, ..., closes it with a strong signal,
/// flushes, and overwrites the sources (after each batch or after all); the block waits for the
/// batches of all peers and checks them. One block. Uses signals dispatch_arrival, and
/// combine_ready to say that the rows have been read.
cudaError_t launch_put_rounds(const PutArgs& args, int threads, cudaStream_t stream);

/// Adds `amount` to the barrier signals of all peers on all contexts, by GIN, and to the own
/// shadows; waits until all has arrived. It moves the sums to where they wrap. One block.
cudaError_t launch_signal_prime(const MeetingArgs& args, std::uint64_t amount, int threads,
                                cudaStream_t stream);

struct FollowArgs {
    PeerHandles peers;
    std::uint64_t* mismatches;
    std::uint64_t* failures;
    std::int32_t total;  ///< signals that each rank sends to each peer on context 0
};

/// Sends `total` weak signals to each peer, and takes what comes by wait_follow until all have
/// come. One block.
cudaError_t launch_follow(const FollowArgs& args, int threads, cudaStream_t stream);

enum class WaitCase : std::int32_t {
    holds_at_once,
    never,             ///< times out
    poisoned,          ///< another wait of this step has failed
    poisoned_earlier,  ///< an earlier step has failed: not our business; the condition comes true
                       ///< later
    one_lane_never,    ///< one lane of a block times out, the others are ok at once
};

struct WaitArgs {
    std::uint64_t* word;  ///< device word, 0
    std::uint64_t* poison;
    std::uint64_t* statuses;  ///< [threads] WaitStatus
    std::uint64_t* verdicts;  ///< [threads] block_ok
    DeviceError* error;
    std::uint64_t deadline_ns;
    WaitCase which;
};

cudaError_t launch_wait(const WaitArgs& args, int threads, cudaStream_t stream);

struct FailedStepArgs {
    std::uint64_t* poison;
    std::uint64_t* statuses;  ///< [blocks * threads] WaitStatus
    std::uint64_t* elapsed_ns;
    std::uint64_t* verdicts;  ///< [blocks * threads] block_ok
    DeviceError* error;
    std::uint64_t deadline_ns;
    std::uint64_t patient_deadline_ns;  ///< of all threads but one
    std::int32_t impatient;             ///< which one, counted over the grid
};

/// All threads wait for what never comes, in one step.
cudaError_t launch_failed_step(const FailedStepArgs& args, int blocks, int threads,
                               cudaStream_t stream);

}  // namespace gimlet::sim

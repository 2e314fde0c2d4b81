// SPDX-License-Identifier: Apache-2.0
//
// Litmus programs: one small program for each thing that GIN or LSA guarantees, or does not. Two
// ranks run it; what they read, the registers, is its outcome. The same programs run in simulation,
// under mpirun on the emulator, and on real NCCL.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gimlet::litmus {

/// In groups: each group is a kernel of its own (kernels/launch.cc knows where one ends).
enum class ProgramId : std::int32_t {
    // gin_order.cu
    put_put,
    put_in_pieces,
    put_weak_signal,
    put_strong_signal,
    put_then_weak_put,
    put_then_weak_signal,
    put_then_strong_put,
    put_then_strong_signal,
    two_contexts,
    two_weak_signals,
    strong_covers_signals,
    put_value,
    // gin_completion.cu
    flush_is_local,
    counter_is_local,
    aggregate_closed,
    aggregate_open,
    back_pressure,
    get_flush,
    get_before_flush,
    loop_back,
    // gin_signals.cu
    signal_wrap,
    shadow_meet,
    shadow_follow,
    high_signal_id,
    // bulk.cu
    lsa_bulk_store_waited,
    lsa_bulk_store_read_only,
    lsa_bulk_store_unfenced,
    lsa_bulk_load_fenced,
    lsa_bulk_to_bulk_fenced,
    lsa_bulk_to_bulk_unfenced,
    lsa_bulk_load_unfenced,
    // lsa.cu
    lsa_release_acquire,
    lsa_fence_fence,
    lsa_coherence,
    lsa_atomic_add,
    lsa_chain,
    gpu_release_acquire,
    lsa_relaxed_relaxed,
    lsa_release_relaxed,
    lsa_relaxed_acquire,
    lsa_release_gpu_scope,
    lsa_acquire_gpu_scope,
    lsa_fence_gpu_scope,
    lsa_release_block_scope,
    lsa_acquire_block_scope,
    lsa_fence_block_scope,
    gpu_block_scope,
    lsa_store_buffering,
    lsa_acq_rel_add,
    lsa_release_sequence,
};

/// What a machine must have for a program. Bits.
enum Needs : unsigned {
    kGin = 1,         ///< GIN with two contexts between ranks 0 and 1
    kLsa = 2,         ///< ranks 0 and 1 load and store each other's memory
    kManySignals = 4  ///< ids above 65,535
};

constexpr int kRegisterCount = 4;
constexpr std::uint64_t kUnset = 0xfffffffffffffffeull;     ///< a register that nobody wrote
constexpr std::uint64_t kTimedOut = 0xfffffffffffffffdull;  ///< its reader waited in vain

using Outcome = std::vector<std::uint64_t>;

struct Program {
    ProgramId id;
    const char* name;
    unsigned needs;
    const char* claim;      ///< what it shows, one sentence
    const char* registers;  ///< their names, in order
    /// Every outcome that may happen; the simulation must reach each one. All others are forbidden.
    std::vector<Outcome> allowed;

    bool allows(const Outcome& outcome) const;
};

const std::vector<Program>& programs();
std::string text_of(const Outcome& outcome);

// ---- for the kernel

/// Bytes of the window that one round uses; they start at zero.
constexpr std::size_t kSlotBytes = 4096;
constexpr std::uint32_t kManySignalCount = 65536 + 64;
constexpr std::uint32_t kFewSignalCount = 8;
/// Puts of the back-pressure program: more than any queue of the test worlds holds.
constexpr std::uint32_t kBackPressurePuts = 300;

struct LitmusArgs {
    ncclDevComm dev_comm;
    ncclWindow_t window;
    std::byte* local;          ///< this rank's window
    std::byte* partner_bytes;  ///< the other rank's, or null
    std::uint64_t* registers;  ///< [kRegisterCount], host-mapped
    std::uint64_t slot_offset;
    std::uint64_t close_base;  ///< earlier rounds that used GIN
    std::uint64_t deadline_ns;
    std::uint64_t delay_ns;  ///< this rank starts later
    std::int32_t looks_max;  ///< of a reader that looks without a wait
    ProgramId program;
    std::int32_t rank;
    std::uint32_t high_signal;  ///< largest signal id
};

constexpr std::size_t kLitmusSharedBytes = 256;

/// The kernel of the program's group.
cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream);

}  // namespace gimlet::litmus

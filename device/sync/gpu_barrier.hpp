// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/core/bulk.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/sync/gin_barrier.hpp"
#include "device/sync/grid_barrier.hpp"
#include "device/sync/nvlink_barrier.hpp"

namespace gimlet::device {

enum class FlushBulkStores { no, yes };
enum class GridSync { no, yes };

/// Whom a rank meets. `world`: everybody, LSA peers over NVLink and the others over GIN.
/// `scale_up`: its LSA team. `rail`: the ranks of its LSA index. `scale_up_and_rail`: both of these
/// side by side, which is no barrier of the world: that (i, j) has met (i, *) and (*, j) says
/// nothing about the others.
enum class BarrierTeams { world, scale_up, rail, scale_up_and_rail };

struct GpuBarrierOptions {
    /// yes: each thread first waits for the bulk stores that it issued.
    FlushBulkStores flush_bulk_stores = FlushBulkStores::yes;
    /// no: the caller's blocks have nothing to hand over, or have been through a grid barrier
    /// since.
    GridSync grid_sync_at_start = GridSync::yes;
    /// no: only blocks 0 and 1 learn that the peers have come; the kernel's end tells the next
    /// kernel.
    GridSync grid_sync_at_end = GridSync::yes;
    BarrierTeams teams = BarrierTeams::world;
    /// Contexts whose puts are covered; a negative count stands for all that the kernel may use.
    GinContexts contexts = {0, -1};
};

namespace detail {

/// The part between ranks: NVLink by block 0, GIN by block 1 at the same time (by block 0 too if it
/// is alone).
GIMLET_DEVICE bool meet_peers(const PeerHandles& peers, const GpuBarrierOptions& options,
                              const WaitScope& scope) {
    const bool scale_up = options.teams != BarrierTeams::rail;
    const GinTeam gin_team =
        options.teams == BarrierTeams::world && !mutated(Mutant::gpu_wrong_gin_team)
            ? GinTeam::world_minus_lsa
            : GinTeam::rail;
    const GinContexts contexts = mutated(Mutant::gpu_first_context_only) ? GinContexts::only(0)
                                 : options.contexts.count < 0            ? GinContexts::all(peers)
                                                                         : options.contexts;
    const bool over_gin = options.teams != BarrierTeams::scale_up && contexts.count > 0 &&
                          gin_team_peer_count(peers, gin_team) > 0;

    const bool alone = block_count() == 1;
    const bool does_nvlink = scale_up && block_index() == 0;
    const bool does_gin = over_gin && block_index() == (alone ? 0 : 1);
    bool ok = true;
    if (does_gin) {
        block_sync();
        gin_barrier_signal(peers, gin_team, contexts);
    }
    if (does_nvlink) ok = nvlink_barrier(peers, scope);
    // If NVLink has failed, the step is poisoned and this returns soon; it keeps the shadows in
    // step.
    if (does_gin) ok = block_ok(gin_barrier_wait(peers, gin_team, contexts, scope)) && ok;
    return ok;
}

}  // namespace detail

/// Barrier of all blocks of all ranks of the chosen teams: grid -> (NVLink beside GIN) -> grid.
///
/// Who: all threads of all blocks of the kernel, each block converged; on all ranks of the teams,
/// the same number of times with the same teams and contexts. All blocks resident at once. Grid
/// sizes may differ between ranks.
/// Before: the workspace's words started at zero; batches of puts are closed. With more than one
/// block and a grid sync at the end, scope.poison is set: it is how blocks learn that the meeting
/// failed.
/// After true, with both grid syncs: everything that any thread of a rank of the teams did before
/// its barrier is visible to all threads here: ordinary stores to its own window and to its LSA
/// peers', bulk stores (flushed here or waited for), and GIN puts on the named contexts from ranks
/// that this one meets over GIN. Not covered: puts to LSA peers or to oneself, puts on other
/// contexts, and that sources of own puts may be reused (flush tells that).
/// Order: bulk stores complete in their thread -> grid barrier (GPU scope) -> release adds at
/// system scope / strong signals -> acquire polls at system scope -> grid barrier. Readers that use
/// bulk loads put fence_proxy_async() between the barrier and the load.
/// Cost with S ranks in an LSA team and C contexts: S remote adds; over GIN (R - S) C signals for
/// `world`, (R/S - 1) C with rails. One LSA team sends no GIN message and needs no GIN.
/// Deadline: wait_until's in each part. If a part fails, all blocks leave with false and nobody
/// publishes; the grid word stays usable unless a block of this very grid was missing.
/// Result: the same in all threads of a block; with a grid sync at the end, the same in all blocks
/// unless that sync itself times out.
GIMLET_DEVICE bool gpu_barrier(const PeerHandles& peers, const GpuBarrierOptions& options,
                               const WaitScope& scope) {
    if (options.flush_bulk_stores == FlushBulkStores::yes && !mutated(Mutant::gpu_no_bulk_flush)) {
        bulk_commit();
        if (mutated(Mutant::gpu_flush_reads_only)) bulk_wait_read<0>();
        if (!mutated(Mutant::gpu_flush_reads_only)) bulk_wait<0>();
        fence_proxy_async();
    }
    std::uint32_t* const grid_word = local_word<std::uint32_t>(peers, peers.layout.grid_barrier);
    // A block of this grid that does not arrive may still be writing: nobody is told that this rank
    // is ready. Nor does a block arrive twice, which could stand in for the missing one. But if all
    // have arrived, and a fast block has already failed to meet a peer before this one looked, this
    // one takes part all the same: flags, signals and the grid word stay in step with the peers'.
    GridMeeting start = GridMeeting::passed;
    if (options.grid_sync_at_start == GridSync::yes && !mutated(Mutant::gpu_no_start_sync))
        start = meet_grid(grid_word, scope);
    if (start == GridMeeting::missed) return false;
    if (start == GridMeeting::stopped && mutated(Mutant::gpu_slow_block_leaves)) return false;
    bool ok = detail::meet_peers(peers, options, scope) && start == GridMeeting::passed;
    // Even a block that has failed arrives: the others find the step poisoned, and the word stays
    // whole.
    if (!ok && mutated(Mutant::gpu_failed_block_stays_away)) return false;
    if (options.grid_sync_at_end == GridSync::yes && !mutated(Mutant::gpu_no_end_sync))
        ok = grid_barrier(grid_word, scope) && ok;
    return ok;
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/atomic>

#include <cstdint>

#include "device/core/group.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/sync/signal_shadow.hpp"

namespace gimlet::device {

/// A run of GIN contexts: first, first + 1, ...
struct GinContexts {
    std::int32_t first;
    std::int32_t count;

    /// All that the kernel may use.
    GIMLET_DEVICE static GinContexts all(const PeerHandles& peers) {
        return {0, peers.gin_context_count};
    }
    GIMLET_DEVICE static GinContexts only(std::int32_t context) { return {context, 1}; }
};

/// Ranks that meet, each with all the others. `world_minus_lsa`: with those outside of this rank's
/// LSA team. `rail`: with those of the same LSA index.
enum class GinTeam { world, world_minus_lsa, rail };

/// How many ranks this one meets, itself not counted.
GIMLET_DEVICE std::int32_t gin_team_peer_count(const PeerHandles& peers, GinTeam team) {
    switch (team) {
        case GinTeam::world: return peers.rank_count - 1;
        case GinTeam::world_minus_lsa: return peers.rank_count - peers.lsa_size;
        default: return peers.rank_count / peers.lsa_size - 1;
    }
}

/// World rank of the `index`-th of them. Ranks start at different peers, so that not everybody
/// rings at rank 0 first.
GIMLET_DEVICE std::int32_t gin_team_peer(const PeerHandles& peers, GinTeam team,
                                         std::int32_t index) {
    std::int32_t distance = index + 1;
    if (team == GinTeam::world_minus_lsa) distance = peers.lsa_size - peers.lsa_rank + index;
    if (team == GinTeam::rail) distance *= peers.lsa_size;
    const std::int32_t peer = peers.rank + distance;
    return peer < peers.rank_count ? peer : peer - peers.rank_count;
}

/// First half of gin_barrier: rings at every peer on every named context. Never waits for a peer.
/// All threads of the block, after a block sync that makes the block's (and, through a grid
/// barrier, the grid's) earlier puts come first.
GIMLET_DEVICE void gin_barrier_signal(const PeerHandles& peers, GinTeam team,
                                      GinContexts contexts) {
    const std::int32_t peer_count = gin_team_peer_count(peers, team);
    const std::uint32_t signal = SignalMap{peers.rank_count}.barrier(
        mutate(Mutant::gin_wrong_signal, peers.rank, peers.rank_count - 1 - peers.rank));
    for (std::int32_t i = thread_index(); i < peer_count * contexts.count; i += block_threads()) {
        const std::int32_t context = mutate(Mutant::gin_signals_on_one_context, i / peer_count, 0);
        const ncclGin gin = gin_context(peers, contexts.first + context);
        const std::int32_t peer = gin_team_peer(peers, team, i % peer_count);
        if (is_excluded(peers, peer)) continue;
        if (mutated(Mutant::gin_weak_signal)) {
            gin.signal(world_team(peers), peer, ncclGin_WeakSignalAdd{signal, 1});
            continue;
        }
        gin.signal(world_team(peers), peer, ncclGin_StrongSignalAdd{signal, 1});
    }
}

/// Second half: the calling thread's share of the waits. The verdict of the block is block_ok's.
GIMLET_DEVICE WaitStatus gin_barrier_wait(const PeerHandles& peers, GinTeam team,
                                          GinContexts contexts, const WaitScope& outer_scope) {
    const std::int32_t peer_count = gin_team_peer_count(peers, team);
    const WaitScope scope = for_primitive(outer_scope, Primitive::gin_barrier);
    const SignalShadow shadow(peers);
    const std::int32_t waits =
        peer_count * mutate(Mutant::gin_waits_on_one_context, contexts.count, 1);
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < waits; i += block_threads()) {
        const std::int32_t context = contexts.first + i / peer_count;
        const std::int32_t peer = gin_team_peer(peers, team, i % peer_count);
        if (is_excluded(peers, peer)) continue;
        const std::uint32_t signal = SignalMap{peers.rank_count}.barrier(peer);
        const std::uint64_t awaited = mutate(Mutant::gin_no_wait, 1, 0);
        if (status == WaitStatus::ok) {
            status = shadow.wait_meet(scope, peer, context, signal, awaited);
        }
        shadow.advance(context, signal, mutate(Mutant::gin_shadow_stays, 1, 0));
    }
    return status;
}

/// Barrier of ranks over GIN, and the proof that their puts have landed.
///
/// Each rank adds 1 to signal barrier(own rank) of every peer, by a strong signal on each named
/// context, and waits for the same from every peer. All signals go out before any wait, so a block
/// of any size works. Excluded ranks are passed over.
///
/// Who: all threads of one block of each rank of the team, converged; every two ranks that meet in
/// it do so in the same order of barriers with the same contexts. One block at a time in a rank.
/// Before: the caller's puts are issued by this block, or by blocks that have been through a grid
/// barrier with it since. Batches are closed (aggregated_put). The barrier's signals are used by
/// nobody else.
/// After true: every put that a peer issued to this rank, before its barrier, on a named context,
/// is visible to all threads of this block. Puts on other contexts, puts between other ranks, and
/// stores are not covered. That the own puts have landed is not known; that their sources may be
/// reused is not known either (flush tells that).
/// Order: the strong signal on the sender's side, an acquire poll at system scope and a block sync
/// on this side.
/// Cost: peers x contexts remote signals, as many polls, by as many threads as there are. No peers
/// (one rank; one LSA team with world_minus_lsa; one member a rail) or no contexts: a block sync.
/// Deadline: wait_until's for each (context, peer), which the record names; expected and seen are
/// signal sums. Issuing may also wait inside NCCL for room in a queue, which has no deadline. After
/// false nobody publishes; the signals that came late are not taken for the next barrier's.
/// Result: the same in all threads of the block.
GIMLET_DEVICE bool gin_barrier(const PeerHandles& peers, GinTeam team, GinContexts contexts,
                               const WaitScope& scope) {
    if (!mutated(Mutant::gin_no_sync_before)) block_sync();
    gin_barrier_signal(peers, team, contexts);
    if (mutated(Mutant::gin_no_sync_after))
        return gin_barrier_wait(peers, team, contexts, scope) == WaitStatus::ok;
    return block_ok(gin_barrier_wait(peers, team, contexts, scope));
}

}  // namespace gimlet::device

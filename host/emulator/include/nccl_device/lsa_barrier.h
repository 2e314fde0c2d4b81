// SPDX-License-Identifier: Apache-2.0
// Barrier of ranks that can load and store each other's memory.
#pragma once

#include "core.h"

#include <exception>

/// Fills handle and requirement of barriers over a custom team; chain outReq into
/// resourceRequirementsList.
NCCL_EXTERN_C ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                                           ncclLsaBarrierHandle_t* outHandle,
                                                           ncclDevResourceRequirements_t* outReq);

/// One coop's use of one barrier index. Every thread of the coop makes one; several syncs per
/// session are fine; an index belongs to one coop at a time (refused otherwise). Any coop size is
/// legal.
template <typename Coop>
struct ncclLsaBarrierSession {
    Coop coop;
    const ncclDevComm& comm;
    ncclTeam team;
    ncclLsaBarrierHandle handle;
    int index;
    bool multimem;
    ncclMultimemHandle mmHandle;
    uint32_t epoch;

    ncclLsaBarrierSession(Coop coop_, const ncclDevComm& comm_, ncclTeam team_,
                          ncclLsaBarrierHandle handle_, uint32_t index_, bool multimem_ = false,
                          ncclMultimemHandle mmHandle_ = {})
        : coop(coop_),
          comm(comm_),
          team(team_),
          handle(handle_),
          index(static_cast<int>(index_)),
          multimem(multimem_),
          mmHandle(mmHandle_) {
        if (multimem)
            gimlet::emu::nccl::refuse_use("LSA barrier: this machine has no multicast memory");
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::lsa_barrier_enter(comm, handle.bufHandle, handle.nBarriers, index_);
        }
        epoch = *epoch_word();
    }
    ncclLsaBarrierSession(Coop coop_, const ncclDevComm& comm_, ncclTeamTagLsa, uint32_t index_,
                          bool multimem_ = false)
        : ncclLsaBarrierSession(coop_, comm_, ncclTeamLsa(comm_), comm_.lsaBarrier, index_,
                                multimem_, comm_.lsaMultimem) {}
    // Threads of a run that has ended leave by an exception: out of the sync here, or through here,
    // when the host side may be gone already.
    ~ncclLsaBarrierSession() noexcept(false) {
        if (std::uncaught_exceptions() > 0) return;
        if (coop.thread_rank() == 0) {
            *epoch_word() = epoch;
            gimlet::emu::nccl::lsa_barrier_leave(comm, handle.bufHandle,
                                                 static_cast<uint32_t>(index));
        }
        coop.sync();
    }
    ncclLsaBarrierSession(const ncclLsaBarrierSession&) = delete;
    ncclLsaBarrierSession& operator=(const ncclLsaBarrierSession&) = delete;

    /// Tells all peers. With a releasing order the coop's earlier stores are visible to whoever
    /// waits with an acquiring one.
    void arrive(Coop, cuda::memory_order order) {
        coop.sync();
        for (int peer = coop.thread_rank(); peer < team.nRanks; peer += coop.size()) {
            if (peer == team.rank) continue;
            // A releasing store stands for the real fence and relaxed store: ThreadSanitizer knows
            // no fences.
            gimlet::emu::nccl::announce(inbox(peer, team.rank),
                                        nccl::utility::releaseOrderOf(order));
            __atomic_store_n(inbox(peer, team.rank), epoch + 1,
                             static_cast<int>(nccl::utility::releaseOrderOf(order)));
            gimlet::emu::nccl::store_point();
        }
    }
    /// Waits for all peers' arrivals of this epoch.
    void wait(Coop, cuda::memory_order order) { (void)wait_for_peers(order, ~uint64_t{0}); }
    void sync(Coop c, cuda::memory_order order) {
        arrive(c, order);
        wait(c, order);
    }
    /// With a deadline. The result may differ from thread to thread; after ncclTimeout the index is
    /// dead.
    ncclResult_t wait(Coop, cuda::memory_order order, uint64_t timeoutCycles) {
        coop.sync();
        return wait_for_peers(order, timeoutCycles);
    }
    ncclResult_t sync(Coop c, cuda::memory_order order, uint64_t timeoutCycles) {
        arrive(c, order);
        return wait(c, order, timeoutCycles);
    }

  private:
    // State: epochs (multicast, unicast), multicast inboxes, then unicast inboxes [index][team
    // rank].
    uint32_t* epoch_word() const {
        auto* state =
            static_cast<uint32_t*>(ncclGetResourceBufferLocalPointer(comm, handle.bufHandle));
        return state + handle.nBarriers + index;
    }
    uint32_t* inbox(int owner, int sender) const {
        auto* state = static_cast<uint32_t*>(
            ncclGetResourceBufferPeerPointer(comm, handle.bufHandle, team, owner));
        return state + 3 * handle.nBarriers + index * team.nRanks + sender;
    }

    ncclResult_t wait_for_peers(cuda::memory_order order, uint64_t timeout_cycles) {
        const int acquire = static_cast<int>(nccl::utility::acquireOrderOf(order));
        const uint64_t start = gimlet::emu::nccl::cycles();
        ncclResult_t result = ncclSuccess;
        for (int peer = coop.thread_rank(); peer < team.nRanks && result == ncclSuccess;
             peer += coop.size()) {
            if (peer == team.rank) continue;
            uint32_t* word = inbox(team.rank, peer);
            const auto arrived = [&] {
                return static_cast<int32_t>(__atomic_load_n(word, acquire) - (epoch + 1)) >= 0;
            };
            if (timeout_cycles == ~uint64_t{0}) {
                gimlet::emu::nccl::wait_until(
                    [&] {
                        return static_cast<int32_t>(*static_cast<volatile uint32_t*>(word) -
                                                    (epoch + 1)) >= 0;
                    },
                    "LSA barrier %d: team rank %d waits for %d", index, team.rank, peer);
            }
            while (!arrived()) {
                if (gimlet::emu::nccl::cycles() - start >= timeout_cycles) {
                    result = ncclTimeout;
                    break;
                }
                gimlet::emu::nccl::poll_point();
            }
        }
        for (int peer = coop.thread_rank(); result == ncclSuccess && peer < team.nRanks;
             peer += coop.size()) {
            gimlet::emu::nccl::announce(inbox(team.rank, peer),
                                        nccl::utility::acquireOrderOf(order));
        }
        if (result == ncclSuccess) epoch += 1;
        coop.sync();
        return result;
    }
};

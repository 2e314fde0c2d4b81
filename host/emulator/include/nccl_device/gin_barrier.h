// SPDX-License-Identifier: Apache-2.0
// Barrier over GIN signals, one signal per team member.
#pragma once

#include "gin.h"

NCCL_EXTERN_C ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team,
                                                           int nBarriers,
                                                           ncclGinBarrierHandle_t* outHandle,
                                                           ncclDevResourceRequirements_t* outReq);

/// What has landed when the barrier returns. Bits; global names, as in NCCL.
enum ncclGinFenceLevel : uint32_t {
    None = 0,  ///< nothing
    Put = 1,   ///< team members' earlier puts to this rank on the barrier's context(s)
    Get = 2,   ///< this rank's own earlier gets
    Relaxed = None,
};
constexpr ncclGinFenceLevel operator|(ncclGinFenceLevel a, ncclGinFenceLevel b) {
    return static_cast<ncclGinFenceLevel>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr ncclGinFenceLevel operator&(ncclGinFenceLevel a, ncclGinFenceLevel b) {
    return static_cast<ncclGinFenceLevel>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}

/// In place of an ncclGin: the barrier signals and fences on every context.
struct ncclGinAllContexts {
    const ncclDevComm& comm;
    constexpr ncclGinAllContexts(const ncclDevComm& comm_) : comm(comm_) {}
};

/// One coop's use of one barrier index. Each thread signals a peer and waits for that same peer
/// before it goes to its next one, so a coop of fewer than nRanks - 1 threads deadlocks, as in
/// NCCL.
template <typename Coop>
struct ncclGinBarrierSession {
    Coop coop;
    ncclGin net;
    ncclTeam team;
    ncclGinBarrierHandle handle;
    int index;
    ncclGinSignal_t signal;
    bool fenceAllContexts;

    ncclGinBarrierSession(Coop coop_, ncclGin net_, ncclTeam team_, ncclGinBarrierHandle handle_,
                          uint32_t index_)
        : ncclGinBarrierSession(coop_, net_, team_, handle_, index_, false) {}
    ncclGinBarrierSession(Coop coop_, ncclGin net_, ncclTeamTagRail, uint32_t index_)
        : ncclGinBarrierSession(coop_, net_, ncclTeamRail(net_.comm), net_.comm.railGinBarrier,
                                index_) {}
    ncclGinBarrierSession(Coop coop_, ncclGin net_, ncclTeamTagWorld, uint32_t index_)
        : ncclGinBarrierSession(coop_, net_, ncclTeamWorld(net_.comm), net_.comm.worldGinBarrier,
                                index_) {}
    ncclGinBarrierSession(Coop coop_, ncclGinAllContexts all, ncclTeam team_,
                          ncclGinBarrierHandle handle_, uint32_t index_)
        : ncclGinBarrierSession(coop_, ncclGin(all.comm, 0), team_, handle_, index_, true) {}
    ncclGinBarrierSession(Coop coop_, ncclGinAllContexts all, ncclTeamTagRail, uint32_t index_)
        : ncclGinBarrierSession(coop_, all, ncclTeamRail(all.comm), all.comm.railGinBarrier,
                                index_) {}
    ncclGinBarrierSession(Coop coop_, ncclGinAllContexts all, ncclTeamTagWorld, uint32_t index_)
        : ncclGinBarrierSession(coop_, all, ncclTeamWorld(all.comm), all.comm.worldGinBarrier,
                                index_) {}
    ncclGinBarrierSession(const ncclGinBarrierSession&) = delete;
    ncclGinBarrierSession& operator=(const ncclGinBarrierSession&) = delete;

    void sync(Coop, cuda::memory_order order,
              ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
        (void)run(order, fence, ~uint64_t{0});
    }
    /// With a deadline. The result may differ from thread to thread; after ncclTimeout the index is
    /// dead.
    ncclResult_t sync(Coop, cuda::memory_order order, ncclGinFenceLevel fence,
                      uint64_t timeoutCycles) {
        return run(order, fence, timeoutCycles);
    }

  private:
    ncclGinBarrierSession(Coop coop_, ncclGin net_, ncclTeam team_, ncclGinBarrierHandle handle_,
                          uint32_t index_, bool all_contexts)
        : coop(coop_),
          net(net_),
          team(team_),
          handle(handle_),
          index(static_cast<int>(index_)),
          signal(handle_.signal0 + index_ * static_cast<uint32_t>(team_.nRanks)),
          fenceAllContexts(all_contexts) {}

    ncclResult_t run(cuda::memory_order order, ncclGinFenceLevel fence, uint64_t timeout_cycles) {
        const uint64_t start = gimlet::emu::nccl::cycles();
        const bool with_put = (fence & ncclGinFenceLevel::Put) != ncclGinFenceLevel::None;
        const int steps =
            with_put ? team.nRanks : team.nRanks - 1;  // the last step is this rank itself
        const int contexts = fenceAllContexts ? static_cast<int>(net.comm.ginContextCount) : 1;
        const int first_context = fenceAllContexts ? 0 : static_cast<int>(net.contextId);
        ncclResult_t result = ncclSuccess;
        if (coop.thread_rank() == 0)
            gimlet::emu::nccl::gin_barrier_enter(net.comm, signal, first_context, contexts);
        coop.sync();
        for (int i = coop.thread_rank(); i < contexts * steps; i += coop.size()) {
            const int peer = (team.rank + 1 + i % steps) % team.nRanks;
            if (fenceAllContexts) {
                const ncclGin other(net.comm, i / steps, net.resourceSharingMode);
                result = meet(other, peer, order, start, timeout_cycles);
            } else {
                result = meet(net, peer, order, start, timeout_cycles);
            }
            if (result != ncclSuccess) break;
        }
        if (result == ncclSuccess && (fence & ncclGinFenceLevel::Get) != ncclGinFenceLevel::None) {
            flush_contexts(contexts, nccl::utility::acquireOrderOf(order));
        }
        if (coop.thread_rank() == 0)
            gimlet::emu::nccl::gin_barrier_leave(net.comm, signal, first_context, contexts);
        coop.sync();
        return result;
    }

    // Signals the peer and waits for its answer of the same epoch; the epoch is the shadow's low
    // half.
    ncclResult_t meet(const ncclGin& gin, int peer, cuda::memory_order order, uint64_t start,
                      uint64_t timeout_cycles) {
        const bool releases = nccl::utility::releaseOrderOf(order) != cuda::memory_order_relaxed;
        gin.signal(team, peer, ncclGin_SignalInc{signal + static_cast<uint32_t>(team.rank)},
                   ncclCoopThread(), ncclGin_None(),
                   releases ? cuda::thread_scope_thread : cuda::thread_scope_system);
        const ncclGinSignal_t answer = signal + static_cast<uint32_t>(peer);
        auto* shadow = reinterpret_cast<uint32_t*>(gin.getSignalShadowPtr(answer));
        const uint32_t expected = ++*shadow;
        const cuda::memory_order acquire = nccl::utility::acquireOrderOf(order);
        if (timeout_cycles == ~uint64_t{0}) {
            gin.waitSignal(ncclCoopThread(), answer, expected, 32, acquire);
            return ncclSuccess;
        }
        while (!nccl::utility::rollingLessEq(expected, gin.readSignal(answer, 32, acquire), 32)) {
            if (gimlet::emu::nccl::cycles() - start >= timeout_cycles) return ncclTimeout;
        }
        return ncclSuccess;
    }

    void flush_contexts(int contexts, cuda::memory_order order) {
        if (!fenceAllContexts) {
            net.flush(coop, order);
            return;
        }
        const ncclTeam peers =
            net.comm.ginContextsRailed ? ncclTeamRail(net.comm) : ncclTeamWorld(net.comm);
        for (int i = coop.thread_rank(); i < contexts * peers.nRanks; i += coop.size()) {
            const ncclGin gin(net.comm, i / peers.nRanks, net.resourceSharingMode);
            ncclGinRequest_t request;
            gin.flushAsync(peers, static_cast<uint32_t>(i % peers.nRanks), &request);
            gin.wait(request, ncclCoopThread{}, ncclGin_None{}, order);
        }
    }
};

template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGin gin, ncclTeam team, ncclGinBarrierHandle handle,
                    uint32_t index, cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, gin, team, handle, index).sync(coop, order, fence);
}
template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGin gin, ncclTeamTagRail tag, uint32_t index,
                    cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, gin, tag, index).sync(coop, order, fence);
}
template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGin gin, ncclTeamTagWorld tag, uint32_t index,
                    cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, gin, tag, index).sync(coop, order, fence);
}
template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGinAllContexts all, ncclTeam team, ncclGinBarrierHandle handle,
                    uint32_t index, cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, all, team, handle, index).sync(coop, order, fence);
}
template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGinAllContexts all, ncclTeamTagRail tag, uint32_t index,
                    cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, all, tag, index).sync(coop, order, fence);
}
template <typename Coop>
void ncclGinBarrier(Coop coop, ncclGinAllContexts all, ncclTeamTagWorld tag, uint32_t index,
                    cuda::memory_order order = cuda::memory_order_acq_rel,
                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclGinBarrierSession<Coop>(coop, all, tag, index).sync(coop, order, fence);
}

// SPDX-License-Identifier: Apache-2.0
// Barrier that uses LSA inside a team and GIN between teams.
#pragma once

#include "gin_barrier.h"
#include "lsa_barrier.h"

#include <algorithm>
#include <new>
#include <utility>

namespace gimlet::emu::nccl {

// As std::optional, for sessions: neither copied nor moved, and with destructors that may throw.
template <typename T>
class Session {
  public:
    Session() = default;
    ~Session() noexcept(false) {
        if (present_) get()->~T();
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    template <typename... Args>
    void emplace(Args&&... args) {
        ::new (static_cast<void*>(bytes_)) T(std::forward<Args>(args)...);
        present_ = true;
    }
    explicit operator bool() const { return present_; }
    T* operator->() { return get(); }
    T& operator*() { return *get(); }

  private:
    T* get() { return std::launder(reinterpret_cast<T*>(bytes_)); }
    alignas(T) unsigned char bytes_[sizeof(T)];
    bool present_ = false;
};

}  // namespace gimlet::emu::nccl

/// Resources come from barrierCount (the hybrid* handles of ncclDevComm). With the world tag and a
/// Put fence on a full mesh, the world GIN barrier runs alone over all ranks.
template <typename Coop>
struct ncclBarrierSession {
    ncclBarrierSession(Coop coop_, ncclTeam innerTeam, ncclTeam outerTeam, ncclGin gin,
                       ncclLsaBarrierHandle innerBarHandle, ncclGinBarrierHandle outerBarHandle,
                       uint32_t index, bool multimem = false, ncclMultimemHandle innerMmHandle = {})
        : coop(coop_) {
        inner_.emplace(coop_, gin.comm, innerTeam, innerBarHandle, index, multimem, innerMmHandle);
        rail_.emplace(coop_, gin, outerTeam, outerBarHandle, index);
    }
    ncclBarrierSession(Coop coop_, ncclTeamTagWorld, ncclGin gin, uint32_t index,
                       bool multimem = false)
        : coop(coop_), railed_(gin.comm.ginContextsRailed) {
        const ncclDevComm& comm = gin.comm;
        inner_.emplace(coop_, comm, ncclTeamLsa(comm), comm.hybridLsaBarrier, index, multimem,
                       comm.lsaMultimem);
        rail_.emplace(coop_, gin, ncclTeamRail(comm), comm.hybridRailGinBarrier, index);
        world_.emplace(coop_, gin, ncclTeamWorld(comm), comm.hybridWorldGinBarrier, index);
    }
    ncclBarrierSession(Coop coop_, ncclTeamTagLsa, const ncclDevComm& comm, uint32_t index,
                       bool multimem = false)
        : coop(coop_) {
        inner_.emplace(coop_, comm, ncclTeamLsa(comm), comm.hybridLsaBarrier, index, multimem,
                       comm.lsaMultimem);
    }
    ncclBarrierSession(Coop coop_, ncclTeamTagRail, ncclGin gin, uint32_t index) : coop(coop_) {
        rail_.emplace(coop_, gin, ncclTeamRail(gin.comm), gin.comm.hybridRailGinBarrier, index);
    }
    ncclBarrierSession(const ncclBarrierSession&) = delete;
    ncclBarrierSession& operator=(const ncclBarrierSession&) = delete;

    ncclLsaBarrierSession<Coop>& lsaBarrier() { return *inner_; }
    ncclGinBarrierSession<Coop>& ginBarrier() { return *rail_; }

    void sync(Coop, cuda::memory_order order,
              ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
        if (world_alone(fence)) {
            world_->sync(coop, order, fence);
            return;
        }
        if (inner_) inner_->sync(coop, inner_order(order));
        if (rail_) rail_->sync(coop, outer_order(order), fence);
    }
    ncclResult_t sync(Coop, cuda::memory_order order, ncclGinFenceLevel fence,
                      uint64_t timeoutCycles) {
        if (world_alone(fence)) return world_->sync(coop, order, fence, timeoutCycles);
        ncclResult_t inner = ncclSuccess, outer = ncclSuccess;
        if (inner_) {
            const uint64_t start = gimlet::emu::nccl::cycles();
            inner = inner_->sync(coop, inner_order(order), timeoutCycles);
            timeoutCycles -= std::min(gimlet::emu::nccl::cycles() - start, timeoutCycles);
        }
        // Entered after a timeout too: other threads of the coop may not have timed out.
        if (rail_) outer = rail_->sync(coop, outer_order(order), fence, timeoutCycles);
        return inner != ncclSuccess ? inner : outer;
    }

  private:
    bool world_alone(ncclGinFenceLevel fence) const {
        return static_cast<bool>(world_) && !railed_ &&
               (fence & ncclGinFenceLevel::Put) != ncclGinFenceLevel::None;
    }
    cuda::memory_order inner_order(cuda::memory_order order) const {
        return rail_ ? nccl::utility::releaseOrderOf(order) : order;
    }
    cuda::memory_order outer_order(cuda::memory_order order) const {
        return inner_ ? nccl::utility::acquireOrderOf(order) : order;
    }

    Coop coop;
    bool railed_ = false;
    gimlet::emu::nccl::Session<ncclLsaBarrierSession<Coop>> inner_;
    gimlet::emu::nccl::Session<ncclGinBarrierSession<Coop>> rail_;
    gimlet::emu::nccl::Session<ncclGinBarrierSession<Coop>> world_;
};

template <typename Coop>
void ncclBarrier(Coop coop, ncclTeamTagWorld tag, ncclGin gin, uint32_t index,
                 cuda::memory_order order = cuda::memory_order_acq_rel,
                 ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get,
                 bool multimem = false) {
    ncclBarrierSession<Coop>(coop, tag, gin, index, multimem).sync(coop, order, fence);
}
template <typename Coop>
void ncclBarrier(Coop coop, ncclTeamTagRail tag, ncclGin gin, uint32_t index,
                 cuda::memory_order order = cuda::memory_order_acq_rel,
                 ncclGinFenceLevel fence = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get) {
    ncclBarrierSession<Coop>(coop, tag, gin, index).sync(coop, order, fence);
}

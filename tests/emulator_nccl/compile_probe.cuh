// SPDX-License-Identifier: Apache-2.0
// Every call form of the device API that the emulator offers, so that one file can be compiled
// against NCCL's headers with nvcc and against the emulator's. Never launched.
#pragma once

#include <cuda_runtime.h>
#include <nccl_device.h>

template <typename Coop>
__device__ inline void probe_gin_calls(Coop coop, const ncclGin& gin, ncclWindow_t w,
                                       uint64_t* out) {
    const ncclTeam team = ncclTeamWorld(gin.comm);
    const ncclSymPtr<float> a(w, 64), b(w, 128);
    const uint32_t flags = ncclGinOptFlagsAggregateRequests | ncclGinOptFlagsMaySkipCreditCheck;
    gin.put(team, 0, w, 0, w, 8, 16);
    gin.put(team, 0, w, 0, w, 8, 16, ncclGin_StrongSignalInc{0}, ncclGin_WeakCounterInc{0}, coop);
    gin.put(team, 0, w, 0, w, 8, 16, ncclGin_WeakSignalAdd{0, 2}, ncclGin_CounterInc{0}, coop,
            ncclGin_None{}, cuda::thread_scope_system, cuda::thread_scope_system, flags,
            ncclGin_SegmentDevice{});
    gin.put(team, 0, a + 4, b - 4, 16, ncclGin_WeakVASignalInc{w, 8});
    gin.put(team, 0, a, b, 16, ncclGin_StrongVASignalAdd{w, 8, 3}, ncclGin_None{}, coop);
    gin.putValue(team, 0, w, 8, 1.0f);
    gin.putValue(team, 0, w, 8, uint64_t(7), ncclGin_SignalInc{1}, coop, ncclGin_None{},
                 cuda::thread_scope_thread, cuda::thread_scope_device, flags);
    gin.putValue(team, 0, a, 2.0f, ncclGin_SignalAdd{1, 2});
    gin.signal(team, 0, ncclGin_WeakSignalInc{1});
    gin.signal(team, 0, ncclGin_StrongSignalAdd{1, 2}, coop);
    gin.signal(team, 0, ncclGin_VASignalInc{w, 8}, coop, ncclGin_None{}, cuda::thread_scope_thread,
               cuda::thread_scope_device, flags);
    gin.signal(team, 0, ncclGin_VASignalAdd{w, 8, 1});
    gin.signal(team, 0, ncclGin_StrongVASignalInc{w, 8});
    gin.signal(team, 0, ncclGin_WeakVASignalAdd{w, 8, 1});
    gin.get(team, 0, w, 0, w, 8, 16);
    gin.get(team, 0, w, 0, w, 8, 16, coop, ncclGin_None{}, flags);
    gin.flush(coop);
    gin.flush(coop, cuda::memory_order_relaxed);
    ncclGinRequest_t request;
    gin.flushAsync(team, 0, &request);
    gin.flushAsync(team, 0, &request, coop, ncclGinOptFlagsDefault);
    gin.wait(request);
    gin.wait(request, coop, ncclGin_None{}, cuda::memory_order_acquire);
    out[0] = gin.readCounter(0) + gin.readCounter(0, 56, cuda::memory_order_relaxed);
    gin.waitCounter(coop, 0, 1);
    out[1] = gin.readSignal(0) + gin.readSignal(0, 32, cuda::memory_order_relaxed) +
             gin.readSignal(w, 8);
    gin.waitSignal(coop, 0, 1);
    gin.waitSignal(coop, 0, 1, 32, cuda::memory_order_acquire);
    gin.waitSignal(coop, w, size_t(8), 1);
    gin.waitSignalMeetShadow(coop, 0);
    uint32_t before, delta;
    gin.waitSignalFollowShadow(coop, 0, 1u, &before, &delta);
    out[2] = *gin.getSignalShadowPtr(0) + before + delta;
    gin.increaseSignalShadow(0, 4);
    gin.resetCounter(0);
    gin.resetSignal(0);
    gin.resetSignal(w, 8);
}

template <typename Coop>
__device__ inline void probe_barriers(Coop coop, const ncclDevComm& comm, const ncclGin& gin) {
    const auto order = cuda::memory_order_acq_rel;
    const auto both = ncclGinFenceLevel::Put | ncclGinFenceLevel::Get;
    {
        ncclLsaBarrierSession<Coop> lsa(coop, comm, ncclTeamTagLsa(), 0);
        lsa.arrive(coop, order);
        lsa.wait(coop, order);
        lsa.sync(coop, order);
        if (lsa.sync(coop, order, 1000) != ncclSuccess) return;
        if (lsa.wait(coop, order, 1000) == ncclTimeout) return;
    }
    ncclLsaBarrierSession<Coop> lsa(coop, comm, ncclTeamLsa(comm), comm.lsaBarrier, 1, false);
    ncclGinBarrierSession<Coop> world(coop, gin, ncclTeamTagWorld(), 0);
    world.sync(coop, order);
    world.sync(coop, order, ncclGinFenceLevel::None);
    if (world.sync(coop, order, both, 1000) != ncclSuccess) return;
    ncclGinBarrierSession<Coop> rail(coop, ncclGinAllContexts(comm), ncclTeamTagRail(), 0);
    ncclGinBarrierSession<Coop> custom(coop, gin, ncclTeamWorld(comm), comm.worldGinBarrier, 0);
    ncclGinBarrier(coop, gin, ncclTeamTagWorld(), 0);
    ncclGinBarrier(coop, ncclGinAllContexts(comm), ncclTeamTagRail(), 0, order, Put);
    ncclBarrierSession<Coop> hybrid(coop, ncclTeamTagWorld(), gin, 0);
    hybrid.sync(coop, order);
    hybrid.sync(coop, order, Get | Put);
    if (hybrid.sync(coop, order, None, 1000) != ncclSuccess) return;
    hybrid.lsaBarrier().sync(coop, order);
    hybrid.ginBarrier().sync(coop, order);
    ncclBarrierSession<Coop> team(coop, ncclTeamTagLsa(), comm, 0);
    ncclBarrierSession<Coop> rails(coop, ncclTeamTagRail(), gin, 0);
    ncclBarrierSession<Coop> full(coop, ncclTeamLsa(comm), ncclTeamRail(comm), gin,
                                  comm.hybridLsaBarrier, comm.hybridRailGinBarrier, 0);
    ncclBarrier(coop, ncclTeamTagWorld(), gin, 0);
    ncclBarrier(coop, ncclTeamTagRail(), gin, 0, order, Relaxed);
}

__device__ inline void probe_pointers(const ncclDevComm& comm, ncclWindow_t w, void** out) {
    out[0] = ncclGetLocalPointer(w, 0);
    out[1] = ncclGetLsaPointer(w, 0, 1);
    out[2] = ncclGetPeerPointer(w, 0, 1);
    out[3] = ncclGetPeerPointer(w, 0, ncclTeamLsa(comm), 1);
    out[4] = ncclGetResourceBufferLocalPointer(comm, comm.lsaBarrier.bufHandle);
    out[5] = ncclGetResourceBufferLsaPointer(comm, 1, 0);
    out[6] = ncclGetResourceBufferPeerPointer(comm, 1, ncclTeamLsa(comm), 0);
    const ncclSymPtr<char> buffer = ncclGetResourceBuffer(comm, 1);
    ncclSymPtr<int> ints = buffer;
    ints += 3;
    ints -= 1u;
    out[7] = ints.localPtr();
    out[8] = ints.lsaPtr(1);
    out[9] = ints.peerPtr(1);
    out[10] = ints.peerPtr(ncclTeamWorld(comm), 1);
    out[11] = ncclFindWindow(ncclCoopWarp(), comm, out[0]);
    out[12] =
        reinterpret_cast<void*>(ncclGetResourceBufferOffset(3) + static_cast<size_t>(ints - ints));
}

__global__ void probe_kernel(ncclDevComm comm, ncclWindow_t w, uint64_t* out, void** pointers) {
    const ncclGin gin(comm, 0, NCCL_GIN_RESOURCE_SHARING_CTA);
    probe_pointers(comm, w, pointers);
    probe_gin_calls(ncclCoopThread(), gin, w, out);
    probe_gin_calls(ncclCoopWarp(), gin, w, out);
    probe_gin_calls(ncclCoopTile<4>(), gin, w, out);
    probe_gin_calls(ncclCoopLanes(0xffu), gin, w, out);
    probe_gin_calls(ncclCoopWarpSpan(0, 2, 3), gin, w, out);
    probe_gin_calls(ncclCoopCta(), gin, w, out);
    probe_barriers(ncclCoopCta(), comm, gin);
    probe_barriers(ncclCoopWarp(), comm, gin);
    ncclCoopAny any = ncclCoopCta();
    any.sync();
    gin.flush(any);
    out[3] = ncclCoopBcast(ncclCoopCta(), out[0], 0) + ncclCoopBcast(ncclCoopCoalesced(), 1u, 0) +
             ncclCoopGetLaneMask(ncclCoopWarp());
    alignas(ncclGin_C) char space[sizeof(ncclGin_C)];
    ncclGin_C* net = reinterpret_cast<ncclGin_C*>(space);
    ncclGin_C_init(net, NCCL_GIN_BACKEND_MASK_ALL, comm, 0);
    ncclGinPut(net, ncclTeamWorld(comm), 0, w, 0, w, 0, 8, true, 0, ncclGinSignalInc, 1, false, 0,
               any, false, nullptr, cuda::thread_scope_thread, cuda::thread_scope_device);
    ncclGinSignal_v2(net, ncclTeamWorld(comm), 0, true, 0, ncclGinSignalAdd, 1, any, false, nullptr,
                     cuda::thread_scope_thread, cuda::thread_scope_device, 0);
    ncclGinGet(net, ncclTeamWorld(comm), 0, w, 0, w, 8, 8, any, false, nullptr, 0);
    ncclGinFlush(net, any, cuda::memory_order_acquire);
    out[4] = ncclGinReadSignal(net, 0, 64, cuda::memory_order_acquire) +
             *ncclGinGetSignalShadowPtr(net, 0);
}

// SPDX-License-Identifier: Apache-2.0
// Plain-function form of GIN for generated code. Signals are indexed and always weak here, as in
// NCCL.
#pragma once

#include "gin.h"

struct ncclGin_C {
    const ncclDevComm& comm;
    uint32_t nConnections : 8, connectionId : 8, _ginBackend : 8;
    uint32_t contextId;
    ncclGinResourceSharingMode resourceSharingMode;
    void* _ginHandle;
    uint64_t* _signalShadows;
    unsigned backendMask;

    ncclGin_C(const ncclDevComm& comm_, unsigned backendMask_, int contextIndex,
              ncclGinResourceSharingMode mode = NCCL_GIN_RESOURCE_SHARING_GPU)
        : comm(comm_),
          nConnections(comm_.ginConnectionCount),
          connectionId(0),
          _ginBackend(comm_.ginNetDeviceTypes[0]),
          contextId(static_cast<uint32_t>(contextIndex)),
          resourceSharingMode(mode),
          _ginHandle(comm_.ginHandles[0]),
          _signalShadows(comm_.ginSignalShadows +
                         static_cast<ptrdiff_t>(contextIndex) * comm_.ginSignalCount),
          backendMask(backendMask_) {}

    ncclGin gin() const { return ncclGin(comm, static_cast<int>(contextId), resourceSharingMode); }
};

namespace gimlet::emu::nccl {

inline GinPort port_of(const ncclGin_C* net) {
    return {&net->comm, net->contextId, static_cast<uint8_t>(net->resourceSharingMode)};
}
inline SignalSpec weak_signal(bool wanted, ncclGinSignal_t id, ncclGinSignalOp_t op, uint64_t arg) {
    if (!wanted) return {};
    const bool add = op == ncclGinSignalAdd;
    return indexed(false, add, id, add ? arg : 1);
}

}  // namespace gimlet::emu::nccl

inline void ncclGin_C_init(ncclGin_C* net, unsigned backendMask, const ncclDevComm& comm,
                           int contextIndex) {
    ::new (static_cast<void*>(net)) ncclGin_C(comm, backendMask, contextIndex);
}
inline void ncclGin_C_initWithResourceSharingMode(ncclGin_C* net, unsigned backendMask,
                                                  const ncclDevComm& comm, int contextIndex,
                                                  ncclGinResourceSharingMode mode) {
    ::new (static_cast<void*>(net)) ncclGin_C(comm, backendMask, contextIndex, mode);
}

inline void ncclGinPut_v2(ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin,
                          size_t dstOffset, ncclWindow_t srcWin, size_t srcOffset, size_t bytes,
                          bool isSignal, ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                          uint64_t signalOpArg, bool isCounter, ncclGinCounter_t counterId,
                          ncclCoopAny coop, bool, ncclGinDescriptorSmem*, cuda::thread_scope,
                          cuda::thread_scope, uint32_t optFlags) {
    coop.sync();
    if (coop.thread_rank() == 0) {
        gimlet::emu::nccl::PutSpec put;
        put.dst_window = dstWin;
        put.dst_offset = dstOffset;
        put.src_window = srcWin;
        put.src_offset = srcOffset;
        put.bytes = bytes;
        put.signal = gimlet::emu::nccl::weak_signal(isSignal, signalId, signalOp, signalOpArg);
        put.has_counter = isCounter;
        put.counter = counterId;
        put.opt_flags = optFlags;
        gimlet::emu::nccl::gin_put(gimlet::emu::nccl::port_of(net), team, peer, put);
    }
    coop.sync();
}

inline void ncclGinPut(ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin,
                       size_t dstOffset, ncclWindow_t srcWin, size_t srcOffset, size_t bytes,
                       bool isSignal, ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                       uint64_t signalOpArg, bool isCounter, ncclGinCounter_t counterId,
                       ncclCoopAny coop, bool isDescriptor, ncclGinDescriptorSmem* descriptor,
                       cuda::thread_scope givenRelease, cuda::thread_scope requiredRelease) {
    ncclGinPut_v2(net, team, peer, dstWin, dstOffset, srcWin, srcOffset, bytes, isSignal, signalId,
                  signalOp, signalOpArg, isCounter, counterId, coop, isDescriptor, descriptor,
                  givenRelease, requiredRelease, ncclGinOptFlagsDefault);
}

inline void ncclGinSignal_v2(ncclGin_C* net, ncclTeam team, int peer, bool isSignal,
                             ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                             uint64_t signalOpArg, ncclCoopAny coop, bool, ncclGinDescriptorSmem*,
                             cuda::thread_scope, cuda::thread_scope, uint32_t optFlags) {
    coop.sync();
    if (coop.thread_rank() == 0) {
        gimlet::emu::nccl::gin_signal(
            gimlet::emu::nccl::port_of(net), team, peer,
            gimlet::emu::nccl::weak_signal(isSignal, signalId, signalOp, signalOpArg), optFlags);
    }
    coop.sync();
}

inline void ncclGinSignal(ncclGin_C* net, ncclTeam team, int peer, bool isSignal,
                          ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                          uint64_t signalOpArg, ncclCoopAny coop, bool isDescriptor,
                          ncclGinDescriptorSmem* descriptor, cuda::thread_scope givenRelease,
                          cuda::thread_scope requiredRelease) {
    ncclGinSignal_v2(net, team, peer, isSignal, signalId, signalOp, signalOpArg, coop, isDescriptor,
                     descriptor, givenRelease, requiredRelease, ncclGinOptFlagsDefault);
}

/// A size other than 1, 2 and 4 means 8.
inline void ncclGinPutValue_v2(ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin,
                               size_t dstOffset, uint64_t value, size_t size, bool isSignal,
                               ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                               uint64_t signalOpArg, ncclCoopAny coop, bool, ncclGinDescriptorSmem*,
                               cuda::thread_scope, cuda::thread_scope, uint32_t optFlags) {
    coop.sync();
    if (coop.thread_rank() == 0) {
        gimlet::emu::nccl::PutSpec put;
        put.dst_window = dstWin;
        put.dst_offset = dstOffset;
        put.bytes = size == 1 || size == 2 || size == 4 ? size : 8;
        put.has_value = true;
        put.value = value;
        put.signal = gimlet::emu::nccl::weak_signal(isSignal, signalId, signalOp, signalOpArg);
        put.opt_flags = optFlags;
        gimlet::emu::nccl::gin_put(gimlet::emu::nccl::port_of(net), team, peer, put);
    }
    coop.sync();
}

inline void ncclGinPutValue(ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t dstWin,
                            size_t dstOffset, uint64_t value, size_t size, bool isSignal,
                            ncclGinSignal_t signalId, ncclGinSignalOp_t signalOp,
                            uint64_t signalOpArg, ncclCoopAny coop, bool isDescriptor,
                            ncclGinDescriptorSmem* descriptor, cuda::thread_scope givenRelease,
                            cuda::thread_scope requiredRelease) {
    ncclGinPutValue_v2(net, team, peer, dstWin, dstOffset, value, size, isSignal, signalId,
                       signalOp, signalOpArg, coop, isDescriptor, descriptor, givenRelease,
                       requiredRelease, ncclGinOptFlagsDefault);
}

inline void ncclGinGet(ncclGin_C* net, ncclTeam team, int peer, ncclWindow_t remoteWnd,
                       size_t remoteOffset, ncclWindow_t localWnd, size_t localOffset, size_t bytes,
                       ncclCoopAny coop, bool, ncclGinDescriptorSmem*, uint32_t optFlags) {
    net->gin().get(team, peer, remoteWnd, remoteOffset, localWnd, localOffset, bytes, coop,
                   ncclGin_None{}, optFlags);
}
inline void ncclGinFlush(ncclGin_C* net, ncclCoopAny coop, cuda::memory_order ord) {
    net->gin().flush(coop, ord);
}
inline uint64_t ncclGinReadCounter(ncclGin_C* net, ncclGinCounter_t counter, int bits,
                                   cuda::memory_order ord) {
    return net->gin().readCounter(counter, bits, ord);
}
inline void ncclGinWaitCounter(ncclGin_C* net, ncclCoopAny coop, ncclGinCounter_t counter,
                               uint64_t least, int bits, cuda::memory_order ord) {
    net->gin().waitCounter(coop, counter, least, bits, ord);
}
inline uint64_t ncclGinReadSignal(ncclGin_C* net, ncclGinSignal_t signal, int bits,
                                  cuda::memory_order ord) {
    return net->gin().readSignal(signal, bits, ord);
}
inline void ncclGinWaitSignal(ncclGin_C* net, ncclCoopAny coop, ncclGinSignal_t signal,
                              uint64_t least, int bits, cuda::memory_order ord) {
    net->gin().waitSignal(coop, signal, least, bits, ord);
}
inline void ncclGinResetCounter(ncclGin_C* net, ncclGinCounter_t counter) {
    net->gin().resetCounter(counter);
}
inline void ncclGinResetSignal(ncclGin_C* net, ncclGinSignal_t signal) {
    net->gin().resetSignal(signal);
}
inline uint64_t* ncclGinGetSignalShadowPtr(ncclGin_C* net, ncclGinSignal_t signal) {
    return net->gin().getSignalShadowPtr(signal);
}

// SPDX-License-Identifier: Apache-2.0
// GPU-initiated networking: put, putValue, signal, get, flush, waits. What is promised and what is
// not: host/emulator/NCCL.md.
#pragma once

#include "core.h"
#include "ptr.h"

#include <cstring>

#ifndef NCCL_GIN_PROXY_ENABLE
#define NCCL_GIN_PROXY_ENABLE 1
#endif
#ifndef NCCL_GIN_GPI_ENABLE
#define NCCL_GIN_GPI_ENABLE 1
#endif
#ifndef NCCL_GIN_GDAKI_ENABLE
#define NCCL_GIN_GDAKI_ENABLE 1
#endif
#define NCCL_GIN_BACKEND_MASK_ALL                                     \
    ((NCCL_GIN_PROXY_ENABLE ? 1u << NCCL_NET_DEVICE_GIN_PROXY : 0u) | \
     (NCCL_GIN_GDAKI_ENABLE ? 1u << NCCL_NET_DEVICE_GIN_GDAKI : 0u) | \
     (NCCL_GIN_GPI_ENABLE ? 1u << NCCL_NET_DEVICE_GIN_GPI : 0u))

enum ncclGinOptFlags {
    ncclGinOptFlagsDefault = 0,
    ncclGinOptFlagsMaySkipCreditCheck = 1,
    ncclGinOptFlagsAggregateRequests = 2,
};

/// Who may use the context at the same time as this ncclGin object. A property of the object.
enum ncclGinResourceSharingMode : uint8_t {
    NCCL_GIN_RESOURCE_SHARING_GPU = 0,
    NCCL_GIN_RESOURCE_SHARING_CTA = 1,
    NCCL_GIN_RESOURCE_SHARING_THREAD = 2,
};

struct ncclGinDescriptorSmem {
    alignas(16) char space[64];
};

// Completion actions. Strong: all earlier puts and signals to that peer on that context are settled
// when it is visible. Weak: only its own put is. Unmarked: what ginStrongSignalsRequired said at
// creation.
struct ncclGin_None {};
struct ncclGin_SignalInc {
    ncclGinSignal_t signal;
};
struct ncclGin_StrongSignalInc {
    ncclGinSignal_t signal;
};
struct ncclGin_WeakSignalInc {
    ncclGinSignal_t signal;
};
struct ncclGin_SignalAdd {
    ncclGinSignal_t signal;
    uint64_t value;
};
struct ncclGin_StrongSignalAdd {
    ncclGinSignal_t signal;
    uint64_t value;
};
struct ncclGin_WeakSignalAdd {
    ncclGinSignal_t signal;
    uint64_t value;
};
struct ncclGin_VASignalInc {
    ncclWindow_t signalWindow;
    size_t signalOffset;
};
struct ncclGin_StrongVASignalInc {
    ncclWindow_t signalWindow;
    size_t signalOffset;
};
struct ncclGin_WeakVASignalInc {
    ncclWindow_t signalWindow;
    size_t signalOffset;
};
struct ncclGin_VASignalAdd {
    ncclWindow_t signalWindow;
    size_t signalOffset;
    uint64_t value;
};
struct ncclGin_StrongVASignalAdd {
    ncclWindow_t signalWindow;
    size_t signalOffset;
    uint64_t value;
};
struct ncclGin_WeakVASignalAdd {
    ncclWindow_t signalWindow;
    size_t signalOffset;
    uint64_t value;
};
struct ncclGin_CounterInc {
    ncclGinCounter_t counter;
};
struct ncclGin_WeakCounterInc {
    ncclGinCounter_t counter;
};
/// Space in shared memory for building a descriptor; accepted and not used here.
struct ncclGin_DescriptorSmem {
    ncclGinDescriptorSmem* descriptor;
};
struct ncclGin_SegmentDevice {};
struct ncclGin_SegmentMixed {};
struct ncclGin_SegmentHostNuma {};

namespace gimlet::emu::nccl {

constexpr SignalSpec signal_of(bool, ncclGin_None) {
    return {};
}

constexpr SignalSpec indexed(bool strong, bool add, uint32_t id, uint64_t value) {
    return {SignalKind::indexed, strong, add, id, nullptr, 0, value};
}
constexpr SignalSpec signal_of(bool legacy, ncclGin_SignalInc a) {
    return indexed(legacy, false, a.signal, 1);
}
constexpr SignalSpec signal_of(bool, ncclGin_StrongSignalInc a) {
    return indexed(true, false, a.signal, 1);
}
constexpr SignalSpec signal_of(bool, ncclGin_WeakSignalInc a) {
    return indexed(false, false, a.signal, 1);
}
constexpr SignalSpec signal_of(bool legacy, ncclGin_SignalAdd a) {
    return indexed(legacy, true, a.signal, a.value);
}
constexpr SignalSpec signal_of(bool, ncclGin_StrongSignalAdd a) {
    return indexed(true, true, a.signal, a.value);
}
constexpr SignalSpec signal_of(bool, ncclGin_WeakSignalAdd a) {
    return indexed(false, true, a.signal, a.value);
}

template <typename Action>
constexpr SignalSpec by_address(bool strong, bool add, const Action& a, uint64_t value) {
    return {SignalKind::address, strong, add, 0, a.signalWindow, a.signalOffset, value};
}
constexpr SignalSpec signal_of(bool legacy, ncclGin_VASignalInc a) {
    return by_address(legacy, false, a, 1);
}
constexpr SignalSpec signal_of(bool, ncclGin_StrongVASignalInc a) {
    return by_address(true, false, a, 1);
}
constexpr SignalSpec signal_of(bool, ncclGin_WeakVASignalInc a) {
    return by_address(false, false, a, 1);
}
constexpr SignalSpec signal_of(bool legacy, ncclGin_VASignalAdd a) {
    return by_address(legacy, true, a, a.value);
}
constexpr SignalSpec signal_of(bool, ncclGin_StrongVASignalAdd a) {
    return by_address(true, true, a, a.value);
}
constexpr SignalSpec signal_of(bool, ncclGin_WeakVASignalAdd a) {
    return by_address(false, true, a, a.value);
}

inline void set_counter(PutSpec&, ncclGin_None) {}
inline void set_counter(PutSpec& put, ncclGin_CounterInc a) {
    put.has_counter = true;
    put.counter = a.counter;
}
inline void set_counter(PutSpec& put, ncclGin_WeakCounterInc a) {
    put.has_counter = true;
    put.counter = a.counter;
}

// Only the tags that the API names are descriptors; anything else must not compile.
inline void check_descriptor(ncclGin_None) {}
inline void check_descriptor(ncclGin_DescriptorSmem) {}
inline void check_segment(ncclGin_SegmentDevice) {}
inline void check_segment(ncclGin_SegmentMixed) {}
inline void check_segment(ncclGin_SegmentHostNuma) {}

}  // namespace gimlet::emu::nccl

/// One context of a device communicator, as used by one thread. Keeps a reference to the
/// ncclDevComm.
template <unsigned backendMask>
struct ncclGin_BackendMask {
    const ncclDevComm& comm;
    uint32_t nConnections : 8, connectionId : 8, _ginBackend : 8;
    uint32_t contextId;
    ncclGinResourceSharingMode resourceSharingMode;

    ncclGin_BackendMask(const ncclDevComm& comm_, int contextIndex,
                        ncclGinResourceSharingMode mode = NCCL_GIN_RESOURCE_SHARING_GPU)
        : comm(comm_),
          nConnections(comm_.ginConnectionCount),
          connectionId(0),
          _ginBackend(comm_.ginNetDeviceTypes[0]),
          contextId(static_cast<uint32_t>(contextIndex)),
          resourceSharingMode(mode),
          _ginHandle(comm_.ginHandles[0]),
          _signalShadows(comm_.ginSignalShadows +
                         static_cast<ptrdiff_t>(contextIndex) * comm_.ginSignalCount) {}

    /// Writes bytes from the local copy of srcWnd to the peer's copy of dstWnd.
    template <typename RemoteAction = ncclGin_None, typename LocalAction = ncclGin_None,
              typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
              typename SegmentType = ncclGin_SegmentDevice>
    void put(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset, ncclWindow_t srcWnd,
             size_t srcOffset, size_t bytes, RemoteAction remoteAction = ncclGin_None{},
             LocalAction localAction = ncclGin_None{}, Coop coop = ncclCoopThread{},
             DescriptorSmem descriptor = ncclGin_None{},
             cuda::thread_scope givenRelease = cuda::thread_scope_thread,
             cuda::thread_scope requiredRelease = cuda::thread_scope_device,
             uint32_t optFlags = ncclGinOptFlagsDefault,
             SegmentType bufType = ncclGin_SegmentDevice{}) const {
        (void)givenRelease, (void)requiredRelease;
        gimlet::emu::nccl::check_descriptor(descriptor);
        gimlet::emu::nccl::check_segment(bufType);
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::PutSpec spec;
            spec.dst_window = dstWnd;
            spec.dst_offset = dstOffset;
            spec.src_window = srcWnd;
            spec.src_offset = srcOffset;
            spec.bytes = bytes;
            finish_put(team, peer, spec, remoteAction, localAction, optFlags);
        }
        coop.sync();
    }

    template <typename T, typename RemoteAction = ncclGin_None, typename LocalAction = ncclGin_None,
              typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
              typename SegmentType = ncclGin_SegmentDevice>
    void put(ncclTeam team, int peer, ncclSymPtr<T> dstElts, ncclSymPtr<T> srcElts, size_t nElts,
             RemoteAction remoteAction = ncclGin_None{}, LocalAction localAction = ncclGin_None{},
             Coop coop = ncclCoopThread{}, DescriptorSmem descriptor = ncclGin_None{},
             cuda::thread_scope givenRelease = cuda::thread_scope_thread,
             cuda::thread_scope requiredRelease = cuda::thread_scope_device,
             uint32_t optFlags = ncclGinOptFlagsDefault,
             SegmentType bufType = ncclGin_SegmentDevice{}) const {
        put(team, peer, dstElts.window, dstElts.offset, srcElts.window, srcElts.offset,
            nElts * sizeof(T), remoteAction, localAction, coop, descriptor, givenRelease,
            requiredRelease, optFlags, bufType);
    }

    /// Writes a value of at most 8 bytes; no source buffer is involved.
    template <typename T, typename RemoteAction = ncclGin_None, typename Coop = ncclCoopThread,
              typename DescriptorSmem = ncclGin_None>
    void putValue(ncclTeam team, int peer, ncclWindow_t dstWnd, size_t dstOffset, T value,
                  RemoteAction remoteAction = ncclGin_None{}, Coop coop = ncclCoopThread{},
                  DescriptorSmem descriptor = ncclGin_None{},
                  cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                  cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                  uint32_t optFlags = ncclGinOptFlagsDefault) const {
        static_assert(sizeof(T) <= 8, "putValue carries at most 8 bytes");
        (void)givenRelease, (void)requiredRelease;
        gimlet::emu::nccl::check_descriptor(descriptor);
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::PutSpec spec;
            spec.dst_window = dstWnd;
            spec.dst_offset = dstOffset;
            spec.bytes = sizeof(T);
            spec.has_value = true;
            std::memcpy(&spec.value, &value, sizeof(T));
            finish_put(team, peer, spec, remoteAction, ncclGin_None{}, optFlags);
        }
        coop.sync();
    }

    template <typename T, typename RemoteAction = ncclGin_None, typename Coop = ncclCoopThread,
              typename DescriptorSmem = ncclGin_None>
    void putValue(ncclTeam team, int peer, ncclSymPtr<T> dst, T value,
                  RemoteAction remoteAction = ncclGin_None{}, Coop coop = ncclCoopThread{},
                  DescriptorSmem descriptor = ncclGin_None{},
                  cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                  cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                  uint32_t optFlags = ncclGinOptFlagsDefault) const {
        putValue(team, peer, dst.window, dst.offset, value, remoteAction, coop, descriptor,
                 givenRelease, requiredRelease, optFlags);
    }

    /// A signal without data.
    template <typename RemoteAction, typename Coop = ncclCoopThread,
              typename DescriptorSmem = ncclGin_None>
    void signal(ncclTeam team, int peer, RemoteAction remoteAction, Coop coop = ncclCoopThread(),
                DescriptorSmem descriptor = ncclGin_None{},
                cuda::thread_scope givenRelease = cuda::thread_scope_thread,
                cuda::thread_scope requiredRelease = cuda::thread_scope_device,
                uint32_t optFlags = ncclGinOptFlagsDefault) const {
        (void)givenRelease, (void)requiredRelease;
        gimlet::emu::nccl::check_descriptor(descriptor);
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_signal(
                port(), team, peer,
                gimlet::emu::nccl::signal_of(comm.ginStrongLegacySignals, remoteAction), optFlags);
        }
        coop.sync();
    }

    /// Reads from the peer. The data is there after a flush or a wait that covers it.
    template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None,
              typename SegmentType = ncclGin_SegmentDevice>
    void get(ncclTeam team, int peer, ncclWindow_t remoteWnd, size_t remoteOffset,
             ncclWindow_t localWnd, size_t localOffset, size_t bytes, Coop coop = ncclCoopThread{},
             DescriptorSmem descriptor = ncclGin_None{}, uint32_t optFlags = ncclGinOptFlagsDefault,
             SegmentType bufType = ncclGin_SegmentDevice{}) const {
        gimlet::emu::nccl::check_descriptor(descriptor);
        gimlet::emu::nccl::check_segment(bufType);
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_get(port(), team, peer, remoteWnd, remoteOffset, localWnd,
                                       localOffset, bytes, optFlags);
        }
        coop.sync();
    }

    /// Earlier operations of this context are locally complete: sources reusable, gets filled.
    /// Nothing is said about arrival. Rings no doorbell for aggregated puts. The coop's threads
    /// share the peers.
    template <typename Coop, typename DescriptorSmem = ncclGin_None>
    void flush(Coop coop, cuda::memory_order ord = cuda::memory_order_acquire,
               DescriptorSmem descriptor = ncclGin_None{}) const {
        (void)ord;
        gimlet::emu::nccl::check_descriptor(descriptor);
        coop.sync();
        const int peers = gimlet::emu::nccl::gin_flush_peers(port());
        for (int peer = coop.thread_rank(); peer < peers; peer += coop.size()) {
            gimlet::emu::nccl::gin_flush_peer(port(), peer);
        }
        coop.sync();
    }

    /// Notes what has been issued to one peer; wait() then does what flush does, for that peer.
    template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None>
    void flushAsync(ncclTeam team, uint32_t peer, ncclGinRequest_t* outRequest,
                    Coop coop = ncclCoopThread{}, uint32_t optFlags = ncclGinOptFlagsDefault,
                    DescriptorSmem descriptor = ncclGin_None{}) const {
        (void)optFlags;
        gimlet::emu::nccl::check_descriptor(descriptor);
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_flush_async(port(), team, static_cast<int>(peer),
                                               outRequest->opaque);
        }
        coop.sync();
    }

    template <typename Coop = ncclCoopThread, typename DescriptorSmem = ncclGin_None>
    void wait(ncclGinRequest_t& request, Coop coop = ncclCoopThread{},
              DescriptorSmem descriptor = ncclGin_None{},
              cuda::memory_order ord = cuda::memory_order_acquire) const {
        (void)ord;
        gimlet::emu::nccl::check_descriptor(descriptor);
        coop.sync();
        if (coop.thread_rank() == 0) gimlet::emu::nccl::gin_wait(port(), request.opaque);
        coop.sync();
    }

    // Compares are rolling on `bits` bits; counters have at most 56.

    uint64_t readCounter(ncclGinCounter_t counter, int bits = 56,
                         cuda::memory_order ord = cuda::memory_order_acquire) const {
        return gimlet::emu::nccl::gin_read_counter(port(), counter, bits, ord);
    }
    template <typename Coop>
    void waitCounter(Coop coop, ncclGinCounter_t counter, uint64_t least, int bits = 56,
                     cuda::memory_order ord = cuda::memory_order_acquire) const {
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_wait_counter(port(), counter, least, bits, ord);
        }
        coop.sync();
    }

    /// This rank's own word beside the signal. Plain memory.
    uint64_t* getSignalShadowPtr(ncclGinSignal_t signal) const {
        return gimlet::emu::nccl::gin_shadow(port(), signal);
    }
    void increaseSignalShadow(ncclGinSignal_t signal, uint64_t delta) const {
        __atomic_fetch_add(getSignalShadowPtr(signal), delta, __ATOMIC_RELAXED);
        gimlet::emu::nccl::store_point();
    }

    uint64_t readSignal(ncclGinSignal_t signal, int bits = 64,
                        cuda::memory_order ord = cuda::memory_order_acquire) const {
        return gimlet::emu::nccl::gin_read_signal(port(), signal, bits, ord);
    }
    uint64_t readSignal(ncclWindow_t signalWindow, size_t signalOffset, int bits = 64,
                        cuda::memory_order ord = cuda::memory_order_acquire) const {
        return gimlet::emu::nccl::gin_read_signal(port(), signalWindow, signalOffset, bits, ord);
    }
    template <typename Coop>
    void waitSignal(Coop coop, ncclGinSignal_t signal, uint64_t least, int bits = 64,
                    cuda::memory_order ord = cuda::memory_order_acquire) const {
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_wait_signal(port(), signal, least, bits, ord);
        }
        coop.sync();
    }
    template <typename Coop>
    void waitSignal(Coop coop, ncclWindow_t signalWindow, size_t signalOffset, uint64_t least,
                    int bits = 64, cuda::memory_order ord = cuda::memory_order_acquire) const {
        coop.sync();
        if (coop.thread_rank() == 0) {
            gimlet::emu::nccl::gin_wait_signal(port(), signalWindow, signalOffset, least, bits,
                                               ord);
        }
        coop.sync();
    }
    template <typename Coop>
    void waitSignalMeetShadow(Coop coop, ncclGinSignal_t signal, int bits = 64,
                              cuda::memory_order ord = cuda::memory_order_acquire) const {
        coop.sync();
        if (coop.thread_rank() == 0) {
            const uint64_t least = *getSignalShadowPtr(signal);
            gimlet::emu::nccl::gin_wait_signal(port(), signal, least, bits, ord);
        }
        coop.sync();
    }
    /// Waits until the signal is leastDelta past its shadow, then moves the shadow up. With a coop
    /// wider than a warp, slow threads may read the shadow after it moved, as in NCCL: use thread
    /// 0's result.
    template <typename Coop, typename Uint>
    void waitSignalFollowShadow(Coop coop, ncclGinSignal_t signal, Uint leastDelta, Uint* before,
                                Uint* delta, int bits = 64,
                                cuda::memory_order ord = cuda::memory_order_acquire) const {
        coop.sync();
        uint64_t* shadow = getSignalShadowPtr(signal);
        // Lanes of a warp read the shadow together; slow warps may read it after thread 0 has moved
        // it.
        const bool together = ncclCoopWithinWarp(coop);
        if (!together) gimlet::emu::nccl::poll_point();
        uint64_t old_value = !together || coop.thread_rank() == 0 ? *shadow : 0;
        uint64_t new_value = 0;
        if (coop.thread_rank() == 0) {
            new_value = gimlet::emu::nccl::gin_wait_signal(port(), signal, old_value + leastDelta,
                                                           bits, ord);
            *shadow = new_value;
        }
        if (together) old_value = ncclCoopBcast(coop, old_value, 0, /*entrySync=*/false);
        new_value = ncclCoopBcast(coop, new_value, 0, /*entrySync=*/false);
        const uint64_t mask = ~uint64_t{0} >> (64 - bits);
        *before = static_cast<Uint>(old_value & mask);
        *delta = static_cast<Uint>((new_value - old_value) & mask);
    }

    /// Reset: nothing may be in flight to the counter or signal, nobody may be reading it.
    void resetCounter(ncclGinCounter_t counter) const {
        gimlet::emu::nccl::gin_reset_counter(port(), counter);
    }
    void resetSignal(ncclGinSignal_t signal) const {
        gimlet::emu::nccl::gin_reset_signal(port(), signal);
        *getSignalShadowPtr(signal) = 0;
    }
    void resetSignal(ncclWindow_t signalWindow, size_t signalOffset) const {
        gimlet::emu::nccl::gin_reset_signal(port(), signalWindow, signalOffset);
    }

    void* _ginHandle;
    uint64_t* _signalShadows;

  private:
    gimlet::emu::nccl::GinPort port() const {
        return {&comm, contextId, static_cast<uint8_t>(resourceSharingMode)};
    }

    template <typename RemoteAction, typename LocalAction>
    void finish_put(ncclTeam team, int peer, gimlet::emu::nccl::PutSpec& spec, RemoteAction remote,
                    LocalAction local, uint32_t opt_flags) const {
        spec.signal = gimlet::emu::nccl::signal_of(comm.ginStrongLegacySignals, remote);
        gimlet::emu::nccl::set_counter(spec, local);
        spec.opt_flags = opt_flags;
        gimlet::emu::nccl::gin_put(port(), team, peer, spec);
    }
};

template <ncclNetDeviceType backend>
using ncclGin_BackendOne = ncclGin_BackendMask<(1u << static_cast<int>(backend))>;

using ncclGin = ncclGin_BackendMask<NCCL_GIN_BACKEND_MASK_ALL>;

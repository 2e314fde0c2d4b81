// SPDX-License-Identifier: Apache-2.0
// Typed address in symmetric memory: a window and a byte offset. Arithmetic counts elements.
#pragma once

#include "core.h"

template <typename T>
struct ncclSymPtr {
    using ElementType = T;
    ncclWindow_t window;
    size_t offset;

    constexpr ncclSymPtr(ncclWindow_t window = nullptr, size_t offset = 0)
        : window(window), offset(offset) {}

    template <typename U>
    operator ncclSymPtr<U>() const {
        return {window, offset};
    }

    template <typename Int>
    ncclSymPtr& operator+=(Int count) {
        offset += static_cast<size_t>(count) * sizeof(T);
        return *this;
    }
    template <typename Int>
    ncclSymPtr& operator-=(Int count) {
        offset -= static_cast<size_t>(count) * sizeof(T);
        return *this;
    }

    T* localPtr() const { return static_cast<T*>(ncclGetLocalPointer(window, offset)); }
    T* lsaPtr(int peer) const { return static_cast<T*>(ncclGetLsaPointer(window, offset, peer)); }
    T* peerPtr(int peer) const { return static_cast<T*>(ncclGetPeerPointer(window, offset, peer)); }
    T* peerPtr(ncclTeam team, int peer) const {
        return static_cast<T*>(ncclGetPeerPointer(window, offset, team, peer));
    }
    T* multimemPtr(ncclMultimemHandle mm) const {
        return static_cast<T*>(ncclGetMultimemPointer(window, offset, mm));
    }
    T* lsaMultimemPtr(const ncclDevComm& comm) const {
        return static_cast<T*>(ncclGetLsaMultimemPointer(window, offset, comm));
    }
};

template <typename T, typename Int>
ncclSymPtr<T> operator+(ncclSymPtr<T> p, Int count) {
    return p += count;
}
template <typename T, typename Int>
ncclSymPtr<T> operator-(ncclSymPtr<T> p, Int count) {
    return p -= count;
}
template <typename T>
ptrdiff_t operator-(ncclSymPtr<T> a, ncclSymPtr<T> b) {
    return static_cast<ptrdiff_t>(a.offset - b.offset) / static_cast<ptrdiff_t>(sizeof(T));
}
template <typename T>
bool operator==(ncclSymPtr<T> a, ncclSymPtr<T> b) {
    return a.window == b.window && a.offset == b.offset;
}
template <typename T>
bool operator!=(ncclSymPtr<T> a, ncclSymPtr<T> b) {
    return !(a == b);
}

/// A resource buffer as a symmetric address.
inline ncclSymPtr<char> ncclGetResourceBuffer(const ncclDevComm& comm, ncclDevResourceHandle h) {
    return {comm.resourceWindow, ncclGetResourceBufferOffset(h)};
}

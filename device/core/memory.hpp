// SPDX-License-Identifier: Apache-2.0
//
// Ordered memory access. Every word that two threads share is touched through these functions only.
//
// T is a 32- or 64-bit integer, signed or unsigned, naturally aligned. Prefer a release store or
// add and an acquire load to a fence: one instruction says what is meant, and race detection
// understands it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/core/memory_scope.hpp"
#include "device/core/mutation.hpp"
#include "device/core/platform.hpp"
#if GIMLET_EMULATED
#include "device/core/emulated_memory.hpp"
#else
#include "device/core/ptx_memory.cuh"
#endif

namespace gimlet::device {

namespace detail {

template <class T>
struct WordOf {
    static_assert(std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8),
                  "ordered access is for 32- and 64-bit integers");
    using type = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
};
template <class T>
using Word = typename WordOf<T>::type;

template <class T>
GIMLET_DEVICE const Word<T>* word(const T* address) {
    return reinterpret_cast<const Word<T>*>(address);
}
template <class T>
GIMLET_DEVICE Word<T>* word(T* address) {
    return reinterpret_cast<Word<T>*>(address);
}

}  // namespace detail

/// A poll whose value is all that is wanted: it orders nothing else.
template <Scope S, class T>
GIMLET_DEVICE T load_relaxed(const T* address) {
    return static_cast<T>(machine::load<Order::relaxed, S>(detail::word(address)));
}

/// If it reads what a release wrote, whatever came before that release is visible to what follows.
template <Scope S, class T>
GIMLET_DEVICE T load_acquire(const T* address) {
    return static_cast<T>(machine::load<Order::acquire, S>(detail::word(address)));
}

template <Scope S, class T>
GIMLET_DEVICE void store_relaxed(T* address, std::type_identity_t<T> value) {
    machine::store<Order::relaxed, S>(detail::word(address), static_cast<detail::Word<T>>(value));
}

/// Publishes everything that this thread wrote, and everything it has seen through barriers and
/// acquires.
template <Scope S, class T>
GIMLET_DEVICE void store_release(T* address, std::type_identity_t<T> value) {
    machine::store<Order::release, S>(detail::word(address), static_cast<detail::Word<T>>(value));
}

/// The fetch_add functions return the value before the addition; they wrap.
template <Scope S, class T>
GIMLET_DEVICE T fetch_add_relaxed(T* address, std::type_identity_t<T> value) {
    return static_cast<T>(machine::fetch_add<Order::relaxed, S>(
        detail::word(address), static_cast<detail::Word<T>>(value)));
}

template <Scope S, class T>
GIMLET_DEVICE T fetch_add_release(T* address, std::type_identity_t<T> value) {
    return static_cast<T>(machine::fetch_add<Order::release, S>(
        detail::word(address), static_cast<detail::Word<T>>(value)));
}

template <Scope S, class T>
GIMLET_DEVICE T fetch_add_acq_rel(T* address, std::type_identity_t<T> value) {
    return static_cast<T>(machine::fetch_add<Order::acq_rel, S>(
        detail::word(address), static_cast<detail::Word<T>>(value)));
}

/// Adds without asking for the old value, which spares the round trip.
template <Scope S, class T>
GIMLET_DEVICE void add_relaxed(T* address, std::type_identity_t<T> value) {
    machine::add<Order::relaxed, S>(detail::word(address), static_cast<detail::Word<T>>(value));
}

template <Scope S, class T>
GIMLET_DEVICE void add_release(T* address, std::type_identity_t<T> value) {
    machine::add<Order::release, S>(detail::word(address), static_cast<detail::Word<T>>(value));
}

/// Adds one, or goes from `limit` (or above) to zero; returns the value before. The caller that
/// gets `limit` is the last of limit + 1 arrivals and sees what the others wrote before theirs; the
/// counter is ready for the next round.
template <Scope S>
GIMLET_DEVICE std::uint32_t fetch_inc_wrap_acq_rel(std::uint32_t* address, std::uint32_t limit) {
    return machine::fetch_inc_wrap<S>(address, limit);
}

/// Stores `desired` if the word equals `expected`; returns the value before.
template <Scope S, class T>
GIMLET_DEVICE T compare_exchange_acq_rel(T* address, std::type_identity_t<T> expected,
                                         std::type_identity_t<T> desired) {
    return static_cast<T>(machine::compare_exchange<S>(detail::word(address),
                                                       static_cast<detail::Word<T>>(expected),
                                                       static_cast<detail::Word<T>>(desired)));
}

template <Scope S>
GIMLET_DEVICE void fence_acq_rel() {
    machine::fence<S>();
}

/// Between ordinary accesses and bulk copies, in both directions and for all memory: after an
/// acquire and before a bulk load of what it made visible; after ordinary stores and before a bulk
/// copy that reads or overwrites them.
GIMLET_DEVICE void fence_proxy_async() {
    if (!mutated(Mutant::proxy_fence_dropped)) machine::fence_proxy_async();
}

/// The same for this block's shared memory only: after writing a slot with ordinary stores, before
/// its bulk store.
GIMLET_DEVICE void fence_proxy_async_shared() {
    machine::fence_proxy_async_shared();
}

/// 16 bytes, the unit of vector access.
struct alignas(16) Vec16 {
    std::uint32_t w[4];
};

/// Ordinary load of global memory that is read once and does not deserve L1. The data must have
/// been made visible by an acquire or a barrier; this is no load through the read-only cache.
GIMLET_DEVICE Vec16 load_stream(const Vec16* address) {
    Vec16 value;
    machine::load_stream(address, value.w);
    return value;
}

/// Ordinary load, global or shared.
GIMLET_DEVICE Vec16 load_vec(const Vec16* address) {
    return *address;
}

/// Ordinary store, global or shared.
GIMLET_DEVICE void store_vec(Vec16* address, Vec16 value) {
    *address = value;
}

/// Ordinary store to global memory that this GPU will not read soon.
GIMLET_DEVICE void store_stream(Vec16* address, Vec16 value) {
    machine::store_stream(address, value.w);
}

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
//
// Memory instructions of the GPU. Used through memory.hpp and clock.hpp only.
//
// All statements are volatile and clobber memory: the compiler keeps them in program order with one
// another and with every other access. Scopes wider than the block address global memory (device,
// peer or host-mapped).
#pragma once

#include <cstdint>

#include "device/core/memory_scope.hpp"

namespace gimlet::device::machine {

template <Scope S>
struct ScopeText;
template <>
struct ScopeText<Scope::block> {
    static constexpr char value[] = "cta";
    static constexpr char space[] = "";
};
template <>
struct ScopeText<Scope::gpu> {
    static constexpr char value[] = "gpu";
    static constexpr char space[] = ".global";
};
template <>
struct ScopeText<Scope::system> {
    static constexpr char value[] = "sys";
    static constexpr char space[] = ".global";
};

template <Order O>
struct OrderText;
template <>
struct OrderText<Order::relaxed> {
    static constexpr char value[] = "relaxed";
};
template <>
struct OrderText<Order::acquire> {
    static constexpr char value[] = "acquire";
};
template <>
struct OrderText<Order::release> {
    static constexpr char value[] = "release";
};
template <>
struct OrderText<Order::acq_rel> {
    static constexpr char value[] = "acq_rel";
};

template <Order O, Scope S>
__device__ __forceinline__ std::uint32_t load(const std::uint32_t* address) {
    std::uint32_t value;
    asm volatile("ld.%2.%3%4.u32 %0, [%1];"
                 : "=r"(value)
                 : "l"(address), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return value;
}

template <Order O, Scope S>
__device__ __forceinline__ std::uint64_t load(const std::uint64_t* address) {
    std::uint64_t value;
    asm volatile("ld.%2.%3%4.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(address), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return value;
}

template <Order O, Scope S>
__device__ __forceinline__ void store(std::uint32_t* address, std::uint32_t value) {
    asm volatile("st.%2.%3%4.u32 [%0], %1;"
                 :
                 : "l"(address), "r"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
}

template <Order O, Scope S>
__device__ __forceinline__ void store(std::uint64_t* address, std::uint64_t value) {
    asm volatile("st.%2.%3%4.u64 [%0], %1;"
                 :
                 : "l"(address), "l"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
}

template <Order O, Scope S>
__device__ __forceinline__ std::uint32_t fetch_add(std::uint32_t* address, std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.%3.%4%5.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return before;
}

template <Order O, Scope S>
__device__ __forceinline__ std::uint64_t fetch_add(std::uint64_t* address, std::uint64_t value) {
    std::uint64_t before;
    asm volatile("atom.%3.%4%5.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(address), "l"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return before;
}

template <Order O, Scope S>
__device__ __forceinline__ void add(std::uint32_t* address, std::uint32_t value) {
    asm volatile("red.%2.%3%4.add.u32 [%0], %1;"
                 :
                 : "l"(address), "r"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
}

template <Order O, Scope S>
__device__ __forceinline__ void add(std::uint64_t* address, std::uint64_t value) {
    asm volatile("red.%2.%3%4.add.u64 [%0], %1;"
                 :
                 : "l"(address), "l"(value), "C"(OrderText<O>::value), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
}

template <Scope S>
__device__ __forceinline__ std::uint32_t fetch_inc_wrap(std::uint32_t* address,
                                                        std::uint32_t limit) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.%3%4.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(address), "r"(limit), "C"(ScopeText<S>::value), "C"(ScopeText<S>::space)
                 : "memory");
    return before;
}

template <Scope S>
__device__ __forceinline__ std::uint32_t compare_exchange(std::uint32_t* address,
                                                          std::uint32_t expected,
                                                          std::uint32_t desired) {
    std::uint32_t before;
    asm volatile("atom.acq_rel.%4%5.cas.b32 %0, [%1], %2, %3;"
                 : "=r"(before)
                 : "l"(address), "r"(expected), "r"(desired), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return before;
}

template <Scope S>
__device__ __forceinline__ std::uint64_t compare_exchange(std::uint64_t* address,
                                                          std::uint64_t expected,
                                                          std::uint64_t desired) {
    std::uint64_t before;
    asm volatile("atom.acq_rel.%4%5.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(before)
                 : "l"(address), "l"(expected), "l"(desired), "C"(ScopeText<S>::value),
                   "C"(ScopeText<S>::space)
                 : "memory");
    return before;
}

template <Scope S>
__device__ __forceinline__ void fence() {
    asm volatile("fence.acq_rel.%0;" : : "C"(ScopeText<S>::value) : "memory");
}

__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async;" : : : "memory");
}

__device__ __forceinline__ void fence_proxy_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

__device__ __forceinline__ void load_stream(const void* address, std::uint32_t (&words)[4]) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(address)
                 : "memory");
}

__device__ __forceinline__ void store_stream(void* address, const std::uint32_t (&words)[4]) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

__device__ __forceinline__ std::uint64_t read_globaltimer() {
    std::uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value) : : "memory");
    return value;
}

}  // namespace gimlet::device::machine

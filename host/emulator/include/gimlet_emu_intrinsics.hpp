// SPDX-License-Identifier: Apache-2.0
//
// What device code sees of CUDA on the emulator. Plain loads and stores are plain; atomics and
// volatile-like loads are points where other threads may run.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gimlet_emu_device.hpp"
#include "gimlet_emu_thread.hpp"
#include "vector_types.h"

#define __host__
#define __device__
#define __global__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#ifndef __restrict__
#define __restrict__ __restrict
#endif

// A static __shared__ variable of plain type. The scheduler swaps the section when it changes
// blocks. For `extern __shared__ T name[];` write GIMLET_EMU_DYNAMIC_SHARED(T, name) instead, and
// in templates and inline functions, where a section is not possible, use dynamic shared memory.
#define __shared__ static __attribute__((section("gimlet_shared")))
#define GIMLET_EMU_DYNAMIC_SHARED(type, name) \
    type* const name = static_cast<type*>(::gimlet::emu::dev::dynamic_shared())

inline constexpr int warpSize = 32;

namespace gimlet::emu::dev {

template <class T>
uint64_t to_word(T value) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>,
                  "warp operations carry up to 8 bytes");
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof(T));
    return word;
}

template <class T>
T from_word(uint64_t word) {
    T value;
    std::memcpy(&value, &word, sizeof(T));
    return value;
}

/// A lane that did not take part has no value; what is read from it is this.
inline constexpr uint64_t kAbsentLane = 0x7f7f7f7f7f7f7f7full;

template <class T>
T value_of_lane(const WarpValues& met, uint32_t lane) {
    return from_word<T>((met.present >> lane & 1u) != 0 ? met.values[lane] : kAbsentLane);
}

template <class T, class Combine>
T reduce_lanes(uint32_t mask, T value, Combine combine) {
    const WarpValues met = warp_meet(mask, WarpOp::reduce, to_word(value));
    T result = value;
    bool first = true;
    for (uint32_t left = met.present; left != 0; left &= left - 1) {
        const T next = from_word<T>(met.values[std::countr_zero(left)]);
        result = first ? next : combine(result, next);
        first = false;
    }
    return result;
}

inline bool is_width(int width) {
    return width > 0 && width <= 32 && (width & (width - 1)) == 0;
}

}  // namespace gimlet::emu::dev

// ---- block and warp

inline void __syncthreads() {
    gimlet::emu::dev::block_sync(gimlet::emu::dev::BlockReduce::none, 0);
}
inline int __syncthreads_or(int predicate) {
    return gimlet::emu::dev::block_sync(gimlet::emu::dev::BlockReduce::any, predicate);
}
inline int __syncthreads_and(int predicate) {
    return gimlet::emu::dev::block_sync(gimlet::emu::dev::BlockReduce::all, predicate);
}
inline int __syncthreads_count(int predicate) {
    return gimlet::emu::dev::block_sync(gimlet::emu::dev::BlockReduce::count, predicate);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    gimlet::emu::dev::warp_meet(mask, gimlet::emu::dev::WarpOp::sync, 0);
}

/// A fully diverged warp is a legal execution: each lane is alone.
inline unsigned __activemask() {
    return 1u << gimlet::emu::dev::lane_index();
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    namespace dev = gimlet::emu::dev;
    if (!dev::is_width(width)) dev::trap("__shfl_sync: width is not a power of two in [1, 32]");
    const auto met = dev::warp_meet(mask, dev::WarpOp::shuffle, dev::to_word(value));
    const uint32_t base = dev::lane_index() & ~static_cast<uint32_t>(width - 1);
    return dev::value_of_lane<T>(met, base + (static_cast<uint32_t>(source) & (width - 1)));
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    namespace dev = gimlet::emu::dev;
    if (!dev::is_width(width)) dev::trap("__shfl_up_sync: width is not a power of two in [1, 32]");
    const auto met = dev::warp_meet(mask, dev::WarpOp::shuffle, dev::to_word(value));
    const uint32_t lane = dev::lane_index();
    const uint32_t position = lane & static_cast<uint32_t>(width - 1);
    return position < delta ? value : dev::value_of_lane<T>(met, lane - delta);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    namespace dev = gimlet::emu::dev;
    if (!dev::is_width(width))
        dev::trap("__shfl_down_sync: width is not a power of two in [1, 32]");
    const auto met = dev::warp_meet(mask, dev::WarpOp::shuffle, dev::to_word(value));
    const uint32_t lane = dev::lane_index();
    const uint32_t position = lane & static_cast<uint32_t>(width - 1);
    return delta >= width - position ? value : dev::value_of_lane<T>(met, lane + delta);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    namespace dev = gimlet::emu::dev;
    if (!dev::is_width(width)) dev::trap("__shfl_xor_sync: width is not a power of two in [1, 32]");
    const auto met = dev::warp_meet(mask, dev::WarpOp::shuffle, dev::to_word(value));
    const uint32_t lane = dev::lane_index();
    const uint32_t other = lane ^ static_cast<uint32_t>(lane_mask);
    const uint32_t segment_end = (lane & ~static_cast<uint32_t>(width - 1)) + width;
    return other >= segment_end ? value : dev::value_of_lane<T>(met, other & 31u);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    namespace dev = gimlet::emu::dev;
    const auto met = dev::warp_meet(mask, dev::WarpOp::vote, predicate != 0);
    unsigned ballot = 0;
    for (uint32_t left = met.present; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        ballot |= static_cast<unsigned>(met.values[lane]) << lane;
    }
    return ballot;
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate == 0) == 0;
}

template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    namespace dev = gimlet::emu::dev;
    const uint64_t word = dev::to_word(value);
    const auto met = dev::warp_meet(mask, dev::WarpOp::match, word);
    unsigned same = 0;
    for (uint32_t left = met.present; left != 0; left &= left - 1) {
        const int lane = std::countr_zero(left);
        same |= static_cast<unsigned>(met.values[lane] == word) << lane;
    }
    return same;
}

template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* all_same) {
    namespace dev = gimlet::emu::dev;
    const uint64_t word = dev::to_word(value);
    const auto met = dev::warp_meet(mask, dev::WarpOp::match, word);
    bool same = true;
    for (uint32_t left = met.present; left != 0; left &= left - 1) {
        same = same && met.values[std::countr_zero(left)] == word;
    }
    *all_same = same;
    return same ? met.present : 0;
}

template <class T>
T __reduce_add_sync(unsigned mask, T value) {
    return gimlet::emu::dev::reduce_lanes(mask, value,
                                          [](T a, T b) { return static_cast<T>(a + b); });
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
    return gimlet::emu::dev::reduce_lanes(mask, value, [](T a, T b) { return b < a ? b : a; });
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
    return gimlet::emu::dev::reduce_lanes(mask, value, [](T a, T b) { return a < b ? b : a; });
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned value) {
    return gimlet::emu::dev::reduce_lanes(mask, value,
                                          [](unsigned a, unsigned b) { return a & b; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
    return gimlet::emu::dev::reduce_lanes(mask, value,
                                          [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned value) {
    return gimlet::emu::dev::reduce_lanes(mask, value,
                                          [](unsigned a, unsigned b) { return a ^ b; });
}

// ---- bits and numbers

inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline int __popcll(unsigned long long x) {
    return std::popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline int __ffsll(long long x) {
    return __builtin_ffsll(x);
}
inline int __clz(int x) {
    return std::countl_zero(static_cast<unsigned>(x));
}
inline int __clzll(long long x) {
    return std::countl_zero(static_cast<unsigned long long>(x));
}
inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
    return reversed;
}
inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
           __brev(static_cast<unsigned>(x >> 32));
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
    return std::bit_cast<float>(x);
}
inline int __float_as_int(float x) {
    return std::bit_cast<int>(x);
}
inline double __longlong_as_double(long long x) {
    return std::bit_cast<double>(x);
}
inline long long __double_as_longlong(double x) {
    return std::bit_cast<long long>(x);
}
inline float __fmaf_rn(float a, float b, float c) {
    return std::fma(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __saturatef(float x) {
    return x < 0.0f ? 0.0f : (x > 1.0f ? 1.0f : x);
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using C = std::common_type_t<A, B>;
    return static_cast<C>(b) < static_cast<C>(a) ? static_cast<C>(b) : static_cast<C>(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using C = std::common_type_t<A, B>;
    return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(b) : static_cast<C>(a);
}

// ---- memory

namespace gimlet::emu::dev {

// CUDA's atomics are relaxed; integers and pointers go through the host's, floating point through
// compare-exchange.
template <class T, class Change>
T atomic_change(T* address, Change change) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                    std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
    static_assert(sizeof(T) == sizeof(Bits));
    Bits* const word = reinterpret_cast<Bits*>(address);
    Bits before = __atomic_load_n(word, __ATOMIC_RELAXED);
    for (;;) {
        const T value = std::bit_cast<T>(before);
        const Bits after = std::bit_cast<Bits>(static_cast<T>(change(value)));
        if (__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
            if (after != before) {
                store_point();
            } else {
                poll_point();
            }
            return value;
        }
    }
}

// The value argument does not take part in deduction, as CUDA's overloads would convert it.
template <class T>
struct Same {
    using type = T;
};

}  // namespace gimlet::emu::dev

#define GIMLET_EMU_ATOMIC(name, expression)                                                        \
    template <class T>                                                                             \
    T name(T* address, typename gimlet::emu::dev::Same<T>::type value) {                           \
        return gimlet::emu::dev::atomic_change(address, [=](T old) -> T { return (expression); }); \
    }                                                                                              \
    template <class T>                                                                             \
    T name##_block(T* address, typename gimlet::emu::dev::Same<T>::type value) {                   \
        return name(address, value);                                                               \
    }                                                                                              \
    template <class T>                                                                             \
    T name##_system(T* address, typename gimlet::emu::dev::Same<T>::type value) {                  \
        return name(address, value);                                                               \
    }

GIMLET_EMU_ATOMIC(atomicAdd, static_cast<T>(old + value))
GIMLET_EMU_ATOMIC(atomicSub, static_cast<T>(old - value))
GIMLET_EMU_ATOMIC(atomicExch, ((void)old, value))
GIMLET_EMU_ATOMIC(atomicMin, value < old ? value : old)
GIMLET_EMU_ATOMIC(atomicMax, old < value ? value : old)
GIMLET_EMU_ATOMIC(atomicAnd, static_cast<T>(old& value))
GIMLET_EMU_ATOMIC(atomicOr, static_cast<T>(old | value))
GIMLET_EMU_ATOMIC(atomicXor, static_cast<T>(old ^ value))
GIMLET_EMU_ATOMIC(atomicInc, old >= value ? T{0} : static_cast<T>(old + 1))
GIMLET_EMU_ATOMIC(atomicDec, old == T{0} || old > value ? value : static_cast<T>(old - 1))
#undef GIMLET_EMU_ATOMIC

template <class T>
T atomicCAS(T* address, typename gimlet::emu::dev::Same<T>::type expected,
            typename gimlet::emu::dev::Same<T>::type desired) {
    return gimlet::emu::dev::atomic_change(address,
                                           [=](T old) { return old == expected ? desired : old; });
}
template <class T>
T atomicCAS_block(T* address, typename gimlet::emu::dev::Same<T>::type expected,
                  typename gimlet::emu::dev::Same<T>::type desired) {
    return atomicCAS(address, expected, desired);
}
template <class T>
T atomicCAS_system(T* address, typename gimlet::emu::dev::Same<T>::type expected,
                   typename gimlet::emu::dev::Same<T>::type desired) {
    return atomicCAS(address, expected, desired);
}

namespace gimlet::emu::dev {

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not know fences; a common word orders them with each other.
inline uint32_t fence_word = 0;
#endif

inline void fence() {
#if defined(__SANITIZE_THREAD__)
    __atomic_fetch_add(&fence_word, 1u, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

}  // namespace gimlet::emu::dev

inline void __threadfence_block() {
    gimlet::emu::dev::fence();
}
inline void __threadfence() {
    gimlet::emu::dev::fence();
}
inline void __threadfence_system() {
    gimlet::emu::dev::fence();
}

template <class T>
T __ldg(const T* address) {
    return *address;
}
template <class T>
T __ldca(const T* address) {
    return *address;
}
template <class T>
T __ldcs(const T* address) {
    return *address;
}
namespace gimlet::emu::dev {

// Loads that see what others store meanwhile: for words a relaxed atomic.
template <class T>
T polled_load(const T* address) {
    poll_point();
    if constexpr (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0) {
        T value;
        __atomic_load(const_cast<T*>(address), &value, __ATOMIC_RELAXED);
        return value;
    } else {
        return *address;
    }
}

}  // namespace gimlet::emu::dev

template <class T>
T __ldcg(const T* address) {
    return gimlet::emu::dev::polled_load(address);
}
template <class T>
T __ldcv(const T* address) {
    return gimlet::emu::dev::polled_load(address);
}
template <class T>
void __stcg(T* address, T value) {
    *address = value;
}
template <class T>
void __stcs(T* address, T value) {
    *address = value;
}
template <class T>
void __stwt(T* address, T value) {
    *address = value;
    gimlet::emu::dev::store_point();
}

// ---- time and ends

inline long long clock64() {
    return static_cast<long long>(gimlet::emu::dev::now_ns());
}
// clock() is the C library's: declaring it again would clash with <time.h>.
inline void __nanosleep(unsigned span_ns) {
    gimlet::emu::dev::sleep_ns(span_ns);
}
[[noreturn]] inline void __trap() {
    gimlet::emu::dev::trap("__trap()");
}
inline std::size_t __cvta_generic_to_shared(const void* address) {
    return reinterpret_cast<std::size_t>(address);
}

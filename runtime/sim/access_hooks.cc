// SPDX-License-Identifier: Apache-2.0
//
// What the compiler calls at each memory access of code that is built with -fsanitize=thread. The
// program is linked without ThreadSanitizer: these functions take its place and tell the
// emulator's watch. Ordered accesses of device code tell the watch themselves (device/core); here
// they are only carried out.
#include <cstddef>
#include <cstdint>

#include "host/emulator/watch.hpp"

using gimlet::emu::note_plain_access;

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define GIMLET_PLAIN(name, bytes, writes)                                       \
    void name(void* address) {                                                  \
        note_plain_access(address, bytes, writes, __builtin_return_address(0)); \
    }
#define GIMLET_PLAIN_PAIR(bytes)                             \
    GIMLET_PLAIN(__tsan_read##bytes, bytes, false)           \
    GIMLET_PLAIN(__tsan_write##bytes, bytes, true)           \
    GIMLET_PLAIN(__tsan_unaligned_read##bytes, bytes, false) \
    GIMLET_PLAIN(__tsan_unaligned_write##bytes, bytes, true) \
    GIMLET_PLAIN(__tsan_volatile_read##bytes, bytes, false)  \
    GIMLET_PLAIN(__tsan_volatile_write##bytes, bytes, true)

GIMLET_PLAIN_PAIR(1)
GIMLET_PLAIN_PAIR(2)
GIMLET_PLAIN_PAIR(4)
GIMLET_PLAIN_PAIR(8)
GIMLET_PLAIN_PAIR(16)

void __tsan_read_range(void* address, std::size_t bytes) {
    note_plain_access(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void* address, std::size_t bytes) {
    note_plain_access(address, bytes, true, __builtin_return_address(0));
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define GIMLET_ATOMIC(bits, type)                                                          \
    type __tsan_atomic##bits##_load(const volatile type* at, int) {                        \
        return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                      \
    }                                                                                      \
    void __tsan_atomic##bits##_store(volatile type* at, type value, int) {                 \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                     \
    }                                                                                      \
    type __tsan_atomic##bits##_exchange(volatile type* at, type value, int) {              \
        return __atomic_exchange_n(at, value, __ATOMIC_SEQ_CST);                           \
    }                                                                                      \
    type __tsan_atomic##bits##_fetch_add(volatile type* at, type value, int) {             \
        return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);                            \
    }                                                                                      \
    type __tsan_atomic##bits##_fetch_sub(volatile type* at, type value, int) {             \
        return __atomic_fetch_sub(at, value, __ATOMIC_SEQ_CST);                            \
    }                                                                                      \
    type __tsan_atomic##bits##_fetch_and(volatile type* at, type value, int) {             \
        return __atomic_fetch_and(at, value, __ATOMIC_SEQ_CST);                            \
    }                                                                                      \
    type __tsan_atomic##bits##_fetch_or(volatile type* at, type value, int) {              \
        return __atomic_fetch_or(at, value, __ATOMIC_SEQ_CST);                             \
    }                                                                                      \
    bool __tsan_atomic##bits##_compare_exchange_strong(volatile type* at, type* expected,  \
                                                       type desired, int, int) {           \
        return __atomic_compare_exchange_n(at, expected, desired, false, __ATOMIC_SEQ_CST, \
                                           __ATOMIC_SEQ_CST);                              \
    }                                                                                      \
    bool __tsan_atomic##bits##_compare_exchange_weak(volatile type* at, type* expected,    \
                                                     type desired, int, int) {             \
        return __atomic_compare_exchange_n(at, expected, desired, true, __ATOMIC_SEQ_CST,  \
                                           __ATOMIC_SEQ_CST);                              \
    }

GIMLET_ATOMIC(8, std::uint8_t)
GIMLET_ATOMIC(16, std::uint16_t)
GIMLET_ATOMIC(32, std::uint32_t)
GIMLET_ATOMIC(64, std::uint64_t)

void __tsan_atomic_thread_fence(int) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
//
// The same instructions on the emulator, for memory.hpp only. Each maps to the host's atomic of the
// same order, so that a race detector sees a missing release or acquire. Scopes cannot be told
// apart on a CPU: a watch (SimOptions::memory) hears of them.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/core/memory_scope.hpp"
#include "host/emulator/include/gimlet_emu_device.hpp"
#include "host/emulator/include/gimlet_emu_watch.hpp"

namespace gimlet::device::machine {

constexpr int host_order(Order order) {
    switch (order) {
        case Order::relaxed: return __ATOMIC_RELAXED;
        case Order::acquire: return __ATOMIC_ACQUIRE;
        case Order::release: return __ATOMIC_RELEASE;
        case Order::acq_rel: return __ATOMIC_ACQ_REL;
    }
    return __ATOMIC_SEQ_CST;
}

template <Order O, Scope S>
constexpr emu::dev::Ordering ordering() {
    return {O == Order::acquire || O == Order::acq_rel, O == Order::release || O == Order::acq_rel,
            static_cast<std::uint8_t>(S)};
}

template <Order O, Scope S, class Word>
inline Word load(const Word* address) {
    emu::dev::poll_point();
    if (emu::dev::watched()) [[unlikely]] {
        return static_cast<Word>(emu::dev::watched_load(address, sizeof(Word), ordering<O, S>()));
    }
    return __atomic_load_n(address, host_order(O));
}

template <Order O, Scope S, class Word>
inline void store(Word* address, Word value) {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_store(address, sizeof(Word), value, ordering<O, S>());
    } else {
        __atomic_store_n(address, value, host_order(O));
    }
    emu::dev::store_point();
}

template <Order O, Scope S, class Word>
inline Word fetch_add(Word* address, Word value) {
    const Word before = __atomic_fetch_add(address, value, host_order(O));
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_update(address, sizeof(Word), before, static_cast<Word>(before + value),
                                 true, ordering<O, S>());
    }
    emu::dev::store_point();
    return before;
}

template <Order O, Scope S, class Word>
inline void add(Word* address, Word value) {
    fetch_add<O, S>(address, value);
}

template <Scope S>
inline std::uint32_t fetch_inc_wrap(std::uint32_t* address, std::uint32_t limit) {
    std::uint32_t before = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(address, &before, before >= limit ? 0u : before + 1u, false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_update(address, 4, before, before >= limit ? 0u : before + 1u, true,
                                 ordering<Order::acq_rel, S>());
    }
    emu::dev::store_point();
    return before;
}

template <Scope S, class Word>
inline Word compare_exchange(Word* address, Word expected, Word desired) {
    const bool stored = __atomic_compare_exchange_n(address, &expected, desired, false,
                                                    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_update(address, sizeof(Word), expected, desired, stored,
                                 ordering<Order::acq_rel, S>());
    }
    if (stored) {
        emu::dev::store_point();
    } else {
        emu::dev::poll_point();
    }
    return expected;
}

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not model fences. A read-modify-write of one word orders fences with each
// other, which is what they are used for; it may hide a race, and never invents one.
inline std::uint32_t fence_word = 0;
#endif

template <Scope S>
inline void fence() {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_fence(ordering<Order::acq_rel, S>());
    }
#if defined(__SANITIZE_THREAD__)
    __atomic_fetch_add(&fence_word, 1u, __ATOMIC_ACQ_REL);
#else
    __atomic_thread_fence(__ATOMIC_ACQ_REL);
#endif
}

// The emulator's bulk engine reads and writes the same memory as everybody else: only a watch knows
// two proxies.
inline void fence_proxy_async() {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_proxy_fence(false);
    }
}
inline void fence_proxy_async_shared() {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_proxy_fence(true);
    }
}

inline void load_stream(const void* address, std::uint32_t (&words)[4]) {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_read(address, sizeof words);
    }
    std::memcpy(words, address, sizeof words);
}

inline void store_stream(void* address, const std::uint32_t (&words)[4]) {
    if (emu::dev::watched()) [[unlikely]] {
        emu::dev::watched_write(address, sizeof words);
    }
    std::memcpy(address, words, sizeof words);
}

}  // namespace gimlet::device::machine

// SPDX-License-Identifier: Apache-2.0
//
// Ordered accesses of device code while somebody watches them (SimOptions::memory). They then say
// their order and scope, and a load may return an older value than memory holds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gimlet::emu {

class Watch;

namespace dev {

/// The running simulation's watch, or null.
extern __attribute__((tls_model("initial-exec"))) __thread Watch* active_watch;

inline bool watched() {
    return active_watch != nullptr;
}

/// Scopes by number: 0 block, 1 gpu, 2 system.
struct Ordering {
    bool acquires;
    bool releases;
    uint8_t scope;
};

/// The value that the load sees; `bytes` is 4 or 8.
uint64_t watched_load(const void* address, uint32_t bytes, Ordering ordering);
/// Stores.
void watched_store(void* address, uint32_t bytes, uint64_t value, Ordering ordering);
/// After a read-modify-write, which always acts on what memory holds. `stored` is false for a
/// compare that failed.
void watched_update(void* address, uint32_t bytes, uint64_t before, uint64_t after, bool stored,
                    Ordering ordering);
void watched_fence(Ordering ordering);
/// fence.proxy.async, for all memory or for this block's shared memory.
void watched_proxy_fence(bool shared_only);
/// Plain accesses through the accessors of device code.
void watched_read(const void* address, uint32_t bytes);
void watched_write(void* address, uint32_t bytes);

}  // namespace dev
}  // namespace gimlet::emu

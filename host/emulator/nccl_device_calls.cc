// SPDX-License-Identifier: Apache-2.0
// What the device headers call outside of GIN: refusals, waits, pointers, barrier bookkeeping.
#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "host/emulator/core.hpp"
#include "host/emulator/fiber.hpp"
#include "host/emulator/include/gimlet_emu_device.hpp"
#include "host/emulator/nccl_world.hpp"

namespace gimlet::emu::nccl {
namespace {

// One address for all fences: ThreadSanitizer does not follow fences, so any two are taken to meet.
char g_fence_tag;

const ncclWindow_vidmem& checked_window(ncclWindow_t window, const char* caller) {
    if (window == nullptr) refuse_use("%s: the window is NULL", caller);
    if (window->magic != kWindowMagic)
        refuse_use("%s: %p is not a window", caller, static_cast<void*>(window));
    if (!window->alive) refuse_use("%s: the window was deregistered", caller);
    Engine::get().note_use(window);
    return *window;
}

DevCommState& state_of(const ncclDevComm& comm, const char* caller) {
    auto* state = static_cast<DevCommState*>(comm.ginHandles[0]);
    if (comm.magic != NCCL_API_MAGIC || state == nullptr || state->magic != kDevCommMagic) {
        refuse_use("%s: not a device communicator of ncclDevCommCreate", caller);
    }
    if (!state->alive) refuse_use("%s: the device communicator was destroyed", caller);
    Engine::get().note_use(state);
    return *state;
}

constexpr size_t kStashBytes = 512;
constexpr int kStashSlots = 16;

struct BlockStash {
    alignas(16) char bytes[kStashSlots][kStashBytes / kStashSlots];
};

}  // namespace

void refuse_use(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    Engine::get().refuse(text);
}

void poll_point() {
    if (current_place() != nullptr) dev::poll_point();
}

void store_point() {
    if (current_place() != nullptr) dev::store_point();
}

void thread_fence(std::memory_order order, int scope) {
    if (dev::watched() && current_place() != nullptr) {
        dev::watched_fence({true, true, static_cast<uint8_t>(2 - std::min(scope, 2))});
    }
    std::atomic_thread_fence(order);
    if (order != std::memory_order_acquire) happens_before(&g_fence_tag);
    if (order != std::memory_order_release) happens_after(&g_fence_tag);
}

void wait_until(const std::function<bool()>& ready, const char* format, ...) {
    const UnseenScope unseen;
    poll_point();
    if (ready()) return;
    char text[160];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    Engine& engine = Engine::get();
    while (!ready()) engine.yield(text);
}

void announce(const void* word, std::memory_order order) {
    Watch* const watching = watch();
    if (watching == nullptr || order == std::memory_order_relaxed) return;
    if (order == std::memory_order_acquire) {
        watching->acquire(word);
    } else {
        watching->release(word);
    }
}

uint64_t cycles() {
    return static_cast<uint64_t>(clock64());
}

void* block_stash(int slot, size_t bytes) {
    const UnseenScope unseen;
    // Blocks of a stopped run are gone; their stashes are reused when the address is.
    static thread_local std::unordered_map<const void*, BlockStash> stashes;
    if (slot < 0 || slot >= kStashSlots || bytes > sizeof(BlockStash::bytes[0]))
        refuse_use("stash slot %d", slot);
    return stashes[dev::thread_context().block].bytes[slot];
}

char* lsa_pointer(ncclWindow_t window, size_t offset, int lsa_peer, const char* caller) {
    const UnseenScope unseen;
    const ncclWindow_vidmem& w = checked_window(window, caller);
    if (lsa_peer < 0 || lsa_peer >= w.lsa_size) {
        refuse_use("%s: peer with LSA index %d of rank %d is outside of its LSA team of %d", caller,
                   lsa_peer, w.rank, w.lsa_size);
    }
    const auto world = static_cast<size_t>(w.rank - w.lsa_rank + lsa_peer);
    if (offset > w.sizes[world]) {
        refuse_use("%s: offset %zu in a window of %zu bytes (world rank %zu)", caller, offset,
                   w.sizes[world], world);
    }
    return w.bases[world] + offset;
}

char* local_pointer(ncclWindow_t window, size_t offset, const char* caller) {
    return lsa_pointer(window, offset, checked_window(window, caller).lsa_rank, caller);
}

int world_to_lsa(ncclWindow_t window, int world) {
    const ncclWindow_vidmem& w = checked_window(window, "ncclGetPeerPointer");
    return w.lsa_rank + (world - w.rank);
}

int lsa_rank(ncclWindow_t window) {
    return checked_window(window, "ncclGetPeerPointer").lsa_rank;
}

ncclWindow_t find_window(const ncclDevComm& comm, const void* ptr) {
    const UnseenScope unseen;
    const char* at = static_cast<const char*>(ptr);
    for (ncclWindow_vidmem* window : state_of(comm, "ncclFindWindow").comm->windows) {
        const char* base = window->bases[window->rank];
        if (at >= base && at < base + window->sizes[window->rank]) return window;
    }
    return nullptr;
}

void lsa_barrier_enter(const ncclDevComm& comm, uint32_t buffer_handle, int barriers,
                       uint32_t index) {
    const UnseenScope unseen;
    DevCommState& state = state_of(comm, "LSA barrier");
    if (index >= static_cast<uint32_t>(barriers)) {
        refuse_use(
            "LSA barrier: index %u of %d (lsaBarrierCount; barrierCount for ncclBarrierSession)",
            index, barriers);
    }
    const ThreadPlace place = *current_place();
    const auto [user, fresh] = state.lsa_barriers.try_emplace({buffer_handle, index}, place);
    if (!fresh) {
        refuse_use(
            "LSA barrier: index %u is used by two coops at once; the other one: kernel %s block %u "
            "thread %u",
            index, user->second.kernel, user->second.block, user->second.thread);
    }
}

void lsa_barrier_leave(const ncclDevComm& comm, uint32_t buffer_handle, uint32_t index) {
    const UnseenScope unseen;
    auto* state = static_cast<DevCommState*>(comm.ginHandles[0]);
    state->lsa_barriers.erase({buffer_handle, index});
}

void gin_barrier_enter(const ncclDevComm& comm, uint32_t signal, int first_context, int count) {
    const UnseenScope unseen;
    DevCommState& state = state_of(comm, "GIN barrier");
    const ThreadPlace place = *current_place();
    for (int i = 0; i < count; ++i) {
        const auto context = static_cast<uint32_t>(first_context + i);
        const auto [user, fresh] = state.gin_barriers.try_emplace({signal, context}, place);
        if (fresh) continue;
        refuse_use(
            "GIN barrier: the one whose first signal is %u is used by two coops at once on context "
            "%u; the other one: kernel %s block %u thread %u",
            signal, context, user->second.kernel, user->second.block, user->second.thread);
    }
}

void gin_barrier_leave(const ncclDevComm& comm, uint32_t signal, int first_context, int count) {
    const UnseenScope unseen;
    auto* state = static_cast<DevCommState*>(comm.ginHandles[0]);
    for (int i = 0; i < count; ++i)
        state->gin_barriers.erase({signal, static_cast<uint32_t>(first_context + i)});
}

}  // namespace gimlet::emu::nccl

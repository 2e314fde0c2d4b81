// SPDX-License-Identifier: Apache-2.0
// Window memory, window registration, host pointer getters.
#include <algorithm>
#include <cstring>

#include "host/emulator/core.hpp"
#include "host/emulator/memory.hpp"
#include "host/emulator/nccl_world.hpp"

namespace gimlet::emu::nccl {
namespace {

Job register_window(ncclComm* comm, void* start, size_t bytes, ncclWindow_t* out, int flags) {
    *out = nullptr;
    World& world = *comm->world;
    const auto memory = world.find_allocation(start, bytes);
    WindowPayload mine = payload_of(memory.get(), start, bytes, flags);
    if (memory == nullptr) {
        mine.status = fail(comm, ncclInvalidArgument,
                           "ncclCommWindowRegister: rank %d: [%p, +%zu) does not lie in one "
                           "allocation of ncclMemAlloc",
                           comm->rank, start, bytes);
    } else if (mine.offset % NCCL_WIN_REQUIRED_ALIGNMENT != 0) {
        mine.status = fail(comm, ncclInvalidArgument,
                           "ncclCommWindowRegister: rank %d: the window starts %llu bytes into its "
                           "allocation, not a "
                           "multiple of %d",
                           comm->rank, static_cast<unsigned long long>(mine.offset),
                           NCCL_WIN_REQUIRED_ALIGNMENT);
    }
    const uint32_t round = ++comm->round;
    comm->rendezvous->publish(comm->rank, round, &mine, sizeof(mine));
    world.engine.progress();
    Job::AllRanks payloads{RoundWait{comm->rendezvous, round, "ncclCommWindowRegister"}};
    ncclResult_t result = co_await payloads;
    if (result != ncclSuccess) co_return result;

    ncclWindow_vidmem* window = world.new_window();
    result = map_window(comm, window, round, "ncclCommWindowRegister");
    // Nobody may free or move on before all have mapped.
    const uint32_t mapped_round = ++comm->round;
    comm->rendezvous->publish(comm->rank, mapped_round, &result, sizeof(result));
    world.engine.progress();
    Job::AllRanks mapped{RoundWait{comm->rendezvous, mapped_round, "ncclCommWindowRegister"}};
    const ncclResult_t waited = co_await mapped;
    if (result == ncclSuccess) result = waited;
    if (result != ncclSuccess) co_return result;
    window->mappings.push_back(memory);
    world.engine.locked([&] { comm->windows.push_back(window); });
    {
        const std::lock_guard lock(world.mutex);
        world.live_windows.insert(window);
    }
    *out = window;
    co_return ncclSuccess;
}

ncclResult_t check_window(ncclWindow_t window, const char* call) {
    World& world = World::get();
    const std::lock_guard lock(world.mutex);
    if (world.live_windows.count(window) != 0) return ncclSuccess;
    return fail(nullptr, ncclInvalidArgument, "%s: not a registered window", call);
}

}  // namespace
}  // namespace gimlet::emu::nccl

using namespace gimlet::emu;
using namespace gimlet::emu::nccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
    if (ptr == nullptr) return fail(nullptr, ncclInvalidArgument, "ncclMemAlloc: ptr is NULL");
    *ptr = nullptr;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
    World& world = World::get();
    const auto memory = size <= kDeviceMemoryBytes ? world.allocate(size) : nullptr;
    if (memory == nullptr) {
        return fail(nullptr, ncclUnhandledCudaError, "ncclMemAlloc: no memory for %zu bytes", size);
    }
    if (world.engine.options().fill_fresh_memory) {
        std::memset(memory->base, static_cast<int>(kPoisonByte), memory->bytes);
    }
    memory->counted = true;
    world.engine.locked([&] {
        world.engine.core().memory->add(memory->base, memory->bytes, device, MemoryKind::device);
    });
    *ptr = memory->base;
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void* ptr) {
    if (ptr == nullptr) return ncclSuccess;
    World& world = World::get();
    std::shared_ptr<WindowMemory> memory;
    // The world's lock before the engine's, as everywhere: who gives up a communicator holds both.
    const std::lock_guard lock(world.mutex);
    const auto found = world.allocations.find(static_cast<const char*>(ptr));
    if (found == world.allocations.end() || !found->second->counted)
        return fail(nullptr, ncclInvalidArgument, "ncclMemFree: %p is not from ncclMemAlloc", ptr);
    memory = found->second;
    world.allocations.erase(found);
    world.engine.locked([&] {
        world.drop_of_the_dead(memory->base, memory->bytes);
        const std::string busy = world.network.find_unfinished(memory->base, memory->bytes);
        if (!busy.empty()) {
            world.engine.refuse("ncclMemFree of memory that a GIN operation in flight uses: " +
                                busy);
        }
        // After an abort, whose kernels may still run into their deadlines, the window is gone and
        // the memory stays until they end.
        for (const ncclWindow_vidmem* window : world.live_windows) {
            if (window->bases[static_cast<std::size_t>(window->rank)] != memory->base) continue;
            const std::string user = world.engine.user_of(window);
            if (!user.empty())
                world.engine.refuse("ncclMemFree of memory that a running kernel uses: " + user);
        }
        world.engine.core().memory->remove(memory->base);
    });
    return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int win_flags) {
    const ncclResult_t checked = check_comm(comm, "ncclCommWindowRegister");
    if (checked != ncclSuccess) return checked;
    if (win == nullptr || buff == nullptr || size == 0) {
        return fail(comm, ncclInvalidArgument, "ncclCommWindowRegister: buff %p, size %zu, win %p",
                    buff, size, static_cast<void*>(win));
    }
    if ((win_flags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) != 0) {
        return fail(comm, ncclInvalidArgument, "ncclCommWindowRegister: unknown flags 0x%x",
                    win_flags);
    }
    *win = nullptr;
    if (!comm->symmetric()) return ncclSuccess;  // as NCCL does: success, and no window
    return comm->world->submit(comm, register_window(comm, buff, size, win, win_flags));
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
    ncclResult_t checked = check_comm(comm, "ncclCommWindowDeregister");
    if (checked != ncclSuccess || win == nullptr) return checked;
    checked = check_window(win, "ncclCommWindowDeregister");
    if (checked != ncclSuccess) return checked;
    World& world = *comm->world;
    if (win->comm != comm) {
        return fail(comm, ncclInvalidArgument,
                    "ncclCommWindowDeregister: the window is of another communicator");
    }
    world.engine.locked([&] {
        world.drop_of_the_dead(win->bases[win->rank], win->sizes[win->rank]);
        const std::string busy =
            world.network.find_unfinished(win->bases[win->rank], win->sizes[win->rank]);
        if (!busy.empty()) {
            world.engine.refuse("ncclCommWindowDeregister with a GIN operation in flight: " + busy);
        }
        const std::string user = world.engine.user_of(win);
        if (!user.empty()) {
            world.engine.refuse("ncclCommWindowDeregister while a kernel uses the window: " + user);
        }
        world.network.forget_uses(win->bases[win->rank], win->sizes[win->rank]);
        win->alive = false;
        win->mappings.clear();
        comm->windows.erase(std::remove(comm->windows.begin(), comm->windows.end(), win),
                            comm->windows.end());
    });
    const std::lock_guard lock(world.mutex);
    world.live_windows.erase(win);
    return ncclSuccess;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** out_user_ptr) {
    ncclResult_t checked = check_comm(comm, "ncclWinGetUserPtr");
    if (checked == ncclSuccess) checked = check_window(win, "ncclWinGetUserPtr");
    if (checked != ncclSuccess || out_user_ptr == nullptr) {
        return checked != ncclSuccess ? checked : ncclInvalidArgument;
    }
    *out_user_ptr = win->user_ptr;
    return ncclSuccess;
}

ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsa_rank,
                                     void** out_ptr) {
    const ncclResult_t checked = check_window(window, "ncclGetLsaDevicePointer");
    if (checked != ncclSuccess) return checked;
    if (out_ptr == nullptr || lsa_rank < 0 || lsa_rank >= window->lsa_size) {
        return fail(window->comm, ncclInvalidArgument, "ncclGetLsaDevicePointer: LSA rank %d of %d",
                    lsa_rank, window->lsa_size);
    }
    const int world_rank = window->rank - window->lsa_rank + lsa_rank;
    if (offset >= window->sizes[world_rank]) {
        return fail(window->comm, ncclInvalidArgument,
                    "ncclGetLsaDevicePointer: offset %zu in a window of %zu bytes", offset,
                    window->sizes[world_rank]);
    }
    *out_ptr = window->bases[world_rank] + offset;
    return ncclSuccess;
}

ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                      void** out_ptr) {
    const ncclResult_t checked = check_window(window, "ncclGetPeerDevicePointer");
    if (checked != ncclSuccess) return checked;
    if (out_ptr == nullptr || peer < 0 || peer >= window->comm->ranks) {
        return fail(window->comm, ncclInvalidArgument, "ncclGetPeerDevicePointer: rank %d of %d",
                    peer, window->comm->ranks);
    }
    const int lsa_rank = peer - (window->rank - window->lsa_rank);
    *out_ptr = nullptr;
    if (lsa_rank < 0 || lsa_rank >= window->lsa_size) return ncclSuccess;
    return ncclGetLsaDevicePointer(window, offset, lsa_rank, out_ptr);
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t, void** out_ptr) {
    const ncclResult_t checked = check_window(window, "ncclGetLsaMultimemDevicePointer");
    if (checked != ncclSuccess || out_ptr == nullptr)
        return checked != ncclSuccess ? checked : ncclInvalidArgument;
    *out_ptr = nullptr;
    return ncclSuccess;
}

ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset, ncclMultimemHandle_t,
                                          void** out_ptr) {
    return ncclGetLsaMultimemDevicePointer(window, offset, out_ptr);
}

}  // extern "C"

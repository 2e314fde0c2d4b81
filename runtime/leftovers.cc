// SPDX-License-Identifier: Apache-2.0
#include "runtime/leftovers.hpp"

#include <mutex>
#include <utility>

#include "host/cuda/check.hpp"
#include "runtime/core.hpp"

namespace gimlet {
namespace {

struct Store {
    std::mutex mutex;
    std::unique_ptr<Leftovers> first;
};

/// Never destroyed: the last destructors of a process may come after those of static objects.
Store& store() noexcept {
    static auto* const only = new Store;
    return *only;
}

bool may_go(const Leftovers& leftovers, const std::string& uuid, const RuntimeCore* settled) {
    const RuntimeCore& core = *leftovers.core;
    if (core.device.uuid != uuid) return false;
    // A Routing is local: no peer's put goes there.
    return &core == settled || !core.communicator->is_open() || leftovers.device_comm == nullptr ||
           leftovers.device_comm->gin_context_count() == 0;
}

/// Those that `wanted` says yes to.
template <typename Wanted>
std::unique_ptr<Leftovers> take(Wanted wanted) {
    std::unique_ptr<Leftovers> taken;
    const std::lock_guard lock(store().mutex);
    std::unique_ptr<Leftovers>* at = &store().first;
    while (*at != nullptr) {
        if (!wanted(**at)) {
            at = &(*at)->next;
            continue;
        }
        std::unique_ptr<Leftovers> one = std::exchange(*at, std::move((*at)->next));
        one->next = std::move(taken);
        taken = std::move(one);
    }
    return taken;
}

}  // namespace

Leftovers::~Leftovers() {
    if (counted) --core->leftover_count;
    if (kept_routing) --core->kept_routing_count;
}

void Routing::Release::operator()(Leftovers* memory) const noexcept {
    std::unique_ptr<Leftovers> owned(memory);
    if (!owned->core->busy()) return;
    owned->kept_routing = true;
    ++owned->core->kept_routing_count;
    keep_leftovers(std::move(owned));
}

void keep_leftovers(std::unique_ptr<Leftovers> leftovers) noexcept {
    const std::lock_guard lock(store().mutex);
    leftovers->next = std::move(store().first);
    store().first = std::move(leftovers);
}

int free_leftovers(const std::string& uuid, const RuntimeCore* settled, int rank) {
    // What is added from now on may be in use.
    std::unique_ptr<Leftovers> mine =
        take([&](const Leftovers& one) { return may_go(one, uuid, settled); });
    if (mine == nullptr) return 0;
    if (const cudaError_t result = cudaDeviceSynchronize(); result != cudaSuccess) {
        while (mine != nullptr) {
            std::unique_ptr<Leftovers> next = std::move(mine->next);
            keep_leftovers(std::exchange(mine, std::move(next)));
        }
        cuda_check(result, "cudaDeviceSynchronize", rank);
    }
    // NCCL first: afterwards the windows only free their memory.
    for (const Leftovers* at = mine.get(); at != nullptr; at = at->next.get())
        at->core->communicator->finish_abort();
    int count = 0;
    while (mine != nullptr) {
        mine = std::move(mine->next);
        ++count;
    }
    return count;
}

void free_idle_leftovers(const RuntimeCore& core) noexcept {
    std::unique_ptr<Leftovers> mine = take([&](const Leftovers& one) {
        return one.core.get() == &core && one.window != nullptr && !one.counted;
    });
    while (mine != nullptr) mine = std::move(mine->next);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "runtime/leftovers.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "runtime/core.hpp"

namespace gimlet {
namespace {

struct Store {
    std::mutex mutex;
    std::unique_ptr<Leftovers> first;
    std::unique_ptr<Leftovers> retired;
};

/// Never destroyed: the last destructors of a process may come after those of static objects.
Store& store() noexcept {
    static auto* const only = new Store;
    return *only;
}

bool may_go(const Leftovers& leftovers, const std::string& uuid, const RuntimeCore* owner) {
    const RuntimeCore& core = *leftovers.core;
    if (core.device.uuid != uuid) return false;
    const bool only_memory = leftovers.kept_routing || !core.communicator->is_open();
    return only_memory || (&core == owner && !leftovers.reachable());
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
    // The counts say what is still there: they come last.
    guard.reset();
    window.reset();
    device_comm.reset();
    tensors = {};
    group_records = {};
    routing = {};
    if (counted) --core->leftover_count;
    if (kept_routing) --core->kept_routing_count;
}

bool Leftovers::reachable() const noexcept {
    return device_comm != nullptr && device_comm->gin_context_count() > 0;
}

void Routing::Release::operator()(Leftovers* memory) const noexcept {
    std::unique_ptr<Leftovers> owned(memory);
    owned->kept_routing = true;
    ++owned->core->kept_routing_count;
    keep_leftovers(std::move(owned));
}

void keep_leftovers(std::unique_ptr<Leftovers> leftovers) noexcept {
    const std::lock_guard lock(store().mutex);
    leftovers->next = std::move(store().first);
    store().first = std::move(leftovers);
}

int free_leftovers(const std::string& uuid, const RuntimeCore* owner, int rank) {
    // What is added from now on may be in use.
    std::unique_ptr<Leftovers> mine =
        take([&](const Leftovers& one) { return may_go(one, uuid, owner); });
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

int free_ownerless_leftovers(int rank) {
    {
        const std::lock_guard lock(store().mutex);
        if (store().first == nullptr) return 0;  // a machine without a device says so elsewhere
    }
    return free_leftovers(query_device_info(current_device(rank), rank).uuid, nullptr, rank);
}

void retire_leftovers() noexcept {
    const std::lock_guard lock(store().mutex);
    while (store().first != nullptr) {
        std::unique_ptr<Leftovers> one = std::move(store().first);
        store().first = std::move(one->next);
        one->next = std::move(store().retired);
        store().retired = std::move(one);
    }
}

std::vector<std::uint64_t> reachable_leftovers(const RuntimeCore& owner) {
    std::vector<std::uint64_t> out;
    const std::lock_guard lock(store().mutex);
    for (const Leftovers* at = store().first.get(); at != nullptr; at = at->next.get()) {
        if (at->core.get() == &owner && at->reachable()) out.push_back(at->exchange_number);
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::unique_ptr<Leftovers> take_leftovers(const RuntimeCore& owner, std::uint64_t exchange_number) {
    return take([&](const Leftovers& one) {
        return one.core.get() == &owner && one.exchange_number == exchange_number;
    });
}

}  // namespace gimlet

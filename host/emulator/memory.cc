// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "host/emulator/core.hpp"

namespace gimlet::emu {

MemoryTable::~MemoryTable() {
    for (const auto& [address, allocation] : owned_) std::free(reinterpret_cast<void*>(address));
}

void* MemoryTable::allocate(size_t bytes, int device, MemoryKind kind) {
    if (bytes > kDeviceMemoryBytes || used_bytes(device) + bytes > kDeviceMemoryBytes)
        return nullptr;
    const size_t alignment = kind == MemoryKind::device ? 512 : 4096;
    const size_t rounded = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
    void* address = std::aligned_alloc(alignment, rounded);
    if (address == nullptr) return nullptr;
    if (poisoned_) {
        std::memset(address, static_cast<int>(kPoisonByte), rounded);
    } else {
        std::memset(address, 0, rounded);
    }
    owned_[reinterpret_cast<uintptr_t>(address)] = {bytes, device, kind};
    add(address, bytes, device, kind);
    return address;
}

bool MemoryTable::release(void* address, MemoryKind kind) {
    const auto found = owned_.find(reinterpret_cast<uintptr_t>(address));
    if (found == owned_.end() || found->second.kind != kind) return false;
    owned_.erase(found);
    remove(address);
    std::free(address);
    return true;
}

void MemoryTable::add(void* address, size_t bytes, int device, MemoryKind kind) {
    all_[reinterpret_cast<uintptr_t>(address)] = {bytes, device, kind};
    current_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, current_bytes_);
}

bool MemoryTable::remove(void* address) {
    const auto found = all_.find(reinterpret_cast<uintptr_t>(address));
    if (found == all_.end()) return false;
    current_bytes_ -= found->second.bytes;
    if (Watch* const watching = watch()) watching->forget_memory(address, found->second.bytes);
    all_.erase(found);
    return true;
}

const Allocation* MemoryTable::find(const void* address, uintptr_t* base) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    auto after = all_.upper_bound(at);
    if (after == all_.begin()) return nullptr;
    --after;
    if (at >= after->first + std::max<size_t>(after->second.bytes, 1)) return nullptr;
    if (base != nullptr) *base = after->first;
    return &after->second;
}

size_t MemoryTable::used_bytes(int device) const {
    size_t used = 0;
    for (const auto& [address, allocation] : all_) {
        if (allocation.device == device && allocation.kind == MemoryKind::device) {
            used += allocation.bytes;
        }
    }
    return used;
}

}  // namespace gimlet::emu

// SPDX-License-Identifier: Apache-2.0
//
// Who owns which memory: device allocations, pinned host memory, and what other modules register.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace gimlet::emu {

enum class MemoryKind : uint8_t { device, pinned_host, registered_host, other };

struct Allocation {
    size_t bytes = 0;
    int device = 0;
    MemoryKind kind = MemoryKind::device;
};

/// Called with the engine stopped.
class MemoryTable {
  public:
    explicit MemoryTable(bool poisoned) : poisoned_(poisoned) {}
    ~MemoryTable();

    /// Fresh memory, aligned to 512 bytes (device) or a page (pinned). nullptr when `bytes` is more
    /// than a device has.
    void* allocate(size_t bytes, int device, MemoryKind kind);
    /// False if `address` is not the start of an allocation of this kind made by allocate().
    bool release(void* address, MemoryKind kind);

    /// Memory that somebody else allocated (ncclMemAlloc, cudaHostRegister): known, counted, not
    /// owned.
    void add(void* address, size_t bytes, int device, MemoryKind kind);
    bool remove(void* address);

    /// The allocation that holds `address`, or nullptr; `base` (optional) gets its start.
    const Allocation* find(const void* address, uintptr_t* base = nullptr) const;

    size_t peak_bytes() const { return peak_bytes_; }
    size_t used_bytes(int device) const;
    /// Owned allocations that were not released.
    size_t owned_count() const { return owned_.size(); }

  private:
    bool poisoned_;
    std::map<uintptr_t, Allocation> all_;
    std::map<uintptr_t, Allocation> owned_;
    size_t current_bytes_ = 0;
    size_t peak_bytes_ = 0;
};

/// Memory of one emulated device.
constexpr size_t kDeviceMemoryBytes = 16ull << 30;

}  // namespace gimlet::emu

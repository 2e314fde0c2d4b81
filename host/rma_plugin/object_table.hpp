// SPDX-License-Identifier: Apache-2.0
// Handles that can be checked: what NCCL keeps as a pointer is a number of ours.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "host/base/error.hpp"

namespace gimlet::rma {

/// Owns up to kCapacity objects. A handle of an object that is gone, or of another table, is
/// refused. Never destroyed: the library may be unloaded while a thread still ends.
template <typename T>
class ObjectTable {
  public:
    static constexpr std::uint64_t kCapacity = 4096;

    /// `tag` tells tables apart; `what` names the objects in messages.
    ObjectTable(std::uint32_t tag, const char* what) : tag_(tag), what_(what) {}

    void* insert(std::unique_ptr<T> object) {
        const std::lock_guard lock(mutex_);
        for (std::uint64_t i = 0; i < kCapacity; ++i) {
            const std::uint64_t index = (next_ + i) % kCapacity;
            Entry& entry = entries_[index];
            if (entry.handle.load(std::memory_order_relaxed) != 0) continue;
            next_ = index + 1;
            const std::uint64_t handle =
                std::uint64_t{tag_} << 44 | (++generation_ % (1u << 31)) << 12 | index;
            entry.object = object.release();
            entry.handle.store(handle, std::memory_order_release);
            return reinterpret_cast<void*>(handle);
        }
        raise(ErrorCode::out_of_memory, kNoRank, "more than {} {}s at once", kCapacity, what_);
    }

    T& find(const void* pointer) {
        const auto handle = reinterpret_cast<std::uint64_t>(pointer);
        Entry& entry = entries_[handle % kCapacity];
        if (handle == 0 || entry.handle.load(std::memory_order_acquire) != handle) {
            raise(ErrorCode::invalid_argument, kNoRank, "{:#x} is no {} of this plugin", handle,
                  what_);
        }
        return *entry.object;
    }

    std::unique_ptr<T> remove(const void* pointer) {
        const std::lock_guard lock(mutex_);
        T* object = &find(pointer);
        entries_[reinterpret_cast<std::uint64_t>(pointer) % kCapacity].handle.store(
            0, std::memory_order_release);
        return std::unique_ptr<T>(object);
    }

  private:
    struct Entry {
        std::atomic<std::uint64_t> handle{0};
        T* object = nullptr;
    };

    const std::uint32_t tag_;
    const char* const what_;
    std::mutex mutex_;
    std::uint64_t next_ = 0;
    std::uint64_t generation_ = 0;
    std::array<Entry, kCapacity> entries_;
};

}  // namespace gimlet::rma

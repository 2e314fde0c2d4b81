// SPDX-License-Identifier: Apache-2.0
// What lies between C and the C++ API: errors, handles, structs of other versions. Internal.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <vector>

#include <cxxabi.h>

#include "host/base/error.hpp"
#include "runtime/capi/gimlet.h"

namespace gimlet::capi {

/// Records the exception being handled as this thread's last error; its status.
gimlet_status record_exception(const char* function) noexcept;

/// Runs the body of one C function.
template <typename Body>
gimlet_status guarded(const char* function, Body body) noexcept(false) {
    try {
        body();
        return GIMLET_OK;
    } catch (abi::__forced_unwind&) {
        throw;  // pthread_cancel: not an exception of anybody's
    } catch (...) {
        return record_exception(function);
    }
}

template <typename T>
T& require_pointer(T* pointer, const char* name) {
    if (pointer == nullptr) {
        raise(ErrorCode::invalid_argument, kNoRank, "{} is null", name);
    }
    if (reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) != 0) {
        raise(ErrorCode::invalid_argument, kNoRank, "{} is at address {:#x}, not a multiple of {}",
              name, reinterpret_cast<std::uintptr_t>(pointer), alignof(T));
    }
    return *pointer;
}

/// The same where null is allowed.
template <typename T>
T* optional_pointer(T* pointer, const char* name) {
    return pointer == nullptr ? nullptr : &require_pointer(pointer, name);
}

/// Writes a text to the caller's buffer, cut; or refuses the buffer before anything is done.
class TextOut {
  public:
    TextOut(char* text, std::size_t text_bytes, std::size_t* needed_bytes);
    void write(std::string_view from) const noexcept;

  private:
    char* text_;
    std::size_t text_bytes_;
    std::size_t* needed_bytes_;
};

/// A caller's array with its capacity, and a place for the number of what there is; checked before
/// anything is done.
template <typename T>
class ListOut {
  public:
    ListOut(T* items, std::int32_t capacity, std::int32_t* count, const char* name)
        : items_(items), capacity_(capacity), count_(optional_pointer(count, "count")) {
        if (capacity < 0) {
            raise(ErrorCode::invalid_argument, kNoRank, "capacity is {}; 0 or more", capacity);
        }
        if (capacity > 0) require_pointer(items, name);
    }
    void write_first(const std::vector<T>& all) const noexcept { write(all, 0); }
    void write_last(const std::vector<T>& all) const noexcept {
        const auto room = static_cast<std::size_t>(capacity_);
        write(all, all.size() > room ? all.size() - room : 0);
    }

  private:
    void write(const std::vector<T>& all, std::size_t from) const noexcept {
        const std::size_t written =
            std::min(all.size() - from, static_cast<std::size_t>(capacity_));
        std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(from), written, items_);
        if (count_ != nullptr) *count_ = static_cast<std::int32_t>(all.size());
    }

    T* items_;
    std::int32_t capacity_;
    std::int32_t* count_;
};

// ---- structs ------------------------------------------------------------------------------------

/// No version of a struct is this much larger than ours.
inline constexpr std::size_t kMostUnknownBytes = 1024;

/// Size of a struct in the first release that had it. Never changed.
template <typename T>
inline constexpr std::size_t kFirstBytes = 0;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_runtime_config> = 32;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_moe_config> = 88;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_bootstrap_callbacks> = 56;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_message_callbacks> = 72;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_health> = 80;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_group_report> = 32;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_runtime_info> = 80;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_rank_place> = 48;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_plan_info> = 136;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_routing_info> = 40;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_dispatch_inputs> = 48;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_received> = 104;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_unpack_outputs> = 56;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_combine_inputs> = 32;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_exchange_stats> = 56;
template <>
inline constexpr std::size_t kFirstBytes<gimlet_step_traffic> = 112;

/// Checks a struct's own size: at least that of its first release, `least_bytes`. A struct of a
/// newer header is allowed as long as its unknown part is zero.
void check_struct_bytes(const void* data, std::size_t struct_bytes, std::size_t least_bytes,
                        std::size_t known_bytes, const char* name);

/// A copy of the caller's struct, on top of `defaults`.
template <typename T>
T read_struct(const T* from, const T& defaults, const char* name) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
    static_assert(kFirstBytes<T> > 0 && kFirstBytes<T> <= sizeof(T));
    const std::size_t bytes = require_pointer(from, name).struct_bytes;
    check_struct_bytes(from, bytes, kFirstBytes<T>, sizeof(T), name);
    T value = defaults;
    std::memcpy(&value, from, std::min(bytes, sizeof(T)));
    value.struct_bytes = sizeof(T);
    return value;
}

/// A struct that the caller wants filled; null is allowed if so said.
template <typename T>
class StructOut {
    static_assert(std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T>);
    static_assert(kFirstBytes<T> > 0 && kFirstBytes<T> <= sizeof(T));

  public:
    StructOut(T* to, const char* name) : to_(&require_pointer(to, name)) {
        check_struct_bytes(to, to->struct_bytes, kFirstBytes<T>, sizeof(T), name);
    }
    static StructOut optional(T* to, const char* name) {
        return to == nullptr ? StructOut() : StructOut(to, name);
    }
    void write(T value) const noexcept {
        if (to_ == nullptr) return;
        value.struct_bytes = to_->struct_bytes;
        std::memcpy(to_, &value, std::min(value.struct_bytes, sizeof(T)));
    }

  private:
    StructOut() = default;
    T* to_ = nullptr;
};

// ---- handles ------------------------------------------------------------------------------------

/// Kinds of objects behind handles; kept in the low bits of the handle.
enum class HandleKind : std::uint64_t {
    thread_group = 1,
    bootstrap = 2,
    runtime = 3,
    exchange = 4,
    routing = 5,
};
const char* name_of(HandleKind kind) noexcept;

/// The objects of one kind. A handle is a number that is never used again, so that a stale one is
/// recognised; it points nowhere.
template <typename Handle, typename Object, HandleKind kind>
class HandleTable {
  public:
    /// Never destroyed: objects that are left at process exit are left alone, since CUDA and peers
    /// may be gone.
    static HandleTable& get() {
        static auto* table = new HandleTable;
        return *table;
    }

    Handle* add(std::shared_ptr<Object> object) {
        const std::lock_guard lock(mutex_);
        const std::uint64_t id = (++last_ << kKindBits) | static_cast<std::uint64_t>(kind);
        objects_.emplace(id, std::move(object));
        return to_handle(id);
    }

    std::shared_ptr<Object> find(const Handle* handle) const {
        const std::lock_guard lock(mutex_);
        const auto at = objects_.find(to_id(handle));
        if (at == objects_.end()) refuse(handle);
        return at->second;
    }

    /// The object leaves the table. What nobody else holds is destroyed by the caller's copy.
    std::shared_ptr<Object> remove(const Handle* handle) {
        const std::lock_guard lock(mutex_);
        const auto at = objects_.find(to_id(handle));
        if (at == objects_.end()) refuse(handle);
        auto object = std::move(at->second);
        objects_.erase(at);
        return object;
    }

  private:
    static constexpr int kKindBits = 4;

    static std::uint64_t to_id(const Handle* handle) {
        return reinterpret_cast<std::uintptr_t>(handle);
    }
    static Handle* to_handle(std::uint64_t id) { return reinterpret_cast<Handle*>(id); }

    [[noreturn]] static void refuse(const Handle* handle) {
        if (handle == nullptr) {
            raise(ErrorCode::invalid_argument, kNoRank, "the {} handle is null", name_of(kind));
        }
        raise(ErrorCode::invalid_argument, kNoRank,
              "{:#x} is no live {} handle: destroyed, of another kind, or never made",
              to_id(handle), name_of(kind));
    }

    mutable std::mutex mutex_;
    std::map<std::uint64_t, std::shared_ptr<Object>> objects_;
    std::uint64_t last_ = 0;
};

}  // namespace gimlet::capi

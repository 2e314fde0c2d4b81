// SPDX-License-Identifier: Apache-2.0
// Memory that owns itself: device memory, and host memory that the device can address.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>

#include "host/base/checked_math.hpp"
#include "host/base/error.hpp"

namespace gimlet {

namespace detail {
void* device_allocate(std::size_t bytes, int rank);
void device_free(void* pointer, int rank) noexcept;
void* mapped_allocate(std::size_t bytes, void** device_pointer, int rank);
void mapped_free(void* pointer, int rank) noexcept;
void device_fill(void* pointer, int value, std::size_t bytes, int rank);
void device_copy(void* to, const void* from, std::size_t bytes, int rank);
}  // namespace detail

/// `count` elements of device memory, not initialised. Zero elements are allowed: get() is null.
/// Free it only when no kernel uses it any more; cudaFree may wait for the device.
template <typename T>
class DeviceBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(std::size_t count, int rank = kNoRank)
        : pointer_(static_cast<T*>(detail::device_allocate(
              checked_mul(count, sizeof(T), "device buffer bytes", rank), rank))),
          count_(count),
          rank_(rank) {}
    DeviceBuffer(DeviceBuffer&& other) noexcept
        : pointer_(std::exchange(other.pointer_, nullptr)),
          count_(std::exchange(other.count_, 0)),
          rank_(other.rank_) {}
    DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
        std::swap(pointer_, other.pointer_);
        std::swap(count_, other.count_);
        std::swap(rank_, other.rank_);
        return *this;
    }
    ~DeviceBuffer() { detail::device_free(pointer_, rank_); }

    T* get() const noexcept { return pointer_; }
    std::size_t count() const noexcept { return count_; }
    std::size_t bytes() const noexcept { return count_ * sizeof(T); }

    /// Sets every byte. Blocks until done.
    void fill_bytes(int value) { detail::device_fill(pointer_, value, bytes(), rank_); }
    /// Copies to the front of the buffer. Blocks until done. More than count() elements is an
    /// error.
    void upload(std::span<const T> from) {
        check_fits(from.size());
        detail::device_copy(pointer_, from.data(), from.size_bytes(), rank_);
    }
    /// Copies from the front of the buffer. Blocks until done.
    void download(std::span<T> to) const {
        check_fits(to.size());
        detail::device_copy(to.data(), pointer_, to.size_bytes(), rank_);
    }

  private:
    void check_fits(std::size_t wanted) const {
        if (wanted > count_) {
            raise(ErrorCode::invalid_argument, rank_,
                  "device buffer: {} elements asked for, the buffer has {}", wanted, count_);
        }
    }

    T* pointer_ = nullptr;
    std::size_t count_ = 0;
    int rank_ = kNoRank;
};

/// `count` zeroed elements of page-locked host memory that kernels can read and write. Words that a
/// kernel writes while the host polls are read with load_acquire (host/cuda/poll.hpp).
template <typename T>
class MappedBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    MappedBuffer() = default;
    explicit MappedBuffer(std::size_t count, int rank = kNoRank) : count_(count), rank_(rank) {
        void* device_pointer = nullptr;
        host_ = static_cast<T*>(detail::mapped_allocate(
            checked_mul(count, sizeof(T), "mapped buffer bytes", rank), &device_pointer, rank));
        device_ = static_cast<T*>(device_pointer);
    }
    MappedBuffer(MappedBuffer&& other) noexcept
        : host_(std::exchange(other.host_, nullptr)),
          device_(std::exchange(other.device_, nullptr)),
          count_(std::exchange(other.count_, 0)),
          rank_(other.rank_) {}
    MappedBuffer& operator=(MappedBuffer&& other) noexcept {
        std::swap(host_, other.host_);
        std::swap(device_, other.device_);
        std::swap(count_, other.count_);
        std::swap(rank_, other.rank_);
        return *this;
    }
    ~MappedBuffer() { detail::mapped_free(host_, rank_); }

    T* host() const noexcept { return host_; }
    T* device() const noexcept { return device_; }
    std::size_t count() const noexcept { return count_; }
    std::size_t bytes() const noexcept { return count_ * sizeof(T); }
    T& operator[](std::size_t i) const noexcept { return host_[i]; }

  private:
    T* host_ = nullptr;
    T* device_ = nullptr;
    std::size_t count_ = 0;
    int rank_ = kNoRank;
};

}  // namespace gimlet

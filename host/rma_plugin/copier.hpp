// SPDX-License-Identifier: Apache-2.0
// Small copies and signal words carried out by a kernel of ours that polls a queue: microseconds
// cheaper for the CPU than a call of the driver each, and nothing that a stream could hold up. The
// kernel leaves when it has had nothing to do for some milliseconds, and is launched again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/rma_plugin/copier_queue.hpp"
#include "host/rma_plugin/cuda_driver.hpp"

namespace gimlet::rma {

/// Commands are carried out in order, except that copies and small writes between two words may
/// pass each other. Not thread safe; the context it was created in must be current.
class Copier {
  public:
    static constexpr std::size_t kMostBytes = 131072;  ///< of one copy; the driver is faster above

    /// Raises Error(cuda) if the driver cannot take the kernel.
    Copier();
    /// Waits, for a bounded time, until the kernel has left.
    ~Copier();
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    /// Whether it can take this now.
    bool can_copy(std::uint64_t target, std::uint64_t source, std::size_t bytes) const noexcept;
    void copy(std::uint64_t target, std::uint64_t source, std::size_t bytes);
    /// At most 8 bytes.
    void write_small(std::uint64_t target, std::uint64_t value, std::size_t bytes);
    /// 8 aligned bytes, seen whole, after all before it.
    void write_word(std::uint64_t target, std::uint64_t value);

    /// Number of commands so far, and of those that are done as of the last poll().
    std::uint64_t posted() const noexcept { return posted_; }
    std::uint64_t completed() const noexcept { return completed_; }
    /// Launches the kernel again if it has left and there is work.
    void poll();

  private:
    void post(CopierKind kind, std::uint64_t target, std::uint64_t value, std::uint64_t source,
              std::size_t bytes) noexcept;
    void launch();
    void release() noexcept;
    bool has_left() const noexcept;

    cu::Module module_ = nullptr;
    cu::Function kernel_ = nullptr;
    cu::Stream stream_ = nullptr;
    CopierQueue* queue_ = nullptr;
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t launches_ = 0;
};

}  // namespace gimlet::rma

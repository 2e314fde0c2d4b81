// SPDX-License-Identifier: Apache-2.0
// Copies and signal words carried out by a kernel of ours that polls a queue: microseconds cheaper
// for the CPU than a call of the driver each, and nothing that a stream could hold up. The kernel
// leaves when it has had nothing to do for some milliseconds, and is launched again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/rma_plugin/copier_queue.hpp"
#include "host/rma_plugin/copier_split.hpp"
#include "host/rma_plugin/cuda_driver.hpp"

namespace gimlet::rma {

/// Where the two ends of a copy are.
enum class CopyEnds {
    device,       ///< both on this GPU
    peer_device,  ///< one on another GPU
    pinned,       ///< one in a pinned buffer of the host
};

struct CopierOptions {
    std::size_t limit_bytes = 4 << 20;  ///< of one copy within this GPU
    unsigned blocks = 8;
};

class Copier;

/// A queue of the copier. Not thread safe; the copier's context must be current.
class CopierLane {
  public:
    enum class Order {
        any,     ///< copies and small writes, by many warps
        strict,  ///< words too; copies and small writes may pass each other, but no word
    };
    /// Of one copy that bulk copies do not suit, or between GPUs; the driver is faster above.
    static constexpr std::size_t kMostPlainBytes = 131072;

    CopierLane(Order order, Copier* copier) : order_(order), copier_(copier) {}

    /// Whether it can take this now.
    bool can_copy(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                  std::size_t bytes) const noexcept;
    bool can_write(std::uint64_t target) const noexcept;
    void copy(CopyEnds ends, std::uint64_t target, std::uint64_t source, std::size_t bytes);
    /// At most 8 bytes.
    void write_small(std::uint64_t target, std::uint64_t value, std::size_t bytes);
    /// 8 aligned bytes, seen whole, after all before it. Only with Order::strict.
    void write_word(std::uint64_t target, std::uint64_t value);

    /// Number of commands so far, and of the first ones that are all done as of the last poll().
    std::uint64_t posted() const noexcept { return posted_; }
    std::uint64_t completed() const noexcept { return completed_; }

  private:
    friend class Copier;
    bool is_bulk(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                 std::size_t bytes) const noexcept;
    bool has_room(std::size_t commands) const noexcept;
    void post(CopierKind kind, std::uint64_t target, std::uint64_t value, std::uint64_t source,
              std::size_t bytes) noexcept;
    void poll() noexcept;

    Order order_;
    Copier* copier_;
    CopierLaneMemory* memory_ = nullptr;
    const std::uint64_t* done_ = nullptr;  ///< the kernel's count
    std::uint64_t posted_ = 0;
    std::uint64_t completed_ = 0;
};

/// The kernel and its two lanes. Not thread safe; the context it was created in must be current.
class Copier {
  public:
    /// Raises Error(cuda) if the driver cannot take the kernel.
    explicit Copier(const CopierOptions& options);
    /// Waits, for a bounded time, until the kernel has left.
    ~Copier();
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    CopierLane& moves() noexcept { return moves_; }
    CopierLane& deliveries() noexcept { return deliveries_; }
    const CopierOptions& options() const noexcept { return options_; }

    /// Looks at what is done; launches the kernel again if it has left and there is work.
    void poll();
    /// After commands: launches the kernel if it has left.
    void wake();

  private:
    void launch();
    void release() noexcept;
    bool has_left() const noexcept;

    CopierOptions options_;
    CopierLane moves_{CopierLane::Order::any, this};
    CopierLane deliveries_{CopierLane::Order::strict, this};
    cu::Module module_ = nullptr;
    cu::Function kernel_ = nullptr;
    cu::Stream stream_ = nullptr;
    CopierQueue* queue_ = nullptr;
    std::uint64_t launches_ = 0;
};

}  // namespace gimlet::rma

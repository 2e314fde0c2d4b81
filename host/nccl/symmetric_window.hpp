// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a communicator register together and address by offset.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "host/nccl/communicator.hpp"
#include "host/nccl/window_layout.hpp"

namespace gimlet {

struct WindowOptions {
    /// Signals by address (VA signals) need strict ordering; it costs PCIe relaxed ordering.
    enum class Ordering { relaxed, strict };
    /// NCCL's memory comes with arbitrary content; flags need zeros.
    enum class Fill { zero, leave };

    Ordering ordering = Ordering::relaxed;
    Fill fill = Fill::zero;
};

class SymmetricWindow {
  public:
    /// Collective. Allocates layout.total_bytes() (at least one page) on the communicator's device
    /// and registers it. The layout must be equal on all ranks (Error(config_mismatch) names who
    /// differs). After it returns, every rank's memory is filled. If it fails on one rank, it fails
    /// on all, and nothing remains. Error(not_supported), with the reason, if NCCL has no symmetric
    /// memory here.
    static std::unique_ptr<SymmetricWindow> create(Communicator& communicator,
                                                   const WindowLayout& layout,
                                                   const WindowOptions& options = {});
    /// Frees by close(), or without NCCL if the communicator is gone. Never throws.
    ~SymmetricWindow();
    SymmetricWindow(const SymmetricWindow&) = delete;
    SymmetricWindow& operator=(const SymmetricWindow&) = delete;

    ncclWindow_t handle() const;  ///< raises Error(closed) after close()
    const WindowLayout& layout() const noexcept { return layout_; }
    std::uint64_t bytes() const noexcept { return bytes_; }

    /// This rank's memory through the pointer that NCCL allocated: for copies and memset by the
    /// host.
    void* local(std::uint64_t offset_bytes = 0) const;
    /// This rank's memory through the address range that its LSA peers share. Kernels use this one,
    /// and only one of the two per kernel (two addresses of one word are not ordered with each
    /// other).
    void* local_flat(std::uint64_t offset_bytes = 0) const;
    /// A peer's memory (world rank), or null if the peer is in another LSA team.
    void* peer(int peer_rank, std::uint64_t offset_bytes = 0) const;

    template <typename T>
    T* local_region(std::string_view name) const {
        return static_cast<T*>(local(layout_.region(name).offset_bytes));
    }

    /// Local: deregisters and frees. First make sure that no rank's kernel or put still uses the
    /// window (synchronise the stream, then a barrier over the ranks). A second call does nothing.
    void close();
    bool is_open() const noexcept { return memory_ != nullptr; }

  private:
    SymmetricWindow(std::shared_ptr<CommunicatorState> state, WindowLayout layout);
    void allocate(const WindowOptions& options);
    void register_memory(const WindowOptions& options);
    void release() noexcept;
    void check_offset(std::uint64_t offset_bytes, const char* what) const;

    std::shared_ptr<CommunicatorState> state_;
    WindowLayout layout_;
    std::uint64_t bytes_ = 0;
    void* memory_ = nullptr;
    ncclWindow_t window_ = nullptr;
};

}  // namespace gimlet

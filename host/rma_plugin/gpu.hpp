// SPDX-License-Identifier: Apache-2.0
// One rank's use of one GPU: streams of its own, pinned bounce buffers, and the mapping of memory
// that belongs to others. Nothing here waits for a kernel; completion is read from a pinned word.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "host/rma_plugin/cuda_driver.hpp"

namespace gimlet::rma {

/// A stream and the count of what is finished in it. Operations run in order; a ticket is the
/// number of operations enqueued up to it. Not thread safe; the GPU's context must be current.
class GpuStream {
  public:
    /// `has_memory_operations`: cuStreamWriteValue64 may be used, else small copies do its work.
    explicit GpuStream(bool has_memory_operations);
    ~GpuStream();
    GpuStream(const GpuStream&) = delete;
    GpuStream& operator=(const GpuStream&) = delete;

    /// Any two addresses that the GPU can reach, pinned host memory included. Returns the ticket.
    std::uint64_t copy(std::uint64_t target, std::uint64_t source, std::size_t bytes);

    /// Writes after all before it is visible to the whole system. False: no cell free, try again.
    bool try_write64(std::uint64_t target, std::uint64_t value);

    /// At most 8 bytes, taken now from `source`. False: no cell free, try again.
    bool try_write_small(std::uint64_t target, const void* source, std::size_t bytes);

    std::uint64_t last_ticket() const noexcept { return issued_; }
    bool done(std::uint64_t ticket) const noexcept { return completed() >= ticket; }
    bool idle() const noexcept { return done(issued_); }

    /// Makes everything enqueued so far count as done once it is. Cheap if nothing is new. Retried
    /// by the next call if no cell is free.
    void mark();

  private:
    static constexpr std::uint64_t kCells = 1024;

    std::uint64_t completed() const noexcept;
    bool try_write_cell(std::uint64_t target, const void* source, std::size_t bytes);

    cu::Stream stream_ = nullptr;
    bool has_memory_operations_;
    std::uint64_t* pinned_ = nullptr;  ///< word 0: completed ticket; from word 8: cells
    std::uint64_t issued_ = 0;
    std::uint64_t marked_ = 0;
    std::uint64_t cell_count_ = 0;
    std::array<std::uint64_t, kCells> cell_ticket_{};
};

/// How memory of one process reaches another.
struct MemoryExport {
    enum class Kind : std::uint32_t { none = 0, posix_fd = 1, ipc_handle = 2 };
    Kind kind = Kind::none;
    int fd = -1;  ///< owned by whoever holds the struct
    std::uint64_t allocation_bytes = 0;
    std::uint64_t offset = 0;  ///< of the address within its allocation
    cu::IpcHandle ipc{};
};

/// A mapping made by Gpu; unmapped by Gpu::unmap.
struct MappedMemory {
    std::uint64_t address = 0;  ///< of the first byte asked for
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    bool is_ipc = false;
};

/// Sets a context for a scope of an application's thread, and puts the old one back.
class ContextScope {
  public:
    explicit ContextScope(cu::Context context);
    ~ContextScope();
    ContextScope(const ContextScope&) = delete;
    ContextScope& operator=(const ContextScope&) = delete;

  private:
    cu::Context before_ = nullptr;
    bool changed_ = false;
};

class Gpu {
  public:
    static constexpr std::size_t kStagingBytes = 65536;
    static constexpr int kStagingCells = 32;

    /// `peer_count` ranks will be written to. Creates everything that the data path needs.
    Gpu(int device, int peer_count);
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    int device() const noexcept { return device_; }
    cu::Context context() const noexcept { return context_; }
    bool has_memory_operations() const noexcept { return has_memory_operations_; }

    /// For a progress thread, which belongs to us: sets the context and leaves it.
    void make_current();

    GpuStream& copy_stream(int peer) noexcept {
        return *copy_streams_[static_cast<std::size_t>(peer) % copy_streams_.size()];
    }
    /// What the owner itself writes into its memory: signals, and data that came in messages.
    GpuStream& delivery_stream() noexcept { return *delivery_stream_; }
    void mark_all();
    bool idle() const noexcept;

    /// A pinned buffer of kStagingBytes, or -1. Held until released.
    int try_acquire_staging();
    unsigned char* staging(int cell) noexcept { return staging_ + cell * kStagingBytes; }
    /// Free again once `stream` has reached `ticket`.
    void release_staging(int cell, const GpuStream& stream, std::uint64_t ticket);

    /// Address at which the GPU sees this host memory, or nothing if it cannot be registered.
    std::optional<std::uint64_t> register_host(void* memory, std::size_t bytes);

    MemoryExport export_memory(std::uint64_t address) const;
    /// Maps what another process exported. Takes `exported.fd`.
    MappedMemory import_memory(MemoryExport exported);
    /// Second mapping, for this device, of an allocation of this process on another device.
    MappedMemory map_local(std::uint64_t address);
    void unmap(const MappedMemory& mapping);

  private:
    struct StagingCell {
        bool held = false;
        const GpuStream* stream = nullptr;
        std::uint64_t ticket = 0;
    };

    MappedMemory map_allocation(cu::Allocation allocation, std::uint64_t allocation_bytes,
                                std::uint64_t offset);

    int device_;
    cu::Context context_ = nullptr;
    bool has_memory_operations_ = false;
    std::vector<std::unique_ptr<GpuStream>> copy_streams_;
    std::unique_ptr<GpuStream> delivery_stream_;
    unsigned char* staging_ = nullptr;
    std::array<StagingCell, kStagingCells> staging_cells_{};
    int next_staging_ = 0;
    std::vector<void*> registered_;
};

/// Device that owns this address; raises Error(invalid_argument) if no device does.
int device_of(std::uint64_t address);

}  // namespace gimlet::rma

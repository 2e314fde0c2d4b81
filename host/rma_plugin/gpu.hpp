// SPDX-License-Identifier: Apache-2.0
// One rank's use of one GPU: streams of its own, pinned bounce buffers, and the mapping of memory
// that belongs to others. Nothing here waits for a kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "host/rma_plugin/copier.hpp"
#include "host/rma_plugin/cuda_driver.hpp"

namespace gimlet::rma {

/// Choices of the person who runs it.
struct GpuOptions {
    bool own_context = true;  ///< apart from the hardware queues of the application's streams
    enum class UseCopier { automatic, yes, no };
    UseCopier copier = UseCopier::automatic;
    CopierOptions copier_options;
};

/// A context of this process beside the application's, shared by the ranks of a device.
class CopyContext {
  public:
    static std::shared_ptr<CopyContext> share(int device);
    explicit CopyContext(int device);
    ~CopyContext();
    CopyContext(const CopyContext&) = delete;
    CopyContext& operator=(const CopyContext&) = delete;
    cu::Context get() const noexcept { return context_; }

  private:
    cu::Context context_ = nullptr;
};

/// Copies for one purpose, and the count of what is finished. A ticket is the number of copies up
/// to one. Small ones go to the copier, if there is one, the others into a stream. Not thread safe;
/// the GPU's context must be current.
class GpuStream {
  public:
    enum class Order {
        strict,     ///< effects come in the order of the calls; ask ready() before copy()
        any_order,  ///< between two tickets that are waited for, in any order
    };
    /// `copier` may be null, and outlives this.
    GpuStream(Order order, CopierLane* copier);
    ~GpuStream();
    GpuStream(const GpuStream&) = delete;
    GpuStream& operator=(const GpuStream&) = delete;

    /// False: a strict copy from or to a pinned buffer has to wait for what is under way.
    bool ready(std::uint64_t target, std::uint64_t source, std::size_t bytes) const noexcept;
    /// Any two addresses that the GPU can reach. Returns the ticket.
    std::uint64_t copy(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                       std::size_t bytes);

    /// At most 8 bytes, taken now from `source`. False: try again.
    bool try_write_small(std::uint64_t target, const void* source, std::size_t bytes);
    /// 8 aligned bytes, seen whole by kernels, after all before it. False: try again.
    bool try_write_word(std::uint64_t target, std::uint64_t value);

    std::uint64_t last_ticket() const noexcept { return issued_; }
    /// As of the last poll().
    bool done(std::uint64_t ticket) const noexcept { return completed_ >= ticket; }
    bool idle() const noexcept { return done(issued_); }

    /// Will notice when everything up to now is done. Retried by the next call if too much is being
    /// waited for.
    void mark();
    /// mark(), but while an earlier mark is still awaited only once enough has come together.
    void mark_when_worthwhile();
    /// Looks at what is done.
    void poll();

  private:
    static constexpr std::uint64_t kCells = 1024;
    static constexpr std::size_t kEvents = 8;
    static constexpr std::size_t kMarks = 256;
    static constexpr std::uint64_t kWorthwhile = 16;

    /// Done once an event is, or once the copier has done so many commands.
    struct Mark {
        std::uint64_t ticket = 0;
        cu::Event event = nullptr;
        std::uint64_t command = 0;
    };

    void release() noexcept;
    bool is_free_for(bool copier_can) const noexcept;
    bool may_use_copier(bool copier_can) noexcept;
    void mark_copier();
    Mark& last_mark() noexcept { return marks_[(first_mark_ + mark_count_ - 1) % kMarks]; }

    cu::Stream stream_ = nullptr;
    Order order_;
    CopierLane* copier_;
    std::uint64_t* cells_ = nullptr;  ///< pinned
    std::uint64_t issued_ = 0;
    std::uint64_t marked_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t cell_count_ = 0;
    std::array<std::uint64_t, kCells> cell_ticket_{};
    std::array<cu::Event, kEvents> events_{};
    std::uint64_t event_count_ = 0;  ///< recorded so far
    std::size_t awaited_events_ = 0;
    std::array<Mark, kMarks> marks_{};
    std::size_t first_mark_ = 0;
    std::size_t mark_count_ = 0;
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
    /// `reachable` is an address of the device that is tried out.
    Gpu(int device, int peer_count, const GpuOptions& options, std::uint64_t reachable);
    ~Gpu();
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    int device() const noexcept { return device_; }
    cu::Context context() const noexcept { return context_; }
    bool has_own_context() const noexcept { return own_context_ != nullptr; }
    bool has_copier() const noexcept { return copier_ != nullptr; }
    /// Whether this memory, which the GPU can reach, is its own.
    bool owns(std::uint64_t address) const noexcept;

    /// For a progress thread, which belongs to us: sets the context and leaves it.
    void make_current();

    GpuStream& copy_stream(int peer) noexcept {
        return *copy_streams_[static_cast<std::size_t>(peer) % copy_streams_.size()];
    }
    /// What the owner itself writes into its memory: signals, and data that came in messages.
    GpuStream& delivery_stream() noexcept { return *delivery_stream_; }
    /// Looks at what is done.
    void poll_all();
    /// Starts what waits.
    void mark_all();
    bool idle() const noexcept;

    /// A pinned buffer of kStagingBytes, or -1. Held until released.
    int try_acquire_staging();
    unsigned char* staging(int cell) noexcept { return staging_ + cell * kStagingBytes; }
    /// Free again once `stream` has reached `ticket`.
    void release_staging(int cell, const GpuStream& stream, std::uint64_t ticket);

    MemoryExport export_memory(std::uint64_t address) const;
    /// Maps what another process exported. Takes `exported.fd`.
    MappedMemory import_memory(MemoryExport exported);
    /// Second mapping, for this device, of an allocation of this process on another device.
    /// `exported` is what its owner found out: the driver would not tell a context of this device.
    MappedMemory map_local(std::uint64_t address, const MemoryExport& exported);
    void unmap(const MappedMemory& mapping);

  private:
    struct StagingCell {
        bool held = false;
        const GpuStream* stream = nullptr;
        std::uint64_t ticket = 0;
    };

    void start(int peer_count, const GpuOptions& options, std::uint64_t reachable);
    void stop() noexcept;
    void start_copier(const GpuOptions& options, std::uint64_t reachable);
    void try_copy(CopierLane* lane, std::uint64_t reachable);
    MappedMemory map_allocation(cu::Allocation allocation, std::uint64_t allocation_bytes,
                                std::uint64_t offset);

    int device_;
    std::shared_ptr<CopyContext> own_context_;
    cu::Context context_ = nullptr;
    std::unique_ptr<Copier> copier_;  ///< outlives the streams
    std::vector<std::unique_ptr<GpuStream>> copy_streams_;
    std::unique_ptr<GpuStream> delivery_stream_;
    unsigned char* staging_ = nullptr;
    std::array<StagingCell, kStagingCells> staging_cells_{};
    int next_staging_ = 0;
};

/// Device that owns this address; raises Error(invalid_argument) if no device does.
int device_of(std::uint64_t address);

}  // namespace gimlet::rma

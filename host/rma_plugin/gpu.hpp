// SPDX-License-Identifier: Apache-2.0
// One rank's use of one GPU: streams of its own, pinned bounce buffers, and the mapping of memory
// that belongs to others. Nothing here waits for a kernel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/rma_plugin/cuda_driver.hpp"

namespace gimlet::rma {

/// Choices whose cost depends on the driver (GIMLET_RMA_GPU).
struct GpuOptions {
    bool own_context = true;    ///< apart from the hardware queues of the application's streams
    bool batches = true;        ///< copies go together to the copy engines
    bool writes_words = false;  ///< signals by stream memory operations instead of copies
};
/// Raises Error(invalid_argument) for a word that is none of the choices.
GpuOptions parse_gpu_options(const std::string& text);

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

/// A stream for copies, and the count of what is finished in it. A ticket is the number of copies
/// up to one. Not thread safe; the GPU's context must be current.
class GpuStream {
  public:
    enum class Order {
        strict,     ///< copies run in the order of the calls
        any_order,  ///< copies may be gathered, and run in any order between two marks
    };
    GpuStream(Order order, const GpuOptions& options);
    ~GpuStream();
    GpuStream(const GpuStream&) = delete;
    GpuStream& operator=(const GpuStream&) = delete;

    /// Any two addresses that the GPU can reach, pinned host memory included. Returns the ticket.
    std::uint64_t copy(std::uint64_t target, std::uint64_t source, std::size_t bytes);

    /// At most 8 bytes, taken now from `source`. False: no cell free, try again.
    bool try_write_small(std::uint64_t target, const void* source, std::size_t bytes);

    /// 8 aligned bytes, seen whole by kernels. False: try again.
    bool try_write_word(std::uint64_t target, std::uint64_t value);

    std::uint64_t last_ticket() const noexcept { return issued_; }
    /// As of the last poll().
    bool done(std::uint64_t ticket) const noexcept { return completed_ >= ticket; }
    bool idle() const noexcept { return done(issued_); }

    /// Starts what was gathered, and will notice when everything up to now is done. Retried by the
    /// next call if too much is being waited for.
    void mark();
    /// mark(), but while an earlier mark is still awaited only once enough has come together:
    /// copies that arrive quickly share one call of the driver and one mark.
    void mark_when_worthwhile();
    /// Asks the driver once.
    void poll();

  private:
    static constexpr std::uint64_t kCells = 1024;
    static constexpr std::size_t kBatch = 64;
    static constexpr std::size_t kMarks = 8;

    struct Mark {
        cu::Event event = nullptr;
        std::uint64_t ticket = 0;
    };

    void release() noexcept;
    void start_batch();

    cu::Stream stream_ = nullptr;
    Order order_;
    std::uint64_t* cells_ = nullptr;  ///< pinned
    std::uint64_t issued_ = 0;
    std::uint64_t marked_ = 0;
    std::uint64_t completed_ = 0;
    std::uint64_t cell_count_ = 0;
    std::array<std::uint64_t, kCells> cell_ticket_{};
    std::array<Mark, kMarks> marks_{};
    std::size_t first_mark_ = 0;
    std::size_t mark_count_ = 0;
    std::size_t batch_count_ = 0;
    std::array<cu::DevicePointer, kBatch> batch_targets_{};
    std::array<cu::DevicePointer, kBatch> batch_sources_{};
    std::array<std::size_t, kBatch> batch_bytes_{};
    bool may_batch_;
    bool writes_words_;
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
    MappedMemory map_local(std::uint64_t address);
    void unmap(const MappedMemory& mapping);

  private:
    struct StagingCell {
        bool held = false;
        const GpuStream* stream = nullptr;
        std::uint64_t ticket = 0;
    };

    void create_streams(int peer_count, const GpuOptions& options);
    void destroy_streams() noexcept;
    void try_copy(std::uint64_t reachable);
    MappedMemory map_allocation(cu::Allocation allocation, std::uint64_t allocation_bytes,
                                std::uint64_t offset);

    int device_;
    std::shared_ptr<CopyContext> own_context_;
    cu::Context context_ = nullptr;
    std::vector<std::unique_ptr<GpuStream>> copy_streams_;
    std::unique_ptr<GpuStream> delivery_stream_;
    unsigned char* staging_ = nullptr;
    std::array<StagingCell, kStagingCells> staging_cells_{};
    int next_staging_ = 0;
};

/// Device that owns this address; raises Error(invalid_argument) if no device does.
int device_of(std::uint64_t address);

}  // namespace gimlet::rma

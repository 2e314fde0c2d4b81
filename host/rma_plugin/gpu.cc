// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/gpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace gimlet::rma {

namespace {

constexpr std::size_t kFirstCellWord = 8;
// Streams share hardware queues with the application's kernels: few are better than many.
constexpr int kMaxCopyStreams = 4;
constexpr std::size_t kMappingAlignment = 2u << 20;

std::uint64_t address_of(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

}  // namespace

GpuStream::GpuStream(bool has_memory_operations) : has_memory_operations_(has_memory_operations) {
    const CudaDriver& driver = cuda_driver();
    // The highest priority: queues apart from those of the application's kernels, one of which may
    // be spinning.
    int least = 0;
    int greatest = 0;
    check_cuda(driver.context_stream_priority_range(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    const std::size_t bytes = (kFirstCellWord + kCells) * sizeof(std::uint64_t);
    void* memory = nullptr;
    check_cuda(driver.host_alloc(&memory, bytes, cu::kHostPortable | cu::kHostDeviceMap),
               "cuMemHostAlloc");
    pinned_ = static_cast<std::uint64_t*>(memory);
    std::memset(pinned_, 0, bytes);
    const cu::Result created = driver.stream_create(&stream_, cu::kStreamNonBlocking, greatest);
    if (created != cu::kSuccess) {
        (void)driver.host_free(pinned_);
        check_cuda(created, "cuStreamCreateWithPriority");
    }
}

GpuStream::~GpuStream() {
    const CudaDriver& driver = cuda_driver();
    (void)driver.stream_destroy(stream_);
    (void)driver.host_free(pinned_);
}

std::uint64_t GpuStream::completed() const noexcept {
    return std::atomic_ref(*pinned_).load(std::memory_order_acquire);
}

std::uint64_t GpuStream::copy(std::uint64_t target, std::uint64_t source, std::size_t bytes) {
    check_cuda(cuda_driver().copy_async(target, source, bytes, stream_), "cuMemcpyAsync");
    return ++issued_;
}

bool GpuStream::try_write_cell(std::uint64_t target, const void* source, std::size_t bytes) {
    const std::uint64_t cell = cell_count_ % kCells;
    // A cell written by mark() itself is covered by the mark after it.
    if (!done(cell_ticket_[cell])) {
        return false;
    }
    std::uint64_t* word = pinned_ + kFirstCellWord + cell;
    std::memcpy(word, source, bytes);
    cell_ticket_[cell] = copy(target, address_of(word), bytes);
    ++cell_count_;
    return true;
}

bool GpuStream::try_write64(std::uint64_t target, std::uint64_t value) {
    if (!has_memory_operations_) return try_write_cell(target, &value, sizeof(value));
    check_cuda(cuda_driver().stream_write64(stream_, target, value, 0), "cuStreamWriteValue64");
    ++issued_;
    return true;
}

bool GpuStream::try_write_small(std::uint64_t target, const void* source, std::size_t bytes) {
    if (bytes == sizeof(std::uint64_t) && target % sizeof(std::uint64_t) == 0) {
        std::uint64_t value = 0;
        std::memcpy(&value, source, sizeof(value));
        return try_write64(target, value);
    }
    return try_write_cell(target, source, bytes);
}

void GpuStream::mark() {
    if (marked_ == issued_) return;
    const std::uint64_t ticket = issued_;
    if (!try_write64(address_of(pinned_), ticket)) return;
    // The write itself need not be waited for: whoever sees its value knows that it has run.
    marked_ = issued_ = ticket;
}

ContextScope::ContextScope(cu::Context context) {
    const CudaDriver& driver = cuda_driver();
    check_cuda(driver.context_get_current(&before_), "cuCtxGetCurrent");
    if (before_ == context) return;
    check_cuda(driver.context_set_current(context), "cuCtxSetCurrent");
    changed_ = true;
}

ContextScope::~ContextScope() {
    if (changed_) (void)cuda_driver().context_set_current(before_);
}

Gpu::Gpu(int device, int peer_count) : device_(device) {
    const CudaDriver& driver = cuda_driver();
    check_cuda(driver.primary_context_retain(&context_, device), "cuDevicePrimaryCtxRetain");
    const ContextScope scope(context_);
    int has_operations = 0;
    check_cuda(
        driver.device_get_attribute(&has_operations, cu::kAttributeCanUse64BitStreamMemOps, device),
        "cuDeviceGetAttribute");
    has_memory_operations_ = has_operations != 0;
    for (int i = 0; i < std::min(peer_count, kMaxCopyStreams); ++i) {
        copy_streams_.push_back(std::make_unique<GpuStream>(has_memory_operations_));
    }
    delivery_stream_ = std::make_unique<GpuStream>(has_memory_operations_);
    void* memory = nullptr;
    check_cuda(driver.host_alloc(&memory, kStagingBytes * kStagingCells,
                                 cu::kHostPortable | cu::kHostDeviceMap),
               "cuMemHostAlloc");
    staging_ = static_cast<unsigned char*>(memory);
}

Gpu::~Gpu() {
    const CudaDriver& driver = cuda_driver();
    try {
        const ContextScope scope(context_);
        copy_streams_.clear();
        delivery_stream_.reset();
        for (void* memory : registered_) (void)driver.host_unregister(memory);
        if (staging_ != nullptr) (void)driver.host_free(staging_);
    } catch (const Error&) {
        // Logged where it was raised; a process that ends has lost its contexts already.
    }
    (void)driver.primary_context_release(device_);
}

void Gpu::make_current() {
    cu::Context current = nullptr;
    const CudaDriver& driver = cuda_driver();
    check_cuda(driver.context_get_current(&current), "cuCtxGetCurrent");
    if (current != context_) check_cuda(driver.context_set_current(context_), "cuCtxSetCurrent");
}

void Gpu::mark_all() {
    for (const auto& stream : copy_streams_) stream->mark();
    delivery_stream_->mark();
}

bool Gpu::idle() const noexcept {
    return delivery_stream_->idle() &&
           std::all_of(copy_streams_.begin(), copy_streams_.end(),
                       [](const auto& stream) { return stream->idle(); });
}

int Gpu::try_acquire_staging() {
    for (int i = 0; i < kStagingCells; ++i) {
        const int index = (next_staging_ + i) % kStagingCells;
        StagingCell& cell = staging_cells_[static_cast<std::size_t>(index)];
        if (cell.held || (cell.stream != nullptr && !cell.stream->done(cell.ticket))) continue;
        cell = {true, nullptr, 0};
        next_staging_ = (index + 1) % kStagingCells;
        return index;
    }
    return -1;
}

void Gpu::release_staging(int cell, const GpuStream& stream, std::uint64_t ticket) {
    staging_cells_[static_cast<std::size_t>(cell)] = {false, &stream, ticket};
}

std::optional<std::uint64_t> Gpu::register_host(void* memory, std::size_t bytes) {
    const ContextScope scope(context_);
    const CudaDriver& driver = cuda_driver();
    const cu::Result result =
        driver.host_register(memory, bytes, cu::kHostPortable | cu::kHostDeviceMap);
    if (result != cu::kSuccess) {
        const char* text = nullptr;
        (void)driver.get_error_string(result, &text);
        log(LogLevel::info, kNoRank,
            "rma: message queue cannot be registered with the GPU ({}); the CPU announces copies",
            text != nullptr ? text : "unknown");
        return std::nullopt;
    }
    registered_.push_back(memory);
    cu::DevicePointer pointer = 0;
    check_cuda(driver.host_device_pointer(&pointer, memory, 0), "cuMemHostGetDevicePointer");
    return pointer;
}

MemoryExport Gpu::export_memory(std::uint64_t address) const {
    const ContextScope scope(context_);
    const CudaDriver& driver = cuda_driver();
    MemoryExport result;
    cu::DevicePointer base = 0;
    std::size_t bytes = 0;
    check_cuda(driver.address_range(&base, &bytes, address), "cuMemGetAddressRange");
    result.allocation_bytes = bytes;
    result.offset = address - base;
    cu::Allocation allocation = 0;
    const bool is_mapped =
        driver.retain_allocation(&allocation, reinterpret_cast<void*>(base)) == cu::kSuccess;
    if (!is_mapped) {
        if (driver.ipc_get_handle(&result.ipc, base) == cu::kSuccess) {
            result.kind = MemoryExport::Kind::ipc_handle;
        }
        return result;
    }
    // NCCL's own signal words refuse this: they were made without a shareable handle.
    if (driver.export_allocation(&result.fd, allocation, cu::kHandlePosixFd, 0) == cu::kSuccess) {
        result.kind = MemoryExport::Kind::posix_fd;
    } else {
        result.fd = -1;
    }
    (void)driver.release_allocation(allocation);
    return result;
}

MappedMemory Gpu::map_allocation(cu::Allocation allocation, std::uint64_t allocation_bytes,
                                 std::uint64_t offset) {
    const CudaDriver& driver = cuda_driver();
    MappedMemory mapping;
    mapping.bytes = allocation_bytes;
    const auto failed = [&](cu::Result result, const char* what) {
        if (result == cu::kSuccess) return;
        if (mapping.base != 0) (void)driver.address_free(mapping.base, mapping.bytes);
        (void)driver.release_allocation(allocation);
        check_cuda(result, what);
    };
    failed(driver.address_reserve(&mapping.base, mapping.bytes, kMappingAlignment, 0, 0),
           "cuMemAddressReserve");
    failed(driver.map(mapping.base, mapping.bytes, 0, allocation, 0), "cuMemMap");
    const cu::AccessDescription access{{1, device_}, 3};
    if (const cu::Result result = driver.set_access(mapping.base, mapping.bytes, &access, 1);
        result != cu::kSuccess) {
        (void)driver.unmap(mapping.base, mapping.bytes);
        failed(result, "cuMemSetAccess");
    }
    // The mapping keeps the memory alive.
    (void)driver.release_allocation(allocation);
    mapping.address = mapping.base + offset;
    return mapping;
}

MappedMemory Gpu::import_memory(MemoryExport exported) {
    const ContextScope scope(context_);
    const CudaDriver& driver = cuda_driver();
    if (exported.kind == MemoryExport::Kind::ipc_handle) {
        MappedMemory mapping;
        mapping.is_ipc = true;
        check_cuda(driver.ipc_open_handle(&mapping.base, exported.ipc, cu::kIpcLazyPeerAccess),
                   "cuIpcOpenMemHandle");
        mapping.bytes = exported.allocation_bytes;
        mapping.address = mapping.base + exported.offset;
        return mapping;
    }
    cu::Allocation allocation = 0;
    const cu::Result result = driver.import_allocation(
        &allocation, reinterpret_cast<void*>(static_cast<std::intptr_t>(exported.fd)),
        cu::kHandlePosixFd);
    (void)close(exported.fd);
    check_cuda(result, "cuMemImportFromShareableHandle");
    return map_allocation(allocation, exported.allocation_bytes, exported.offset);
}

MappedMemory Gpu::map_local(std::uint64_t address) {
    const ContextScope scope(context_);
    const CudaDriver& driver = cuda_driver();
    cu::DevicePointer base = 0;
    std::size_t bytes = 0;
    check_cuda(driver.address_range(&base, &bytes, address), "cuMemGetAddressRange");
    cu::Allocation allocation = 0;
    check_cuda(driver.retain_allocation(&allocation, reinterpret_cast<void*>(base)),
               "cuMemRetainAllocationHandle");
    return map_allocation(allocation, bytes, address - base);
}

void Gpu::unmap(const MappedMemory& mapping) {
    const ContextScope scope(context_);
    const CudaDriver& driver = cuda_driver();
    if (mapping.is_ipc) {
        (void)driver.ipc_close_handle(mapping.base);
        return;
    }
    (void)driver.unmap(mapping.base, mapping.bytes);
    (void)driver.address_free(mapping.base, mapping.bytes);
}

int device_of(std::uint64_t address) {
    int device = -1;
    const cu::Result result =
        cuda_driver().pointer_get_attribute(&device, cu::kPointerDeviceOrdinal, address);
    if (result != cu::kSuccess) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "address {:#x} is said to be GPU memory, but the driver knows no device for it ({})",
              address, result);
    }
    return device;
}

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/gpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace gimlet::rma {

namespace {

// Streams share hardware queues with the application's kernels: few are better than many.
constexpr int kMaxCopyStreams = 4;
constexpr std::size_t kMappingAlignment = 2u << 20;

std::uint64_t address_of(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

}  // namespace

CopyContext::CopyContext(int device) {
    const CudaDriver& driver = cuda_driver();
    check_cuda(driver.context_create(&context_, 0, device), "cuCtxCreate");
    (void)driver.context_pop(nullptr);
}

CopyContext::~CopyContext() {
    if (context_ != nullptr) (void)cuda_driver().context_destroy(context_);
}

std::shared_ptr<CopyContext> CopyContext::share(int device) {
    static auto* mutex = new std::mutex;  // no destructors at dlclose
    static auto* contexts = new std::map<int, std::weak_ptr<CopyContext>>;
    const std::lock_guard lock(*mutex);
    std::shared_ptr<CopyContext> context = (*contexts)[device].lock();
    if (context == nullptr) {
        context = std::make_shared<CopyContext>(device);
        (*contexts)[device] = context;
    }
    return context;
}

GpuStream::GpuStream(Order order, CopierLane* copier) : order_(order), copier_(copier) {
    const CudaDriver& driver = cuda_driver();
    int least = 0;
    int greatest = 0;
    check_cuda(driver.context_stream_priority_range(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    void* memory = nullptr;
    check_cuda(driver.host_alloc(&memory, kCells * sizeof(std::uint64_t), cu::kHostDeviceMap),
               "cuMemHostAlloc");
    cells_ = static_cast<std::uint64_t*>(memory);
    cu::Result result = driver.stream_create(&stream_, cu::kStreamNonBlocking, greatest);
    for (cu::Event& event : events_) {
        if (result == cu::kSuccess) result = driver.event_create(&event, cu::kEventNoTiming);
    }
    if (result == cu::kSuccess) return;
    release();
    check_cuda(result, "creating a stream and its events");
}

GpuStream::~GpuStream() {
    release();
}

void GpuStream::release() noexcept {
    const CudaDriver& driver = cuda_driver();
    if (stream_ != nullptr) (void)driver.stream_destroy(stream_);
    for (cu::Event event : events_) {
        if (event != nullptr) (void)driver.event_destroy(event);
    }
    (void)driver.host_free(cells_);
}

bool GpuStream::ready(std::uint64_t target, std::uint64_t source,
                      std::size_t bytes) const noexcept {
    return is_free_for(copier_ != nullptr &&
                       copier_->can_copy(CopyEnds::pinned, target, source, bytes));
}

/// A strict stream uses the copier or the driver, not both at once.
bool GpuStream::is_free_for(bool copier_can) const noexcept {
    if (order_ == Order::any_order || copier_ == nullptr || idle()) return true;
    const bool in_stream = awaited_events_ > 0 || marked_ != issued_;
    return in_stream != copier_can;
}

/// Both ways at once would lose the order, or the count.
bool GpuStream::may_use_copier(bool copier_can) noexcept {
    if (!copier_can) return false;
    if (marked_ != issued_) mark();
    if (marked_ != issued_ || (order_ == Order::strict && awaited_events_ > 0)) return false;
    return mark_count_ < kMarks || last_mark().event == nullptr;
}

void GpuStream::mark_copier() {
    marked_ = ++issued_;
    if (mark_count_ < kMarks) ++mark_count_;
    last_mark() = {issued_, nullptr, copier_->posted()};
}

std::uint64_t GpuStream::copy(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                              std::size_t bytes) {
    if (may_use_copier(copier_ != nullptr && copier_->can_copy(ends, target, source, bytes))) {
        copier_->copy(ends, target, source, bytes);
        mark_copier();
        return issued_;
    }
    check_cuda(cuda_driver().copy_async(target, source, bytes, stream_), "cuMemcpyAsync");
    return ++issued_;
}

bool GpuStream::try_write_small(std::uint64_t target, const void* source, std::size_t bytes) {
    const bool copier_can = copier_ != nullptr && copier_->can_write(target);
    if (!is_free_for(copier_can)) return false;
    if (may_use_copier(copier_can)) {
        std::uint64_t value = 0;
        std::memcpy(&value, source, bytes);
        copier_->write_small(target, value, bytes);
        mark_copier();
        return true;
    }
    const std::uint64_t cell = cell_count_ % kCells;
    if (!done(cell_ticket_[cell])) return false;
    std::memcpy(&cells_[cell], source, bytes);
    check_cuda(cuda_driver().copy_async(target, address_of(&cells_[cell]), bytes, stream_),
               "cuMemcpyAsync");
    cell_ticket_[cell] = ++issued_;
    ++cell_count_;
    return true;
}

bool GpuStream::try_write_word(std::uint64_t target, std::uint64_t value) {
    const bool copier_can = copier_ != nullptr && copier_->can_write(target);
    if (!is_free_for(copier_can)) return false;
    if (!may_use_copier(copier_can)) {
        return try_write_small(target, &value, sizeof(value));
    }
    copier_->write_word(target, value);
    mark_copier();
    return true;
}

void GpuStream::mark() {
    if (marked_ == issued_ || awaited_events_ == kEvents || mark_count_ == kMarks) return;
    const cu::Event event = events_[event_count_ % kEvents];
    check_cuda(cuda_driver().event_record(event, stream_), "cuEventRecord");
    ++event_count_;
    ++awaited_events_;
    ++mark_count_;
    marked_ = issued_;
    last_mark() = {issued_, event, 0};
}

void GpuStream::mark_when_worthwhile() {
    if (awaited_events_ == 0 || issued_ - marked_ >= kWorthwhile) mark();
}

void GpuStream::poll() {
    while (mark_count_ > 0) {
        const Mark& mark = marks_[first_mark_];
        if (mark.event == nullptr) {
            if (copier_->completed() < mark.command) return;
        } else {
            const cu::Result result = cuda_driver().event_query(mark.event);
            if (result == cu::kNotReady) return;
            check_cuda(result, "cuEventQuery");
            --awaited_events_;
        }
        completed_ = mark.ticket;
        first_mark_ = (first_mark_ + 1) % kMarks;
        --mark_count_;
    }
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

Gpu::Gpu(int device, int peer_count, const GpuOptions& options, std::uint64_t reachable)
    : device_(device) {
    cu::Context primary = nullptr;
    check_cuda(cuda_driver().primary_context_retain(&primary, device), "cuDevicePrimaryCtxRetain");
    if (options.own_context) {
        try {
            own_context_ = CopyContext::share(device);
            context_ = own_context_->get();
            start(peer_count, options, reachable);
            return;
        } catch (const Error& error) {
            log(LogLevel::warn, kNoRank,
                "rma: no context of our own on GPU {} ({}); the application's is used, whose "
                "queued kernels can stand in front of copies",
                device, error.message());
            stop();
            own_context_.reset();
        }
    }
    context_ = primary;
    start(peer_count, options, reachable);
}

void Gpu::start(int peer_count, const GpuOptions& options, std::uint64_t reachable) {
    const CudaDriver& driver = cuda_driver();
    const ContextScope scope(context_);
    void* memory = nullptr;
    check_cuda(driver.host_alloc(&memory, kStagingBytes * kStagingCells, cu::kHostDeviceMap),
               "cuMemHostAlloc");
    staging_ = static_cast<unsigned char*>(memory);
    start_copier(options, reachable);
    CopierLane* const moves = copier_ != nullptr ? &copier_->moves() : nullptr;
    CopierLane* const deliveries = copier_ != nullptr ? &copier_->deliveries() : nullptr;
    for (int i = 0; i < std::min(peer_count, kMaxCopyStreams); ++i) {
        copy_streams_.push_back(std::make_unique<GpuStream>(GpuStream::Order::any_order, moves));
    }
    try_copy(nullptr, reachable);
    delivery_stream_ = std::make_unique<GpuStream>(GpuStream::Order::strict, deliveries);
}

/// Only where it runs beside the application's kernels: without MPS, contexts take turns.
void Gpu::start_copier(const GpuOptions& options, std::uint64_t reachable) {
    int has_mps = 0;
    check_cuda(cuda_driver().device_get_attribute(&has_mps, cu::kAttributeMpsEnabled, device_),
               "cuDeviceGetAttribute");
    if (has_mps == 0 && own_context_ != nullptr) {
        log(LogLevel::warn, kNoRank,
            "rma: GPU {} is used without MPS: the plugin's context and the application's take "
            "turns, 2 ms a message; start MPS, or set GIMLET_RMA_CONTEXT=primary, where two "
            "kernels that are queued behind each other may hang",
            device_);
    }
    using Use = GpuOptions::UseCopier;
    if (options.copier == Use::no || (options.copier == Use::automatic && has_mps == 0)) return;
    try {
        copier_ = std::make_unique<Copier>(options.copier_options);
        try_copy(&copier_->moves(), reachable);
        try_copy(&copier_->deliveries(), reachable);
    } catch (const Error& error) {
        if (options.copier == Use::yes) throw;
        log(LogLevel::info, kNoRank, "rma: small copies by the driver, the copier does not run: {}",
            error.message());
        copier_.reset();
    }
}

/// Memory of the application must be within reach of a context of our own.
void Gpu::try_copy(CopierLane* lane, std::uint64_t reachable) {
    constexpr auto kLimit = std::chrono::seconds(10);
    GpuStream stream(GpuStream::Order::strict, lane);
    (void)stream.copy(CopyEnds::pinned, address_of(staging_), reachable, sizeof(std::uint64_t));
    stream.mark();
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (!stream.idle()) {
        if (copier_ != nullptr) copier_->poll();
        stream.poll();
        if (std::chrono::steady_clock::now() > end) {
            raise(ErrorCode::timeout, kNoRank, "a copy of 8 B did not end in 10 s");
        }
    }
}

void Gpu::stop() noexcept {
    try {
        const ContextScope scope(context_);
        copy_streams_.clear();
        delivery_stream_.reset();
        copier_.reset();
        if (staging_ != nullptr) (void)cuda_driver().host_free(staging_);
        staging_ = nullptr;
    } catch (const Error&) {
        // Logged where it was raised; a process that ends has lost its contexts already.
    }
}

Gpu::~Gpu() {
    stop();
    own_context_.reset();
    (void)cuda_driver().primary_context_release(device_);
}

void Gpu::make_current() {
    cu::Context current = nullptr;
    const CudaDriver& driver = cuda_driver();
    check_cuda(driver.context_get_current(&current), "cuCtxGetCurrent");
    if (current != context_) check_cuda(driver.context_set_current(context_), "cuCtxSetCurrent");
}

void Gpu::poll_all() {
    if (copier_ != nullptr) copier_->poll();
    for (const auto& stream : copy_streams_) stream->poll();
    delivery_stream_->poll();
}

void Gpu::mark_all() {
    for (const auto& stream : copy_streams_) stream->mark_when_worthwhile();
    delivery_stream_->mark_when_worthwhile();
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

MappedMemory Gpu::map_local(std::uint64_t address, const MemoryExport& exported) {
    const ContextScope scope(context_);
    cu::Allocation allocation = 0;
    check_cuda(cuda_driver().retain_allocation(&allocation,
                                               reinterpret_cast<void*>(address - exported.offset)),
               "cuMemRetainAllocationHandle");
    return map_allocation(allocation, exported.allocation_bytes, exported.offset);
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

bool Gpu::owns(std::uint64_t address) const noexcept {
    int device = -1;
    (void)cuda_driver().pointer_get_attribute(&device, cu::kPointerDeviceOrdinal, address);
    return device == device_;
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

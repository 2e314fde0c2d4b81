// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/copier.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "host/base/log.hpp"
#include "host/rma_plugin/copier_image.hpp"

namespace gimlet::rma {

namespace {

constexpr unsigned kIdlePolls = 4096;  // of about a microsecond each

std::uint64_t load(const std::uint64_t& word) {
    return std::atomic_ref(const_cast<std::uint64_t&>(word)).load(std::memory_order_acquire);
}

void store(std::uint64_t& word, std::uint64_t value) {
    std::atomic_ref(word).store(value, std::memory_order_release);
}

}  // namespace

bool CopierLane::is_bulk(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                         std::size_t bytes) const noexcept {
    return order_ == Order::any && ends != CopyEnds::pinned && suits_bulk(target, source, bytes);
}

bool CopierLane::can_copy(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                          std::size_t bytes) const noexcept {
    const bool bulk = is_bulk(ends, target, source, bytes);
    std::size_t limit = kMostPlainBytes;
    if (order_ == Order::any) {
        limit = copier_->options().limit_bytes;
        if (!bulk || ends != CopyEnds::device) limit = std::min(limit, kMostPlainBytes);
    }
    return bytes <= limit && has_room(most_commands(bulk, bytes)) &&
           ((target | source) & ~kCopierPayloadMask) == 0;
}

bool CopierLane::can_write(std::uint64_t target) const noexcept {
    return has_room(1) && (target & ~kCopierPayloadMask) == 0;
}

bool CopierLane::has_room(std::size_t commands) const noexcept {
    return posted_ - completed_ + commands <= kCopierSlots;
}

void CopierLane::post(CopierKind kind, std::uint64_t target, std::uint64_t value,
                      std::uint64_t source, std::size_t bytes) noexcept {
    const bool is_copy = kind == CopierKind::copy || kind == CopierKind::bulk;
    const std::uint64_t low = value & 0xffffffff;
    const std::uint64_t payload[kCopierWords] = {
        target, is_copy ? source : low,
        bytes | static_cast<std::uint64_t>(kind) << kCopierKindShift, value >> kHalfBits};
    std::uint64_t* slot = memory_->slots[posted_ % kCopierSlots];
    const std::uint64_t tag = copier_tag(posted_);
    for (unsigned i = 0; i < kCopierWords; ++i) {
        store(slot[i], tag | payload[i]);
    }
    ++posted_;
}

void CopierLane::copy(CopyEnds ends, std::uint64_t target, std::uint64_t source,
                      std::size_t bytes) {
    split_copy(is_bulk(ends, target, source, bytes), target, source, bytes,
               [this](CopierKind kind, std::uint64_t to, std::uint64_t from, std::size_t part) {
                   post(kind, to, 0, from, part);
               });
    copier_->wake();
}

void CopierLane::write_small(std::uint64_t target, std::uint64_t value, std::size_t bytes) {
    post(CopierKind::small, target, value, 0, bytes);
    copier_->wake();
}

void CopierLane::write_word(std::uint64_t target, std::uint64_t value) {
    post(CopierKind::word, target, value, 0, sizeof(value));
    copier_->wake();
}

void CopierLane::poll() noexcept {
    completed_ = load(*done_);
}

Copier::Copier(const CopierOptions& options) : options_(options) {
    const CudaDriver& driver = cuda_driver();
    int least = 0;
    int greatest = 0;
    check_cuda(driver.context_stream_priority_range(&least, &greatest),
               "cuCtxGetStreamPriorityRange");
    void* memory = nullptr;
    check_cuda(driver.host_alloc(&memory, sizeof(CopierQueue), cu::kHostDeviceMap),
               "cuMemHostAlloc");
    queue_ = static_cast<CopierQueue*>(memory);
    std::memset(memory, 0, sizeof(CopierQueue));
    moves_.memory_ = &queue_->moves;
    moves_.done_ = &queue_->moved;
    deliveries_.memory_ = &queue_->deliveries;
    deliveries_.done_ = &queue_->delivered;
    cu::Result result = driver.module_load(&module_, gimlet_rma_copier_image);
    if (result == cu::kSuccess) {
        result = driver.module_get_function(&kernel_, module_, "gimlet_rma_copier");
    }
    if (result == cu::kSuccess) {
        result = driver.function_set_attribute(kernel_, cu::kFunctionSharedBytes,
                                               static_cast<int>(kCopierSharedBytes));
    }
    if (result == cu::kSuccess) {
        result = driver.stream_create(&stream_, cu::kStreamNonBlocking, greatest);
    }
    if (result == cu::kSuccess) return;
    release();
    check_cuda(result, "loading the copier's kernel");
}

Copier::~Copier() {
    constexpr auto kLimit = std::chrono::seconds(1);
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (!has_left()) {
        if (std::chrono::steady_clock::now() < end) continue;
        log(LogLevel::warn, kNoRank, "rma: the copier's kernel does not end; its memory is left");
        return;
    }
    release();
}

void Copier::release() noexcept {
    const CudaDriver& driver = cuda_driver();
    if (stream_ != nullptr) (void)driver.stream_destroy(stream_);
    if (module_ != nullptr) (void)driver.module_unload(module_);
    (void)driver.host_free(queue_);
}

bool Copier::has_left() const noexcept {
    return load(queue_->gone) == launches_;
}

void Copier::poll() {
    // In this order: what the kernel did before it left is seen.
    const bool left = has_left();
    moves_.poll();
    deliveries_.poll();
    const bool has_work =
        moves_.completed_ < moves_.posted_ || deliveries_.completed_ < deliveries_.posted_;
    if (left && has_work) launch();
}

void Copier::wake() {
    if (has_left()) launch();
}

void Copier::launch() {
    unsigned long long number = launches_ + 1;
    unsigned idle_polls = kIdlePolls;
    void* arguments[] = {&queue_, &number, &idle_polls};
    check_cuda(cuda_driver().launch_kernel(kernel_, options_.blocks, 1, 1, kCopierThreads, 1, 1,
                                           kCopierSharedBytes, stream_, arguments, nullptr),
               "cuLaunchKernel");
    launches_ = number;
}

}  // namespace gimlet::rma

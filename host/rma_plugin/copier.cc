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

constexpr std::size_t kPieceBytes = 32768;  // as much as the block has under way at once
constexpr std::size_t kMostPieces = Copier::kMostBytes / kPieceBytes;
constexpr unsigned kIdlePolls = 4096;  // of about a microsecond each

}  // namespace

Copier::Copier() {
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
    cu::Result result = driver.module_load(&module_, gimlet_rma_copier_image);
    if (result == cu::kSuccess) {
        result = driver.module_get_function(&kernel_, module_, "gimlet_rma_copier");
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

bool Copier::can_copy(std::uint64_t target, std::uint64_t source,
                      std::size_t bytes) const noexcept {
    return posted_ - completed_ + kMostPieces <= kCopierSlots && bytes <= kMostBytes &&
           ((target | source) & ~kCopierPayloadMask) == 0;
}

void Copier::post(CopierKind kind, std::uint64_t target, std::uint64_t value, std::uint64_t source,
                  std::size_t bytes) noexcept {
    const std::uint64_t low = value & 0xffffffff;
    const std::uint64_t payload[kCopierWords] = {
        target, kind == CopierKind::copy ? source : low,
        bytes | static_cast<std::uint64_t>(kind) << kCopierKindShift, value >> kHalfBits};
    std::uint64_t* slot = queue_->slots[posted_ % kCopierSlots];
    const std::uint64_t tag = copier_tag(posted_);
    for (unsigned i = 0; i < kCopierWords; ++i) {
        std::atomic_ref(slot[i]).store(tag | payload[i], std::memory_order_release);
    }
    ++posted_;
}

void Copier::copy(std::uint64_t target, std::uint64_t source, std::size_t bytes) {
    while (bytes > 0) {
        const std::size_t part = std::min(bytes, kPieceBytes);
        post(CopierKind::copy, target, 0, source, part);
        target += part;
        source += part;
        bytes -= part;
    }
    if (has_left()) launch();
}

void Copier::write_small(std::uint64_t target, std::uint64_t value, std::size_t bytes) {
    post(CopierKind::small, target, value, 0, bytes);
    if (has_left()) launch();
}

void Copier::write_word(std::uint64_t target, std::uint64_t value) {
    post(CopierKind::word, target, value, 0, sizeof(value));
    if (has_left()) launch();
}

bool Copier::has_left() const noexcept {
    return std::atomic_ref(queue_->gone).load(std::memory_order_acquire) == launches_;
}

void Copier::poll() {
    // In this order: what the kernel did before it left is seen.
    const bool left = has_left();
    completed_ = std::atomic_ref(queue_->completed).load(std::memory_order_acquire);
    if (left && completed_ < posted_) launch();
}

void Copier::launch() {
    completed_ = std::atomic_ref(queue_->completed).load(std::memory_order_acquire);
    unsigned long long next = completed_;
    unsigned long long number = launches_ + 1;
    unsigned idle_polls = kIdlePolls;
    void* arguments[] = {&queue_, &next, &number, &idle_polls};
    check_cuda(cuda_driver().launch_kernel(kernel_, 1, 1, 1, kCopierThreads, 1, 1,
                                           kCopierSharedBytes, stream_, arguments, nullptr),
               "cuLaunchKernel");
    launches_ = number;
}

}  // namespace gimlet::rma

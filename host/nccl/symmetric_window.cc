// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/symmetric_window.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "host/base/checked_math.hpp"
#include "host/base/fault.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/check.hpp"
#include "host/nccl/communicator_state.hpp"

namespace gimlet {

namespace {

constexpr std::uint64_t kPageBytes = NCCL_WIN_REQUIRED_ALIGNMENT;

std::vector<AgreementField> agreement_fields(const WindowLayout& layout,
                                             const WindowOptions& options) {
    std::vector<AgreementField> fields;
    fields.push_back({"total bytes", fmt::format("{}", layout.total_bytes())});
    fields.push_back(
        {"ordering", options.ordering == WindowOptions::Ordering::strict ? "strict" : "relaxed"});
    for (const WindowRegion& region : layout.regions()) {
        fields.push_back({"region " + region.name,
                          fmt::format("{} B at {}", region.bytes, region.offset_bytes)});
    }
    return fields;
}

}  // namespace

SymmetricWindow::SymmetricWindow(std::shared_ptr<CommunicatorState> state, WindowLayout layout)
    : state_(std::move(state)), layout_(std::move(layout)) {
    const std::uint64_t wanted = std::max(layout_.total_bytes(), kPageBytes);
    bytes_ = align_up(wanted, kPageBytes, "window bytes", state_->rank());
    state_->window_count.fetch_add(1);
}

std::unique_ptr<SymmetricWindow> SymmetricWindow::create(Communicator& communicator,
                                                         const WindowLayout& layout,
                                                         const WindowOptions& options) {
    const std::shared_ptr<CommunicatorState>& state = communicator.state();
    (void)state->comm();
    check_agreement(state->bootstrap(), "window", agreement_fields(layout, options));
    if (!state->properties.symmetric_memory) {
        raise_text(ErrorCode::not_supported, state->rank(),
                   "window: " + no_symmetric_memory_reason(state->properties));
    }
    // Two rounds: no rank may enter the collective registration while another has no memory to
    // bring.
    std::unique_ptr<SymmetricWindow> window(new SymmetricWindow(state, layout));
    std::exception_ptr failure;
    try {
        window->allocate(options);
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    check_all_succeeded(state->bootstrap(), "window allocation", failure);
    try {
        window->register_memory(options);
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    check_all_succeeded(state->bootstrap(), "window registration", failure);
    log(LogLevel::info, state->rank(), "window: {} in {} region(s)", format_bytes(window->bytes_),
        layout.regions().size());
    return window;
}

void SymmetricWindow::allocate(const WindowOptions& options) {
    const int rank = state_->rank();
    const DeviceGuard guard(state_->properties.device, rank);
    const ncclResult_t result = fault_hit(FaultPoint::window_allocate, rank)
                                    ? ncclUnhandledCudaError
                                    : ncclMemAlloc(&memory_, bytes_);
    if (result != ncclSuccess) {
        memory_ = nullptr;
        (void)cudaGetLastError();
        raise(ErrorCode::out_of_memory, rank,
              "window: ncclMemAlloc of {} ({} B) failed on device {}: {}; free device memory or "
              "ask for a "
              "smaller window",
              format_bytes(bytes_), bytes_, state_->properties.device, ncclGetErrorString(result));
    }
    if (options.fill == WindowOptions::Fill::leave) return;
    const Stream stream = Stream::create(rank);
    cuda_check(cudaMemsetAsync(memory_, 0, bytes_, stream.get()), "cudaMemsetAsync of the window",
               rank);
    stream.synchronize();
}

void SymmetricWindow::register_memory(const WindowOptions& options) {
    const int rank = state_->rank();
    const ncclComm_t comm = state_->comm();
    const DeviceGuard guard(state_->properties.device, rank);
    const int flags = options.ordering == WindowOptions::Ordering::strict ? NCCL_WIN_STRICT_ORDERING
                                                                          : NCCL_WIN_DEFAULT;
    nccl_complete(ncclCommWindowRegister(comm, memory_, bytes_, &window_, flags),
                  "ncclCommWindowRegister", rank, comm);
    if (fault_hit(FaultPoint::window_register, rank)) {
        raise(ErrorCode::nccl, rank, "window: a test asked for this failure");
    }
    if (fault_hit(FaultPoint::window_null, rank) && window_ != nullptr) {
        nccl_warn(ncclCommWindowDeregister(comm, window_), "ncclCommWindowDeregister", rank);
        window_ = nullptr;
    }
    if (window_ == nullptr) {
        raise_text(ErrorCode::not_supported, rank,
                   "window: NCCL reported success and gave no window; " +
                       no_symmetric_memory_reason(state_->properties));
    }
}

SymmetricWindow::~SymmetricWindow() {
    release();
}

void SymmetricWindow::close() {
    release();
}

void SymmetricWindow::release() noexcept {
    if (state_ == nullptr) return;
    const int rank = state_->rank();
    if (window_ != nullptr && state_->is_open()) {
        nccl_warn(ncclCommWindowDeregister(state_->raw_comm(), window_), "ncclCommWindowDeregister",
                  rank);
    }
    window_ = nullptr;
    if (memory_ != nullptr) nccl_warn(ncclMemFree(memory_), "ncclMemFree", rank);
    memory_ = nullptr;
    state_->window_count.fetch_sub(1);
    state_.reset();
}

ncclWindow_t SymmetricWindow::handle() const {
    if (window_ == nullptr) raise(ErrorCode::closed, kNoRank, "the window was closed");
    return window_;
}

void SymmetricWindow::check_offset(std::uint64_t offset_bytes, const char* what) const {
    if (memory_ == nullptr) raise(ErrorCode::closed, kNoRank, "{}: the window was closed", what);
    if (offset_bytes >= bytes_) {
        raise(ErrorCode::invalid_argument, state_->rank(),
              "{}: offset {} B is outside the window of {} B", what, offset_bytes, bytes_);
    }
}

void* SymmetricWindow::local(std::uint64_t offset_bytes) const {
    check_offset(offset_bytes, "window local");
    return static_cast<std::byte*>(memory_) + offset_bytes;
}

void* SymmetricWindow::local_flat(std::uint64_t offset_bytes) const {
    check_offset(offset_bytes, "window local_flat");
    void* pointer = nullptr;
    nccl_check(
        ncclGetLsaDevicePointer(window_, offset_bytes, state_->properties.lsa_rank, &pointer),
        "ncclGetLsaDevicePointer", state_->rank(), state_->comm());
    return pointer;
}

void* SymmetricWindow::peer(int peer_rank, std::uint64_t offset_bytes) const {
    check_offset(offset_bytes, "window peer");
    if (peer_rank < 0 || peer_rank >= state_->properties.size) {
        raise(ErrorCode::invalid_argument, state_->rank(), "window peer: rank {} is outside 0..{}",
              peer_rank, state_->properties.size - 1);
    }
    void* pointer = nullptr;
    nccl_check(ncclGetPeerDevicePointer(window_, offset_bytes, peer_rank, &pointer),
               "ncclGetPeerDevicePointer", state_->rank(), state_->comm());
    return pointer;
}

}  // namespace gimlet

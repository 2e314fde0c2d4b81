// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/stream.hpp"

#include <utility>

#include "host/cuda/check.hpp"

namespace gimlet {

Stream Stream::create(int rank) {
    Stream stream;
    stream.rank_ = rank;
    // Non-blocking: the legacy default stream must never wait for a kernel that spins.
    cuda_check(cudaStreamCreateWithFlags(&stream.stream_, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags", rank);
    return stream;
}

Stream::Stream(Stream&& other) noexcept
    : stream_(std::exchange(other.stream_, nullptr)), rank_(other.rank_) {}

Stream& Stream::operator=(Stream&& other) noexcept {
    if (this != &other) {
        reset();
        stream_ = std::exchange(other.stream_, nullptr);
        rank_ = other.rank_;
    }
    return *this;
}

Stream::~Stream() {
    reset();
}

void Stream::reset() noexcept {
    if (stream_ == nullptr) return;
    cuda_warn(cudaStreamDestroy(stream_), "cudaStreamDestroy", rank_);
    stream_ = nullptr;
}

void Stream::synchronize() const {
    cuda_check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize", rank_);
}

Event Event::create(EventTiming timing, int rank) {
    Event event;
    event.rank_ = rank;
    const unsigned flags = timing == EventTiming::on
                               ? cudaEventDefault
                               : static_cast<unsigned>(cudaEventDisableTiming);
    cuda_check(cudaEventCreateWithFlags(&event.event_, flags), "cudaEventCreateWithFlags", rank);
    return event;
}

Event::Event(Event&& other) noexcept
    : event_(std::exchange(other.event_, nullptr)), rank_(other.rank_) {}

Event& Event::operator=(Event&& other) noexcept {
    if (this != &other) {
        reset();
        event_ = std::exchange(other.event_, nullptr);
        rank_ = other.rank_;
    }
    return *this;
}

Event::~Event() {
    reset();
}

void Event::reset() noexcept {
    if (event_ == nullptr) return;
    cuda_warn(cudaEventDestroy(event_), "cudaEventDestroy", rank_);
    event_ = nullptr;
}

void Event::record(cudaStream_t stream) const {
    cuda_check(cudaEventRecord(event_, stream), "cudaEventRecord", rank_);
}

void Event::make_wait(cudaStream_t stream) const {
    cuda_check(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent", rank_);
}

bool Event::query() const {
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) return false;
    cuda_check(result, "cudaEventQuery", rank_);
    return true;
}

void Event::synchronize() const {
    cuda_check(cudaEventSynchronize(event_), "cudaEventSynchronize", rank_);
}

float Event::elapsed_ms(const Event& start, const Event& end) {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, start.event_, end.event_), "cudaEventElapsedTime",
               start.rank_);
    return ms;
}

bool stream_is_capturing(cudaStream_t stream, int rank) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cuda_check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing", rank);
    return status != cudaStreamCaptureStatusNone;
}

}  // namespace gimlet

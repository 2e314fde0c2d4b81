// SPDX-License-Identifier: Apache-2.0
// Streams and events that own themselves. Move only; destructors never throw and never wait.
#pragma once

#include <cuda_runtime.h>

#include "host/base/error.hpp"

namespace gimlet {

/// A non-blocking stream of the current device. Destroying it while work is queued is allowed: CUDA
/// frees it when that work has finished.
class Stream {
  public:
    Stream() = default;  ///< empty
    static Stream create(int rank = kNoRank);
    Stream(Stream&& other) noexcept;
    Stream& operator=(Stream&& other) noexcept;
    ~Stream();

    cudaStream_t get() const noexcept { return stream_; }
    explicit operator bool() const noexcept { return stream_ != nullptr; }
    /// Blocks until all queued work is done; raises its error.
    void synchronize() const;

  private:
    void reset() noexcept;
    cudaStream_t stream_ = nullptr;
    int rank_ = kNoRank;
};

enum class EventTiming { off, on };

class Event {
  public:
    Event() = default;  ///< empty
    static Event create(EventTiming timing = EventTiming::off, int rank = kNoRank);
    Event(Event&& other) noexcept;
    Event& operator=(Event&& other) noexcept;
    ~Event();

    cudaEvent_t get() const noexcept { return event_; }
    explicit operator bool() const noexcept { return event_ != nullptr; }
    void record(cudaStream_t stream) const;
    /// Work queued on `stream` after this call waits for the recorded work. Does not block the
    /// host.
    void make_wait(cudaStream_t stream) const;
    /// True once the recorded work is done. Raises if it failed.
    bool query() const;
    void synchronize() const;
    /// Both events need EventTiming::on and finished work.
    static float elapsed_ms(const Event& start, const Event& end);

  private:
    void reset() noexcept;
    cudaEvent_t event_ = nullptr;
    int rank_ = kNoRank;
};

/// True between the begin and the end of a capture into a CUDA graph.
bool stream_is_capturing(cudaStream_t stream, int rank = kNoRank);

}  // namespace gimlet

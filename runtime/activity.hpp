// SPDX-License-Identifier: Apache-2.0
// What the host knows of the kernels that it has queued.
#pragma once

#include <cuda_runtime.h>

namespace gimlet {

/// Whether kernels of one owner may still run, as far as the host has seen. Replays of graphs are
/// not seen.
class Activity {
  public:
    void note(cudaStream_t stream) noexcept {
        streams_differ_ = busy_ && (streams_differ_ || stream != stream_);
        stream_ = stream;
        busy_ = true;
    }
    /// The work on `stream` is done.
    void drained(cudaStream_t stream) noexcept {
        if (!streams_differ_ && stream == stream_) busy_ = false;
    }
    void device_idle() noexcept { busy_ = false; }
    bool busy() const noexcept { return busy_; }

  private:
    cudaStream_t stream_ = nullptr;
    bool busy_ = false;
    bool streams_differ_ = false;
};

}  // namespace gimlet

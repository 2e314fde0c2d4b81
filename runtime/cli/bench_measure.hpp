// SPDX-License-Identifier: Apache-2.0
// Timing of steps on a stream: all ranks side by side, L2 emptied between, the slowest rank counts.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "host/bootstrap/bootstrap.hpp"
#include "host/cuda/buffer.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::cli {

/// One number per measured call, in microseconds, over all ranks.
struct Timing {
    double median_us = 0;  ///< median over calls of the slowest rank's time
    double best_us = 0;
    double worst_us = 0;
    double host_us = 0;  ///< median CPU time of one call on the slowest rank
    double wall_us = 0;  ///< median host time from the call to the end of its kernel, slowest rank
    int calls = 0;
};

/// What the hardware can do, as measured in the same run.
struct CopyRates {
    double copy_bytes_per_s = 0;  ///< bytes read plus bytes written, on one GPU
    double link_bytes_per_s = 0;  ///< to another GPU of the team, one direction; 0 = no such GPU
};

struct MeasureOptions {
    int warmups = 3;
    int calls = 20;
};

class Measure {
  public:
    /// Collective. `flush_bytes` of device memory are overwritten before each measured call, 0 =
    /// warm L2.
    Measure(Runtime& runtime, std::size_t flush_bytes, const MeasureOptions& options);

    /// Collective; blocks. `call` queues the work to be timed on the stream it gets; `prepare`, if
    /// given, queues work that is not timed, before each call.
    Timing run(const std::function<void(cudaStream_t)>& call,
               const std::function<void(cudaStream_t)>& prepare = {});

    /// Collective; blocks. Bytes read plus bytes written per second of a large device-to-device
    /// copy, while the other ranks of the same GPU are idle; the slowest GPU counts.
    double copy_ceiling_bytes_per_s();

    /// Collective; blocks. Bytes per second that one GPU's copy engine moves to another GPU of its
    /// LSA team, while the other GPUs do the same; the slowest counts. 0 if all of a team's ranks
    /// share a GPU.
    double link_rate_bytes_per_s();

    const MeasureOptions& options() const noexcept { return options_; }

  private:
    /// Local. Bytes per second of the fastest of some copies of `bytes` bytes.
    double copy_rate(void* to, const void* from, std::size_t bytes);
    /// Local. The same within this GPU's memory, bytes read plus bytes written.
    double own_copy_rate(std::size_t bytes);
    /// This rank's partner for link_rate_bytes_per_s(), -1 = takes no part.
    int link_partner() const;
    Timing reduce(const std::vector<float>& events_us, const std::vector<float>& host_us,
                  const std::vector<float>& wall_us);

    Runtime& runtime_;
    MeasureOptions options_;
    DeviceBuffer<std::byte> flush_;
};

/// Median of a copy of `values`; 0 for none.
double median(std::vector<double> values);

}  // namespace gimlet::cli

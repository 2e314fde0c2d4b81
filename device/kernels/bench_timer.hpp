// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/bench_args.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"

namespace gimlet::device {

/// The stop watch of one thread.
class BenchTimer {
  public:
    GIMLET_DEVICE void start() {
        start_ns_ = now_ns();
        start_cycles_ = now_cycles();
    }
    GIMLET_DEVICE void stop(BenchTime* time) const {
        time->elapsed_cycles = now_cycles() - start_cycles_;
        time->elapsed_ns = now_ns() - start_ns_;
    }

  private:
    std::uint64_t start_ns_ = 0;
    std::uint64_t start_cycles_ = 0;
};

}  // namespace gimlet::device

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/core/platform.hpp"
#if !GIMLET_EMULATED
#include "device/core/ptx_memory.cuh"
#endif

namespace gimlet::device {

/// Nanoseconds of a clock that all SMs of a GPU share. Its zero is arbitrary and its step may be as
/// long as a microsecond: good for deadlines, not for timing instructions.
GIMLET_DEVICE std::uint64_t now_ns() {
#if GIMLET_EMULATED
    return emu::dev::now_ns();
#else
    return machine::read_globaltimer();
#endif
}

/// Clock cycles of this SM. Its zero is arbitrary.
GIMLET_DEVICE std::uint64_t now_cycles() {
    return static_cast<std::uint64_t>(clock64());
}

/// The thread gives its issue slots away for about this long, at most twice as long; 1 ms is the
/// longest.
GIMLET_DEVICE void sleep_ns(std::uint32_t span_ns) {
#if GIMLET_EMULATED
    emu::dev::sleep_ns(span_ns);
#else
    __nanosleep(span_ns);
#endif
}

}  // namespace gimlet::device

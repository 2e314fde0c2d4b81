// SPDX-License-Identifier: Apache-2.0
// Whether a kernel may use what a caller passes. A wrong pointer would end the CUDA context for
// good, so that it is refused before a launch.
#pragma once

#include <cstddef>

#include "host/base/error.hpp"

namespace gimlet {

/// Raises Error(invalid_argument) unless kernels on `device` can use `pointer`: aligned, and device
/// memory of that device, managed memory, or page-locked host memory (pageable memory only where
/// the device can read it). Null passes. `what` and `name` are for the message: "dispatch", "rows".
void check_device_pointer(const void* pointer, std::size_t alignment_bytes, int device,
                          const char* what, const char* name, int rank = kNoRank);

/// Raises Error(invalid_usage) unless `device` is the calling thread's current one.
void check_current_device(int device, const char* what, int rank = kNoRank);

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// What tests ask of the stand-in driver (fake_cuda.cc) beside the driver's own calls; found by
// dlsym.
#pragma once

#include <cstddef>

extern "C" {
/// Zeroed memory of a pretended device. Not exportable is what NCCL's signal words are.
void* fake_cuda_alloc(std::size_t bytes, int exportable, int device);
void fake_cuda_free(void* memory, std::size_t bytes);
}

// SPDX-License-Identifier: Apache-2.0
//
// Helpers of the emulator's tests.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "host/emulator/simulation.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::emu::test {

using gimlet::test::contains_text;

/// For host programs: an error ends the simulation with the call's text.
inline void check(cudaError_t error, const char* call) {
    if (error != cudaSuccess)
        throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(error));
}
#define EMU_CHECK(call) ::gimlet::emu::test::check((call), #call)

struct Shape {
    dim3 grid = 1;
    dim3 block = 32;
    std::size_t shared_bytes = 0;
    cudaStream_t stream = nullptr;
    bool cooperative = false;
};

template <class... Params, class... Arguments>
cudaError_t launch(const Shape& shape, void (*kernel)(Params...), Arguments&&... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = shape.stream;
    config.attrs = &attribute;
    config.numAttrs = shape.cooperative ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

/// Options of a one-rank simulation.
inline SimOptions one_rank(uint64_t seed) {
    SimOptions options;
    options.ranks = 1;
    options.seed = seed;
    return options;
}

/// The message with which a simulation ends; empty if it ends well.
inline std::string failure_of(const SimOptions& options, const std::function<void(int)>& program) {
    try {
        simulate(options, program);
    } catch (const SimFailure& failure) {
        return failure.what();
    }
    return "";
}

/// Pinned host memory that kernels write results to.
template <class T>
class Pinned {
  public:
    explicit Pinned(std::size_t count) {
        EMU_CHECK(cudaHostAlloc(&data_, count * sizeof(T), cudaHostAllocMapped));
        for (std::size_t i = 0; i < count; ++i) data_[i] = T{};
    }
    ~Pinned() { cudaFreeHost(data_); }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    T* get() { return data_; }
    T& operator[](std::size_t i) { return data_[i]; }

  private:
    T* data_ = nullptr;
};

}  // namespace gimlet::emu::test

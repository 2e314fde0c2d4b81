// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/launch.hpp"

#include <fmt/format.h>

#include "host/cuda/device_info.hpp"

namespace gimlet {

namespace {

constexpr int kMaxThreadsPerBlock = 1024;
// What a kernel may use without opting in.
constexpr std::size_t kDefaultSharedBytes = 48 * 1024;

}  // namespace

std::string LaunchShape::text() const {
    return fmt::format("{} blocks x {} threads, {} B shared{}", grid, threads, shared_bytes,
                       cooperative == Cooperative::yes ? ", cooperative" : "");
}

namespace detail {

void check_shape(const LaunchShape& shape, const char* kernel_name, int rank) {
    if (shape.grid < 1) {
        raise(ErrorCode::invalid_argument, rank, "kernel {}: grid is {}, must be at least 1",
              kernel_name, shape.grid);
    }
    if (shape.threads < 1 || shape.threads > kMaxThreadsPerBlock) {
        raise(ErrorCode::invalid_argument, rank, "kernel {}: {} threads per block, must be 1..{}",
              kernel_name, shape.threads, kMaxThreadsPerBlock);
    }
}

void allow_shared_bytes(const void* kernel, std::size_t bytes, const char* kernel_name, int rank) {
    if (bytes <= kDefaultSharedBytes) return;
    int limit = 0;
    cuda_check(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      current_device(rank)),
               "cudaDeviceGetAttribute", rank);
    if (bytes > static_cast<std::size_t>(limit)) {
        raise(ErrorCode::invalid_argument, rank,
              "kernel {}: {} B of dynamic shared memory per block, this device allows {} B",
              kernel_name, bytes, limit);
    }
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(bytes)),
               "cudaFuncSetAttribute", rank);
}

int blocks_per_sm(const void* kernel, int threads, std::size_t shared_bytes,
                  const char* kernel_name, int rank) {
    int blocks = 0;
    cuda_check(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes),
        kernel_name, rank);
    return blocks;
}

}  // namespace detail

}  // namespace gimlet

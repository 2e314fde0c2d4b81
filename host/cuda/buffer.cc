// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/buffer.hpp"

#include <cstring>

#include "host/base/fault.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"

namespace gimlet::detail {

void* device_allocate(std::size_t bytes, int rank) {
    if (bytes == 0) return nullptr;
    void* pointer = nullptr;
    const cudaError_t result = fault_hit(FaultPoint::device_allocate, rank)
                                   ? cudaErrorMemoryAllocation
                                   : cudaMalloc(&pointer, bytes);
    cuda_check(result, fmt::format("cudaMalloc of {}", format_bytes(bytes)).c_str(), rank);
    return pointer;
}

void device_free(void* pointer, int rank) noexcept {
    if (pointer != nullptr) cuda_warn(cudaFree(pointer), "cudaFree", rank);
}

void* mapped_allocate(std::size_t bytes, void** device_pointer, int rank) {
    *device_pointer = nullptr;
    if (bytes == 0) return nullptr;
    void* pointer = nullptr;
    const cudaError_t result = fault_hit(FaultPoint::host_allocate, rank)
                                   ? cudaErrorMemoryAllocation
                                   : cudaHostAlloc(&pointer, bytes, cudaHostAllocMapped);
    cuda_check(result, fmt::format("cudaHostAlloc of {}", format_bytes(bytes)).c_str(), rank);
    std::memset(pointer, 0, bytes);
    const cudaError_t mapped = cudaHostGetDevicePointer(device_pointer, pointer, 0);
    if (mapped != cudaSuccess) mapped_free(pointer, rank);
    cuda_check(mapped, "cudaHostGetDevicePointer", rank);
    return pointer;
}

void mapped_free(void* pointer, int rank) noexcept {
    if (pointer != nullptr) cuda_warn(cudaFreeHost(pointer), "cudaFreeHost", rank);
}

// Both go through a stream of their own: the default stream would wait for every other stream of
// the process, and so for a kernel that waits for a peer.
void device_fill(void* pointer, int value, std::size_t bytes, int rank) {
    if (bytes == 0) return;
    const Stream stream = Stream::create(rank);
    cuda_check(cudaMemsetAsync(pointer, value, bytes, stream.get()), "cudaMemsetAsync", rank);
    stream.synchronize();
}

void device_copy(void* to, const void* from, std::size_t bytes, int rank) {
    if (bytes == 0) return;
    const Stream stream = Stream::create(rank);
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync",
               rank);
    stream.synchronize();
}

}  // namespace gimlet::detail

// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/pointer.hpp"

#include <cuda_runtime.h>

#include <cstdint>

#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"

namespace gimlet {

void check_device_pointer(const void* pointer, std::size_t alignment_bytes, int device,
                          const char* what, const char* name, int rank) {
    if (pointer == nullptr) return;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address % alignment_bytes != 0) {
        raise(ErrorCode::invalid_argument, rank, "{}: {} is at address {:#x}, not a multiple of {}",
              what, name, address, alignment_bytes);
    }
    cudaPointerAttributes attributes{};
    cuda_check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes", rank);
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
        raise(ErrorCode::invalid_argument, rank,
              "{}: {} is memory of device {}, this rank works on device {}; copy it there", what,
              name, attributes.device, device);
    }
    if (attributes.type != cudaMemoryTypeUnregistered) return;
    int pageable = 0;
    cuda_check(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, device),
               "cudaDeviceGetAttribute", rank);
    if (pageable == 0) {
        raise(
            ErrorCode::invalid_argument, rank,
            "{}: {} is at address {:#x}, which is not memory of the device; pass a device pointer",
            what, name, address);
    }
}

void check_current_device(int device, const char* what, int rank) {
    const int current = current_device(rank);
    if (current != device) {
        raise(ErrorCode::invalid_usage, rank,
              "{}: the current device is {}, this rank was made on device {}; call "
              "cudaSetDevice({}) before",
              what, current, device, device);
    }
}

}  // namespace gimlet

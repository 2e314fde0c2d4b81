// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/device_info.hpp"

#include <cuda_runtime.h>

#include "host/base/text.hpp"
#include "host/cuda/check.hpp"

namespace gimlet {

namespace {

int attribute(cudaDeviceAttr which, int device, int rank) {
    int value = 0;
    cuda_check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute", rank);
    return value;
}

/// -1 where the runtime does not know the attribute.
int optional_attribute(cudaDeviceAttr which, int device) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, which, device) == cudaSuccess) return value;
    (void)cudaGetLastError();
    return -1;
}

}  // namespace

std::string DeviceInfo::text() const {
    return fmt::format(
        "device {} {} (compute capability {}.{}, {} SMs, {} memory, {} shared per block, PCI {})",
        device, name, compute_capability / 10, compute_capability % 10, sm_count,
        format_bytes(memory_bytes), format_bytes(static_cast<std::uint64_t>(shared_optin_bytes)),
        pci_bus_id.empty() ? "unknown" : pci_bus_id);
}

std::string device_fault(const DeviceInfo& info) {
    constexpr int kLeastCapability = 90;
    if (info.compute_capability >= kLeastCapability) return "";
    return fmt::format(
        "device {} ({}) has compute capability {}.{}; bulk copies and mbarriers need {}.{}: use a "
        "Hopper or newer GPU",
        info.device, info.name, info.compute_capability / 10, info.compute_capability % 10,
        kLeastCapability / 10, kLeastCapability % 10);
}

int device_count(int rank) {
    int count = 0;
    const cudaError_t result = cudaGetDeviceCount(&count);
    if (result != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        raise(ErrorCode::cuda, rank,
              "no CUDA device is visible ({}); check the driver with nvidia-smi and the value of "
              "CUDA_VISIBLE_DEVICES, or build with GIMLET_BACKEND=emulator",
              result == cudaSuccess ? "count is 0" : cudaGetErrorName(result));
    }
    return count;
}

int current_device(int rank) {
    int device = 0;
    cuda_check(cudaGetDevice(&device), "cudaGetDevice", rank);
    return device;
}

DeviceInfo query_device_info(int device, int rank) {
    const int count = device_count(rank);
    if (device < 0 || device >= count) {
        raise(ErrorCode::invalid_argument, rank,
              "device {} does not exist; this process sees {} device(s), 0..{}", device, count,
              count - 1);
    }
    cudaDeviceProp properties{};
    cuda_check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties", rank);
    DeviceInfo info;
    info.device = device;
    info.name = properties.name;
    info.uuid.assign(properties.uuid.bytes, sizeof properties.uuid.bytes);
    info.memory_bytes = properties.totalGlobalMem;
    info.sm_count = attribute(cudaDevAttrMultiProcessorCount, device, rank);
    info.l2_bytes = static_cast<std::uint64_t>(attribute(cudaDevAttrL2CacheSize, device, rank));
    info.shared_optin_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device, rank);
    info.shared_per_sm_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device, rank);
    info.max_threads_per_block = attribute(cudaDevAttrMaxThreadsPerBlock, device, rank);
    info.max_threads_per_sm = attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device, rank);
    info.compute_capability = attribute(cudaDevAttrComputeCapabilityMajor, device, rank) * 10 +
                              attribute(cudaDevAttrComputeCapabilityMinor, device, rank);
    info.cooperative_launch = attribute(cudaDevAttrCooperativeLaunch, device, rank) != 0;
    info.mps_client = optional_attribute(cudaDevAttrMpsEnabled, device);
    // The runtime API has no name for this attribute of the driver, "GPUDirect RDMA with VMM
    // memory"; the two enumerations share their numbers.
    constexpr auto kGpuDirectRdmaWithVmm = static_cast<cudaDeviceAttr>(110);
    info.gpu_direct_rdma_with_vmm = optional_attribute(kGpuDirectRdmaWithVmm, device);
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device) == cudaSuccess) {
        info.pci_bus_id = bus_id;
    } else {
        (void)cudaGetLastError();
    }
    return info;
}

DeviceGuard::DeviceGuard(int device, int rank) : device_(device), rank_(rank) {
    before_ = current_device(rank);
    if (before_ != device) cuda_check(cudaSetDevice(device), "cudaSetDevice", rank);
}

DeviceGuard::~DeviceGuard() {
    if (before_ != device_) cuda_warn(cudaSetDevice(before_), "cudaSetDevice", rank_);
}

}  // namespace gimlet

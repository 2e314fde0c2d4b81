// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "host/base/error.hpp"

namespace gimlet {

/// Facts about one device that a plan depends on.
struct DeviceInfo {
    int device = -1;  ///< CUDA ordinal in this process
    std::string name;
    std::string uuid;        ///< its bytes
    std::string pci_bus_id;  ///< identifies the GPU on its host; "" if unknown
    int sm_count = 0;
    int shared_optin_bytes = 0;  ///< most dynamic shared memory of one block
    int shared_per_sm_bytes = 0;
    int max_threads_per_block = 0;
    int max_threads_per_sm = 0;
    int compute_capability = 0;  ///< major * 10 + minor
    std::uint64_t memory_bytes = 0;
    std::uint64_t l2_bytes = 0;  ///< 0 = unknown
    bool cooperative_launch = false;
    int mps_client = -1;  ///< 1: an MPS daemon serves this process, 0: none does, -1: unknown
    int gpu_direct_rdma_with_vmm = -1;  ///< 1 yes, 0 no (then NCCL offers no GIN), -1 unknown

    std::string text() const;
};

/// Why kernels cannot run on this device, with the cure; "" if they can. Pure.
std::string device_fault(const DeviceInfo& info);

/// Number of devices; raises Error(cuda) with the cure if there is no driver or no device.
int device_count(int rank = kNoRank);
int current_device(int rank = kNoRank);
DeviceInfo query_device_info(int device, int rank = kNoRank);

/// Makes `device` current and restores the one before at the end of the scope.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device, int rank = kNoRank);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    int before_ = -1;
    int device_ = -1;
    int rank_ = kNoRank;
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// Kinds of network device as NCCL numbers them.
#pragma once

typedef enum {
    NCCL_NET_DEVICE_HOST = 0,
    NCCL_NET_DEVICE_UNPACK = 1,
    NCCL_NET_DEVICE_GIN_PROXY = 2,
    NCCL_NET_DEVICE_GIN_GDAKI = 3,
    NCCL_NET_DEVICE_GIN_GPI = 4
} ncclNetDeviceType;

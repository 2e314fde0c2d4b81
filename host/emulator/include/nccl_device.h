// SPDX-License-Identifier: Apache-2.0
// Umbrella of the emulated NCCL device API.
#pragma once

#include "nccl_device/barrier.h"
#include "nccl_device/comm.h"
#include "nccl_device/coop.h"
#include "nccl_device/core.h"
#include "nccl_device/gin.h"
#include "nccl_device/gin_barrier.h"
#include "nccl_device/gin_c.h"
#include "nccl_device/ll_a2a.h"
#include "nccl_device/lsa_barrier.h"
#include "nccl_device/ptr.h"

// SPDX-License-Identifier: Apache-2.0
//
// The few driver API names that programs for the runtime API use. The driver API itself is not
// emulated.
#pragma once

#include "driver_types.h"

#define CUDA_VERSION 13000

using CUstream = CUstream_st*;
using CUevent = CUevent_st*;
using CUdevice = int;
using CUdeviceptr = unsigned long long;

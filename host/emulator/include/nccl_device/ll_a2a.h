// SPDX-License-Identifier: Apache-2.0
// Requirements of NCCL's low-latency all-to-all. The device session is not emulated.
#pragma once

#include "core.h"

struct ncclLLA2AHandle {
    ncclDevResourceHandle_t bufHandle;
    uint32_t nSlots;
};
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

NCCL_EXTERN_C int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
NCCL_EXTERN_C ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots,
                                                      ncclLLA2AHandle_t* outHandle,
                                                      ncclDevResourceRequirements_t* outReq);

// SPDX-License-Identifier: Apache-2.0
// Host half of the emulated NCCL: the subset of NCCL 2.30.7's nccl.h that programs for the device
// API need. Names, argument orders and values are NCCL's; what each call checks is in
// host/emulator/NCCL.md.
//
// Collective calls (init, split, window register, device-communicator create) must be made by all
// ranks of the communicator, in the same order. Between ncclGroupStart and ncclGroupEnd they are
// only queued and complete in ncclGroupEnd, so that one thread can drive several ranks.
#pragma once

#include <cuda_runtime.h>

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23007
#define NCCL_VERSION(X, Y, Z) \
    (((X) > 2 || (Y) > 8) ? (X)*10000 + (Y)*100 + (Z) : (X)*1000 + (Y)*100 + (Z))

// Lets a program tell the emulator's NCCL from the real one.
#define GIMLET_EMULATED_NCCL 1

#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_COMM_NULL NULL
#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNDEF_FLOAT -1.0f

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ncclComm* ncclComm_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclTimeout = 8,
    ncclNumResults = 9
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,
    ncclFloat8e4m3 = 10,
    ncclFloat8e5m2 = 11,
    ncclNumTypes = 12
} ncclDataType_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,
    ncclNumOps = 5
} ncclRedOp_t;

typedef struct ncclConfig_v23000 {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int blocking;
    int cgaClusterSize;
    int minCTAs;
    int maxCTAs;
    const char* netName;
    int splitShare;
    int trafficClass;
    const char* commName;
    int collnetEnable;
    int CTAPolicy;
    int shrinkShare;
    int nvlsCTAs;
    int nChannelsPerNetPeer;
    int nvlinkCentricSched;
    int graphUsageMode;
    int numRmaCtx;
    int maxP2pPeers;
    int graphStreamOrdering;
} ncclConfig_t;

// One value per field of ncclConfig_t, in order: header, then everything undefined.
#define NCCL_CONFIG_INITIALIZER                                                                \
    {                                                                                          \
        sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */    \
            NCCL_CONFIG_UNDEF_INT,                               /* blocking */                \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* CTAs */    \
            NCCL_CONFIG_UNDEF_PTR,                                               /* netName */ \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, /* splitShare, traffic */            \
            NCCL_CONFIG_UNDEF_PTR,                        /* commName */                       \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,               \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,               \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,               \
            NCCL_CONFIG_UNDEF_INT                                                              \
    }

// Version of the emulated library: always NCCL_VERSION_CODE. Local.
ncclResult_t ncclGetVersion(int* version);
// Text of a result code. Never NULL. Local.
const char* ncclGetErrorString(ncclResult_t result);
// Reason of the last failed call on comm (or of this thread when comm is NULL). Never NULL. Local.
const char* ncclGetLastError(ncclComm_t comm);

// Names a rendezvous. Call once, hand the bytes to every rank. The calling process must live until
// all ranks have joined. Local.
ncclResult_t ncclGetUniqueId(ncclUniqueId* unique_id);

// Joins the communicator that commId names, on the current CUDA device. Collective over nranks
// callers.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId comm_id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId comm_id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int id_count,
                                      ncclUniqueId* comm_ids, ncclConfig_t* config);
// All ranks of one communicator in this process; devlist NULL = devices 0..ndev-1.
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devlist);
// New communicator of the ranks with the same color, ordered by (key, old rank). NCCL_SPLIT_NOCOLOR
// gives *newcomm = NULL. Collective over comm.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
// Finalize and Destroy are local here and never wait for a peer. Abort drops operations in flight.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* async_error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();

// Memory that windows can be made of; the only kind that ncclCommWindowRegister takes. Not zeroed.
// Local.
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t ncclMemFree(void* ptr);

// Symmetric window over [buff, buff+size). (buff - start of its allocation) must be a multiple of
// NCCL_WIN_REQUIRED_ALIGNMENT. ncclSuccess with *win == NULL means: this communicator cannot have
// windows (several LSA teams and no GIN). Collective.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int win_flags);
// Local and immediate: synchronise ranks and streams first.
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** out_user_ptr);

#ifdef __cplusplus
}  // extern "C"
#endif

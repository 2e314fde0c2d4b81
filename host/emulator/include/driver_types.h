// SPDX-License-Identifier: Apache-2.0
//
// Types of the CUDA runtime API. Names and values are CUDA's; the structs hold the members that
// programs use.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include "vector_types.h"
#else
typedef struct dim3 {
    unsigned int x, y, z;
} dim3;
#endif

#define GIMLET_EMU_CUDA_ERRORS(X)                                                                 \
    X(cudaSuccess, 0, "no error")                                                                 \
    X(cudaErrorInvalidValue, 1, "an argument is outside its range")                               \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                              \
    X(cudaErrorInitializationError, 3, "initialization error")                                    \
    X(cudaErrorCudartUnloading, 4, "the process is ending")                                       \
    X(cudaErrorInvalidConfiguration, 9, "the launch shape is not possible")                       \
    X(cudaErrorInvalidPitchValue, 12, "invalid pitch value")                                      \
    X(cudaErrorInvalidSymbol, 13, "invalid symbol")                                               \
    X(cudaErrorInvalidHostPointer, 16, "invalid host pointer")                                    \
    X(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                \
    X(cudaErrorInvalidMemcpyDirection, 21, "invalid memcpy direction")                            \
    X(cudaErrorNotYetImplemented, 31, "not yet implemented")                                      \
    X(cudaErrorInsufficientDriver, 35, "insufficient driver")                                     \
    X(cudaErrorMissingConfiguration, 52, "missing configuration")                                 \
    X(cudaErrorInvalidDeviceFunction, 98,                                                         \
      "not a kernel that the emulator knows (launch it once by its typed pointer)")               \
    X(cudaErrorNoDevice, 100, "no device")                                                        \
    X(cudaErrorInvalidDevice, 101, "no such device")                                              \
    X(cudaErrorDeviceUninitialized, 201, "device uninitialized")                                  \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access unsupported")                             \
    X(cudaErrorInvalidSource, 300, "invalid source")                                              \
    X(cudaErrorOperatingSystem, 304, "operating system")                                          \
    X(cudaErrorInvalidResourceHandle, 400, "not a live stream, event or graph")                   \
    X(cudaErrorIllegalState, 401, "illegal state")                                                \
    X(cudaErrorSymbolNotFound, 500, "symbol not found")                                           \
    X(cudaErrorNotReady, 600, "work is still pending")                                            \
    X(cudaErrorIllegalAddress, 700, "illegal address")                                            \
    X(cudaErrorLaunchOutOfResources, 701, "launch out of resources")                              \
    X(cudaErrorLaunchTimeout, 702, "launch timeout")                                              \
    X(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access already enabled")                      \
    X(cudaErrorPeerAccessNotEnabled, 705, "peer access not enabled")                              \
    X(cudaErrorContextIsDestroyed, 709, "context is destroyed")                                   \
    X(cudaErrorAssert, 710, "assert")                                                             \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "host memory already registered")                \
    X(cudaErrorHostMemoryNotRegistered, 713, "host memory not registered")                        \
    X(cudaErrorIllegalInstruction, 715, "illegal instruction")                                    \
    X(cudaErrorMisalignedAddress, 716, "misaligned address")                                      \
    X(cudaErrorLaunchFailure, 719, "the run has ended")                                           \
    X(cudaErrorCooperativeLaunchTooLarge, 720, "the cooperative grid cannot be resident at once") \
    X(cudaErrorNotPermitted, 800, "not permitted here")                                           \
    X(cudaErrorNotSupported, 801, "not supported by the emulator")                                \
    X(cudaErrorSystemNotReady, 802, "system not ready")                                           \
    X(cudaErrorStreamCaptureUnsupported, 900, "not permitted while the stream is being captured") \
    X(cudaErrorStreamCaptureInvalidated, 901, "an earlier error invalidated the capture")         \
    X(cudaErrorStreamCaptureMerge, 902, "the call would merge two captures")                      \
    X(cudaErrorStreamCaptureUnmatched, 903, "the capture did not begin in this stream")           \
    X(cudaErrorStreamCaptureUnjoined, 904,                                                        \
      "the capture has forks that did not join the origin stream")                                \
    X(cudaErrorStreamCaptureIsolation, 905,                                                       \
      "a captured stream would depend on work outside of the capture")                            \
    X(cudaErrorStreamCaptureImplicit, 906,                                                        \
      "the legacy stream would depend implicitly on a captured stream")                           \
    X(cudaErrorCapturedEvent, 907, "the event was last recorded in a capture")                    \
    X(cudaErrorStreamCaptureWrongThread, 908, "the capture began in another thread")              \
    X(cudaErrorTimeout, 909, "timeout")                                                           \
    X(cudaErrorGraphExecUpdateFailure, 910, "graph exec update failure")                          \
    X(cudaErrorExternalDevice, 911, "external device")                                            \
    X(cudaErrorInvalidClusterSize, 912, "invalid cluster size")                                   \
    X(cudaErrorUnknown, 999, "unknown")

enum cudaError {
#define GIMLET_EMU_ENUMERATOR(name, value, text) name = value,
    GIMLET_EMU_CUDA_ERRORS(GIMLET_EMU_ENUMERATOR)
#undef GIMLET_EMU_ENUMERATOR
};
typedef enum cudaError cudaError_t;

typedef enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrTotalConstantMemory = 9,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxPitch = 11,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrClockRate = 13,
    cudaDevAttrTextureAlignment = 14,
    cudaDevAttrGpuOverlap = 15,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrKernelExecTimeout = 17,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrComputeMode = 20,
    cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrEccEnabled = 32,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrTccDriver = 35,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrPciDomainId = 50,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrStreamPrioritiesSupported = 78,
    cudaDevAttrGlobalL1CacheSupported = 79,
    cudaDevAttrLocalL1CacheSupported = 80,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrManagedMemory = 83,
    cudaDevAttrIsMultiGpuBoard = 84,
    cudaDevAttrHostNativeAtomicSupported = 86,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrComputePreemptionSupported = 90,
    cudaDevAttrCanUseHostPointerForRegisteredMem = 91,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrCanFlushRemoteWrites = 98,
    cudaDevAttrHostRegisterSupported = 99,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
    cudaDevAttrReservedSharedMemoryPerBlock = 111,
    cudaDevAttrMemoryPoolsSupported = 115,
    cudaDevAttrGPUDirectRDMASupported = 116,
    cudaDevAttrGPUDirectRDMAFlushWritesOptions = 117,
    cudaDevAttrGPUDirectRDMAWritesOrdering = 118,
    cudaDevAttrMemoryPoolSupportedHandleTypes = 119,
    cudaDevAttrClusterLaunch = 120,
    cudaDevAttrIpcEventSupport = 125,
    cudaDevAttrMemSyncDomainCount = 126,
    cudaDevAttrMpsEnabled = 133,
    cudaDevAttrHostNumaId = 134,
} cudaDeviceAttr;

typedef enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeClusterDimMustBeSet = 10,
    cudaFuncAttributeRequiredClusterWidth = 11,
    cudaFuncAttributeRequiredClusterHeight = 12,
    cudaFuncAttributeRequiredClusterDepth = 13,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
    cudaFuncAttributeClusterSchedulingPolicyPreference = 15,
} cudaFuncAttribute;

typedef enum cudaFuncCache {
    cudaFuncCachePreferNone = 0,
    cudaFuncCachePreferShared = 1,
    cudaFuncCachePreferL1 = 2,
    cudaFuncCachePreferEqual = 3,
} cudaFuncCache;

typedef enum cudaStreamCaptureStatus {
    cudaStreamCaptureStatusNone = 0,
    cudaStreamCaptureStatusActive = 1,
    cudaStreamCaptureStatusInvalidated = 2,
} cudaStreamCaptureStatus;

typedef enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal = 0,
    cudaStreamCaptureModeThreadLocal = 1,
    cudaStreamCaptureModeRelaxed = 2,
} cudaStreamCaptureMode;

typedef enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4,
} cudaMemcpyKind;

typedef enum cudaMemoryType {
    cudaMemoryTypeUnregistered = 0,
    cudaMemoryTypeHost = 1,
    cudaMemoryTypeDevice = 2,
    cudaMemoryTypeManaged = 3,
} cudaMemoryType;

typedef enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeAccessPolicyWindow = 1,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeSynchronizationPolicy = 3,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeClusterSchedulingPolicyPreference = 5,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributeProgrammaticEvent = 7,
    cudaLaunchAttributePriority = 8,
    cudaLaunchAttributeMemSyncDomainMap = 9,
    cudaLaunchAttributeMemSyncDomain = 10,
    cudaLaunchAttributePreferredClusterDimension = 11,
    cudaLaunchAttributeLaunchCompletionEvent = 12,
    cudaLaunchAttributeDeviceUpdatableKernelNode = 13,
    cudaLaunchAttributePreferredSharedMemoryCarveout = 14,
    cudaLaunchAttributeNvlinkUtilCentricScheduling = 16,
} cudaLaunchAttributeID;

typedef enum cudaLaunchMemSyncDomain {
    cudaLaunchMemSyncDomainDefault = 0,
    cudaLaunchMemSyncDomainRemote = 1,
} cudaLaunchMemSyncDomain;

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUgraphNode_st* cudaGraphNode_t;
typedef void (*cudaHostFn_t)(void* user_data);

typedef union cudaLaunchAttributeValue {
    char pad[64];
    int cooperative;
    int syncPolicy;
    struct {
        unsigned int x, y, z;
    } clusterDim;
    struct {
        unsigned int x, y, z;
    } preferredClusterDim;
    int clusterSchedulingPolicyPreference;
    int programmaticStreamSerializationAllowed;
    struct {
        cudaEvent_t event;
        int flags;
        int triggerAtBlockStart;
    } programmaticEvent;
    struct {
        cudaEvent_t event;
        int flags;
    } launchCompletionEvent;
    int priority;
    cudaLaunchMemSyncDomain memSyncDomain;
    unsigned int sharedMemCarveout;
    unsigned int nvlinkUtilCentricScheduling;
} cudaLaunchAttributeValue;

typedef struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    char pad[8 - sizeof(cudaLaunchAttributeID)];
    cudaLaunchAttributeValue val;
} cudaLaunchAttribute;

typedef struct cudaLaunchConfig_t {
    dim3 gridDim;
    dim3 blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

typedef struct cudaPointerAttributes {
    cudaMemoryType type;
    int device;
    void* devicePointer;
    void* hostPointer;
} cudaPointerAttributes;

typedef struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t constSizeBytes;
    size_t localSizeBytes;
    int maxThreadsPerBlock;
    int numRegs;
    int ptxVersion;
    int binaryVersion;
    int cacheModeCA;
    int maxDynamicSharedSizeBytes;
    int preferredShmemCarveout;
} cudaFuncAttributes;

typedef struct cudaUUID_t {
    char bytes[16];
} cudaUUID_t;

typedef struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    size_t totalConstMem;
    int major;
    int minor;
    int multiProcessorCount;
    int integrated;
    int canMapHostMemory;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int tccDriver;
    int asyncEngineCount;
    int unifiedAddressing;
    int memoryBusWidth;
    int l2CacheSize;
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int managedMemory;
    int hostNativeAtomicSupported;
    int pageableMemoryAccess;
    int cooperativeLaunch;
    size_t sharedMemPerBlockOptin;
    int maxBlocksPerMultiProcessor;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported;
    int memoryPoolsSupported;
    int gpuDirectRDMASupported;
    unsigned int gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    int clusterLaunch;
    int mpsEnabled;
} cudaDeviceProp;

#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)

#define cudaHostAllocDefault 0x00
#define cudaHostAllocPortable 0x01
#define cudaHostAllocMapped 0x02
#define cudaHostAllocWriteCombined 0x04
#define cudaHostRegisterDefault 0x00
#define cudaHostRegisterPortable 0x01
#define cudaHostRegisterMapped 0x02
#define cudaHostRegisterIoMemory 0x04
#define cudaHostRegisterReadOnly 0x08
#define cudaStreamDefault 0x00
#define cudaStreamNonBlocking 0x01
#define cudaEventDefault 0x00
#define cudaEventBlockingSync 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaEventRecordDefault 0x00
#define cudaEventRecordExternal 0x01
#define cudaEventWaitDefault 0x00
#define cudaEventWaitExternal 0x01
#define cudaDeviceScheduleAuto 0x00
#define cudaDeviceMapHost 0x08
#define cudaGraphInstantiateFlagAutoFreeOnLaunch 1

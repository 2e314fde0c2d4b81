// SPDX-License-Identifier: Apache-2.0
//
// The CUDA runtime API: devices, memory, streams, events.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "host/emulator/cuda_internal.hpp"

namespace gimlet::emu {
namespace {

constexpr int kDriverVersion = 13000;
constexpr size_t kSharedDefaultMax = 48 * 1024;

// Orders host code against the work of a device (TSAN). Coarser than streams: it may hide a race,
// never invent one.
const void* device_token(const EngineCore& core, int device) {
    return &core.devices()[device];
}

std::optional<int> attribute_value(const EngineCore& core, cudaDeviceAttr attribute, int device) {
    switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: return static_cast<int>(kThreadsPerBlock);
        case cudaDevAttrMaxBlockDimZ: return 64;
        case cudaDevAttrMaxGridDimX: return INT32_MAX;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: return 65535;
        case cudaDevAttrMaxSharedMemoryPerBlock: return static_cast<int>(kSharedDefaultMax);
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return static_cast<int>(kSharedPerBlock);
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return static_cast<int>(kSharedPerSm);
        case cudaDevAttrReservedSharedMemoryPerBlock: return static_cast<int>(kSharedReserved);
        case cudaDevAttrTotalConstantMemory: return 65536;
        case cudaDevAttrWarpSize: return kWarpLanes;
        case cudaDevAttrMaxPitch: return INT32_MAX;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
        case cudaDevAttrClockRate: return 1000000;  // kHz: clock64() counts nanoseconds
        case cudaDevAttrMemoryClockRate: return 1000000;
        case cudaDevAttrGlobalMemoryBusWidth: return 5120;
        case cudaDevAttrTextureAlignment: return 512;
        case cudaDevAttrMultiProcessorCount: return core.options.sm_count;
        case cudaDevAttrPciBusId: return device % 256;
        case cudaDevAttrPciDeviceId: return 0;
        case cudaDevAttrPciDomainId: return device / 256;
        case cudaDevAttrL2CacheSize: return 50 << 20;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return static_cast<int>(kThreadsPerSm);
        case cudaDevAttrMaxBlocksPerMultiprocessor: return static_cast<int>(kBlocksPerSm);
        case cudaDevAttrAsyncEngineCount: return 3;
        case cudaDevAttrComputeCapabilityMajor: return 9;
        case cudaDevAttrComputeCapabilityMinor: return 0;
        case cudaDevAttrMemSyncDomainCount: return 4;
        case cudaDevAttrGPUDirectRDMAFlushWritesOptions: return 1;
        case cudaDevAttrGPUDirectRDMAWritesOrdering: return 100;
        case cudaDevAttrGpuOverlap:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrStreamPrioritiesSupported:
        case cudaDevAttrGlobalL1CacheSupported:
        case cudaDevAttrLocalL1CacheSupported:
        case cudaDevAttrComputePreemptionSupported:
        case cudaDevAttrCanUseHostPointerForRegisteredMem:
        case cudaDevAttrCooperativeLaunch:
        case cudaDevAttrHostRegisterSupported:
        case cudaDevAttrGPUDirectRDMASupported: return 1;
        case cudaDevAttrKernelExecTimeout:
        case cudaDevAttrIntegrated:
        case cudaDevAttrComputeMode:
        case cudaDevAttrEccEnabled:
        case cudaDevAttrTccDriver:
        case cudaDevAttrManagedMemory:
        case cudaDevAttrIsMultiGpuBoard:
        case cudaDevAttrHostNativeAtomicSupported:
        case cudaDevAttrPageableMemoryAccess:
        case cudaDevAttrConcurrentManagedAccess:
        case cudaDevAttrCanFlushRemoteWrites:
        case cudaDevAttrMemoryPoolsSupported:
        case cudaDevAttrMemoryPoolSupportedHandleTypes:
        case cudaDevAttrClusterLaunch:
        case cudaDevAttrIpcEventSupport:
        case cudaDevAttrMpsEnabled: return 0;
        case cudaDevAttrHostNumaId: return -1;
    }
    return std::nullopt;
}

bool valid_device(const EngineCore& core, int device) {
    return device >= 0 && device < core.device_count();
}

void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
               size_t height) {
    for (size_t row = 0; row < height; ++row) {
        std::memmove(static_cast<char*>(to) + row * to_pitch,
                     static_cast<const char*>(from) + row * from_pitch, width);
    }
}

Work action(const char* name, std::function<void()> call) {
    Work work;
    work.kind = Work::Kind::action;
    work.name = name;
    work.call = std::move(call);
    return work;
}

// Work on the legacy stream that the host waits for (cudaMemcpy).
cudaError_t issue_and_wait(const char* what, Work work) {
    return api_wait(what, [&](EngineCore& core, HostContext& host, std::function<bool()>& ready) {
        if (auto error = forbidden_by_capture(core, host)) return *error;
        const auto done = std::make_shared<bool>(false);
        work.call = [call = std::move(work.call), done] {
            call();
            *done = true;
        };
        const cudaError_t error = issue(core, host, nullptr, std::move(work));
        ready = [done] { return *done; };
        return error;
    });
}

// Memory may still be used by work that was issued: freeing waits for the device.
cudaError_t free_when_idle(void* address, MemoryKind kind, cudaError_t unknown) {
    if (address == nullptr) return cudaSuccess;
    cudaError_t error =
        api_wait("cudaFree waits for the device",
                 [&](EngineCore& core, HostContext& host, std::function<bool()>& ready) {
                     if (auto bad = forbidden_by_capture(core, host)) return *bad;
                     const Allocation* held = core.memory->find(address);
                     if (held == nullptr || held->kind != kind) return unknown;
                     const int device = held->device;
                     ready = [&core, device] { return core.streams->device_idle(device); };
                     return cudaSuccess;
                 });
    // A run that ends frees its memory without waiting.
    if (error != cudaSuccess && error != cudaErrorLaunchFailure) return error;
    return api_call([&](EngineCore& core, HostContext&) {
        return core.memory->release(address, kind) ? cudaSuccess : unknown;
    });
}

cudaError_t allocate(void** address, size_t bytes, MemoryKind kind) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (address == nullptr) return cudaErrorInvalidValue;
        *address = nullptr;
        if (auto error = forbidden_by_capture(core, host)) return *error;
        if (bytes == 0) return cudaSuccess;
        *address = core.memory->allocate(bytes, host.device, kind);
        return *address == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
    });
}

}  // namespace

cudaError_t api_wait(const char* what,
                     const std::function<cudaError_t(EngineCore&, HostContext&,
                                                     std::function<bool()>& ready)>& prepare) {
    std::function<bool()> ready;
    const cudaError_t error =
        api_call([&](EngineCore& core, HostContext& host) { return prepare(core, host, ready); });
    if (error != cudaSuccess || !ready) return error;
    EngineCore& core = Engine::get().core();
    HostContext& host = *core.host_context();
    if (core.host_wait(what, ready)) {
        happens_after(device_token(core, host.device));
        if (Watch* const watching = watch()) watching->acquire(device_token(core, host.device));
        return cudaSuccess;
    }
    const cudaError_t ended = core.simulating ? cudaErrorLaunchFailure : cudaErrorCudartUnloading;
    host.last_error = ended;
    return ended;
}

Stream* resolve(EngineCore& core, const HostContext& host, cudaStream_t handle) {
    if (handle == nullptr || handle == cudaStreamLegacy) return core.streams->legacy(host.device);
    if (handle == cudaStreamPerThread) return core.streams->per_thread(host.device);
    Stream* const stream = reinterpret_cast<Stream*>(handle);
    return core.streams->valid(stream) ? stream : nullptr;
}

cudaError_t issue(EngineCore& core, const HostContext& host, cudaStream_t handle, Work work) {
    Stream* const stream = resolve(core, host, handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (auto error = forbidden_on_legacy(core, host, stream)) return *error;
    work.device = stream->device;
    happens_before(device_token(core, stream->device));
    if (Watch* const watching = watch()) watching->release(device_token(core, stream->device));
    if (stream->capture) {
        if (work.kind == Work::Kind::graph) return cudaErrorStreamCaptureUnsupported;
        return capture_work(stream, std::move(work));
    }
    if (core.ended()) return cudaErrorLaunchFailure;
    core.streams->enqueue(stream, std::move(work));
    return cudaSuccess;
}

}  // namespace gimlet::emu

using namespace gimlet::emu;

extern "C" {

// ---- devices

cudaError_t cudaSetDevice(int device) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (!valid_device(core, device)) return cudaErrorInvalidDevice;
        host.device = device;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDevice(int* device) {
    return api_call([&](EngineCore&, HostContext& host) {
        if (device == nullptr) return cudaErrorInvalidValue;
        *device = host.device;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceCount(int* count) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (count == nullptr) return cudaErrorInvalidValue;
        *count = core.device_count();
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (value == nullptr) return cudaErrorInvalidValue;
        if (!valid_device(core, device)) return cudaErrorInvalidDevice;
        const std::optional<int> found = attribute_value(core, attribute, device);
        if (!found) return cudaErrorInvalidValue;
        *value = *found;
        return cudaSuccess;
    });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (properties == nullptr) return cudaErrorInvalidValue;
        if (!valid_device(core, device)) return cudaErrorInvalidDevice;
        const auto value = [&](cudaDeviceAttr attribute) {
            return attribute_value(core, attribute, device).value_or(0);
        };
        *properties = cudaDeviceProp{};
        cudaDeviceProp& p = *properties;
        std::snprintf(p.name, sizeof(p.name), "Gimlet emulated GPU");
        const uint64_t serial = core.serial();
        std::memcpy(p.uuid.bytes, &device, sizeof(device));
        std::memcpy(p.uuid.bytes + 8, &serial, sizeof(serial));
        p.totalGlobalMem = kDeviceMemoryBytes;
        p.sharedMemPerBlock = kSharedDefaultMax;
        p.regsPerBlock = value(cudaDevAttrMaxRegistersPerBlock);
        p.warpSize = kWarpLanes;
        p.memPitch = INT32_MAX;
        p.maxThreadsPerBlock = kThreadsPerBlock;
        p.maxThreadsDim[0] = p.maxThreadsDim[1] = kThreadsPerBlock;
        p.maxThreadsDim[2] = value(cudaDevAttrMaxBlockDimZ);
        p.maxGridSize[0] = value(cudaDevAttrMaxGridDimX);
        p.maxGridSize[1] = p.maxGridSize[2] = value(cudaDevAttrMaxGridDimY);
        p.totalConstMem = value(cudaDevAttrTotalConstantMemory);
        p.major = value(cudaDevAttrComputeCapabilityMajor);
        p.minor = value(cudaDevAttrComputeCapabilityMinor);
        p.multiProcessorCount = core.options.sm_count;
        p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = 1;
        p.pciBusID = value(cudaDevAttrPciBusId);
        p.pciDomainID = value(cudaDevAttrPciDomainId);
        p.asyncEngineCount = value(cudaDevAttrAsyncEngineCount);
        p.memoryBusWidth = value(cudaDevAttrGlobalMemoryBusWidth);
        p.l2CacheSize = value(cudaDevAttrL2CacheSize);
        p.maxThreadsPerMultiProcessor = kThreadsPerSm;
        p.streamPrioritiesSupported = p.cooperativeLaunch = p.hostRegisterSupported = 1;
        p.sharedMemPerMultiprocessor = kSharedPerSm;
        p.regsPerMultiprocessor = value(cudaDevAttrMaxRegistersPerMultiprocessor);
        p.sharedMemPerBlockOptin = kSharedPerBlock;
        p.maxBlocksPerMultiProcessor = kBlocksPerSm;
        p.reservedSharedMemPerBlock = kSharedReserved;
        p.gpuDirectRDMASupported = 1;
        p.gpuDirectRDMAFlushWritesOptions = value(cudaDevAttrGPUDirectRDMAFlushWritesOptions);
        p.gpuDirectRDMAWritesOrdering = value(cudaDevAttrGPUDirectRDMAWritesOrdering);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (text == nullptr || bytes < 13) return cudaErrorInvalidValue;
        if (!valid_device(core, device)) return cudaErrorInvalidDevice;
        std::snprintf(text, static_cast<size_t>(bytes), "%04x:%02x:00.0", device / 256,
                      device % 256);
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return api_call([&](EngineCore& core, HostContext&) {
        unsigned domain = 0;
        unsigned bus = 0;
        if (device == nullptr || text == nullptr ||
            std::sscanf(text, "%x:%x:", &domain, &bus) != 2) {
            return cudaErrorInvalidValue;
        }
        const int found = static_cast<int>(domain * 256 + bus);
        if (!valid_device(core, found)) return cudaErrorInvalidDevice;
        *device = found;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer_device) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (can == nullptr) return cudaErrorInvalidValue;
        if (!valid_device(core, device) || !valid_device(core, peer_device))
            return cudaErrorInvalidDevice;
        *can = device != peer_device;
        return cudaSuccess;
    });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer_device, unsigned int) {
    return api_call([&](EngineCore& core, HostContext&) {
        return valid_device(core, peer_device) ? cudaSuccess : cudaErrorInvalidDevice;
    });
}

cudaError_t cudaDeviceSynchronize(void) {
    return api_wait("cudaDeviceSynchronize",
                    [](EngineCore& core, HostContext& host, std::function<bool()>& ready) {
                        if (auto error = forbidden_by_capture(core, host)) return *error;
                        for (const auto& capture : core.streams->captures) {
                            if (capture->origin->device != host.device) continue;
                            capture->invalidated = true;
                            return cudaErrorStreamCaptureUnsupported;
                        }
                        const int device = host.device;
                        ready = [&core, device] { return core.streams->device_idle(device); };
                        return cudaSuccess;
                    });
}

cudaError_t cudaDeviceReset(void) {
    return cudaErrorNotSupported;
}

cudaError_t cudaSetDeviceFlags(unsigned int) {
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = kDriverVersion;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    if (version == nullptr) return cudaErrorInvalidValue;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError(void) {
    HostContext* const host = Engine::get().core().host_context();
    if (host == nullptr) return cudaSuccess;
    const auto error = static_cast<cudaError_t>(host->last_error);
    host->last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    const HostContext* const host = Engine::get().core().host_context();
    return host == nullptr ? cudaSuccess : static_cast<cudaError_t>(host->last_error);
}

const char* cudaGetErrorName(cudaError_t error) {
    switch (error) {
#define GIMLET_EMU_CASE(name, value, text) \
    case name: return #name;
        GIMLET_EMU_CUDA_ERRORS(GIMLET_EMU_CASE)
#undef GIMLET_EMU_CASE
    }
    return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
#define GIMLET_EMU_CASE(name, value, text) \
    case name: return text;
        GIMLET_EMU_CUDA_ERRORS(GIMLET_EMU_CASE)
#undef GIMLET_EMU_CASE
    }
    return "unrecognized error code";
}

// ---- memory

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (free_bytes == nullptr || total_bytes == nullptr) return cudaErrorInvalidValue;
        const size_t used = core.memory->used_bytes(host.device);
        *total_bytes = kDeviceMemoryBytes;
        *free_bytes = kDeviceMemoryBytes - std::min(used, kDeviceMemoryBytes);
        return cudaSuccess;
    });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (attributes == nullptr) return cudaErrorInvalidValue;
        *attributes = cudaPointerAttributes{cudaMemoryTypeUnregistered, -1, nullptr, nullptr};
        const Allocation* const held = core.memory->find(address);
        void* const plain = const_cast<void*>(address);
        if (held == nullptr) {
            attributes->hostPointer = plain;
            return cudaSuccess;
        }
        const bool on_device = held->kind == MemoryKind::device || held->kind == MemoryKind::other;
        attributes->type = on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
        attributes->device = held->device;
        attributes->devicePointer = plain;
        attributes->hostPointer = on_device ? nullptr : plain;
        return cudaSuccess;
    });
}

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
    return allocate(address, bytes, MemoryKind::device);
}

cudaError_t cudaFree(void* address) {
    return free_when_idle(address, MemoryKind::device, cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t) {
    return allocate(address, bytes, MemoryKind::device);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (auto error = forbidden_by_capture(core, host)) return *error;
        return issue(core, host, stream, action("cudaFreeAsync", [&core, address] {
                         core.memory->release(address, MemoryKind::device);
                     }));
    });
}

cudaError_t cudaMallocHost(void** address, std::size_t bytes) {
    return allocate(address, bytes, MemoryKind::pinned_host);
}

cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned int) {
    return allocate(address, bytes, MemoryKind::pinned_host);
}

cudaError_t cudaFreeHost(void* address) {
    return free_when_idle(address, MemoryKind::pinned_host, cudaErrorInvalidValue);
}

cudaError_t cudaHostGetDevicePointer(void** device_address, void* host_address,
                                     unsigned int flags) {
    return api_call([&](EngineCore& core, HostContext&) {
        if (device_address == nullptr || flags != 0) return cudaErrorInvalidValue;
        const Allocation* const held = core.memory->find(host_address);
        if (held == nullptr ||
            (held->kind != MemoryKind::pinned_host && held->kind != MemoryKind::registered_host)) {
            return cudaErrorInvalidValue;
        }
        *device_address = host_address;
        return cudaSuccess;
    });
}

cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned int) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (address == nullptr || bytes == 0) return cudaErrorInvalidValue;
        if (auto error = forbidden_by_capture(core, host)) return *error;
        if (core.memory->find(address) != nullptr) return cudaErrorHostMemoryAlreadyRegistered;
        core.memory->add(address, bytes, host.device, MemoryKind::registered_host);
        return cudaSuccess;
    });
}

cudaError_t cudaHostUnregister(void* address) {
    return api_call([&](EngineCore& core, HostContext&) {
        const Allocation* const held = core.memory->find(address);
        if (held == nullptr || held->kind != MemoryKind::registered_host) {
            return cudaErrorHostMemoryNotRegistered;
        }
        return core.memory->remove(address) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
    });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    if (bytes == 0) return cudaSuccess;
    if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
    return issue_and_wait("cudaMemcpy", action("copy", [=] { std::memmove(to, from, bytes); }));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (bytes == 0) return cudaSuccess;
        if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
        return issue(core, host, stream, action("copy", [=] { std::memmove(to, from, bytes); }));
    });
}

cudaError_t cudaMemcpy2D(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                         std::size_t width, std::size_t height, cudaMemcpyKind) {
    if (width == 0 || height == 0) return cudaSuccess;
    if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
    return issue_and_wait("cudaMemcpy2D", action("copy 2D", [=] {
                              copy_rows(to, to_pitch, from, from_pitch, width, height);
                          }));
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (width == 0 || height == 0) return cudaSuccess;
        if (to == nullptr || from == nullptr) return cudaErrorInvalidValue;
        if (width > to_pitch || width > from_pitch) return cudaErrorInvalidPitchValue;
        return issue(core, host, stream, action("copy 2D", [=] {
                         copy_rows(to, to_pitch, from, from_pitch, width, height);
                     }));
    });
}

cudaError_t cudaMemset(void* address, int value, std::size_t bytes) {
    return cudaMemsetAsync(address, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* address, int value, std::size_t bytes, cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (bytes == 0) return cudaSuccess;
        if (address == nullptr) return cudaErrorInvalidValue;
        return issue(core, host, stream,
                     action("set", [=] { std::memset(address, value, bytes); }));
    });
}

// ---- streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (stream == nullptr || (flags & ~cudaStreamNonBlocking) != 0)
            return cudaErrorInvalidValue;
        Stream* const made =
            core.streams->create(host.device, (flags & cudaStreamNonBlocking) == 0, priority);
        *stream = reinterpret_cast<cudaStream_t>(made);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
            return cudaErrorInvalidResourceHandle;
        }
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (auto error = forbidden_on(core, stream)) return *error;
        core.streams->destroy(stream);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    return api_wait("cudaStreamSynchronize", [&](EngineCore& core, HostContext& host,
                                                 std::function<bool()>& ready) {
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (auto error = forbidden_on(core, stream)) return *error;
        if (auto error = forbidden_on_legacy(core, host, stream)) return *error;
        const int device = stream->device;
        if (stream->legacy) {
            ready = [&core, device] { return core.streams->blocking_work_idle(device); };
        } else {
            ready = [&core, stream] { return core.streams->idle(stream); };
        }
        return cudaSuccess;
    });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
    const cudaError_t result = api_call([&](EngineCore& core, HostContext& host) {
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (auto error = forbidden_on(core, stream)) return *error;
        if (auto error = forbidden_on_legacy(core, host, stream)) return *error;
        const bool idle = stream->legacy ? core.streams->blocking_work_idle(stream->device)
                                         : core.streams->idle(stream);
        if (idle) {
            happens_after(device_token(core, stream->device));
            if (Watch* const watching = watch())
                watching->acquire(device_token(core, stream->device));
            return cudaSuccess;
        }
        return core.ended() ? cudaErrorLaunchFailure : cudaErrorNotReady;
    });
    if (result == cudaErrorNotReady) Engine::get().yield("cudaStreamQuery");
    return result;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (event->state->capture) return capture_wait(core, stream, event);
        if (stream->capture) {
            // An event of before the capture: the graph would depend on work outside of it.
            if (event->state->recorded == 0) return cudaSuccess;
            stream->capture->invalidated = true;
            return cudaErrorStreamCaptureIsolation;
        }
        if (event->state->recorded == 0) return cudaSuccess;
        Work work;
        work.kind = Work::Kind::wait;
        work.name = "wait for an event";
        work.event = event->state;
        work.event_version = event->state->recorded;
        return issue(core, host, handle, std::move(work));
    });
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    return api_call([&](EngineCore& core, HostContext& host) {
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (priority == nullptr) return cudaErrorInvalidValue;
        *priority = stream->priority;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned int* flags) {
    return api_call([&](EngineCore& core, HostContext& host) {
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (flags == nullptr) return cudaErrorInvalidValue;
        *flags = stream->blocking ? cudaStreamDefault : cudaStreamNonBlocking;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int* device) {
    return api_call([&](EngineCore& core, HostContext& host) {
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (device == nullptr) return cudaErrorInvalidValue;
        *device = stream->device;
        return cudaSuccess;
    });
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    return api_call([&](EngineCore&, HostContext& host) {
        if (event == nullptr) return cudaErrorInvalidValue;
        if ((flags & cudaEventInterprocess) != 0) return cudaErrorNotSupported;
        *event = new CUevent_st;
        (*event)->state->device = host.device;
        (*event)->state->timing = (flags & cudaEventDisableTiming) == 0;
        return cudaSuccess;
    });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return api_call([&](EngineCore&, HostContext&) {
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        delete event;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned int) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        Stream* const stream = resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (stream->capture) return capture_record(core, stream, event);
        Work work;
        work.kind = Work::Kind::record;
        work.name = "record an event";
        work.event = event->state;
        work.event_version = event->state->recorded + 1;
        const cudaError_t error = issue(core, host, handle, std::move(work));
        if (error != cudaSuccess) return error;
        ++event->state->recorded;
        event->state->capture.reset();
        event->state->device = stream->device;
        return cudaSuccess;
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return api_wait("cudaEventSynchronize",
                    [&](EngineCore& core, HostContext& host, std::function<bool()>& ready) {
                        if (event == nullptr) return cudaErrorInvalidResourceHandle;
                        if (event->state->capture) {
                            event->state->capture->invalidated = true;
                            return cudaErrorCapturedEvent;
                        }
                        (void)core;
                        (void)host;
                        const auto state = event->state;
                        const uint64_t version = state->recorded;
                        ready = [state, version] { return state->completed >= version; };
                        return cudaSuccess;
                    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    const cudaError_t result = api_call([&](EngineCore& core, HostContext&) {
        if (event == nullptr) return cudaErrorInvalidResourceHandle;
        if (event->state->capture) {
            event->state->capture->invalidated = true;
            return cudaErrorCapturedEvent;
        }
        if (event->state->completed >= event->state->recorded) {
            happens_after(device_token(core, event->state->device));
            if (Watch* const watching = watch())
                watching->acquire(device_token(core, event->state->device));
            return cudaSuccess;
        }
        return core.ended() ? cudaErrorLaunchFailure : cudaErrorNotReady;
    });
    if (result == cudaErrorNotReady) Engine::get().yield("cudaEventQuery");
    return result;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    return api_call([&](EngineCore&, HostContext&) {
        if (milliseconds == nullptr) return cudaErrorInvalidValue;
        if (start == nullptr || end == nullptr || !start->state->timing || !end->state->timing ||
            start->state->recorded == 0 || end->state->recorded == 0) {
            return cudaErrorInvalidResourceHandle;
        }
        if (start->state->completed < start->state->recorded ||
            end->state->completed < end->state->recorded) {
            return cudaErrorNotReady;
        }
        const int64_t span_ns = static_cast<int64_t>(end->state->completed_ns) -
                                static_cast<int64_t>(start->state->completed_ns);
        *milliseconds = static_cast<float>(static_cast<double>(span_ns) * 1e-6);
        return cudaSuccess;
    });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (function == nullptr) return cudaErrorInvalidValue;
        Work work;
        work.kind = Work::Kind::host_call;
        work.name = "host function";
        work.call = [function, user_data] { function(user_data); };
        return issue(core, host, stream, std::move(work));
    });
}

}  // extern "C"

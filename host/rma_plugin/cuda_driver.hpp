// SPDX-License-Identifier: Apache-2.0
// The few CUDA driver calls that the plugin makes, found at run time: the library is built without
// the toolkit, loads on machines without a GPU, and touches no CUDA until GPU memory is registered.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gimlet::rma {

namespace cu {

using Result = int;
using DevicePointer = std::uint64_t;
using Allocation = unsigned long long;
struct ContextObject;
using Context = ContextObject*;
struct StreamObject;
using Stream = StreamObject*;
struct EventObject;
using Event = EventObject*;
struct ModuleObject;
using Module = ModuleObject*;
struct FunctionObject;
using Function = FunctionObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;
inline constexpr unsigned kEventNoTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostDeviceMap = 2;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kHandlePosixFd = 1;
inline constexpr int kPointerDeviceOrdinal = 9;
inline constexpr int kAttributeMpsEnabled = 133;
inline constexpr int kFunctionSharedBytes = 8;  ///< dynamic shared memory, at most

struct MemoryLocation {
    int type;  ///< 1 = device
    int id;
};
struct AccessDescription {
    MemoryLocation location;
    int flags;  ///< 3 = read and write
};
struct IpcHandle {
    char data[64];
};

}  // namespace cu

/// Entry points of libcuda.so.1, all present.
struct CudaDriver {
    cu::Result (*init)(unsigned flags);
    cu::Result (*get_error_string)(cu::Result, const char** text);
    cu::Result (*device_get_attribute)(int* value, int attribute, int device);
    cu::Result (*primary_context_retain)(cu::Context*, int device);
    cu::Result (*primary_context_release)(int device);
    cu::Result (*context_get_current)(cu::Context*);
    cu::Result (*context_set_current)(cu::Context);
    cu::Result (*context_create)(cu::Context*, unsigned flags, int device);
    cu::Result (*context_destroy)(cu::Context);
    cu::Result (*context_pop)(cu::Context*);
    cu::Result (*context_stream_priority_range)(int* least, int* greatest);
    cu::Result (*stream_create)(cu::Stream*, unsigned flags, int priority);
    cu::Result (*stream_destroy)(cu::Stream);
    cu::Result (*copy_async)(cu::DevicePointer target, cu::DevicePointer source, std::size_t bytes,
                             cu::Stream);
    cu::Result (*module_load)(cu::Module*, const void* image);
    cu::Result (*module_unload)(cu::Module);
    cu::Result (*module_get_function)(cu::Function*, cu::Module, const char* name);
    cu::Result (*function_set_attribute)(cu::Function, int attribute, int value);
    cu::Result (*launch_kernel)(cu::Function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                unsigned block_x, unsigned block_y, unsigned block_z,
                                unsigned shared_bytes, cu::Stream, void** arguments, void** extra);
    cu::Result (*event_create)(cu::Event*, unsigned flags);
    cu::Result (*event_destroy)(cu::Event);
    cu::Result (*event_record)(cu::Event, cu::Stream);
    cu::Result (*event_query)(cu::Event);
    cu::Result (*host_alloc)(void**, std::size_t bytes, unsigned flags);
    cu::Result (*host_free)(void*);
    cu::Result (*pointer_get_attribute)(void* value, int attribute, cu::DevicePointer);
    cu::Result (*address_range)(cu::DevicePointer* base, std::size_t* bytes, cu::DevicePointer);
    cu::Result (*retain_allocation)(cu::Allocation*, void* address);
    cu::Result (*export_allocation)(void* shareable, cu::Allocation, int type,
                                    unsigned long long flags);
    cu::Result (*import_allocation)(cu::Allocation*, void* shareable, int type);
    cu::Result (*address_reserve)(cu::DevicePointer*, std::size_t bytes, std::size_t alignment,
                                  cu::DevicePointer hint, unsigned long long flags);
    cu::Result (*address_free)(cu::DevicePointer, std::size_t bytes);
    cu::Result (*map)(cu::DevicePointer, std::size_t bytes, std::size_t offset, cu::Allocation,
                      unsigned long long flags);
    cu::Result (*unmap)(cu::DevicePointer, std::size_t bytes);
    cu::Result (*set_access)(cu::DevicePointer, std::size_t bytes, const cu::AccessDescription*,
                             std::size_t count);
    cu::Result (*release_allocation)(cu::Allocation);
    cu::Result (*ipc_get_handle)(cu::IpcHandle*, cu::DevicePointer);
    cu::Result (*ipc_open_handle)(cu::DevicePointer*, cu::IpcHandle, unsigned flags);
    cu::Result (*ipc_close_handle)(cu::DevicePointer);
};

/// Loads the driver at the first call and keeps it. Raises Error(cuda) where there is none. The
/// name is libcuda.so.1 unless GIMLET_RMA_CUDA_LIBRARY says otherwise.
const CudaDriver& cuda_driver();

/// Raises Error(cuda) with the driver's own text unless `result` is success.
void check_cuda(cu::Result result, const char* what);

}  // namespace gimlet::rma

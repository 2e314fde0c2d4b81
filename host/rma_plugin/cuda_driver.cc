// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/cuda_driver.hpp"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "host/base/env.hpp"
#include "host/base/error.hpp"

namespace gimlet::rma {

namespace {

template <typename Function>
void find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        raise(ErrorCode::cuda, kNoRank, "the CUDA driver has no {}; CUDA 12.2 or newer is needed",
              name);
    }
}

void find_memory(void* library, CudaDriver* driver) {
    find(library, "cuMemHostAlloc", &driver->host_alloc);
    find(library, "cuMemFreeHost", &driver->host_free);
    find(library, "cuPointerGetAttribute", &driver->pointer_get_attribute);
    find(library, "cuMemGetAddressRange_v2", &driver->address_range);
    find(library, "cuMemRetainAllocationHandle", &driver->retain_allocation);
    find(library, "cuMemExportToShareableHandle", &driver->export_allocation);
    find(library, "cuMemImportFromShareableHandle", &driver->import_allocation);
    find(library, "cuMemAddressReserve", &driver->address_reserve);
    find(library, "cuMemAddressFree", &driver->address_free);
    find(library, "cuMemMap", &driver->map);
    find(library, "cuMemUnmap", &driver->unmap);
    find(library, "cuMemSetAccess", &driver->set_access);
    find(library, "cuMemRelease", &driver->release_allocation);
    find(library, "cuIpcGetMemHandle", &driver->ipc_get_handle);
    find(library, "cuIpcOpenMemHandle_v2", &driver->ipc_open_handle);
    find(library, "cuIpcCloseMemHandle", &driver->ipc_close_handle);
}

CudaDriver load() {
    const std::string name = env_text(EnvVar::rma_cuda_library);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        raise(ErrorCode::cuda, kNoRank,
              "GPU memory is to be registered, but {} cannot be loaded ({}); install the driver",
              name, dlerror());
    }
    CudaDriver driver{};
    find(library, "cuInit", &driver.init);
    find(library, "cuGetErrorString", &driver.get_error_string);
    find(library, "cuDeviceGetAttribute", &driver.device_get_attribute);
    find(library, "cuDevicePrimaryCtxRetain", &driver.primary_context_retain);
    find(library, "cuDevicePrimaryCtxRelease_v2", &driver.primary_context_release);
    find(library, "cuCtxGetCurrent", &driver.context_get_current);
    find(library, "cuCtxSetCurrent", &driver.context_set_current);
    find(library, "cuCtxCreate_v2", &driver.context_create);
    find(library, "cuCtxDestroy_v2", &driver.context_destroy);
    find(library, "cuCtxPopCurrent_v2", &driver.context_pop);
    find(library, "cuCtxGetStreamPriorityRange", &driver.context_stream_priority_range);
    find(library, "cuStreamCreateWithPriority", &driver.stream_create);
    find(library, "cuStreamDestroy_v2", &driver.stream_destroy);
    find(library, "cuEventCreate", &driver.event_create);
    find(library, "cuEventDestroy_v2", &driver.event_destroy);
    find(library, "cuEventRecord", &driver.event_record);
    find(library, "cuEventQuery", &driver.event_query);
    find(library, "cuMemcpyAsync", &driver.copy_async);
    find(library, "cuModuleLoadData", &driver.module_load);
    find(library, "cuModuleUnload", &driver.module_unload);
    find(library, "cuModuleGetFunction", &driver.module_get_function);
    find(library, "cuFuncSetAttribute", &driver.function_set_attribute);
    find(library, "cuLaunchKernel", &driver.launch_kernel);
    find_memory(library, &driver);
    if (const cu::Result result = driver.init(0); result != cu::kSuccess) {
        raise(ErrorCode::cuda, kNoRank, "cuInit failed with {}", result);
    }
    return driver;
}

}  // namespace

const CudaDriver& cuda_driver() {
    // Not a function-local static: after a failure the next call must try again, and say so again.
    static std::mutex mutex;
    static CudaDriver driver;
    static bool is_loaded = false;
    const std::lock_guard lock(mutex);
    if (!is_loaded) {
        driver = load();
        is_loaded = true;
    }
    return driver;
}

void check_cuda(cu::Result result, const char* what) {
    if (result == cu::kSuccess) return;
    const char* text = nullptr;
    (void)cuda_driver().get_error_string(result, &text);
    raise(ErrorCode::cuda, kNoRank, "{} failed: {} ({})", what, text != nullptr ? text : "unknown",
          result);
}

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
//
// Emulated <cuda_runtime.h>: execution-space words, built-in variables, intrinsics, typed launches.
#pragma once

#include "cuda_runtime_api.h"

#ifdef __cplusplus

#include <functional>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "gimlet_emu_device.hpp"
#include "gimlet_emu_intrinsics.hpp"

// ---- typed launches

namespace gimlet::emu {

/// Makes the call of a kernel from pointers to its arguments, which are copied now.
using KernelBinder = std::function<std::function<void()>(void** arguments)>;

void register_kernel(const void* function, KernelBinder (*make)(const void*));

cudaError_t launch_bound(const cudaLaunchConfig_t& config, const void* function,
                         std::function<void()> call);

template <class... Params>
struct TypedKernel {
    using Pointer = void (*)(Params...);
    using Copies = std::tuple<std::remove_cv_t<std::remove_reference_t<Params>>...>;

    static std::function<void()> bind(Pointer kernel, Copies copies) {
        return [kernel, copies = std::move(copies)] { std::apply(kernel, copies); };
    }

    template <std::size_t... I>
    static std::function<void()> bind_pointers(Pointer kernel, [[maybe_unused]] void** arguments,
                                               std::index_sequence<I...>) {
        return bind(kernel,
                    Copies(*static_cast<std::tuple_element_t<I, Copies>*>(arguments[I])...));
    }

    static KernelBinder binder(const void* function) {
        const Pointer kernel = reinterpret_cast<Pointer>(const_cast<void*>(function));
        return [kernel](void** arguments) {
            return bind_pointers(kernel, arguments, std::index_sequence_for<Params...>{});
        };
    }

    static const void* known(Pointer kernel) {
        const void* const function = reinterpret_cast<const void*>(kernel);
        register_kernel(function, &TypedKernel::binder);
        return function;
    }
};

}  // namespace gimlet::emu

/// Lets the untyped launches (const void*) find `kernel`. Not CUDA: for programs that cast their
/// kernels at once.
template <class... Params>
void gimlet_emu_register_kernel(void (*kernel)(Params...)) {
    gimlet::emu::TypedKernel<Params...>::known(kernel);
}

template <class... Params, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Arguments&&... arguments) {
    using Typed = gimlet::emu::TypedKernel<Params...>;
    if (config == nullptr || kernel == nullptr) return cudaErrorInvalidValue;
    return gimlet::emu::launch_bound(
        *config, Typed::known(kernel),
        Typed::bind(kernel, typename Typed::Copies(std::forward<Arguments>(arguments)...)));
}

template <class... Params>
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                                void** arguments) {
    return cudaLaunchKernelExC(config, gimlet::emu::TypedKernel<Params...>::known(kernel),
                               arguments);
}

template <class... Params>
cudaError_t cudaLaunchKernel(void (*kernel)(Params...), dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
    return cudaLaunchKernel(gimlet::emu::TypedKernel<Params...>::known(kernel), grid, block,
                            arguments, shared_bytes, stream);
}

template <class... Params>
cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Params...), dim3 grid, dim3 block,
                                        void** arguments, std::size_t shared_bytes = 0,
                                        cudaStream_t stream = nullptr) {
    return cudaLaunchCooperativeKernel(gimlet::emu::TypedKernel<Params...>::known(kernel), grid,
                                       block, arguments, shared_bytes, stream);
}

template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute,
                                 int value) {
    return cudaFuncSetAttribute(gimlet::emu::TypedKernel<Params...>::known(kernel), attribute,
                                value);
}

template <class... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
    return cudaFuncGetAttributes(attributes, gimlet::emu::TypedKernel<Params...>::known(kernel));
}

template <class... Params>
cudaError_t cudaFuncSetCacheConfig(void (*kernel)(Params...), cudaFuncCache config) {
    return cudaFuncSetCacheConfig(gimlet::emu::TypedKernel<Params...>::known(kernel), config);
}

template <class... Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*kernel)(Params...),
                                                          int block_threads,
                                                          std::size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, gimlet::emu::TypedKernel<Params...>::known(kernel), block_threads, shared_bytes);
}

// ---- typed memory calls

template <class T>
cudaError_t cudaMalloc(T** address, std::size_t bytes) {
    return cudaMalloc(reinterpret_cast<void**>(address), bytes);
}

template <class T>
cudaError_t cudaMallocAsync(T** address, std::size_t bytes, cudaStream_t stream) {
    return cudaMallocAsync(reinterpret_cast<void**>(address), bytes, stream);
}

template <class T>
cudaError_t cudaMallocHost(T** address, std::size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void**>(address), bytes);
}

template <class T>
cudaError_t cudaHostAlloc(T** address, std::size_t bytes, unsigned int flags) {
    return cudaHostAlloc(reinterpret_cast<void**>(address), bytes, flags);
}

template <class T>
cudaError_t cudaHostGetDevicePointer(T** device_address, void* host_address, unsigned int flags) {
    return cudaHostGetDevicePointer(reinterpret_cast<void**>(device_address), host_address, flags);
}

#endif  // __cplusplus

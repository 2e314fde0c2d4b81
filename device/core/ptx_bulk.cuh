// SPDX-License-Identifier: Apache-2.0
//
// Bulk copies (TMA), mbarriers and named barriers of the GPU. Used through bulk.hpp and group.hpp
// only.
#pragma once

#include <cstdint>

namespace gimlet::device::machine {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(std::uint64_t* bar, std::uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :
                 : "r"(shared_address(bar)), "r"(count)
                 : "memory");
}

__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(std::uint64_t* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :
                 : "r"(shared_address(bar))
                 : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_tx(std::uint64_t* bar, std::uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(bar)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(std::uint64_t* bar, std::uint32_t parity) {
    std::uint32_t complete;
    asm volatile(
        "{\n\t"
        ".reg .pred done;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, done;\n\t"
        "}"
        : "=r"(complete)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
    return complete != 0;
}

__device__ __forceinline__ void bulk_load(void* shared_dst, const void* global_src,
                                          std::uint32_t bytes, std::uint64_t* bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :
        : "r"(shared_address(shared_dst)), "l"(global_src), "r"(bytes), "r"(shared_address(bar))
        : "memory");
}

__device__ __forceinline__ void bulk_store(void* global_dst, const void* shared_src,
                                           std::uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :
                 : "l"(global_dst), "r"(shared_address(shared_src)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void bulk_commit() {
    asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}

template <int pending>
__device__ __forceinline__ void bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(pending) : "memory");
}

template <int pending>
__device__ __forceinline__ void bulk_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" : : "n"(pending) : "memory");
}

__device__ __forceinline__ void named_sync(std::uint32_t id, std::uint32_t thread_count) {
    asm volatile("barrier.sync %0, %1;" : : "r"(id), "r"(thread_count) : "memory");
}

}  // namespace gimlet::device::machine

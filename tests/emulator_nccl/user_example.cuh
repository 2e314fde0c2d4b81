// SPDX-License-Identifier: Apache-2.0
// Device side of the example; compiles with nvcc against NCCL's own headers, too.
#pragma once

#include <cuda_runtime.h>
#include <nccl_device.h>

constexpr int kExampleBlocks = 2;
constexpr int kExampleThreads = 64;

/// Each rank holds `count` elements for every rank, and gets `count` from every rank, in rank
/// order. Collective.
template <typename T>
__global__ void all_to_all(ncclWindow_t send_window, size_t send_offset,
                           ncclWindow_t receive_window, size_t receive_offset, size_t count,
                           ncclDevComm dev_comm) {
    const ncclCoopCta cta;
    const ncclGin gin(dev_comm, 0);
    const ncclTeam world = ncclTeamWorld(dev_comm);
    const ncclTeam lsa = ncclTeamLsa(dev_comm);

    // Block b of a sender serves the peers p with p % blocks == b and rings signal b; so the
    // signals meant for this rank come from block `rank % blocks` everywhere. They start after the
    // barrier of that block, which is why the old value must be read before it.
    const int blocks = gridDim.x;
    const int block = blockIdx.x;
    const uint64_t signal_before = gin.readSignal(block);
    ncclBarrierSession<ncclCoopCta> barrier(cta, ncclTeamTagWorld(), gin, blockIdx.x);
    barrier.sync(cta, cuda::memory_order_acquire, ncclGinFenceLevel::None);

    const size_t bytes = count * sizeof(T);
    const size_t my_place = receive_offset + dev_comm.rank * bytes;
    for (int peer = block + threadIdx.x * blocks; peer < world.nRanks;
         peer += blockDim.x * blocks) {
        if (ncclTeamRankIsMember(lsa, world, peer)) continue;
        gin.put(world, peer, receive_window, my_place, send_window, send_offset + peer * bytes,
                bytes, ncclGin_WeakSignalInc{static_cast<ncclGinSignal_t>(block)});
    }
    // Near peers take plain stores.
    const T* mine = static_cast<const T*>(ncclGetLocalPointer(send_window, send_offset));
    for (int near_peer = 0; near_peer < lsa.nRanks; ++near_peer) {
        const int peer = ncclTeamRankToWorld(dev_comm, lsa, near_peer);
        T* theirs = static_cast<T*>(ncclGetLsaPointer(receive_window, my_place, near_peer));
        for (size_t i = threadIdx.x + block * blockDim.x; i < count; i += blockDim.x * blocks) {
            theirs[i] = mine[peer * count + i];
        }
    }
    const int remote_peers = world.nRanks - lsa.nRanks;
    if (block == dev_comm.rank % blocks) gin.waitSignal(cta, block, signal_before + remote_peers);
    gin.flush(cta);

    barrier.sync(cta, cuda::memory_order_acq_rel, ncclGinFenceLevel::None);
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gimlet {

/// Geometry of one kernel launch.
struct KernelShape {
    std::int32_t block_count;
    std::int32_t thread_count;    ///< per block, a multiple of 32
    std::uint32_t shared_bytes;   ///< dynamic shared memory per block
    std::int32_t copy_warps;      ///< warps that load rows; combine: each has a ring of its own
    std::int32_t slots_per_warp;  ///< row slots of shared memory per copy warp, >= 2
    std::uint32_t slot_bytes;     ///< bytes of one slot; longer rows move in pieces
    std::int32_t forward_warps;   ///< hybrid dispatch: warps that hand on rows of the rail; fifo:
                                  ///< dispatch warps that take rows from rings, combine warps that
                                  ///< send rows home; else 0
    std::int32_t count_warps;     ///< dispatch: warps that compute slots, bounded by shared memory
};

/// What Plan decided for the kernels of one Exchange.
struct KernelPlan {
    KernelShape dispatch;
    KernelShape combine;
    KernelShape barrier;
    std::int32_t chunk_rows;         ///< rows of one GIN put, >= 1
    std::int32_t gin_context_count;  ///< 0 = no GIN
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gimlet::device {

/// Who takes part in an ordered access. `block`: threads of one block, on shared or global memory.
/// `gpu`: threads of one GPU. `system`: all GPUs, the host and the NIC. The two wider ones address
/// global memory (device, peer, host-mapped) only. Ranks are different GPUs, so whatever crosses
/// ranks is `system`.
enum class Scope { block, gpu, system };

/// Memory order of the underlying instruction; the public functions carry it in their names.
enum class Order { relaxed, acquire, release, acq_rel };

}  // namespace gimlet::device

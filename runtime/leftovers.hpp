// SPDX-License-Identifier: Apache-2.0
// What abort() and destructors must not free yet, because kernels that were queued, or puts of
// other ranks, may still use it. Internal.
#pragma once

#include <memory>
#include <string>

#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "runtime/routing.hpp"

namespace gimlet {

class StepGuard;
struct RuntimeCore;

/// Of an Exchange; of a Routing (only `routing` and `core` are set), whose memory is here from the
/// start; or of a Runtime (`core` only, which holds all
/// that is the Runtime's).
struct Leftovers {
    Leftovers() = default;
    Leftovers(const Leftovers&) = delete;
    Leftovers& operator=(const Leftovers&) = delete;
    ~Leftovers();

    std::shared_ptr<RuntimeCore> core;
    std::unique_ptr<DeviceCommunicator> device_comm;
    std::unique_ptr<SymmetricWindow> window;
    std::shared_ptr<StepGuard> guard;
    DeviceBuffer<std::byte> tensors;
    Event before;
    Event after;
    RoutingMemory routing;
    bool kept_routing = false;  // counted in core->kept_routing_count
    bool counted = false;       // in RuntimeCore::leftover_count: kernels may use it
    std::unique_ptr<Leftovers> next;
};

/// Any thread; never waits or throws. At the end of the process what is still here goes with it.
void keep_leftovers(std::unique_ptr<Leftovers> leftovers) noexcept;
/// Any thread. Waits for the current device, which is that with `uuid`, if something of it is here
/// that may go, and frees that. Returns how many there were. While a Runtime with GIN is open, puts
/// of its aborted Exchanges may be on their way even if the device is idle: they stay, unless it is
/// `settled`, where the caller knows that no rank's device works.
int free_leftovers(const std::string& uuid, const RuntimeCore* settled, int rank);
/// Any thread; never waits or throws. Frees what `core` has here and no kernel uses. NCCL's
/// communicator has been aborted, so nothing of it is written by others any more.
void free_idle_leftovers(const RuntimeCore& core) noexcept;

}  // namespace gimlet

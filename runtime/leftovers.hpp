// SPDX-License-Identifier: Apache-2.0
// What abort() and destructors leave behind. They free nothing: CUDA and NCCL would wait for every
// kernel on the device, whosever it is. Internal.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "runtime/routing.hpp"

namespace gimlet {

class StepGuard;
struct RuntimeCore;

/// Of an Exchange; of a Routing, whose memory is here from the start; or of a Runtime.
struct Leftovers {
    Leftovers() = default;
    Leftovers(const Leftovers&) = delete;
    Leftovers& operator=(const Leftovers&) = delete;
    ~Leftovers();

    /// Puts of other ranks may be on their way to it.
    bool reachable() const noexcept;

    std::shared_ptr<RuntimeCore> core;
    std::uint64_t exchange_number = 0;  // 0 = not of an Exchange
    std::unique_ptr<DeviceCommunicator> device_comm;
    std::unique_ptr<SymmetricWindow> window;
    std::shared_ptr<StepGuard> guard;
    DeviceBuffer<std::byte> tensors;
    Event before;
    Event after;
    MappedBuffer<DeviceError> group_records;
    RoutingMemory routing;
    bool kept_routing = false;  // counted in core->kept_routing_count
    bool counted = false;       // in RuntimeCore::leftover_count: kernels may use it
    std::unique_ptr<Leftovers> next;
};

/// Any thread; never waits or throws. At the end of the process what is still here goes with it.
void keep_leftovers(std::unique_ptr<Leftovers> leftovers) noexcept;

/// Waits for the current device, which is that with `uuid`, if something of it is here that may go,
/// and frees that: memory of Routings, what is left of Runtimes that are closed or aborted, and
/// what no put reaches of those Exchanges whose Runtime is `owner`, which the calling thread serves
/// (null = none). NCCL's communicators are not thread safe: those of other open Runtimes are left
/// alone. Returns how many there were.
int free_leftovers(const std::string& uuid, const RuntimeCore* owner, int rank);
/// The same for the current device, before there is a Runtime.
int free_ownerless_leftovers(int rank);

/// For simulations, before they begin: sets aside for good what lies here, of machines that have
/// ended. Whether anything lies here decides which calls a Runtime makes, and so the schedule.
void retire_leftovers() noexcept;

/// Numbers of those of its Exchanges that puts may still reach, ascending.
std::vector<std::uint64_t> reachable_leftovers(const RuntimeCore& owner);
/// What is left of that Exchange; null if nothing is.
std::unique_ptr<Leftovers> take_leftovers(const RuntimeCore& owner, std::uint64_t exchange_number);

}  // namespace gimlet

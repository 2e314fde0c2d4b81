// SPDX-License-Identifier: Apache-2.0
// What a Runtime shares with its Exchanges. Internal.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/abi/kernel_args.hpp"
#include "host/bootstrap/bootstrap.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/communicator.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "host/nccl/topology.hpp"
#include "runtime/activity.hpp"
#include "runtime/config.hpp"
#include "runtime/leftovers.hpp"
#include "runtime/step_guard.hpp"

namespace gimlet {

/// How much longer than the device's own deadline the host waits for the device to report: a kernel
/// reports by itself, so only a dead context or a lost launch is caught here.
std::uint64_t host_deadline_ns(std::uint64_t device_deadline_ns) noexcept;

class Exchange;

struct RuntimeCore {
    std::shared_ptr<Bootstrap> bootstrap;  // of the ranks that are left
    std::vector<int> live_ranks;           // their world ranks, by their rank in `bootstrap`
    std::unique_ptr<Communicator> communicator;
    Topology topology;
    DeviceInfo device;
    std::uint64_t deadline_ns = 0;
    std::uint64_t host_limit_ns = 0;  // host_deadline_ns of the longest deadline of any call so far
    std::uint64_t first_step = 0;
    RuntimeConfig::EventRing event_ring = RuntimeConfig::EventRing::off;
    std::vector<Exchange*> open_exchanges;  // by age
    std::uint64_t exchange_count = 0;       // made so far: the same on all ranks
    std::uint64_t barrier_count = 0;

    // The barrier's own window and device communicator.
    std::unique_ptr<DeviceCommunicator> barrier_device_comm;
    std::unique_ptr<SymmetricWindow> barrier_window;
    std::shared_ptr<StepGuard> barrier_guard;
    BarrierArgs barrier_args{};
    KernelShape barrier_shape{};

    // Whether kernels may still run.
    Activity barrier_activity;
    bool barrier_captured = false;  // replays are not seen
    bool side_stream_stuck = false;
    std::atomic<int> leftover_count{0};      // aborted Exchanges that are not freed yet
    std::atomic<int> kept_routing_count{0};  // destroyed Routings that are not freed yet

    // For the host's own kernels after a failure.
    Stream side_stream;
    MappedBuffer<DeviceError> group_records;  // [R]

    int rank() const noexcept { return topology.rank; }
    /// Ascending.
    std::vector<int> excluded_ranks() const;
    void require_open(const char* what) const;
    /// From now on the host waits long enough for steps of this deadline.
    void allow_for(std::uint64_t deadline_ns) noexcept;
    /// A call's own deadline, if it has one.
    void use_deadline(std::optional<std::uint64_t> deadline_ns, PeerHandles* peers) noexcept;
    /// Collective: what a call of all ranks begins with. Error(config_mismatch) if they make
    /// different ones, or have brought different `fields`; Error(peer_failed) at once on the others
    /// if one has a `failure`.
    void agree_on_call(const std::string& call, const std::exception_ptr& failure = nullptr,
                       std::vector<AgreementField> fields = {});
    /// Those of a call that all open Exchanges take part in.
    std::vector<AgreementField> fields_of_open_exchanges() const;
    /// Collective: returns when all devices are idle. If one has an error, it fails on all.
    void wait_for_all(const char* what);
    /// Local: waits for the device if something is left on it that may go, and frees that. The
    /// thread is this Runtime's.
    void free_leftovers() const;
    /// Collective, while all devices are idle: waits until nothing is on its way to Exchanges that
    /// have been aborted on all ranks, and frees what is left of them here.
    void settle_leftovers();
    /// Kernels of an Exchange or a barrier may still run.
    bool busy() const noexcept;
    /// The host knows that no kernel runs.
    void note_idle() noexcept;
    /// Local: waits for the host's own kernel, which ends by itself; only work that leaves it no
    /// room on the GPU can keep it, and then it counts as one that runs.
    void wait_for_side_stream(std::uint64_t limit_ns, const char* what);
    /// Local: gives up the barrier's objects.
    void release_barrier();
};

/// PeerHandles on a window and a device communicator.
PeerHandles make_peer_handles(const Topology& topology, const DeviceCommunicator& device_comm,
                              const SymmetricWindow& window, const WorkspaceShape& shape,
                              std::uint64_t deadline_ns, DeviceError* error);

}  // namespace gimlet

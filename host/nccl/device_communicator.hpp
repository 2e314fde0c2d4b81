// SPDX-License-Identifier: Apache-2.0
// NCCL's device communicator with exactly the resources that a plan asks for.
#pragma once

#include <nccl.h>
#include <nccl_device.h>

#include <memory>
#include <string>
#include <vector>

#include "host/nccl/communicator.hpp"

namespace gimlet {

/// Which peers GIN contexts connect to.
enum class GinConnection { none, rail, full };
const char* gin_connection_name(GinConnection connection) noexcept;

/// Only NCCL's direct fields: up to 2.30.7 it drops the signals of list entries silently.
struct DeviceCommRequest {
    int lsa_barrier_count = 0;
    GinConnection gin_connection = GinConnection::none;
    int gin_context_count = 0;  ///< queue pairs per peer; a wish, read the result
    int gin_signal_count = 0;   ///< ids 0..n-1 in each context
    int gin_counter_count = 0;  ///< ids 0..n-1 in each context
    int rail_gin_barrier_count = 0;
    int world_gin_barrier_count = 0;
    int hybrid_barrier_count = 0;    ///< ncclBarrierSession; needs GIN even in one LSA team
    int gin_queue_depth = 0;         ///< 0 = the backend's choice
    bool gin_strong_signals = true;  ///< a signal covers earlier puts of its context to its peer
    bool gin_va_signals = false;     ///< signals by address
    bool lsa_multimem = false;

    bool needs_gin() const noexcept;
    std::string text() const;
};

/// Everything wrong with a request on a communicator with these properties, one line each, with
/// value, limit and cure; empty = acceptable. Pure.
std::vector<std::string> request_faults(const DeviceCommRequest& request,
                                        const CommunicatorProperties& properties);

/// The struct that NCCL gets. Pure.
ncclDevCommRequirements_t make_requirements(const DeviceCommRequest& request);

class DeviceCommunicator {
  public:
    /// Collective; the request must be equal on all ranks (checked). Raises Error(invalid_argument)
    /// with all faults of the request, Error(gin_unavailable) if GIN is asked for and missing. If
    /// it fails on one rank, it fails on all, and nothing remains.
    static std::unique_ptr<DeviceCommunicator> create(Communicator& communicator,
                                                      const DeviceCommRequest& request);
    ~DeviceCommunicator();
    DeviceCommunicator(const DeviceCommunicator&) = delete;
    DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

    /// Passed by value to kernels. Raises Error(closed) after close().
    const ncclDevComm& get() const;
    const DeviceCommRequest& request() const noexcept { return request_; }
    /// Contexts that NCCL really made; may be less than asked for.
    int gin_context_count() const noexcept;

    /// Local. First make sure that no rank's kernel uses it (synchronise, then a barrier over the
    /// ranks).
    void close();
    bool is_open() const noexcept { return open_; }

  private:
    DeviceCommunicator(std::shared_ptr<CommunicatorState> state, const DeviceCommRequest& request);
    void release() noexcept;

    std::shared_ptr<CommunicatorState> state_;
    DeviceCommRequest request_;
    ncclDevComm device_comm_{};
    bool open_ = false;
};

}  // namespace gimlet

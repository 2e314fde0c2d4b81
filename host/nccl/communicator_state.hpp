// SPDX-License-Identifier: Apache-2.0
// What a communicator and the objects made on it share. Internal to host/nccl.
#pragma once

#include <nccl.h>

#include <atomic>
#include <memory>
#include <utility>

#include "host/nccl/communicator.hpp"

namespace gimlet {

/// Outlives the Communicator as long as a window or a device communicator needs it, so that these
/// can ask whether NCCL's object still exists before they hand anything back to it.
class CommunicatorState {
  public:
    enum class Phase : int { open, closed, aborted };

    CommunicatorState(ncclComm_t comm, Ownership ownership, std::shared_ptr<Bootstrap> bootstrap)
        : comm_(comm), ownership_(ownership), bootstrap_(std::move(bootstrap)) {}

    /// Raises Error(closed) unless open.
    ncclComm_t comm() const;
    /// Without the check; for the code that ends it.
    ncclComm_t raw_comm() const noexcept { return comm_; }
    bool is_open() const noexcept { return phase_.load() == Phase::open; }
    /// Leaves `open` for `next`. True for the one caller that made the change.
    bool leave_open(Phase next) noexcept {
        Phase expected = Phase::open;
        return phase_.compare_exchange_strong(expected, next);
    }
    Ownership ownership() const noexcept { return ownership_; }
    Bootstrap& bootstrap() const noexcept { return *bootstrap_; }
    int rank() const noexcept { return bootstrap_->rank(); }

    CommunicatorProperties properties;
    std::atomic<int> window_count{0};
    std::atomic<int> device_comm_count{0};
    std::atomic<bool> abort_begun{false};  // and NCCL does not know yet

  private:
    ncclComm_t comm_;
    Ownership ownership_;
    std::shared_ptr<Bootstrap> bootstrap_;
    std::atomic<Phase> phase_{Phase::open};
};

/// Why NCCL offers no symmetric memory on this communicator, with the cure. Reads the environment.
std::string no_symmetric_memory_reason(const CommunicatorProperties& properties);

/// Why NCCL offers no GIN (of the kind asked for) on this communicator, with the cure.
std::string no_gin_reason(const CommunicatorProperties& properties);

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// Named places where a test can make the host layer fail, to prove that a failed creation leaves
// nothing behind. Off unless a FaultScope exists; then one relaxed load per place.
#pragma once

#include "host/base/error.hpp"

namespace gimlet {

enum class FaultPoint : int {
    communicator_create,  ///< after ncclCommInitRankConfig succeeded
    window_allocate,      ///< instead of ncclMemAlloc
    window_register,      ///< after ncclCommWindowRegister succeeded
    window_null,          ///< as if registration had returned a NULL window
    device_comm_create,   ///< after ncclDevCommCreate succeeded
    host_allocate,        ///< instead of cudaHostAlloc
    device_allocate,      ///< instead of cudaMalloc
};

inline constexpr int kFaultPointCount = 7;

const char* fault_point_name(FaultPoint point) noexcept;

/// True if a test asked for a failure here. Counts hits; thread safe.
bool fault_hit(FaultPoint point, int rank) noexcept;

/// For tests: makes `point` fail after `skip` hits have passed unharmed: once on `rank`, or, with
/// kNoRank, each time anyone passes. One scope per point at a time.
class FaultScope {
  public:
    explicit FaultScope(FaultPoint point, int rank = kNoRank, int skip = 0);
    ~FaultScope();
    FaultScope(const FaultScope&) = delete;
    FaultScope& operator=(const FaultScope&) = delete;

    /// How often the point was made to fail.
    int fired() const noexcept;

  private:
    FaultPoint point_;
};

}  // namespace gimlet

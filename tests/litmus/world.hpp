// SPDX-License-Identifier: Apache-2.0
// Runs litmus programs on a communicator, whatever machine it is on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/communicator.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "tests/litmus/programs.hpp"

namespace gimlet::litmus {

/// How often each outcome of a program came.
using Histogram = std::map<Outcome, std::uint64_t>;

struct LitmusOptions {
    int rounds_max = 1;  ///< rounds of one run()
    std::uint64_t deadline_ns = 10'000'000'000ull;
    /// The ranks start up to this much apart, by turns: a real machine has no seed.
    std::uint64_t spread_ns = 0;
    int looks_max = 64;  ///< after so many looks in vain a reader that does not wait gives up
    int gin_queue_depth = 0;
    std::uint32_t gin_signal_count = kManySignalCount;
};

/// A window and a device communicator for litmus programs. All functions are collective over the
/// communicator, which has at least two ranks; ranks above 1 only keep step.
class LitmusWorld {
  public:
    LitmusWorld(Communicator& communicator, const LitmusOptions& options);
    LitmusWorld(const LitmusWorld&) = delete;
    LitmusWorld& operator=(const LitmusWorld&) = delete;

    /// Why this machine cannot run the program; empty if it can.
    std::string missing(const Program& program) const;
    /// The outcomes of `rounds` rounds; equal on all ranks.
    Histogram run(const Program& program, int rounds);
    /// Before the communicator closes.
    void close();

  private:
    Outcome merge(const Program& program) const;

    Communicator& communicator_;
    LitmusOptions options_;
    bool gin_ = false;
    std::unique_ptr<SymmetricWindow> window_;
    std::unique_ptr<DeviceCommunicator> device_communicator_;
    Stream stream_;
    MappedBuffer<std::uint64_t> registers_;
    std::uint64_t gin_rounds_ = 0;
};

/// Outcomes that must not be, one line each; empty if there are none.
std::string forbidden_text(const Program& program, const Histogram& seen);
/// Allowed outcomes that did not come, one line each.
std::string unreached_text(const Program& program, const Histogram& seen);

}  // namespace gimlet::litmus

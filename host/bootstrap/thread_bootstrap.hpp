// SPDX-License-Identifier: Apache-2.0
// Ranks that live in one process: threads, or the fibers of a simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

struct ThreadGroupOptions {
    /// A collective that takes longer raises Error(timeout) naming the ranks that did not come. 0 =
    /// the value of GIMLET_BOOTSTRAP_TIMEOUT_MS.
    std::uint64_t timeout_ns = 0;
    /// Called again and again while a rank waits. Empty = sleep on a condition variable. A
    /// simulation, where all ranks share one OS thread, passes a function that lets the other ranks
    /// run, e.g.
    /// `[] { cudaStreamQuery(nullptr); }`.
    std::function<void()> idle;
};

/// What the ranks share. Make one, give each rank its member, forget the group: members keep it
/// alive.
class ThreadGroup : public std::enable_shared_from_this<ThreadGroup> {
  public:
    static std::shared_ptr<ThreadGroup> create(int size, ThreadGroupOptions options = {});
    ~ThreadGroup();

    int size() const noexcept;
    /// Bootstrap of `rank`. One per rank; a second one for the same rank is Error(invalid_usage).
    std::unique_ptr<Bootstrap> member(int rank);
    /// Wakes every waiting rank with Error(peer_failed, reason). Local; may be called by any
    /// thread.
    void abort(const std::string& reason);

  private:
    friend class ThreadBootstrap;
    struct State;
    explicit ThreadGroup(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace gimlet

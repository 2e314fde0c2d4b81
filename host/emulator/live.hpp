// SPDX-License-Identifier: Apache-2.0
//
// The live world: host threads are real, kernels run on one background thread of the process.
#pragma once

#include <functional>

#include "host/emulator/core.hpp"

namespace gimlet::emu {

/// The process's live engine; its thread starts with the first call.
EngineCore& live_core();

/// Per host thread.
HostContext* live_host_context();

bool live_host_wait(EngineCore& core, const char* what,
                    const std::function<bool()>& ready) noexcept;

/// Stops the engine thread for the time of a call from a host thread. Nests on one thread.
class LiveLock {
  public:
    explicit LiveLock(EngineCore& core);
    ~LiveLock();
    LiveLock(const LiveLock&) = delete;
    LiveLock& operator=(const LiveLock&) = delete;

  private:
    EngineCore& core_;
};

}  // namespace gimlet::emu

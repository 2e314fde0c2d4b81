// SPDX-License-Identifier: Apache-2.0
//
// Watching a simulation: the last events of each rank, and a file for Perfetto or chrome://tracing.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "host/emulator/simulation.hpp"

namespace gimlet::sim {

class Timeline final : public emu::Tracer {
  public:
    enum class Keep { last_events, everything };

    explicit Timeline(Keep keep, std::size_t last_count = 12)
        : keep_(keep), last_count_(last_count) {}

    void event(emu::TraceEvent event) override;

    /// The newest events of each rank, oldest first.
    std::string last_events() const;

    /// Writes everything as Chrome trace events: a process per rank, a thread per track. Raises
    /// Error(system) if the file cannot be written.
    void write_chrome_trace(const std::string& path) const;

  private:
    Keep keep_;
    std::size_t last_count_;
    std::vector<std::deque<emu::TraceEvent>> last_;  ///< by rank
    std::vector<emu::TraceEvent> all_;
};

}  // namespace gimlet::sim

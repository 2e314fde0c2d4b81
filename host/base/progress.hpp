// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gimlet {

/// A line on standard error for work that takes over two seconds, at most once a second:
/// "bench: 3 of 12, 25 %, 4.1 s". Silent before that, and silent if GIMLET_PROGRESS is 0. Make one
/// on rank 0 only. Not thread safe.
class Progress {
  public:
    using Clock = std::function<std::uint64_t()>;           ///< nanoseconds, monotonic
    using Print = std::function<void(const std::string&)>;  ///< one line, without line break

    /// `total` = number of steps, 0 if unknown. Clock and printer are replaceable for tests.
    Progress(std::string_view name, std::uint64_t total, Clock clock = {}, Print print = {});

    /// `done` steps are finished. Cheap; call it as often as you like.
    void update(std::uint64_t done);
    int lines_printed() const noexcept { return lines_printed_; }

  private:
    std::string name_;
    std::uint64_t total_;
    Clock clock_;
    Print print_;
    std::uint64_t start_ns_;
    std::uint64_t next_ns_;
    int lines_printed_ = 0;
    bool enabled_;
};

}  // namespace gimlet

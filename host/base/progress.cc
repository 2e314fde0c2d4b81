// SPDX-License-Identifier: Apache-2.0
#include "host/base/progress.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>

#include "host/base/env.hpp"

namespace gimlet {

namespace {

constexpr std::uint64_t kFirstLineNs = 2'000'000'000;
constexpr std::uint64_t kBetweenLinesNs = 1'000'000'000;

std::uint64_t steady_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

void print_to_stderr(const std::string& line) {
    std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace

Progress::Progress(std::string_view name, std::uint64_t total, Clock clock, Print print)
    : name_(name),
      total_(total),
      clock_(clock ? std::move(clock) : Clock(steady_ns)),
      print_(print ? std::move(print) : Print(print_to_stderr)),
      start_ns_(clock_()),
      next_ns_(start_ns_ + kFirstLineNs),
      enabled_(env_flag(EnvVar::progress)) {}

void Progress::update(std::uint64_t done) {
    if (!enabled_) return;
    const std::uint64_t now_ns = clock_();
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + kBetweenLinesNs;
    ++lines_printed_;
    const double seconds = static_cast<double>(now_ns - start_ns_) * 1e-9;
    if (total_ == 0) {
        print_(fmt::format("{}: {} done, {:.1f} s", name_, done, seconds));
    } else {
        const double percent = 100.0 * static_cast<double>(done) / static_cast<double>(total_);
        print_(
            fmt::format("{}: {} of {}, {:.0f} %, {:.1f} s", name_, done, total_, percent, seconds));
    }
}

}  // namespace gimlet

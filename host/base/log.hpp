// SPDX-License-Identifier: Apache-2.0
// Logging: one line an event, rank first, level chosen by GIMLET_LOG.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/base/error.hpp"

namespace gimlet {

/// Levels by volume: error = the operation failed; warn = it went on, a person should know;
/// info = once per object; debug = once per call; trace = several per call.
enum class LogLevel : int { off = 0, error = 1, warn = 2, info = 3, debug = 4, trace = 5 };

inline constexpr int kLogLevelCount = 6;

const char* log_level_name(LogLevel level) noexcept;
bool parse_log_level(std::string_view name, LogLevel* level) noexcept;

struct LogRecord {
    LogLevel level;
    int rank;             ///< world rank, or kNoRank
    std::string message;  ///< without prefix; line breaks already replaced
};

using LogSink = std::function<void(const LogRecord&)>;

/// True if a record of this level reaches the sink. Cheap.
bool log_enabled(LogLevel level) noexcept;

/// Level in force. The first call reads GIMLET_LOG (default warn).
LogLevel log_level() noexcept;
void set_log_level(LogLevel level) noexcept;

/// Replaces the sink (an empty one means standard error) and returns the one before. Records of
/// all threads come one at a time.
LogSink set_log_sink(LogSink sink);

/// The line that the standard-error sink prints, without its line break:
/// "gimlet warn [rank 3] message".
std::string format_log_line(const LogRecord& record);

void log_text(LogLevel level, int rank, std::string message) noexcept;

template <typename... Args>
void log(LogLevel level, int rank, fmt::format_string<Args...> format, Args&&... args) {
    if (log_enabled(level)) log_text(level, rank, fmt::format(format, std::forward<Args>(args)...));
}

/// For tests: collects records of every level up to `level` for its lifetime, instead of printing
/// them. Captures nest; the innermost gets the records.
class LogCapture {
  public:
    explicit LogCapture(LogLevel level = LogLevel::debug);
    ~LogCapture();
    LogCapture(const LogCapture&) = delete;
    LogCapture& operator=(const LogCapture&) = delete;

    std::vector<LogRecord> records() const;
    /// Number of records of this level whose message contains `part`.
    int count(LogLevel level, std::string_view part = "") const;

  private:
    struct Shared;
    std::shared_ptr<Shared> shared_;
    LogLevel level_before_;
    LogSink sink_before_;
};

}  // namespace gimlet

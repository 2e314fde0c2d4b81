// SPDX-License-Identifier: Apache-2.0
#include "host/base/log.hpp"

#include <atomic>
#include <cstdio>
#include <exception>
#include <mutex>
#include <optional>

#include "host/base/env.hpp"

namespace gimlet {

namespace {

constexpr int kLevelUnset = -1;
constexpr LogLevel kDefaultLevel = LogLevel::warn;

std::atomic<int> current_level{kLevelUnset};

struct SinkState {
    // Recursive, so that a sink may log.
    std::recursive_mutex mutex;
    LogSink sink;
};

SinkState& sink_state() {
    // Never destroyed: objects with static lifetime may log while the process ends.
    static auto* state = new SinkState;
    return *state;
}

void print_line(const LogRecord& record) {
    const std::string line = format_log_line(record) + "\n";
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
}

std::string one_line(std::string text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    std::string result;
    result.reserve(text.size());
    for (const char c : text) {
        if (c == '\n') {
            result += " | ";
        } else if (c != '\r') {
            result += c;
        }
    }
    return result;
}

}  // namespace

const char* log_level_name(LogLevel level) noexcept {
    switch (level) {
        case LogLevel::off: return "off";
        case LogLevel::error: return "error";
        case LogLevel::warn: return "warn";
        case LogLevel::info: return "info";
        case LogLevel::debug: return "debug";
        case LogLevel::trace: return "trace";
    }
    return "unknown";
}

bool parse_log_level(std::string_view name, LogLevel* level) noexcept {
    for (int number = 0; number < kLogLevelCount; ++number) {
        if (name == log_level_name(static_cast<LogLevel>(number))) {
            *level = static_cast<LogLevel>(number);
            return true;
        }
    }
    return false;
}

LogLevel log_level() noexcept {
    const int known = current_level.load(std::memory_order_relaxed);
    if (known != kLevelUnset) return static_cast<LogLevel>(known);
    LogLevel level = kDefaultLevel;
    bool valid = true;
    std::optional<std::string> raw;
    try {
        raw = env_raw(EnvVar::log);
        valid = !raw || parse_log_level(*raw, &level);
    } catch (const std::exception&) {
        valid = true;  // out of memory: the default serves
    }
    int expected = kLevelUnset;
    const bool first = current_level.compare_exchange_strong(expected, static_cast<int>(level),
                                                             std::memory_order_relaxed);
    if (first && !valid) {
        // The logger cannot raise about its own level; it says so and goes on with the default.
        log(LogLevel::warn, kNoRank, "{}='{}' is not one of {}; using {}",
            env_entry(EnvVar::log).name, *raw, env_entry(EnvVar::log).choices,
            log_level_name(kDefaultLevel));
    }
    return static_cast<LogLevel>(current_level.load(std::memory_order_relaxed));
}

void set_log_level(LogLevel level) noexcept {
    current_level.store(static_cast<int>(level), std::memory_order_relaxed);
}

bool log_enabled(LogLevel level) noexcept {
    return level != LogLevel::off && static_cast<int>(level) <= static_cast<int>(log_level());
}

LogSink set_log_sink(LogSink sink) {
    SinkState& state = sink_state();
    const std::lock_guard lock(state.mutex);
    std::swap(state.sink, sink);
    return sink;
}

std::string format_log_line(const LogRecord& record) {
    if (record.rank == kNoRank) {
        return fmt::format("gimlet {} {}", log_level_name(record.level), record.message);
    }
    return fmt::format("gimlet {} [rank {}] {}", log_level_name(record.level), record.rank,
                       record.message);
}

void log_text(LogLevel level, int rank, std::string message) noexcept {
    if (!log_enabled(level)) return;
    try {
        const LogRecord record{level, rank, one_line(std::move(message))};
        SinkState& state = sink_state();
        const std::lock_guard lock(state.mutex);
        if (state.sink) {
            state.sink(record);
        } else {
            print_line(record);
        }
    } catch (const std::exception& failure) {
        // Logging is called from destructors: a failing sink loses the line, not the program.
        std::fprintf(stderr, "gimlet error a log line was lost: %s\n", failure.what());
    }
}

struct LogCapture::Shared {
    mutable std::mutex mutex;
    std::vector<LogRecord> records;
};

LogCapture::LogCapture(LogLevel level)
    : shared_(std::make_shared<Shared>()), level_before_(log_level()) {
    set_log_level(level);
    sink_before_ = set_log_sink([shared = shared_](const LogRecord& record) {
        const std::lock_guard lock(shared->mutex);
        shared->records.push_back(record);
    });
}

LogCapture::~LogCapture() {
    set_log_sink(std::move(sink_before_));
    set_log_level(level_before_);
}

std::vector<LogRecord> LogCapture::records() const {
    const std::lock_guard lock(shared_->mutex);
    return shared_->records;
}

int LogCapture::count(LogLevel level, std::string_view part) const {
    int found = 0;
    for (const LogRecord& record : records()) {
        if (record.level == level && record.message.find(part) != std::string::npos) ++found;
    }
    return found;
}

}  // namespace gimlet

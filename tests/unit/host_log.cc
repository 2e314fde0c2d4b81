// SPDX-License-Identifier: Apache-2.0
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "host/base/log.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;

TEST_CASE("log levels have names and order", "[host][log]") {
    std::set<std::string> names;
    for (int number = 0; number < kLogLevelCount; ++number) {
        LogLevel parsed = LogLevel::off;
        REQUIRE(parse_log_level(log_level_name(static_cast<LogLevel>(number)), &parsed));
        CHECK(static_cast<int>(parsed) == number);
        names.insert(log_level_name(parsed));
    }
    CHECK(names.size() == static_cast<std::size_t>(kLogLevelCount));
    LogLevel untouched = LogLevel::info;
    CHECK_FALSE(parse_log_level("loud", &untouched));
    CHECK(untouched == LogLevel::info);
}

TEST_CASE("records above the level do not reach the sink", "[host][log]") {
    const LogCapture capture(LogLevel::warn);
    log(LogLevel::error, 1, "e");
    log(LogLevel::warn, 1, "w {}", 7);
    log(LogLevel::info, 1, "i");
    log(LogLevel::off, 1, "never");
    REQUIRE(capture.records().size() == 2);
    CHECK(capture.records()[1].message == "w 7");
    CHECK(capture.count(LogLevel::warn, "7") == 1);
    CHECK(capture.count(LogLevel::info) == 0);
}

TEST_CASE("a record is one line with level and rank", "[host][log]") {
    CHECK(format_log_line({LogLevel::warn, 3, "text"}) == "gimlet warn [rank 3] text");
    CHECK(format_log_line({LogLevel::error, kNoRank, "text"}) == "gimlet error text");
    const LogCapture capture;
    log(LogLevel::info, 0, "a\r\nb\n");
    REQUIRE(capture.records().size() == 1);
    CHECK(capture.records()[0].message == "a | b");
}

TEST_CASE("captures nest and give back what they took", "[host][log]") {
    const LogLevel before = log_level();
    {
        const LogCapture outer(LogLevel::info);
        {
            const LogCapture inner(LogLevel::trace);
            log(LogLevel::trace, 0, "inner");
            CHECK(inner.count(LogLevel::trace) == 1);
        }
        log(LogLevel::trace, 0, "too fine for the outer one");
        log(LogLevel::info, 0, "outer");
        CHECK(outer.records().size() == 1);
    }
    CHECK(log_level() == before);
}

TEST_CASE("threads log without losing a record", "[host][log]") {
    const LogCapture capture(LogLevel::info);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
        threads.emplace_back([rank] {
            for (int i = 0; i < 100; ++i) log(LogLevel::info, rank, "{}", i);
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(capture.count(LogLevel::info) == 400);
}

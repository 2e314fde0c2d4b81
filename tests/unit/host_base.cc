// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "host/base/checked_math.hpp"
#include "host/base/env.hpp"
#include "host/base/fault.hpp"
#include "host/base/hash.hpp"
#include "host/base/progress.hpp"
#include "host/base/text.hpp"
#include "host/base/version.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::error_of;

TEST_CASE("every error code has its own name and finds back from it", "[host][error]") {
    std::set<std::string> names;
    for (int number = 0; number < kErrorCodeCount; ++number) {
        const auto code = static_cast<ErrorCode>(number);
        names.insert(error_code_name(code));
        ErrorCode parsed = ErrorCode::internal;
        REQUIRE(parse_error_code(error_code_name(code), &parsed));
        CHECK(parsed == code);
    }
    CHECK(names.size() == static_cast<std::size_t>(kErrorCodeCount));
    CHECK(names.count("unknown") == 0);
    CHECK(std::string(error_code_name(static_cast<ErrorCode>(kErrorCodeCount))) == "unknown");
    ErrorCode untouched = ErrorCode::mpi;
    CHECK_FALSE(parse_error_code("no_such_code", &untouched));
    CHECK(untouched == ErrorCode::mpi);
}

TEST_CASE("an error keeps code, rank and message, and its text has all three", "[host][error]") {
    const Error error = error_of([] { raise(ErrorCode::overflow, 3, "{} is above {}", 9, 8); });
    CHECK(error.code() == ErrorCode::overflow);
    CHECK(error.rank() == 3);
    CHECK(error.message() == "9 is above 8");
    CHECK(std::string(error.what()) == "gimlet overflow, rank 3: 9 is above 8");
    const Error without = error_of([] { raise(ErrorCode::system, kNoRank, "x"); });
    CHECK(std::string(without.what()) == "gimlet system: x");
}

TEST_CASE("raise logs exactly once", "[host][error]") {
    const LogCapture capture;
    try {
        raise(ErrorCode::cuda, 5, "first\nsecond");
    } catch (const Error&) {
    }
    REQUIRE(capture.records().size() == 1);
    CHECK(capture.records()[0].level == LogLevel::error);
    CHECK(capture.records()[0].rank == 5);
    CHECK(capture.records()[0].message == "cuda: first | second");
}

TEST_CASE("checked arithmetic gives exact results up to the limit", "[host][checked_math]") {
    constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
    CHECK(checked_mul<std::uint64_t>(kMax / 2, 2, "x") == kMax - 1);
    CHECK(checked_add<std::uint64_t>(kMax - 1, 1, "x") == kMax);
    CHECK(checked_sub<std::uint64_t>(5, 5, "x") == 0);
    CHECK(checked_sub<int>(3, 5, "x") == -2);
    CHECK(ceil_div<std::uint64_t>(kMax, 2, "x") == kMax / 2 + 1);
    CHECK(ceil_div(0, 7, "x") == 0);
    CHECK(ceil_div(14, 7, "x") == 2);
    CHECK(ceil_div(15, 7, "x") == 3);
    CHECK(align_up<std::uint64_t>(0, 128, "x") == 0);
    CHECK(align_up<std::uint64_t>(1, 128, "x") == 128);
    CHECK(align_up<std::uint64_t>(128, 128, "x") == 128);
    CHECK(align_up<int>(7, 6, "x") == 12);
    CHECK(narrow<std::uint8_t>(255, "x") == 255);
    CHECK(narrow<int>(std::int64_t{-5}, "x") == -5);
}

TEST_CASE("checked arithmetic names quantity, operands and limit", "[host][checked_math]") {
    constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
    check_error([] { checked_mul<std::uint64_t>(1ull << 33, 1ull << 31, "window bytes", 4); },
                ErrorCode::overflow,
                {"window bytes", "8589934592 * 2147483648", "18446744073709551615"});
    CHECK(error_of([] { checked_mul(1 << 30, 4, "x", 4); }).rank() == 4);
    check_error([] { checked_add<std::uint64_t>(kMax, 1, "end"); }, ErrorCode::overflow,
                {"end", "18446744073709551615 + 1"});
    check_error([] { checked_sub<unsigned>(1, 2, "left"); }, ErrorCode::overflow,
                {"left", "1 - 2"});
    check_error([] { align_up<std::uint64_t>(kMax, 128, "end"); }, ErrorCode::overflow, {"end"});
    check_error([] { ceil_div(5, 0, "blocks"); }, ErrorCode::invalid_argument,
                {"blocks", "5 by 0"});
    check_error([] { ceil_div(-5, 2, "blocks"); }, ErrorCode::invalid_argument, {"-5 by 2"});
    check_error([] { narrow<std::int32_t>(1ull << 31, "rows"); }, ErrorCode::overflow,
                {"rows", "2147483648", "2147483647"});
    check_error([] { narrow<unsigned>(-1, "rows"); }, ErrorCode::overflow, {"-1", "0..4294967295"});
}

TEST_CASE("fault points are off by default and fire as told", "[host][fault]") {
    CHECK_FALSE(fault_hit(FaultPoint::window_register, 0));
    {
        const FaultScope scope(FaultPoint::window_register, 2, 1);
        CHECK_FALSE(fault_hit(FaultPoint::window_allocate, 2));
        CHECK_FALSE(fault_hit(FaultPoint::window_register, 1));
        CHECK_FALSE(fault_hit(FaultPoint::window_register, 2));  // skipped
        CHECK(fault_hit(FaultPoint::window_register, 2));
        CHECK_FALSE(fault_hit(FaultPoint::window_register, 2));  // once
        CHECK(scope.fired() == 1);
    }
    {
        const FaultScope scope(FaultPoint::window_register);
        CHECK(fault_hit(FaultPoint::window_register, 0));
        CHECK(fault_hit(FaultPoint::window_register, 7));
        check_error([] { FaultScope second(FaultPoint::window_register); },
                    ErrorCode::invalid_usage, {"window_register"});
    }
    CHECK_FALSE(fault_hit(FaultPoint::window_register, 0));
}

TEST_CASE("every fault point has a name", "[host][fault]") {
    std::set<std::string> names;
    for (int i = 0; i < kFaultPointCount; ++i)
        names.insert(fault_point_name(static_cast<FaultPoint>(i)));
    CHECK(names.size() == static_cast<std::size_t>(kFaultPointCount));
    CHECK(names.count("unknown") == 0);
}

TEST_CASE("sizes, times and rank lists read well", "[host][text]") {
    CHECK(format_bytes(0) == "0 B");
    CHECK(format_bytes(1023) == "1023 B");
    CHECK(format_bytes(1024) == "1 KiB");
    CHECK(format_bytes(1536) == "1.5 KiB");
    CHECK(format_bytes((1ull << 20) - 1) == "1 MiB");
    CHECK(format_bytes(2ull << 30) == "2 GiB");
    CHECK(format_bytes(std::numeric_limits<std::uint64_t>::max()) == "16 EiB");
    CHECK(format_duration_ns(999) == "999 ns");
    CHECK(format_duration_ns(1500) == "1.5 us");
    CHECK(format_duration_ns(999'999) == "1 ms");
    CHECK(format_duration_ns(30'000'000'000) == "30 s");
    CHECK(format_duration_ns(5'000'000'000'000) == "5000 s");
    CHECK(format_ranks({}) == "none");
    CHECK(format_ranks(std::vector<int>{4}) == "4");
    CHECK(format_ranks(std::vector<int>{0, 1, 2, 4, 6, 7}) == "0-2, 4, 6-7");
    CHECK(json_quote("a\"b\\c\n\x01") == "\"a\\\"b\\\\c\\n\\u0001\"");
}

TEST_CASE("the hash is FNV-1a, so that all builds agree", "[host][hash]") {
    CHECK(hash_text("") == 0xcbf29ce484222325ull);
    CHECK(hash_text("a") == 0xaf63dc4c8601ec8cull);
    CHECK(hash_text("foobar") == 0x85944171f73967e8ull);
    CHECK(hash_text("bar", hash_text("foo")) == hash_text("foobar"));
}

TEST_CASE("progress is silent for two seconds and then speaks once a second", "[host][progress]") {
    std::uint64_t now_ns = 100;
    std::vector<std::string> lines;
    Progress progress(
        "demo", 12, [&] { return now_ns; },
        [&](const std::string& line) { lines.push_back(line); });
    progress.update(1);
    now_ns += 1'999'000'000;
    progress.update(2);
    CHECK(lines.empty());
    now_ns += 1'000'000;
    progress.update(3);
    progress.update(4);
    REQUIRE(lines.size() == 1);
    CHECK(lines[0] == "demo: 3 of 12, 25 %, 2.0 s");
    now_ns += 1'000'000'000;
    progress.update(12);
    CHECK(progress.lines_printed() == 2);

    const EnvOverride off(EnvVar::progress, "0");
    Progress silent(
        "demo", 0, [&] { return now_ns; }, [&](const std::string& line) { lines.push_back(line); });
    now_ns += 10'000'000'000;
    silent.update(1);
    CHECK(silent.lines_printed() == 0);
}

TEST_CASE("version", "[host][version]") {
    CHECK(std::string(version_text()) == "0.1.0");
    CHECK_FALSE(std::string(git_hash()).empty());
    const std::string backend = backend_name();
    CHECK((backend == "emulator" || backend == "cuda"));
}

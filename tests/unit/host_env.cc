// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "host/base/env.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::contains_text;

TEST_CASE("each row of the environment table is complete and its default is valid", "[host][env]") {
    for (const EnvEntry& entry : env_table()) {
        INFO(entry.name);
        CHECK(std::string(entry.help).size() > 10);
        CHECK(env_entry(entry.id).name == entry.name);
        const std::string name = entry.name;
        const bool ours = name.starts_with("GIMLET_");
        // A variable of ours always has a value; for others the owner decides.
        const bool has_default = std::string(entry.default_text) != "";
        // A text of ours may be unset: a file's or an interface's name.
        if (ours && entry.type != EnvType::text) CHECK(has_default);
        if (!ours) CHECK_FALSE(has_default);
        if (entry.type == EnvType::integer) CHECK(entry.min < entry.max);
        const EnvOverride unset(entry.id, "");
        CHECK_FALSE(env_is_set(entry.id));
        if (!ours) continue;
        const EnvOverride as_default(entry.id, entry.default_text);
        switch (entry.type) {
            case EnvType::flag: CHECK_NOTHROW(env_flag(entry.id)); break;
            case EnvType::integer: CHECK_NOTHROW(env_int(entry.id)); break;
            case EnvType::choice: CHECK_NOTHROW(env_choice(entry.id)); break;
            case EnvType::text: CHECK_NOTHROW(env_text(entry.id)); break;
        }
    }
}

TEST_CASE("integers are parsed strictly", "[host][env]") {
    const auto value_of = [](const char* text) {
        const EnvOverride set(EnvVar::timeout_ms, text);
        return env_int(EnvVar::timeout_ms);
    };
    CHECK(value_of("250") == 250);
    CHECK(value_of("1") == 1);
    CHECK(value_of("") == 30000);  // empty counts as unset
    CHECK(value_of("0") == 0);     // none
    for (const char* bad : {"-1", " 5", "5 ", "5ms", "0x10", "1e3", "+5", "86400001",
                            "99999999999999999999", "five"}) {
        INFO(bad);
        check_error([&] { value_of(bad); }, ErrorCode::invalid_argument,
                    {"GIMLET_TIMEOUT_MS", std::string("'") + bad + "'", "integer", "0..86400000"});
    }
}

TEST_CASE("flags and choices are parsed strictly", "[host][env]") {
    for (const char* yes : {"1", "on", "true", "yes"}) {
        const EnvOverride set(EnvVar::progress, yes);
        CHECK(env_flag(EnvVar::progress));
    }
    for (const char* no : {"0", "off", "false", "no"}) {
        const EnvOverride set(EnvVar::progress, no);
        CHECK_FALSE(env_flag(EnvVar::progress));
    }
    {
        const EnvOverride set(EnvVar::progress, "maybe");
        check_error([] { env_flag(EnvVar::progress); }, ErrorCode::invalid_argument,
                    {"GIMLET_PROGRESS", "'maybe'", "0|1"});
    }
    {
        const EnvOverride set(EnvVar::emu_gin, "proxy");
        CHECK(env_choice(EnvVar::emu_gin) == "proxy");
    }
    // A part of a choice, or two of them, is no choice.
    for (const char* bad : {"prox", "gdaki|proxy", "Proxy"}) {
        const EnvOverride set(EnvVar::emu_gin, bad);
        check_error([] { env_choice(EnvVar::emu_gin); }, ErrorCode::invalid_argument,
                    {"GIMLET_EMU_GIN", "off|gdaki|proxy"});
    }
}

TEST_CASE("a variable is read only as what it is", "[host][env]") {
    check_error([] { env_int(EnvVar::log); }, ErrorCode::internal,
                {"GIMLET_LOG", "choice", "integer"});
}

TEST_CASE("the process environment is read, and overrides nest", "[host][env]") {
    ::setenv("NCCL_GIN_TYPE", "3", 1);
    CHECK(env_text(EnvVar::nccl_gin_type) == "3");
    {
        const EnvOverride outer(EnvVar::nccl_gin_type, "2");
        CHECK(env_text(EnvVar::nccl_gin_type) == "2");
        {
            const EnvOverride inner(EnvVar::nccl_gin_type, "");
            CHECK_FALSE(env_is_set(EnvVar::nccl_gin_type));
        }
        CHECK(env_text(EnvVar::nccl_gin_type) == "2");
    }
    CHECK(env_text(EnvVar::nccl_gin_type) == "3");
    ::unsetenv("NCCL_GIN_TYPE");
    CHECK_FALSE(env_is_set(EnvVar::nccl_gin_type));
}

TEST_CASE("the dump shows values, defaults and what is not valid", "[host][env]") {
    const EnvOverride bad(EnvVar::timeout_ms, "soon");
    const std::string text = env_dump_text();
    CHECK_THAT(text, contains_text("GIMLET_TIMEOUT_MS=soon"));
    CHECK_THAT(text, contains_text("NOT VALID"));
    CHECK_THAT(text, contains_text("GIMLET_LOG="));
    const std::string json = env_dump_json();
    CHECK_THAT(json,
               contains_text("{\"name\":\"GIMLET_TIMEOUT_MS\",\"value\":\"soon\",\"set\":true,"
                             "\"valid\":false"));
    CHECK(json.front() == '[');
    CHECK(json.back() == ']');
}

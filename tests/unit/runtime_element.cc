// SPDX-License-Identifier: Apache-2.0
#include "runtime/element.hpp"

#include <cmath>
#include <limits>

#include "runtime/rng.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;

namespace {

std::uint32_t stored(ElementType type, float value) {
    std::uint32_t bits = 0;
    store_element(type, &bits, value);
    return bits;
}

}  // namespace

TEST_CASE("known bit patterns", "[runtime][element]") {
    CHECK(stored(ElementType::bfloat16, 1.0f) == 0x3f80);
    CHECK(stored(ElementType::bfloat16, -2.5f) == 0xc020);
    CHECK(stored(ElementType::bfloat16, 3.4e38f) == 0x7f80);  // rounds up to infinity
    CHECK(stored(ElementType::float16, 1.0f) == 0x3c00);
    CHECK(stored(ElementType::float16, 65504.0f) == 0x7bff);
    CHECK(stored(ElementType::float16, 65519.0f) == 0x7bff);
    CHECK(stored(ElementType::float16, 65520.0f) == 0x7c00);
    CHECK(stored(ElementType::float16, 5.9604645e-8f) == 0x0001);
    CHECK(stored(ElementType::float16, 2.9802322e-8f) == 0x0000);  // a tie goes to even
    CHECK(stored(ElementType::float16, 3.0e-8f) == 0x0001);
    CHECK(stored(ElementType::float16, -0.0f) == 0x8000);
    CHECK(stored(ElementType::float16, std::numeric_limits<float>::infinity()) == 0x7c00);
    CHECK(stored(ElementType::float16, std::nanf("")) == 0x7fff);
    CHECK(stored(ElementType::bfloat16, -std::nanf("")) == 0x7fff);
    CHECK(stored(ElementType::float8_e4m3, 448.0f) == 0x7e);
    CHECK(stored(ElementType::float8_e4m3, 1.0f) == 0x38);
    CHECK(stored(ElementType::float8_e4m3, -0.001953125f) == 0x81);
}

TEST_CASE("ties go to even in bf16", "[runtime][element]") {
    CHECK(stored(ElementType::bfloat16, std::bit_cast<float>(0x3f808000u)) == 0x3f80);
    CHECK(stored(ElementType::bfloat16, std::bit_cast<float>(0x3f818000u)) == 0x3f82);
    CHECK(stored(ElementType::bfloat16, std::bit_cast<float>(0x3f808001u)) == 0x3f81);
}

TEST_CASE("every value of the small types survives a round trip", "[runtime][element]") {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        for (const auto type : {ElementType::float16, ElementType::bfloat16}) {
            const float value = load_element(type, &bits);
            if (std::isnan(value)) continue;
            REQUIRE(stored(type, value) == bits);
        }
    }
    for (std::uint32_t bits = 0; bits < 0x100; ++bits) {
        const float value = load_element(ElementType::float8_e4m3, &bits);
        if (std::isnan(value)) continue;
        if ((bits & 0x7f) == 0) continue;  // the sign of zero is kept, checked above for fp16
        REQUIRE(stored(ElementType::float8_e4m3, value) == bits);
    }
}

TEST_CASE("rounding is to the nearest neighbour", "[runtime][element]") {
    InputRng rng(7);
    for (int i = 0; i < 200000; ++i) {
        const float value = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
        if (!std::isfinite(value) || std::fabs(value) > 60000.0f) continue;
        const std::uint32_t bits = stored(ElementType::float16, value);
        const std::uint32_t up = bits + 1;
        const std::uint32_t down = (bits & 0x7fff) == 0 ? bits : bits - 1;
        const double chosen = std::fabs(double{load_element(ElementType::float16, &bits)} - value);
        CAPTURE(value, bits);
        REQUIRE(chosen <= std::fabs(double{load_element(ElementType::float16, &up)} - value));
        REQUIRE(chosen <= std::fabs(double{load_element(ElementType::float16, &down)} - value));
    }
}

TEST_CASE("fixed-point exponentials are close to the real ones", "[runtime][element]") {
    for (std::int64_t x = -20 * 65536; x <= 20 * 65536; x += 4099) {
        const double real = std::exp2(static_cast<double>(x) / 65536.0);
        const double fixed = static_cast<double>(exp2_q32(x)) / 4294967296.0;
        REQUIRE(fixed == Approx(real).epsilon(1e-5).margin(1e-9));
        const double sigmoid = static_cast<double>(sigmoid_q32(x)) / 4294967296.0;
        REQUIRE(sigmoid == Approx(1.0 / (1.0 + std::exp(-static_cast<double>(x) / 65536.0)))
                               .epsilon(1e-4)
                               .margin(1e-6));
    }
}

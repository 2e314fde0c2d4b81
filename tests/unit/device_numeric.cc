// SPDX-License-Identifier: Apache-2.0
//
// Element conversions against a reference that rounds in double precision.
#include "device/core/numeric.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/catch.hpp"

namespace {

using gimlet::ElementType;
using gimlet::device::Pack16;
using gimlet::device::Vec16;

struct Format {
    int fraction_bits;
    int min_exponent;  ///< of the smallest normal number
    double largest;
    std::uint32_t infinity_bits;
};
constexpr Format kFp16{10, -14, 65504.0, 0x7c00u};
constexpr Format kBf16{7, -126, 0x1.fep127, 0x7f80u};

double decode(const Format& format, std::uint32_t bits) {
    const std::uint32_t magnitude = bits & 0x7fffu;
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    if (magnitude > format.infinity_bits) return std::numeric_limits<double>::quiet_NaN();
    if (magnitude == format.infinity_bits) return sign * std::numeric_limits<double>::infinity();
    const int exponent = static_cast<int>(magnitude >> format.fraction_bits);
    const double fraction = static_cast<double>(magnitude & ((1u << format.fraction_bits) - 1u));
    const double scale = std::ldexp(1.0, format.min_exponent - format.fraction_bits);
    if (exponent == 0) return sign * fraction * scale;
    return sign *
           std::ldexp((std::ldexp(1.0, format.fraction_bits) + fraction) * scale, exponent - 1);
}

/// The value that `value` rounds to, nearest even.
double round_to(const Format& format, float value) {
    const double exact = value;
    if (std::isnan(exact) || std::isinf(exact) || exact == 0) return exact;
    const int exponent = std::max(std::ilogb(exact), format.min_exponent);
    const double quantum = std::ldexp(1.0, exponent - format.fraction_bits);
    const double rounded = std::nearbyint(exact / quantum) * quantum;
    if (std::fabs(rounded) > format.largest)
        return std::copysign(std::numeric_limits<double>::infinity(), exact);
    return rounded;
}

template <ElementType E>
void check_format(const Format& format) {
    using Pack = Pack16<E>;
    // Every bit pattern is decoded exactly and survives a round trip; NaNs become the canonical
    // one.
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
        const Vec16 piece{{bits | bits << 16, 0, 0, bits << 16}};
        float values[Pack::count];
        Pack::unpack(piece, values);
        const double expected = decode(format, bits);
        const Vec16 back = Pack::round(values);
        if (std::isnan(expected)) {
            REQUIRE(std::isnan(values[0]));
            REQUIRE(back.w[0] == 0x7fff7fffu);
            continue;
        }
        REQUIRE(static_cast<double>(values[0]) == expected);
        REQUIRE(static_cast<double>(values[1]) == expected);
        REQUIRE(values[2] == 0.0f);
        REQUIRE(static_cast<double>(values[7]) == expected);
        REQUIRE(back.w[0] == piece.w[0]);
        REQUIRE(back.w[3] == piece.w[3]);
    }
    // Arbitrary floats, and those on and around every half-way point.
    std::mt19937 random(17);
    std::vector<float> cases;
    for (int i = 0; i < 200000; ++i)
        cases.push_back(__builtin_bit_cast(float, static_cast<std::uint32_t>(random())));
    for (std::uint32_t bits = 0; bits + 1 < format.infinity_bits; ++bits) {
        const auto middle =
            static_cast<float>((decode(format, bits) + decode(format, bits + 1)) / 2);
        cases.push_back(middle);
        cases.push_back(std::nextafter(middle, 0.0f));
        cases.push_back(-std::nextafter(middle, 1e38f));
    }
    const auto largest = static_cast<float>(format.largest);
    for (const float value :
         {largest, std::nextafter(largest, INFINITY), 65519.996f, 65520.0f, 1e30f, -INFINITY}) {
        cases.push_back(value);
    }
    int wrong = 0;
    for (const float value : cases) {
        const float values[Pack::count] = {value};
        const std::uint32_t bits = Pack::round(values).w[0] & 0xffffu;
        const double expected = round_to(format, value);
        const double rounded = decode(format, bits);
        const bool same = std::isnan(expected)
                              ? bits == 0x7fffu
                              : rounded == expected && std::signbit(rounded) == std::signbit(value);
        if (!same && ++wrong == 1) {
            CAPTURE(value, expected, rounded, bits);
            CHECK(same);
        }
    }
    REQUIRE(wrong == 0);
}

TEST_CASE("fp16 conversions are exact and round to nearest even", "[unit][device]") {
    check_format<ElementType::float16>(kFp16);
}

TEST_CASE("bf16 conversions are exact and round to nearest even", "[unit][device]") {
    check_format<ElementType::bfloat16>(kBf16);
}

TEST_CASE("fp32 pieces pass unchanged", "[unit][device]") {
    const Vec16 piece{{0x3f800000u, 0x80000000u, 0x00000001u, 0x7f800000u}};
    float values[4] = {};
    Pack16<ElementType::float32>::unpack(piece, values);
    const Vec16 back = Pack16<ElementType::float32>::round(values);
    for (int i = 0; i < 4; ++i) REQUIRE(back.w[i] == piece.w[i]);
}

TEST_CASE("sums are kept in fp32", "[unit][device]") {
    using Pack = Pack16<ElementType::bfloat16>;
    float acc[Pack::count] = {};
    float one[Pack::count];
    float small[Pack::count];
    for (int i = 0; i < Pack::count; ++i) {
        one[i] = 1.0f;
        small[i] = 0x1.0p-9f;
    }
    Pack::accumulate(acc, Pack::round(one));
    // Each of these alone would be lost in bf16.
    for (int i = 0; i < 256; ++i) Pack::accumulate(acc, Pack::round(small));
    for (const float value : acc) REQUIRE(value == 1.5f);
    Pack::accumulate_scaled(acc, Pack::round(one), -0.25f);
    for (const float value : acc) REQUIRE(value == 1.25f);
}

TEST_CASE("a weighted add is one fused operation", "[unit][device]") {
    using Pack = Pack16<ElementType::float32>;
    const float factor = 1.0f + 0x1.0p-12f;
    float acc[4] = {-1.0f, -1.0f, -1.0f, -1.0f};
    const float values[4] = {factor, factor, factor, factor};
    Pack::accumulate_scaled(acc, Pack::round(values), factor);
    // factor squared = 1 + 2^-11 + 2^-24; a rounded product would lose the last term.
    for (const float value : acc) REQUIRE(value == 0x1.0p-11f + 0x1.0p-24f);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Elements of the payload types on the host, bit by bit and independent of what the device uses.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/abi/types.hpp"

namespace gimlet {

/// Rounds to a float with `exponent_bits` and `mantissa_bits`, to nearest, ties to even. Overflow
/// gives infinity, every NaN the positive all-ones pattern. fp8_e4m3, which has no infinity, is
/// handled by its own function.
constexpr std::uint32_t encode_ieee(float value, int exponent_bits, int mantissa_bits) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 31) << (exponent_bits + mantissa_bits);
    const std::uint32_t all_ones = (1u << exponent_bits) - 1;
    const std::uint32_t infinity = all_ones << mantissa_bits;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return infinity | ((1u << mantissa_bits) - 1);
    if (magnitude == 0x7f800000u) return sign | infinity;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> 23) - 127;
    std::uint64_t mantissa =
        magnitude >> 23 ? (magnitude & 0x7fffffu) | 0x800000u : magnitude & 0x7fffffu;
    const int source_exponent = magnitude >> 23 ? exponent : -126;
    int drop = 23 - mantissa_bits;
    int target = source_exponent + bias;
    if (target < 1) {
        drop += 1 - target;
        target = 1;
    }
    if (drop > 62) return sign;
    const std::uint64_t half = drop > 0 ? std::uint64_t{1} << (drop - 1) : 0;
    const std::uint64_t rest = mantissa & ((std::uint64_t{1} << drop) - 1);
    std::uint64_t kept = mantissa >> drop;
    if (drop > 0 && (rest > half || (rest == half && (kept & 1)))) ++kept;
    // The hidden bit carries into the exponent field by itself.
    const std::uint64_t result = (static_cast<std::uint64_t>(target - 1) << mantissa_bits) + kept;
    return result >= infinity ? sign | infinity : sign | static_cast<std::uint32_t>(result);
}

constexpr float decode_ieee(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
    const std::uint32_t sign = (bits >> (exponent_bits + mantissa_bits)) & 1u;
    const std::uint32_t field = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
    std::uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (field == (1u << exponent_bits) - 1) {
        return std::bit_cast<float>(sign << 31 | 0x7f800000u | mantissa << (23 - mantissa_bits));
    }
    if (field == 0 && mantissa == 0) return std::bit_cast<float>(sign << 31);
    int exponent = static_cast<int>(field) - bias;
    if (field == 0) {
        exponent = 1 - bias;
        if (exponent < -126)
            return std::bit_cast<float>(sign << 31 | mantissa << (23 - mantissa_bits));
        while (!(mantissa >> mantissa_bits)) {
            mantissa <<= 1;
            --exponent;
        }
        mantissa &= (1u << mantissa_bits) - 1;
        if (exponent < -126) {
            const int shift = -126 - exponent;
            return std::bit_cast<float>(sign << 31 |
                                        ((0x800000u | mantissa << (23 - mantissa_bits)) >> shift));
        }
    }
    return std::bit_cast<float>(sign << 31 | static_cast<std::uint32_t>(exponent + 127) << 23 |
                                mantissa << (23 - mantissa_bits));
}

/// e4m3: bias 7, largest 448, 0x7f is NaN; larger values saturate.
constexpr std::uint32_t encode_e4m3(float value) {
    const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) >> 31) << 7;
    if (value != value) return sign | 0x7fu;
    const float magnitude = value < 0 ? -value : value;
    if (magnitude >= 464.0f) return sign | 0x7eu;
    // Only 126 magnitudes exist: the nearest one is found by looking at all, ties go to the even
    // pattern.
    std::uint32_t best = 0;
    float best_distance = magnitude;
    for (std::uint32_t bits = 1; bits <= 0x7eu; ++bits) {
        const std::uint32_t field = bits >> 3;
        const float scale =
            std::bit_cast<float>((field == 0 ? 127u - 9u : 127u + field - 10u) << 23);
        const float candidate =
            scale * static_cast<float>(field == 0 ? bits & 7u : 8u + (bits & 7u));
        const float distance =
            candidate > magnitude ? candidate - magnitude : magnitude - candidate;
        if (distance < best_distance || (distance == best_distance && (bits & 1u) == 0)) {
            best = bits;
            best_distance = distance;
        }
    }
    return sign | best;
}

constexpr float decode_e4m3(std::uint32_t bits) {
    if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>((bits >> 7) << 31 | 0x7fc00000u);
    const std::uint32_t field = (bits >> 3) & 0xfu;
    const float scale = std::bit_cast<float>((field == 0 ? 127u - 9u : 127u + field - 10u) << 23);
    const float magnitude = scale * static_cast<float>(field == 0 ? bits & 7u : 8u + (bits & 7u));
    return bits >> 7 & 1u ? -magnitude : magnitude;
}

inline void store_element(ElementType type, void* to, float value) {
    std::uint32_t bits = 0;
    switch (type) {
        case ElementType::float32: bits = std::bit_cast<std::uint32_t>(value); break;
        case ElementType::float16: bits = encode_ieee(value, 5, 10); break;
        case ElementType::bfloat16: bits = encode_ieee(value, 8, 7); break;
        case ElementType::float8_e4m3: bits = encode_e4m3(value); break;
    }
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(to, &bits, element_bytes(type));
}

inline float load_element(ElementType type, const void* from) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, from, element_bytes(type));
    switch (type) {
        case ElementType::float32: return std::bit_cast<float>(bits);
        case ElementType::float16: return decode_ieee(bits, 5, 10);
        case ElementType::bfloat16: return decode_ieee(bits, 8, 7);
        case ElementType::float8_e4m3: return decode_e4m3(bits);
    }
    return 0;
}

}  // namespace gimlet

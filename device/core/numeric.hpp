// SPDX-License-Identifier: Apache-2.0
//
// Element conversion on 16-byte pieces of rows. Sums are kept in fp32; results are rounded to
// nearest even. Both machines give the same bits: adds are single IEEE operations, weighted adds
// are one fused multiply-add, and a NaN rounds to the canonical NaN of the element type.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "device/abi/types.hpp"
#include "device/core/memory.hpp"
#include "device/core/platform.hpp"
#if !GIMLET_EMULATED
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace gimlet::device {

namespace detail {

#if GIMLET_EMULATED

inline float float_of_bits(std::uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}
inline std::uint32_t bits_of_float(float value) {
    return __builtin_bit_cast(std::uint32_t, value);
}
inline float fused_multiply_add(float a, float b, float c) {
    return std::fmaf(a, b, c);
}

inline float bf16_to_float(std::uint32_t half) {
    return float_of_bits(half << 16);
}

inline std::uint32_t float_to_bf16(float value) {
    const std::uint32_t bits = bits_of_float(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

inline float fp16_to_float(std::uint32_t half) {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t exponent = (half >> 10) & 0x1fu;
    const std::uint32_t fraction = half & 0x3ffu;
    if (exponent == 31) return float_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return float_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
    // Subnormal: fraction * 2^-24, exact in fp32.
    const float magnitude = static_cast<float>(fraction) * 0x1.0p-24f;
    return float_of_bits(sign | bits_of_float(magnitude));
}

inline std::uint32_t float_to_fp16(float value) {
    const std::uint32_t bits = bits_of_float(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fffu;
    // 65520 = 65504 + half a step rounds to infinity, as everything above.
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) {
        const std::uint32_t rebased = magnitude - (112u << 23);
        return sign | (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
    }
    // Subnormal result: adding 0.5 puts 2^-24 at the last place of the sum, and the addition rounds
    // to nearest even.
    return sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f));
}

inline void unpack_bf16(std::uint32_t word, float& low, float& high) {
    low = bf16_to_float(word & 0xffffu);
    high = bf16_to_float(word >> 16);
}
inline std::uint32_t pack_bf16(float low, float high) {
    return float_to_bf16(low) | float_to_bf16(high) << 16;
}
inline void unpack_fp16(std::uint32_t word, float& low, float& high) {
    low = fp16_to_float(word & 0xffffu);
    high = fp16_to_float(word >> 16);
}
inline std::uint32_t pack_fp16(float low, float high) {
    return float_to_fp16(low) | float_to_fp16(high) << 16;
}

#else

GIMLET_DEVICE float float_of_bits(std::uint32_t bits) {
    return __uint_as_float(bits);
}
GIMLET_DEVICE std::uint32_t bits_of_float(float value) {
    return __float_as_uint(value);
}
GIMLET_DEVICE float fused_multiply_add(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}

GIMLET_DEVICE void unpack_bf16(std::uint32_t word, float& low, float& high) {
    low = __uint_as_float(word << 16);
    high = __uint_as_float(word & 0xffff0000u);
}
GIMLET_DEVICE std::uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    std::uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}
GIMLET_DEVICE void unpack_fp16(std::uint32_t word, float& low, float& high) {
    __half2 halves;
    memcpy(&halves, &word, sizeof halves);
    const float2 pair = __half22float2(halves);
    low = pair.x;
    high = pair.y;
}
GIMLET_DEVICE std::uint32_t pack_fp16(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    std::uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

#endif

/// 32-bit words of a piece and floats are related by these three.
template <ElementType E>
struct ElementWord;

template <>
struct ElementWord<ElementType::float32> {
    static constexpr int elements = 1;
    GIMLET_DEVICE static void unpack(std::uint32_t word, float* values) {
        values[0] = float_of_bits(word);
    }
    GIMLET_DEVICE static std::uint32_t pack(const float* values) {
        return bits_of_float(values[0]);
    }
};

template <>
struct ElementWord<ElementType::float16> {
    static constexpr int elements = 2;
    GIMLET_DEVICE static void unpack(std::uint32_t word, float* values) {
        unpack_fp16(word, values[0], values[1]);
    }
    GIMLET_DEVICE static std::uint32_t pack(const float* values) {
        return pack_fp16(values[0], values[1]);
    }
};

template <>
struct ElementWord<ElementType::bfloat16> {
    static constexpr int elements = 2;
    GIMLET_DEVICE static void unpack(std::uint32_t word, float* values) {
        unpack_bf16(word, values[0], values[1]);
    }
    GIMLET_DEVICE static std::uint32_t pack(const float* values) {
        return pack_bf16(values[0], values[1]);
    }
};

}  // namespace detail

/// Sums over 16-byte pieces of rows of element type E (float32, float16 or bfloat16).
template <ElementType E>
struct Pack16 {
    static constexpr int count = 4 * detail::ElementWord<E>::elements;

    /// acc[i] += element i
    GIMLET_DEVICE static void accumulate(float (&acc)[count], Vec16 piece) {
        float values[count];
        unpack(piece, values);
        GIMLET_UNROLL
        for (int i = 0; i < count; ++i) acc[i] += values[i];
    }

    /// acc[i] = fma(element i, weight, acc[i])
    GIMLET_DEVICE static void accumulate_scaled(float (&acc)[count], Vec16 piece, float weight) {
        float values[count];
        unpack(piece, values);
        GIMLET_UNROLL
        for (int i = 0; i < count; ++i)
            acc[i] = detail::fused_multiply_add(values[i], weight, acc[i]);
    }

    GIMLET_DEVICE static void unpack(Vec16 piece, float (&values)[count]) {
        constexpr int per_word = detail::ElementWord<E>::elements;
        GIMLET_UNROLL
        for (int i = 0; i < 4; ++i)
            detail::ElementWord<E>::unpack(piece.w[i], values + i * per_word);
    }

    /// Rounds to nearest even.
    GIMLET_DEVICE static Vec16 round(const float (&acc)[count]) {
        constexpr int per_word = detail::ElementWord<E>::elements;
        Vec16 piece;
        GIMLET_UNROLL
        for (int i = 0; i < 4; ++i) piece.w[i] = detail::ElementWord<E>::pack(acc + i * per_word);
        return piece;
    }
};

}  // namespace gimlet::device

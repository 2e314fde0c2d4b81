// SPDX-License-Identifier: Apache-2.0
// The generator behind all made-up inputs, and the fixed-point functions that go with it. Integer
// arithmetic only, so that one seed gives the same inputs on every machine and compiler.
#pragma once

#include <array>
#include <cstdint>

namespace gimlet {

/// Seeded 64-bit generator (splitmix64).
class InputRng {
  public:
    explicit InputRng(std::uint64_t seed) : state_(seed) {}

    /// An independent stream for (seed, a, b): same values whatever other streams were used before.
    static InputRng stream(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0) {
        InputRng mixer(seed);
        const std::uint64_t first = mixer.next() ^ (a * 0x9e3779b97f4a7c15ull);
        InputRng second(first);
        return InputRng(second.next() ^ (b * 0xc2b2ae3d27d4eb4full));
    }

    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ull;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }

    /// Uniform in [0, n), n > 0.
    std::uint64_t below(std::uint64_t n) {
        return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
    }

    /// True with probability millionths / 1e6.
    bool chance_millionths(std::uint64_t millionths) { return below(1000000) < millionths; }

    /// Roughly standard normal, 16 fractional bits: the sum of 12 uniforms.
    std::int64_t normal_q16() {
        std::int64_t sum = -6 * 65536;
        for (int i = 0; i < 3; ++i) {
            const std::uint64_t bits = next();
            for (int part = 0; part < 4; ++part)
                sum += static_cast<std::int64_t>((bits >> (16 * part)) & 0xffff);
        }
        return sum;
    }

  private:
    std::uint64_t state_;
};

namespace detail {

constexpr std::uint64_t integer_sqrt(unsigned __int128 value) {
    std::uint64_t root = 0;
    for (int bit = 63; bit >= 0; --bit) {
        const std::uint64_t trial = root | (std::uint64_t{1} << bit);
        if (static_cast<unsigned __int128>(trial) * trial <= value) root = trial;
    }
    return root;
}

/// 2^(2^-1), 2^(2^-2), ... with 32 fractional bits.
constexpr std::array<std::uint64_t, 16> make_exp2_steps() {
    std::array<std::uint64_t, 16> steps{};
    std::uint64_t value = std::uint64_t{1} << 62;  // 2.0 with 61 fractional bits
    for (auto& step : steps) {
        value = integer_sqrt(static_cast<unsigned __int128>(value) << 61);
        step = value >> 29;
    }
    return steps;
}

inline constexpr std::array<std::uint64_t, 16> kExp2Steps = make_exp2_steps();

}  // namespace detail

/// 2^x with 32 fractional bits; x has 16 and is clamped to -31..30.
constexpr std::uint64_t exp2_q32(std::int64_t x_q16) {
    if (x_q16 < -31 * 65536) x_q16 = -31 * 65536;
    if (x_q16 > 30 * 65536) x_q16 = 30 * 65536;
    const std::int64_t whole = x_q16 >> 16;
    const std::uint64_t fraction = static_cast<std::uint64_t>(x_q16 & 0xffff);
    std::uint64_t result = std::uint64_t{1} << 32;
    for (int i = 0; i < 16; ++i) {
        if (fraction & (0x8000u >> i)) {
            result = static_cast<std::uint64_t>((static_cast<unsigned __int128>(result) *
                                                 detail::kExp2Steps[static_cast<std::size_t>(i)]) >>
                                                32);
        }
    }
    return whole >= 0 ? result << whole : result >> -whole;
}

/// 1 / (1 + e^-x) with 32 fractional bits; x has 16.
constexpr std::uint64_t sigmoid_q32(std::int64_t x_q16) {
    // log2(e) = 94548 / 65536
    const std::uint64_t e = exp2_q32(-(x_q16 * 94548 >> 16));
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(1) << 64) /
                                      ((std::uint64_t{1} << 32) + e));
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic for sizes: raises Error(overflow) instead of wrapping. `what` names the
// quantity in the message; it is a phrase such as "receive buffer bytes".
#pragma once

#include <concepts>
#include <limits>
#include <utility>

#include "host/base/error.hpp"

namespace gimlet {

template <std::integral T>
T checked_mul(T a, T b, const char* what, int rank = kNoRank) {
    T result{};
    if (__builtin_mul_overflow(a, b, &result)) {
        raise(ErrorCode::overflow, rank, "{}: {} * {} is above the limit {}", what, a, b,
              std::numeric_limits<T>::max());
    }
    return result;
}

template <std::integral T>
T checked_add(T a, T b, const char* what, int rank = kNoRank) {
    T result{};
    if (__builtin_add_overflow(a, b, &result)) {
        raise(ErrorCode::overflow, rank, "{}: {} + {} is above the limit {}", what, a, b,
              std::numeric_limits<T>::max());
    }
    return result;
}

template <std::integral T>
T checked_sub(T a, T b, const char* what, int rank = kNoRank) {
    T result{};
    if (__builtin_sub_overflow(a, b, &result)) {
        raise(ErrorCode::overflow, rank, "{}: {} - {} is outside {}..{}", what, a, b,
              std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
    }
    return result;
}

/// ceil(a / b) for a >= 0, b > 0. Cannot overflow.
template <std::integral T>
T ceil_div(T a, T b, const char* what, int rank = kNoRank) {
    if (b <= 0 || std::cmp_less(a, 0)) {
        raise(ErrorCode::invalid_argument, rank,
              "{}: cannot divide {} by {}; need a value >= 0 and a divisor > 0", what, a, b);
    }
    return static_cast<T>(a / b + (a % b != 0 ? 1 : 0));
}

/// Smallest multiple of `alignment` that is >= a. `alignment` > 0, not necessarily a power of two.
template <std::integral T>
T align_up(T a, T alignment, const char* what, int rank = kNoRank) {
    return checked_mul(ceil_div(a, alignment, what, rank), alignment, what, rank);
}

/// Conversion that keeps the value, or raises.
template <std::integral To, std::integral From>
To narrow(From value, const char* what, int rank = kNoRank) {
    if (!std::in_range<To>(value)) {
        raise(ErrorCode::overflow, rank, "{}: {} is outside {}..{}", what, value,
              std::numeric_limits<To>::min(), std::numeric_limits<To>::max());
    }
    return static_cast<To>(value);
}

}  // namespace gimlet

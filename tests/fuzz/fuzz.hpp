// SPDX-License-Identifier: Apache-2.0
// What every fuzz target uses. A finding ends the process: libFuzzer and the plain driver both see
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

#include "host/base/log.hpp"

/// The entry that libFuzzer and driver.cc call, once an input. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace gimlet::fuzz {

/// Refusals are what a fuzzer makes most; their lines in the log are not wanted.
inline void quiet() {
    set_log_level(LogLevel::off);
}

inline void require(bool right, const char* what) {
    if (right) return;
    std::fprintf(stderr, "fuzz: not so: %s\n", what);
    std::abort();
}

/// Takes values off the front of an input; zeros after its end.
class Input {
  public:
    Input(const std::uint8_t* data, std::size_t bytes) : data_(data), bytes_(bytes) {}

    bool empty() const { return at_ >= bytes_; }

    template <typename T>
    T take() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value{};
        const std::size_t left = bytes_ - at_;
        const std::size_t used = sizeof(T) < left ? sizeof(T) : left;
        if (used > 0) std::memcpy(&value, data_ + at_, used);
        at_ += used;
        return value;
    }

    /// A number that is often on an edge: an input byte chooses between small numbers, limits of
    /// the type, and four bytes taken as they are.
    std::int32_t number() {
        const auto selector = take<std::uint8_t>();
        if (selector < 200) return selector;
        switch (selector % 8) {
            case 0: return -1;
            case 1: return std::numeric_limits<std::int32_t>::max();
            case 2: return std::numeric_limits<std::int32_t>::min();
            case 3: return 1 << (take<std::uint8_t>() % 31);
            case 4: return (1 << (take<std::uint8_t>() % 31)) - 1;
            default: return take<std::int32_t>();
        }
    }

  private:
    const std::uint8_t* data_;
    std::size_t bytes_;
    std::size_t at_ = 0;
};

}  // namespace gimlet::fuzz

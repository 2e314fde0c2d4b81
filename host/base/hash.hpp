// SPDX-License-Identifier: Apache-2.0
// A small, fixed 64-bit hash (FNV-1a). It is compared between ranks, so it must not depend on the
// process, the standard library or the build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gimlet {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325ull;

inline std::uint64_t hash_bytes(const void* data, std::size_t bytes,
                                std::uint64_t start = kHashStart) noexcept {
    const auto* byte = static_cast<const unsigned char*>(data);
    std::uint64_t hash = start;
    for (std::size_t i = 0; i < bytes; ++i) hash = (hash ^ byte[i]) * 0x100000001b3ull;
    return hash;
}

inline std::uint64_t hash_text(std::string_view text, std::uint64_t start = kHashStart) noexcept {
    return hash_bytes(text.data(), text.size(), start);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// Text that people read: sizes, times, rank lists, JSON strings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gimlet {

/// "0 B", "1000 B", "1.5 KiB", "2 GiB": at most one decimal, exact below 1 KiB.
std::string format_bytes(std::uint64_t bytes);
/// "850 ns", "1.5 us", "20 ms", "3.2 s".
std::string format_duration_ns(std::uint64_t ns);
/// Sorted ranks with runs folded: "0-2, 4, 6-7"; "none" if empty.
std::string format_ranks(std::span<const int> ranks);
/// `text` with quotes, escaped for JSON.
std::string json_quote(std::string_view text);

}  // namespace gimlet

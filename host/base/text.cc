// SPDX-License-Identifier: Apache-2.0
#include "host/base/text.hpp"

#include <fmt/format.h>

#include <array>

namespace gimlet {

namespace {

/// At most one decimal, none if it is zero.
std::string trimmed(double value, const char* unit) {
    std::string text = fmt::format("{:.1f}", value);
    if (text.ends_with(".0")) text.resize(text.size() - 2);
    return text + " " + unit;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
    if (bytes < 1024) return fmt::format("{} B", bytes);
    constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes) / 1024.0;
    std::size_t unit = 0;
    // 1023.95 would round to "1024".
    while (value >= 1023.95 && unit + 1 < kUnits.size()) {
        value /= 1024.0;
        ++unit;
    }
    return trimmed(value, kUnits[unit]);
}

std::string format_duration_ns(std::uint64_t ns) {
    if (ns < 1000) return fmt::format("{} ns", ns);
    constexpr std::array kUnits = {"us", "ms", "s"};
    double value = static_cast<double>(ns) / 1000.0;
    std::size_t unit = 0;
    while (value >= 999.95 && unit + 1 < kUnits.size()) {
        value /= 1000.0;
        ++unit;
    }
    return trimmed(value, kUnits[unit]);
}

std::string format_ranks(std::span<const int> ranks) {
    if (ranks.empty()) return "none";
    std::string result;
    for (std::size_t first = 0; first < ranks.size();) {
        std::size_t last = first;
        while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
        if (!result.empty()) result += ", ";
        result += last == first ? fmt::format("{}", ranks[first])
                                : fmt::format("{}-{}", ranks[first], ranks[last]);
        first = last + 1;
    }
    return result;
}

std::string json_quote(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        switch (c) {
            case '"': result += "\\\""; break;
            case '\\': result += "\\\\"; break;
            case '\n': result += "\\n"; break;
            case '\r': result += "\\r"; break;
            case '\t': result += "\\t"; break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
                } else {
                    result += c;
                }
        }
    }
    return result + "\"";
}

}  // namespace gimlet

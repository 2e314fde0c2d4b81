// SPDX-License-Identifier: Apache-2.0
#include "runtime/npy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "device/abi/limits.hpp"
#include "host/base/error.hpp"

namespace gimlet {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr std::size_t kMagicBytes = 6;

template <typename... Args>
[[noreturn]] void refuse(const std::string& name, fmt::format_string<Args...> format,
                         Args&&... args) {
    raise(ErrorCode::invalid_argument, kNoRank, "{}: {}", name,
          fmt::format(format, std::forward<Args>(args)...));
}

struct NpyHeader {
    std::string descr;
    bool fortran_order = false;
    std::vector<std::uint64_t> shape;
};

/// Reads the header's dictionary literal: three keys, strings in quotes, True/False, a tuple of
/// numbers.
class HeaderParser {
  public:
    HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

    NpyHeader parse() {
        NpyHeader header;
        bool has_descr = false;
        bool has_order = false;
        bool has_shape = false;
        expect('{');
        while (!accept('}')) {
            const std::string key = quoted();
            expect(':');
            if (key == "descr" && !has_descr) {
                header.descr = quoted();
                has_descr = true;
            } else if (key == "fortran_order" && !has_order) {
                header.fortran_order = boolean();
                has_order = true;
            } else if (key == "shape" && !has_shape) {
                header.shape = tuple();
                has_shape = true;
            } else {
                refuse(name_,
                       "the header has the key '{}' {}; expected descr, fortran_order and shape, "
                       "once each",
                       printable(key),
                       key == "descr" || key == "fortran_order" || key == "shape" ? "twice" : "");
            }
            if (!accept(',')) {
                expect('}');
                break;
            }
        }
        skip_space();
        if (at_ != text_.size()) fail("nothing but blanks after the dictionary");
        if (!has_descr || !has_order || !has_shape) fail("the keys descr, fortran_order and shape");
        return header;
    }

  private:
    [[noreturn]] void fail(const char* wanted) {
        refuse(name_, "malformed header at character {}: expected {}", at_, wanted);
    }

    static std::string printable(const std::string& text) {
        std::string out;
        for (const char c : text.substr(0, 40)) out += c >= ' ' && c <= '~' ? c : '?';
        return out;
    }

    void skip_space() {
        while (at_ < text_.size() &&
               (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t'))
            ++at_;
    }

    bool accept(char c) {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        ++at_;
        return true;
    }

    void expect(char c) {
        if (!accept(c)) {
            const char wanted[] = {'\'', c, '\'', 0};
            fail(wanted);
        }
    }

    std::string quoted() {
        skip_space();
        if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"'))
            fail("a quoted string");
        const char quote = text_[at_++];
        const auto end = text_.find(quote, at_);
        if (end == std::string_view::npos) fail("the end of a quoted string");
        std::string out(text_.substr(at_, end - at_));
        at_ = end + 1;
        return out;
    }

    bool boolean() {
        skip_space();
        for (const bool value : {true, false}) {
            const std::string_view word = value ? "True" : "False";
            if (text_.substr(at_, word.size()) == word) {
                at_ += word.size();
                return value;
            }
        }
        fail("True or False");
    }

    std::vector<std::uint64_t> tuple() {
        std::vector<std::uint64_t> values;
        expect('(');
        while (!accept(')')) {
            values.push_back(number());
            if (!accept(',')) {
                expect(')');
                break;
            }
        }
        return values;
    }

    std::uint64_t number() {
        skip_space();
        const auto start = at_;
        std::uint64_t value = 0;
        while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
            if (__builtin_mul_overflow(value, std::uint64_t{10}, &value) ||
                __builtin_add_overflow(value, static_cast<std::uint64_t>(text_[at_] - '0'),
                                       &value)) {
                fail("a dimension below 2^64");
            }
            ++at_;
        }
        if (at_ == start) fail("a dimension");
        return value;
    }

    std::string_view text_;
    const std::string& name_;
    std::size_t at_ = 0;
};

struct Split {
    std::string_view header;
    std::span<const std::byte> data;
};

Split split_file(std::span<const std::byte> bytes, const std::string& name) {
    if (bytes.size() < kMagicBytes + 2 || std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0) {
        refuse(name, "not a NumPy .npy file: it does not start with \\x93NUMPY ({} bytes)",
               bytes.size());
    }
    const int major = static_cast<int>(bytes[6]);
    const int minor = static_cast<int>(bytes[7]);
    if (major < 1 || major > 3 || minor != 0) {
        refuse(name, "format version {}.{}; supported are 1.0, 2.0 and 3.0", major, minor);
    }
    const std::size_t length_bytes = major == 1 ? 2 : 4;
    const std::size_t start = kMagicBytes + 2 + length_bytes;
    if (bytes.size() < start)
        refuse(name, "truncated: {} bytes end inside the header length", bytes.size());
    std::size_t length = 0;
    for (std::size_t i = 0; i < length_bytes; ++i) {
        length |= static_cast<std::size_t>(bytes[kMagicBytes + 2 + i]) << (8 * i);
    }
    if (length > bytes.size() - start) {
        refuse(name, "truncated: the header has {} bytes, only {} follow", length,
               bytes.size() - start);
    }
    return {{reinterpret_cast<const char*>(bytes.data() + start), length},
            bytes.subspan(start + length)};
}

std::size_t element_bytes_of(const NpyHeader& header, const std::string& name) {
    if (header.descr == "<i4") return 4;
    if (header.descr == "<i8") return 8;
    std::string shown;
    for (const char c : header.descr.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
    refuse(name,
           "dtype '{}'; routing must be little-endian int32 ('<i4') or int64 ('<i8'): save "
           "array.astype('<i4')",
           shown);
}

std::uint64_t count_of(const NpyHeader& header, std::size_t element, const std::string& name) {
    std::uint64_t count = 1;
    for (const auto dimension : header.shape) {
        if (__builtin_mul_overflow(count, dimension, &count)) {
            refuse(name, "shape ({}) overflows 64 bits", fmt::join(header.shape, ", "));
        }
    }
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(count, static_cast<std::uint64_t>(element), &bytes)) {
        refuse(name, "shape ({}) overflows 64 bits", fmt::join(header.shape, ", "));
    }
    return count;
}

std::int32_t check_topk(std::uint64_t topk, const std::string& name) {
    if (topk < 1 || topk > static_cast<std::uint64_t>(kMaxTopK)) {
        refuse(name, "K (the last dimension) is {}; it must be 1..{}", topk, kMaxTopK);
    }
    return static_cast<std::int32_t>(topk);
}

void check_tokens(std::uint64_t tokens, const std::string& name) {
    if (tokens > static_cast<std::uint64_t>(kMaxRows)) {
        refuse(name, "T is {}; the limit is {} tokens a rank", tokens, kMaxRows);
    }
}

RankRouting slice(const NpyArray& array, std::uint64_t first, std::uint64_t count,
                  std::uint64_t topk) {
    RankRouting rank;
    rank.token_count = static_cast<std::int32_t>(count);
    const auto begin = array.values.begin() + static_cast<std::ptrdiff_t>(first * topk);
    rank.indices.assign(begin, begin + static_cast<std::ptrdiff_t>(count * topk));
    return rank;
}

RoutingTable read_rank_files(const std::string& path, std::size_t at, std::int32_t rank_count) {
    RoutingTable table;
    for (std::int32_t r = 0; r < rank_count; ++r) {
        std::string name = path;
        name.replace(at, 6, std::to_string(r));
        const auto array = read_npy(name);
        if (array.shape.size() != 2) {
            refuse(name, "{} dimensions; a file of one rank is [T, K]", array.shape.size());
        }
        const auto topk = check_topk(array.shape[1], name);
        check_tokens(array.shape[0], name);
        if (r > 0 && topk != table.topk)
            refuse(name, "K is {}, but {} in the file of rank 0", topk, table.topk);
        table.topk = topk;
        table.ranks.push_back(slice(array, 0, array.shape[0], array.shape[1]));
    }
    return table;
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name) {
    const auto parts = split_file(bytes, name);
    const auto header = HeaderParser(parts.header, name).parse();
    const auto element = element_bytes_of(header, name);
    if (header.fortran_order) {
        refuse(name, "Fortran order; save numpy.ascontiguousarray(array)");
    }
    if (header.shape.size() > 3)
        refuse(name, "{} dimensions; at most 3 are used", header.shape.size());
    const auto count = count_of(header, element, name);
    if (count * element > parts.data.size()) {
        refuse(name, "truncated: shape ({}) needs {} bytes of data, the file has {}",
               fmt::join(header.shape, ", "), count * element, parts.data.size());
    }
    if (count * element < parts.data.size()) {
        refuse(name, "{} bytes are left over after the data of shape ({})",
               parts.data.size() - count * element, fmt::join(header.shape, ", "));
    }
    NpyArray array{header.shape, std::vector<std::int64_t>(count)};
    for (std::uint64_t i = 0; i < count; ++i) {
        if (element == 4) {
            std::int32_t value;
            std::memcpy(&value, parts.data.data() + i * 4, 4);
            array.values[i] = value;
        } else {
            std::memcpy(&array.values[i], parts.data.data() + i * 8, 8);
        }
    }
    return array;
}

NpyArray read_npy(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) raise(ErrorCode::system, kNoRank, "{}: cannot open: {}", path, std::strerror(errno));
    std::vector<char> text;
    try {
        // A folder opens, and only throws when it is read.
        text.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    } catch (const std::ios_base::failure& failure) {
        raise(ErrorCode::system, kNoRank, "{}: cannot read: {}", path, failure.what());
    }
    if (file.bad())
        raise(ErrorCode::system, kNoRank, "{}: cannot read: {}", path, std::strerror(errno));
    return parse_npy(std::as_bytes(std::span(text)), path);
}

std::vector<std::byte> make_npy(const NpyArray& array, NpyInteger type) {
    std::string shape;
    for (const auto dimension : array.shape) shape += std::to_string(dimension) + ", ";
    std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}",
                                     type == NpyInteger::int32 ? "<i4" : "<i8", shape);
    while ((kMagicBytes + 4 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    std::string out(kMagic, kMagicBytes);
    out += '\x01';
    out += '\0';
    out += static_cast<char>(header.size() & 0xff);
    out += static_cast<char>(header.size() >> 8);
    out += header;
    for (const auto value : array.values) {
        const auto narrow_value = static_cast<std::int32_t>(value);
        if (type == NpyInteger::int32) {
            out.append(reinterpret_cast<const char*>(&narrow_value), 4);
        } else {
            out.append(reinterpret_cast<const char*>(&value), 8);
        }
    }
    const auto bytes = std::as_bytes(std::span(out));
    return {bytes.begin(), bytes.end()};
}

RoutingTable read_routing(const std::string& path, std::int32_t rank_count) {
    const auto place = path.find("{rank}");
    if (place != std::string::npos) return read_rank_files(path, place, rank_count);
    const auto array = read_npy(path);
    const auto ranks = static_cast<std::uint64_t>(rank_count);
    RoutingTable table;
    if (array.shape.size() == 3) {
        if (array.shape[0] != ranks) {
            refuse(path, "the first dimension says {} ranks, this run has {}", array.shape[0],
                   rank_count);
        }
        table.topk = check_topk(array.shape[2], path);
        check_tokens(array.shape[1], path);
        for (std::uint64_t r = 0; r < ranks; ++r) {
            table.ranks.push_back(slice(array, r * array.shape[1], array.shape[1], array.shape[2]));
        }
    } else if (array.shape.size() == 2) {
        table.topk = check_topk(array.shape[1], path);
        check_tokens(array.shape[0], path);
        std::uint64_t first = 0;
        for (std::uint64_t r = 0; r < ranks; ++r) {
            const auto count = array.shape[0] / ranks + (r < array.shape[0] % ranks ? 1 : 0);
            table.ranks.push_back(slice(array, first, count, array.shape[1]));
            first += count;
        }
    } else {
        refuse(path, "{} dimensions; a routing is [ranks, T, K] or [T, K]", array.shape.size());
    }
    return table;
}

}  // namespace gimlet

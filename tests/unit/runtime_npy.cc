// SPDX-License-Identifier: Apache-2.0
#include "runtime/npy.hpp"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "runtime/rng.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

using Bytes = std::vector<std::byte>;

Bytes file(const std::string& header, const std::string& data, int major = 1,
           std::size_t extra_length = 0) {
    std::string out = "\x93NUMPY";
    out += static_cast<char>(major);
    out += '\0';
    const std::size_t length = header.size() + extra_length;
    for (int i = 0; i < (major == 1 ? 2 : 4); ++i) out += static_cast<char>(length >> (8 * i));
    out += header + data;
    const auto bytes = std::as_bytes(std::span(out));
    return {bytes.begin(), bytes.end()};
}

std::string dictionary(const std::string& descr, const std::string& order,
                       const std::string& shape) {
    return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string int32_data(std::initializer_list<std::int32_t> values) {
    std::string out;
    for (const auto value : values) out.append(reinterpret_cast<const char*>(&value), 4);
    return out;
}

class Folder {
  public:
    Folder() : path_(std::filesystem::temp_directory_path() / "gimlet_npy_test") {
        std::filesystem::create_directories(path_);
    }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string write(const std::string& name, const Bytes& bytes) const {
        std::ofstream out(path_ / name, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
        return (path_ / name).string();
    }
    std::string path(const std::string& name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

}  // namespace

TEST_CASE("well-formed files of all versions are read", "[runtime][npy]") {
    const auto data = int32_data({1, -1, 2, 3, 4, 5});
    for (const int major : {1, 2, 3}) {
        const auto array =
            parse_npy(file(dictionary("<i4", "False", "(3, 2)"), data, major), "x.npy");
        CHECK(array.shape == std::vector<std::uint64_t>{3, 2});
        CHECK(array.values == std::vector<std::int64_t>{1, -1, 2, 3, 4, 5});
    }
    // Keys in another order, double quotes, no final comma, blanks around.
    const auto odd = parse_npy(
        file(" {\"shape\":(2,3) , \"fortran_order\" : False,\"descr\":\"<i4\"}   \n", data),
        "x.npy");
    CHECK(odd.shape == std::vector<std::uint64_t>{2, 3});
    CHECK(parse_npy(file(dictionary("<i4", "False", "(6,)"), data), "x").shape.size() == 1);
    CHECK(parse_npy(file(dictionary("<i4", "False", "(0, 4)"), ""), "x").values.empty());
}

TEST_CASE("a written file is read back", "[runtime][npy]") {
    const NpyArray array{{2, 3, 2}, {0, 1, 2, 3, -1, 5, 6, 7, 8, 9, 10, 11}};
    for (const auto type : {NpyInteger::int32, NpyInteger::int64}) {
        const auto back = parse_npy(make_npy(array, type), "x");
        CHECK(back.shape == array.shape);
        CHECK(back.values == array.values);
    }
    const NpyArray wide{{1}, {std::int64_t{1} << 40}};
    CHECK(parse_npy(make_npy(wide, NpyInteger::int64), "x").values == wide.values);
}

TEST_CASE("malformed files are refused with the reason", "[runtime][npy]") {
    const LogCapture quiet;
    const auto data = int32_data({1, 2, 3, 4});
    const auto refuses = [](const Bytes& bytes, const char* reason) {
        CAPTURE(reason);
        CHECK_THROWS_WITH(parse_npy(bytes, "trace.npy"),
                          contains_text("trace.npy: ") && contains_text(reason));
    };
    const std::string good = dictionary("<i4", "False", "(2, 2)");
    refuses({}, "not a NumPy .npy file");
    refuses(Bytes(100), "not a NumPy .npy file");
    refuses(file(good, data, 4), "format version 4.0");
    refuses(file(good, data, 1, 5000), "truncated: the header has");
    refuses(file(good, data.substr(0, 15)), "truncated: shape (2, 2) needs 16 bytes of data");
    refuses(file(good, data + "x"), "1 bytes are left over");
    refuses(file(dictionary("<f4", "False", "(2, 2)"), data), "dtype '<f4'");
    refuses(file(dictionary(">i4", "False", "(2, 2)"), data), "dtype '>i4'");
    refuses(file(dictionary("<i2", "False", "(2, 2)"), data), "dtype '<i2'");
    refuses(file(dictionary("|O", "False", "(2, 2)"), data), "dtype '|O'");
    refuses(file(dictionary("<i4", "True", "(2, 2)"), data), "Fortran order");
    refuses(file(dictionary("<i4", "Maybe", "(2, 2)"), data), "expected True or False");
    refuses(file(dictionary("<i4", "False", "(2, -2)"), data), "expected a dimension");
    refuses(file(dictionary("<i4", "False", "(99999999999999999999, 2)"), data), "below 2^64");
    refuses(file(dictionary("<i4", "False", "(4294967296, 4294967296)"), data), "overflows");
    refuses(file(dictionary("<i4", "False", "(9223372036854775807, 1)"), data), "overflows");
    refuses(file(dictionary("<i4", "False", "(1, 1, 2, 2)"), data), "4 dimensions");
    refuses(file("{'descr': '<i4', 'shape': (2, 2)}\n", data), "fortran_order");
    refuses(file("{'descr': '<i4', 'descr': '<i4', 'shape': (2, 2)}\n", data), "twice");
    refuses(file("{'colour': '<i4'}\n", data), "'colour'");
    refuses(file(good.substr(0, 20), data), "malformed header");
    refuses(file("", data), "malformed header");
    auto cut = file(good, data);
    cut.resize(9);
    refuses(cut, "truncated");
}

TEST_CASE("random damage never gets past the reader by a crash", "[runtime][npy][fuzz]") {
    const LogCapture quiet;
    const std::uint64_t seed = 20261129;
    std::cout << "npy fuzz seed " << seed << '\n';
    InputRng rng(seed);
    const NpyArray array{{2, 3, 2}, {0, 1, 2, 3, -1, 5, 6, 7, 8, 9, 10, 11}};
    const Bytes whole = make_npy(array, NpyInteger::int32);
    int accepted = 0;
    int refused = 0;
    for (int round = 0; round < 20000; ++round) {
        Bytes bytes = whole;
        const auto edits = 1 + rng.below(4);
        for (std::uint64_t i = 0; i < edits && !bytes.empty(); ++i) {
            const auto at = rng.below(bytes.size());
            const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
            switch (rng.below(5)) {
                case 0: bytes.resize(at); break;
                case 1: bytes.insert(place, static_cast<std::byte>(rng.next())); break;
                case 2: bytes.erase(place); break;
                // Mostly the header, and there mostly characters that mean something.
                case 3:
                    bytes[rng.below(std::min<std::size_t>(bytes.size(), 80))] =
                        static_cast<std::byte>("{}(),':0129<i4 TFe"[rng.below(18)]);
                    break;
                default: *place = static_cast<std::byte>(rng.next());
            }
        }
        try {
            const auto got = parse_npy(bytes, "fuzz");
            std::uint64_t count = 1;
            for (const auto dimension : got.shape) count *= dimension;
            REQUIRE(got.values.size() == count);
            ++accepted;
        } catch (const Error& error) {
            REQUIRE(error.code() == ErrorCode::invalid_argument);
            ++refused;
        }
    }
    CHECK(refused > 5000);
    CHECK(accepted > 100);  // damage inside the data is not visible
}

TEST_CASE("routings of all three forms", "[runtime][npy]") {
    const LogCapture quiet;
    const Folder folder;
    const NpyArray cube{{2, 2, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1}};
    const auto path = folder.write("cube.npy", make_npy(cube, NpyInteger::int64));
    const auto table = read_routing(path, 2);
    CHECK(table.topk == 3);
    CHECK(table.ranks[1].indices == std::vector<std::int64_t>{6, 7, 8, 9, -1, -1});
    CHECK_THROWS_WITH(read_routing(path, 4), contains_text("says 2 ranks, this run has 4"));

    const NpyArray flat{{5, 1}, {0, 1, 2, 3, 4}};
    const auto dealt = read_routing(folder.write("flat.npy", make_npy(flat, NpyInteger::int32)), 3);
    CHECK(dealt.ranks[0].indices == std::vector<std::int64_t>{0, 1});
    CHECK(dealt.ranks[1].indices == std::vector<std::int64_t>{2, 3});
    CHECK(dealt.ranks[2].indices == std::vector<std::int64_t>{4});

    folder.write("r.0.npy", make_npy(flat, NpyInteger::int32));
    folder.write("r.1.npy", make_npy({{0, 1}, {}}, NpyInteger::int32));
    const auto each = read_routing(folder.path("r.{rank}.npy"), 2);
    CHECK(each.ranks[0].token_count == 5);
    CHECK(each.ranks[1].token_count == 0);
    CHECK_THROWS_WITH(read_routing(folder.path("r.{rank}.npy"), 3), contains_text("r.2.npy"));
    folder.write("r.1.npy", make_npy({{1, 2}, {0, 1}}, NpyInteger::int32));
    CHECK_THROWS_WITH(read_routing(folder.path("r.{rank}.npy"), 2),
                      contains_text("r.1.npy: K is 2, but 1 in the file of rank 0"));
}

TEST_CASE("routings that are no routings", "[runtime][npy]") {
    const LogCapture quiet;
    const Folder folder;
    const auto line = folder.write("line.npy", make_npy({{4}, {0, 1, 2, 3}}, NpyInteger::int32));
    CHECK_THROWS_WITH(read_routing(line, 2), contains_text("1 dimensions"));
    const auto wide = folder.write(
        "wide.npy", make_npy({{1, 33}, std::vector<std::int64_t>(33)}, NpyInteger::int32));
    CHECK_THROWS_WITH(read_routing(wide, 1), contains_text("is 33; it must be 1..32"));
    const auto none = folder.write("none.npy", make_npy({{1, 0}, {}}, NpyInteger::int32));
    CHECK_THROWS_WITH(read_routing(none, 1), contains_text("is 0; it must be 1..32"));
    CHECK_THROWS_WITH(read_routing(folder.path("absent.npy"), 1), contains_text("cannot open"));
    CHECK_THROWS_AS(read_routing(folder.path(""), 1), Error);
}

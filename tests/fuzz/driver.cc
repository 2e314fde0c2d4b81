// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over files, without libFuzzer: every file of every folder named on the command
// line, and small changes of each. For compilers that have no fuzzer, and for the default tests.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr int kChangesPerFile = 400;

Bytes read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

/// One to four bytes changed, cut off, doubled or put in.
Bytes changed(Bytes bytes, std::mt19937_64* random) {
    const auto below = [random](std::size_t limit) {
        return static_cast<std::size_t>((*random)() % std::max<std::size_t>(limit, 1));
    };
    for (std::size_t i = below(4) + 1; i > 0; --i) {
        const std::size_t at = below(bytes.size());
        const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
        switch (bytes.empty() ? 0 : below(4)) {
            case 0: bytes.insert(place, static_cast<std::uint8_t>(below(256))); break;
            case 1: bytes[at] ^= static_cast<std::uint8_t>(1u << below(8)); break;
            case 2: bytes[at] = static_cast<std::uint8_t>(below(256)); break;
            default: bytes.resize(at); break;
        }
    }
    return bytes;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::filesystem::path> files;
    for (int i = 1; i < argc; ++i) {
        for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
            files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) {
        std::fprintf(stderr, "usage: %s FOLDER...; no file was found\n", argv[0]);
        return 2;
    }
    // The same changes each time: a failure is seen again.
    std::mt19937_64 random(1);
    std::size_t runs = 0;
    for (const auto& path : files) {
        const Bytes bytes = read_file(path);
        std::printf("%s\n", path.filename().c_str());
        std::fflush(stdout);  // the last name before an abort is the file
        LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        for (int i = 0; i < kChangesPerFile; ++i, ++runs) {
            const Bytes other = changed(bytes, &random);
            LLVMFuzzerTestOneInput(other.data(), other.size());
        }
    }
    std::printf("%zu files, %zu runs\n", files.size(), runs + files.size());
    return 0;
}

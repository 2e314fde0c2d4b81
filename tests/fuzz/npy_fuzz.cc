// SPDX-License-Identifier: Apache-2.0
// Any bytes as a .npy file: either a refusal in words, or an array that survives being written and
// read again.
#include <cstddef>
#include <cstdint>
#include <span>

#include "host/base/error.hpp"
#include "runtime/npy.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace gimlet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    fuzz::quiet();
    NpyArray array;
    try {
        array = parse_npy(std::as_bytes(std::span(data, bytes)), "fuzz");
    } catch (const Error& error) {
        fuzz::require(error.code() == ErrorCode::invalid_argument, "npy: the code of a refusal");
        fuzz::require(!error.message().empty(), "npy: the text of a refusal");
        return 0;
    }
    std::uint64_t count = 1;
    for (const auto dimension : array.shape) count *= dimension;
    fuzz::require(count == array.values.size(), "npy: values match the shape");
    const NpyArray again = parse_npy(make_npy(array, NpyInteger::int64), "fuzz");
    fuzz::require(again.shape == array.shape && again.values == array.values,
                  "npy: written and read again");
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Recorded routings in NumPy's .npy format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/routing_table.hpp"

namespace gimlet {

/// An integer array read from .npy bytes, in C order.
struct NpyArray {
    std::vector<std::uint64_t> shape;
    std::vector<std::int64_t> values;
};

/// Format versions 1.0, 2.0 and 3.0; descr '<i4' or '<i8'; C order. `name` is
/// for messages. Raises Error(invalid_argument) for anything malformed: wrong magic or version, a
/// header that is not the three-key dictionary, another dtype, Fortran order, a shape whose size
/// overflows, bytes missing or left over.
NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name);

/// Reads the file. Raises Error(system) if it cannot be read.
NpyArray read_npy(const std::string& path);

/// The bytes of a version-1.0 file of int32 or int64 values.
enum class NpyInteger { int32, int64 };
std::vector<std::byte> make_npy(const NpyArray& array, NpyInteger type);

/// A routing for `rank_count` ranks. `path` with "{rank}" stands for one `[T, K]` file a rank;
/// otherwise the file is
/// `[ranks, T, K]` (ranks must match), or `[T, K]`, whose rows are dealt to the ranks in
/// consecutive blocks, the first T % ranks of them one longer. Raises Error(invalid_argument)
/// naming file, value and limit; K is 1..32 and equal in all files. Weights are left empty. Expert
/// indices are not looked at: see routing_faults().
RoutingTable read_routing(const std::string& path, std::int32_t rank_count);

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// How a copy becomes commands of the copier.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "host/rma_plugin/copier_queue.hpp"

namespace gimlet::rma {

inline constexpr std::size_t kLeastBulkBytes =
    kPlainBytes;  ///< below, two trips cost more than one

/// Whether bulk copies can move all of it but a few bytes at its ends. Both in device memory.
constexpr bool suits_bulk(std::uint64_t target, std::uint64_t source, std::size_t bytes) {
    return bytes >= kLeastBulkBytes && (target - source) % kBulkAlignment == 0;
}

/// Not less than the number of commands that split_copy() makes.
constexpr std::size_t most_commands(bool is_bulk, std::size_t bytes) {
    return is_bulk ? bytes / kPieceBytes + 3 : bytes / kPlainBytes + 1;
}

/// Calls `post(kind, target, source, bytes)` for each command, from the first byte to the last.
template <typename Post>
void split_copy(bool is_bulk, std::uint64_t target, std::uint64_t source, std::size_t bytes,
                Post&& post) {
    const auto post_parts = [&](CopierKind kind, std::size_t part_bytes, std::size_t limit) {
        for (bytes -= part_bytes; part_bytes > 0;) {
            const std::size_t part = std::min(part_bytes, limit);
            post(kind, target, source, part);
            target += part;
            source += part;
            part_bytes -= part;
        }
    };
    if (is_bulk) {
        post_parts(CopierKind::copy, (kBulkAlignment - target % kBulkAlignment) % kBulkAlignment,
                   kPlainBytes);
        post_parts(CopierKind::bulk, bytes / kBulkAlignment * kBulkAlignment, kPieceBytes);
    }
    post_parts(CopierKind::copy, bytes, kPlainBytes);
}

}  // namespace gimlet::rma

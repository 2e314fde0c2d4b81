// SPDX-License-Identifier: Apache-2.0
// How a copy becomes commands of the copier, and a command pieces. A piece is what one warp moves
// at once; warps of all blocks take turns, beginning with the one that the first block names.
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
    return is_bulk ? bytes / kBulkBytes + 3 : bytes / kPlainBytes + 1;
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
        post_parts(CopierKind::bulk, bytes / kBulkAlignment * kBulkAlignment, kBulkBytes);
    }
    post_parts(CopierKind::copy, bytes, kPlainBytes);
}

/// Pieces of a command.
struct CopierPieces {
    unsigned count;
    unsigned bytes;  ///< of each but the last
};

constexpr CopierPieces pieces_of(CopierKind kind, unsigned bytes) {
    if (kind != CopierKind::bulk) return {1, bytes};
    constexpr unsigned kGrain = 128;
    const unsigned count = (bytes + kPieceBytes - 1) / kPieceBytes;
    const unsigned part = (bytes + count - 1) / count;
    return {count, (part + kGrain - 1) / kGrain * kGrain};
}
static_assert(kPieceBytes % 128 == 0, "no piece is empty");

/// Who carries out which pieces of a command: share s of all is worker s / blocks of block
/// s % blocks; piece i goes to share (first + i) % (blocks * kCopierWorkers).
struct CopierShares {
    unsigned first;
    unsigned blocks;
};

constexpr std::uint64_t pack_shares(CopierShares shares) {
    return std::uint64_t{shares.first} << kFirstShareShift | std::uint64_t{shares.blocks}
                                                                 << kBlocksShift;
}

constexpr CopierShares unpack_shares(std::uint64_t word) {
    return {static_cast<unsigned>(word >> kFirstShareShift) & 0xff,
            static_cast<unsigned>(word >> kBlocksShift) & 0xff};
}
static_assert(kMostCopierBlocks * kCopierWorkers <= 0xff);

/// First piece of this worker; none if that is not less than the number of pieces. The next ones
/// follow at a distance of blocks * kCopierWorkers.
constexpr unsigned first_piece(CopierShares shares, unsigned block, unsigned worker) {
    const unsigned count = shares.blocks * kCopierWorkers;
    if (block >= shares.blocks) return ~0u;
    return (worker * shares.blocks + block + count - shares.first) % count;
}

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
// What the CPU tells the copier's kernel, and what that answers. Lives in pinned host memory. Each
// 8-byte word of a command says by itself which command it belongs to, so that a reader on the
// other side of the bus never mixes two commands.
#pragma once

#include <cstdint>

namespace gimlet::rma {

inline constexpr std::uint64_t kCopierSlots = 1024;
inline constexpr unsigned kCopierWords = 4;  ///< of one command
inline constexpr unsigned kCopierPayloadBits = 48;
inline constexpr std::uint64_t kCopierPayloadMask = (std::uint64_t{1} << kCopierPayloadBits) - 1;

/// Words of a command: target; source, or the value's low half; bytes and kind; the value's high
/// half, or, within the kernel, first share and number of blocks.
enum class CopierKind : std::uint32_t {
    copy = 1,   ///< `bytes` from source to target, any alignment, at most kPlainBytes
    small = 2,  ///< the first `bytes` of the value, at most 8
    word = 3,   ///< 8 aligned bytes; only for the lane that is in order
    bulk = 4,   ///< device memory at both ends, all multiples of kBulkAlignment, at most kBulkBytes
};
inline constexpr unsigned kCopierKindShift = 40;
inline constexpr unsigned kHalfBits = 32;
inline constexpr unsigned kFirstShareShift = 32;
inline constexpr unsigned kBlocksShift = 40;

inline constexpr unsigned kPlainBytes = 4096;        ///< what one warp moves at once
inline constexpr unsigned kPieceBytes = 10240;       ///< what one bulk copy moves
inline constexpr unsigned kBulkBytes = 1024 * 1024;  ///< of one command
inline constexpr unsigned kBulkAlignment = 16;       ///< of both addresses and the size

inline constexpr unsigned kCopierWorkers = 10;  ///< warps of a block that copy
inline constexpr unsigned kCopierThreads = (kCopierWorkers + 3) * 32;
inline constexpr unsigned kCopierEntries = 64;  ///< commands that a block's warps share, at most
inline constexpr unsigned kMostPiecesOfOneBlock = 4;  ///< more are shared, if others are under way
inline constexpr unsigned kCopierSharedBytes = kCopierWorkers * kPieceBytes + 4096;
inline constexpr unsigned kMostCopierBlocks = 16;
inline constexpr unsigned kCopierBatch = 8;  ///< commands that are taken at once, at most

/// All zero bytes is an empty lane.
struct CopierLaneMemory {
    std::uint64_t slots[kCopierSlots][kCopierWords];
};

struct CopierQueue {
    /// Carried out in any order.
    CopierLaneMemory moves;
    /// What is behind a word waits for it, and it for what is before it.
    CopierLaneMemory deliveries;
    // Written by the kernel. Of each lane, all commands before this one are done, and everybody
    // sees their effects.
    alignas(128) std::uint64_t moved;
    std::uint64_t delivered;
    std::uint64_t gone;  ///< the last launch that has ended
};

/// Which use of its slot command `number` (from 0) is. Fresh memory has 0, which no command of the
/// first lap has.
constexpr std::uint64_t copier_lap(std::uint64_t number) {
    return number / kCopierSlots + 1;
}

/// In the upper bits of each word of command `number`.
constexpr std::uint64_t copier_tag(std::uint64_t number) {
    return copier_lap(number) << kCopierPayloadBits;
}

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
// What the CPU tells the copier, a kernel that carries out small copies, and what it answers. Lives
// in pinned host memory. Each 8-byte word says by itself which command it belongs to, so that a
// reader on the other side of the bus never mixes two commands.
#pragma once

#include <cstdint>

namespace gimlet::rma {

inline constexpr std::uint64_t kCopierSlots = 1024;
inline constexpr unsigned kCopierWords = 4;  ///< of one command
inline constexpr unsigned kCopierBatch = 8;  ///< commands that the kernel takes at once, at most
inline constexpr unsigned kCopierThreads = 512;
inline constexpr unsigned kCopierSharedBytes = (kCopierBatch * kCopierWords + 1) * 8;
inline constexpr unsigned kCopierPayloadBits = 48;
inline constexpr std::uint64_t kCopierPayloadMask = (std::uint64_t{1} << kCopierPayloadBits) - 1;

/// Words of a command: target; source, or the value's low half; bytes and kind; the value's high
/// half.
enum class CopierKind : std::uint32_t {
    copy = 1,   ///< `bytes` from source to target
    small = 2,  ///< the first `bytes` of the value, at most 8
    word = 3,   ///< 8 aligned bytes, after all commands before it and before all later words
};
inline constexpr unsigned kCopierKindShift = 40;
inline constexpr unsigned kHalfBits = 32;

/// All zero bytes is an empty queue.
struct CopierQueue {
    std::uint64_t slots[kCopierSlots][kCopierWords];
    alignas(128) std::uint64_t completed;  ///< commands whose effects everybody sees
    std::uint64_t gone;                    ///< number of the last launch that has ended
};

/// In the upper bits of each word of command `number` (from 0). Fresh memory has 0, no command has
/// it in the first lap.
constexpr std::uint64_t copier_tag(std::uint64_t number) {
    return (number / kCopierSlots + 1) << kCopierPayloadBits;
}

}  // namespace gimlet::rma

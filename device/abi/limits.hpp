// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Limits that the device code relies on. Plan refuses what lies beyond them, with the number.
namespace gimlet {

/// One lane of a warp carries one choice of a token.
inline constexpr int kMaxTopK = 32;

/// Receive slots are 32-bit row indices, counts travel as 32-bit payloads of tagged words.
inline constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;

/// Counts all-gather costs R * (R + E) words; beyond this many ranks another scheme is needed
/// (design, chapter 9).
inline constexpr int kMaxRanks = 1024;

/// Words of a set of ranks, one bit each.
inline constexpr int kRankSetWords = kMaxRanks / 64;

inline constexpr int kMaxExperts = 2048;

/// Bulk copies move multiples of 16 bytes between 16-byte aligned addresses.
inline constexpr std::uint32_t kBulkAlignment = 16;

/// Regions of a window start on their own cache line pair.
inline constexpr std::uint64_t kRegionAlignment = 256;

/// Receive rows and combine rows alternate between this many buffers.
inline constexpr int kBufferCount = 2;

inline constexpr int kMaxGinContexts = 64;

/// Sets of arrival counters: a dispatch counts in one and clears the one that the next dispatch
/// will use.
inline constexpr int kReadySets = 3;

/// Sync::fifo: one lane of a warp owns the ring to one rank.
inline constexpr int kMaxStreamRanks = 32;

/// Most rows between two moves of a rail stream's tail.
inline constexpr int kMaxPublishRows = 1 << 16;

inline constexpr int kWarpSize = 32;

/// LSA teams up to this size have their window bases in the kernel arguments.
inline constexpr int kLsaTableSize = 16;

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

// Small enums shared by host and device. Values are part of the C ABI and of the configuration
// hash: append only.
namespace gimlet {

enum class ElementType : std::int32_t { float32 = 0, float16 = 1, bfloat16 = 2, float8_e4m3 = 3 };

constexpr std::uint32_t element_bytes(ElementType type) {
    switch (type) {
        case ElementType::float32: return 4;
        case ElementType::float16: return 2;
        case ElementType::bfloat16: return 2;
        case ElementType::float8_e4m3: return 1;
    }
    return 0;
}

constexpr const char* name_of(ElementType type) {
    switch (type) {
        case ElementType::float32: return "fp32";
        case ElementType::float16: return "fp16";
        case ElementType::bfloat16: return "bf16";
        case ElementType::float8_e4m3: return "fp8_e4m3";
    }
    return "?";
}

/// Type of the expert indices that the caller passes.
enum class IndexType : std::int32_t { int32 = 0, int64 = 1 };

/// Order of received rows.
/// rank_major: one row per (token, destination rank), ordered by source rank, then source token.
/// expert_major: one row per (token, expert), each expert's rows together, ordered by source rank,
/// then source token; an expert's block starts at a multiple of the alignment.
enum class Layout : std::int32_t { rank_major = 0, expert_major = 1 };

constexpr const char* name_of(Layout layout) {
    switch (layout) {
        case Layout::rank_major: return "rank_major";
        case Layout::expert_major: return "expert_major";
    }
    return "?";
}

/// What expert_major leaves in the rows between the end of an expert's block and the next aligned
/// start.
enum class PadFill : std::int32_t { none = 0, zero = 1 };

/// How rows travel between LSA teams. direct: from their rank to every rank that wants them.
/// hybrid: once to each LSA team, over the rail to the rank of the same LSA index, which hands them
/// on. automatic: the plan chooses.
enum class ExchangeMode : std::int32_t { direct = 0, hybrid = 1, automatic = 2 };

constexpr const char* name_of(ExchangeMode mode) {
    switch (mode) {
        case ExchangeMode::direct: return "direct";
        case ExchangeMode::hybrid: return "hybrid";
        case ExchangeMode::automatic: return "automatic";
    }
    return "?";
}

/// How the ranks of a step wait for each other. barrier: buffers for all rows of a step, and one
/// rendezvous at its end. fifo: rows stream through rings of few slots, so the window's size does
/// not depend on the number of tokens.
enum class Sync : std::int32_t { barrier = 0, fifo = 1 };

constexpr const char* name_of(Sync sync) {
    switch (sync) {
        case Sync::barrier: return "barrier";
        case Sync::fifo: return "fifo";
    }
    return "?";
}

/// Sync::fifo: whose tensors hold received rows and the answers to them. library: the Exchange's
/// own, two of each, as with Sync::barrier. caller: those that are passed with each call.
enum class StreamTensors : std::int32_t { library = 0, caller = 1 };

/// hybrid: whether the rank that collects a token's rows of its team sends home their sum, rounded
/// to the combine type, or every row. Without it sums are bit for bit those of direct.
enum class PreSum : std::int32_t { on = 0, off = 1 };

/// Whether a dispatch counts and exchanges (fresh) or reuses the slots of an earlier one (cached).
enum class RoutingMode : std::int32_t { fresh = 0, cached = 1 };

}  // namespace gimlet

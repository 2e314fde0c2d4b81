// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/aggregated_put.hpp"
#include "device/channel/context_map.hpp"
#include "device/channel/signaled_tail.hpp"
#include "device/core/platform.hpp"
#include "device/kernels/reach.hpp"

// Who and what a pair of the rail is, and how rows leave for it; shared by hybrid dispatch and
// combine.
namespace gimlet::device {

GIMLET_DEVICE RailSignals rail_signals(const ExchangeArgs& exchange) {
    return RailSignals{exchange.peers.rank_count, exchange.rail.team_count,
                       exchange.rail.channel_count,
                       ContextMap{exchange.peers.gin_context_count}.data_context_count()};
}

/// World rank at the other end of `pair`.
GIMLET_DEVICE std::int32_t rail_peer(const ExchangeArgs& exchange, std::int32_t pair) {
    return exchange.rail.team_of_pair(pair) * exchange.peers.lsa_size + exchange.peers.lsa_rank;
}

GIMLET_DEVICE std::int32_t rail_context(const ExchangeArgs& exchange, std::int32_t pair) {
    return ContextMap{exchange.peers.gin_context_count}.data_context(
        exchange.rail.channel_of(pair));
}

/// Puts rows [begin, end) of `pair`, chunk by chunk, and moves the tail `signal` there. `from` and
/// `to` are window offsets of the pair's row 0, here and there. One thread, after it was handed the
/// complete rows; the strong signal covers them.
GIMLET_DEVICE void publish_rail_rows(const ExchangeArgs& exchange, std::int32_t pair,
                                     std::uint64_t to, std::uint64_t from, std::uint64_t row_bytes,
                                     std::int32_t begin, std::int32_t end, std::uint32_t signal,
                                     bool finished) {
    const PeerHandles& peers = exchange.peers;
    const ncclGin gin = gin_context(peers, rail_context(exchange, pair));
    AggregatedPut batch(gin, world_team(peers), rail_peer(exchange, pair), peers.window);
    GIMLET_ROLLED
    for (std::int32_t first = begin; first < end; first += exchange.chunk_rows) {
        const std::int32_t left = end - first;
        const std::int32_t rows = left < exchange.chunk_rows ? left : exchange.chunk_rows;
        const std::uint64_t at = static_cast<std::uint64_t>(first) * row_bytes;
        batch.put(to + at, from + at, static_cast<std::uint64_t>(rows) * row_bytes);
    }
    const std::uint64_t step =
        SignaledTail::step(static_cast<std::uint32_t>(end - begin), finished);
    if (mutated(Mutant::rail_tail_weak)) return batch.close(ncclGin_WeakSignalAdd{signal, step});
    batch.close(ncclGin_StrongSignalAdd{signal, step});
}

}  // namespace gimlet::device

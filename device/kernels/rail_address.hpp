// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/channel/context_map.hpp"
#include "device/core/platform.hpp"
#include "device/kernels/reach.hpp"

// Who and what a pair of the rail is; shared by hybrid dispatch and combine.
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

}  // namespace gimlet::device

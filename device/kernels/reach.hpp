// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/abi/kernel_args.hpp"

namespace gimlet {

/// How a kernel reaches its peers: all by loads and stores, some through GIN, other teams through
/// the rail, or all by loads and stores through rings (stream), or through rings within and between
/// teams (stream_rail). An instance of each kernel for each, because GIN's code is many times the
/// size of the rest, and instruction fetches are a good part of a small step.
enum class Reach { lsa, gin, rail, stream, stream_rail };

/// Whether other teams are reached over the rail only.
constexpr bool has_rail(Reach reach) {
    return reach == Reach::rail || reach == Reach::stream_rail;
}

/// Whether rows pass through rings (Sync::fifo).
constexpr bool has_rings(Reach reach) {
    return reach == Reach::stream || reach == Reach::stream_rail;
}

/// Whether a copy warp's tokens are consecutive: its channel.
constexpr bool has_channels(Reach reach) {
    return has_rail(reach) || has_rings(reach);
}

/// Whether all peers are reached by loads and stores.
constexpr bool is_lsa_only(Reach reach) {
    return reach == Reach::lsa || reach == Reach::stream;
}

constexpr Reach reach_of(const ExchangeArgs& exchange) {
    const PeerHandles& peers = exchange.peers;
    if (exchange.stream.active())
        return exchange.rail.active() ? Reach::stream_rail : Reach::stream;
    if (exchange.rail.active()) return Reach::rail;
    return peers.gin_context_count > 0 && peers.lsa_size < peers.rank_count ? Reach::gin
                                                                            : Reach::lsa;
}

}  // namespace gimlet

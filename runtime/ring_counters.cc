// SPDX-License-Identifier: Apache-2.0
#include "runtime/ring_counters.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "host/cuda/check.hpp"

namespace gimlet {
namespace {

/// Cursors at the same place of `count` regions that follow each other.
std::vector<FifoCursor> read_cursors(const PeerHandles& peers, std::uint64_t first,
                                     std::uint64_t region_bytes, std::size_t count) {
    std::vector<FifoCursor> cursors(count);
    if (count == 0) return cursors;
    cuda_check(cudaMemcpy2D(cursors.data(), sizeof(FifoCursor), peers.local + first, region_bytes,
                            sizeof(FifoCursor), count, cudaMemcpyDeviceToHost),
               "cudaMemcpy2D", peers.rank);
    return cursors;
}

RingCounters counters_of(const FifoCursor& cursor, RingCounters::Way way,
                         const FifoOptions& options, std::int32_t peer, std::int32_t channel) {
    RingCounters out;
    out.way = way;
    out.link = options.link;
    out.peer = peer;
    out.channel = channel;
    out.slot_count = options.capacity;
    out.most_occupied = cursor.most_used;
    out.rows = cursor.position;
    out.flags = cursor.flags;
    out.stalls = cursor.stalls;
    return out;
}

/// Both ends' cursors of `count` regions of one kind.
struct Ends {
    std::vector<FifoCursor> away;
    std::vector<FifoCursor> here;

    Ends(const PeerHandles& peers, const FifoOptions& options, std::uint64_t first,
         std::uint64_t region_bytes, std::int32_t count)
        : away(read_cursors(peers, first + FifoLayout::build(options).sender, region_bytes,
                            static_cast<std::size_t>(count))),
          here(read_cursors(peers, first + FifoLayout::build(options).receiver, region_bytes,
                            static_cast<std::size_t>(count))) {}
};

}  // namespace

std::vector<RingCounters> read_ring_counters(const ExchangeArgs& args) {
    using Way = RingCounters::Way;
    std::vector<RingCounters> out;
    const StreamShape& stream = args.stream;
    if (!stream.active()) return out;
    const PeerHandles& peers = args.peers;
    const FifoOptions team_options = stream.ring_options();
    const std::int32_t rings = stream.ring_count(peers.rank_count);
    const Ends team(peers, team_options, peers.layout.stream_rings, peers.shape.stream_ring_bytes,
                    rings);
    const std::int32_t first_member = peers.rank - peers.lsa_rank;
    for (std::int32_t ring = 0; ring < rings; ++ring) {
        const std::int32_t rank = ring % peers.rank_count;
        const std::int32_t member = first_member + rank % peers.lsa_size;
        const auto at = static_cast<std::size_t>(ring);
        const std::int32_t channel = ring / peers.rank_count;
        out.push_back(counters_of(team.away[at], Way::away, team_options, member, channel));
        out.push_back(counters_of(team.here[at], Way::here, team_options, member, channel));
    }
    const RailShape& rail = args.rail;
    const FifoOptions rail_options = stream.rail_options();
    const Ends far(peers, rail_options, peers.layout.stream_rails, peers.shape.stream_rail_bytes,
                   2 * rail.pair_count());
    for (std::int32_t pair = 0; pair < rail.pair_count(); ++pair) {
        const std::int32_t peer = rail.team_of_pair(pair) * peers.lsa_size + peers.lsa_rank;
        const std::int32_t channel = rail.channel_of(pair);
        const auto away = static_cast<std::size_t>(StreamShape::rail_out(pair));
        const auto here = static_cast<std::size_t>(StreamShape::rail_in(pair));
        out.push_back(counters_of(far.away[away], Way::away, rail_options, peer, channel));
        out.push_back(counters_of(far.here[here], Way::here, rail_options, peer, channel));
    }
    return out;
}

}  // namespace gimlet

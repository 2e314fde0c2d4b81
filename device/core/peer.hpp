// SPDX-License-Identifier: Apache-2.0
//
// Peer addressing over the NCCL handles that the host put into PeerHandles.
#pragma once

#include <nccl_device.h>

#include <cstddef>
#include <cstdint>

#include "device/abi/kernel_args.hpp"
#include "device/core/platform.hpp"

namespace gimlet::device {

/// Whether `rank` (world) is reached by loads and stores. True for this rank itself.
GIMLET_DEVICE bool is_lsa_peer(const PeerHandles& peers, std::int32_t rank) {
    const std::int32_t first = peers.rank - peers.lsa_rank;
    return rank >= first && rank < first + peers.lsa_size;
}

/// World rank of member `index` of this rank's LSA team.
GIMLET_DEVICE std::int32_t lsa_member(const PeerHandles& peers, std::int32_t index) {
    return peers.rank - peers.lsa_rank + index;
}

/// Whether `rank` (world) has this rank's LSA index. Equal teams only.
GIMLET_DEVICE bool on_rail(const PeerHandles& peers, std::int32_t rank) {
    return rank % peers.lsa_size == peers.lsa_rank;
}

/// Whether `rank` (world) is reached by GIN.
GIMLET_DEVICE bool is_gin_peer(const PeerHandles& peers, std::int32_t rank) {
    return peers.gin_context_count > 0 && !is_lsa_peer(peers, rank) &&
           (peers.rails_only == 0 || on_rail(peers, rank));
}

/// How many ranks nobody serves or awaits any more. Changes only between kernels.
GIMLET_DEVICE std::uint32_t excluded_count(const PeerHandles& peers) {
    return reinterpret_cast<const EpochWords*>(peers.local + peers.layout.epochs)->excluded_count;
}

/// Whether `rank` is one of them, given excluded_count().
GIMLET_DEVICE bool is_excluded(const PeerHandles& peers, std::uint32_t count, std::int32_t rank) {
    if (count == 0) return false;
    const auto* words = reinterpret_cast<const std::uint64_t*>(peers.local + peers.layout.excluded);
    return (words[rank / 64] >> (rank % 64) & 1u) != 0;
}
GIMLET_DEVICE bool is_excluded(const PeerHandles& peers, std::int32_t rank) {
    return is_excluded(peers, excluded_count(peers), rank);
}

/// Ranks that are reached over GIN only.
GIMLET_DEVICE std::int32_t gin_peer_count(const PeerHandles& peers) {
    return peers.rank_count - peers.lsa_size;
}

/// This rank's own window memory.
GIMLET_DEVICE std::byte* local_pointer(const PeerHandles& peers, std::uint64_t offset) {
    return peers.local + offset;
}

/// Window memory of an LSA peer (world rank) or of this rank. One location has one address in a
/// kernel, whoever asks. Undefined for other ranks: ask is_lsa_peer first.
GIMLET_DEVICE std::byte* peer_pointer(const PeerHandles& peers, std::int32_t rank,
                                      std::uint64_t offset) {
    if (rank == peers.rank) return local_pointer(peers, offset);
    const std::int32_t index = rank - (peers.rank - peers.lsa_rank);
    if (index < kLsaTableSize && peers.lsa_bases[index] != nullptr) {
        return peers.lsa_bases[index] + offset;
    }
    return static_cast<std::byte*>(ncclGetLsaPointer(peers.window, offset, index));
}

template <class T>
GIMLET_DEVICE T* local_word(const PeerHandles& peers, std::uint64_t offset,
                            std::uint64_t index = 0) {
    return reinterpret_cast<T*>(local_pointer(peers, offset)) + index;
}

template <class T>
GIMLET_DEVICE T* peer_word(const PeerHandles& peers, std::int32_t rank, std::uint64_t offset,
                           std::uint64_t index = 0) {
    return reinterpret_cast<T*>(peer_pointer(peers, rank, offset)) + index;
}

/// GIN's addressing: members are world ranks.
GIMLET_DEVICE ncclTeam world_team(const PeerHandles& peers) {
    ncclTeam team;
    team.nRanks = peers.rank_count;
    team.rank = peers.rank;
    team.stride = 1;
    return team;
}

/// The context's queues. Each thread makes its own (it is a few words). All GIN work of this code
/// base shares contexts at GPU scope: two sharing modes at once on a context are a race. `peers`
/// must be the kernel's own argument: the result refers to its dev_comm.
GIMLET_DEVICE ncclGin gin_context(const PeerHandles& peers, int context) {
    return ncclGin(peers.dev_comm, context, NCCL_GIN_RESOURCE_SHARING_GPU);
}

}  // namespace gimlet::device

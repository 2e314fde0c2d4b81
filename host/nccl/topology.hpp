// SPDX-License-Identifier: Apache-2.0
// Who sits where, and how each peer is reached.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/nccl/communicator.hpp"
#include "host/nccl/device_communicator.hpp"

namespace gimlet {

enum class Reach {
    self,  ///< this rank
    lsa,   ///< load and store through the window
    gin,   ///< put and signal
    none,  ///< not at all
};
const char* reach_name(Reach reach) noexcept;

/// Where one rank runs.
struct RankPlace {
    std::uint64_t host_id = 0;    ///< hash of the kernel's boot id: equal names do not fool it
    std::uint64_t device_id = 0;  ///< hash of host and PCI bus id: equal = the same GPU
    std::int32_t device = 0;      ///< CUDA ordinal in the rank's process
    std::int32_t process_id = 0;
    std::int32_t sm_count = 0;
    std::int32_t copier_sms = 0;  ///< that the RMA plugin's copier takes, if it carries GIN
    std::int32_t mps_client = 0;  ///< 1 if an MPS daemon serves the rank
};

/// World rank = lsa_team_index * lsa_size + lsa_rank, for every rank.
struct Topology {
    int rank = 0;
    int size = 1;
    int lsa_rank = 0;
    int lsa_size = 1;
    int lsa_team_index = 0;  ///< = index in the rail team
    int lsa_team_count = 1;  ///< = size of the rail team
    GinType gin_type = GinType::none;
    GinType railed_gin_type = GinType::none;
    bool symmetric_memory = false;
    bool multimem = false;
    std::vector<RankPlace> places;  ///< one per rank

    int lsa_team_of(int peer_rank) const;
    int lsa_rank_of(int peer_rank) const;
    int rank_at(int team_index, int lsa_index) const;
    /// How this rank reaches a peer if GIN contexts are connected as said.
    Reach reach(int peer_rank, GinConnection connection) const;
    /// Smallest connection that reaches all ranks: none in one LSA team, else full.
    GinConnection connection_needed() const noexcept;
    /// Ranks that share this rank's GPU, this rank included, ascending.
    std::vector<int> ranks_on_my_gpu() const;
    /// Of those, are any in another process?
    bool shares_gpu_across_processes() const;
    int host_count() const;

    std::string text() const;
    std::string json() const;
};

/// A warning if this rank's GPU is shared by processes without MPS, "" otherwise and on all but the
/// lowest rank of the GPU. Pure.
std::string time_slicing_warning(const Topology& topology);

/// Collective. Raises Error(internal) if NCCL's teams are not numbered as stated above.
Topology query_topology(const Communicator& communicator);

/// Hash of /proc/sys/kernel/random/boot_id, of the host name where there is none.
std::uint64_t host_identity();

/// Collective, one process a rank. Makes a device current: ranks of one host take its devices in
/// turn.
void take_device_in_turn(Bootstrap& bootstrap);

}  // namespace gimlet

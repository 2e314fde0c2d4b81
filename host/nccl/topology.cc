// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/topology.hpp"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <set>

#include "host/base/env.hpp"
#include "host/base/hash.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/nccl/communicator_state.hpp"

namespace gimlet {

namespace {

void check_peer(const Topology& topology, int peer_rank, const char* what) {
    if (peer_rank < 0 || peer_rank >= topology.size) {
        raise(ErrorCode::invalid_argument, topology.rank, "topology {}: rank {} is outside 0..{}",
              what, peer_rank, topology.size - 1);
    }
}

void check_numbering(const Topology& topology) {
    if (topology.lsa_size * topology.lsa_team_count == topology.size &&
        topology.rank % topology.lsa_size == topology.lsa_rank) {
        return;
    }
    raise(ErrorCode::internal, topology.rank,
          "topology: {} ranks, {} LSA teams of {}, LSA index {}: world rank is not team * size + "
          "index",
          topology.size, topology.lsa_team_count, topology.lsa_size, topology.lsa_rank);
}

RankPlace own_place(int device, int rank) {
    const DeviceInfo info = query_device_info(device, rank);
    RankPlace place;
    place.host_id = host_identity();
    // Without a bus id the ordinal has to do: right within a process, a guess between processes.
    const std::string identity =
        info.pci_bus_id.empty() ? fmt::format("ordinal {}", device) : info.pci_bus_id;
    place.device_id = hash_text(identity, hash_bytes(&place.host_id, sizeof(place.host_id)));
    place.device = device;
    place.process_id = static_cast<std::int32_t>(getpid());
    place.sm_count = info.sm_count;
    if (env_text(EnvVar::nccl_rma_plugin).find("gimlet") != std::string::npos &&
        env_choice(EnvVar::rma_copier) != "off") {
        // Of one block each: a GPU spreads them before it packs them.
        place.copier_sms = static_cast<std::int32_t>(env_int(EnvVar::rma_copier_blocks));
    }
    const bool served =
        info.mps_client >= 0 ? info.mps_client != 0 : env_is_set(EnvVar::cuda_mps_pipe);
    place.mps_client = served ? 1 : 0;
    return place;
}

}  // namespace

const char* reach_name(Reach reach) noexcept {
    switch (reach) {
        case Reach::self: return "self";
        case Reach::lsa: return "lsa";
        case Reach::gin: return "gin";
        case Reach::none: return "none";
    }
    return "unknown";
}

std::uint64_t host_identity() {
    std::string text;
    if (std::ifstream file("/proc/sys/kernel/random/boot_id"); file) std::getline(file, text);
    if (text.empty()) {
        char name[256] = {};
        if (gethostname(name, sizeof(name) - 1) == 0) text = name;
    }
    return hash_text(text);
}

int Topology::lsa_team_of(int peer_rank) const {
    check_peer(*this, peer_rank, "lsa_team_of");
    return peer_rank / lsa_size;
}

int Topology::lsa_rank_of(int peer_rank) const {
    check_peer(*this, peer_rank, "lsa_rank_of");
    return peer_rank % lsa_size;
}

int Topology::rank_at(int team_index, int lsa_index) const {
    if (team_index < 0 || team_index >= lsa_team_count || lsa_index < 0 || lsa_index >= lsa_size) {
        raise(ErrorCode::invalid_argument, rank,
              "topology rank_at: team {} must be 0..{}, LSA index {} must be 0..{}", team_index,
              lsa_team_count - 1, lsa_index, lsa_size - 1);
    }
    return team_index * lsa_size + lsa_index;
}

Reach Topology::reach(int peer_rank, GinConnection connection) const {
    check_peer(*this, peer_rank, "reach");
    if (peer_rank == rank) return Reach::self;
    if (lsa_team_of(peer_rank) == lsa_team_index)
        return symmetric_memory ? Reach::lsa : Reach::none;
    switch (connection) {
        case GinConnection::none: return Reach::none;
        case GinConnection::full: return gin_type != GinType::none ? Reach::gin : Reach::none;
        case GinConnection::rail:
            return railed_gin_type != GinType::none && lsa_rank_of(peer_rank) == lsa_rank
                       ? Reach::gin
                       : Reach::none;
    }
    return Reach::none;
}

GinConnection Topology::connection_needed() const noexcept {
    return lsa_team_count == 1 ? GinConnection::none : GinConnection::full;
}

std::vector<int> Topology::ranks_on_my_gpu() const {
    std::vector<int> ranks;
    for (std::size_t r = 0; r < places.size(); ++r) {
        if (places[r].device_id == places[static_cast<std::size_t>(rank)].device_id) {
            ranks.push_back(static_cast<int>(r));
        }
    }
    return ranks;
}

bool Topology::shares_gpu_across_processes() const {
    const std::vector<int> ranks = ranks_on_my_gpu();
    return std::any_of(ranks.begin(), ranks.end(), [&](int r) {
        return places[static_cast<std::size_t>(r)].process_id !=
               places[static_cast<std::size_t>(rank)].process_id;
    });
}

std::string time_slicing_warning(const Topology& topology) {
    const std::vector<int> ranks = topology.ranks_on_my_gpu();
    if (ranks.empty() || ranks.front() != topology.rank) return "";
    const RankPlace& mine = topology.places[static_cast<std::size_t>(topology.rank)];
    if (!topology.shares_gpu_across_processes() || mine.mps_client != 0) return "";
    return fmt::format(
        "ranks {} are processes that share one GPU without MPS: the GPU switches between them in "
        "slices of milliseconds, and each barrier takes some; start nvidia-cuda-mps-control -d "
        "with CUDA_MPS_PIPE_DIRECTORY in a folder of your own, and set it for the ranks",
        format_ranks(ranks));
}

int Topology::host_count() const {
    std::set<std::uint64_t> hosts;
    for (const RankPlace& place : places) hosts.insert(place.host_id);
    return static_cast<int>(hosts.size());
}

std::string Topology::text() const {
    return fmt::format(
        "rank {} of {} on {} host(s); LSA team {} of {}, index {} of {}; GIN {} (rail {}); "
        "symmetric memory "
        "{}; multicast {}; ranks on this GPU: {}",
        rank, size, host_count(), lsa_team_index, lsa_team_count, lsa_rank, lsa_size,
        gin_type_name(gin_type), gin_type_name(railed_gin_type), symmetric_memory ? "yes" : "no",
        multimem ? "yes" : "no", format_ranks(ranks_on_my_gpu()));
}

std::string Topology::json() const {
    return fmt::format(
        "{{\"rank\":{},\"size\":{},\"lsa_rank\":{},\"lsa_size\":{},\"lsa_team_index\":{},"
        "\"lsa_team_count\":{},\"gin_type\":\"{}\",\"railed_gin_type\":\"{}\",\"symmetric_memory\":"
        "{},"
        "\"multimem\":{},\"host_count\":{},\"ranks_on_my_gpu\":{}}}",
        rank, size, lsa_rank, lsa_size, lsa_team_index, lsa_team_count, gin_type_name(gin_type),
        gin_type_name(railed_gin_type), symmetric_memory, multimem, host_count(),
        ranks_on_my_gpu().size());
}

Topology query_topology(const Communicator& communicator) {
    const CommunicatorProperties& from = communicator.properties();
    Topology to;
    to.rank = from.rank;
    to.size = from.size;
    to.lsa_rank = from.lsa_rank;
    to.lsa_size = from.lsa_size;
    to.lsa_team_count = from.lsa_team_count;
    to.lsa_team_index = from.rank / from.lsa_size;
    to.gin_type = from.gin_type;
    to.railed_gin_type = from.railed_gin_type;
    to.symmetric_memory = from.symmetric_memory;
    to.multimem = from.multimem;
    RankPlace mine{};
    const std::exception_ptr failure = failure_of([&] {
        mine = own_place(from.device, from.rank);
        check_numbering(to);
    });
    check_agreement(communicator.bootstrap(), "topology",
                    {{"LSA team size", fmt::format("{}", to.lsa_size)},
                     {"LSA team count", fmt::format("{}", to.lsa_team_count)}},
                    failure);
    to.places = communicator.bootstrap().all_gather_values(mine);
    return to;
}

void take_device_in_turn(Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    const auto hosts = bootstrap.all_gather_values(host_identity());
    const auto me = hosts.begin() + rank;
    const auto before = static_cast<int>(std::count(hosts.begin(), me, *me));
    cuda_check(cudaSetDevice(before % device_count(rank)), "cudaSetDevice", rank);
}

}  // namespace gimlet

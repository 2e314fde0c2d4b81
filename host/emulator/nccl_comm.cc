// SPDX-License-Identifier: Apache-2.0
// Communicators, groups, error texts.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "host/emulator/nccl_world.hpp"

namespace gimlet::emu::nccl {
namespace {

struct Hello {
    int32_t pid;
    int32_t device;
    int32_t lsa_size;
    int32_t gin;
};

struct SplitWish {
    int32_t color;
    int32_t key;
};

bool environment_is(const char* name, const char* value) {
    const char* text = std::getenv(name);
    return text != nullptr && std::strcmp(text, value) == 0;
}

Job::AllRanks all_ranks(ncclComm* comm, uint32_t round, const char* call) {
    return {RoundWait{comm->rendezvous, round, call}};
}

void describe_machine(ncclComm* comm) {
    const SimOptions& options = comm->world->engine.options();
    const int wish = options.lsa_team_size;
    comm->lsa_size = wish <= 0 ? comm->ranks : std::gcd(wish, comm->ranks);
    comm->lsa_rank = comm->rank % comm->lsa_size;
    comm->gin = options.gin == GinMode::off     ? NCCL_GIN_TYPE_NONE
                : options.gin == GinMode::gdaki ? NCCL_GIN_TYPE_GDAKI
                                                : NCCL_GIN_TYPE_PROXY;
    comm->rail_only = environment_is("NCCL_CROSS_NIC", "0");
}

// Two ranks on one GPU need NCCL_MULTI_RANK_GPU_ENABLE. Processes have devices of their own here.
ncclResult_t check_hellos(ncclComm* comm, uint32_t round) {
    Hello mine;
    std::memcpy(&mine, comm->rendezvous->payload(comm->rank, round), sizeof(mine));
    for (int rank = 0; rank < comm->ranks; ++rank) {
        Hello theirs;
        std::memcpy(&theirs, comm->rendezvous->payload(rank, round), sizeof(theirs));
        if (theirs.lsa_size != mine.lsa_size || theirs.gin != mine.gin) {
            return fail(comm, ncclInvalidUsage,
                        "ncclCommInitRank: rank %d has LSA teams of %d and GIN type %d, rank %d "
                        "has %d and %d; set "
                        "NCCL_LSA_TEAM_SIZE and GIMLET_EMU_GIN alike everywhere",
                        comm->rank, mine.lsa_size, mine.gin, rank, theirs.lsa_size, theirs.gin);
        }
        if (rank == comm->rank || theirs.pid != mine.pid || theirs.device != mine.device) continue;
        if (environment_is("NCCL_MULTI_RANK_GPU_ENABLE", "1")) continue;
        return fail(comm, ncclInvalidUsage,
                    "ncclCommInitRank: ranks %d and %d use the same device %d "
                    "(NCCL_MULTI_RANK_GPU_ENABLE=1 allows it)",
                    comm->rank, rank, mine.device);
    }
    return ncclSuccess;
}

Job init_comm(ncclComm* comm, ncclComm_t* out, ncclUniqueId id) {
    std::string error;
    comm->rendezvous = comm->world->find_rendezvous(id, error);
    if (comm->rendezvous == nullptr) {
        *out = nullptr;
        co_return fail(comm, ncclSystemError, "ncclCommInitRank: %s", error.c_str());
    }
    if (!comm->rendezvous->join(comm->rank, comm->ranks, error)) {
        *out = nullptr;
        co_return fail(comm, ncclInvalidUsage, "ncclCommInitRank: %s", error.c_str());
    }
    describe_machine(comm);
    const Hello hello{getpid(), comm->device, comm->lsa_size, comm->gin};
    const uint32_t round = ++comm->round;
    comm->rendezvous->publish(comm->rank, round, &hello, sizeof(hello));
    comm->world->engine.progress();
    Job::AllRanks hellos = all_ranks(comm, round, "ncclCommInitRank");
    ncclResult_t result = co_await hellos;
    if (result == ncclSuccess) result = check_hellos(comm, round);
    comm->world->forget_rendezvous(id);
    comm->ready = result == ncclSuccess;
    if (result != ncclSuccess) *out = nullptr;
    co_return result;
}

Job split_comm(ncclComm* parent, int color, int key, ncclComm_t* out) {
    *out = nullptr;
    const SplitWish wish{color, key};
    uint32_t round = ++parent->round;
    parent->rendezvous->publish(parent->rank, round, &wish, sizeof(wish));
    parent->world->engine.progress();
    Job::AllRanks wishes = all_ranks(parent, round, "ncclCommSplit");
    ncclResult_t result = co_await wishes;
    if (result != ncclSuccess) co_return result;

    int ranks = 0, rank = 0, leader = -1, leader_key = 0;
    for (int r = 0; r < parent->ranks; ++r) {
        SplitWish theirs;
        std::memcpy(&theirs, parent->rendezvous->payload(r, round), sizeof(theirs));
        if (color < 0 || theirs.color != color) continue;
        ++ranks;
        rank += theirs.key < key || (theirs.key == key && r < parent->rank);
        if (leader < 0 || theirs.key < leader_key) {
            leader = r;
            leader_key = theirs.key;
        }
    }
    ncclUniqueId id = {};
    if (leader == parent->rank) {
        const auto made = parent->world->new_rendezvous();
        if (made != nullptr) id = made->id();
    }
    round = ++parent->round;
    parent->rendezvous->publish(parent->rank, round, &id, sizeof(id));
    parent->world->engine.progress();
    Job::AllRanks ids = all_ranks(parent, round, "ncclCommSplit");
    result = co_await ids;
    if (result != ncclSuccess || leader < 0) co_return result;
    std::memcpy(&id, parent->rendezvous->payload(leader, round), sizeof(id));

    // The same steps as init_comm, inside this job: the group's order of calls is per communicator.
    std::string error;
    ncclComm* comm = parent->world->new_comm();
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = parent->device;
    comm->rendezvous = parent->world->find_rendezvous(id, error);
    if (comm->rendezvous == nullptr || !comm->rendezvous->join(rank, ranks, error)) {
        co_return fail(parent, ncclSystemError, "ncclCommSplit: %s", error.c_str());
    }
    describe_machine(comm);
    const Hello hello{getpid(), comm->device, comm->lsa_size, comm->gin};
    round = ++comm->round;
    comm->rendezvous->publish(rank, round, &hello, sizeof(hello));
    comm->world->engine.progress();
    Job::AllRanks hellos = all_ranks(comm, round, "ncclCommSplit");
    result = co_await hellos;
    comm->world->forget_rendezvous(id);
    comm->ready = result == ncclSuccess;
    if (result == ncclSuccess) *out = comm;
    co_return result;
}

ncclResult_t check_config(const ncclConfig_t* config, const char* call) {
    if (config == nullptr) return ncclSuccess;
    if (config->magic != NCCL_API_MAGIC || config->size != sizeof(ncclConfig_t)) {
        return fail(nullptr, ncclInvalidArgument,
                    "%s: the config was not made with NCCL_CONFIG_INITIALIZER", call);
    }
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 &&
        config->blocking != 1) {
        return fail(nullptr, ncclInvalidArgument, "%s: config.blocking is %d, not 0 or 1", call,
                    config->blocking);
    }
    return ncclSuccess;
}

ncclResult_t start_init(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, int device) {
    if (out == nullptr) return fail(nullptr, ncclInvalidArgument, "ncclCommInitRank: comm is NULL");
    if (ranks < 1 || ranks > kMaxRanks || rank < 0 || rank >= ranks) {
        return fail(nullptr, ncclInvalidArgument, "ncclCommInitRank: rank %d of %d (1 to %d ranks)",
                    rank, ranks, kMaxRanks);
    }
    World& world = World::get();
    ncclComm* comm = world.new_comm();
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = device;
    *out = comm;
    return world.submit(comm, init_comm(comm, out, id));
}

// What the other ranks of this process send to an aborted rank from now on is lost.
void break_connections(World& world, const ncclComm& aborted) {
    for (const auto& state : world.dev_comms) {
        if (state->comm == &aborted || !state->alive) continue;
        if (state->comm->rendezvous != aborted.rendezvous) continue;
        state->lost_peers.insert(aborted.rank);
        for (auto& context : state->queues) {
            for (auto& queue : context) {
                if (queue != nullptr && queue->peer == aborted.rank) queue->broken = true;
            }
        }
    }
}

// What destroy and abort share: the rank's windows and device communicators stop being usable.
void retire_comm(ncclComm* comm, bool drop_operations) {
    World& world = *comm->world;
    const std::lock_guard lock(world.mutex);
    for (const auto& state : world.dev_comms) {
        if (state->comm != comm || !state->alive) continue;
        world.engine.locked([&] {
            for (auto& context : state->queues) {
                for (auto& queue : context) {
                    if (queue == nullptr) continue;
                    const std::string busy =
                        drop_operations ? "" : world.network.find_unfinished(*queue);
                    if (!busy.empty()) {
                        world.engine.refuse("ncclCommDestroy with a GIN operation in flight: " +
                                            busy);
                    }
                    world.network.remove_queue(queue.get());
                }
            }
        });
        state->alive = false;
        state->resources->alive = false;
        // Kernels may still run after an abort.
        if (!drop_operations) world.release_resources(*state);
    }
    if (drop_operations) world.engine.locked([&] { break_connections(world, *comm); });
    for (ncclWindow_vidmem* window : comm->windows) {
        if (drop_operations) {
            world.engine.locked([&] {
                world.network.drop_touching(window->bases[comm->rank], window->sizes[comm->rank]);
            });
        }
        window->alive = false;
        if (!drop_operations) window->mappings.clear();
        world.live_windows.erase(window);
    }
    comm->windows.clear();
    comm->dead = true;
    comm->rendezvous.reset();
    world.live_comms.erase(comm);
    world.forget_old();
}

}  // namespace
}  // namespace gimlet::emu::nccl

using namespace gimlet::emu::nccl;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    if (version == nullptr) return fail(nullptr, ncclInvalidArgument, "ncclGetVersion: NULL");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
    switch (result) {
        case ncclSuccess: return "no error";
        case ncclUnhandledCudaError: return "a CUDA call failed";
        case ncclSystemError: return "a system call or another external resource failed";
        case ncclInternalError: return "internal error";
        case ncclInvalidArgument: return "invalid argument";
        case ncclInvalidUsage: return "invalid usage";
        case ncclRemoteError: return "another rank failed or is gone";
        case ncclInProgress: return "operation in progress";
        case ncclTimeout: return "deadline passed";
        case ncclNumResults: break;
    }
    return "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* unique_id) {
    if (unique_id == nullptr) return fail(nullptr, ncclInvalidArgument, "ncclGetUniqueId: NULL");
    const auto made = World::get().new_rendezvous();
    if (made == nullptr)
        return fail(nullptr, ncclSystemError, "ncclGetUniqueId: no memory for the control block");
    *unique_id = made->id();
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId comm_id, int rank,
                                    ncclConfig_t* config) {
    const ncclResult_t checked = check_config(config, "ncclCommInitRankConfig");
    if (checked != ncclSuccess) return checked;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
    return start_init(comm, nranks, comm_id, rank, device);
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId comm_id, int rank) {
    return ncclCommInitRankConfig(comm, nranks, comm_id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int id_count,
                                      ncclUniqueId* comm_ids, ncclConfig_t* config) {
    if (comm_ids == nullptr || id_count < 1) {
        return fail(nullptr, ncclInvalidArgument, "ncclCommInitRankScalable: no unique id");
    }
    return ncclCommInitRankConfig(comm, nranks, comm_ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ndev, const int* devlist) {
    if (comms == nullptr || ndev < 1) {
        return fail(nullptr, ncclInvalidArgument, "ncclCommInitAll: %d devices", ndev);
    }
    ncclUniqueId id;
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) return result;
    ncclGroupStart();
    for (int rank = 0; rank < ndev; ++rank) {
        const ncclResult_t one =
            start_init(comms + rank, ndev, id, rank, devlist != nullptr ? devlist[rank] : rank);
        if (result == ncclSuccess) result = one;
    }
    const ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
    ncclResult_t checked = check_comm(comm, "ncclCommSplit");
    if (checked == ncclSuccess) checked = check_config(config, "ncclCommSplit");
    if (checked != ncclSuccess) return checked;
    if (newcomm == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        return fail(comm, ncclInvalidArgument,
                    "ncclCommSplit: color %d (>= 0, or NCCL_SPLIT_NOCOLOR)", color);
    }
    return comm->world->submit(comm, split_comm(comm, color, key, newcomm));
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    return check_comm(comm, "ncclCommFinalize");
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    const ncclResult_t checked = check_comm(comm, "ncclCommDestroy");
    if (checked == ncclSuccess) retire_comm(comm, false);
    return checked;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    const ncclResult_t checked = check_comm(comm, "ncclCommAbort");
    if (checked == ncclSuccess) retire_comm(comm, true);
    return checked;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* async_error) {
    const ncclResult_t checked = check_comm(comm, "ncclCommGetAsyncError");
    if (checked != ncclSuccess) return checked;
    if (async_error == nullptr)
        return fail(comm, ncclInvalidArgument, "ncclCommGetAsyncError: NULL");
    *async_error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
    const ncclResult_t checked = check_comm(comm, "ncclCommCount");
    if (checked != ncclSuccess || count == nullptr)
        return checked != ncclSuccess ? checked : ncclInvalidArgument;
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
    const ncclResult_t checked = check_comm(comm, "ncclCommCuDevice");
    if (checked != ncclSuccess || device == nullptr)
        return checked != ncclSuccess ? checked : ncclInvalidArgument;
    *device = comm->device;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
    const ncclResult_t checked = check_comm(comm, "ncclCommUserRank");
    if (checked != ncclSuccess || rank == nullptr)
        return checked != ncclSuccess ? checked : ncclInvalidArgument;
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    World::get().group().depth += 1;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    World& world = World::get();
    Group& group = world.group();
    if (group.depth == 0)
        return fail(nullptr, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group.depth > 0) return ncclSuccess;
    std::vector<QueuedCall> calls = std::move(group.calls);
    group.calls.clear();
    return world.drive(calls);
}

}  // extern "C"

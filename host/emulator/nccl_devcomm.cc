// SPDX-License-Identifier: Apache-2.0
// Properties, device communicators, requirements, host team functions.
#include <algorithm>
#include <cstring>

#include "host/emulator/nccl_world.hpp"

namespace gimlet::emu::nccl {
namespace {

constexpr size_t kHandleUnit = 128;
constexpr unsigned kOldestVersion = 22902;  // first release whose requirements carry a magic number
constexpr unsigned kSmallestDepth = 4;
constexpr uint64_t kNearWrapCounter = (uint64_t{1} << 56) - 3;

/// Where everything of a device communicator goes; the same on all ranks.
struct Layout {
    size_t bytes = 0;
    uint32_t signals = 0;
    uint32_t counters = 0;
    uint32_t contexts = 0;
    ncclGinConnectionType_t connection = NCCL_GIN_CONNECTION_NONE;
    ncclLsaBarrierHandle lsa_barrier{};
    ncclLsaBarrierHandle hybrid_lsa_barrier{};
    ncclGinBarrierHandle rail_gin_barrier{};
    ncclGinBarrierHandle world_gin_barrier{};
    ncclGinBarrierHandle hybrid_rail_barrier{};
    ncclGinBarrierHandle hybrid_world_barrier{};
    std::vector<std::pair<ncclDevResourceHandle_t*, uint32_t>> user_handles;
    size_t signals_offset = 0;
    size_t kinds_offset = 0;
    size_t shadows_offset = 0;

    uint32_t take(size_t size, size_t alignment) {
        const size_t unit = std::max(alignment, kHandleUnit);
        bytes = (bytes + unit - 1) / unit * unit;
        const size_t start = bytes;
        bytes += size;
        return static_cast<uint32_t>(start / kHandleUnit);
    }
    ncclGinBarrierHandle take_signals(int barriers, int team_ranks) {
        const ncclGinBarrierHandle handle{signals, 0};
        signals += static_cast<uint32_t>(barriers * team_ranks);
        return handle;
    }
};

size_t lsa_barrier_bytes(int barriers, int team_ranks) {
    return sizeof(uint32_t) * static_cast<size_t>(3 * barriers + barriers * team_ranks);
}

ncclGinConnectionType_t connection_of(const ncclDevCommRequirements_t& reqs) {
    return reqs.ginForceEnable ? NCCL_GIN_CONNECTION_FULL : reqs.ginConnectionType;
}

bool wants_gin_resources(const ncclDevCommRequirements_t& reqs) {
    return reqs.ginSignalCount > 0 || reqs.ginCounterCount > 0 || reqs.barrierCount > 0 ||
           reqs.railGinBarrierCount > 0 || reqs.worldGinBarrierCount > 0;
}

ncclResult_t check_header(ncclComm* comm, const ncclDevCommRequirements_t& reqs) {
    if (reqs.magic != NCCL_API_MAGIC) {
        return fail(comm, ncclInvalidUsage,
                    "ncclDevCommCreate: requirements were not made with "
                    "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER");
    }
    if (reqs.version > NCCL_VERSION_CODE || reqs.version < kOldestVersion) {
        return fail(comm, ncclInvalidUsage, "ncclDevCommCreate: compiled for NCCL %u, this is %d",
                    reqs.version, NCCL_VERSION_CODE);
    }
    if (!comm->symmetric()) {
        return fail(comm, ncclInvalidUsage,
                    "ncclDevCommCreate: no symmetric memory: %d LSA teams and GIN is off",
                    comm->ranks / comm->lsa_size);
    }
    return ncclSuccess;
}

ncclResult_t check_requirements(ncclComm* comm, const ncclDevCommRequirements_t& reqs) {
    const ncclResult_t header = check_header(comm, reqs);
    if (header != ncclSuccess) return header;
    const int counts[] = {reqs.barrierCount,        reqs.lsaBarrierCount,
                          reqs.railGinBarrierCount, reqs.worldGinBarrierCount,
                          reqs.ginContextCount,     reqs.ginSignalCount,
                          reqs.ginCounterCount,     reqs.lsaLLA2ABlockCount,
                          reqs.lsaLLA2ASlotCount,   reqs.ginQueueDepth};
    if (*std::min_element(std::begin(counts), std::end(counts)) < 0) {
        return fail(comm, ncclInvalidArgument, "ncclDevCommCreate: a count is negative");
    }
    const ncclGinConnectionType_t connection = connection_of(reqs);
    if (connection == NCCL_GIN_CONNECTION_RAIL && reqs.worldGinBarrierCount > 0) {
        return fail(comm, ncclInvalidArgument,
                    "ncclDevCommCreate: world GIN barriers need FULL connections, not RAIL");
    }
    if (connection == NCCL_GIN_CONNECTION_NONE && wants_gin_resources(reqs)) {
        return fail(
            comm, ncclInvalidArgument,
            "ncclDevCommCreate: GIN signals, counters or barriers wanted, but did not request GIN "
            "(ginConnectionType is NONE; barrierCount counts as GIN)");
    }
    if (connection != NCCL_GIN_CONNECTION_NONE && comm->gin == NCCL_GIN_TYPE_NONE) {
        return fail(comm, ncclInvalidArgument,
                    "ncclDevCommCreate: GIN wanted, but this communicator has none");
    }
    if (connection == NCCL_GIN_CONNECTION_FULL && comm->rail_only) {
        return fail(comm, ncclInvalidArgument,
                    "ncclDevCommCreate: FULL connections wanted, only RAIL is possible");
    }
    bool multimem = reqs.lsaMultimem;
    for (const auto* team = reqs.teamRequirementsList; team != nullptr; team = team->next)
        multimem |= team->multimem;
    if (multimem)
        return fail(comm, ncclInvalidUsage,
                    "ncclDevCommCreate: multimem wanted, this machine has none");
    return ncclSuccess;
}

Layout lay_out(const ncclComm* comm, const ncclDevCommRequirements_t& reqs) {
    Layout layout;
    const int rails = comm->ranks / comm->lsa_size;
    layout.connection = connection_of(reqs);
    const bool gin = layout.connection != NCCL_GIN_CONNECTION_NONE;
    const int contexts_max = std::max(1, comm->world->engine.options().gin_contexts_max);
    layout.contexts =
        gin ? static_cast<uint32_t>(std::clamp(reqs.ginContextCount, 1, contexts_max)) : 0;
    layout.signals = static_cast<uint32_t>(reqs.ginSignalCount);  // the user's ids come first
    layout.counters = static_cast<uint32_t>(reqs.ginCounterCount);
    layout.rail_gin_barrier = layout.take_signals(reqs.railGinBarrierCount, rails);
    layout.world_gin_barrier = layout.take_signals(reqs.worldGinBarrierCount, comm->ranks);
    layout.hybrid_rail_barrier = layout.take_signals(reqs.barrierCount, rails);
    if (layout.connection != NCCL_GIN_CONNECTION_RAIL) {
        layout.hybrid_world_barrier = layout.take_signals(reqs.barrierCount, comm->ranks);
    }
    const auto lsa = [&](int barriers) {
        return ncclLsaBarrierHandle{layout.take(lsa_barrier_bytes(barriers, comm->lsa_size), 0),
                                    barriers};
    };
    layout.lsa_barrier = lsa(reqs.lsaBarrierCount);
    layout.hybrid_lsa_barrier = lsa(reqs.barrierCount);
    // Of list entries NCCL 2.30.7 keeps the buffer fields only; GIN counts and their outputs are
    // lost.
    for (const auto* entry = reqs.resourceRequirementsList; entry != nullptr; entry = entry->next) {
        layout.user_handles.emplace_back(entry->outBufferHandle,
                                         layout.take(entry->bufferSize, entry->bufferAlign));
    }
    const size_t words = size_t{layout.contexts} * layout.signals;
    layout.signals_offset = kHandleUnit * layout.take(words * sizeof(uint64_t), 0);
    layout.kinds_offset = kHandleUnit * layout.take(words * sizeof(uint32_t), 0);
    layout.shadows_offset = kHandleUnit * layout.take(words * sizeof(uint64_t), 0);
    return layout;
}

// Ranks whose requirements differ would read each other's memory wrongly.
uint64_t agreement_of(const Layout& layout, const ncclDevCommRequirements_t& reqs) {
    uint64_t hash = 0xcbf29ce484222325ull;
    const uint64_t parts[] = {layout.bytes,
                              layout.signals,
                              layout.counters,
                              layout.contexts,
                              static_cast<uint64_t>(layout.connection),
                              layout.signals_offset,
                              layout.shadows_offset,
                              static_cast<uint64_t>(reqs.ginStrongSignalsRequired),
                              static_cast<uint64_t>(reqs.lsaBarrierCount)};
    for (const uint64_t part : parts) hash = (hash ^ part) * 0x100000001b3ull;
    return hash;
}

DevCommState* make_state(ncclComm* comm, const Layout& layout,
                         const ncclDevCommRequirements_t& reqs, ncclWindow_vidmem* window) {
    DevCommState* state = comm->world->new_dev_comm();
    state->comm = comm;
    state->connection = layout.connection;
    state->strong_signals = reqs.ginStrongSignalsRequired;
    state->va_signals = reqs.ginVaSignalsRequired;
    state->contexts = layout.contexts;
    state->signals = layout.signals;
    state->counters = layout.counters;
    const SimOptions& options = comm->world->engine.options();
    // Only a GDAKI queue has a depth that the program can choose.
    const bool chosen = reqs.ginQueueDepth > 0 && options.gin == GinMode::gdaki;
    state->queue_depth =
        std::max(kSmallestDepth,
                 static_cast<unsigned>(chosen ? reqs.ginQueueDepth : options.gin_queue_depth));
    state->signals_offset = layout.signals_offset;
    state->kinds_offset = layout.kinds_offset;
    state->shadows_offset = layout.shadows_offset;
    state->resources = window;
    const bool near_wrap = options.faults.near_wrap_counters;
    state->counter_words.assign(size_t{layout.contexts} * layout.counters,
                                near_wrap ? kNearWrapCounter : 0);
    state->queues.resize(layout.contexts);
    return state;
}

ncclDevComm public_view(const DevCommState& state, const Layout& layout) {
    const ncclComm& comm = *state.comm;
    ncclDevComm view = {};
    view.magic = NCCL_API_MAGIC;
    view.version = NCCL_VERSION_CODE;
    view.rank = comm.rank;
    view.nRanks = comm.ranks;
    view.lsaRank = comm.lsa_rank;
    view.lsaSize = comm.lsa_size;
    view.resourceWindow = state.resources;
    view.lsaBarrier = layout.lsa_barrier;
    view.railGinBarrier = layout.rail_gin_barrier;
    view.worldGinBarrier = layout.world_gin_barrier;
    view.hybridLsaBarrier = layout.hybrid_lsa_barrier;
    view.hybridRailGinBarrier = layout.hybrid_rail_barrier;
    view.hybridWorldGinBarrier = layout.hybrid_world_barrier;
    const bool gin = state.contexts > 0;
    view.ginConnectionCount = gin ? 1 : 0;
    view.ginNetDeviceTypes[0] = static_cast<uint8_t>(gin ? comm.gin : NCCL_GIN_TYPE_NONE);
    view.ginHandles[0] = const_cast<DevCommState*>(&state);
    view.ginSignalCount = static_cast<int>(state.signals);
    view.ginCounterCount = static_cast<int>(state.counters);
    view.ginSignalShadows =
        reinterpret_cast<uint64_t*>(state.resources->bases[comm.rank] + state.shadows_offset);
    view.ginContextCount = state.contexts;
    const bool railed = state.connection == NCCL_GIN_CONNECTION_RAIL;
    view.ginConnectionsRailed = railed;
    view.ginContextsRailed = railed;
    view.ginStrongLegacySignals = state.strong_signals;
    return view;
}

Job create_dev_comm(ncclComm* comm, const ncclDevCommRequirements_t* reqs_in, ncclDevComm_t* out) {
    World& world = *comm->world;
    const ncclDevCommRequirements_t reqs = *reqs_in;
    ncclResult_t result = check_requirements(comm, reqs);
    Layout layout;
    std::shared_ptr<WindowMemory> memory;
    if (result == ncclSuccess) {
        layout = lay_out(comm, reqs);
        memory = world.allocate(layout.bytes);  // fresh pages are zero
        if (memory == nullptr) {
            result = fail(comm, ncclUnhandledCudaError, "ncclDevCommCreate: no memory");
        } else if (world.engine.options().faults.near_wrap_counters) {
            // Peers signal only after this collective call.
            const size_t words = size_t{layout.contexts} * layout.signals;
            for (const size_t offset : {layout.signals_offset, layout.shadows_offset}) {
                auto* first = reinterpret_cast<uint64_t*>(memory->base + offset);
                std::fill_n(first, words, kNearWrapSignal);
            }
        }
    }
    WindowPayload mine = payload_of(memory.get(), memory != nullptr ? memory->base : nullptr,
                                    layout.bytes, NCCL_WIN_STRICT_ORDERING);
    mine.status = result;
    mine.extra = agreement_of(layout, reqs);
    const uint32_t round = ++comm->round;
    comm->rendezvous->publish(comm->rank, round, &mine, sizeof(mine));
    world.engine.progress();
    Job::AllRanks payloads{RoundWait{comm->rendezvous, round, "ncclDevCommCreate"}};
    result = co_await payloads;
    if (result != ncclSuccess) co_return result;

    ncclWindow_vidmem* window = world.new_window();
    result = map_window(comm, window, round, "ncclDevCommCreate");
    const uint32_t mapped_round = ++comm->round;
    comm->rendezvous->publish(comm->rank, mapped_round, &result, sizeof(result));
    world.engine.progress();
    Job::AllRanks mapped{RoundWait{comm->rendezvous, mapped_round, "ncclDevCommCreate"}};
    const ncclResult_t waited = co_await mapped;
    if (result == ncclSuccess) result = waited;
    if (result != ncclSuccess) co_return result;
    window->resource = true;
    window->mappings.push_back(memory);
    const DevCommState* state = make_state(comm, layout, reqs, window);
    *out = public_view(*state, layout);
    for (const auto& [handle, value] : layout.user_handles) {
        if (handle != nullptr) *handle = value;
    }
    co_return ncclSuccess;
}

}  // namespace
}  // namespace gimlet::emu::nccl

using namespace gimlet::emu::nccl;

extern "C" {

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props) {
    const ncclResult_t checked = check_comm(comm, "ncclCommQueryProperties");
    if (checked != ncclSuccess) return checked;
    if (props == nullptr || props->magic != NCCL_API_MAGIC) {
        return fail(
            comm, ncclInvalidUsage,
            "ncclCommQueryProperties: props was not made with NCCL_COMM_PROPERTIES_INITIALIZER");
    }
    if (props->version > NCCL_VERSION_CODE) {
        return fail(comm, ncclInvalidUsage,
                    "ncclCommQueryProperties: compiled for NCCL %u, this is %d", props->version,
                    NCCL_VERSION_CODE);
    }
    props->rank = comm->rank;
    props->nRanks = comm->ranks;
    props->cudaDev = comm->device;
    props->nvmlDev = comm->device;
    props->deviceApiSupport = comm->symmetric();
    props->multimemSupport = false;
    props->ginType = comm->rail_only ? NCCL_GIN_TYPE_NONE : comm->gin;
    props->nLsaTeams = comm->ranks / comm->lsa_size;
    props->hostRmaSupport = false;
    props->railedGinType = comm->gin;
    return ncclSuccess;
}

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm_t* out_dev_comm) {
    const ncclResult_t checked = check_comm(comm, "ncclDevCommCreate");
    if (checked != ncclSuccess) return checked;
    if (reqs == nullptr || out_dev_comm == nullptr) {
        return fail(comm, ncclInvalidArgument, "ncclDevCommCreate: a pointer is NULL");
    }
    return comm->world->submit(comm, create_dev_comm(comm, reqs, out_dev_comm));
}

ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* dev_comm) {
    const ncclResult_t checked = check_comm(comm, "ncclDevCommDestroy");
    if (checked != ncclSuccess || dev_comm == nullptr) return checked;
    auto* state = static_cast<DevCommState*>(dev_comm->ginHandles[0]);
    if (state == nullptr || state->comm != comm || !state->alive) {
        return fail(comm, ncclInvalidArgument,
                    "ncclDevCommDestroy: not a device communicator of this communicator");
    }
    World& world = *comm->world;
    world.engine.locked([&] {
        const std::string user = world.engine.user_of(state);
        if (!user.empty())
            world.engine.refuse("ncclDevCommDestroy while a kernel uses it: " + user);
        for (auto& context : state->queues) {
            for (auto& queue : context) {
                if (queue == nullptr) continue;
                const std::string busy = world.network.find_unfinished(*queue);
                if (!busy.empty()) {
                    world.engine.refuse(
                        "ncclDevCommDestroy with a GIN operation in flight (end with a barrier on "
                        "each context): " +
                        busy);
                }
            }
        }
        const ncclWindow_vidmem& own = *state->resources;
        world.drop_of_the_dead(own.bases[own.rank], own.sizes[own.rank]);
        const std::string inbound =
            world.network.find_unfinished(own.bases[own.rank], own.sizes[own.rank]);
        if (!inbound.empty()) {
            world.engine.refuse(
                "ncclDevCommDestroy while a peer's GIN operation is on its way here: " + inbound);
        }
        for (auto& context : state->queues) {
            for (auto& queue : context) {
                if (queue != nullptr) world.network.remove_queue(queue.get());
            }
        }
        state->alive = false;
    });
    const std::lock_guard lock(world.mutex);
    world.release_resources(*state);
    return ncclSuccess;
}

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
    if (outHandle == nullptr || outReq == nullptr || nBarriers < 0 || team.nRanks < 1) {
        return fail(nullptr, ncclInvalidArgument,
                    "ncclLsaBarrierCreateRequirement: %d barriers, team of %d", nBarriers,
                    team.nRanks);
    }
    *outReq = {};
    outReq->bufferSize = lsa_barrier_bytes(nBarriers, team.nRanks);
    outReq->bufferAlign = alignof(uint32_t);
    outReq->outBufferHandle = &outHandle->bufHandle;
    outHandle->nBarriers = nBarriers;
    return ncclSuccess;
}

ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
    const ncclResult_t checked = check_comm(comm, "ncclGinBarrierCreateRequirement");
    if (checked != ncclSuccess) return checked;
    if (outHandle == nullptr || outReq == nullptr || nBarriers < 0 || team.nRanks < 1) {
        return fail(comm, ncclInvalidArgument,
                    "ncclGinBarrierCreateRequirement: %d barriers, team of %d", nBarriers,
                    team.nRanks);
    }
    *outReq = {};
    outReq->ginSignalCount = nBarriers * team.nRanks;
    outReq->outGinSignalStart = &outHandle->signal0;
    return ncclSuccess;
}

int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
    return maxElts * ((maxEltSize + 7) / 8);
}

ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                        ncclDevResourceRequirements_t* outReq) {
    if (outHandle == nullptr || outReq == nullptr || nBlocks < 0 || nSlots < 0)
        return ncclInvalidArgument;
    *outReq = {};
    outReq->bufferSize = static_cast<size_t>(nBlocks) * (1 + 2 * static_cast<size_t>(nSlots)) * 16;
    outReq->bufferAlign = 16;
    outReq->outBufferHandle = &outHandle->bufHandle;
    outHandle->nSlots = static_cast<uint32_t>(nSlots);
    return ncclSuccess;
}

ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
    return {comm->ranks, comm->rank, 1};
}
ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
    return {comm->lsa_size, comm->lsa_rank, 1};
}
ncclTeam_t ncclTeamRail(ncclComm_t comm) {
    return {comm->ranks / comm->lsa_size, comm->rank / comm->lsa_size, comm->lsa_size};
}
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
    return comm->rank + (rank - team.rank) * team.stride;
}
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
    return comm->lsa_rank + (rank - team.rank) * team.stride;
}

}  // extern "C"

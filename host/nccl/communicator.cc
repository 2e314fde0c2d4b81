// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/communicator.hpp"

#include <nccl_device.h>

#include <exception>
#include <utility>

#include "host/base/env.hpp"
#include "host/base/fault.hpp"
#include "host/base/log.hpp"
#include "host/cuda/device_info.hpp"
#include "host/nccl/check.hpp"
#include "host/nccl/communicator_state.hpp"
#include "host/nccl/version.hpp"

namespace gimlet {

namespace {

GinType gin_type_from(ncclGinType_t type) {
    switch (type) {
        case NCCL_GIN_TYPE_PROXY: return GinType::proxy;
        case NCCL_GIN_TYPE_GDAKI: return GinType::gdaki;
        case NCCL_GIN_TYPE_GPI: return GinType::gpi;
        case NCCL_GIN_TYPE_NONE: return GinType::none;
    }
    // A newer library may have backends that these headers do not list.
    return GinType::other;
}

CommunicatorProperties query_properties(ncclComm_t comm, int rank) {
    ncclCommProperties_t from = NCCL_COMM_PROPERTIES_INITIALIZER;
    nccl_check(ncclCommQueryProperties(comm, &from), "ncclCommQueryProperties", rank, comm);
    CommunicatorProperties to;
    to.rank = from.rank;
    to.size = from.nRanks;
    to.device = from.cudaDev;
    to.symmetric_memory = from.deviceApiSupport;
    to.multimem = from.multimemSupport;
    to.gin_type = gin_type_from(from.ginType);
    to.railed_gin_type = gin_type_from(from.railedGinType);
    to.lsa_team_count = from.nLsaTeams > 0 ? from.nLsaTeams : 1;
    if (to.symmetric_memory) {
        const ncclTeam_t lsa = ncclTeamLsa(comm);
        to.lsa_size = lsa.nRanks;
        to.lsa_rank = lsa.rank;
    } else {
        // NCCL forms the teams together with its symmetric memory; without it only the count is
        // known.
        to.lsa_size = to.size / to.lsa_team_count;
        to.lsa_rank = to.rank % to.lsa_size;
    }
    return to;
}

void check_numbering(const CommunicatorProperties& properties, const Bootstrap& bootstrap) {
    if (properties.size != bootstrap.size() || properties.rank != bootstrap.rank()) {
        raise(ErrorCode::invalid_argument, bootstrap.rank(),
              "the communicator says rank {} of {}, the bootstrap says rank {} of {}; both must be "
              "of the "
              "same ranks in the same order",
              properties.rank, properties.size, bootstrap.rank(), bootstrap.size());
    }
}

ncclConfig_t make_config(const CommunicatorConfig& config, int rank) {
    if (config.max_cta_count < 0) {
        raise(ErrorCode::invalid_argument, rank,
              "communicator: max_cta_count is {}, must be at least 0", config.max_cta_count);
    }
    ncclConfig_t result = NCCL_CONFIG_INITIALIZER;
    result.blocking = 1;
    if (config.max_cta_count > 0) result.maxCTAs = config.max_cta_count;
    if (!config.name.empty()) result.commName = config.name.c_str();
    return result;
}

std::shared_ptr<Bootstrap> require_bootstrap(std::shared_ptr<Bootstrap> bootstrap) {
    if (bootstrap == nullptr) {
        raise(ErrorCode::invalid_argument, kNoRank, "communicator: the bootstrap is null");
    }
    return bootstrap;
}

}  // namespace

const char* gin_type_name(GinType type) noexcept {
    switch (type) {
        case GinType::none: return "none";
        case GinType::proxy: return "proxy";
        case GinType::gdaki: return "gdaki";
        case GinType::gpi: return "gpi";
        case GinType::other: return "other";
    }
    return "unknown";
}

ncclComm_t CommunicatorState::comm() const {
    if (!is_open()) {
        raise(ErrorCode::closed, rank(), "the communicator was {}",
              phase_.load() == Phase::aborted ? "aborted" : "closed");
    }
    return comm_;
}

Communicator::Communicator(std::shared_ptr<CommunicatorState> state) : state_(std::move(state)) {}

std::unique_ptr<Communicator> Communicator::create(std::shared_ptr<Bootstrap> bootstrap,
                                                   const CommunicatorConfig& config) {
    const std::shared_ptr<Bootstrap> shared = require_bootstrap(std::move(bootstrap));
    Bootstrap& ranks = *shared;
    const int rank = ranks.rank();
    ncclUniqueId id{};
    ncclConfig_t nccl_config = NCCL_CONFIG_INITIALIZER;
    // Everything that can fail alone is tried before anybody enters NCCL, where peers would wait.
    check_all_succeeded(ranks, "communicator preparation", failure_of([&] {
                            require_nccl_version(rank);
                            (void)device_count(rank);
                            nccl_config = make_config(config, rank);
                            if (rank == 0)
                                nccl_check(ncclGetUniqueId(&id), "ncclGetUniqueId", rank);
                        }));
    check_agreement(ranks, "NCCL version",
                    {{"compiled", nccl_version_text(nccl_compiled_version())},
                     {"running", nccl_version_text(nccl_runtime_version(rank))}});
    ranks.broadcast(&id, sizeof(id), 0);

    std::unique_ptr<Communicator> result;
    const std::exception_ptr failure = failure_of([&] {
        ncclComm_t comm = nullptr;
        const ncclResult_t created =
            ncclCommInitRankConfig(&comm, ranks.size(), id, rank, &nccl_config);
        nccl_check(created, "ncclCommInitRankConfig", rank);
        result.reset(
            new Communicator(std::make_shared<CommunicatorState>(comm, Ownership::owned, shared)));
        if (fault_hit(FaultPoint::communicator_create, rank)) {
            raise(ErrorCode::nccl, rank, "communicator: a test asked for this failure");
        }
        result->state_->properties = query_properties(comm, rank);
        check_numbering(result->state_->properties, ranks);
    });
    try {
        check_all_succeeded(ranks, "communicator creation", failure);
    } catch (const Error&) {
        if (result != nullptr) result->abort();
        throw;
    }
    log(LogLevel::info, rank, "communicator: {} ranks, device {}, {} LSA team(s) of {}, GIN {}",
        ranks.size(), result->device(), result->properties().lsa_team_count,
        result->properties().lsa_size, gin_type_name(result->properties().gin_type));
    return result;
}

std::unique_ptr<Communicator> Communicator::adopt(ncclComm_t comm,
                                                  std::shared_ptr<Bootstrap> bootstrap) {
    const std::shared_ptr<Bootstrap> shared = require_bootstrap(std::move(bootstrap));
    const int rank = shared->rank();
    std::unique_ptr<Communicator> result;
    const std::exception_ptr failure = failure_of([&] {
        require_nccl_version(rank);
        if (comm == nullptr) {
            raise(ErrorCode::invalid_argument, rank,
                  "adopt: the ncclComm_t is null; the lender must have created it already");
        }
        int count = 0;
        int own_rank = 0;
        nccl_check(ncclCommCount(comm, &count), "ncclCommCount", rank, comm);
        nccl_check(ncclCommUserRank(comm, &own_rank), "ncclCommUserRank", rank, comm);
        CommunicatorProperties numbering;
        numbering.rank = own_rank;
        numbering.size = count;
        check_numbering(numbering, *shared);
        auto state = std::make_shared<CommunicatorState>(comm, Ownership::adopted, shared);
        state->properties = query_properties(comm, rank);
        result.reset(new Communicator(std::move(state)));
    });
    check_all_succeeded(*shared, "communicator adoption", failure);
    return result;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key,
                                                  const CommunicatorConfig& config) {
    const int rank = this->rank();
    const ncclComm_t parent = handle();
    ncclConfig_t nccl_config = NCCL_CONFIG_INITIALIZER;
    check_all_succeeded(bootstrap(), "communicator split",
                        failure_of([&] { nccl_config = make_config(config, rank); }));
    nccl_config.splitShare = 0;
    std::shared_ptr<Bootstrap> child_ranks = bootstrap().split(color, key);
    std::unique_ptr<Communicator> result;
    const std::exception_ptr failure = failure_of([&] {
        const DeviceGuard guard(device(), rank);
        ncclComm_t comm = nullptr;
        nccl_complete(ncclCommSplit(parent, color == kNoColor ? NCCL_SPLIT_NOCOLOR : color, key,
                                    &comm, &nccl_config),
                      "ncclCommSplit", rank, parent);
        if (comm == nullptr) return;
        result.reset(new Communicator(
            std::make_shared<CommunicatorState>(comm, Ownership::owned, child_ranks)));
        result->state_->properties = query_properties(comm, rank);
        check_numbering(result->state_->properties, *child_ranks);
    });
    try {
        check_all_succeeded(bootstrap(), "communicator split", failure);
    } catch (const Error&) {
        if (result != nullptr) result->abort();
        throw;
    }
    return result;
}

Communicator::~Communicator() {
    if (!state_->is_open()) {
        finish_abort();
        return;
    }
    if (state_->ownership() == Ownership::owned) {
        log(LogLevel::warn, state_->rank(),
            "communicator destroyed without close(); it is aborted, because close() would wait for "
            "the "
            "other ranks");
    }
    abort();
}

int Communicator::rank() const noexcept {
    return state_->rank();
}
int Communicator::size() const noexcept {
    return state_->bootstrap().size();
}
int Communicator::device() const noexcept {
    return state_->properties.device;
}
Ownership Communicator::ownership() const noexcept {
    return state_->ownership();
}
Bootstrap& Communicator::bootstrap() const noexcept {
    return state_->bootstrap();
}
const CommunicatorProperties& Communicator::properties() const noexcept {
    return state_->properties;
}
ncclComm_t Communicator::handle() const {
    return state_->comm();
}
bool Communicator::is_open() const noexcept {
    return state_->is_open();
}

void Communicator::check_async_error() const {
    ncclResult_t pending = ncclSuccess;
    const ncclComm_t comm = handle();
    nccl_check(ncclCommGetAsyncError(comm, &pending), "ncclCommGetAsyncError", rank(), comm);
    if (pending == ncclInProgress) return;
    nccl_check(pending, "NCCL in the background", rank(), comm);
}

void Communicator::close() {
    if (!state_->is_open()) return;
    // Our own meeting first: it has a deadline and names the rank that does not come.
    check_all_succeeded(bootstrap(), "communicator close", failure_of([&] {
                            const int windows = state_->window_count.load();
                            const int device_comms = state_->device_comm_count.load();
                            if (windows + device_comms == 0) return;
                            raise(ErrorCode::invalid_usage, rank(),
                                  "communicator close: {} window(s) and {} device communicator(s) "
                                  "are still open on it; close them first",
                                  windows, device_comms);
                        }));
    const ncclComm_t comm = state_->raw_comm();
    if (!state_->leave_open(CommunicatorState::Phase::closed)) return;
    if (state_->ownership() == Ownership::adopted) return;
    const DeviceGuard guard(device(), rank());
    try {
        nccl_complete(ncclCommFinalize(comm), "ncclCommFinalize", rank(), comm);
    } catch (const Error&) {
        nccl_warn(ncclCommAbort(comm), "ncclCommAbort", rank());
        throw;
    }
    nccl_check(ncclCommDestroy(comm), "ncclCommDestroy", rank());
}

void Communicator::abort() noexcept {
    begin_abort();
    finish_abort();
}

void Communicator::begin_abort() noexcept {
    if (!state_->leave_open(CommunicatorState::Phase::aborted)) return;
    if (state_->ownership() == Ownership::owned) state_->abort_begun = true;
}

void Communicator::finish_abort() noexcept {
    if (state_->abort_begun.exchange(false))
        nccl_warn(ncclCommAbort(state_->raw_comm()), "ncclCommAbort", rank());
}

std::string no_symmetric_memory_reason(const CommunicatorProperties& properties) {
    std::string reason = "NCCL offers no symmetric memory on this communicator: ";
    if (env_raw(EnvVar::nccl_win_enable).value_or("") == "0") {
        return reason + "NCCL_WIN_ENABLE is 0; unset it";
    }
    if (env_raw(EnvVar::nccl_cumem_enable).value_or("") == "0") {
        return reason + "NCCL_CUMEM_ENABLE is 0; unset it";
    }
    if (properties.lsa_team_count > 1 && properties.gin_type == GinType::none &&
        properties.railed_gin_type == GinType::none) {
        return reason +
               fmt::format(
                   "its {} ranks form {} LSA teams, which only GIN can connect, and there is no "
                   "GIN; {}",
                   properties.size, properties.lsa_team_count, no_gin_reason(properties));
    }
    return reason +
           "the GPUs of a node cannot all reach each other, or the driver lacks cuMem; "
           "NCCL_DEBUG=INFO "
           "shows which, `gimlet doctor` explains";
}

std::string no_gin_reason(const CommunicatorProperties& properties) {
    if (properties.railed_gin_type != GinType::none && properties.gin_type == GinType::none) {
        return "GIN reaches only ranks with the same LSA index here; unset NCCL_CROSS_NIC (0 "
               "restricts GIN "
               "to the rail), or ask for a rail connection";
    }
    if (env_raw(EnvVar::nccl_gin_enable).value_or("") == "0")
        return "NCCL_GIN_ENABLE is 0; unset it";
    if (env_raw(EnvVar::emu_gin).value_or("") == "off") {
        return "GIMLET_EMU_GIN is off; set it to gdaki or proxy";
    }
    return "GIN needs an RDMA NIC that NCCL supports, or an RMA plugin "
           "(NCCL_RMA_PLUGIN=libnccl-rma-"
           "gimlet.so), equal on all ranks, and a driver with GPUDirect RDMA for VMM memory; "
           "`gimlet "
           "doctor` shows which is missing";
}

}  // namespace gimlet

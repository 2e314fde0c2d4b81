// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/device_communicator.hpp"

#include <exception>
#include <utility>

#include "host/base/fault.hpp"
#include "host/base/log.hpp"
#include "host/cuda/device_info.hpp"
#include "host/nccl/check.hpp"
#include "host/nccl/communicator_state.hpp"

namespace gimlet {

namespace {

// Proxy signals and counters have 24 and 16 bits, per context.
constexpr int kMaxSignals = (1 << 24) - 1;
constexpr int kMaxCounters = 1 << 16;
// NCCL sets no limit; beyond this a request is a mistake, since each context is a queue pair per
// peer.
constexpr int kMaxContexts = 256;
constexpr int kMaxBarriers = 4096;

ncclGinConnectionType_t to_nccl(GinConnection connection) {
    switch (connection) {
        case GinConnection::none: return NCCL_GIN_CONNECTION_NONE;
        case GinConnection::rail: return NCCL_GIN_CONNECTION_RAIL;
        case GinConnection::full: return NCCL_GIN_CONNECTION_FULL;
    }
    return NCCL_GIN_CONNECTION_NONE;
}

void check_range(const char* name, int value, int limit, std::vector<std::string>* faults) {
    if (value < 0 || value > limit) {
        faults->push_back(fmt::format("{} is {}, must be 0..{}", name, value, limit));
    }
}

std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += (text.empty() ? "" : "; ") + line;
    return text;
}

}  // namespace

const char* gin_connection_name(GinConnection connection) noexcept {
    switch (connection) {
        case GinConnection::none: return "none";
        case GinConnection::rail: return "rail";
        case GinConnection::full: return "full";
    }
    return "unknown";
}

bool DeviceCommRequest::needs_gin() const noexcept {
    return gin_connection != GinConnection::none || gin_context_count > 0 || gin_signal_count > 0 ||
           gin_counter_count > 0 || rail_gin_barrier_count > 0 || world_gin_barrier_count > 0 ||
           hybrid_barrier_count > 0;
}

std::string DeviceCommRequest::text() const {
    return fmt::format(
        "LSA barriers {}, GIN {} with {} contexts, {} signals, {} counters, {} rail / {} world / "
        "{} hybrid "
        "barriers, queue depth {}, strong signals {}, VA signals {}, multimem {}",
        lsa_barrier_count, gin_connection_name(gin_connection), gin_context_count, gin_signal_count,
        gin_counter_count, rail_gin_barrier_count, world_gin_barrier_count, hybrid_barrier_count,
        gin_queue_depth, gin_strong_signals ? "on" : "off", gin_va_signals ? "on" : "off",
        lsa_multimem ? "on" : "off");
}

std::vector<std::string> request_faults(const DeviceCommRequest& request,
                                        const CommunicatorProperties& properties) {
    std::vector<std::string> faults;
    check_range("lsa_barrier_count", request.lsa_barrier_count, kMaxBarriers, &faults);
    check_range("gin_context_count", request.gin_context_count, kMaxContexts, &faults);
    check_range("gin_signal_count", request.gin_signal_count, kMaxSignals, &faults);
    check_range("gin_counter_count", request.gin_counter_count, kMaxCounters, &faults);
    check_range("rail_gin_barrier_count", request.rail_gin_barrier_count, kMaxBarriers, &faults);
    check_range("world_gin_barrier_count", request.world_gin_barrier_count, kMaxBarriers, &faults);
    check_range("hybrid_barrier_count", request.hybrid_barrier_count, kMaxBarriers, &faults);
    check_range("gin_queue_depth", request.gin_queue_depth, 1 << 20, &faults);
    if (request.needs_gin() && request.gin_connection == GinConnection::none) {
        faults.push_back(
            "GIN contexts, signals, counters or barriers are asked for with gin_connection none; "
            "choose "
            "rail or full, or set their counts to 0 (lsa_barrier_count needs no GIN)");
    }
    if (request.gin_connection != GinConnection::none && request.gin_context_count == 0) {
        faults.push_back(
            fmt::format("gin_context_count is 0 with gin_connection {}, must be at least 1",
                        gin_connection_name(request.gin_connection)));
    }
    if (request.gin_connection == GinConnection::rail && request.world_gin_barrier_count > 0) {
        faults.push_back(
            fmt::format("world_gin_barrier_count is {} with gin_connection rail, must be 0; use "
                        "full, or rail barriers",
                        request.world_gin_barrier_count));
    }
    if (request.lsa_multimem && !properties.multimem) {
        faults.push_back(
            "lsa_multimem is on, but NCCL has no multicast here (no NVLS, or several ranks on "
            "one GPU); switch it off");
    }
    return faults;
}

ncclDevCommRequirements_t make_requirements(const DeviceCommRequest& request) {
    ncclDevCommRequirements_t result = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    const bool gin = request.gin_connection != GinConnection::none;
    result.lsaMultimem = request.lsa_multimem;
    result.lsaBarrierCount = request.lsa_barrier_count;
    result.barrierCount = request.hybrid_barrier_count;
    result.railGinBarrierCount = request.rail_gin_barrier_count;
    result.worldGinBarrierCount = request.world_gin_barrier_count;
    result.ginConnectionType = to_nccl(request.gin_connection);
    // Without a connection NCCL may still make contexts (once GIN runs on the communicator): the
    // fewest, and without demands on the backend.
    result.ginContextCount = gin ? request.gin_context_count : 1;
    result.ginSignalCount = request.gin_signal_count;
    result.ginCounterCount = request.gin_counter_count;
    result.ginQueueDepth = request.gin_queue_depth;
    result.ginStrongSignalsRequired = gin && request.gin_strong_signals;
    result.ginVaSignalsRequired = gin && request.gin_va_signals;
    return result;
}

DeviceCommunicator::DeviceCommunicator(std::shared_ptr<CommunicatorState> state,
                                       const DeviceCommRequest& request)
    : state_(std::move(state)), request_(request) {
    state_->device_comm_count.fetch_add(1);
}

std::unique_ptr<DeviceCommunicator> DeviceCommunicator::create(Communicator& communicator,
                                                               const DeviceCommRequest& request) {
    const std::shared_ptr<CommunicatorState>& state = communicator.state();
    const ncclComm_t comm = state->comm();
    const int rank = state->rank();
    const CommunicatorProperties& properties = state->properties;
    check_agreement(state->bootstrap(), "device communicator", {{"request", request.text()}});
    // From here on every rank comes to the same verdict, because request and properties are equal.
    if (const auto faults = request_faults(request, properties); !faults.empty()) {
        raise(ErrorCode::invalid_argument, rank, "device communicator: {}", joined(faults));
    }
    const GinType reach = request.gin_connection == GinConnection::rail ? properties.railed_gin_type
                                                                        : properties.gin_type;
    if (request.gin_connection != GinConnection::none && reach == GinType::none) {
        raise(ErrorCode::gin_unavailable, rank,
              "device communicator: a {} GIN connection is asked for, and NCCL has none; {}",
              gin_connection_name(request.gin_connection), no_gin_reason(properties));
    }
    if (!properties.symmetric_memory) {
        raise_text(ErrorCode::not_supported, rank,
                   "device communicator: " + no_symmetric_memory_reason(properties));
    }
    std::unique_ptr<DeviceCommunicator> result(new DeviceCommunicator(state, request));
    std::exception_ptr failure;
    try {
        const DeviceGuard guard(properties.device, rank);
        const ncclDevCommRequirements_t requirements = make_requirements(request);
        nccl_complete(ncclDevCommCreate(comm, &requirements, &result->device_comm_),
                      "ncclDevCommCreate", rank, comm);
        result->open_ = true;
        if (fault_hit(FaultPoint::device_comm_create, rank)) {
            raise(ErrorCode::nccl, rank, "device communicator: a test asked for this failure");
        }
    } catch (const std::exception&) {
        failure = std::current_exception();
    }
    check_all_succeeded(state->bootstrap(), "device communicator creation", failure);
    if (result->gin_context_count() != request.gin_context_count) {
        log(LogLevel::info, rank, "device communicator: {} GIN contexts asked for, NCCL made {}",
            request.gin_context_count, result->gin_context_count());
    }
    return result;
}

DeviceCommunicator::~DeviceCommunicator() {
    release();
}

void DeviceCommunicator::close() {
    release();
}

void DeviceCommunicator::release() noexcept {
    if (state_ == nullptr) return;
    if (open_ && state_->is_open()) {
        nccl_warn(ncclDevCommDestroy(state_->raw_comm(), &device_comm_), "ncclDevCommDestroy",
                  state_->rank());
    }
    open_ = false;
    state_->device_comm_count.fetch_sub(1);
    state_.reset();
}

const ncclDevComm& DeviceCommunicator::get() const {
    if (!open_) raise(ErrorCode::closed, kNoRank, "the device communicator was closed");
    return device_comm_;
}

int DeviceCommunicator::gin_context_count() const noexcept {
    if (request_.gin_connection == GinConnection::none) return 0;
    return static_cast<int>(device_comm_.ginContextCount);
}

}  // namespace gimlet

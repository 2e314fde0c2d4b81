// SPDX-License-Identifier: Apache-2.0
// Life of an Exchange: creation, failure, end. Its steps are in exchange_steps.cc.
#include "runtime/exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "device/kernels/launch.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/poll.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/core.hpp"

namespace gimlet {
namespace {

std::atomic<std::uint64_t> next_exchange_id{1};

/// Destroyed Routings whose memory is kept without a wait for the device.
constexpr int kMostKeptRoutings = 64;

/// Collective: runs `body` and makes sure that it went well everywhere.
template <typename Body>
void together(Bootstrap& bootstrap, const char* what, Body body) {
    check_all_succeeded(bootstrap, what, failure_of(body));
}

PlanInputs plan_inputs(const RuntimeCore& core) {
    PlanInputs inputs;
    inputs.topology = core.topology;
    inputs.device = core.device;
    inputs.dispatch_shared_bytes = dispatch_shared_bytes;
    inputs.default_deadline_ns = core.deadline_ns;
    return inputs;
}

}  // namespace

Plan Runtime::plan_exchange(const MoeConfig& config) const {
    return make_plan(config, plan_inputs(*core_));
}

Exchange::Exchange(std::shared_ptr<RuntimeCore> core, Plan plan)
    : core_(std::move(core)),
      plan_(std::move(plan)),
      id_(next_exchange_id.fetch_add(1)),
      leftovers_(std::make_unique<Leftovers>()) {}

Plan Exchange::agree_on_plan(RuntimeCore& core, const std::function<MoeConfig()>& read,
                             std::unique_ptr<DeviceCommunicator>* device_comm) {
    Bootstrap& bootstrap = *core.bootstrap;
    MoeConfig config;
    const std::exception_ptr failure = failure_of([&] {
        config = read();
        require_valid(config, core.rank());
    });
    check_agreement(bootstrap, "MoE config",
                    failure ? std::vector<AgreementField>{} : config_fields(config), failure);
    PlanInputs inputs = plan_inputs(core);
    Plan plan;
    together(bootstrap, "the plan of the Exchange", [&] {
        plan = make_plan(config, inputs);
        core.free_leftovers();
    });
    *device_comm = DeviceCommunicator::create(*core.communicator, plan.device_comm_request());
    const int wanted = plan.kernels.gin_context_count;
    const auto made =
        bootstrap.all_gather_values(wanted == 0 ? 0 : (*device_comm)->gin_context_count());
    const int fewest = *std::min_element(made.begin(), made.end());
    if (fewest < wanted) {
        log(LogLevel::info, plan.rank, "{} GIN contexts wanted, NCCL made {}", wanted, fewest);
        inputs.actual_gin_context_count = fewest;
        together(bootstrap, "the plan of the Exchange", [&] { plan = make_plan(config, inputs); });
    }
    check_plan_agreement(bootstrap, plan);
    return plan;
}

std::unique_ptr<Exchange> Exchange::create(Runtime& runtime, const MoeConfig& config) {
    return create_from(runtime, [&] { return config; });
}

std::unique_ptr<Exchange> Exchange::create_from(Runtime& runtime,
                                                const std::function<MoeConfig()>& read) {
    const auto core = runtime.core();
    core->require_open("Exchange::create");
    if (const auto out = core->excluded_ranks(); !out.empty()) {
        raise(ErrorCode::not_supported, core->rank(),
              "Exchange::create: NCCL needs all ranks of the communicator, but ranks {} are "
              "excluded; make a new Runtime of those that are left",
              format_ranks(out));
    }
    const DeviceGuard guard(core->communicator->device(), core->rank());
    std::unique_ptr<DeviceCommunicator> device_comm;
    Plan plan = agree_on_plan(*core, read, &device_comm);
    std::unique_ptr<Exchange> exchange(new Exchange(core, std::move(plan)));
    exchange->device_comm_ = std::move(device_comm);
    exchange->window_ =
        SymmetricWindow::create(*core->communicator, exchange->plan_.window_layout());
    exchange->args_ = exchange->plan_.exchange_args();
    together(*core->bootstrap, "the records of the Exchange", [&] {
        exchange->guard_ =
            std::make_shared<StepGuard>(*core, "the Exchange", exchange->plan_.most_blocks());
        exchange->tensors_ =
            DeviceBuffer<std::byte>(exchange->plan_.tensors.total_bytes, core->rank());
        exchange->args_.peers = make_peer_handles(
            core->topology, *exchange->device_comm_, *exchange->window_, exchange->plan_.shape,
            exchange->plan_.deadline_ns, exchange->guard_->device_record());
        core->open_exchanges.reserve(core->open_exchanges.size() + 1);
    });
    exchange->args_.peers.rails_only = exchange->plan_.exchange_args().peers.rails_only;
    const std::uint64_t start = core->first_step;
    exchange->guard_->give_ring(&exchange->args_.peers);
    exchange->guard_->arm(exchange->args_.peers, *exchange->window_, {start, start, start});
    exchange->dispatch_epoch_ = exchange->combine_epoch_ = start;
    exchange->base_ = exchange->args_.peers.local;
    exchange->open_ = true;
    exchange->number_ = ++core->exchange_count;
    core->allow_for(exchange->plan_.deadline_ns);
    core->open_exchanges.push_back(exchange.get());
    return exchange;
}

Exchange::~Exchange() {
    if (!open_) return;
    log(LogLevel::warn, rank(), "an Exchange was destroyed without close()");
    abort();
}

void Exchange::require_open(const char* what) const {
    if (!open_) raise(ErrorCode::closed, rank(), "{}: the Exchange is closed", what);
    // Runtime::abort() takes the communicator away below open Exchanges.
    core_->require_open(what);
}

void Exchange::reserve(GraphAddresses addresses) {
    require_open("reserve");
    if (addresses != addresses_ && ever_captured_) {
        raise(ErrorCode::invalid_usage, rank(),
              "reserve: a graph has been captured already; choose between in_place and copied "
              "before the first capture");
    }
    addresses_ = addresses;
    load_kernels();
}

void Exchange::load_kernels() {
    if (reserved_) return;
    const DeviceGuard guard(core_->communicator->device(), rank());
    cuda_check(prepare_kernels(), "prepare_kernels", rank());
    reserved_ = true;
}

Routing Exchange::make_routing() {
    require_open("make_routing");
    const DeviceGuard guard(core_->communicator->device(), rank());
    const auto choices = static_cast<std::size_t>(plan_.config.max_tokens) *
                         static_cast<std::size_t>(plan_.config.topk);
    const auto count_words = static_cast<std::size_t>(plan_.rank_count) *
                             static_cast<std::size_t>(plan_.shape.count_row_words());
    const int kept = core_->kept_routing_count.load();
    if (kept > 0 && (kept >= kMostKeptRoutings || !core_->busy())) core_->free_leftovers();
    Routing routing;
    routing.exchange_id_ = id_;
    routing.memory_.reset(new Leftovers);
    routing.memory_->core = core_;
    RoutingMemory& memory = routing.memory_->routing;
    memory.slots = DeviceBuffer<SlotRef>(choices, rank());
    memory.home = DeviceBuffer<HomeRef>(choices, rank());
    memory.counts = DeviceBuffer<std::int32_t>(count_words, rank());
    const auto pairs = static_cast<std::size_t>(plan_.rail.pair_count());
    memory.rail_slots = DeviceBuffer<SlotRef>(static_cast<std::size_t>(plan_.rail.row_count()) *
                                                  static_cast<std::size_t>(plan_.config.topk),
                                              rank());
    memory.rail_counts = DeviceBuffer<std::int32_t>(2 * pairs, rank());
    const auto rings = static_cast<std::size_t>(
        plan_.stream.active() ? plan_.stream.ring_count(plan_.rank_count) : 0);
    memory.stream_slots = DeviceBuffer<std::int32_t>(
        rings * static_cast<std::size_t>(plan_.stream.channel_rows), rank());
    memory.stream_received = DeviceBuffer<std::int32_t>(rings, rank());
    memory.step = DeviceBuffer<std::byte>(plan_.step_layout.total_bytes(), rank());
    memory.dropped =
        DeviceBuffer<std::uint32_t>(static_cast<std::size_t>(plan_.config.max_tokens), rank());
    memory.host_step = MappedBuffer<std::byte>(plan_.step_layout.total_bytes(), rank());
    // A combine or a copy of a routing that was never filled finds no rows instead of noise.
    memory.slots.fill_bytes(0xff);
    memory.home.fill_bytes(0xff);
    memory.counts.fill_bytes(0);
    memory.rail_slots.fill_bytes(0xff);
    memory.rail_counts.fill_bytes(0);
    memory.stream_received.fill_bytes(0);
    memory.step.fill_bytes(0);
    memory.dropped.fill_bytes(0);
    // No step to come has the present one's number.
    std::memcpy(memory.host_step.host(), &dispatch_epoch_, sizeof dispatch_epoch_);
    routing.view_ = RoutingView{memory.slots.get(),
                                memory.home.get(),
                                memory.counts.get(),
                                reinterpret_cast<StepCounts*>(memory.step.get()),
                                memory.rail_slots.get(),
                                memory.rail_counts.get(),
                                pairs > 0 ? memory.rail_counts.get() + pairs : nullptr,
                                memory.stream_slots.get(),
                                memory.stream_received.get(),
                                memory.dropped.get()};
    return routing;
}

void Exchange::check() {
    require_open("check");
    guard_->check();
}

void Exchange::synchronize(cudaStream_t stream) {
    require_open("synchronize");
    const auto limit_ns = core_->host_limit_ns;
    if (left_behind_) after_.make_wait(stream);
    if (comm_stream_ != nullptr)
        wait_stream(comm_stream_, limit_ns, "Exchange::synchronize", rank());
    wait_stream(stream, limit_ns, "Exchange::synchronize", rank());
    activity_.drained(stream);
    check();
    core_->communicator->check_async_error();
}

Health Exchange::health() const {
    if (guard_) guard_->fetch_events();
    Health health = guard_ ? guard_->health() : last_health_;
    if (!open_ || !core_->communicator->is_open()) health.state = HealthState::closed;
    return health;
}

void Exchange::leave_rails() {
    if (!plan_.rail.active()) return;
    const Plan direct = *plan_.fallback;
    const PeerHandles peers = args_.peers;  // the words stay where they are
    plan_ = direct;
    args_ = plan_.exchange_args();
    args_.peers = peers;
    oldest_generation_ = generation_ + 1;
    if (core_->live_ranks.front() == rank()) {
        log(LogLevel::warn, rank(), "the Exchange goes on in mode {}: {}", name_of(plan_.mode),
            plan_.mode_reason);
    }
}

GroupReport Exchange::recover() {
    require_open("recover");
    core_->agree_on_call(call_text("recover"));
    GroupReport report = recover_this();
    core_->settle_leftovers();
    return report;
}

void Exchange::refuse_recover(const Error& fault) {
    require_open("recover");
    core_->agree_on_call(call_text("recover"), std::make_exception_ptr(fault));
    throw Error(fault);
}

std::string Exchange::call_text(const char* call) const {
    return fmt::format("{}() of Exchange {}", call, number_);
}

GroupReport Exchange::recover_this() {
    const DeviceGuard device(core_->communicator->device(), rank());
    StepPosition position;
    GroupReport report = guard_->recover(captured_parity_, &position);
    dispatch_epoch_ = position.dispatch;
    combine_epoch_ = position.combine;
    captured_dispatches_ = 0;
    captured_combines_ = 0;
    ++generation_;
    ++stats_.recoveries;
    if (!report.cause.empty() && core_->live_ranks.front() == rank()) {
        log(LogLevel::info, rank(), "recovered; the next dispatch is number {}",
            dispatch_epoch_ + 1);
    }
    return report;
}

StepTraffic Exchange::traffic(const Routing& routing) const {
    check_routing("traffic", routing);
    const RoutingMemory& memory = routing.memory_->routing;
    std::vector<std::int32_t> counts(memory.counts.count());
    memory.counts.download(counts);
    std::vector<std::int32_t> rail(memory.rail_counts.count());
    std::vector<SlotRef> slots(memory.rail_slots.count());
    if (!rail.empty()) {
        memory.rail_counts.download(rail);
        memory.rail_slots.download(slots);
    }
    const std::span<const std::int32_t> pairs(rail);
    return compute_traffic(plan_, counts,
                           {pairs.subspan(rail.size() / 2), pairs.first(rail.size() / 2), slots});
}

std::vector<RingCounters> Exchange::ring_counters() const {
    require_open("ring_counters");
    return read_ring_counters(args_);
}

void Exchange::end() noexcept {
    try {
        last_health_ = guard_->health();
        last_health_.state = HealthState::closed;
    } catch (const std::exception&) {
        // Without memory for texts there is no report.
    }
    guard_->unlist();
    open_ = false;
    std::erase(core_->open_exchanges, this);
}

void Exchange::abort() noexcept {
    if (!open_) return;
    end();
    const bool counted = core_->busy() || busy();
    if (counted) ++core_->leftover_count;
    leftovers_->counted = counted;
    leftovers_->core = core_;
    leftovers_->exchange_number = number_;
    leftovers_->device_comm = std::move(device_comm_);
    leftovers_->window = std::move(window_);
    leftovers_->guard = std::move(guard_);
    leftovers_->tensors = std::move(tensors_);
    leftovers_->before = std::move(before_);
    leftovers_->after = std::move(after_);
    keep_leftovers(std::move(leftovers_));
}

void Exchange::close() {
    if (!open_) return;
    if (!core_->communicator->is_open()) {
        abort();  // this rank has given up: it waits for nobody
        return;
    }
    core_->agree_on_call(call_text("close"));
    const DeviceGuard guard(core_->communicator->device(), rank());
    core_->wait_for_all("the end of the Exchange");
    if (plan_.stream.active() && plan_.rail.active()) {
        // Nobody waits for the credits of the last rows, which may be on their way.
        (void)guard_->drain();
    } else {
        guard_->settle();
    }
    guard_->fetch_events();
    end();
    // Here, not in the destructor: CUDA waits for the device when memory is freed.
    window_.reset();
    device_comm_.reset();
    guard_.reset();
    tensors_ = {};
}

}  // namespace gimlet

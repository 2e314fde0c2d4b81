// SPDX-License-Identifier: Apache-2.0
#include "runtime/runtime.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "device/kernels/launch.hpp"
#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/base/version.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/pointer.hpp"
#include "host/cuda/poll.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"

namespace gimlet {
namespace {

constexpr std::uint64_t kNsPerMs = 1000000;
constexpr std::uint64_t kHostGraceNs = 10000 * kNsPerMs;

std::string bytes_of(const std::vector<std::uint64_t>& numbers) {
    return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(std::uint64_t)};
}

std::vector<std::uint64_t> numbers_of(const std::string& bytes) {
    std::vector<std::uint64_t> out(bytes.size() / sizeof(std::uint64_t));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(std::uint64_t));
    return out;
}

std::uint64_t chosen_deadline_ns(const RuntimeConfig& config) {
    if (config.deadline_ns) return *config.deadline_ns;
    return static_cast<std::uint64_t>(env_int(EnvVar::timeout_ms)) * kNsPerMs;
}

void check_own(const RuntimeConfig& config, int rank) {
    const int contexts = config.barrier_gin_context_count;
    if (contexts >= 1 && contexts <= kMaxGinContexts) return;
    raise(ErrorCode::invalid_argument, rank, "barrier_gin_context_count is {}; it must be 1..{}",
          contexts, kMaxGinContexts);
}

/// Collective. The config that all ranks have read, with its deadline.
RuntimeConfig agree_on_config(Bootstrap& bootstrap, const std::function<RuntimeConfig()>& read) {
    RuntimeConfig config;
    const std::exception_ptr failure = failure_of([&] {
        config = read();
        config.deadline_ns = chosen_deadline_ns(config);
        check_own(config, bootstrap.rank());
        (void)free_ownerless_leftovers(bootstrap.rank());
    });
    check_agreement(
        bootstrap, "runtime config",
        {{"deadline_ns (or GIMLET_TIMEOUT_MS)", std::to_string(config.deadline_ns.value_or(0))},
         {"barrier_gin_context_count", std::to_string(config.barrier_gin_context_count)},
         {"first_step", std::to_string(config.first_step)},
         {"event_ring", config.event_ring == RuntimeConfig::EventRing::on ? "on" : "off"}},
        failure);
    return config;
}

/// Collective. The barrier's window holds a workspace and nothing else.
void set_up_barrier(RuntimeCore* core, const RuntimeConfig& config) {
    const Topology& topology = core->topology;
    const bool gin = topology.lsa_size < topology.size;
    if (gin && topology.gin_type == GinType::none) {
        raise(ErrorCode::gin_unavailable, topology.rank,
              "{} of {} ranks are outside this rank's LSA team of {} and need GIN, but NCCL offers "
              "none that reaches "
              "all ranks; `gimlet doctor` says why",
              topology.size - topology.lsa_size, topology.size, topology.lsa_size);
    }
    DeviceCommRequest request;
    request.gin_connection = topology.connection_needed();
    if (gin) {
        request.gin_context_count = config.barrier_gin_context_count;
        request.gin_signal_count = static_cast<int>(SignalMap{topology.size}.signal_count());
    }
    core->barrier_device_comm = DeviceCommunicator::create(*core->communicator, request);
    const int made =
        gin ? std::min(request.gin_context_count, core->barrier_device_comm->gin_context_count())
            : 0;
    const auto all = core->bootstrap->all_gather_values(made);
    const WorkspaceShape shape =
        WorkspaceShape::for_barriers(topology.size, *std::min_element(all.begin(), all.end()));
    WindowLayout layout;
    layout.add("workspace", WorkspaceLayout::build(shape).total_bytes, kRegionAlignment);
    core->barrier_window = SymmetricWindow::create(*core->communicator, layout);

    const std::exception_ptr failure = failure_of([&] {
        core->side_stream = Stream::create(topology.rank);
        core->group_records =
            MappedBuffer<DeviceError>(static_cast<std::size_t>(topology.size), topology.rank);
        core->barrier_guard = std::make_shared<StepGuard>(*core, "the barrier of the Runtime", 1);
        cuda_check(prepare_kernels(), "prepare_kernels", topology.rank);
        core->barrier_args.peers =
            make_peer_handles(topology, *core->barrier_device_comm, *core->barrier_window, shape,
                              core->deadline_ns, core->barrier_guard->device_record());
    });
    check_all_succeeded(*core->bootstrap, "the set-up of the barrier", failure);
    const std::uint64_t start = core->first_step;
    core->barrier_guard->give_ring(&core->barrier_args.peers);
    core->barrier_guard->arm(core->barrier_args.peers, *core->barrier_window,
                             {start, start, start});
    core->barrier_shape = KernelShape{};
    core->barrier_shape.block_count = 1;
    core->barrier_shape.thread_count =
        std::clamp((topology.size + kWarpSize - 1) / kWarpSize * kWarpSize, 32, 512);
}

}  // namespace

std::uint64_t host_deadline_ns(std::uint64_t device_deadline_ns) noexcept {
    constexpr std::uint64_t kForEver = ~std::uint64_t{0} / 4;
    if (device_deadline_ns == 0 || device_deadline_ns > kForEver / 4) return kForEver;
    // A step waits in sequence for counts and for rows.
    return 3 * device_deadline_ns + kHostGraceNs;
}

PeerHandles make_peer_handles(const Topology& topology, const DeviceCommunicator& device_comm,
                              const SymmetricWindow& window, const WorkspaceShape& shape,
                              std::uint64_t deadline_ns, DeviceError* error) {
    PeerHandles peers{};
    peers.dev_comm = device_comm.get();
    peers.window = window.handle();
    peers.local = static_cast<std::byte*>(window.local_flat());
    peers.rank = topology.rank;
    peers.rank_count = topology.size;
    peers.lsa_rank = topology.lsa_rank;
    peers.lsa_size = topology.lsa_size;
    peers.gin_context_count = shape.gin_context_count;
    peers.deadline_ns = deadline_ns;
    peers.error = error;
    peers.shape = shape;
    peers.layout = WorkspaceLayout::build(shape);
    for (int lsa_rank = 0; lsa_rank < topology.lsa_size && topology.lsa_size <= kLsaTableSize;
         ++lsa_rank) {
        const int peer = topology.rank - topology.lsa_rank + lsa_rank;
        peers.lsa_bases[lsa_rank] = static_cast<std::byte*>(window.peer(peer));
    }
    return peers;
}

void RuntimeCore::wait_for_all(const char* what) {
    check_all_succeeded(*bootstrap, what, failure_of([&] {
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", rank());
        note_idle();
    }));
    settle_leftovers();
}

void RuntimeCore::agree_on_call(const std::string& call, const std::exception_ptr& failure,
                                std::vector<AgreementField> fields) {
    fields.insert(fields.begin(), {"the call", call});
    check_agreement(*bootstrap, call, fields, failure,
                    "make the same call on every rank; an Exchange that has been aborted on one "
                    "rank must be aborted on all");
}

std::vector<AgreementField> RuntimeCore::fields_of_open_exchanges() const {
    std::vector<int> numbers;
    for (const Exchange* exchange : open_exchanges)
        numbers.push_back(static_cast<int>(exchange->number()));
    return {
        {"open Exchanges, numbered by creation", numbers.empty() ? "none" : format_ranks(numbers)}};
}

void RuntimeCore::free_leftovers() const {
    const DeviceGuard guard(communicator->device(), rank());
    (void)gimlet::free_leftovers(device.uuid, this, rank());
}

void RuntimeCore::settle_leftovers() {
    free_leftovers();
    const std::vector<std::uint64_t> mine = reachable_leftovers(*this);
    const auto counts = bootstrap->all_gather_values<std::uint64_t>(mine.size());
    if (std::all_of(counts.begin(), counts.end(), [](std::uint64_t n) { return n == 0; })) return;
    std::vector<std::uint64_t> open;
    for (const Exchange* exchange : open_exchanges) open.push_back(exchange->number());
    const auto all_left = bootstrap->all_gather_texts(bytes_of(mine));
    const auto all_open = bootstrap->all_gather_texts(bytes_of(open));
    std::map<std::uint64_t, int> holders;
    for (const std::string& one : all_left)
        for (const std::uint64_t number : numbers_of(one)) ++holders[number];
    for (const std::string& one : all_open)
        for (const std::uint64_t number : numbers_of(one)) holders.erase(number);
    const DeviceGuard guard(communicator->device(), rank());
    for (const auto& [number, count] : holders) {
        std::unique_ptr<Leftovers> here = take_leftovers(*this, number);
        // Where it has been closed instead, all ranks have waited for what was on its way.
        const bool fence = count == bootstrap->size();
        if (fence && !here->guard->drain()) keep_leftovers(std::move(here));
    }
}

bool RuntimeCore::busy() const noexcept {
    return side_stream_stuck || barrier_captured || barrier_activity.busy() ||
           leftover_count.load() > 0 ||
           std::any_of(open_exchanges.begin(), open_exchanges.end(),
                       [](const Exchange* exchange) { return exchange->busy(); });
}

void RuntimeCore::note_idle() noexcept {
    side_stream_stuck = false;
    barrier_activity.device_idle();
    for (Exchange* exchange : open_exchanges) exchange->note_idle();
}

std::vector<int> RuntimeCore::excluded_ranks() const {
    std::vector<int> out;
    auto live = live_ranks.begin();
    for (int rank = 0; rank < topology.size; ++rank) {
        if (live != live_ranks.end() && *live == rank) {
            ++live;
        } else {
            out.push_back(rank);
        }
    }
    return out;
}

void RuntimeCore::require_open(const char* what) const {
    if (communicator == nullptr || !communicator->is_open()) {
        raise(ErrorCode::closed, rank(), "{}: the runtime is closed", what);
    }
}

void RuntimeCore::allow_for(std::uint64_t deadline_ns) noexcept {
    host_limit_ns = std::max(host_limit_ns, host_deadline_ns(deadline_ns));
}

void RuntimeCore::use_deadline(std::optional<std::uint64_t> deadline_ns,
                               PeerHandles* peers) noexcept {
    if (!deadline_ns) return;
    peers->deadline_ns = *deadline_ns;
    allow_for(*deadline_ns);
}

void RuntimeCore::wait_for_side_stream(std::uint64_t limit_ns, const char* what) {
    side_stream_stuck = true;
    wait_stream(side_stream.get(), limit_ns, what, rank());
    side_stream_stuck = false;
}

void RuntimeCore::release_barrier() {
    if (barrier_window != nullptr) barrier_window->close();
    if (barrier_device_comm != nullptr) barrier_device_comm->close();
    barrier_guard.reset();
    group_records = {};
}

Runtime::Runtime(std::shared_ptr<RuntimeCore> core)
    : core_(std::move(core)), leftovers_(std::make_unique<Leftovers>()) {}

std::unique_ptr<Runtime> Runtime::create(std::shared_ptr<Bootstrap> bootstrap,
                                         const RuntimeConfig& config) {
    return create_from(std::move(bootstrap), [&] { return config; });
}

std::unique_ptr<Runtime> Runtime::create_from(std::shared_ptr<Bootstrap> bootstrap,
                                              const std::function<RuntimeConfig()>& read) {
    if (bootstrap == nullptr)
        raise(ErrorCode::invalid_argument, kNoRank, "Runtime::create: the bootstrap is null");
    auto core = std::make_shared<RuntimeCore>();
    const RuntimeConfig config = agree_on_config(*bootstrap, read);
    core->bootstrap = bootstrap;
    core->communicator = Communicator::create(bootstrap, config.communicator);
    return finish(std::move(core), config);
}

std::unique_ptr<Runtime> Runtime::adopt(ncclComm_t comm, std::shared_ptr<Bootstrap> bootstrap,
                                        const RuntimeConfig& config) {
    return adopt_from(comm, std::move(bootstrap), [&] { return config; });
}

std::unique_ptr<Runtime> Runtime::adopt_from(ncclComm_t comm, std::shared_ptr<Bootstrap> bootstrap,
                                             const std::function<RuntimeConfig()>& read) {
    if (bootstrap == nullptr)
        raise(ErrorCode::invalid_argument, kNoRank, "Runtime::adopt: the bootstrap is null");
    auto core = std::make_shared<RuntimeCore>();
    const RuntimeConfig config = agree_on_config(*bootstrap, read);
    core->bootstrap = bootstrap;
    core->communicator = Communicator::adopt(comm, bootstrap);
    return finish(std::move(core), config);
}

std::unique_ptr<Runtime> Runtime::finish(std::shared_ptr<RuntimeCore> core,
                                         const RuntimeConfig& config) {
    core->deadline_ns = *config.deadline_ns;
    core->allow_for(core->deadline_ns);
    core->first_step = config.first_step;
    core->event_ring = config.event_ring;
    try {
        core->topology = query_topology(*core->communicator);
        core->live_ranks.resize(static_cast<std::size_t>(core->topology.size));
        std::iota(core->live_ranks.begin(), core->live_ranks.end(), 0);
        const std::exception_ptr failure = failure_of([&] {
            core->device = query_device_info(core->communicator->device(), core->rank());
            if (const std::string fault = device_fault(core->device); !fault.empty())
                raise_text(ErrorCode::not_supported, core->rank(), fault);
        });
        check_all_succeeded(*core->bootstrap, "the query of the device", failure);
        // Nothing is sliced on the stand-in for a GPU.
        const std::string warning = time_slicing_warning(core->topology);
        if (!warning.empty() && std::string_view(backend_name()) != "emulator")
            log(LogLevel::warn, core->rank(), "{}", warning);
        set_up_barrier(core.get(), config);
    } catch (...) {
        // All ranks are here (every step above fails on all or on none), so the collective close is
        // safe.
        core->release_barrier();
        try {
            core->communicator->close();
        } catch (const Error&) {
            core->communicator->abort();
        }
        throw;
    }
    return std::unique_ptr<Runtime>(new Runtime(std::move(core)));
}

Runtime::~Runtime() {
    if (core_ == nullptr || core_->communicator == nullptr || !core_->communicator->is_open())
        return;
    log(LogLevel::warn, rank(),
        "a Runtime was destroyed without close(); its communicator is aborted");
    abort();
}

int Runtime::rank() const noexcept {
    return core_->topology.rank;
}
int Runtime::size() const noexcept {
    return core_->topology.size;
}
Bootstrap& Runtime::bootstrap() const {
    return *core_->bootstrap;
}
Communicator& Runtime::communicator() const {
    return *core_->communicator;
}
const Topology& Runtime::topology() const noexcept {
    return core_->topology;
}
const DeviceInfo& Runtime::device() const noexcept {
    return core_->device;
}
std::uint64_t Runtime::deadline_ns() const noexcept {
    return core_->deadline_ns;
}
std::uint64_t Runtime::barrier_count() const noexcept {
    return core_->barrier_count;
}

std::unique_ptr<Exchange> Runtime::create_exchange(const MoeConfig& config) {
    return Exchange::create(*this, config);
}

std::unique_ptr<Exchange> Runtime::create_exchange_from(const std::function<MoeConfig()>& read) {
    return Exchange::create_from(*this, read);
}

void Runtime::require_open() const {
    core_->require_open("Runtime");
    core_->barrier_guard->check();
}

void Runtime::barrier(cudaStream_t stream, std::int32_t repeat_count,
                      std::optional<std::uint64_t> deadline_ns) {
    require_open();
    try {
        if (repeat_count < 1) {
            raise(ErrorCode::invalid_argument, rank(),
                  "barrier: repeat_count is {}; it must be at least 1", repeat_count);
        }
        check_current_device(core_->device.device, "barrier", rank());
    } catch (const Error& fault) {
        refuse_barrier(fault, stream);
    }
    BarrierArgs args = core_->barrier_args;
    args.repeat_count = repeat_count;
    core_->use_deadline(deadline_ns, &args.peers);
    if (stream_is_capturing(stream, rank())) core_->barrier_captured = true;
    core_->barrier_activity.note(stream);
    cuda_check(launch_barrier(args, core_->barrier_shape, stream), "launch_barrier", rank());
    core_->barrier_count += static_cast<std::uint64_t>(repeat_count);
}

// The other ranks may be in the barrier: a kernel tells them. A capture is left as it was.
void Runtime::refuse_barrier(const Error& fault, cudaStream_t stream) {
    if (stream_is_capturing(stream, rank())) throw Error(fault);
    const bool elsewhere = current_device() != core_->device.device;
    const DeviceGuard guard(core_->device.device, rank());
    // `stream` may be of the other device: behind the steps before there is room on ours.
    if (elsewhere) {
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", rank());
        stream = core_->side_stream.get();
    }
    BarrierArgs args = core_->barrier_args;
    args.repeat_count = 1;
    args.refuse = 1;
    core_->barrier_activity.note(stream);
    cuda_check(launch_barrier(args, core_->barrier_shape, stream), "launch_barrier", rank());
    core_->barrier_guard->fail(fault.code(), fault.message());
}

void Runtime::synchronize(cudaStream_t stream) {
    core_->require_open("Runtime::synchronize");
    wait_stream(stream, core_->host_limit_ns, "Runtime::synchronize", rank());
    core_->barrier_activity.drained(stream);
    require_open();
    core_->communicator->check_async_error();
}

Health Runtime::health() const {
    const auto& guard = core_->barrier_guard;
    if (guard) guard->fetch_events();
    Health health = guard ? guard->health() : last_health_;
    if (!core_->communicator->is_open()) health.state = HealthState::closed;
    return health;
}

void Runtime::keep_health() noexcept {
    try {
        if (core_->barrier_guard) last_health_ = core_->barrier_guard->health();
    } catch (const std::exception&) {
        // Without memory for texts there is no report.
    }
}

GroupReport Runtime::recover() {
    core_->require_open("Runtime::recover");
    core_->agree_on_call("Runtime::recover", nullptr, core_->fields_of_open_exchanges());
    return recover_all();
}

void Runtime::refuse_recover(const Error& fault) {
    core_->require_open("Runtime::recover");
    core_->agree_on_call("Runtime::recover", std::make_exception_ptr(fault));
    throw Error(fault);
}

GroupReport Runtime::recover_all() {
    const DeviceGuard guard(core_->communicator->device(), rank());
    StepPosition position;
    GroupReport report = core_->barrier_guard->recover({}, &position);
    for (Exchange* exchange : core_->open_exchanges) {
        GroupReport next = exchange->recover_this();
        if (report.cause.empty()) report = std::move(next);
    }
    core_->settle_leftovers();
    return report;
}

const std::vector<int>& Runtime::live_ranks() const noexcept {
    return core_->live_ranks;
}

void Runtime::check_excludable(std::span<const int> ranks) const {
    for (const int out : ranks) {
        if (out >= 0 && out < size() && out != rank()) continue;
        raise(ErrorCode::invalid_argument, rank(),
              "exclude: rank {} cannot be excluded; it must be 0..{} and not this rank", out,
              size() - 1);
    }
}

void Runtime::check_exclusion(const std::vector<int>& left, const Bootstrap* survivors) const {
    for (const Exchange* exchange : core_->open_exchanges) {
        const Plan& plan = exchange->plan();
        if (!plan.rail.active() || plan.fallback != nullptr) continue;
        raise(ErrorCode::not_supported, rank(),
              "exclude: a hybrid Exchange is open, whose rows travel over other ranks, and direct "
              "mode cannot take its place ({}); abort() it first",
              plan.fallback_reason);
    }
    if (survivors == nullptr) return;
    const auto me = std::find(left.begin(), left.end(), rank()) - left.begin();
    if (survivors->size() == static_cast<int>(left.size()) && survivors->rank() == me) return;
    raise(ErrorCode::invalid_argument, rank(),
          "exclude: the survivors' bootstrap says rank {} of {}, ranks {} are left and this is "
          "number {} of them",
          survivors->rank(), survivors->size(), format_ranks(left), me);
}

/// Collective over the ranks that are left: they mean the same ones, and none of them refuses.
/// Returns the Runtime's own bootstrap of them; null if it cannot make one.
std::unique_ptr<Bootstrap> Runtime::meet_survivors(const std::vector<int>& left,
                                                   Bootstrap* given) const {
    const auto failure = failure_of([&] {
        check_exclusion(left, given);
        if (given != nullptr) given->name_ranks(left);
    });
    std::vector<int> members;  // by their rank in the present bootstrap
    for (std::size_t i = 0; i < core_->live_ranks.size(); ++i) {
        if (std::binary_search(left.begin(), left.end(), core_->live_ranks[i]))
            members.push_back(static_cast<int>(i));
    }
    std::unique_ptr<Bootstrap> own;
    try {
        own = core_->bootstrap->survivors(members);
        own->name_ranks(left);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::not_supported) throw;
        // Nobody can be asked: `given` may be of other ranks.
        if (failure) std::rethrow_exception(failure);
        if (given == nullptr && left.size() < core_->live_ranks.size()) throw;
    }
    Bootstrap& group = own ? *own : given ? *given : *core_->bootstrap;
    std::vector<AgreementField> fields = core_->fields_of_open_exchanges();
    fields.push_back({"ranks that are left", format_ranks(left)});
    fields.push_back({"a bootstrap of the survivors is passed", given ? "yes" : "no"});
    check_agreement(group, "Runtime::exclude", fields, failure,
                    "pass the same on every rank; an Exchange that has been aborted on one rank "
                    "must be aborted on all");
    return own;
}

GroupReport Runtime::exclude(std::span<const int> ranks, std::shared_ptr<Bootstrap> survivors) {
    core_->require_open("Runtime::exclude");
    try {
        check_excludable(ranks);
    } catch (const Error& fault) {
        refuse_exclude(fault);
    }
    std::vector<int> left;
    for (const int world : core_->live_ranks) {
        if (std::find(ranks.begin(), ranks.end(), world) == ranks.end()) left.push_back(world);
    }
    const bool nobody = left.size() == core_->live_ranks.size();
    if (nobody) survivors = nullptr;
    std::shared_ptr<Bootstrap> own = meet_survivors(left, survivors.get());
    if (nobody) return recover_all();
    if (survivors && own) {
        // It has the right size; now it shows that it is of the right ranks.
        check_agreement(*survivors, "Runtime::exclude",
                        {{"ranks that are left", format_ranks(left)}});
    }
    core_->bootstrap = survivors ? std::move(survivors) : std::move(own);
    core_->live_ranks = std::move(left);
    log(LogLevel::warn, rank(), "ranks {} are excluded", format_ranks(core_->excluded_ranks()));
    for (Exchange* exchange : core_->open_exchanges) exchange->leave_rails();
    return recover_all();
}

void Runtime::refuse_exclude(const Error& fault) {
    core_->require_open("Runtime::exclude");
    (void)core_->bootstrap->refuse_survivors(
        fmt::format("{}: {}", error_code_name(fault.code()), fault.message()));
    throw Error(fault);
}

void Runtime::close() {
    if (!core_->communicator->is_open()) return;
    core_->agree_on_call("Runtime::close", failure_of([&] {
                             if (core_->open_exchanges.empty()) return;
                             raise(ErrorCode::invalid_usage, rank(),
                                   "Runtime::close: {} Exchange(s) are still open; close them "
                                   "first",
                                   core_->open_exchanges.size());
                         }));
    const DeviceGuard guard(core_->communicator->device(), rank());
    core_->wait_for_all("the end of the Runtime");
    core_->barrier_guard->settle();
    core_->barrier_guard->fetch_events();
    keep_health();
    try {
        core_->release_barrier();
        if (core_->excluded_ranks().empty()) core_->communicator->close();
    } catch (const Error& error) {
        // The barrier's memory is gone: nothing may use this Runtime any more.
        abort();
        raise(error.code(), rank(), "Runtime::close: {}; this rank's Runtime is aborted",
              error.message());
    }
    core_->communicator->abort();  // after exclude(): NCCL's own end needs every rank
    core_->free_leftovers();
}

void Runtime::abort() noexcept {
    if (core_->communicator == nullptr || !core_->communicator->is_open()) return;
    keep_health();
    if (core_->barrier_guard) core_->barrier_guard->unlist();
    // NCCL, or CUDA, would wait for kernels, or take their memory away below them.
    core_->communicator->begin_abort();
    leftovers_->core = core_;
    leftovers_->device_comm = std::move(core_->barrier_device_comm);
    leftovers_->window = std::move(core_->barrier_window);
    leftovers_->guard = std::move(core_->barrier_guard);
    leftovers_->group_records = std::move(core_->group_records);
    keep_leftovers(std::move(leftovers_));
}

int Runtime::reclaim() {
    const int device = current_device();
    return free_leftovers(query_device_info(device).uuid, nullptr, kNoRank);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/engine.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>

#include "host/emulator/bulk.hpp"
#include "host/emulator/core.hpp"
#include "host/emulator/live.hpp"
#include "host/emulator/memory.hpp"
#include "host/emulator/stream.hpp"

namespace gimlet::emu {
namespace {

constexpr uint64_t kStepNs = 2;
constexpr int kSliceMax = 64;  // fiber switches between two turns of the hub
// A crowd: so many threads that their stacks do not fit the caches. There a slice is longer and
// keeps to one block; between two slices workers move as much more often, and more so with many
// ranks, each of which has its own network card.
constexpr unsigned kCrowdThreads = 4096;
constexpr int kCrowdSlices = 32;
constexpr int kRanksAbreast = 8;
constexpr unsigned kThreadsAbreast = 1024;  // in a crowd: threads that share one step's time
constexpr int kRunToBlockPolls =
    24;  // polls of one fiber before run_to_block takes it for a spinning one
constexpr unsigned kYieldsAfterEnd = 100000;
constexpr int kSlowPicks = 16;  // choices that may fall on slow threads before one of them runs
constexpr uint64_t kQuietNsMax = 1ull
                                 << 44;  // about five hours: longer than any deadline worth testing
constexpr unsigned kExactJumps = 16;
constexpr uint64_t kLeapsOfRest = 16;  // at least, while a block rests (fault)
constexpr uint64_t kQuietRoundSteps = 32768;
constexpr uint64_t kQuietStepsMax = 4000000;

__attribute__((tls_model("initial-exec"))) __thread EngineCore* thread_core = nullptr;

std::terminate_handler previous_terminate = nullptr;

}  // namespace

Worker::~Worker() = default;

Rng::Rng(uint64_t seed) {
    for (uint64_t& word : state_) {
        seed += 0x9e3779b97f4a7c15ull;
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        word = z ^ (z >> 31);
    }
}

// ----------------------------------------------------------------------------------------------
// Engine

Engine& Engine::get() {
    if (thread_core != nullptr) return thread_core->engine();
    return live_core().engine();
}

void Engine::yield(const char* what) {
    if (core_.in_fiber() && thread_core == &core_) {
        core_.yield(what);
    } else if (thread_core != &core_) {
        std::this_thread::yield();
    }
}

void Engine::wait(const char* what, const std::function<bool()>& ready) {
    if (!core_.host_wait(what, ready)) core_.stop_fiber();
}

bool Engine::wait_unless_ended(const char* what, const std::function<bool()>& ready) noexcept {
    return core_.host_wait(what, ready);
}

void Engine::sleep_ns(uint64_t span_ns, const char* what) {
    if (thread_core == &core_) {
        core_.sleep_until(core_.now_ns() + span_ns, what);
    } else {
        std::this_thread::sleep_for(std::chrono::nanoseconds(span_ns));
    }
}

void Engine::progress() {
    core_.progress();
}

void Engine::locked(const std::function<void()>& body) {
    if (thread_core == &core_) {
        body();
        return;
    }
    LiveLock lock(core_);
    body();
}

Rng& Engine::rng() {
    return core_.rng;
}

uint64_t Engine::now_ns() const {
    return core_.now_ns();
}

void Engine::add_worker(std::shared_ptr<Worker> worker) {
    locked([&] { core_.workers.push_back(std::move(worker)); });
}

void Engine::remove_worker(Worker* worker) {
    locked([&] {
        std::erase_if(core_.workers, [&](const auto& held) { return held.get() == worker; });
    });
}

void Engine::refuse(const std::string& message) {
    const std::string text = "refused, because hardware leaves it undefined: " + message +
                             (thread_core == &core_ ? core_.place_text() : std::string());
    if (!core_.simulating) {
        std::fprintf(stderr, "gimlet emulator: %s\n", text.c_str());
        std::fflush(stderr);
        std::abort();
    }
    core_.fail(text);
    core_.stop_fiber();
}

void Engine::note_use(const void* thing) {
    if (thread_core != &core_ || !core_.in_fiber()) return;
    Task* const task = core_.current();
    if (task->kind != FiberKind::device) return;
    std::vector<const void*>& uses = static_cast<DeviceTask*>(task)->cta->kernel->uses;
    if (std::find(uses.begin(), uses.end(), thing) == uses.end()) uses.push_back(thing);
}

std::string Engine::user_of(const void* thing) const {
    for (const Device& device : core_.devices()) {
        for (const auto& kernel : device.kernels) {
            const auto& uses = kernel->uses;
            if (std::find(uses.begin(), uses.end(), thing) != uses.end()) {
                return kernel->launch->name + " on device " + std::to_string(kernel->device);
            }
        }
    }
    return {};
}

bool Engine::simulating() const {
    return core_.simulating;
}

void Engine::note_clock_read() {
    core_.note_clock_read();
}

void Engine::note_host_read(const void* address, size_t bytes) {
    if (Watch* const watching = watch()) watching->host_access(address, bytes, false);
}

void Engine::note_host_write(const void* address, size_t bytes) {
    if (Watch* const watching = watch()) watching->host_access(address, bytes, true);
}

int Engine::host_rank() const {
    if (!core_.simulating) return -1;
    if (const HostContext* host = core_.host_context()) return host->rank;
    if (const ThreadPlace* place = current_place()) return place->device;
    return -1;
}

const SimOptions& Engine::options() const {
    return core_.options;
}

void Engine::event(TraceEvent::Kind kind, int rank, int track, std::string text) {
    core_.event(kind, rank, track, std::move(text));
}

bool Engine::faults_armed() const {
    return core_.faults_armed();
}

int Engine::stopped_rank() const {
    return core_.stopped_rank();
}

bool in_simulation() {
    return thread_core != nullptr && thread_core->simulating;
}

const ThreadPlace* current_place() {
    if (thread_core == nullptr || !thread_core->in_fiber()) return nullptr;
    Task* task = thread_core->current();
    if (task->kind != FiberKind::device) return nullptr;
    return &static_cast<DeviceTask*>(task)->place;
}

// ----------------------------------------------------------------------------------------------
// EngineCore

EngineCore* EngineCore::of_this_thread() {
    return thread_core;
}

void EngineCore::set_for_this_thread(EngineCore* core) {
    thread_core = core;
    if (core == nullptr) return;
    fiber_adopt_thread(&core->hub_);
    core->hub_.kind = FiberKind::hub;
    // A fiber that is being ended may sit in a noexcept function (a destructor that synchronises).
    // The runtime then calls terminate; the fiber is left where it is instead.
    static const bool installed = [] {
        previous_terminate = std::set_terminate([] {
            EngineCore* const running = thread_core;
            if (running != nullptr && running->in_fiber() && running->ended()) {
                running->exit_fiber(running->current());
            }
            previous_terminate();
        });
        return true;
    }();
    (void)installed;
}

EngineCore::EngineCore(const SimOptions& options_in, int device_count, bool simulating_in)
    : options(options_in), simulating(simulating_in), rng(options_in.seed), engine_(*this) {
    hub_.kind = FiberKind::hub;
    devices_.resize(device_count);
    for (Device& device : devices_) device.sms.resize(options.sm_count);
    memory = std::make_unique<MemoryTable>(options.fill_fresh_memory);
    streams = std::make_unique<StreamTable>(*this);
    bulk = std::make_shared<BulkEngine>(*this);
    workers.push_back(bulk);
    if (!options.faults.wait_until_armed) plan_rest();
}

EngineCore::~EngineCore() {
    for (Device& device : devices_) {
        for (auto& kernel : device.kernels) {
            for (auto& cta : kernel->running) {
                for (DeviceTask& task : cta->threads) fiber_release(&task);
            }
        }
    }
    for (HostTask& host : hosts_) fiber_release(&host);
}

uint64_t EngineCore::now_ns() const {
    if (simulating) return (((steps_ - timed_steps_) * kStepNs) >> time_shift_) + jumped_ns_;
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::steady_clock::now().time_since_epoch())
                                     .count());
}

DeviceTask& EngineCore::current_device_task() {
    if (current_->kind != FiberKind::device) dev::no_thread();
    return *static_cast<DeviceTask*>(current_);
}

HostContext* EngineCore::host_context() {
    if (thread_core == this) {
        return current_->kind == FiberKind::host ? &static_cast<HostTask*>(current_)->host
                                                 : nullptr;
    }
    return simulating ? nullptr : live_host_context();
}

// ---- run list

namespace {

void flip_runnable(DeviceTask& task) {
    task.cta->runnable[task.place.thread / 64] ^= uint64_t{1} << (task.place.thread % 64);
}

}  // namespace

void EngineCore::insert(Task* task) {
    if (task->in_run_list || task->finished) return;
    task->in_run_list = true;
    task->run_index = static_cast<uint32_t>(run_.size());
    run_.push_back({task, task->priority_group});
    if (task->kind == FiberKind::device) flip_runnable(*static_cast<DeviceTask*>(task));
}

void EngineCore::remove(Task* task) {
    if (!task->in_run_list) return;
    task->in_run_list = false;
    const Runnable last = run_.back();
    run_[task->run_index] = last;
    last.task->run_index = task->run_index;
    run_.pop_back();
    if (task->kind == FiberKind::device) flip_runnable(*static_cast<DeviceTask*>(task));
}

void EngineCore::put_to_sleep(Task* task, uint64_t wake_ns) {
    asleep_.push_back({wake_ns, task->id, task});
    std::push_heap(asleep_.begin(), asleep_.end(), Sleeper::wakes_later);
}

bool EngineCore::allowed_to_run(const Task* task) const {
    if (stopped_rank_ < 0) return true;
    if (task->kind == FiberKind::host) {
        return static_cast<const HostTask*>(task)->host.rank != stopped_rank_;
    }
    return static_cast<const DeviceTask*>(task)->place.device != stopped_rank_;
}

uint64_t EngineCore::priority_of(const Runnable& entry) const {
    uint64_t x = (entry.priority_group + priority_epoch_ * 0x9e3779b97f4a7c15ull) ^ options.seed;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
    return x ^ (x >> 29);
}

bool EngineCore::is_slow(const Task* task) const {
    const FaultPlan& faults = options.faults;
    if (task->kind == FiberKind::host) {
        return faults.slow_block < 0 &&
               static_cast<const HostTask*>(task)->host.rank == faults.slow_rank;
    }
    const ThreadPlace& place = static_cast<const DeviceTask*>(task)->place;
    return place.device == faults.slow_rank &&
           (faults.slow_block < 0 || place.block == static_cast<unsigned>(faults.slow_block));
}

void EngineCore::arm_faults() {
    armed_ = true;
    armed_at_step_ = steps_;
    plan_rest();
}

void EngineCore::plan_rest() {
    const FaultPlan& faults = options.faults;
    if (faults.rest_rank < 0) return;
    rest_begins_ns_ = now_ns() + faults.rest_from_ns;
    rest_ends_ns_ = rest_begins_ns_ + faults.rest_ns;
}

// Whether the task's block stands still now.
bool EngineCore::rests(const Task* task) {
    const uint64_t now = now_ns();
    if (now >= rest_ends_ns_) rest_ends_ns_ = 0;
    if (rest_ends_ns_ == 0 || now < rest_begins_ns_ || task->kind != FiberKind::device)
        return false;
    const ThreadPlace& place = static_cast<const DeviceTask*>(task)->place;
    return place.device == options.faults.rest_rank && place.block == options.faults.rest_block &&
           !choosing();
}

Task* EngineCore::pick() {
    Task* chosen = pick_any();
    if (options.faults.slow_rank < 0) return chosen;
    for (int i = 0; i < kSlowPicks && is_slow(chosen); ++i) {
        if (rng.below(options.faults.slow_factor) == 0) break;
        chosen = pick_any();
    }
    return chosen;
}

Task* EngineCore::pick_any() {
    if (crowded_) [[unlikely]] {
        return pick_near();
    }
    return pick_far();
}

Task* EngineCore::pick_far() {
    const size_t count = run_.size();
    Runnable chosen = run_[rng.below(count)];
    if (options.schedule != Schedule::priority) return chosen.task;
    if (steps_ >= priority_epoch_ends_) {
        ++priority_epoch_;
        priority_epoch_ends_ = steps_ + 64 + rng.below(8 * count + 64);
    }
    // A tournament of four; every fourth choice is plain, so that nobody starves.
    if (rng.below(4) == 0) return chosen.task;
    for (int i = 0; i < 3; ++i) {
        const Runnable other = run_[rng.below(count)];
        if (priority_of(other) > priority_of(chosen)) chosen = other;
    }
    return chosen.task;
}

// Another thread of the block that the slice keeps to, or of another block when nobody there can
// go on.
Task* EngineCore::pick_near() {
    constexpr unsigned kBits = 64;
    if (near_cta_ != nullptr) {
        const std::vector<uint64_t>& words = near_cta_->runnable;
        const auto first = static_cast<unsigned>(rng.below(near_cta_->threads.size()));
        uint64_t left = words[first / kBits] >> (first % kBits) << (first % kBits);
        for (size_t i = first / kBits, looked = 0; looked <= words.size(); ++looked) {
            if (left != 0) {
                const size_t index = i * kBits + static_cast<size_t>(std::countr_zero(left));
                Task* const chosen = &near_cta_->threads[index];
                // The only one there has just polled in vain, perhaps.
                if (chosen == current_) break;
                return chosen;
            }
            i = i + 1 < words.size() ? i + 1 : 0;
            left = words[i];
        }
    }
    Task* const chosen = pick_far();
    near_cta_ = chosen->kind == FiberKind::device ? static_cast<DeviceTask*>(chosen)->cta : nullptr;
    return chosen;
}

// ---- switching

void EngineCore::switch_to(Task* next) {
    Task* const self = current_;
    if (next == self) return;
    ++switches_;
    trace(next->id);
    current_ = next;
    if (next->kind == FiberKind::device) {
        DeviceTask* const task = static_cast<DeviceTask*>(next);
        dev::running_thread = &task->thread;
        threadIdx = task->thread.thread_index;
        if (task->cta != loaded_cta_) load_cta(task->cta);
    } else {
        dev::running_thread = nullptr;
    }
    fiber_switch(self, next);
}

void EngineCore::check_ended(Task* self) {
    if (!ended()) return;
    if (++self->yields_after_end > kYieldsAfterEnd) exit_fiber(self);
    if (std::uncaught_exceptions() == 0) throw RunEnded{};
}

void EngineCore::yield(const char* what) {
    UnseenScope unseen;
    Task* const self = current_;
    if (self == &hub_) return;
    if (ended()) {
        check_ended(self);
        return;
    }
    if (rest_ends_ns_ > 0 && rests(self)) [[unlikely]]
        return sleep_until(rest_ends_ns_, "resting block (fault)");
    ++steps_;
    self->what = what;
    if (options.schedule == Schedule::run_to_block && budget_ > 0 && --spin_budget_ > 0) return;
    // One that spins alone (a flush does not sleep) waits for the workers. They get a turn now, or
    // a slice of it would be longer, in virtual time, than a deadline.
    const bool spins_alone = options.schedule == Schedule::run_to_block && run_.size() == 1;
    spin_budget_ = kRunToBlockPolls;
    if (--budget_ <= 0 || spins_alone) {
        switch_to(&hub_);
    } else {
        switch_to(pick());
    }
    check_ended(self);
}

void EngineCore::block(const char* what) {
    UnseenScope unseen;
    Task* const self = current_;
    if (ended()) {
        check_ended(self);
        return;
    }
    ++steps_;
    self->what = what;
    remove(self);
    if (--budget_ <= 0 || run_.empty()) {
        switch_to(&hub_);
    } else {
        switch_to(pick());
    }
    check_ended(self);
}

void EngineCore::wake(Task* task) {
    UnseenScope unseen;
    if (!allowed_to_run(task)) return;
    insert(task);
    weak_progress();
}

void EngineCore::sleep_until(uint64_t when_ns, const char* what) {
    UnseenScope unseen;
    Task* const self = current_;
    if (self == &hub_) return;
    if (ended()) {
        check_ended(self);
        return;
    }
    if (choosing() && self->kind == FiberKind::device) return yield(what);
    ++steps_;
    self->what = what;
    remove(self);
    put_to_sleep(self, when_ns);
    if (--budget_ <= 0 || run_.empty()) {
        switch_to(&hub_);
    } else {
        switch_to(pick());
    }
    check_ended(self);
}

bool EngineCore::host_wait(const char* what, const std::function<bool()>& ready) {
    UnseenScope unseen;
    if (thread_core != this) return live_host_wait(*this, what, ready);
    if (!in_fiber()) return ready();
    if (ended()) return false;
    Task* const self = current_;
    if (self->kind == FiberKind::device) {
        while (!ready()) {
            yield(what);
            if (ended()) return false;
        }
        return true;
    }
    HostTask* const host = static_cast<HostTask*>(self);
    if (ready()) return true;
    host->unwinding = std::uncaught_exceptions() > 0;
    if (!host->unwinding) host->give_up = false;
    if (host->give_up) return false;
    host->ready = &ready;
    host->what = what;
    host_waits_.push_back(host);
    remove(host);
    switch_to(&hub_);
    host->ready = nullptr;
    host->unwinding = false;
    std::erase(host_waits_, host);
    return !ended() && !host->give_up;
}

// ---- fibers' first and last steps

struct FiberMain {
    static void device(Fiber* fiber) {
        DeviceTask& task = *static_cast<DeviceTask*>(static_cast<Task*>(fiber));
        EngineCore& core = *thread_core;
        const void* const token = &core.devices_[task.place.device];
        happens_after(token);
        try {
            if (!core.ended()) task.cta->kernel->launch->call();
            if (!core.ended()) core.thread_finished(task);
        } catch (const RunEnded&) {
        } catch (...) {
            core.fail_with(std::current_exception());
        }
        happens_before(token);
        if (Watch* const watching = watch()) watching->thread_ends(token);
        core.exit_fiber(&task);
    }

    static void host(Fiber* fiber) {
        HostTask& task = *static_cast<HostTask*>(static_cast<Task*>(fiber));
        EngineCore& core = *thread_core;
        happens_after(&core);
        try {
            if (!core.ended()) task.program();
        } catch (const RunEnded&) {
        } catch (...) {
            core.fail_with(std::current_exception());
        }
        happens_before(&core);
        core.exit_fiber(&task);
    }
};

void EngineCore::exit_fiber(Task* task) {
    {
        UnseenScope unseen;
        remove(task);
        task->finished = true;
        finished_.push_back(task);
    }
    progress();
    ++switches_;
    trace(~task->id);
    current_ = &hub_;
    dev::running_thread = nullptr;
    fiber_exit(task, &hub_);
}

void EngineCore::add_host(int rank, std::function<void()> program) {
    HostTask& host = hosts_.emplace_back();
    host.kind = FiberKind::host;
    host.host.rank = rank;
    host.host.device = rank;
    host.id = next_task_id_++;
    host.priority_group = static_cast<uint32_t>(host.id);
    host.program = std::move(program);
    ++hosts_running_;
    fiber_create(&host, StackClass::host, FiberMain::host, "host program");
    happens_before(this);
    if (rank == options.faults.late_rank && !options.faults.wait_until_armed) {
        host.what = "late rank (fault)";
        put_to_sleep(&host, options.faults.late_ns);
    } else {
        insert(&host);
    }
}

// ---- kernels and CTAs

Kernel::~Kernel() = default;

unsigned blocks_per_sm(unsigned threads, size_t shared_bytes) {
    if (threads == 0 || threads > kThreadsPerBlock || shared_bytes > kSharedPerBlock) return 0;
    const unsigned rounded = (threads + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
    const size_t by_shared = kSharedPerSm / (shared_bytes + kSharedReserved);
    return static_cast<unsigned>(
        std::min({static_cast<size_t>(kThreadsPerSm / rounded), by_shared, size_t{kBlocksPerSm}}));
}

unsigned EngineCore::resident_blocks(const KernelLaunch& launch) const {
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    return blocks_per_sm(threads, launch.shared_bytes) * static_cast<unsigned>(options.sm_count);
}

void EngineCore::start_kernel(int device, std::shared_ptr<const KernelLaunch> launch,
                              std::function<void()> on_done) {
    auto kernel = std::make_unique<Kernel>();
    kernel->block_count = launch->grid.x * launch->grid.y * launch->grid.z;
    kernel->launch = std::move(launch);
    kernel->device = device;
    kernel->serial = next_kernel_serial_++;
    kernel->on_done = std::move(on_done);
    if (options.tracer != nullptr)
        event(TraceEvent::Kind::begin, device, 0, "kernel " + kernel->launch->name);
    kernel->waiting.reserve(kernel->block_count);
    for (unsigned i = kernel->block_count; i-- > 0;) kernel->waiting.push_back(i);
    starting_.push_back(kernel.get());
    if (watch != nullptr) watch->kernel_starts(kernel.get(), &devices_[device]);
    devices_[device].kernels.push_back(std::move(kernel));
    progress();
}

int EngineCore::find_sm(const Kernel& kernel) const {
    const KernelLaunch& launch = *kernel.launch;
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    const std::vector<Sm>& sms = devices_[kernel.device].sms;
    int best = -1;
    for (size_t i = 0; i < sms.size(); ++i) {
        if (sms[i].threads + threads > kThreadsPerSm || sms[i].blocks >= kBlocksPerSm) continue;
        if (sms[i].shared_bytes + launch.shared_bytes + kSharedReserved > kSharedPerSm) continue;
        if (best < 0 || sms[i].threads < sms[best].threads) best = static_cast<int>(i);
    }
    return best;
}

bool EngineCore::start_some_blocks(Kernel& kernel) {
    bool moved = false;
    size_t count = 1 + rng.below(4);
    if (kernel.launch->cooperative) {
        // All blocks of a cooperative grid are resident together, so they start together.
        Device& device = devices_[kernel.device];
        if (device.kernels.size() > 1 || kernel.block_count > kernel.waiting.size()) {
            const std::vector<Sm> before = device.sms;
            unsigned placed = 0;
            for (; placed < kernel.waiting.size(); ++placed) {
                const int sm = find_sm(kernel);
                if (sm < 0) break;
                device.sms[sm].threads +=
                    kernel.launch->block.x * kernel.launch->block.y * kernel.launch->block.z;
                device.sms[sm].blocks += 1;
                device.sms[sm].shared_bytes += kernel.launch->shared_bytes + kSharedReserved;
            }
            device.sms = before;
            if (placed < kernel.waiting.size()) return false;
        }
        count = kernel.waiting.size();
    }
    for (; count > 0 && !kernel.waiting.empty(); --count) {
        const int sm = find_sm(kernel);
        if (sm < 0) break;
        // Blocks start roughly, not exactly, in order.
        const size_t near = rng.below(std::min<size_t>(kernel.waiting.size(), 8));
        std::swap(kernel.waiting[kernel.waiting.size() - 1 - near], kernel.waiting.back());
        const unsigned index = kernel.waiting.back();
        kernel.waiting.pop_back();
        start_block(kernel, sm, index);
        moved = true;
    }
    return moved;
}

bool EngineCore::start_blocks() {
    bool moved = false;
    for (size_t i = 0; i < starting_.size();) {
        Kernel* kernel = starting_[i];
        moved = start_some_blocks(*kernel) || moved;
        if (kernel->waiting.empty()) {
            starting_.erase(starting_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
    }
    return moved;
}

namespace {

uint3 unflatten(unsigned index, const dim3& shape) {
    return uint3{index % shape.x, index / shape.x % shape.y, index / (shape.x * shape.y)};
}

void allocate_shared(Cta& cta, size_t bytes, bool poisoned) {
    constexpr size_t kAlignment = 1024;
    cta.shared_bytes = bytes;
    cta.shared_storage.reset(new std::byte[bytes + kAlignment]);
    const uintptr_t raw = reinterpret_cast<uintptr_t>(cta.shared_storage.get());
    cta.shared = reinterpret_cast<std::byte*>((raw + kAlignment - 1) / kAlignment * kAlignment);
    std::fill_n(cta.shared, bytes, poisoned ? kPoisonByte : std::byte{0});
}

}  // namespace

void EngineCore::start_block(Kernel& kernel, int sm, unsigned index) {
    const KernelLaunch& launch = *kernel.launch;
    const unsigned threads = launch.block.x * launch.block.y * launch.block.z;
    Sm& home = devices_[kernel.device].sms[sm];
    home.threads += threads;
    home.blocks += 1;
    home.shared_bytes += launch.shared_bytes + kSharedReserved;

    Cta& cta = *kernel.running.emplace_back(std::make_unique<Cta>());
    cta.kernel = &kernel;
    cta.index = index;
    cta.sm = sm;
    cta.live = threads;
    live_threads_ += threads;
    cta.started_ns = now_ns();
    cta.context = {unflatten(index, launch.grid), launch.block, launch.grid};
    allocate_shared(cta, launch.shared_bytes, options.fill_fresh_memory);
    if (options.tracer != nullptr)
        event(TraceEvent::Kind::begin, kernel.device, 1 + static_cast<int>(index), launch.name);
    cta.threads = std::vector<DeviceTask>(threads);
    cta.runnable.resize((threads + 63) / 64);
    cta.warps = std::vector<Warp>((threads + kWarpLanes - 1) / kWarpLanes);

    const FaultPlan& faults = options.faults;
    const bool stalled =
        faults.stall_ns > 0 && faults.stall_rank == kernel.device && faults.stall_block == index;
    const uint32_t group = static_cast<uint32_t>(next_task_id_);
    // Operations in flight name their kernel, and may outlive it.
    const char* const kernel_name = kernel_names_.insert(launch.name).first->c_str();
    for (unsigned i = 0; i < threads; ++i) {
        DeviceTask& task = cta.threads[i];
        Warp& warp = cta.warps[i / kWarpLanes];
        task.kind = FiberKind::device;
        task.id = next_task_id_++;
        task.priority_group = group;
        task.cta = &cta;
        task.warp = &warp;
        task.thread = {unflatten(i, launch.block), &cta.context};
        task.place = {kernel.device, index, i, i / kWarpLanes, i % kWarpLanes, kernel_name};
        warp.live |= 1u << (i % kWarpLanes);
        warp.lanes[i % kWarpLanes] = &task;
        fiber_create(&task, StackClass::device, FiberMain::device, launch.name.c_str());
        if (!allowed_to_run(&task)) continue;
        if (stalled) {
            task.what = "stalled block (fault)";
            put_to_sleep(&task, cta.started_ns + faults.stall_ns);
        } else {
            insert(&task);
        }
    }
}

void EngineCore::finish_cta(Cta& cta) {
    Kernel& kernel = *cta.kernel;
    if (options.tracer != nullptr)
        event(TraceEvent::Kind::end, kernel.device, 1 + static_cast<int>(cta.index),
              kernel.launch->name);
    bulk->block_finished(cta);
    if (watch != nullptr) watch->forget_cta(cta);
    if (loaded_cta_ == &cta) loaded_cta_ = nullptr;
    if (near_cta_ == &cta) near_cta_ = nullptr;
    live_threads_ -= static_cast<unsigned>(cta.threads.size());
    Sm& home = devices_[kernel.device].sms[cta.sm];
    home.threads -= static_cast<unsigned>(cta.threads.size());
    home.blocks -= 1;
    home.shared_bytes -= kernel.launch->shared_bytes + kSharedReserved;
    ++kernel.blocks_finished;
    std::erase_if(kernel.running, [&](const auto& held) { return held.get() == &cta; });
    kernel_may_be_done(kernel);
}

void EngineCore::finish_kernel(Kernel& kernel) {
    if (options.tracer != nullptr)
        event(TraceEvent::Kind::end, kernel.device, 0, "kernel " + kernel.launch->name);
    const std::function<void()> on_done = std::move(kernel.on_done);
    auto& kernels = devices_[kernel.device].kernels;
    if (watch != nullptr) watch->forget_tokens(&kernel, sizeof(kernel));
    std::erase_if(kernels, [&](const auto& held) { return held.get() == &kernel; });
    if (on_done) on_done();
}

void EngineCore::reap() {
    // on_done may not start fibers, so the list does not grow meanwhile.
    for (size_t i = 0; i < finished_.size(); ++i) {
        Task* task = finished_[i];
        if (!stack_intact(task->stack)) {
            fail("a fiber overflowed its stack of " + std::to_string(task->stack.bytes) + " bytes");
        }
        fiber_release(task);
        if (watch != nullptr) watch->task_ends(*task);
        if (task->kind == FiberKind::host) {
            --hosts_running_;
            continue;
        }
        Cta* cta = static_cast<DeviceTask*>(task)->cta;
        if (--cta->live > 0) continue;
        if (!ended()) finish_cta(*cta);
    }
    finished_.clear();
}

void EngineCore::kernel_may_be_done(Kernel& kernel) {
    if (kernel.blocks_finished == kernel.block_count && kernel.bulk_in_flight == 0) {
        finish_kernel(kernel);
    }
}

// ---- hub

bool EngineCore::step_workers() {
    bool moved = false;
    held_back_ = false;
    for (size_t i = 0; i < workers.size(); ++i) {
        const std::shared_ptr<Worker> worker = workers[i];
        if (!worker->busy()) continue;
        if (options.faults.delay_chance > 0 && rng.chance(options.faults.delay_chance)) {
            held_back_ = true;
            continue;
        }
        if (worker->step(rng)) {
            moved = true;
            trace(0xb0000000ull + i);
        }
    }
    return moved;
}

bool EngineCore::wake_sleepers() {
    bool moved = false;
    const uint64_t now = now_ns();
    while (!asleep_.empty() && asleep_.front().wake_ns <= now) {
        Task* const task = asleep_.front().task;
        std::pop_heap(asleep_.begin(), asleep_.end(), Sleeper::wakes_later);
        asleep_.pop_back();
        if (allowed_to_run(task)) insert(task);
        moved = true;
    }
    return moved;
}

bool EngineCore::wake_hosts() {
    bool moved = false;
    for (size_t i = 0; i < host_waits_.size(); ++i) {
        HostTask* host = host_waits_[i];
        if (host->in_run_list || !allowed_to_run(host)) continue;
        if ((*host->ready)()) {
            insert(host);
            moved = true;
        }
    }
    return moved;
}

bool EngineCore::any_worker_busy() const {
    return std::any_of(workers.begin(), workers.end(),
                       [](const auto& worker) { return worker->busy(); });
}

void EngineCore::run_fibers() {
    if (run_.empty()) return;
    budget_ = 1 + static_cast<int>(rng.below(kSliceMax * (crowded_ ? kCrowdSlices : 1)));
    near_cta_ = nullptr;
    spin_budget_ = kRunToBlockPolls;
    switch_to(pick());
}

// Host programs run without a choice, and first. Then one of: a thread goes on to its next ordered
// access, a worker makes a move.
bool EngineCore::take_chosen_turn() {
    constexpr unsigned kIdleRunsMax = 4;
    const uint64_t progress_now = progress_.load(std::memory_order_relaxed);
    std::vector<Task*> ready;
    for (const Runnable& entry : run_) {
        Task* const task = entry.task;
        if (task->kind == FiberKind::host) {
            run_chosen(task);
            return true;
        }
        if (task->progress_seen != progress_now) task->idle_runs = 0;
        if (task->idle_runs < kIdleRunsMax) ready.push_back(task);
    }
    std::sort(ready.begin(), ready.end(), [this](const Task* a, const Task* b) {
        return (a == last_chosen_) != (b == last_chosen_) ? a == last_chosen_ : a->id < b->id;
    });
    bool moved = false;
    std::vector<std::pair<Worker*, size_t>> moves;
    for (const auto& worker : workers) {
        if (!worker->busy()) continue;
        const size_t count = worker->move_count();
        if (count == 0) moved = worker->step(rng) || moved;
        for (size_t i = 0; i < count; ++i) moves.emplace_back(worker.get(), i);
    }
    const size_t ways = ready.size() + moves.size();
    if (ways == 0) {
        // Everybody polls in vain: only time can help.
        if (!run_.empty()) run_chosen(run_[steps_ % run_.size()].task);
        return moved;
    }
    const size_t way = choose(static_cast<uint32_t>(ways));
    if (way < ready.size()) {
        run_chosen(ready[way]);
        return moved;
    }
    const auto& [worker, number] = moves[way - ready.size()];
    worker->move_number(number, rng);
    trace(0xc0000000ull + number);
    return true;
}

// To its next yield.
void EngineCore::run_chosen(Task* task) {
    const uint64_t before = progress_.load(std::memory_order_relaxed);
    last_chosen_ = task;
    budget_ = 1;
    spin_budget_ = 1;
    switch_to(task);
    // It may have ended: then nobody looks at these any more.
    const uint64_t after = progress_.load(std::memory_order_relaxed);
    task->idle_runs = after == before ? task->idle_runs + 1 : 0;
    task->progress_seen = after;
}

void EngineCore::stop_rank(int rank) {
    stopped_rank_ = rank;
    if (options.tracer != nullptr)
        event(TraceEvent::Kind::instant, rank, 0, "stopped for ever (fault)");
    for (size_t i = 0; i < run_.size();) {
        if (allowed_to_run(run_[i].task)) {
            ++i;
        } else {
            remove(run_[i].task);
        }
    }
    for (HostTask& host : hosts_) {
        if (host.host.rank == rank && !host.finished) --hosts_running_;
    }
}

// Whether this world is a crowd from now on, and how fast its time goes.
void EngineCore::look_at_crowd() {
    crowded_ = simulating && live_threads_ >= kCrowdThreads;
    const unsigned shift = crowded_ ? std::bit_width(live_threads_ / kThreadsAbreast) : 0u;
    if (shift == time_shift_) return;
    jumped_ns_ = now_ns();
    timed_steps_ = steps_;
    time_shift_ = shift;
}

bool EngineCore::hub_turn() {
    const uint64_t before = progress_.load(std::memory_order_relaxed);
    bool moved = false;
    try {
        if (!finished_.empty()) reap();
        if (!ended()) {
            if (!starting_.empty()) moved = start_blocks() || moved;
            look_at_crowd();
            moved = streams->step(rng) || moved;
            if (choosing()) {
                wake_sleepers();
                moved = wake_hosts() || moved;
                if (!moved) moved = take_chosen_turn();
                return moved || progress_.load(std::memory_order_relaxed) != before;
            }
            const int rounds = crowded_ ? kCrowdSlices * (1 + device_count() / kRanksAbreast) : 1;
            for (int i = 1; i < rounds; ++i) {
                const bool started = streams->step(rng);
                if (!step_workers() && !started) break;
                moved = true;
            }
            moved = step_workers() || moved;
            // Waking a sleeper is not progress: threads that sleep between polls would hide a
            // deadlock.
            wake_sleepers();
            moved = wake_hosts() || moved;
            run_fibers();
        }
    } catch (const RunEnded&) {
        // refuse() by a worker or by a check of the hub; the failure is recorded.
    }
    return moved || progress_.load(std::memory_order_relaxed) != before;
}

void EngineCore::run(const std::function<bool()>& done) {
    quiet_since_step_ = steps_;
    while (!failed() && !done()) {
        if (options.faults.stop_rank >= 0 && stopped_rank_ < 0 && faults_armed() &&
            steps_ - armed_at_step_ >= options.faults.stop_at_step) {
            stop_rank(options.faults.stop_rank);
        }
        const bool moved = hub_turn();
        if (failed()) break;
        if (options.step_limit != 0 && steps_ > options.step_limit) {
            fail("step limit of " + std::to_string(options.step_limit) + " reached\n" +
                 deadlock_table());
            break;
        }
        if (done()) break;
        judge_progress(moved);
    }
    report.switches = switches_;
    report.steps = steps_;
    report.trace_hash = trace_hash_;
    report.virtual_ns = now_ns();
}

void EngineCore::judge_progress(bool moved) {
    const uint64_t progress_now = progress_.load(std::memory_order_relaxed);
    if (moved || progress_now != progress_seen_) {
        progress_seen_ = progress_now;
        quiet_since_step_ = steps_;
        quiet_rounds_ = 0;
        clock_was_read_ = false;
        return;
    }
    if (!run_.empty() && steps_ - quiet_since_step_ < 64 * run_.size() + kQuietRoundSteps) return;
    quiet_since_step_ = steps_;
    // A worker that the fault plan made miss its turn would perhaps have moved: such a turn shows
    // nothing, and time goes on to the next sleeper only. Else many missed turns in a row, which
    // nobody but the plan is to blame for, would eat up every deadline.
    if (held_back_) {
        if (!asleep_.empty()) jump_to(std::max(now_ns(), asleep_.front().wake_ns));
        return;
    }
    if (quiet_rounds_++ == 0) {
        quiet_started_ns_ = now_ns();
        quiet_started_step_ = steps_;
    }

    // Everybody has polled in vain, many times. Only time can change something: somebody sleeps, a
    // worker keeps something back, or a thread watches the clock (a deadline).
    const bool time_matters = !asleep_.empty() || clock_was_read_ || any_worker_busy();
    // A thread that reads much ordered memory and stores nothing is not stuck yet.
    const bool patient =
        !run_.empty() && steps_ - quiet_started_step_ < 1024 * run_.size() + kQuietStepsMax;
    if ((!time_matters && !patient) || now_ns() - quiet_started_ns_ > kQuietNsMax) {
        if (!release_unwinding_hosts()) {
            fail("deadlock: nothing can make progress any more\n" + deadlock_table());
        }
        return;
    }
    if (time_matters) jump_time();
}

// A host program that waits in a destructor while an exception leaves: the exception says more than
// the deadlock.
bool EngineCore::release_unwinding_hosts() {
    bool released = false;
    for (HostTask* host : host_waits_) {
        if (!host->unwinding || host->give_up) continue;
        host->give_up = true;
        insert(host);
        released = true;
    }
    return released;
}

void EngineCore::jump_time() {
    const uint64_t now = now_ns();
    uint64_t target = asleep_.empty() ? now : std::max(now, asleep_.front().wake_ns);
    // First from sleeper to sleeper; when that goes on and on, in growing leaps.
    if (asleep_.empty() || quiet_rounds_ > kExactJumps) {
        // From small to large, so that a wait overshoots its deadline by about half at most.
        const unsigned leaps = quiet_rounds_ > kExactJumps ? quiet_rounds_ - kExactJumps : 0u;
        target += 1024ull << std::min(leaps, 40u);
    }
    // A block rests: in steps that show the others their shorter deadlines before it wakes. Such
    // steps say nothing about how long the next leap should be.
    if (rest_ends_ns_ > now) {
        const uint64_t leap_ns = options.faults.rest_ns / kLeapsOfRest + 1;
        target = std::min({target, rest_ends_ns_, now + leap_ns});
        quiet_rounds_ = std::min(quiet_rounds_, kExactJumps);
    }
    jump_to(target);
}

void EngineCore::jump_to(uint64_t target_ns) {
    const uint64_t now = now_ns();
    // Not past the moment when something in flight may move: that would eat up deadlines.
    for (const auto& worker : workers) {
        const uint64_t wakes_ns = worker->busy() ? worker->wakes_at_ns() : ~uint64_t{0};
        if (wakes_ns > now) target_ns = std::min(target_ns, wakes_ns);
    }
    jumped_ns_ += target_ns - now;
}

// ---- the end of a run

void EngineCore::fail(const std::string& message) {
    if (failed()) return;
    failure_ = message;
    failed_.store(true);
}

void EngineCore::fail_with(std::exception_ptr exception) {
    if (failed()) return;
    std::string text = "unknown exception";
    bool standard = true;
    try {
        std::rethrow_exception(exception);
    } catch (const std::exception& error) {
        text = error.what();
    } catch (...) {
        standard = false;
    }
    // Exceptions of other kinds (a test framework's, for one) go to the caller as they are.
    if (!standard) failure_exception_ = exception;
    const HostContext* host = host_context();
    fail((host != nullptr ? "rank " + std::to_string(host->rank) + ": " : std::string()) + text +
         (host == nullptr ? place_text() : std::string()));
    if (!simulating) {
        std::fprintf(stderr, "gimlet emulator: exception in a kernel: %s\n", failure_.c_str());
        std::abort();
    }
}

void EngineCore::stop_fiber() {
    throw RunEnded{};
}

void EngineCore::unwind(Task* task) {
    // It leaves its wait by RunEnded and runs to its end; ended() keeps it from waiting again.
    while (!task->finished) {
        budget_ = 0;
        current_ = &hub_;
        switch_to(task);
    }
}

void EngineCore::end_fibers() {
    ending_ = true;
    asleep_.clear();
    for (HostTask& host : hosts_) {
        if (!host.finished) unwind(&host);
    }
    for (Device& device : devices_) {
        for (auto& kernel : device.kernels) {
            for (auto& cta : kernel->running) {
                for (DeviceTask& task : cta->threads) {
                    if (!task.finished) unwind(&task);
                }
            }
        }
    }
    finished_.clear();
    run_.clear();
}

std::string EngineCore::place_text() const {
    if (current_->kind == FiberKind::host) {
        return " (host program of rank " +
               std::to_string(static_cast<const HostTask*>(current_)->host.rank) + ")";
    }
    if (current_->kind != FiberKind::device) return "";
    const ThreadPlace& place = static_cast<const DeviceTask*>(current_)->place;
    return " (device " + std::to_string(place.device) + ", kernel " + place.kernel + ", block " +
           std::to_string(place.block) + ", thread " + std::to_string(place.thread) + ")";
}

namespace {

// "0-31, 64" from sorted numbers.
std::string ranges_text(const std::vector<unsigned>& numbers) {
    std::string text;
    for (size_t i = 0; i < numbers.size();) {
        size_t j = i;
        while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
        if (!text.empty()) text += ", ";
        text += std::to_string(numbers[i]);
        if (j > i) text += "-" + std::to_string(numbers[j]);
        i = j + 1;
    }
    return text;
}

}  // namespace

std::string EngineCore::deadlock_table() const {
    constexpr size_t kLinesMax = 200;
    std::vector<std::string> lines;
    for (const HostTask& host : hosts_) {
        if (host.finished) continue;
        lines.push_back("rank " + std::to_string(host.host.rank) + " | host program | " +
                        host.what);
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
        for (const auto& kernel : devices_[d].kernels) {
            const std::string head = "rank " + std::to_string(d) + " | " + kernel->launch->name;
            for (const auto& cta : kernel->running) {
                std::vector<std::pair<std::string, std::vector<unsigned>>> groups;
                for (const DeviceTask& task : cta->threads) {
                    if (task.finished) continue;
                    const std::string what = *task.what != '\0' ? task.what : "(not started)";
                    auto group = std::find_if(groups.begin(), groups.end(),
                                              [&](const auto& g) { return g.first == what; });
                    if (group == groups.end()) group = groups.insert(group, {what, {}});
                    group->second.push_back(task.place.thread);
                }
                for (const auto& [what, threads] : groups) {
                    lines.push_back(head + " | block " + std::to_string(cta->index) + " threads " +
                                    ranges_text(threads) + " | " + what);
                }
            }
            if (!kernel->waiting.empty()) {
                lines.push_back(head + " | " + std::to_string(kernel->waiting.size()) +
                                " blocks wait for a free SM");
            }
        }
    }
    streams->describe(lines);
    for (const auto& worker : workers) {
        if (worker->busy()) lines.push_back("in flight | " + worker->describe());
    }
    std::string text = "who | where | waits for\n";
    for (size_t i = 0; i < lines.size() && i < kLinesMax; ++i) text += lines[i] + "\n";
    if (lines.size() > kLinesMax) {
        text += "... and " + std::to_string(lines.size() - kLinesMax) + " more lines\n";
    }
    return text;
}

}  // namespace gimlet::emu

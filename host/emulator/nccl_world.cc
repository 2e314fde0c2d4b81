// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/nccl_world.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#include "host/emulator/core.hpp"
#include "host/emulator/gin_traffic.hpp"
#include "host/emulator/memory.hpp"

namespace gimlet::emu::nccl {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr unsigned kSleepUs = 5000;
constexpr uint64_t kDeadCheckNs = 200'000'000;
constexpr uint64_t kDefaultTimeoutSeconds = 60;

std::mutex g_worlds_mutex;
std::map<Engine*, World*> g_worlds;
thread_local std::string t_last_error = "no error";
thread_local Group t_group;

uint64_t timeout_ns() {
    const char* text = std::getenv("GIMLET_EMU_NCCL_TIMEOUT_SECONDS");
    const double seconds = text != nullptr ? std::atof(text) : 0;
    return static_cast<uint64_t>((seconds > 0 ? seconds : kDefaultTimeoutSeconds) * 1e9);
}

// Maps whole pages, followed by one page that faults.
char* map_pages(size_t bytes, int fd) {
    void* range = mmap(nullptr, bytes + kPageBytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) return nullptr;
    const int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    if (mmap(range, bytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED) {
        munmap(range, bytes + kPageBytes);
        return nullptr;
    }
    return static_cast<char*>(range);
}

}  // namespace

WindowMemory::~WindowMemory() {
    if (base != nullptr) munmap(base, bytes + kPageBytes);
    if (fd >= 0) close(fd);
}

World& World::get() {
    Engine& engine = Engine::get();
    const std::lock_guard lock(g_worlds_mutex);
    World*& world = g_worlds[&engine];
    if (world == nullptr) {
        auto made = std::make_shared<World>(engine);
        world = made.get();
        engine.add_worker(std::move(made));
    }
    return *world;
}

World::World(Engine& engine_in) : engine(engine_in), network(engine_in) {}

World::~World() {
    const std::lock_guard lock(g_worlds_mutex);
    g_worlds.erase(&engine);
}

std::shared_ptr<WindowMemory> World::allocate(size_t bytes) {
    auto memory = std::make_shared<WindowMemory>();
    memory->bytes = std::max(kPageBytes, (bytes + kPageBytes - 1) / kPageBytes * kPageBytes);
    if (!engine.simulating()) {
        memory->fd = memfd_create("gimlet-nccl-window", MFD_CLOEXEC);
        if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(memory->bytes)) != 0)
            return nullptr;
    }
    memory->base = map_pages(memory->bytes, memory->fd);
    if (memory->base == nullptr) return nullptr;
    const std::lock_guard lock(mutex);
    memory->serial = next_serial_++;
    allocations[memory->base] = memory;
    return memory;
}

std::shared_ptr<WindowMemory> World::find_allocation(const void* ptr, size_t bytes) {
    const std::lock_guard lock(mutex);
    const char* start = static_cast<const char*>(ptr);
    auto after = allocations.upper_bound(start);
    if (after == allocations.begin()) return nullptr;
    const auto& memory = std::prev(after)->second;
    const size_t offset = static_cast<size_t>(start - memory->base);
    return offset <= memory->bytes && bytes <= memory->bytes - offset ? memory : nullptr;
}

std::shared_ptr<WindowMemory> World::map_foreign(int pid, int fd, uint64_t serial, size_t bytes) {
    const std::lock_guard lock(mutex);
    std::weak_ptr<WindowMemory>& known = foreign_[{pid, serial}];
    if (auto memory = known.lock()) return memory;
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    const int opened = ::open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0) return nullptr;
    auto memory = std::make_shared<WindowMemory>();
    memory->bytes = bytes;
    memory->base = map_pages(bytes, opened);
    close(opened);
    if (memory->base == nullptr) return nullptr;
    known = memory;
    return memory;
}

std::shared_ptr<Rendezvous> World::new_rendezvous() {
    const std::lock_guard lock(mutex);
    const auto place =
        engine.simulating() ? Rendezvous::Place::this_process : Rendezvous::Place::shared;
    const uint64_t owner = engine.simulating() ? 0 : static_cast<uint64_t>(getpid());
    const uint64_t nonce = owner << 32 | next_nonce_++;
    auto made = Rendezvous::create(place, nonce);
    if (made != nullptr) rendezvous_[nonce] = made;
    return made;
}

std::shared_ptr<Rendezvous> World::find_rendezvous(const ncclUniqueId& id, std::string& error) {
    const std::lock_guard lock(mutex);
    if (!Rendezvous::valid(id)) {
        error = "the unique id was not made by ncclGetUniqueId";
        return nullptr;
    }
    const auto known = rendezvous_.find(Rendezvous::nonce_of(id));
    if (known != rendezvous_.end()) return known->second;
    auto opened = Rendezvous::open(id, error);
    if (opened != nullptr) rendezvous_[Rendezvous::nonce_of(id)] = opened;
    return opened;
}

void World::drop_of_the_dead(const char* begin, size_t bytes) {
    if (const int dead = engine.stopped_rank(); dead >= 0)
        network.drop_touching(begin, bytes, dead);
}

void World::forget_rendezvous(const ncclUniqueId& id) {
    const std::lock_guard lock(mutex);
    rendezvous_.erase(Rendezvous::nonce_of(id));
}

ncclComm* World::new_comm() {
    const std::lock_guard lock(mutex);
    comms.push_back(std::make_unique<ncclComm>());
    comms.back()->world = this;
    live_comms.insert(comms.back().get());
    return comms.back().get();
}

ncclWindow_vidmem* World::new_window() {
    const std::lock_guard lock(mutex);
    windows.push_back(std::make_unique<ncclWindow_vidmem>());
    return windows.back().get();
}

DevCommState* World::new_dev_comm() {
    const std::lock_guard lock(mutex);
    dev_comms.push_back(std::make_unique<DevCommState>());
    dev_comms.back()->world = this;
    return dev_comms.back().get();
}

void World::release_resources(DevCommState& state) {
    ncclWindow_vidmem& window = *state.resources;
    window.alive = false;
    allocations.erase(window.bases[static_cast<size_t>(window.rank)]);
    window.mappings.clear();
    state.queues.clear();
    state.counter_words.clear();
    state.counter_words.shrink_to_fit();
}

void World::forget_old() {
    constexpr ptrdiff_t kKept = 64;
    const auto forget = [](auto& objects, auto is_over) {
        ptrdiff_t over = std::count_if(objects.begin(), objects.end(), is_over);
        std::erase_if(objects,
                      [&](const auto& object) { return is_over(object) && over-- > kKept; });
    };
    // What refers to others goes first.
    forget(dev_comms, [](const auto& state) { return !state->alive; });
    forget(windows, [](const auto& window) { return !window->alive; });
    forget(comms, [](const auto& comm) { return comm->dead; });
}

// ----------------------------------------------------------------------------------------------
// collective calls

Group& World::group() {
    return engine.simulating() ? groups_[engine.host_rank()] : t_group;
}

ncclResult_t World::submit(ncclComm* comm, Job job) {
    Group& open = group();
    if (open.depth > 0) {
        open.calls.push_back({comm, std::move(job)});
        return ncclSuccess;
    }
    std::vector<QueuedCall> calls;
    calls.push_back({comm, std::move(job)});
    return drive(calls);
}

// Resumes what can go on; calls of one communicator keep their order.
bool World::advance(std::vector<QueuedCall>& calls) {
    bool moved = false;
    std::unordered_set<const ncclComm*> blocked;
    for (QueuedCall& call : calls) {
        if (call.finished || !blocked.insert(call.comm).second) continue;
        if (!call.job.ready()) continue;
        call.job.resume();
        call.waiting_since_ns = engine.now_ns();
        moved = true;
        if (call.job.done()) {
            call.finished = true;
            blocked.erase(call.comm);
        }
    }
    return moved;
}

void World::check_deadlines(std::vector<QueuedCall>& calls) {
    const uint64_t now = engine.now_ns();
    for (QueuedCall& call : calls) {
        if (call.finished || call.job.ready()) continue;
        const RoundWait& wait = call.job.waits_for();
        const uint64_t waited = now - call.waiting_since_ns;
        ncclResult_t why = ncclSuccess;
        if (waited > timeout_ns()) {
            why = fail(call.comm, ncclSystemError, "%s: waited %.1f s for rank(s) %s of %d",
                       wait.call, static_cast<double>(waited) * 1e-9,
                       wait.rendezvous->missing(wait.round).c_str(), call.comm->ranks);
        } else if (waited > kDeadCheckNs && wait.rendezvous->dead_rank(wait.round) >= 0) {
            why = fail(call.comm, ncclRemoteError, "%s: the process of rank %d no longer exists",
                       wait.call, wait.rendezvous->dead_rank(wait.round));
        }
        if (why == ncclSuccess) continue;
        std::fprintf(stderr, "gimlet emulator: rank %d: %s\n", call.comm->rank,
                     call.comm->last_error.c_str());
        call.job.give_up(why);
        call.job.resume();
        call.finished = call.job.done();
    }
}

void World::wait_for_any(std::vector<QueuedCall>& calls) {
    const QueuedCall* first = nullptr;
    std::unordered_set<const ncclComm*> blocked;
    std::vector<const Job*> waiting;
    for (const QueuedCall& call : calls) {
        if (call.finished || !blocked.insert(call.comm).second) continue;
        if (first == nullptr) first = &call;
        waiting.push_back(&call.job);
    }
    if (first == nullptr) return;
    const auto any_ready = [&] {
        return std::any_of(waiting.begin(), waiting.end(),
                           [](const Job* job) { return job->ready(); });
    };
    const RoundWait& wait = first->job.waits_for();
    if (engine.simulating()) {
        const std::string what =
            std::string(wait.call) + " waits for rank(s) " + wait.rendezvous->missing(wait.round);
        engine.wait(what.c_str(), any_ready);
        return;
    }
    const uint32_t events = wait.rendezvous->events();
    if (!any_ready()) wait.rendezvous->sleep(events, kSleepUs);
    check_deadlines(calls);
}

ncclResult_t World::drive(std::vector<QueuedCall>& calls) {
    const auto finished = [](const QueuedCall& call) { return call.finished; };
    while (!std::all_of(calls.begin(), calls.end(), finished)) {
        if (!advance(calls)) wait_for_any(calls);
    }
    ncclResult_t result = ncclSuccess;
    for (const QueuedCall& call : calls) {
        const ncclResult_t one = call.job.result();
        if (result == ncclSuccess) result = one;
    }
    return result;
}

// ----------------------------------------------------------------------------------------------
// errors

ncclResult_t fail(ncclComm* comm, ncclResult_t code, const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    t_last_error = text;
    if (comm != nullptr) comm->last_error = text;
    return code;
}

ncclResult_t check_comm(const ncclComm* comm, const char* call) {
    if (comm == nullptr)
        return fail(nullptr, ncclInvalidArgument, "%s: the communicator is NULL", call);
    World& world = World::get();
    bool known;
    {
        const std::lock_guard lock(world.mutex);
        known = world.live_comms.count(comm) != 0;
    }
    if (!known || comm->dead) {
        return fail(nullptr, ncclInvalidArgument,
                    "%s: the communicator was destroyed, or is not one", call);
    }
    if (!comm->ready) {
        return fail(nullptr, ncclInvalidUsage,
                    "%s: the communicator is not initialised yet (ncclGroupEnd?)", call);
    }
    return ncclSuccess;
}

extern "C" const char* ncclGetLastError(ncclComm_t comm) {
    if (comm == nullptr) return t_last_error.c_str();
    return comm->last_error.empty() ? "no error" : comm->last_error.c_str();
}

// ----------------------------------------------------------------------------------------------
// windows

WindowPayload payload_of(const WindowMemory* memory, const void* start, size_t bytes, int flags) {
    WindowPayload payload;
    payload.pid = getpid();
    payload.flags = flags;
    payload.bytes = bytes;
    payload.base = reinterpret_cast<uint64_t>(start);
    if (memory != nullptr) {
        payload.fd = memory->fd;
        payload.serial = memory->serial;
        payload.allocation_bytes = memory->bytes;
        payload.offset = static_cast<uint64_t>(static_cast<const char*>(start) - memory->base);
    }
    return payload;
}

ncclResult_t map_window(ncclComm* comm, ncclWindow_vidmem* window, uint32_t round,
                        const char* call) {
    WindowPayload mine;
    std::memcpy(&mine, comm->rendezvous->payload(comm->rank, round), sizeof(mine));
    for (int rank = 0; rank < comm->ranks; ++rank) {
        WindowPayload theirs;
        std::memcpy(&theirs, comm->rendezvous->payload(rank, round), sizeof(theirs));
        if (theirs.status != ncclSuccess) {
            if (rank == comm->rank) return static_cast<ncclResult_t>(theirs.status);
            if (mine.status != ncclSuccess) continue;
            return fail(comm, ncclRemoteError, "%s: rank %d failed with \"%s\"", call, rank,
                        ncclGetErrorString(static_cast<ncclResult_t>(theirs.status)));
        }
        if (theirs.flags != mine.flags || theirs.extra != mine.extra) {
            return fail(comm, ncclInvalidUsage, "%s: rank %d and rank %d ask for different things",
                        call, comm->rank, rank);
        }
        char* base = reinterpret_cast<char*>(theirs.base);
        if (theirs.pid != mine.pid) {
            auto memory = comm->world->map_foreign(theirs.pid, theirs.fd, theirs.serial,
                                                   theirs.allocation_bytes);
            if (memory == nullptr) {
                return fail(comm, ncclSystemError,
                            "%s: cannot map the memory of rank %d (process %d)", call, rank,
                            theirs.pid);
            }
            base = memory->base + theirs.offset;
            window->mappings.push_back(std::move(memory));
        } else if (rank != comm->rank) {
            // As with a mapping of another process: the memory stays while somebody has it.
            window->mappings.push_back(comm->world->find_allocation(base, theirs.bytes));
        }
        window->bases.push_back(base);
        window->sizes.push_back(theirs.bytes);
    }
    window->comm = comm;
    window->flags = mine.flags;
    window->rank = comm->rank;
    window->lsa_rank = comm->lsa_rank;
    window->lsa_size = comm->lsa_size;
    window->user_ptr = reinterpret_cast<void*>(mine.base);
    return ncclSuccess;
}

}  // namespace gimlet::emu::nccl

namespace gimlet::emu {

std::string gin_on_its_way() {
    nccl::World& world = nccl::World::get();
    std::string found;
    world.engine.locked([&] { found = world.network.find_unfinished(); });
    return found;
}

}  // namespace gimlet::emu

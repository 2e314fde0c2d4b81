// SPDX-License-Identifier: Apache-2.0
//
// State of the emulated NCCL in one world (one simulation, or this process in live mode).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/emulator/engine.hpp"
#include "host/emulator/gin_network.hpp"
#include "host/emulator/include/nccl_device.h"
#include "host/emulator/nccl_job.hpp"
#include "host/emulator/nccl_rendezvous.hpp"

namespace gimlet::emu::nccl {

class World;

/// Memory that windows can be made of. Own allocations, and other processes' that are mapped here.
struct WindowMemory {
    WindowMemory() = default;
    ~WindowMemory();
    WindowMemory(const WindowMemory&) = delete;
    WindowMemory& operator=(const WindowMemory&) = delete;

    char* base = nullptr;
    size_t bytes = 0;      ///< mapped: whole pages
    int fd = -1;           ///< own allocations in live mode
    uint64_t serial = 0;   ///< unique in the owning process
    bool counted = false;  ///< in the engine's memory table
};

constexpr uint64_t kWindowMagic = 0x77646e77696c6d67;
constexpr uint64_t kDevCommMagic = 0x6d6f63766564676d;

}  // namespace gimlet::emu::nccl

/// One rank's view of a window. Stays readable after deregistration, so that late uses are found.
struct ncclWindow_vidmem {
    uint64_t magic = gimlet::emu::nccl::kWindowMagic;
    ncclComm* comm = nullptr;
    bool alive = true;
    bool resource = false;  ///< of a device communicator, not registered by the user
    int flags = 0;
    int rank = 0;
    int lsa_rank = 0;
    int lsa_size = 1;
    void* user_ptr = nullptr;
    std::vector<char*> bases;   ///< by world rank
    std::vector<size_t> sizes;  ///< by world rank
    std::vector<std::shared_ptr<gimlet::emu::nccl::WindowMemory>> mappings;
};

struct ncclComm {
    gimlet::emu::nccl::World* world = nullptr;
    int rank = 0;
    int ranks = 1;
    int device = 0;
    int lsa_size = 1;
    int lsa_rank = 0;
    ncclGinType_t gin = NCCL_GIN_TYPE_NONE;
    bool rail_only = false;
    bool ready = false;
    bool dead = false;  ///< destroyed or aborted
    uint32_t round = 0;
    std::shared_ptr<gimlet::emu::nccl::Rendezvous> rendezvous;
    std::string last_error;
    std::vector<ncclWindow_vidmem*> windows;

    bool symmetric() const { return lsa_size == ranks || gin != NCCL_GIN_TYPE_NONE; }
};

namespace gimlet::emu::nccl {

/// One rank's device communicator: where its words are, and its queues.
struct DevCommState {
    uint64_t magic = kDevCommMagic;
    World* world = nullptr;
    ncclComm* comm = nullptr;
    bool alive = true;
    ncclGinConnectionType_t connection = NCCL_GIN_CONNECTION_NONE;
    bool strong_signals = true;
    bool va_signals = true;
    uint32_t contexts = 0;
    uint32_t signals = 0;
    uint32_t counters = 0;
    unsigned queue_depth = 0;
    size_t signals_offset = 0;  ///< u64 [context][signal] in the resource window
    size_t kinds_offset = 0;    ///< u32 [context][signal]: which operation the signal has seen
    size_t shadows_offset = 0;  ///< u64 [context][signal]
    ncclWindow_vidmem* resources = nullptr;
    std::vector<uint64_t> counter_words;  ///< [context][counter]
    std::vector<std::vector<std::unique_ptr<GinQueue>>>
        queues;                ///< [context][world rank], made at first use
    std::set<int> lost_peers;  ///< have aborted: what is sent to them is lost
    std::map<std::pair<uint32_t, uint32_t>, ThreadPlace> lsa_barriers;  ///< (handle, index) in use
    std::map<std::pair<uint32_t, uint32_t>, ThreadPlace>
        gin_barriers;  ///< (first signal, context) in use

    uint64_t* signal_word(int rank, uint32_t context, uint32_t id) const {
        char* base = resources->bases[rank] + signals_offset;
        return reinterpret_cast<uint64_t*>(base) + size_t{context} * signals + id;
    }
    uint32_t* kind_word(int rank, uint32_t context, uint32_t id) const {
        char* base = resources->bases[rank] + kinds_offset;
        return reinterpret_cast<uint32_t*>(base) + size_t{context} * signals + id;
    }
};

/// A collective call that waits for its turn or for other ranks.
struct QueuedCall {
    ncclComm* comm;
    Job job;
    bool finished = false;
    uint64_t waiting_since_ns = 0;
};

/// Calls between ncclGroupStart and ncclGroupEnd of one host thread.
struct Group {
    int depth = 0;
    std::vector<QueuedCall> calls;
};

/// Everything of one world. The engine owns it, as the worker that moves the GIN network.
class World final : public Worker {
  public:
    /// The current world's, made at first use.
    static World& get();

    explicit World(Engine& engine);
    ~World() override;

    bool busy() const override { return network.busy(); }
    bool step(Rng& rng) override { return network.step(rng); }
    std::string describe() const override { return network.describe(); }
    uint64_t wakes_at_ns() const override { return network.wakes_at_ns(); }
    size_t move_count() override { return network.move_count(); }
    void move_number(size_t index, Rng& rng) override { network.move_number(index, rng); }

    Engine& engine;
    GinNetwork network;

    std::shared_ptr<WindowMemory> allocate(size_t bytes);
    /// Own allocation that holds [ptr, ptr + bytes); nullptr if none does.
    std::shared_ptr<WindowMemory> find_allocation(const void* ptr, size_t bytes);
    /// Another process's allocation, mapped here once.
    std::shared_ptr<WindowMemory> map_foreign(int pid, int fd, uint64_t serial, size_t bytes);

    std::shared_ptr<Rendezvous> new_rendezvous();
    std::shared_ptr<Rendezvous> find_rendezvous(const ncclUniqueId& id, std::string& error);
    void forget_rendezvous(const ncclUniqueId& id);

    ncclComm* new_comm();
    ncclWindow_vidmem* new_window();
    DevCommState* new_dev_comm();
    /// Gives back the memory of a device communicator that is no longer alive; what tells late uses
    /// stays. The caller holds `mutex`.
    void release_resources(DevCommState& state);
    /// Memory of a live rank is about to go. What the stopped rank still has on its way there finds
    /// no memory: a NIC refuses what is no longer registered. Called with the engine stopped.
    void drop_of_the_dead(const char* begin, size_t bytes);
    /// Forgets the oldest communicators, windows and device communicators that are no longer alive;
    /// the latest are kept, so that late uses are found. The caller holds `mutex`.
    void forget_old();

    Group& group();
    /// Runs a call now, or queues it when a group is open.
    ncclResult_t submit(ncclComm* comm, Job job);
    ncclResult_t drive(std::vector<QueuedCall>& calls);

    std::mutex mutex;  ///< around the containers below (host threads in live mode)
    std::map<const char*, std::shared_ptr<WindowMemory>> allocations;
    std::vector<std::unique_ptr<ncclComm>> comms;
    std::set<const ncclComm*> live_comms;
    std::vector<std::unique_ptr<ncclWindow_vidmem>> windows;
    std::set<const ncclWindow_vidmem*> live_windows;
    std::vector<std::unique_ptr<DevCommState>> dev_comms;

  private:
    bool advance(std::vector<QueuedCall>& calls);
    void check_deadlines(std::vector<QueuedCall>& calls);
    void wait_for_any(std::vector<QueuedCall>& calls);

    uint64_t next_nonce_ = 1;
    uint64_t next_serial_ = 1;
    std::map<uint64_t, std::shared_ptr<Rendezvous>> rendezvous_;
    std::map<std::pair<int, uint64_t>, std::weak_ptr<WindowMemory>> foreign_;
    std::map<int, Group> groups_;  ///< simulation: by host rank
};

/// Records why a call failed (comm may be nullptr) and returns `code`.
ncclResult_t fail(ncclComm* comm, ncclResult_t code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
/// nullptr comm, destroyed comm, comm of another world: the code to return; ncclSuccess if usable.
ncclResult_t check_comm(const ncclComm* comm, const char* call);

/// A window with memory behind it for every rank. Used for user windows and resource windows.
/// Each rank brings its allocation; payload and mapping are collective parts of the caller's job.
struct WindowPayload {
    int32_t status = ncclSuccess;
    int32_t pid = 0;
    int32_t fd = -1;
    int32_t flags = 0;
    uint64_t serial = 0;
    uint64_t allocation_bytes = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t base = 0;
    uint64_t extra = 0;  ///< must agree on all ranks
};
WindowPayload payload_of(const WindowMemory* allocation, const void* start, size_t bytes,
                         int flags);
/// Fills `window` from everybody's payloads of the round. On disagreement records and returns an
/// error.
ncclResult_t map_window(ncclComm* comm, ncclWindow_vidmem* window, uint32_t round,
                        const char* call);

}  // namespace gimlet::emu::nccl

// SPDX-License-Identifier: Apache-2.0
//
// The engine under everything emulated: fibers, virtual time, asynchronous workers. Internal to
// host/emulator; kernels and host programs see only the CUDA and NCCL headers in include/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "host/emulator/simulation.hpp"

namespace gimlet::emu {

/// Seeded generator (xoshiro256**). Every random decision of the emulator comes from one of these.
class Rng {
  public:
    explicit Rng(uint64_t seed = 1);

    uint64_t next() {
        const uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
        const uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = rotate_left(state_[3], 45);
        return result;
    }

    /// Uniform in [0, n); n must not be 0.
    uint64_t below(uint64_t n) {
        return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
    }

    bool chance(double p) { return static_cast<double>(next() >> 11) * 0x1.0p-53 < p; }

  private:
    static uint64_t rotate_left(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
    uint64_t state_[4];
};

/// An asynchronous agent of the machine: the bulk copy engine, the GIN network, ...
/// The engine calls it while no fiber runs, so it needs no locks; its functions must not yield or
/// wait.
struct Worker {
    virtual ~Worker();
    /// Something is in flight. It counts against deadlock only while step() can move something.
    virtual bool busy() const = 0;
    /// Makes one random legal move. Returns false when nothing is enabled now.
    virtual bool step(Rng& rng) = 0;
    /// For the deadlock table: what is in flight.
    virtual std::string describe() const = 0;
    /// Earliest time at which step() could move, if nothing but time keeps it; else the far future.
    virtual uint64_t wakes_at_ns() const { return ~uint64_t{0}; }
    /// For a Chooser: how many moves are legal now, and one of them. A worker without this list
    /// moves by step().
    virtual size_t move_count() { return 0; }
    virtual void move_number(size_t, Rng&) {}
};

class EngineCore;

/// The machine's clockwork. Simulation: everything, host programs too, runs as fibers on one
/// thread. Live: kernels run on one background thread of the process, host threads are real.
class Engine {
  public:
    /// The simulation's engine when called inside one, else the process's live engine (started at
    /// first use).
    static Engine& get();

    /// A poll point. Fiber: others may run first. Host thread in live mode: gives up its time
    /// slice. `what` must outlive the wait (a literal); it is what the deadlock table prints.
    void yield(const char* what);

    /// Blocks this fiber or host thread until `ready()` is true. `ready` is called with the engine
    /// stopped and must not yield. Throws when the run is being ended.
    void wait(const char* what, const std::function<bool()>& ready);

    /// Like wait(), but returns false instead of throwing when the run is being ended. For calls
    /// made in destructors.
    bool wait_unless_ended(const char* what, const std::function<bool()>& ready) noexcept;

    /// Blocks this fiber for a span of virtual time (host threads in live mode: real time).
    void sleep_ns(uint64_t span_ns, const char* what);

    /// Somebody stored, added or completed something: deadlock detection starts again from zero.
    void progress();

    /// Runs `body` while the engine is stopped. In a fiber or on the engine's own thread: at once.
    void locked(const std::function<void()>& body);

    Rng& rng();

    /// Virtual time in simulation, steady clock in live mode.
    uint64_t now_ns() const;

    void add_worker(std::shared_ptr<Worker> worker);
    void remove_worker(Worker* worker);

    /// Undefined behaviour was found: ends the run. The message is completed with the place and the
    /// seed. Fiber: throws through it. Worker: ends the run after the step. Live mode: prints and
    /// aborts the process.
    [[noreturn]] void refuse(const std::string& message);

    bool simulating() const;

    /// A host program measures time: when nothing moves, time goes on.
    void note_clock_read();

    /// For the race checker: a host program reads device memory, after it has synchronised.
    void note_host_read(const void* address, size_t bytes);
    /// Likewise: it has written device memory.
    void note_host_write(const void* address, size_t bytes);

    /// Rank of the current host fiber, or of the device whose thread this is; -1 outside a
    /// simulation.
    int host_rank() const;

    /// In live mode filled from GIMLET_EMU_* and NCCL_LSA_TEAM_SIZE.
    const SimOptions& options() const;

    /// The running thread's kernel uses this until it ends. Nothing in host code.
    void note_use(const void* thing);
    /// Name of a kernel that has not ended and uses this; empty if there is none.
    std::string user_of(const void* thing) const;

    /// Whether somebody wants events; ask before making a text.
    bool traced() const { return options().tracer != nullptr; }
    void event(TraceEvent::Kind kind, int rank, int track, std::string text);

    /// Stop, late and failing puts may happen now.
    bool faults_armed() const;
    /// Rank that the plan has stopped by now; -1 = none.
    int stopped_rank() const;

    EngineCore& core() { return core_; }
    explicit Engine(EngineCore& core) : core_(core) {}
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

  private:
    EngineCore& core_;
};

/// Where the running CUDA thread is. `device` is the rank in simulation. `block` and `thread` are
/// linear indices.
struct ThreadPlace {
    int device;
    unsigned block;
    unsigned thread;
    unsigned warp;
    unsigned lane;
    const char* kernel;
};

/// Whether the calling thread runs a simulation just now.
bool in_simulation();

/// The running CUDA thread's place; nullptr in host code.
const ThreadPlace* current_place();

}  // namespace gimlet::emu

// SPDX-License-Identifier: Apache-2.0
//
// Inside the engine: fibers on run lists, CTAs on SMs, virtual time. One EngineCore per world.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "host/emulator/engine.hpp"
#include "host/emulator/fiber.hpp"
#include "host/emulator/include/gimlet_emu_thread.hpp"
#include "host/emulator/watch.hpp"

namespace gimlet::emu {

class EngineCore;
class MemoryTable;
class StreamTable;
struct BulkEngine;
struct Cta;
struct Kernel;
struct Warp;

/// Thrown through fibers that must end because the run has ended.
struct RunEnded {};

/// What a host program (a fiber in simulation, a thread in live mode) has of its own.
struct HostContext {
    int rank = -1;
    int device = 0;
    int last_error = 0;
    int capture_mode = 0;  ///< cudaThreadExchangeStreamCaptureMode; 0 = global
};

enum class FiberKind : uint8_t { hub, host, device };

/// A schedulable fiber.
struct Task : Fiber {
    FiberKind kind = FiberKind::device;
    bool in_run_list = false;
    uint32_t run_index = 0;
    uint32_t priority_group = 0;  ///< fibers of one group are favoured together
    uint64_t id = 0;              ///< same in every run of a seed; goes into the trace hash
    const char* what = "";        ///< what it waits for
    unsigned yields_after_end = 0;
    unsigned idle_runs = 0;      ///< under a Chooser: runs in which nothing changed, in a row
    uint64_t progress_seen = 0;  ///< at the end of the last one
};

struct HostTask : Task {
    HostContext host;
    std::function<void()> program;
    const std::function<bool()>* ready = nullptr;  ///< while it waits
    bool unwinding = false;                        ///< it waits in a destructor, under an exception
    bool give_up = false;  ///< such waits are in vain, so that the exception can get out
};

/// State of one mbarrier; the 64-bit word in shared memory only names it.
struct MBarrier {
    const uint64_t* address = nullptr;
    uint32_t count = 0;    ///< arrivals per phase
    uint32_t pending = 0;  ///< arrivals missing in this phase
    int64_t pending_bytes = 0;
    uint64_t phase = 0;          ///< phases completed
    bool landed_unseen = false;  ///< copies landed in the last phase and nobody has waited for it
    bool bytes_in_phase = false;
    bool valid = false;
};

/// Bulk stores of one thread, by group. Groups count from 1.
struct BulkGroups {
    uint64_t open_group = 1;  ///< number of the group being filled
    uint64_t newest_store_group = 0;
    uint64_t read_waited_group = 0;  ///< newest group whose sources were waited for
    bool waiting = false;
};

struct DeviceTask : Task {
    dev::ThreadContext thread;
    ThreadPlace place{};
    Cta* cta = nullptr;
    Warp* warp = nullptr;
    BulkGroups bulk;
};

/// Lanes that met with one mask. Values are double-buffered by generation, so that a fast lane's
/// next deposit does not overwrite what a slow lane still reads.
struct WarpMeeting {
    uint32_t mask = 0;
    uint32_t arrived = 0;
    dev::WarpOp op = dev::WarpOp::sync;
    uint64_t generation = 0;
    uint32_t present[2] = {0, 0};
    uint64_t values[2][32];
};

struct Warp {
    uint32_t live = 0;
    DeviceTask* lanes[32] = {};
    WarpMeeting full;  // the common mask needs no search
    std::vector<std::unique_ptr<WarpMeeting>> partial;
};

struct BlockBarrier {
    unsigned arrived = 0;
    unsigned expected = 0;  ///< 0: all live threads (barrier 0 by __syncthreads)
    uint64_t generation = 0;
    dev::BlockReduce reduce = dev::BlockReduce::none;
    unsigned true_count = 0;
    int result[2] = {0, 0};
    std::vector<DeviceTask*> waiters;
};

constexpr int kBlockBarriers = 16;

/// Fresh memory holds this in every byte: NaN or huge as a float of any width, far off as an index
/// or epoch.
constexpr std::byte kPoisonByte{0x7f};

struct Cta {
    Kernel* kernel = nullptr;
    dev::BlockContext context;
    unsigned index = 0;
    int sm = -1;
    unsigned live = 0;
    uint64_t started_ns = 0;
    std::vector<DeviceTask> threads;
    std::vector<uint64_t> runnable;  ///< a bit for each thread: it is on the run list
    std::vector<Warp> warps;
    BlockBarrier barriers[kBlockBarriers];
    std::unique_ptr<std::byte[]> shared_storage;
    std::byte* shared = nullptr;
    size_t shared_bytes = 0;
    std::unique_ptr<std::byte[]>
        static_shared;  ///< this CTA's copy of the gimlet_shared section while switched out
    unsigned bulk_in_flight = 0;
    std::vector<MBarrier> mbarriers;  ///< in shared memory, by number
};

/// How to run a kernel; made at the API call, with the arguments already copied.
struct KernelLaunch {
    const void* function = nullptr;
    std::string name;
    dim3 grid;
    dim3 block;
    size_t shared_bytes = 0;
    bool cooperative = false;
    std::function<void()> call;
};

/// A launched kernel.
struct Kernel {
    ~Kernel();
    std::shared_ptr<const KernelLaunch> launch;
    int device = 0;
    uint64_t serial = 0;
    std::function<void()> on_done;
    unsigned block_count = 0;
    unsigned blocks_finished = 0;
    std::vector<unsigned> waiting;  ///< block indices not started yet, in reverse order
    std::vector<std::unique_ptr<Cta>> running;
    unsigned grid_arrived = 0;
    uint64_t grid_generation = 0;
    std::vector<DeviceTask*> grid_waiters;
    unsigned bulk_in_flight =
        0;  ///< stores that are not visible yet; the kernel is not over before
    std::vector<const void*> uses;  ///< what its threads have named: windows, communicators
};

struct Sm {
    unsigned threads = 0;
    unsigned blocks = 0;
    size_t shared_bytes = 0;
};

constexpr unsigned kThreadsPerSm = 2048;
constexpr unsigned kBlocksPerSm = 32;
constexpr unsigned kThreadsPerBlock = 1024;
constexpr size_t kSharedPerBlock = 227 * 1024;
constexpr size_t kSharedPerSm = 228 * 1024;
constexpr size_t kSharedReserved = 1024;
constexpr int kWarpLanes = 32;

struct Device {
    std::vector<Sm> sms;
    std::vector<std::unique_ptr<Kernel>> kernels;  ///< started and not finished, in order of start
};

/// CTAs of this shape that one SM holds at a time.
unsigned blocks_per_sm(unsigned threads, size_t shared_bytes);

class EngineCore {
  public:
    EngineCore(const SimOptions& options, int device_count, bool simulating);
    ~EngineCore();

    Engine& engine() { return engine_; }
    uint64_t serial() const { return serial_; }  ///< no other machine of this process has it

    // ---- scheduling (called in fibers)
    void yield(const char* what);
    void block(const char* what);  ///< off the run list until wake()
    void sleep_until(uint64_t when_ns, const char* what);
    void wake(Task* task);
    Task* current() { return current_; }
    DeviceTask& current_device_task();
    HostContext* host_context();
    bool in_fiber() const { return current_ != &hub_; }

    // ---- waiting of host programs
    bool host_wait(const char* what, const std::function<bool()>& ready);

    // ---- hub
    /// Runs until `done()`, or until the run fails. Simulation only.
    void run(const std::function<bool()>& done);
    /// One round of everything that is not a fiber, then a random number of fiber slices. Returns
    /// true if anything moved or made progress.
    bool hub_turn();
    /// Fibers that could run now.
    size_t runnable() const { return run_.size(); }
    bool any_asleep() const { return !asleep_.empty(); }
    bool any_worker_busy() const;
    void add_host(int rank, std::function<void()> program);
    bool rank_stopped() const { return stopped_rank_ >= 0; }
    int stopped_rank() const { return stopped_rank_; }
    bool faults_armed() const { return !options.faults.wait_until_armed || armed_; }
    void arm_faults();
    void event(TraceEvent::Kind kind, int rank, int track, std::string text) {
        options.tracer->event({kind, rank, track, now_ns(), steps_, std::move(text)});
    }
    unsigned hosts_running() const { return hosts_running_; }
    /// Ends every fiber: host programs by an exception, then threads likewise.
    void end_fibers();

    /// Adds a decision to the run's fingerprint.
    void trace(uint64_t value) { trace_hash_ = (trace_hash_ ^ value) * 0x100000001b3ull; }
    /// Calls a user's function with the engine's lock open (live mode).
    void call_unlocked(const std::function<void()>& call);

    // ---- a Chooser
    bool choosing() const { return options.chooser != nullptr && armed_; }
    uint32_t choose(uint32_t count) { return count > 1 ? options.chooser->choose(count) : 0; }

    // ---- failure
    void fail(const std::string& message);
    void fail_with(std::exception_ptr exception);
    bool failed() const { return failed_.load(std::memory_order_relaxed); }
    const std::string& failure() const { return failure_; }
    /// A better text for the failure, once the run is over.
    void explain_failure(const std::string& text) { failure_ = text; }
    std::exception_ptr failure_exception() const { return failure_exception_; }
    [[noreturn]] void stop_fiber();
    std::string deadlock_table() const;
    std::string place_text() const;

    // ---- devices
    int device_count() const { return static_cast<int>(devices_.size()); }
    void start_kernel(int device, std::shared_ptr<const KernelLaunch> launch,
                      std::function<void()> on_done);
    /// Threads that are resident at once if nothing else ran; for the check of cooperative
    /// launches.
    unsigned resident_blocks(const KernelLaunch& launch) const;
    void kernel_may_be_done(Kernel& kernel);
    const std::vector<Device>& devices() const { return devices_; }
    bool device_busy(int device) const { return !devices_[device].kernels.empty(); }

    // ---- state that everybody reads
    void progress() {
        progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        weak_budget_.store(kWeakProgressMax, std::memory_order_relaxed);
    }
    /// A barrier or warp meeting went through. It counts as progress for a bounded time only, or
    /// threads that poll and synchronise in turn would hide a deadlock.
    void weak_progress() {
        const unsigned left = weak_budget_.load(std::memory_order_relaxed);
        if (left == 0) return;
        weak_budget_.store(left - 1, std::memory_order_relaxed);
        progress_.store(progress_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    void add_steps(unsigned steps) { steps_ += steps; }
    void note_clock_read() { clock_was_read_ = true; }
    uint64_t now_ns() const;
    bool ended() const { return ending_ || failed(); }

    SimOptions options;
    const bool simulating;
    Rng rng;
    SimReport report;
    std::vector<std::shared_ptr<Worker>> workers;
    std::unique_ptr<StreamTable> streams;
    std::shared_ptr<BulkEngine> bulk;
    std::unique_ptr<MemoryTable> memory;
    std::unique_ptr<Watch> watch;  ///< simulation only, if asked for

    // ---- live mode: one lock around everything above
    std::mutex mutex;
    std::condition_variable engine_wakeup;
    std::condition_variable host_wakeup;
    std::atomic<int> lock_requests{0};
    std::atomic<int> host_waiters{0};

    /// The core of this OS thread: the simulation's, or live mode's on the engine thread.
    static EngineCore* of_this_thread();
    static void set_for_this_thread(EngineCore* core);

  private:
    friend class Engine;
    friend struct FiberMain;

    void switch_to(Task* next);
    /// An entry of the run list. The group is here, too: a choice looks at several entries, and
    /// their tasks are far apart.
    struct Runnable {
        Task* task;
        uint32_t priority_group;
    };
    struct Sleeper {
        uint64_t wake_ns;
        uint64_t id;
        Task* task;

        static bool wakes_later(const Sleeper& a, const Sleeper& b) {
            return a.wake_ns != b.wake_ns ? a.wake_ns > b.wake_ns : a.id > b.id;
        }
    };

    Task* pick();
    void insert(Task* task);
    void remove(Task* task);
    void put_to_sleep(Task* task, uint64_t wake_ns);
    uint64_t priority_of(const Runnable& entry) const;
    void check_ended(Task* self);

    bool step_workers();
    bool wake_sleepers();
    bool wake_hosts();
    bool start_blocks();
    bool start_some_blocks(Kernel& kernel);
    int find_sm(const Kernel& kernel) const;
    void start_block(Kernel& kernel, int sm, unsigned index);
    void reap();
    void finish_cta(Cta& cta);
    void finish_kernel(Kernel& kernel);
    void run_fibers();
    bool take_chosen_turn();
    void run_chosen(Task* task);
    void stop_rank(int rank);
    void judge_progress(bool moved);
    void jump_time();
    void jump_to(uint64_t target_ns);
    bool release_unwinding_hosts();
    void unwind(Task* task);
    bool allowed_to_run(const Task* task) const;
    bool is_slow(const Task* task) const;
    void plan_rest();
    bool rests(const Task* task);
    Task* pick_any();
    Task* pick_far();
    Task* pick_near();
    void look_at_crowd();
    [[noreturn]] void exit_fiber(Task* task);

    void thread_finished(DeviceTask& task);
    void warp_lane_left(Warp& warp);
    void load_cta(Cta* next);

    static inline std::atomic<uint64_t> made_{0};
    const uint64_t serial_ = ++made_;
    Engine engine_;
    Task hub_;
    Task* current_ = &hub_;
    Task* last_chosen_ = nullptr;
    int budget_ = 0;
    int spin_budget_ = 0;
    std::vector<Runnable> run_;
    std::vector<Sleeper> asleep_;  // heap by wake_ns
    unsigned live_threads_ = 0;    // of blocks that have started and not ended
    bool crowded_ = false;
    Cta* near_cta_ = nullptr;  // in a crowd: the block that this slice keeps to
    std::vector<Task*> finished_;
    std::vector<Kernel*> starting_;  // kernels with blocks that wait for an SM
    int stopped_rank_ = -1;
    bool armed_ = false;
    uint64_t armed_at_step_ = 0;
    uint64_t rest_begins_ns_ = 0;
    uint64_t rest_ends_ns_ = 0;  // 0: nobody rests any more
    std::deque<HostTask> hosts_;
    unsigned hosts_running_ = 0;
    std::vector<HostTask*> host_waits_;
    std::vector<Device> devices_;
    std::set<std::string> kernel_names_;
    Cta* loaded_cta_ = nullptr;  ///< whose blockIdx and static shared variables are in place

    uint64_t steps_ = 0;
    uint64_t switches_ = 0;
    uint64_t jumped_ns_ = 0;  ///< all virtual time but that of the steps after timed_steps_
    uint64_t timed_steps_ = 0;
    unsigned time_shift_ = 0;  ///< in a crowd a step takes less: its threads run side by side
    uint64_t trace_hash_ = 0xcbf29ce484222325ull;
    uint64_t next_task_id_ = 1;
    uint64_t next_kernel_serial_ = 1;
    uint64_t priority_epoch_ = 0;
    uint64_t priority_epoch_ends_ = 0;

    static constexpr unsigned kWeakProgressMax = 1u << 20;
    std::atomic<uint64_t> progress_{0};
    std::atomic<unsigned> weak_budget_{kWeakProgressMax};
    uint64_t progress_seen_ = 0;
    uint64_t quiet_since_step_ = 0;
    unsigned quiet_rounds_ = 0;
    uint64_t quiet_started_ns_ = 0;
    uint64_t quiet_started_step_ = 0;
    bool clock_was_read_ = false;
    bool held_back_ = false;  ///< the fault plan made a busy worker miss its last turn

    std::atomic<bool> failed_{false};
    bool ending_ = false;
    std::string failure_;
    std::exception_ptr failure_exception_;
};

inline EngineCore& core() {
    return Engine::get().core();
}

}  // namespace gimlet::emu

// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/live.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "host/emulator/stream.hpp"

namespace gimlet::emu {
namespace {

using std::chrono::microseconds;

constexpr int kTurnsPerLock = 16;  // hub turns between two looks at who wants the lock
constexpr unsigned kIdleSleepUs = 50;
constexpr unsigned kHostPollUs = 200;  // other processes may change what a host thread waits for
constexpr unsigned kDefaultHangReportS = 60;

long env_number(const char* name, long fallback, long low, long high) {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') return fallback;
    char* end = nullptr;
    const long value = std::strtol(text, &end, 0);
    if (*end != '\0' || value < low || value > high) {
        std::fprintf(stderr, "gimlet emulator: %s=%s is not a number in [%ld, %ld]; using %ld\n",
                     name, text, low, high, fallback);
        return fallback;
    }
    return value;
}

SimOptions options_from_environment() {
    SimOptions options;
    options.ranks = 0;
    options.seed = static_cast<uint64_t>(env_number("GIMLET_EMU_SEED", 1, 0, INT64_MAX));
    options.sm_count = static_cast<int>(env_number("GIMLET_EMU_SMS", 8, 1, 1024));
    options.lsa_team_size = static_cast<int>(env_number("NCCL_LSA_TEAM_SIZE", 0, 0, 1 << 20));
    const char* gin = std::getenv("GIMLET_EMU_GIN");
    if (gin != nullptr) {
        if (std::strcmp(gin, "off") == 0) {
            options.gin = GinMode::off;
        } else if (std::strcmp(gin, "proxy") == 0) {
            options.gin = GinMode::proxy;
        } else if (std::strcmp(gin, "gdaki") != 0) {
            std::fprintf(stderr,
                         "gimlet emulator: GIMLET_EMU_GIN=%s is none of off, gdaki, proxy; "
                         "using gdaki\n",
                         gin);
        }
    }
    return options;
}

struct LiveWorld {
    LiveWorld()
        : core(options_from_environment(),
               static_cast<int>(env_number("GIMLET_EMU_DEVICES", 16, 1, 1024)), false),
          hang_report_s(static_cast<unsigned>(
              env_number("GIMLET_EMU_HANG_REPORT_S", kDefaultHangReportS, 0, 1 << 20))) {}

    void main();
    void idle(std::unique_lock<std::mutex>& lock);
    void report_hang();

    EngineCore core;
    unsigned hang_report_s;
    std::atomic<bool> stopping{false};
    std::atomic<bool> stopped{false};
    uint64_t last_moved_ns = 0;
    bool hang_reported = false;
    std::thread thread;
};

LiveWorld* world = nullptr;

thread_local int lock_depth = 0;

void LiveWorld::report_hang() {
    if (hang_report_s == 0 || hang_reported) return;
    if (core.runnable() == 0 && core.streams->idle()) return;
    if (core.now_ns() - last_moved_ns < hang_report_s * 1000000000ull) return;
    hang_reported = true;
    std::fprintf(stderr, "gimlet emulator: no progress for %u s (GIMLET_EMU_HANG_REPORT_S)\n%s",
                 hang_report_s, core.deadlock_table().c_str());
}

void LiveWorld::idle(std::unique_lock<std::mutex>& lock) {
    report_hang();
    // Threads that poll wait for other processes: short sleeps. Nothing to do at all: until
    // somebody calls.
    const bool something = core.runnable() > 0 || core.any_asleep() || core.any_worker_busy();
    core.engine_wakeup.wait_for(lock, something ? microseconds(kIdleSleepUs) : microseconds(20000));
}

void LiveWorld::main() {
    EngineCore::set_for_this_thread(&core);
    UnseenScope unseen;
    std::unique_lock lock(core.mutex);
    unsigned quiet_turns = 0;
    while (!stopping.load()) {
        bool moved = false;
        for (int i = 0; i < kTurnsPerLock && core.lock_requests.load() == 0; ++i) {
            moved = core.hub_turn() || moved;
        }
        if (moved) {
            quiet_turns = 0;
            hang_reported = false;
            last_moved_ns = core.now_ns();
            if (core.host_waiters.load() > 0) core.host_wakeup.notify_all();
        }
        if (core.lock_requests.load() > 0) {
            lock.unlock();
            while (core.lock_requests.load() > 0 && !stopping.load()) std::this_thread::yield();
            lock.lock();
            quiet_turns = 0;
            continue;
        }
        if (moved) continue;
        // Everybody that could run has run about four times in vain.
        if (++quiet_turns * 32u * kTurnsPerLock > 4 * core.runnable()) {
            idle(lock);
        }
    }
    lock.unlock();
    EngineCore::set_for_this_thread(nullptr);
    stopped.store(true);
    core.host_wakeup.notify_all();
}

// The world itself is never destroyed: static objects that are destroyed later may still call the
// CUDA API, and then find an engine that has stopped.
void stop_at_exit() {
    if (world == nullptr || world->stopped.load()) return;
    world->stopping.store(true);
    world->core.engine_wakeup.notify_all();
    if (world->thread.joinable()) world->thread.join();
}

}  // namespace

EngineCore& live_core() {
    static const bool started = [] {
        world = new LiveWorld;
        world->thread = std::thread([] { world->main(); });
        std::atexit(stop_at_exit);
        happens_before(&world);
        return true;
    }();
    (void)started;
    happens_after(&world);  // TSAN does not see the guard of `started` in these files
    return world->core;
}

HostContext* live_host_context() {
    thread_local HostContext context;
    return &context;
}

LiveLock::LiveLock(EngineCore& core) : core_(core) {
    if (EngineCore::of_this_thread() == &core_)
        return;  // fibers and the engine itself hold it already
    if (lock_depth++ > 0) return;
    core_.lock_requests.fetch_add(1);
    core_.mutex.lock();
}

LiveLock::~LiveLock() {
    if (EngineCore::of_this_thread() == &core_) return;
    if (--lock_depth > 0) return;
    core_.mutex.unlock();
    core_.lock_requests.fetch_sub(1);
    core_.engine_wakeup.notify_one();
}

bool live_host_wait(EngineCore& core, const char* what,
                    const std::function<bool()>& ready) noexcept {
    (void)what;
    core.host_waiters.fetch_add(1);
    bool done = false;
    while (!done && !world->stopped.load()) {
        core.lock_requests.fetch_add(1);
        std::unique_lock lock(core.mutex);
        core.lock_requests.fetch_sub(1);
        ++lock_depth;
        done = ready();
        --lock_depth;
        if (!done) {
            core.engine_wakeup.notify_one();
            core.host_wakeup.wait_for(lock, microseconds(kHostPollUs));
        }
    }
    core.host_waiters.fetch_sub(1);
    return done;
}

void EngineCore::call_unlocked(const std::function<void()>& call) {
    if (simulating) {
        call();
        return;
    }
    mutex.unlock();
    call();
    mutex.lock();
}

}  // namespace gimlet::emu

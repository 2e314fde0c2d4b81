// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/simulation.hpp"

#include <cstring>

#include "host/emulator/core.hpp"
#include "host/emulator/memory.hpp"
#include "host/emulator/stream.hpp"

namespace gimlet::emu {
namespace {

// What the host programs of one simulation exchange.
struct Exchange {
    int arrived = 0;
    uint64_t generation = 0;
    std::vector<std::vector<std::byte>> gathering;
    std::vector<std::vector<std::byte>> gathered[2];
};

Exchange* exchange = nullptr;

Exchange& current_exchange(const char* call) {
    EngineCore* const core = EngineCore::of_this_thread();
    if (exchange == nullptr || core == nullptr || core->host_context() == nullptr) {
        throw std::logic_error(std::string(call) +
                               " was called outside a host program of simulate()");
    }
    return *exchange;
}

void check_options(const SimOptions& options) {
    const auto require = [](bool holds, const std::string& text) {
        if (!holds) throw std::invalid_argument("SimOptions: " + text);
    };
    require(options.ranks >= 1, "ranks = " + std::to_string(options.ranks) + " must be at least 1");
    require(options.sm_count >= 1,
            "sm_count = " + std::to_string(options.sm_count) + " must be at least 1");
    require(options.lsa_team_size >= 0,
            "lsa_team_size = " + std::to_string(options.lsa_team_size) + " must not be negative");
    const FaultPlan& faults = options.faults;
    require(faults.slow_factor >= 1, "faults.slow_factor = 0 must be at least 1");
    require(faults.delay_mean_ns == 0 || faults.delay_mean_ns >= faults.delay_min_ns,
            "faults.delay_mean_ns = " + std::to_string(faults.delay_mean_ns) +
                " must not be below delay_min_ns = " + std::to_string(faults.delay_min_ns));
    require(options.gin_contexts_max >= 0 && options.gin_queue_depth >= 1,
            "gin_contexts_max must not be negative and gin_queue_depth at least 1");
}

// Undoes what simulate() set for this thread, however it ends.
struct ThreadScope {
    explicit ThreadScope(EngineCore& core, Exchange& data) {
        EngineCore::set_for_this_thread(&core);
        dev::active_watch = core.watch.get();
        exchange = &data;
    }
    ~ThreadScope() {
        EngineCore::set_for_this_thread(nullptr);
        dev::active_watch = nullptr;
        exchange = nullptr;
    }
};

[[noreturn]] void report_failure(const EngineCore& core) {
    if (core.failure_exception()) std::rethrow_exception(core.failure_exception());
    throw SimFailure(core.failure() + "\n[seed " + std::to_string(core.options.seed) + "]",
                     core.options.seed, core.report);
}

}  // namespace

SimReport simulate(const SimOptions& options, const std::function<void(int rank)>& host_program) {
    if (EngineCore::of_this_thread() != nullptr) {
        throw std::logic_error("simulate() was called inside a simulation");
    }
    check_options(options);
    Exchange data;
    data.gathering.resize(options.ranks);
    EngineCore core(options, options.ranks, true);
    // ThreadSanitizer has clocks of its own; the watch's late stores would be races to it.
    if (options.memory.any() && !kThreadSanitizer)
        core.watch = std::make_unique<Watch>(core, options.memory);
    {
        ThreadScope scope(core, data);
        UnseenScope unseen;
        for (int rank = 0; rank < options.ranks; ++rank) {
            core.add_host(rank, [&host_program, rank] { host_program(rank); });
        }
        core.run([&core] { return core.hosts_running() == 0; });
        // Work that nobody waited for still has to come to an end.
        if (!core.failed() && !core.rank_stopped()) {
            core.run([&core] { return core.streams->idle(); });
        }
        core.report.peak_bytes = core.memory->peak_bytes();
        core.end_fibers();
        happens_after(&core);
        for (const Device& device : core.devices()) happens_after(&device);
    }
    if (core.watch != nullptr) {
        core.report.accesses_watched = core.watch->accesses_seen();
        const std::string race = core.watch->race_text();
        if (!race.empty()) core.explain_failure(race);
    }
    if (core.failed()) report_failure(core);
    return core.report;
}

void host_barrier() {
    host_all_gather(nullptr, 0);
}

void arm_faults() {
    host_barrier();
    EngineCore& core = *EngineCore::of_this_thread();
    const FaultPlan& faults = core.options.faults;
    if (!faults.wait_until_armed) return;
    if (!core.faults_armed()) core.arm_faults();
    if (core.host_context()->rank == faults.late_rank) {
        if (core.options.tracer != nullptr)
            core.event(TraceEvent::Kind::begin, faults.late_rank, 0, "late (fault)");
        core.engine().sleep_ns(faults.late_ns, "late rank (fault)");
        if (core.options.tracer != nullptr)
            core.event(TraceEvent::Kind::end, faults.late_rank, 0, "late (fault)");
    }
}

std::vector<std::vector<std::byte>> host_all_gather(const void* bytes_in, size_t bytes) {
    Exchange& data = current_exchange("host_all_gather");
    EngineCore& core = *EngineCore::of_this_thread();
    const int rank = core.host_context()->rank;
    UnseenScope unseen;
    const auto* const first = static_cast<const std::byte*>(bytes_in);
    data.gathering[rank].assign(first, first + bytes);
    const uint64_t generation = data.generation;
    happens_before(&data);
    if (Watch* const watching = watch()) watching->release(&data);
    if (++data.arrived == core.options.ranks) {
        data.arrived = 0;
        data.gathered[generation & 1] = data.gathering;
        ++data.generation;
        core.progress();
    }
    core.engine().wait("host_all_gather / host_barrier",
                       [&data, generation] { return data.generation != generation; });
    happens_after(&data);
    if (Watch* const watching = watch()) watching->acquire(&data);
    return data.gathered[generation & 1];
}

}  // namespace gimlet::emu

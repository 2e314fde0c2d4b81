// SPDX-License-Identifier: Apache-2.0
//
// Warps, CTAs and grids: meetings, barriers, votes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host/emulator/bulk.hpp"
#include "host/emulator/core.hpp"
#include "host/emulator/include/gimlet_emu_device.hpp"

// Static __shared__ variables of programs live in this section; one CTA's values are in it at a
// time. The linker makes the two symbols when any object has such variables.
extern "C" {
extern char __start_gimlet_shared[] __attribute__((weak));
extern char __stop_gimlet_shared[] __attribute__((weak));
}

namespace gimlet::emu {
namespace {

size_t static_shared_bytes() {
    return __start_gimlet_shared == nullptr
               ? 0
               : static_cast<size_t>(__stop_gimlet_shared - __start_gimlet_shared);
}

bool all_here(const Warp& warp, const WarpMeeting& meeting) {
    return meeting.arrived != 0 && (meeting.arrived & warp.live) == (meeting.mask & warp.live);
}

// The last lane has come (or left): the others go on.
void complete_meeting(EngineCore& core, Warp& warp, WarpMeeting& meeting, const DeviceTask* self) {
    meeting.present[meeting.generation & 1] = meeting.arrived;
    const uint32_t arrived = meeting.arrived;
    meeting.arrived = 0;
    ++meeting.generation;
    if (Watch* const watching = watch()) watching->complete(&meeting);
    for (uint32_t left = arrived; left != 0; left &= left - 1) {
        DeviceTask* lane = warp.lanes[__builtin_ctz(left)];
        if (lane != self && !lane->finished) core.wake(lane);
    }
    core.weak_progress();
}

void complete_barrier(EngineCore& core, BlockBarrier& barrier, unsigned live) {
    int result = 0;
    switch (barrier.reduce) {
        case dev::BlockReduce::none: break;
        case dev::BlockReduce::any: result = barrier.true_count > 0; break;
        case dev::BlockReduce::all: result = barrier.true_count == live; break;
        case dev::BlockReduce::count: result = static_cast<int>(barrier.true_count); break;
    }
    barrier.result[barrier.generation & 1] = result;
    ++barrier.generation;
    if (Watch* const watching = watch()) watching->complete(&barrier);
    barrier.arrived = 0;
    barrier.expected = 0;
    barrier.true_count = 0;
    for (DeviceTask* waiter : barrier.waiters) core.wake(waiter);
    barrier.waiters.clear();
    core.weak_progress();
}

// `live` counts threads that have not returned; Cta::live counts those not reaped, so it lags
// behind.
unsigned live_threads(const Cta& cta) {
    unsigned live = 0;
    for (const Warp& warp : cta.warps) live += static_cast<unsigned>(__builtin_popcount(warp.live));
    return live;
}

WarpMeeting& meeting_of(Warp& warp, uint32_t mask) {
    if (mask == 0xffffffffu) {
        warp.full.mask = mask;
        return warp.full;
    }
    for (auto& meeting : warp.partial) {
        if (meeting->mask == mask) return *meeting;
    }
    warp.partial.push_back(std::make_unique<WarpMeeting>());
    warp.partial.back()->mask = mask;
    return *warp.partial.back();
}

}  // namespace

void EngineCore::load_cta(Cta* next) {
    blockIdx = next->context.block_index;
    blockDim = next->context.block_dim;
    gridDim = next->context.grid_dim;
    const size_t bytes = static_shared_bytes();
    Cta* const previous = loaded_cta_;
    loaded_cta_ = next;
    if (bytes == 0) return;
    UnseenScope unseen;
    if (previous != nullptr) {
        if (!previous->static_shared) previous->static_shared.reset(new std::byte[bytes]);
        std::memcpy(previous->static_shared.get(), __start_gimlet_shared, bytes);
    }
    if (next->static_shared) {
        std::memcpy(__start_gimlet_shared, next->static_shared.get(), bytes);
    } else {
        std::memset(__start_gimlet_shared, static_cast<int>(kPoisonByte), bytes);
    }
}

void EngineCore::warp_lane_left(Warp& warp) {
    if (all_here(warp, warp.full)) complete_meeting(*this, warp, warp.full, nullptr);
    for (auto& meeting : warp.partial) {
        if (all_here(warp, *meeting)) complete_meeting(*this, warp, *meeting, nullptr);
    }
}

void EngineCore::thread_finished(DeviceTask& task) {
    UnseenScope unseen;
    bulk->thread_finished(task);
    Cta& cta = *task.cta;
    task.warp->live &= ~(1u << task.place.lane);
    warp_lane_left(*task.warp);
    for (BlockBarrier& barrier : cta.barriers) {
        if (barrier.arrived != 0 && barrier.expected == 0 && barrier.arrived >= live_threads(cta)) {
            complete_barrier(*this, barrier, barrier.arrived);
        }
    }
}

}  // namespace gimlet::emu

#define GIMLET_EMU_BUILTIN(type, name) \
    constinit __attribute__((tls_model("initial-exec"))) thread_local type name {}
GIMLET_EMU_BUILTIN(uint3, threadIdx);
GIMLET_EMU_BUILTIN(uint3, blockIdx);
GIMLET_EMU_BUILTIN(dim3, blockDim);
GIMLET_EMU_BUILTIN(dim3, gridDim);
#undef GIMLET_EMU_BUILTIN

namespace gimlet::emu::dev {

__attribute__((tls_model("initial-exec"))) __thread const ThreadContext* running_thread = nullptr;

void no_thread() {
    std::fprintf(stderr, "gimlet emulator: device code was called from host code\n");
    std::abort();
}

namespace {

EngineCore& here() {
    if (running_thread == nullptr) no_thread();
    return *EngineCore::of_this_thread();
}

int barrier_sync(EngineCore& core, DeviceTask& task, int id, unsigned expected, BlockReduce reduce,
                 bool predicate, bool waits) {
    UnseenScope unseen;
    Cta& cta = *task.cta;
    BlockBarrier& barrier = cta.barriers[id];
    if (barrier.arrived != 0 && (barrier.expected != expected || barrier.reduce != reduce)) {
        core.engine().refuse("threads of one block meet at barrier " + std::to_string(id) +
                             " with different thread counts or operations (" +
                             std::to_string(barrier.expected) + " and " + std::to_string(expected) +
                             ")");
    }
    happens_before(&barrier);
    if (Watch* const watching = watch()) watching->release(&barrier);
    barrier.expected = expected;
    barrier.reduce = reduce;
    barrier.true_count += predicate ? 1 : 0;
    ++barrier.arrived;
    const uint64_t generation = barrier.generation;
    const unsigned needed = expected != 0 ? expected : live_threads(cta);
    if (barrier.arrived >= needed) {
        complete_barrier(core, barrier, barrier.arrived);
        if (waits) core.yield("block barrier");
    } else if (waits) {
        barrier.waiters.push_back(&task);
        while (barrier.generation == generation) {
            core.block(id == 0 ? "__syncthreads" : "named barrier");
        }
    }
    if (waits) happens_after(&barrier);
    if (Watch* const watching = watch(); waits && watching != nullptr) watching->leave(&barrier);
    return barrier.result[generation & 1];
}

void check_named(EngineCore& core, int id, int thread_count, const char* call) {
    if (id < 0 || id >= kBlockBarriers || thread_count <= 0 || thread_count % kWarpLanes != 0) {
        core.engine().refuse(std::string(call) + ": barrier " + std::to_string(id) + " with " +
                             std::to_string(thread_count) +
                             " threads; ids are 0 to 15 and counts multiples of 32");
    }
}

}  // namespace

uint32_t lane_index() {
    return here().current_device_task().place.lane;
}

WarpValues warp_meet(uint32_t mask, WarpOp op, uint64_t value) {
    UnseenScope unseen;
    EngineCore& core = here();
    DeviceTask& task = core.current_device_task();
    Warp& warp = *task.warp;
    const uint32_t bit = 1u << task.place.lane;
    if ((mask & bit) == 0) {
        core.engine().refuse("a lane calls a warp operation with a mask that does not name it");
    }
    WarpMeeting& meeting = meeting_of(warp, mask);
    if (meeting.arrived != 0 && meeting.op != op) {
        core.engine().refuse("lanes of one warp meet in different warp operations");
    }
    happens_before(&meeting);
    // Of the warp operations only __syncwarp orders memory.
    Watch* const watching = op == WarpOp::sync ? watch() : nullptr;
    if (watching != nullptr) watching->release(&meeting);
    meeting.op = op;
    meeting.arrived |= bit;
    const uint64_t generation = meeting.generation;
    const int parity = static_cast<int>(generation & 1);
    meeting.values[parity][task.place.lane] = value;
    if (all_here(warp, meeting)) {
        complete_meeting(core, warp, meeting, &task);
        core.yield("warp operation");
    } else {
        static constexpr const char* kNames[] = {"__syncwarp", "shuffle", "vote", "match",
                                                 "reduce"};
        while (meeting.generation == generation) core.block(kNames[static_cast<int>(op)]);
    }
    happens_after(&meeting);
    if (watching != nullptr) watching->leave(&meeting);
    return {meeting.values[parity], meeting.present[parity]};
}

int block_sync(BlockReduce reduce, int predicate) {
    EngineCore& core = here();
    return barrier_sync(core, core.current_device_task(), 0, 0, reduce, predicate != 0, true);
}

void named_barrier_sync(int id, int thread_count) {
    EngineCore& core = here();
    check_named(core, id, thread_count, "named_barrier_sync");
    barrier_sync(core, core.current_device_task(), id, static_cast<unsigned>(thread_count),
                 BlockReduce::none, false, true);
}

void named_barrier_arrive(int id, int thread_count) {
    EngineCore& core = here();
    check_named(core, id, thread_count, "named_barrier_arrive");
    barrier_sync(core, core.current_device_task(), id, static_cast<unsigned>(thread_count),
                 BlockReduce::none, false, false);
}

bool grid_is_cooperative() {
    return here().current_device_task().cta->kernel->launch->cooperative;
}

void grid_sync() {
    UnseenScope unseen;
    EngineCore& core = here();
    DeviceTask& task = core.current_device_task();
    Kernel& kernel = *task.cta->kernel;
    if (!kernel.launch->cooperative) {
        core.engine().refuse("grid sync in a kernel that was not launched cooperatively");
    }
    const unsigned threads = kernel.block_count * static_cast<unsigned>(task.cta->threads.size());
    happens_before(&kernel);
    Watch* const watching = watch();
    if (watching != nullptr) watching->release(&kernel.grid_generation);
    const uint64_t generation = kernel.grid_generation;
    if (++kernel.grid_arrived == threads) {
        kernel.grid_arrived = 0;
        ++kernel.grid_generation;
        for (DeviceTask* waiter : kernel.grid_waiters) core.wake(waiter);
        kernel.grid_waiters.clear();
        if (watching != nullptr) watching->complete(&kernel.grid_generation);
        core.progress();
        core.yield("grid sync");
    } else {
        kernel.grid_waiters.push_back(&task);
        while (kernel.grid_generation == generation) core.block("grid sync");
    }
    happens_after(&kernel);
    if (watching != nullptr) watching->leave(&kernel.grid_generation);
}

void trap(const char* message) {
    EngineCore& core = here();
    core.engine().refuse(std::string("trap: ") + message);
}

void poll_point() {
    if (running_thread != nullptr) EngineCore::of_this_thread()->yield("polled memory");
}

void store_point() {
    if (running_thread == nullptr) return;
    EngineCore& core = *EngineCore::of_this_thread();
    core.progress();
    // Sometimes the next thread runs before this one goes on.
    if (core.choosing() || core.rng.below(8) == 0) core.yield("stored");
}

uint64_t now_ns() {
    EngineCore& core = here();
    core.note_clock_read();
    core.yield("clock");
    return core.now_ns();
}

void sleep_ns(uint32_t span_ns) {
    EngineCore& core = here();
    core.sleep_until(core.now_ns() + span_ns, "nanosleep");
}

void* dynamic_shared() {
    return here().current_device_task().cta->shared;
}

uint32_t dynamic_shared_bytes() {
    return static_cast<uint32_t>(here().current_device_task().cta->shared_bytes);
}

}  // namespace gimlet::emu::dev

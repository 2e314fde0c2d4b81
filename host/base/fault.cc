// SPDX-License-Identifier: Apache-2.0
#include "host/base/fault.hpp"

#include <array>
#include <atomic>
#include <mutex>

namespace gimlet {

namespace {

struct Slot {
    bool armed = false;
    int rank = kNoRank;
    int skip = 0;
    int fired = 0;
};

std::atomic<int> armed_count{0};
std::mutex slots_mutex;
std::array<Slot, kFaultPointCount> slots;

Slot& slot_of(FaultPoint point) {
    return slots[static_cast<std::size_t>(point)];
}

}  // namespace

const char* fault_point_name(FaultPoint point) noexcept {
    switch (point) {
        case FaultPoint::communicator_create: return "communicator_create";
        case FaultPoint::window_allocate: return "window_allocate";
        case FaultPoint::window_register: return "window_register";
        case FaultPoint::window_null: return "window_null";
        case FaultPoint::device_comm_create: return "device_comm_create";
        case FaultPoint::host_allocate: return "host_allocate";
        case FaultPoint::device_allocate: return "device_allocate";
    }
    return "unknown";
}

bool fault_hit(FaultPoint point, int rank) noexcept {
    if (armed_count.load(std::memory_order_relaxed) == 0) return false;
    const std::lock_guard lock(slots_mutex);
    Slot& slot = slot_of(point);
    if (!slot.armed) return false;
    if (slot.rank != kNoRank && slot.rank != rank) return false;
    if (slot.skip > 0) {
        --slot.skip;
        return false;
    }
    // With a rank given the fault is spent after one hit; without one every rank gets its own.
    if (slot.rank != kNoRank) slot.armed = false;
    ++slot.fired;
    return true;
}

FaultScope::FaultScope(FaultPoint point, int rank, int skip) : point_(point) {
    const std::lock_guard lock(slots_mutex);
    Slot& slot = slot_of(point);
    if (slot.armed) {
        raise(ErrorCode::invalid_usage, rank, "fault point {} has a scope already",
              fault_point_name(point));
    }
    slot = Slot{true, rank, skip, 0};
    armed_count.fetch_add(1, std::memory_order_relaxed);
}

FaultScope::~FaultScope() {
    const std::lock_guard lock(slots_mutex);
    slot_of(point_).armed = false;
    armed_count.fetch_sub(1, std::memory_order_relaxed);
}

int FaultScope::fired() const noexcept {
    const std::lock_guard lock(slots_mutex);
    return slot_of(point_).fired;
}

}  // namespace gimlet

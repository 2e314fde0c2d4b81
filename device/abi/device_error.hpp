// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gimlet {

/// The waiting (or refusing) primitive named in a DeviceError.
enum class Primitive : std::uint32_t {
    none = 0,
    grid_barrier = 1,
    nvlink_barrier = 2,
    gin_barrier = 3,
    block_barrier = 4,
    count_exchange = 5,
    dispatch_arrival = 6,
    combine_ready = 7,
    combine_chunk = 8,
    user = 9,
    rail_dispatch = 10,
    rail_combine = 11,
    fifo_reserve = 12,
    fifo_wait = 13,
    windowed_tail = 14,
    pipeline = 15,
    ready_block = 16,
};

constexpr const char* name_of(Primitive primitive) {
    switch (primitive) {
        case Primitive::none: return "none";
        case Primitive::grid_barrier: return "grid_barrier";
        case Primitive::nvlink_barrier: return "nvlink_barrier";
        case Primitive::gin_barrier: return "gin_barrier";
        case Primitive::block_barrier: return "block_barrier";
        case Primitive::count_exchange: return "count_exchange";
        case Primitive::dispatch_arrival: return "dispatch_arrival";
        case Primitive::combine_ready: return "combine_ready";
        case Primitive::combine_chunk: return "combine_chunk";
        case Primitive::user: return "user";
        case Primitive::rail_dispatch: return "rail_dispatch";
        case Primitive::rail_combine: return "rail_combine";
        case Primitive::fifo_reserve: return "fifo_reserve";
        case Primitive::fifo_wait: return "fifo_wait";
        case Primitive::windowed_tail: return "windowed_tail";
        case Primitive::pipeline: return "pipeline";
        case Primitive::ready_block: return "ready_block";
    }
    return "?";
}

enum class DeviceFault : std::uint32_t {
    none = 0,
    timed_out = 1,            ///< a wait outlived its deadline
    expert_out_of_range = 2,  ///< seen = expert index, expected = number of experts
    duplicate_expert = 3,     ///< seen = expert index; one token named it twice
    capacity_exceeded = 4,    ///< seen = rows that would arrive, expected = rows that fit
    mode_mismatch = 5,        ///< a peer ran another kind of step (fresh against cached)
    peer_refused = 6,         ///< a peer found a fault in its own input and sent nothing
    host_refused = 7,         ///< this rank's host found a fault in the arguments of the call
    wrong_buffer = 8,         ///< a graph was launched in a step of the other parity than captured
    cut_short = 9,    ///< another rank has reported a wait in vain: this one ended before its own
                      ///< deadline
    rails_left = 10,  ///< a graph of hybrid mode was launched after ranks had been excluded
};

constexpr const char* name_of(DeviceFault fault) {
    switch (fault) {
        case DeviceFault::none: return "none";
        case DeviceFault::timed_out: return "timed_out";
        case DeviceFault::expert_out_of_range: return "expert_out_of_range";
        case DeviceFault::duplicate_expert: return "duplicate_expert";
        case DeviceFault::capacity_exceeded: return "capacity_exceeded";
        case DeviceFault::mode_mismatch: return "mode_mismatch";
        case DeviceFault::peer_refused: return "peer_refused";
        case DeviceFault::host_refused: return "host_refused";
        case DeviceFault::wrong_buffer: return "wrong_buffer";
        case DeviceFault::cut_short: return "cut_short";
        case DeviceFault::rails_left: return "rails_left";
    }
    return "?";
}

/// Written once by the first failing thread of a rank, in host-mapped memory; read by the host.
/// `state` goes 0 -> 1 (claimed) -> 2 (complete, release at system scope). Cleared by the host
/// only, in a recovery. The step's last block copies it to the report board of every peer.
struct DeviceError {
    std::uint32_t state;
    Primitive primitive;
    DeviceFault fault;
    std::int32_t rank;     ///< world rank that waited
    std::int32_t peer;     ///< world rank waited for, -1 if none
    std::int32_t context;  ///< GIN context, channel or stage, -1 if none
    std::uint32_t tag;     ///< caller's tag (kernel and phase), see Tag
    std::int32_t token;    ///< token index for routing faults, -1 otherwise
    std::uint64_t epoch;
    std::uint64_t expected;
    std::uint64_t seen;
    std::uint64_t elapsed_ns;
    /// Number, among all dispatches and combines (or barriers) of the window, of the first step
    /// that this rank knows to have failed: its own, or that of the rank whose report ended its
    /// wait. The same on all ranks. 0 elsewhere.
    std::uint64_t step;
};
static_assert(sizeof(DeviceError) == 72);
static_assert(offsetof(DeviceError, epoch) == 32);
static_assert(offsetof(DeviceError, step) == 64);

inline constexpr std::uint32_t kDeviceErrorFree = 0;
inline constexpr std::uint32_t kDeviceErrorClaimed = 1;
inline constexpr std::uint32_t kDeviceErrorComplete = 2;

/// Which kernel and phase an error came from.
enum class Tag : std::uint32_t {
    none = 0,
    barrier = 1,
    dispatch = 2,
    combine = 3,
    user = 4,
    recover = 5,
};

constexpr const char* name_of(Tag tag) {
    switch (tag) {
        case Tag::none: return "none";
        case Tag::barrier: return "barrier";
        case Tag::dispatch: return "dispatch";
        case Tag::combine: return "combine";
        case Tag::user: return "user";
        case Tag::recover: return "recover";
    }
    return "?";
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "runtime/health.hpp"

#include <fmt/format.h>

#include <cstring>

#include "host/base/text.hpp"

namespace gimlet {
namespace {

/// What a wait that ended without its peer says about that peer.
std::string meaning(const DeviceError& error) {
    switch (error.primitive) {
        case Primitive::count_exchange:
            if (error.peer == error.rank)
                return "another block of this rank's own kernel did not run: too few free SMs?";
            return fmt::format(
                "rank {} has not entered this dispatch; it is late, gone, or in another step",
                error.peer);
        case Primitive::dispatch_arrival:
            return fmt::format("rank {} entered this dispatch, but its rows have not all arrived",
                               error.peer);
        case Primitive::combine_ready:
            return fmt::format(
                "rank {} has not entered this combine; it is late, gone, or in another step",
                error.peer);
        case Primitive::combine_chunk:
            return fmt::format("rank {} entered this combine, but its rows have not all come home",
                               error.peer);
        case Primitive::grid_barrier:
            return "a block of this rank's own kernel did not run: too few free SMs?";
        case Primitive::nvlink_barrier:
        case Primitive::gin_barrier:
        case Primitive::block_barrier:
            return fmt::format("rank {} has not entered this barrier; it is late or gone",
                               error.peer);
        case Primitive::none:
        case Primitive::user: break;
    }
    return "the peer is late or gone";
}

std::string describe_timeout(const DeviceError& error) {
    std::string out = fmt::format("{} waited {} in {}", name_of(static_cast<Tag>(error.tag)),
                                  format_duration_ns(error.elapsed_ns), name_of(error.primitive));
    if (error.peer >= 0) out += fmt::format(" for rank {}", error.peer);
    if (error.context >= 0) out += fmt::format(" on GIN context {}", error.context);
    return out + fmt::format(
                     ": epoch {}, expected {}, seen {}; {}; deadline_ns or GIMLET_TIMEOUT_MS "
                     "raises the limit",
                     error.epoch, error.expected, error.seen, meaning(error));
}

}  // namespace

ErrorCode error_code_of(DeviceFault fault) noexcept {
    switch (fault) {
        case DeviceFault::none: return ErrorCode::internal;
        case DeviceFault::timed_out: return ErrorCode::timeout;
        case DeviceFault::expert_out_of_range: return ErrorCode::invalid_argument;
        case DeviceFault::duplicate_expert: return ErrorCode::invalid_argument;
        case DeviceFault::capacity_exceeded: return ErrorCode::overflow;
        case DeviceFault::mode_mismatch: return ErrorCode::invalid_usage;
        case DeviceFault::peer_refused: return ErrorCode::peer_failed;
    }
    return ErrorCode::internal;
}

std::string describe(const DeviceError& error) {
    const char* kernel = name_of(static_cast<Tag>(error.tag));
    const auto seen = static_cast<std::int64_t>(error.seen);
    const auto expected = static_cast<std::int64_t>(error.expected);
    switch (error.fault) {
        case DeviceFault::none: break;
        case DeviceFault::timed_out: return describe_timeout(error);
        case DeviceFault::expert_out_of_range:
            return fmt::format("{} {}: token {} names expert {}; it must be -1 (masked) or 0..{}",
                               kernel, error.epoch, error.token, seen, expected - 1);
        case DeviceFault::duplicate_expert:
            return fmt::format(
                "{} {}: token {} names expert {} twice; the choices of a token must differ", kernel,
                error.epoch, error.token, seen);
        case DeviceFault::capacity_exceeded:
            return fmt::format(
                "{} {}: {} rows would arrive at rank {}, its buffer holds {}; raise max_recv_rows, "
                "or set "
                "it to 0 for the worst case",
                kernel, error.epoch, seen, error.peer, expected);
        case DeviceFault::mode_mismatch:
            return fmt::format(
                "{} {}: rank {} runs a {} dispatch, this rank a {} one; all ranks must use a "
                "cached "
                "routing in the same steps",
                kernel, error.epoch, error.peer, seen == 1 ? "cached" : "fresh",
                expected == 1 ? "cached" : "fresh");
        case DeviceFault::peer_refused:
            return fmt::format(
                "{} {}: rank {} refused its own input and sent nothing; its report says why",
                kernel, error.epoch, error.peer);
    }
    return fmt::format("{} {}: unknown fault {}", kernel, error.epoch,
                       static_cast<std::uint32_t>(error.fault));
}

std::optional<DeviceError> read_device_error(const DeviceError* record) noexcept {
    if (record == nullptr) return std::nullopt;
    if (__atomic_load_n(&record->state, __ATOMIC_ACQUIRE) != kDeviceErrorComplete)
        return std::nullopt;
    DeviceError copy;
    std::memcpy(&copy, record, sizeof copy);
    return copy;
}

}  // namespace gimlet

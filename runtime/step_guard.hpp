// SPDX-License-Identifier: Apache-2.0
// One window's steps, once one of them has failed: what is known, and the way back. Internal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "device/abi/kernel_args.hpp"
#include "host/cuda/buffer.hpp"
#include "runtime/event_ring.hpp"
#include "runtime/health.hpp"

namespace gimlet {

class SymmetricWindow;
struct RuntimeCore;

/// How long a rank that has failed waits for the reports of the others.
inline constexpr std::uint64_t kReportGraceNs = 200'000'000;

/// Numbers of the newest steps of a window.
struct StepPosition {
    std::uint64_t dispatch = 0;
    std::uint64_t combine = 0;
    std::uint64_t barrier = 0;
};

/// Buffers that a graph's addresses belong to: parity of the step before its first; -1 = no graph.
struct CapturedParity {
    std::int32_t dispatch = -1;
    std::int32_t combine = -1;
};

/// Makes a record visible to device_errors() for as long as it lives. Movable.
class RecordListing {
  public:
    RecordListing() = default;
    explicit RecordListing(const DeviceError* record);
    ~RecordListing();
    RecordListing(RecordListing&& other) noexcept;
    RecordListing& operator=(RecordListing&& other) noexcept;

  private:
    const DeviceError* record_ = nullptr;
};

class StepGuard {
  public:
    StepGuard() = default;

    /// Local. `subject` is for texts: "the Exchange". The window's kernels have at most
    /// `block_count` blocks.
    StepGuard(RuntimeCore& core, const char* subject, std::int32_t block_count);
    /// Collective: last part of the set-up, with the handles that the window's kernels get. Brings
    /// the words to `start`, so that steps are numbered from there.
    void arm(const PeerHandles& peers, const SymmetricWindow& window, const StepPosition& start);

    DeviceError* device_record() const noexcept { return record_.device(); }
    /// Lets the window's kernels note events, if the Runtime has rings of them.
    void give_ring(PeerHandles* peers) const noexcept;
    /// True once the device, or fail(), has said that a step failed.
    bool failed() const noexcept;
    /// Local. device_errors() leaves its record out from now on: its owner has ended.
    void unlist() noexcept { listing_ = RecordListing(); }

    /// Local. Raises the report if a step has failed. The first time it asks the report board what
    /// the other ranks say, for at most kReportGraceNs, and logs the group's report if no lower
    /// rank does.
    void check();
    /// Fails the window by the host's decision and raises.
    [[noreturn]] void fail(ErrorCode code, std::string report);
    /// Local. Gets the events of the device, for health(). Waits for no kernel.
    void fetch_events() const noexcept;
    /// Local, waits for nothing. The events are those fetched last.
    Health health() const;

    /// Collective over the ranks that are left, whatever state the window is in. Waits for the
    /// device; gathers records and positions; brings all control words to one position beyond every
    /// rank's. If it fails on one rank, it fails on all, and the window stays failed.
    GroupReport recover(const CapturedParity& captured, StepPosition* position);

    /// Collective over the ranks that are left, all of whose devices are idle: if a step has failed
    /// on any of them, returns when nothing of it is on its way any more. For the end of the
    /// window, which is no longer usable; a recovery that fails is logged.
    void settle();
    /// Collective, the same: returns when nothing at all is on its way any more. False, and the
    /// reason in the log, if that is not known.
    bool drain();

  private:
    void learn(ErrorCode code, std::string report);
    GroupReport collect_reports() const;
    void clean_up(const StepPosition& target, std::uint64_t fence);
    StepPosition device_position() const;

    RuntimeCore* core_ = nullptr;
    const char* subject_ = "";
    const SymmetricWindow* window_ = nullptr;
    PeerHandles peers_{};
    MappedBuffer<DeviceError> record_;
    RecordListing listing_;     // ends before the record
    mutable EventRing events_;  // health() brings its copy up to date
    std::uint64_t fence_ = 0;   // number of the newest recovery that this rank has entered
    std::optional<ErrorCode> code_;
    std::string report_;
    std::optional<DeviceError> error_;
    std::optional<GroupReport> group_;
};

}  // namespace gimlet

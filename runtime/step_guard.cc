// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_guard.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "device/kernels/launch.hpp"
#include "host/base/log.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "runtime/core.hpp"

namespace gimlet {
namespace {

/// What a rank brings to a recovery.
struct Testimony {
    DeviceError record;
    StepPosition position;
    CapturedParity captured;
    std::uint64_t fence;
};

/// The newest of some positions that lie close together; numbers may have wrapped.
std::uint64_t newest(std::uint64_t a, std::uint64_t b) {
    return static_cast<std::int64_t>(a - b) >= 0 ? a : b;
}

/// The first number beyond `position` whose buffer is `parity`.
std::uint64_t next_of_parity(std::uint64_t position, std::int32_t parity) {
    const std::uint64_t next = position + 1;
    return next % kBufferCount == static_cast<std::uint64_t>(parity) ? next : next + 1;
}

struct RecordList {
    std::mutex mutex;
    std::vector<const DeviceError*> records;
};

/// Never destroyed: windows may live until the process has ended.
RecordList& record_list() {
    static RecordList* const list = new RecordList;
    return *list;
}

}  // namespace

std::vector<DeviceError> device_errors() {
    const std::lock_guard lock(record_list().mutex);
    std::vector<DeviceError> out;
    for (const DeviceError* record : record_list().records) {
        if (const auto error = read_device_error(record)) out.push_back(*error);
    }
    return out;
}

RecordListing::RecordListing(const DeviceError* record) : record_(record) {
    const std::lock_guard lock(record_list().mutex);
    record_list().records.push_back(record);
}

RecordListing::~RecordListing() {
    if (record_ == nullptr) return;
    const std::lock_guard lock(record_list().mutex);
    auto& records = record_list().records;
    records.erase(std::find(records.begin(), records.end(), record_));
}

RecordListing::RecordListing(RecordListing&& other) noexcept
    : record_(std::exchange(other.record_, nullptr)) {}

RecordListing& RecordListing::operator=(RecordListing&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
}

StepGuard::StepGuard(RuntimeCore& core, const char* subject, std::int32_t block_count)
    : core_(&core), subject_(subject), record_(1, core.rank()), listing_(record_.host()) {
    if (core.event_ring == RuntimeConfig::EventRing::on)
        events_ = EventRing(block_count, core.rank());
}

void StepGuard::give_ring(PeerHandles* peers) const noexcept {
    peers->events = events_.device();
    peers->event_block_count = events_.block_count();
}

void StepGuard::arm(const PeerHandles& peers, const SymmetricWindow& window,
                    const StepPosition& start) {
    peers_ = peers;
    window_ = &window;
    const std::exception_ptr failure = failure_of([&] { clean_up(start, 0); });
    check_all_succeeded(*core_->bootstrap, "the first words of a window", failure);
}

bool StepGuard::failed() const noexcept {
    return code_ || read_device_error(record_.host());
}

GroupReport StepGuard::collect_reports() const {
    std::vector<std::optional<DeviceError>> records(static_cast<std::size_t>(peers_.rank_count));
    const auto own = static_cast<std::size_t>(peers_.rank);
    try {
        const DeviceGuard guard(core_->device.device, peers_.rank);
        DeviceError* const host = core_->group_records.host();
        std::fill_n(host, records.size(), DeviceError{});
        const CollectArgs args{peers_, core_->group_records.device(), kReportGraceNs};
        const cudaStream_t stream = core_->side_stream.get();
        cuda_check(launch_collect(args, stream), "launch_collect", peers_.rank);
        core_->wait_for_side_stream(host_deadline_ns(kReportGraceNs), "the report board");
        for (std::size_t r = 0; r < records.size(); ++r) records[r] = read_device_error(host + r);
    } catch (const Error& error) {
        log(LogLevel::warn, peers_.rank, "the other ranks' reports are missing: {}",
            error.message());
    }
    if (!records[own]) records[own] = read_device_error(record_.host());
    return make_group_report(std::move(records), core_->excluded_ranks());
}

void StepGuard::fetch_events() const noexcept {
    if (events_.device() == nullptr) return;
    try {
        const DeviceGuard guard(core_->device.device, peers_.rank);
        events_.fetch();
    } catch (const std::exception& error) {
        log(LogLevel::warn, peers_.rank, "{}: its newest events are missing: {}", subject_,
            error.what());
    }
}

void StepGuard::learn(ErrorCode code, std::string report) {
    fetch_events();
    code_ = code;
    report_ = std::move(report);
    error_ = read_device_error(record_.host());
    group_ = collect_reports();
    if (!group_->cause.empty()) report_ += "; the group says: " + group_->cause;
    const auto first = std::find_if(group_->records.begin(), group_->records.end(),
                                    [](const auto& record) { return record.has_value(); });
    // One rank speaks for the group.
    const bool speaks = first - group_->records.begin() == peers_.rank;
    log(speaks ? LogLevel::error : LogLevel::info, peers_.rank, "{}: {}", subject_,
        speaks ? group_->text : report_);
    constexpr std::size_t kShownEvents = 32;
    auto events = events_.fetched();
    if (events.size() > kShownEvents) events.erase(events.begin(), events.end() - kShownEvents);
    if (!events.empty()) {
        log(LogLevel::error, peers_.rank, "{}: the newest events:\n  {}", subject_,
            describe(events));
    }
}

void StepGuard::check() {
    if (!code_) {
        const auto error = read_device_error(record_.host());
        if (!error) return;
        learn(error_code_of(error->fault), describe(*error));
    }
    throw Error(*code_, peers_.rank, report_);
}

void StepGuard::fail(ErrorCode code, std::string report) {
    if (!code_) learn(code, std::move(report));
    throw Error(*code_, peers_.rank, report_);
}

Health StepGuard::health() const {
    Health health;
    health.error = error_ ? error_ : read_device_error(record_.host());
    health.group = group_;
    health.events = events_.fetched();
    if (code_ || health.error) health.state = HealthState::failed;
    health.report = code_ ? report_ : health.error ? describe(*health.error) : "";
    return health;
}

StepPosition StepGuard::device_position() const {
    EpochWords words{};
    detail::device_copy(&words, window_->local(peers_.layout.epochs), sizeof words, peers_.rank);
    return {words.dispatch, words.combine, words.barrier};
}

void StepGuard::clean_up(const StepPosition& target, std::uint64_t fence) {
    record_[0] = DeviceError{};
    RecoverArgs args{peers_, target.dispatch, target.combine, target.barrier, fence, fence - fence_,
                     {}};
    for (const int rank : core_->excluded_ranks()) {
        args.excluded[rank / 64] |= std::uint64_t{1} << (rank % 64);
    }
    cuda_check(launch_recover(args, core_->side_stream.get()), "launch_recover", peers_.rank);
    fence_ = fence;
    core_->wait_for_side_stream(host_deadline_ns(peers_.deadline_ns), "recover");
    if (const auto error = read_device_error(record_.host())) {
        raise_text(error_code_of(error->fault), peers_.rank, describe(*error));
    }
}

GroupReport StepGuard::recover(const CapturedParity& captured, StepPosition* position) {
    Bootstrap& bootstrap = *core_->bootstrap;
    Testimony mine{};
    std::exception_ptr failure = failure_of([&] {
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", peers_.rank);
        core_->note_idle();
        mine = {error_ ? *error_ : record_[0], device_position(), captured, fence_};
    });
    check_all_succeeded(bootstrap, "the wait for the device before a recovery", failure);
    const auto all = bootstrap.all_gather_values(mine);

    std::vector<std::optional<DeviceError>> records(static_cast<std::size_t>(peers_.rank_count));
    StepPosition target = all[0].position;
    CapturedParity parity;
    std::uint64_t fence = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
        const auto rank = static_cast<std::size_t>(core_->live_ranks[i]);
        if (all[i].record.state == kDeviceErrorComplete) records[rank] = all[i].record;
        target.dispatch = newest(target.dispatch, all[i].position.dispatch);
        target.combine = newest(target.combine, all[i].position.combine);
        target.barrier = newest(target.barrier, all[i].position.barrier);
        if (parity.dispatch < 0) parity = all[i].captured;
        fence = std::max(fence, all[i].fence);
    }
    target.dispatch = next_of_parity(target.dispatch, std::max(parity.dispatch, 0));
    target.combine = next_of_parity(target.combine, std::max(parity.combine, 0));
    ++target.barrier;
    GroupReport report = make_group_report(std::move(records), core_->excluded_ranks());

    const DeviceError before = record_[0];
    failure = failure_of([&] { clean_up(target, fence + 1); });
    try {
        check_all_succeeded(bootstrap, "the recovery", failure);
    } catch (const Error& error) {
        // Some words are new, some are old: nothing may run before a recovery that succeeds.
        if (!code_) code_ = error.code();
        if (report_.empty()) report_ = error.message();
        record_[0] = before;
        throw;
    }
    code_.reset();
    report_.clear();
    error_.reset();
    group_.reset();
    *position = target;
    return report;
}

void StepGuard::settle() {
    const auto failures = core_->bootstrap->all_gather_values(failed() ? 1 : 0);
    if (std::find(failures.begin(), failures.end(), 1) == failures.end()) return;
    (void)drain();
}

bool StepGuard::drain() {
    try {
        StepPosition position;
        (void)recover({}, &position);
        return true;
    } catch (const Error& error) {
        log(LogLevel::warn, peers_.rank, "{}: ended after a failure: {}", subject_,
            error.message());
        return false;
    }
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// The hot path of an Exchange: nothing here allocates on the device or waits, except for host
// counts.
#include <cstring>

#include <fmt/format.h>

#include "device/kernels/launch.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/pointer.hpp"
#include "host/cuda/poll.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"

namespace gimlet {

void Exchange::enter(const char* what, cudaStream_t stream) {
    check();
    check_current_device(core_->device.device, what, rank());
    const bool capturing = stream_is_capturing(stream, rank());
    if (capturing && !reserved_) {
        raise(ErrorCode::invalid_usage, rank(),
              "{}: the stream is being captured, but reserve() was not called; call it "
              "once before the capture",
              what);
    }
    if (!capturing) {
        end_capture();
        load_kernels();
    }
    in_capture_ = capturing;
}

template <typename Next>
void Exchange::enter_step(const char* what, cudaStream_t stream, Next next) {
    check();
    try {
        check_current_device(core_->device.device, what, rank());
    } catch (const Error& fault) {
        if (stream_is_capturing(stream, rank())) throw;
        // `stream` may be of the other device: behind the steps before there is room on ours.
        const DeviceGuard guard(core_->device.device, rank());
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", rank());
        in_capture_ = false;
        refuse(next(), fault, core_->side_stream.get());
    }
    enter(what, stream);
}

void Exchange::end_capture() {
    const std::uint64_t dispatches = captured_dispatches_;
    const std::uint64_t combines = captured_combines_;
    captured_dispatches_ = 0;
    captured_combines_ = 0;
    if (dispatches % kBufferCount == 0 && combines % kBufferCount == 0) return;
    if (addresses_ == GraphAddresses::copied) return;
    raise(
        ErrorCode::invalid_usage, rank(),
        "the last capture holds {} dispatches and {} combines; buffers alternate, so a graph "
        "needs an even number of both: do not launch this graph, capture two steps instead, or use "
        "pack and unpack only and say so with reserve(GraphAddresses::copied)",
        dispatches, combines);
}

std::int32_t Exchange::expected_parity(std::uint64_t step) const noexcept {
    return in_place() ? static_cast<std::int32_t>(step % kBufferCount) : -1;
}

void Exchange::set_comm_stream(cudaStream_t comm_stream, Join join) {
    require_open("set_comm_stream");
    if (comm_stream != nullptr && !before_) {
        before_ = Event::create(EventTiming::off, rank());
        after_ = Event::create(EventTiming::off, rank());
    }
    if (unjoined_ && comm_stream_ != comm_stream) {
        after_.record(comm_stream_);
        left_behind_ = true;
        unjoined_ = false;
    }
    comm_stream_ = comm_stream;
    join_ = join;
}

/// The stream that a step is queued on: behind everything that `stream` holds.
cudaStream_t Exchange::fork(cudaStream_t stream) {
    // A capture takes no event from outside; the caller orders the launch of the graph.
    if (left_behind_ && !in_capture_) {
        after_.make_wait(comm_stream_ == nullptr ? stream : comm_stream_);
        left_behind_ = false;
    }
    activity_.note(stream);
    if (comm_stream_ == nullptr || comm_stream_ == stream) return stream;
    before_.record(stream);
    before_.make_wait(comm_stream_);
    unjoined_ = true;
    activity_.note(comm_stream_);
    return comm_stream_;
}

void Exchange::join(cudaStream_t stream) {
    require_open("join");
    if (left_behind_ && !stream_is_capturing(stream, rank())) after_.make_wait(stream);
    if (comm_stream_ == nullptr || comm_stream_ == stream) return;
    after_.record(comm_stream_);
    after_.make_wait(stream);
    unjoined_ = false;
}

void Exchange::count_captured(std::uint64_t* captured) {
    ++*captured;
    ++stats_.captured_calls;
    ever_captured_ = true;
}

void Exchange::check_routing(const char* what, const Routing& routing) const {
    if (routing.memory_ == nullptr) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: the routing is empty; make one with make_routing()", what);
    }
    if (routing.exchange_id_ != id_) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: the routing belongs to another Exchange ({}, this is {})", what,
              routing.exchange_id_, id_);
    }
}

bool Exchange::in_window(const void* pointer) const {
    const auto at = reinterpret_cast<std::uintptr_t>(pointer);
    const void* const starts[] = {base_, window_->local()};
    for (const void* const start : starts) {
        const auto first = reinterpret_cast<std::uintptr_t>(start);
        if (at >= first && at - first < plan_.window_bytes) return true;
    }
    return false;
}

std::byte* Exchange::own_rows(int buffer) const {
    if (plan_.stream.active()) return tensors_.get() + plan_.tensors.recv_rows[buffer];
    return base_ + plan_.regions.rank_skew(plan_.rank) + plan_.regions.recv_rows[buffer];
}

std::byte* Exchange::own_records(int buffer) const {
    if (plan_.stream.active()) return tensors_.get() + plan_.tensors.recv_meta[buffer];
    return base_ + plan_.regions.rank_skew(plan_.rank) + plan_.regions.recv_meta[buffer];
}

std::byte* Exchange::own_answers(int buffer) const {
    if (plan_.stream.active()) return tensors_.get() + plan_.tensors.combine_rows[buffer];
    return base_ + plan_.regions.rank_skew(plan_.rank) + plan_.regions.combine_rows[buffer];
}

void Exchange::check_pointer(const char* what, const char* name, const void* pointer,
                             std::size_t alignment_bytes, Access access) const {
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (pointer == nullptr || !in_window(pointer)) {
        check_device_pointer(pointer, alignment_bytes, core_->device.device, what, name, rank());
    } else if (access == Access::write) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: {} is at address {:#x}, inside the Exchange's own window, where peers read and "
              "write; pass a buffer of your own",
              what, name, address);
    } else if (address % alignment_bytes != 0) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: {} is at address {:#x}, not a multiple of {}", what, name, address,
              alignment_bytes);
    }
}

void Exchange::check_outputs(const char* what, const DispatchInputs& inputs) const {
    if (has_own_tensors()) {
        if (inputs.out_rows == nullptr && inputs.out_records == nullptr) return;
        raise(
            ErrorCode::invalid_argument, rank(),
            "{}: out_rows or out_records is given, but the config's tensors is library; set it to "
            "caller",
            what);
    }
    if (inputs.out_rows == nullptr || inputs.out_records == nullptr) {
        raise(
            ErrorCode::invalid_argument, rank(),
            "{}: {} is null, but the config's tensors is caller: rows of other ranks need it even "
            "without own tokens",
            what, inputs.out_rows == nullptr ? "out_rows" : "out_records");
    }
    check_pointer(what, "out_rows", inputs.out_rows, kBulkAlignment, Access::write);
    check_pointer(what, "out_records", inputs.out_records, alignof(std::uint32_t), Access::write);
}

void Exchange::check_inputs(const char* what, const DispatchInputs& inputs) const {
    const MoeConfig& config = plan_.config;
    if (inputs.token_count < 0 || inputs.token_count > config.max_tokens) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: token_count is {}; it must be 0..{} (max_tokens of the config)", what,
              inputs.token_count, config.max_tokens);
    }
    if (inputs.index_type != IndexType::int32 && inputs.index_type != IndexType::int64) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: index_type is {}; it must be int32 or int64", what,
              static_cast<int>(inputs.index_type));
    }
    check_outputs(what, inputs);
    if (inputs.token_count == 0) return;
    const auto need = [&](const char* name, const void* pointer) {
        if (pointer == nullptr) {
            raise(ErrorCode::invalid_argument, rank(),
                  "{}: {} is null with token_count {}; only an empty rank may pass "
                  "null",
                  what, name, inputs.token_count);
        }
    };
    need("rows", inputs.rows);
    need("expert_indices", inputs.expert_indices);
    if (config.scale_words > 0) need("scales", inputs.scales);
    if (config.scale_words == 0 && inputs.scales != nullptr) {
        raise(ErrorCode::invalid_argument, rank(),
              "{}: scales are given, but the config has scale_words 0", what);
    }
    check_pointer(what, "rows", inputs.rows, kBulkAlignment, Access::read);
    check_pointer(what, "scales", inputs.scales, alignof(std::uint32_t), Access::read);
    check_pointer(
        what, "expert_indices", inputs.expert_indices,
        inputs.index_type == IndexType::int64 ? alignof(std::int64_t) : alignof(std::int32_t),
        Access::read);
    check_pointer(what, "weights", inputs.weights, alignof(float), Access::read);
}

Received Exchange::dispatch(const DispatchInputs& inputs, Routing* routing, CountMode mode,
                            cudaStream_t stream) {
    return launch("dispatch", inputs, routing, RoutingMode::fresh, mode, stream);
}

Received Exchange::dispatch_cached(const DispatchInputs& inputs, Routing* routing,
                                   cudaStream_t stream) {
    return launch("dispatch_cached", inputs, routing, RoutingMode::cached, CountMode::device,
                  stream);
}

void Exchange::check_filled(const char* what, const Routing& routing) const {
    check_routing(what, routing);
    if (!routing.filled_) {
        raise(ErrorCode::invalid_usage, rank(), "{}: no dispatch has filled this routing yet",
              what);
    }
    if (routing.generation_ < oldest_generation_ ||
        (routing.generation_ != generation_ && !routing.captured_)) {
        raise(ErrorCode::invalid_usage, rank(),
              "{}: the routing was filled before recover(); dispatch again", what);
    }
}

void Exchange::check_dispatch(const char* what, const DispatchInputs& inputs,
                              const Routing* routing, RoutingMode routing_mode,
                              CountMode mode) const {
    if (routing == nullptr)
        raise(ErrorCode::invalid_argument, rank(), "{}: the routing is null", what);
    check_routing(what, *routing);
    check_inputs(what, inputs);
    if (routing_mode == RoutingMode::cached) {
        check_filled(what, *routing);
        if (routing->token_count_ != inputs.token_count) {
            raise(ErrorCode::invalid_argument, rank(),
                  "{}: token_count is {}, the routing was made for {}", what, inputs.token_count,
                  routing->token_count_);
        }
    }
    if (in_capture_ && mode == CountMode::host) {
        raise(ErrorCode::invalid_usage, rank(),
              "{}: host counts need a wait, which a capture cannot hold; use "
              "CountMode::device",
              what);
    }
}

DispatchArgs Exchange::next_dispatch(std::optional<std::uint64_t> deadline_ns) {
    DispatchArgs args{};
    args.exchange = args_;
    args.expected_parity = expected_parity(dispatch_position() + 1);
    core_->use_deadline(deadline_ns, &args.exchange.peers);
    return args;
}

CombineArgs Exchange::next_combine(std::optional<std::uint64_t> deadline_ns) {
    CombineArgs args{};
    args.exchange = args_;
    args.exchange.shape = plan_.kernels.combine;
    core_->use_deadline(deadline_ns, &args.exchange.peers);
    args.row_bytes = plan_.combine_row_bytes;
    args.element_type = plan_.config.combine_type;
    args.expected_parity = expected_parity(combine_position() + 1);
    return args;
}

// The peers may be on their way into the step: a kernel tells them, and the Exchange fails with
// the fault. A capture is left as it was.
void Exchange::refuse(DispatchArgs args, const Error& fault, cudaStream_t stream) {
    if (in_capture_) throw Error(fault);
    args.refuse = 1;
    cuda_check(launch_dispatch(args, fork(stream)), "launch_dispatch", rank());
    guard_->fail(fault.code(), fault.message());
}

void Exchange::refuse(CombineArgs args, const Error& fault, cudaStream_t stream) {
    if (in_capture_) throw Error(fault);
    args.refuse = 1;
    cuda_check(launch_combine(args, fork(stream)), "launch_combine", rank());
    guard_->fail(fault.code(), fault.message());
}

void Exchange::refuse_dispatch(const Error& fault, cudaStream_t stream) {
    enter_step("dispatch", stream, [&] { return next_dispatch({}); });
    refuse(next_dispatch({}), fault, stream);
}

void Exchange::refuse_combine(const Error& fault, cudaStream_t stream) {
    enter_step("combine", stream, [&] { return next_combine({}); });
    refuse(next_combine({}), fault, stream);
}

Received Exchange::launch(const char* what, const DispatchInputs& inputs, Routing* routing,
                          RoutingMode routing_mode, CountMode mode, cudaStream_t stream) {
    enter_step(what, stream, [&] { return next_dispatch({}); });
    DispatchArgs args = next_dispatch(inputs.deadline_ns);
    try {
        check_dispatch(what, inputs, routing, routing_mode, mode);
    } catch (const Error& fault) {
        refuse(args, fault, stream);
    }
    const bool cached = routing_mode == RoutingMode::cached;
    args.routing = routing->view_;
    args.rows = static_cast<const std::byte*>(inputs.rows);
    args.scales = inputs.scales;
    args.expert_indices = inputs.expert_indices;
    args.weights = inputs.weights;
    for (int buffer = 0; plan_.stream.active() && buffer < kBufferCount; ++buffer) {
        const bool own = has_own_tensors();
        args.out_rows[buffer] = own ? own_rows(buffer) : static_cast<std::byte*>(inputs.out_rows);
        args.out_records[buffer] =
            own ? own_records(buffer) : static_cast<std::byte*>(inputs.out_records);
    }
    args.host_step =
        mode == CountMode::host
            ? reinterpret_cast<StepCounts*>(routing->memory_->routing.host_step.device())
            : nullptr;
    args.index_type = inputs.index_type;
    args.mode = routing_mode;
    args.token_count = inputs.token_count;
    const cudaStream_t queue = fork(stream);
    cuda_check(launch_dispatch(args, queue), "launch_dispatch", rank());
    if (join_ == Join::at_once) join(stream);

    if (in_capture_) {
        if (captured_parity_.dispatch < 0)
            captured_parity_.dispatch =
                static_cast<std::int32_t>(dispatch_position() % kBufferCount);
        count_captured(&captured_dispatches_);
    } else {
        ++dispatch_epoch_;
    }
    routing->filled_ = true;
    routing->generation_ = generation_;
    routing->captured_ = routing->captured_ || in_capture_;
    if (!cached) routing->host_row_count_ = -1;
    routing->token_count_ = inputs.token_count;
    routing->out_rows_ = static_cast<std::byte*>(inputs.out_rows);
    routing->out_records_ = static_cast<std::byte*>(inputs.out_records);
    routing->epoch_ = dispatch_position();
    ++stats_.dispatches;
    if (cached) ++stats_.cached_dispatches;
    stats_.tokens_dispatched += static_cast<std::uint64_t>(inputs.token_count);
    Received out = received(*routing);
    if (mode == CountMode::host) {
        out.counts = wait_for_counts(*routing, queue);
        routing->host_row_count_ = out.counts->row_count;
    }
    return out;
}

HostCounts Exchange::wait_for_counts(const Routing& routing, cudaStream_t stream) {
    ++stats_.host_count_waits;
    const auto* epoch =
        reinterpret_cast<const std::uint64_t*>(routing.memory_->routing.host_step.host());
    const std::uint64_t wanted = routing.epoch_;
    // Replays advance the device's epochs unseen: then only the end of the stream tells that this
    // step is done.
    const auto ready = [&] {
        return guard_->failed() || (!ever_captured_ && load_acquire(epoch) == wanted);
    };
    const auto limit_ns = core_->host_limit_ns;
    const PollResult result = poll_stream(stream, limit_ns, ready, "dispatch, host counts", rank());
    check();
    if (result == PollResult::timeout) {
        guard_->fail(
            ErrorCode::timeout,
            fmt::format(
                "dispatch: no host counts of epoch {} after {} (seen {}), and no report from "
                "the kernel; was it queued behind work that does not end?",
                wanted, format_duration_ns(limit_ns), load_acquire(epoch)));
    }
    const std::uint64_t seen = load_acquire(epoch);
    const bool right =
        ever_captured_ ? seen % kBufferCount == wanted % kBufferCount : seen == wanted;
    if (in_place() && !right) {
        guard_->fail(
            ErrorCode::invalid_usage,
            fmt::format("dispatch: the device is at epoch {}, the host expected {}{}", seen, wanted,
                        ever_captured_ ? " (or the same parity); between capture and "
                                         "replay an odd number of steps ran outside the graph"
                                       : ""));
    }
    return host_counts(routing);
}

HostCounts Exchange::host_counts(const Routing& routing) const {
    const std::byte* base = routing.memory_->routing.host_step.host();
    StepCounts header;
    std::memcpy(&header, base, sizeof header);
    const auto local = static_cast<std::size_t>(header.local_expert_count);
    const auto span = [base](std::uint32_t offset, std::size_t count) {
        return std::span(reinterpret_cast<const std::int32_t*>(base + offset), count);
    };
    HostCounts out;
    out.row_count = header.row_count;
    out.token_row_count = header.token_row_count;
    out.sent_row_count = header.sent_row_count;
    out.partial = header.partial != 0;
    out.expert_counts = span(plan_.step_layout.expert_counts(), local);
    out.expert_offsets = span(plan_.step_layout.expert_offsets(), local + 1);
    out.source_offsets =
        span(plan_.step_layout.source_offsets(), static_cast<std::size_t>(plan_.rank_count) + 1);
    return out;
}

ReadyView Exchange::ready_view(const Routing& routing) const {
    ReadyView view{};
    if (!plan_.stream.active() || in_capture_ || ever_captured_) return view;
    view.arrived = reinterpret_cast<const std::uint32_t*>(base_ + plan_.workspace.ready_rows);
    view.step = routing.view_.step;
    view.epoch = routing.epoch_;
    view.block_rows = plan_.stream.ready_rows;
    view.block_count = plan_.stream.ready_blocks;
    view.deadline_ns = args_.peers.deadline_ns;
    view.error = args_.peers.error;
    view.poison = &reinterpret_cast<EpochWords*>(base_ + plan_.workspace.epochs)->dispatch_poison;
    view.rank = plan_.rank;
    return view;
}

Received Exchange::received(const Routing& routing) const {
    check_filled("received", routing);
    const std::uint64_t age = dispatch_position() - routing.epoch_;
    if (!ever_captured_ && age >= kBufferCount) {
        raise(ErrorCode::invalid_usage, rank(),
              "received: the rows of dispatch {} are gone, {} dispatches have come "
              "since; {} buffers alternate",
              routing.epoch_, age, kBufferCount);
    }
    const auto parity = static_cast<int>(routing.epoch_ % kBufferCount);
    Received out;
    if (!has_own_tensors()) {
        out.rows = routing.out_rows_;
        out.records = routing.out_records_;
    } else if (in_place()) {
        out.rows = own_rows(parity);
        out.records = own_records(parity);
    }
    out.step = routing.view_.step;
    out.row_capacity = plan_.row_capacity;
    out.row_bytes = plan_.token_layout.row_bytes;
    out.record_bytes = plan_.token_layout.record_bytes();
    out.epoch = routing.epoch_;
    out.ready = ready_view(routing);
    out.partial = core_->live_ranks.size() < static_cast<std::size_t>(plan_.rank_count);
    return out;
}

void Exchange::unpack(const Routing& routing, const UnpackOutputs& outputs, cudaStream_t stream) {
    enter("unpack", stream);
    const Received from = received(routing);
    if (outputs.capacity < 0) {
        raise(ErrorCode::invalid_argument, rank(), "unpack: capacity is {}; it must be >= 0",
              outputs.capacity);
    }
    if (outputs.scales != nullptr && plan_.config.scale_words == 0) {
        raise(ErrorCode::invalid_argument, rank(),
              "unpack: scales are asked for, but the config has scale_words 0");
    }
    check_pointer("unpack", "rows", outputs.rows, kBulkAlignment, Access::write);
    check_pointer("unpack", "indices", outputs.indices, alignof(std::int32_t), Access::write);
    check_pointer("unpack", "weights", outputs.weights, alignof(float), Access::write);
    check_pointer("unpack", "scales", outputs.scales, alignof(std::uint32_t), Access::write);
    check_pointer("unpack", "source", outputs.source, alignof(std::int32_t), Access::write);
    UnpackArgs args{};
    for (int buffer = 0; buffer < kBufferCount; ++buffer) {
        args.rows[buffer] = has_own_tensors() ? own_rows(buffer) : from.rows;
        args.meta[buffer] = has_own_tensors() ? own_records(buffer) : from.records;
    }
    args.step = from.step;
    args.out_rows = static_cast<std::byte*>(outputs.rows);
    args.out_indices = outputs.indices;
    args.out_weights = outputs.weights;
    args.out_scales = outputs.scales;
    args.out_source = outputs.source;
    args.token_layout = plan_.token_layout;
    args.out_capacity = outputs.capacity;
    activity_.note(stream);
    cuda_check(launch_unpack(args, plan_.sm_budget, stream), "launch_unpack", rank());
}

void Exchange::require_own_tensors(const char* what) const {
    if (has_own_tensors()) return;
    raise(
        ErrorCode::invalid_usage, rank(),
        "{}: the config's tensors is caller, so the Exchange has no buffer for answers; pass them "
        "as CombineInputs::answers",
        what);
}

std::byte* Exchange::combine_input() const {
    require_open("combine_input");
    require_own_tensors("combine_input");
    if (!in_place()) {
        raise(ErrorCode::invalid_usage, rank(),
              "combine_input: graphs of reserve(GraphAddresses::copied) have been captured, so the "
              "host does not know the buffer of the next combine; use pack()");
    }
    return own_answers(static_cast<int>((combine_position() + 1) % kBufferCount));
}

void Exchange::pack(const void* rows, const Routing& routing, cudaStream_t stream) {
    enter("pack", stream);
    require_own_tensors("pack");
    check_filled("pack", routing);
    if (rows == nullptr) {
        if (routing.host_row_count_ == 0) return;
        raise(ErrorCode::invalid_argument, rank(),
              "pack: rows is null; allowed only after CountMode::host has said that "
              "no row was received");
    }
    check_pointer("pack", "rows", rows, kBulkAlignment, Access::read);
    PackArgs args{};
    args.rows = static_cast<const std::byte*>(rows);
    const std::int64_t room = plan_.row_capacity * plan_.combine_row_bytes;
    const auto next = static_cast<int>((combine_position() + 1) % kBufferCount);
    for (int buffer = 0; buffer < kBufferCount; ++buffer) {
        std::byte* const to = own_answers(buffer);
        args.out[buffer] = to;
        // Without in_place() the device chooses: it may be either.
        if (in_place() && buffer != next) continue;
        if (!(in_window(rows) || plan_.stream.active()) || args.rows <= to - room ||
            args.rows >= to + room)
            continue;
        raise(ErrorCode::invalid_argument, rank(),
              "pack: rows overlap the combine input at {}; answers that are there already need no "
              "pack",
              fmt::ptr(to));
    }
    args.epochs = reinterpret_cast<const EpochWords*>(base_ + plan_.workspace.epochs);
    args.step = routing.view_.step;
    args.row_bytes = plan_.combine_row_bytes;
    activity_.note(stream);
    cuda_check(launch_pack(args, plan_.sm_budget, stream), "launch_pack", rank());
}

void Exchange::check_combine(const CombineInputs& inputs, const Routing& routing) const {
    check_filled("combine", routing);
    if (inputs.out == nullptr && routing.token_count_ > 0) {
        raise(ErrorCode::invalid_argument, rank(),
              "combine: out is null with token_count {}; only an empty rank may "
              "pass null",
              routing.token_count_);
    }
    if (inputs.weights != nullptr && plan_.config.layout == Layout::rank_major) {
        raise(ErrorCode::invalid_argument, rank(),
              "combine: weights are given, but a rank_major row is already the sum "
              "over the experts of a rank; multiply there, with the weights of the record");
    }
    if (has_own_tensors() != (inputs.answers == nullptr)) {
        raise(ErrorCode::invalid_argument, rank(),
              "combine: answers are {}, but the config's tensors is {}",
              inputs.answers == nullptr ? "null" : "given",
              has_own_tensors() ? "library" : "caller");
    }
    check_pointer("combine", "answers", inputs.answers, kBulkAlignment, Access::read);
    if (routing.token_count_ > 0) {
        check_pointer("combine", "out", inputs.out, kBulkAlignment, Access::write);
        check_pointer("combine", "bias", inputs.bias, kBulkAlignment, Access::read);
        check_pointer("combine", "weights", inputs.weights, alignof(float), Access::read);
    }
}

void Exchange::combine(const CombineInputs& inputs, const Routing& routing, cudaStream_t stream) {
    enter_step("combine", stream, [&] { return next_combine({}); });
    CombineArgs args = next_combine(inputs.deadline_ns);
    try {
        check_combine(inputs, routing);
    } catch (const Error& fault) {
        refuse(args, fault, stream);
    }
    args.routing = routing.view_;
    args.out = static_cast<std::byte*>(inputs.out);
    for (int buffer = 0; plan_.stream.active() && buffer < kBufferCount; ++buffer) {
        args.answers[buffer] =
            has_own_tensors() ? own_answers(buffer) : static_cast<const std::byte*>(inputs.answers);
    }
    args.bias = static_cast<const std::byte*>(inputs.bias);
    args.weights = inputs.weights;
    args.token_count = routing.token_count_;
    cuda_check(launch_combine(args, fork(stream)), "launch_combine", rank());
    if (join_ == Join::at_once) join(stream);
    if (in_capture_) {
        if (captured_parity_.combine < 0)
            captured_parity_.combine = static_cast<std::int32_t>(combine_position() % kBufferCount);
        count_captured(&captured_combines_);
    } else {
        ++combine_epoch_;
    }
    ++stats_.combines;
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// C ABI: Exchange and Routing.
#include <memory>
#include <string>
#include <utility>

#include "runtime/capi/objects.hpp"

using namespace gimlet;
using namespace gimlet::capi;

static_assert(sizeof(gimlet_step_counts) == sizeof(StepCounts));
static_assert(offsetof(gimlet_step_counts, row_count) == offsetof(StepCounts, row_count));
static_assert(offsetof(gimlet_step_counts, token_row_count) ==
              offsetof(StepCounts, token_row_count));
static_assert(offsetof(gimlet_step_counts, local_expert_count) ==
              offsetof(StepCounts, local_expert_count));
static_assert(offsetof(gimlet_step_counts, sent_row_count) == offsetof(StepCounts, sent_row_count));
static_assert(offsetof(gimlet_step_counts, partial) == offsetof(StepCounts, partial));
static_assert(sizeof(gimlet_slot_ref) == sizeof(SlotRef));
static_assert(offsetof(gimlet_slot_ref, slot) == offsetof(SlotRef, slot));
static_assert(sizeof(gimlet_ready_view) == sizeof(ReadyView));
static_assert(offsetof(gimlet_ready_view, step) == offsetof(ReadyView, step));
static_assert(offsetof(gimlet_ready_view, epoch) == offsetof(ReadyView, epoch));
static_assert(offsetof(gimlet_ready_view, block_rows) == offsetof(ReadyView, block_rows));
static_assert(offsetof(gimlet_ready_view, block_count) == offsetof(ReadyView, block_count));
static_assert(offsetof(gimlet_ready_view, deadline_ns) == offsetof(ReadyView, deadline_ns));
static_assert(offsetof(gimlet_ready_view, error) == offsetof(ReadyView, error));
static_assert(offsetof(gimlet_ready_view, poison) == offsetof(ReadyView, poison));
static_assert(offsetof(gimlet_ready_view, rank) == offsetof(ReadyView, rank));
static_assert(GIMLET_MODE_HYBRID == static_cast<int>(ExchangeMode::hybrid));
static_assert(GIMLET_GRAPH_COPIED == static_cast<int>(GraphAddresses::copied));
static_assert(GIMLET_JOIN_LATER == static_cast<int>(Join::later));

namespace {

const gimlet_step_counts* to_c(const StepCounts* step) {
    return reinterpret_cast<const gimlet_step_counts*>(step);
}

DispatchInputs read_inputs(const gimlet_dispatch_inputs* inputs) {
    const auto from = read_struct(inputs, gimlet_dispatch_inputs_init(), "inputs");
    DispatchInputs to;
    to.rows = from.rows;
    to.scales = from.scales;
    to.expert_indices = from.expert_indices;
    to.weights = from.weights;
    to.index_type = static_cast<IndexType>(from.index_type);
    to.token_count = from.token_count;
    to.deadline_ns = deadline_from(from.deadline_ns);
    to.out_rows = from.out_rows;
    to.out_records = from.out_records;
    return to;
}

gimlet_received to_c(const Received& from) {
    gimlet_received to = gimlet_received_init();
    to.rows = from.rows;
    to.records = from.records;
    to.step = to_c(from.step);
    to.row_capacity = from.row_capacity;
    to.row_bytes = from.row_bytes;
    to.record_bytes = from.record_bytes;
    to.epoch = from.epoch;
    if (from.ready.arrived != nullptr) {
        to.ready_rows = from.ready.arrived +
                        static_cast<std::int64_t>(from.epoch % kReadySets) * from.ready.block_count;
        to.ready_block_rows = from.ready.block_rows;
        to.ready_block_count = from.ready.block_count;
    }
    to.partial = from.partial ? 1 : 0;
    if (from.counts) {
        const HostCounts& counts = *from.counts;
        to.has_counts = 1;
        to.row_count = counts.row_count;
        to.token_row_count = counts.token_row_count;
        to.sent_row_count = counts.sent_row_count;
        to.local_expert_count = static_cast<std::int32_t>(counts.expert_counts.size());
        to.rank_count = static_cast<std::int32_t>(counts.source_offsets.size()) - 1;
        to.expert_counts = counts.expert_counts.data();
        to.expert_offsets = counts.expert_offsets.data();
        to.source_offsets = counts.source_offsets.data();
    }
    return to;
}

gimlet_plan_info to_c(const Plan& plan) {
    gimlet_plan_info to = gimlet_plan_info_init();
    to.rank = plan.rank;
    to.rank_count = plan.rank_count;
    to.local_expert_count = plan.experts.local_count(plan.rank);
    to.first_local_expert = plan.experts.first(plan.rank);
    to.sm_budget = plan.sm_budget;
    to.gin_peer_count = plan.gin_peer_count;
    to.gin_context_count = plan.kernels.gin_context_count;
    to.signal_count = plan.signal_count;
    to.row_capacity = plan.row_capacity;
    to.worst_case_rows = plan.worst_case_rows;
    to.send_capacity = plan.send_capacity;
    to.window_bytes = plan.window_bytes;
    to.deadline_ns = deadline_to(plan.deadline_ns);
    to.hash = plan.hash();
    const TokenLayout& layout = plan.token_layout;
    to.dispatch_row_bytes = layout.row_bytes;
    to.combine_row_bytes = plan.combine_row_bytes;
    to.record_bytes = layout.record_bytes();
    to.token_word = layout.token_word();
    to.source_word = layout.source_word();
    to.index_word = layout.index_word();
    to.weight_word = layout.weight_word();
    to.scale_word = layout.scale_word();
    to.choice_count = layout.choice_count;
    to.expert_counts_offset = plan.step_layout.expert_counts();
    to.expert_offsets_offset = plan.step_layout.expert_offsets();
    to.source_offsets_offset = plan.step_layout.source_offsets();
    to.tensor_bytes = plan.tensors.total_bytes;
    to.mode = static_cast<std::int32_t>(plan.mode);
    to.lsa_size = plan.lsa_size;
    if (plan.stream.active()) {
        to.ring_rows = static_cast<std::int32_t>(plan.stream.slot_count);
        to.ring_count = plan.stream.ring_count(plan.rank_count);
    }
    return to;
}

/// Of a step that the peers make, too: they hear at once of what is refused here.
template <typename Read>
auto read_dispatch(Exchange& exchange, cudaStream_t stream, Read read) {
    try {
        return read();
    } catch (const Error& fault) {
        exchange.refuse_dispatch(fault, stream);
    }
}

template <typename Read>
auto read_combine(Exchange& exchange, cudaStream_t stream, Read read) {
    try {
        return read();
    } catch (const Error& fault) {
        exchange.refuse_combine(fault, stream);
    }
}

struct DispatchCall {
    std::shared_ptr<Routing> routing;
    DispatchInputs inputs;
    StructOut<gimlet_received> received;
};

DispatchCall read_dispatch_call(const gimlet_dispatch_inputs* inputs, gimlet_routing* routing,
                                gimlet_received* received) {
    return {Routings::get().find(routing), read_inputs(inputs),
            StructOut<gimlet_received>::optional(received, "received")};
}

CombineInputs read_inputs(const gimlet_combine_inputs* inputs) {
    const auto from = read_struct(inputs, gimlet_combine_inputs_init(), "inputs");
    CombineInputs to;
    to.out = from.out;
    to.bias = from.bias;
    to.weights = from.weights;
    to.answers = from.answers;
    to.deadline_ns = deadline_from(from.deadline_ns);
    return to;
}

CountMode read_count_mode(int32_t count_mode) {
    switch (count_mode) {
        case GIMLET_COUNTS_DEVICE: return CountMode::device;
        case GIMLET_COUNTS_HOST: return CountMode::host;
    }
    raise(ErrorCode::invalid_argument, kNoRank,
          "count_mode is {}; it must be GIMLET_COUNTS_DEVICE or GIMLET_COUNTS_HOST", count_mode);
}

}  // namespace

extern "C" {

gimlet_status gimlet_exchange_create(gimlet_runtime* runtime, const gimlet_moe_config* config,
                                     gimlet_exchange** exchange) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        // The others hear of what is refused here.
        auto made = object->create_exchange_from([&] {
            require_pointer(exchange, "exchange");
            return read_moe_config(config);
        });
        *exchange = Exchanges::get().add(std::move(made));
    });
}

gimlet_status gimlet_runtime_plan(gimlet_runtime* runtime, const gimlet_moe_config* config,
                                  gimlet_plan_info* info, gimlet_text_format format, char* text,
                                  size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        const auto out = StructOut<gimlet_plan_info>::optional(info, "info");
        const TextOut words(text, text_bytes, needed_bytes);
        const Plan plan = object->plan_exchange(read_moe_config(config));
        write_text(
            format, words, [&] { return plan.text(); }, [&] { return plan.json(); });
        out.write(to_c(plan));
    });
}

gimlet_status gimlet_exchange_get_plan(gimlet_exchange* exchange, gimlet_plan_info* info) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const StructOut out(info, "info");
        gimlet_plan_info value = to_c(object->plan());
        value.exchange_number = object->number();
        out.write(value);
    });
}

gimlet_status gimlet_exchange_plan(gimlet_exchange* exchange, gimlet_text_format format, char* text,
                                   size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const TextOut out(text, text_bytes, needed_bytes);
        write_text(
            format, out, [&] { return object->plan().text(); },
            [&] { return object->plan().json(); });
    });
}

gimlet_status gimlet_exchange_reserve(gimlet_exchange* exchange, int32_t graph_addresses) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        if (graph_addresses != GIMLET_GRAPH_IN_PLACE && graph_addresses != GIMLET_GRAPH_COPIED) {
            raise(ErrorCode::invalid_argument, object->rank(),
                  "graph_addresses is {}; it must be GIMLET_GRAPH_IN_PLACE or GIMLET_GRAPH_COPIED",
                  graph_addresses);
        }
        object->reserve(static_cast<GraphAddresses>(graph_addresses));
    });
}

gimlet_status gimlet_exchange_set_comm_stream(gimlet_exchange* exchange,
                                              struct CUstream_st* comm_stream, int32_t join) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        if (join != GIMLET_JOIN_AT_ONCE && join != GIMLET_JOIN_LATER) {
            raise(ErrorCode::invalid_argument, object->rank(),
                  "join is {}; it must be GIMLET_JOIN_AT_ONCE or GIMLET_JOIN_LATER", join);
        }
        object->set_comm_stream(comm_stream, static_cast<Join>(join));
    });
}

gimlet_status gimlet_exchange_join(gimlet_exchange* exchange, struct CUstream_st* stream) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->join(stream); });
}

gimlet_status gimlet_routing_create(gimlet_exchange* exchange, gimlet_routing** routing) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(routing, "routing");
        const auto object = Exchanges::get().find(exchange);
        out = Routings::get().add(std::make_shared<Routing>(object->make_routing()));
    });
}

gimlet_status gimlet_routing_destroy(gimlet_routing* routing) {
    return guarded(__func__, [&] {
        if (routing != nullptr) Routings::get().remove(routing);
    });
}

gimlet_status gimlet_routing_get_info(gimlet_routing* routing, gimlet_routing_info* info) {
    return guarded(__func__, [&] {
        const auto object = Routings::get().find(routing);
        const StructOut out(info, "info");
        gimlet_routing_info value = gimlet_routing_info_init();
        value.slots = reinterpret_cast<const gimlet_slot_ref*>(object->view().slots);
        value.counts = object->view().counts;
        value.step = to_c(object->view().step);
        value.filled = object->filled() ? 1 : 0;
        value.token_count = object->token_count();
        value.dropped = object->view().dropped;
        out.write(value);
    });
}

gimlet_status gimlet_dispatch(gimlet_exchange* exchange, const gimlet_dispatch_inputs* inputs,
                              gimlet_routing* routing, int32_t count_mode,
                              struct CUstream_st* stream, gimlet_received* received) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        CountMode mode{};
        const auto call = read_dispatch(*object, stream, [&] {
            mode = read_count_mode(count_mode);
            return read_dispatch_call(inputs, routing, received);
        });
        call.received.write(to_c(object->dispatch(call.inputs, call.routing.get(), mode, stream)));
    });
}

gimlet_status gimlet_dispatch_cached(gimlet_exchange* exchange,
                                     const gimlet_dispatch_inputs* inputs, gimlet_routing* routing,
                                     struct CUstream_st* stream, gimlet_received* received) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto call = read_dispatch(
            *object, stream, [&] { return read_dispatch_call(inputs, routing, received); });
        call.received.write(to_c(object->dispatch_cached(call.inputs, call.routing.get(), stream)));
    });
}

gimlet_status gimlet_get_received(gimlet_exchange* exchange, gimlet_routing* routing,
                                  gimlet_received* received) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto filled = Routings::get().find(routing);
        const StructOut out(received, "received");
        out.write(to_c(object->received(*filled)));
    });
}

gimlet_status gimlet_get_ready_view(gimlet_exchange* exchange, gimlet_routing* routing,
                                    gimlet_ready_view* view) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto filled = Routings::get().find(routing);
        auto& out = require_pointer(view, "view");
        const ReadyView from = object->received(*filled).ready;
        out = {from.arrived,     to_c(from.step), from.epoch,  from.block_rows, from.block_count,
               from.deadline_ns, from.error,      from.poison, from.rank,       0};
    });
}

gimlet_status gimlet_unpack(gimlet_exchange* exchange, gimlet_routing* routing,
                            const gimlet_unpack_outputs* outputs, struct CUstream_st* stream) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto filled = Routings::get().find(routing);
        const auto from = read_struct(outputs, gimlet_unpack_outputs_init(), "outputs");
        UnpackOutputs to;
        to.rows = from.rows;
        to.indices = from.indices;
        to.weights = from.weights;
        to.scales = from.scales;
        to.source = from.source;
        to.capacity = from.capacity;
        object->unpack(*filled, to, stream);
    });
}

gimlet_status gimlet_combine_input(gimlet_exchange* exchange, void** rows) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        require_pointer(rows, "rows") = object->combine_input();
    });
}

gimlet_status gimlet_pack(gimlet_exchange* exchange, const void* rows, gimlet_routing* routing,
                          struct CUstream_st* stream) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        object->pack(rows, *Routings::get().find(routing), stream);
    });
}

gimlet_status gimlet_combine(gimlet_exchange* exchange, const gimlet_combine_inputs* inputs,
                             gimlet_routing* routing, struct CUstream_st* stream) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto [filled, to] = read_combine(*object, stream, [&] {
            return std::pair(Routings::get().find(routing), read_inputs(inputs));
        });
        object->combine(to, *filled, stream);
    });
}

gimlet_status gimlet_exchange_end_capture(gimlet_exchange* exchange) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->end_capture(); });
}

gimlet_status gimlet_exchange_synchronize(gimlet_exchange* exchange, struct CUstream_st* stream) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->synchronize(stream); });
}

gimlet_status gimlet_exchange_check(gimlet_exchange* exchange) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->check(); });
}

gimlet_status gimlet_exchange_health(gimlet_exchange* exchange, gimlet_health* health, char* text,
                                     size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_health(*Exchanges::get().find(exchange), health, {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_exchange_recover(gimlet_exchange* exchange, gimlet_group_report* report,
                                      char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        recover(*Exchanges::get().find(exchange), report, text, text_bytes, needed_bytes);
    });
}

gimlet_status gimlet_exchange_group_report(gimlet_exchange* exchange, gimlet_group_report* report,
                                           char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_group(*Exchanges::get().find(exchange), report, {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_exchange_events(gimlet_exchange* exchange, char* text, size_t text_bytes,
                                     size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_events(*Exchanges::get().find(exchange), {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_exchange_get_events(gimlet_exchange* exchange, gimlet_device_event* events,
                                         int32_t capacity, int32_t* count) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        write_events(object->health().events, {events, capacity, count, "events"});
    });
}

gimlet_status gimlet_exchange_get_stats(gimlet_exchange* exchange, gimlet_exchange_stats* stats) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const StructOut out(stats, "stats");
        const ExchangeStats& from = object->stats();
        gimlet_exchange_stats value = gimlet_exchange_stats_init();
        value.dispatches = from.dispatches;
        value.cached_dispatches = from.cached_dispatches;
        value.combines = from.combines;
        value.captured_calls = from.captured_calls;
        value.host_count_waits = from.host_count_waits;
        value.tokens_dispatched = from.tokens_dispatched;
        value.recoveries = from.recoveries;
        out.write(value);
    });
}

gimlet_status gimlet_exchange_ring_counters(gimlet_exchange* exchange, gimlet_ring_counters* rings,
                                            int32_t capacity, int32_t* count) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const ListOut<gimlet_ring_counters> out(rings, capacity, count, "rings");
        std::vector<gimlet_ring_counters> all;
        for (const RingCounters& ring : object->ring_counters()) {
            all.push_back({ring.way == RingCounters::Way::here ? 1 : 0,
                           ring.link == FifoLink::gin ? 1 : 0, ring.peer, ring.channel,
                           ring.slot_count, ring.most_occupied, ring.rows, ring.flags,
                           ring.stalls});
        }
        out.write_first(all);
    });
}

gimlet_status gimlet_routing_traffic(gimlet_exchange* exchange, gimlet_routing* routing,
                                     gimlet_step_traffic* traffic) {
    return guarded(__func__, [&] {
        const auto object = Exchanges::get().find(exchange);
        const auto filled = Routings::get().find(routing);
        const StructOut out(traffic, "traffic");
        auto value = read_struct(traffic, gimlet_step_traffic_init(), "traffic");
        int64_t* const to = optional_pointer(value.rows_to, "rows_to");
        int64_t* const from = optional_pointer(value.rows_from, "rows_from");
        const std::int32_t rank_count = object->plan().rank_count;
        if ((to != nullptr || from != nullptr) && value.rank_capacity < rank_count) {
            raise(ErrorCode::invalid_argument, object->rank(),
                  "rank_capacity is {}, but there are {} ranks", value.rank_capacity, rank_count);
        }
        const StepTraffic counted = object->traffic(*filled);
        if (to != nullptr) std::copy(counted.rows_to.begin(), counted.rows_to.end(), to);
        if (from != nullptr) std::copy(counted.rows_from.begin(), counted.rows_from.end(), from);
        value.rendezvous = counted.rendezvous;
        value.rows_sent = counted.rows_sent;
        value.rows_received = counted.rows_received;
        value.lsa_rows_sent = counted.lsa_rows_sent;
        value.gin_rows_sent = counted.gin_rows_sent;
        value.dispatch_bytes_sent = counted.dispatch_bytes_sent;
        value.combine_bytes_sent = counted.combine_bytes_sent;
        value.dispatch_puts = counted.dispatch_puts;
        value.dispatch_doorbells = counted.dispatch_doorbells;
        value.combine_puts = counted.combine_puts;
        value.combine_doorbells = counted.combine_doorbells;
        value.dispatch_gin_bytes = counted.dispatch_gin_bytes;
        value.dispatch_lsa_bytes = counted.dispatch_lsa_bytes;
        value.combine_gin_bytes = counted.combine_gin_bytes;
        value.combine_lsa_bytes = counted.combine_lsa_bytes;
        out.write(value);
    });
}

gimlet_status gimlet_exchange_close(gimlet_exchange* exchange) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->close(); });
}

gimlet_status gimlet_exchange_abort(gimlet_exchange* exchange) {
    return guarded(__func__, [&] { Exchanges::get().find(exchange)->abort(); });
}

gimlet_status gimlet_exchange_destroy(gimlet_exchange* exchange) {
    return guarded(__func__, [&] {
        if (exchange != nullptr) Exchanges::get().remove(exchange);
    });
}

}  // extern "C"

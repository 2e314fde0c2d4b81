// SPDX-License-Identifier: Apache-2.0
// C ABI: Runtime.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "runtime/capi/objects.hpp"

using namespace gimlet;
using namespace gimlet::capi;

static_assert(GIMLET_GIN_NONE == static_cast<int>(GinType::none));
static_assert(GIMLET_GIN_OTHER == static_cast<int>(GinType::other));
static_assert(GIMLET_REACH_SELF == static_cast<int>(Reach::self));
static_assert(GIMLET_REACH_NONE == static_cast<int>(Reach::none));
static_assert(GIMLET_HEALTH_OPEN == static_cast<int>(HealthState::open));
static_assert(GIMLET_HEALTH_CLOSED == static_cast<int>(HealthState::closed));

namespace gimlet::capi {

namespace {

gimlet_device_error to_c(const DeviceError& from) noexcept {
    gimlet_device_error to{};
    to.primitive = static_cast<std::uint32_t>(from.primitive);
    to.fault = static_cast<std::uint32_t>(from.fault);
    to.rank = from.rank;
    to.peer = from.peer;
    to.context = from.context;
    to.tag = from.tag;
    to.token = from.token;
    to.epoch = from.epoch;
    to.expected = from.expected;
    to.seen = from.seen;
    to.elapsed_ns = from.elapsed_ns;
    to.step = from.step;
    return to;
}

DeviceError to_cpp(const gimlet_device_error& from) noexcept {
    DeviceError to{};
    to.primitive = static_cast<Primitive>(from.primitive);
    to.fault = static_cast<DeviceFault>(from.fault);
    to.rank = from.rank;
    to.peer = from.peer;
    to.context = from.context;
    to.tag = from.tag;
    to.token = from.token;
    to.epoch = from.epoch;
    to.expected = from.expected;
    to.seen = from.seen;
    to.elapsed_ns = from.elapsed_ns;
    to.step = from.step;
    return to;
}

bool among(const std::vector<int>& ranks, std::size_t rank) noexcept {
    return std::find(ranks.begin(), ranks.end(), static_cast<int>(rank)) != ranks.end();
}

}  // namespace

void write_health(const Health& health, const StructOut<gimlet_health>& to, const TextOut& text) {
    gimlet_health out = gimlet_health_init();
    out.state = static_cast<std::int32_t>(health.state);
    if (health.error) {
        out.has_error = 1;
        out.error = to_c(*health.error);
    }
    to.write(out);
    text.write(health.report);
}

void write_events(const std::vector<DeviceEvent>& from, const ListOut<gimlet_device_event>& to) {
    std::vector<gimlet_device_event> all;
    for (const DeviceEvent& event : from) {
        all.push_back({event.number, event.time_ns, event.epoch,
                       static_cast<std::uint32_t>(event.kind), event.tag, event.block, 0});
    }
    to.write_last(all);
}

GroupReportOut::GroupReportOut(gimlet_group_report* report, std::int32_t rank_count)
    : out_(StructOut<gimlet_group_report>::optional(report, "report")), rank_count_(rank_count) {
    if (report == nullptr) return;
    value_ = read_struct(report, value_, "report");
    optional_pointer(value_.records, "records");
    optional_pointer(value_.rank_flags, "rank_flags");
    const bool arrays = value_.records != nullptr || value_.rank_flags != nullptr;
    if (arrays && value_.rank_capacity < rank_count) {
        raise(ErrorCode::invalid_argument, kNoRank, "rank_capacity is {}, but there are {} ranks",
              value_.rank_capacity, rank_count);
    }
}

void GroupReportOut::write(const std::optional<GroupReport>& from) const noexcept {
    gimlet_group_report to = value_;
    // recover() after no failure has nothing to say of anybody.
    const bool failed = from && !from->text.empty();
    to.rank_count = failed ? rank_count_ : 0;
    for (std::size_t rank = 0; failed && rank < static_cast<std::size_t>(rank_count_); ++rank) {
        const bool known = rank < from->records.size() && from->records[rank].has_value();
        if (to.records != nullptr)
            to.records[rank] = known ? to_c(*from->records[rank]) : gimlet_device_error{};
        if (to.rank_flags == nullptr) continue;
        std::uint32_t flags = 0;
        if (known) flags |= GIMLET_RANK_HAS_RECORD;
        if (among(from->suspects, rank)) flags |= GIMLET_RANK_IS_SUSPECT;
        if (among(from->excluded, rank)) flags |= GIMLET_RANK_IS_EXCLUDED;
        to.rank_flags[rank] = flags;
    }
    out_.write(to);
}

}  // namespace gimlet::capi

namespace {

RuntimeConfig read_runtime_config(const gimlet_runtime_config* config) {
    RuntimeConfig to;
    if (config == nullptr) return to;
    const auto from = read_struct(config, gimlet_runtime_config_init(), "config");
    to.deadline_ns = deadline_from(from.deadline_ns);
    to.barrier_gin_context_count = from.barrier_gin_context_count;
    to.communicator.max_cta_count = from.max_cta_count;
    if (from.name != nullptr) to.communicator.name = from.name;
    to.first_step = from.first_step;
    if (from.event_ring < 0 || from.event_ring > 1) {
        raise(ErrorCode::invalid_argument, kNoRank, "event_ring is {}; it must be 0 or 1",
              from.event_ring);
    }
    to.event_ring =
        from.event_ring == 1 ? RuntimeConfig::EventRing::on : RuntimeConfig::EventRing::off;
    return to;
}

}  // namespace

extern "C" {

const char* gimlet_primitive_name(uint32_t primitive) {
    return name_of(static_cast<Primitive>(primitive));
}

const char* gimlet_fault_name(uint32_t fault) {
    return name_of(static_cast<DeviceFault>(fault));
}

const char* gimlet_tag_name(uint32_t tag) {
    return name_of(static_cast<Tag>(tag));
}

const char* gimlet_event_name(uint32_t kind) {
    return name_of(static_cast<EventKind>(kind));
}

gimlet_status gimlet_fault_status(uint32_t fault) {
    return static_cast<gimlet_status>(error_code_of(static_cast<DeviceFault>(fault)));
}

gimlet_status gimlet_device_error_text(const gimlet_device_error* error, char* text,
                                       size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const TextOut out(text, text_bytes, needed_bytes);
        out.write(describe(to_cpp(require_pointer(error, "error"))));
    });
}

gimlet_status gimlet_device_errors(gimlet_device_error* errors, int32_t capacity, int32_t* count) {
    return guarded(__func__, [&] {
        const ListOut out(errors, capacity, count, "errors");
        std::vector<gimlet_device_error> all;
        for (const DeviceError& error : device_errors()) all.push_back(to_c(error));
        out.write_first(all);
    });
}

gimlet_status gimlet_runtime_create(gimlet_bootstrap* bootstrap,
                                    const gimlet_runtime_config* config, gimlet_runtime** runtime) {
    return guarded(__func__, [&] {
        // Everything behind the bootstrap's handle is refused where the others can hear of it.
        auto object = Bootstraps::get().find(bootstrap);
        auto made = Runtime::create_from(std::move(object), [&] {
            require_pointer(runtime, "runtime");
            return read_runtime_config(config);
        });
        *runtime = Runtimes::get().add(std::move(made));
    });
}

gimlet_status gimlet_runtime_adopt(struct ncclComm* comm, gimlet_bootstrap* bootstrap,
                                   const gimlet_runtime_config* config, gimlet_runtime** runtime) {
    return guarded(__func__, [&] {
        auto object = Bootstraps::get().find(bootstrap);
        auto made = Runtime::adopt_from(comm, std::move(object), [&] {
            require_pointer(runtime, "runtime");
            return read_runtime_config(config);
        });
        *runtime = Runtimes::get().add(std::move(made));
    });
}

gimlet_status gimlet_runtime_get_info(gimlet_runtime* runtime, gimlet_runtime_info* info) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        const StructOut out(info, "info");
        const Topology& topology = object->topology();
        gimlet_runtime_info value = gimlet_runtime_info_init();
        value.rank = topology.rank;
        value.size = topology.size;
        value.device = object->device().device;
        value.sm_count = object->device().sm_count;
        value.lsa_rank = topology.lsa_rank;
        value.lsa_size = topology.lsa_size;
        value.lsa_team_index = topology.lsa_team_index;
        value.lsa_team_count = topology.lsa_team_count;
        value.gin_type = static_cast<int32_t>(topology.gin_type);
        value.railed_gin_type = static_cast<int32_t>(topology.railed_gin_type);
        value.symmetric_memory = topology.symmetric_memory ? 1 : 0;
        value.multimem = topology.multimem ? 1 : 0;
        value.deadline_ns = deadline_to(object->deadline_ns());
        value.barrier_count = object->barrier_count();
        const Communicator& communicator = object->communicator();
        value.comm = communicator.is_open() ? communicator.handle() : nullptr;
        out.write(value);
    });
}

gimlet_status gimlet_runtime_get_place(gimlet_runtime* runtime, int32_t rank,
                                       gimlet_rank_place* place) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        const StructOut out(place, "place");
        const Topology& topology = object->topology();
        if (rank < 0 || rank >= topology.size) {
            raise(ErrorCode::invalid_argument, topology.rank, "rank is {}; it must be 0..{}", rank,
                  topology.size - 1);
        }
        const RankPlace& from = topology.places.at(static_cast<std::size_t>(rank));
        gimlet_rank_place value = gimlet_rank_place_init();
        value.host_id = from.host_id;
        value.device_id = from.device_id;
        value.device = from.device;
        value.process_id = from.process_id;
        value.sm_count = from.sm_count;
        value.mps_client = from.mps_client;
        value.reach = static_cast<int32_t>(topology.reach(rank, topology.connection_needed()));
        out.write(value);
    });
}

gimlet_status gimlet_runtime_topology(gimlet_runtime* runtime, gimlet_text_format format,
                                      char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        const TextOut out(text, text_bytes, needed_bytes);
        write_text(
            format, out, [&] { return object->topology().text(); },
            [&] { return object->topology().json(); });
    });
}

gimlet_status gimlet_runtime_barrier(gimlet_runtime* runtime, struct CUstream_st* stream,
                                     int32_t repeat_count, uint64_t deadline_ns) {
    return guarded(__func__, [&] {
        Runtimes::get().find(runtime)->barrier(stream, repeat_count, deadline_from(deadline_ns));
    });
}

gimlet_status gimlet_runtime_synchronize(gimlet_runtime* runtime, struct CUstream_st* stream) {
    return guarded(__func__, [&] { Runtimes::get().find(runtime)->synchronize(stream); });
}

gimlet_status gimlet_runtime_health(gimlet_runtime* runtime, gimlet_health* health, char* text,
                                    size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_health(*Runtimes::get().find(runtime), health, {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_runtime_group_report(gimlet_runtime* runtime, gimlet_group_report* report,
                                          char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_group(*Runtimes::get().find(runtime), report, {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_runtime_events(gimlet_runtime* runtime, char* text, size_t text_bytes,
                                    size_t* needed_bytes) {
    return guarded(__func__, [&] {
        tell_events(*Runtimes::get().find(runtime), {text, text_bytes, needed_bytes});
    });
}

gimlet_status gimlet_runtime_get_events(gimlet_runtime* runtime, gimlet_device_event* events,
                                        int32_t capacity, int32_t* count) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        write_events(object->health().events, {events, capacity, count, "events"});
    });
}

gimlet_status gimlet_runtime_recover(gimlet_runtime* runtime, gimlet_group_report* report,
                                     char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        recover(*Runtimes::get().find(runtime), report, text, text_bytes, needed_bytes);
    });
}

gimlet_status gimlet_runtime_exclude(gimlet_runtime* runtime, const int32_t* ranks,
                                     int32_t rank_count, gimlet_bootstrap* survivors,
                                     gimlet_group_report* report, char* text, size_t text_bytes,
                                     size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        std::vector<int> lost;
        std::shared_ptr<Bootstrap> left;
        const auto outputs = read_or(
            [&] {
                GroupOutputs to{{report, object->size()}, {text, text_bytes, needed_bytes}};
                if (rank_count < 0 || rank_count > object->size()) {
                    raise(ErrorCode::invalid_argument, object->rank(),
                          "rank_count is {}; it must be 0..{}", rank_count, object->size());
                }
                if (rank_count > 0) {
                    require_pointer(ranks, "ranks");
                    lost.assign(ranks, ranks + rank_count);
                }
                if (survivors != nullptr) left = Bootstraps::get().find(survivors);
                return to;
            },
            [&](const Error& fault) { object->refuse_exclude(fault); });
        outputs.write(object->exclude(lost, std::move(left)));
    });
}

gimlet_status gimlet_runtime_live_ranks(gimlet_runtime* runtime, int32_t* ranks,
                                        int32_t rank_capacity, int32_t* rank_count) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        int32_t* const count = optional_pointer(rank_count, "rank_count");
        if (rank_capacity < 0) {
            raise(ErrorCode::invalid_argument, object->rank(), "rank_capacity is {}; 0 or more",
                  rank_capacity);
        }
        if (rank_capacity > 0) require_pointer(ranks, "ranks");
        const std::vector<int>& left = object->live_ranks();
        const auto written = std::min(left.size(), static_cast<std::size_t>(rank_capacity));
        std::copy_n(left.begin(), written, ranks);
        if (count != nullptr) *count = static_cast<int32_t>(left.size());
    });
}

gimlet_status gimlet_runtime_close(gimlet_runtime* runtime) {
    return guarded(__func__, [&] { Runtimes::get().find(runtime)->close(); });
}

gimlet_status gimlet_runtime_abort(gimlet_runtime* runtime) {
    return guarded(__func__, [&] { Runtimes::get().find(runtime)->abort(); });
}

gimlet_status gimlet_reclaim(int32_t* count) {
    return guarded(__func__, [&] {
        int32_t* const out = optional_pointer(count, "count");
        const int freed = Runtime::reclaim();
        if (out != nullptr) *out = freed;
    });
}

gimlet_status gimlet_runtime_destroy(gimlet_runtime* runtime) {
    return guarded(__func__, [&] {
        if (runtime != nullptr) Runtimes::get().remove(runtime);
    });
}

}  // extern "C"

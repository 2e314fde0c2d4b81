// SPDX-License-Identifier: Apache-2.0
// C ABI: Runtime.
#include <string>

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

void write_health(const Health& health, const StructOut<gimlet_health>& to, const TextOut& text) {
    gimlet_health out = gimlet_health_init();
    out.state = static_cast<std::int32_t>(health.state);
    if (health.error) {
        const DeviceError& from = *health.error;
        out.has_error = 1;
        out.error.primitive = static_cast<std::uint32_t>(from.primitive);
        out.error.fault = static_cast<std::uint32_t>(from.fault);
        out.error.rank = from.rank;
        out.error.peer = from.peer;
        out.error.context = from.context;
        out.error.tag = from.tag;
        out.error.token = from.token;
        out.error.epoch = from.epoch;
        out.error.expected = from.expected;
        out.error.seen = from.seen;
        out.error.elapsed_ns = from.elapsed_ns;
    }
    to.write(out);
    text.write(health.report);
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
    return to;
}

}  // namespace

extern "C" {

gimlet_status gimlet_runtime_create(gimlet_bootstrap* bootstrap,
                                    const gimlet_runtime_config* config, gimlet_runtime** runtime) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(runtime, "runtime");
        auto object = Bootstraps::get().find(bootstrap);
        out = Runtimes::get().add(Runtime::create(std::move(object), read_runtime_config(config)));
    });
}

gimlet_status gimlet_runtime_adopt(struct ncclComm* comm, gimlet_bootstrap* bootstrap,
                                   const gimlet_runtime_config* config, gimlet_runtime** runtime) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(runtime, "runtime");
        auto object = Bootstraps::get().find(bootstrap);
        out = Runtimes::get().add(
            Runtime::adopt(comm, std::move(object), read_runtime_config(config)));
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
        const auto object = Runtimes::get().find(runtime);
        const StructOut out(health, "health");
        write_health(object->health(), out, TextOut(text, text_bytes, needed_bytes));
    });
}

gimlet_status gimlet_runtime_recover(gimlet_runtime* runtime, char* text, size_t text_bytes,
                                     size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const auto object = Runtimes::get().find(runtime);
        const TextOut out(text, text_bytes, needed_bytes);
        out.write(object->recover().text);
    });
}

gimlet_status gimlet_runtime_close(gimlet_runtime* runtime) {
    return guarded(__func__, [&] { Runtimes::get().find(runtime)->close(); });
}

gimlet_status gimlet_runtime_abort(gimlet_runtime* runtime) {
    return guarded(__func__, [&] { Runtimes::get().find(runtime)->abort(); });
}

gimlet_status gimlet_runtime_destroy(gimlet_runtime* runtime) {
    return guarded(__func__, [&] {
        if (runtime != nullptr) Runtimes::get().remove(runtime);
    });
}

}  // extern "C"

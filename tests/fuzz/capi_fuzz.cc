// SPDX-License-Identifier: Apache-2.0
// Calls of the C ABI with hostile arguments, one after the other: null, stale and mistyped handles,
// structs of wrong sizes, null, misaligned and foreign pointers, numbers on edges. Nothing may
// crash, each failure has a text, and afterwards a correct step must still work.
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/capi/gimlet.h"
#include "tests/fuzz/fuzz.hpp"

namespace {

using gimlet::fuzz::Input;
using gimlet::fuzz::require;

constexpr std::int32_t kTokens = 4;
constexpr std::int32_t kHidden = 4;
constexpr std::int32_t kTopk = 2;
constexpr std::size_t kRoom = 4096;  // bytes of each device buffer: more than any call may touch
constexpr int kCallsPerInput = 10;

void must(gimlet_status status) {
    if (status != GIMLET_OK) std::fprintf(stderr, "%s\n", gimlet_last_error());
    require(status == GIMLET_OK, "capi: a correct call succeeds");
}

void* device_buffer(int device) {
    void* pointer = nullptr;
    require(cudaSetDevice(device) == cudaSuccess, "capi: a device");
    require(cudaMalloc(&pointer, kRoom) == cudaSuccess, "capi: device memory");
    require(cudaMemset(pointer, 0, kRoom) == cudaSuccess, "capi: device memory");
    return pointer;
}

/// One rank with an exchange and two routings; made anew when a call has closed or spoiled it.
struct World {
    gimlet_bootstrap* bootstrap = nullptr;
    gimlet_runtime* runtime = nullptr;
    gimlet_exchange* exchange = nullptr;
    std::array<gimlet_routing*, 2> routings{};
    void* rows = nullptr;
    void* experts = nullptr;
    void* out = nullptr;
    void* foreign = nullptr;  // on another device
    std::array<char, 512> host{};

    World() {
        foreign = device_buffer(1);
        rows = device_buffer(0);
        out = device_buffer(0);
        experts = device_buffer(0);
        std::int32_t indices[kTokens * kTopk];
        for (int i = 0; i < kTokens * kTopk; ++i) indices[i] = i % 3;
        cudaMemcpy(experts, indices, sizeof indices, cudaMemcpyHostToDevice);
        open();
    }

    void open() {
        must(gimlet_bootstrap_create_single(&bootstrap));
        gimlet_runtime_config config = gimlet_runtime_config_init();
        config.deadline_ns = 10000000000;
        must(gimlet_runtime_create(bootstrap, &config, &runtime));
        gimlet_moe_config moe = gimlet_moe_config_init();
        moe.expert_count = 3;
        moe.topk = kTopk;
        moe.hidden = kHidden;
        moe.max_tokens = kTokens;
        moe.dispatch_type = GIMLET_FLOAT32;
        moe.combine_type = GIMLET_FLOAT32;
        must(gimlet_exchange_create(runtime, &moe, &exchange));
        for (auto& routing : routings) must(gimlet_routing_create(exchange, &routing));
    }

    /// Whatever state it is in.
    void end() {
        (void)cudaDeviceSynchronize();
        for (auto& routing : routings) (void)gimlet_routing_destroy(routing);
        (void)gimlet_exchange_destroy(exchange);
        (void)gimlet_runtime_destroy(runtime);
        (void)gimlet_bootstrap_destroy(bootstrap);
    }

    /// True if a correct step works; false if an earlier call has ended an object.
    bool step() {
        gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
        inputs.rows = rows;
        inputs.expert_indices = experts;
        inputs.token_count = kTokens;
        gimlet_received received = gimlet_received_init();
        const gimlet_status status =
            gimlet_dispatch(exchange, &inputs, routings[0], GIMLET_COUNTS_HOST, nullptr, &received);
        if (status != GIMLET_OK) return false;
        require(received.has_counts == 1 && received.row_count == kTokens, "capi: counts");
        gimlet_combine_inputs combine = gimlet_combine_inputs_init();
        combine.out = out;
        must(gimlet_combine(exchange, &combine, routings[0], nullptr));
        must(gimlet_exchange_synchronize(exchange, nullptr));
        return true;
    }
};

World& world() {
    static auto* const made = new World;  // left alone at exit, as the library leaves its own
    return *made;
}

/// Mostly the right handle.
template <typename Handle>
Handle* pick_handle(Input* input, Handle* right) {
    switch (input->take<std::uint8_t>() % 16) {
        case 0: return nullptr;
        case 1: return reinterpret_cast<Handle*>(input->take<std::uint64_t>());
        case 2: return reinterpret_cast<Handle*>(world().bootstrap);
        case 3: return reinterpret_cast<Handle*>(world().routings[1]);
        case 4: return reinterpret_cast<Handle*>(&world());
        default: return right;
    }
}

/// Mostly the right device pointer.
template <typename T>
T* pick_pointer(Input* input, void* right) {
    const auto address = reinterpret_cast<std::uintptr_t>(right);
    void* chosen = right;
    switch (input->take<std::uint8_t>() % 16) {
        case 0: chosen = nullptr; break;
        case 1: chosen = reinterpret_cast<void*>(address + 1); break;
        case 2: chosen = reinterpret_cast<void*>(address + 4); break;
        case 3: chosen = world().foreign; break;
        case 4: chosen = world().host.data(); break;
        case 5: chosen = reinterpret_cast<void*>(std::uintptr_t{16}); break;
        case 6: chosen = reinterpret_cast<void*>(~std::uintptr_t{15}); break;
        case 7: chosen = world().out; break;
        default: break;
    }
    return static_cast<T*>(chosen);
}

/// A struct as a caller of some version might pass it: the right one, or one with a wrong size, or
/// one with something behind it.
template <typename T>
class Struct {
  public:
    Struct(Input* input, const T& value) {
        std::memcpy(bytes_.data(), &value, sizeof(T));
        std::size_t size = sizeof(T);
        switch (input->take<std::uint8_t>() % 16) {
            case 0: null_ = true; break;
            case 1: size = input->take<std::uint64_t>(); break;
            case 2: size = input->take<std::uint8_t>(); break;
            case 3: size = sizeof(T) + 8; break;
            case 4:
                size = sizeof(T) + 8;
                bytes_[sizeof(T) + input->take<std::uint8_t>() % 8] = std::byte{1};
                break;
            case 5: offset_ = 1; break;
            default: break;
        }
        std::memcpy(bytes_.data(), &size, sizeof size);
        if (offset_ == 1) std::memmove(bytes_.data() + 1, bytes_.data(), sizeof(T));
    }
    T* get() { return null_ ? nullptr : reinterpret_cast<T*>(bytes_.data() + offset_); }

  private:
    alignas(16) std::array<std::byte, sizeof(T) + 2048> bytes_{};
    bool null_ = false;
    std::size_t offset_ = 0;
};

gimlet_status call_dispatch(Input* input, bool cached) {
    World& w = world();
    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    inputs.rows = pick_pointer<const void>(input, w.rows);
    inputs.scales = input->take<std::uint8_t>() % 8 == 0
                        ? pick_pointer<const std::uint32_t>(input, w.rows)
                        : nullptr;
    inputs.expert_indices = pick_pointer<const void>(input, w.experts);
    inputs.weights = pick_pointer<const float>(input, w.rows);
    inputs.index_type = input->take<std::uint8_t>() % 4 == 0 ? input->number() : GIMLET_INT32;
    inputs.token_count = input->take<std::uint8_t>() % 2 == 0 ? input->number() : kTokens;
    Struct<gimlet_dispatch_inputs> in(input, inputs);
    Struct<gimlet_received> received(input, gimlet_received_init());
    auto* const exchange = pick_handle(input, w.exchange);
    auto* const routing = pick_handle(input, w.routings[input->take<std::uint8_t>() % 2]);
    if (cached) return gimlet_dispatch_cached(exchange, in.get(), routing, nullptr, received.get());
    return gimlet_dispatch(exchange, in.get(), routing, input->take<std::uint8_t>() % 3, nullptr,
                           received.get());
}

gimlet_status call_combine(Input* input) {
    World& w = world();
    gimlet_combine_inputs inputs = gimlet_combine_inputs_init();
    inputs.out = pick_pointer<void>(input, w.out);
    inputs.bias = pick_pointer<const void>(input, nullptr);
    inputs.weights =
        input->take<std::uint8_t>() % 4 == 0 ? pick_pointer<const float>(input, w.rows) : nullptr;
    Struct<gimlet_combine_inputs> in(input, inputs);
    return gimlet_combine(pick_handle(input, w.exchange), in.get(),
                          pick_handle(input, w.routings[input->take<std::uint8_t>() % 2]), nullptr);
}

gimlet_status call_copy(Input* input) {
    World& w = world();
    auto* const exchange = pick_handle(input, w.exchange);
    auto* const routing = pick_handle(input, w.routings[input->take<std::uint8_t>() % 2]);
    if (input->take<std::uint8_t>() % 2 == 0) {
        return gimlet_pack(exchange, pick_pointer<const void>(input, w.out), routing, nullptr);
    }
    gimlet_unpack_outputs outputs = gimlet_unpack_outputs_init();
    outputs.rows = pick_pointer<void>(input, w.out);
    outputs.indices = pick_pointer<std::int32_t>(input, w.out);
    outputs.weights = pick_pointer<float>(input, w.out);
    outputs.scales =
        input->take<std::uint8_t>() % 8 == 0 ? pick_pointer<std::uint32_t>(input, w.out) : nullptr;
    outputs.source = pick_pointer<std::int32_t>(input, w.out);
    outputs.capacity = input->take<std::uint8_t>() % 2 == 0 ? input->take<std::int64_t>() : kTokens;
    Struct<gimlet_unpack_outputs> out(input, outputs);
    return gimlet_unpack(exchange, routing, out.get(), nullptr);
}

/// A text buffer, rarely a wrong one.
struct Text {
    explicit Text(Input* input) {
        format = input->take<std::uint8_t>() % 3;
        bytes = input->take<std::uint8_t>();
        text = input->take<std::uint8_t>() % 4 == 0 ? nullptr : buffer.data();
        auto* const place = reinterpret_cast<std::byte*>(needed.data());
        switch (input->take<std::uint8_t>() % 4) {
            case 0: break;
            case 1: needed_bytes = reinterpret_cast<std::size_t*>(place + 1); break;
            default: needed_bytes = needed.data(); break;
        }
    }
    std::array<char, 256> buffer{};
    std::array<std::size_t, 2> needed{};
    gimlet_text_format format;
    char* text;
    std::size_t bytes;
    std::size_t* needed_bytes = nullptr;
};

gimlet_status call_query(Input* input) {
    World& w = world();
    Text text(input);
    switch (input->take<std::uint8_t>() % 12) {
        case 0: {
            Struct<gimlet_runtime_info> out(input, gimlet_runtime_info_init());
            return gimlet_runtime_get_info(pick_handle(input, w.runtime), out.get());
        }
        case 1: {
            Struct<gimlet_rank_place> out(input, gimlet_rank_place_init());
            return gimlet_runtime_get_place(pick_handle(input, w.runtime), input->number(),
                                            out.get());
        }
        case 2: {
            Struct<gimlet_plan_info> out(input, gimlet_plan_info_init());
            return gimlet_exchange_get_plan(pick_handle(input, w.exchange), out.get());
        }
        case 3: {
            Struct<gimlet_exchange_stats> out(input, gimlet_exchange_stats_init());
            return gimlet_exchange_get_stats(pick_handle(input, w.exchange), out.get());
        }
        case 4: {
            Struct<gimlet_health> out(input, gimlet_health_init());
            return gimlet_exchange_health(pick_handle(input, w.exchange), out.get(), text.text,
                                          text.bytes, text.needed_bytes);
        }
        case 5: {
            Struct<gimlet_health> out(input, gimlet_health_init());
            return gimlet_runtime_health(pick_handle(input, w.runtime), out.get(), text.text,
                                         text.bytes, text.needed_bytes);
        }
        case 6: {
            std::array<std::int64_t, 4> rows{};
            gimlet_step_traffic traffic = gimlet_step_traffic_init();
            traffic.rows_to = input->take<std::uint8_t>() % 2 == 0 ? nullptr : rows.data();
            traffic.rows_from = input->take<std::uint8_t>() % 2 == 0 ? nullptr : rows.data();
            traffic.rank_capacity = input->number() % 5;
            Struct<gimlet_step_traffic> out(input, traffic);
            return gimlet_routing_traffic(pick_handle(input, w.exchange),
                                          pick_handle(input, w.routings[0]), out.get());
        }
        case 7: {
            Struct<gimlet_routing_info> out(input, gimlet_routing_info_init());
            return gimlet_routing_get_info(pick_handle(input, w.routings[0]), out.get());
        }
        case 8: {
            Struct<gimlet_received> out(input, gimlet_received_init());
            return gimlet_get_received(pick_handle(input, w.exchange),
                                       pick_handle(input, w.routings[1]), out.get());
        }
        case 9:
            return gimlet_exchange_plan(pick_handle(input, w.exchange), text.format, text.text,
                                        text.bytes, text.needed_bytes);
        case 10: return gimlet_environment(text.format, text.text, text.bytes, text.needed_bytes);
        default:
            return gimlet_runtime_topology(pick_handle(input, w.runtime), text.format, text.text,
                                           text.bytes, text.needed_bytes);
    }
}

/// What concerns the ranks together. Here there is one, which nobody can exclude.
gimlet_status call_group(Input* input) {
    World& w = world();
    Text text(input);
    gimlet_device_error record{};
    std::uint32_t flags = 0;
    gimlet_group_report value = gimlet_group_report_init();
    value.records = input->take<std::uint8_t>() % 2 == 0 ? nullptr : &record;
    value.rank_flags = input->take<std::uint8_t>() % 2 == 0 ? nullptr : &flags;
    value.rank_capacity = input->number() % 2;
    Struct<gimlet_group_report> report(input, value);
    switch (input->take<std::uint8_t>() % 9) {
        case 0:
            return gimlet_runtime_group_report(pick_handle(input, w.runtime), report.get(),
                                               text.text, text.bytes, text.needed_bytes);
        case 1:
            return gimlet_exchange_group_report(pick_handle(input, w.exchange), report.get(),
                                                text.text, text.bytes, text.needed_bytes);
        case 2:
            return gimlet_runtime_recover(pick_handle(input, w.runtime), report.get(), text.text,
                                          text.bytes, text.needed_bytes);
        case 3:
            return gimlet_exchange_recover(pick_handle(input, w.exchange), report.get(), text.text,
                                           text.bytes, text.needed_bytes);
        case 4: {
            const std::int32_t ranks[2] = {input->number(), input->number()};
            return gimlet_runtime_exclude(pick_handle(input, w.runtime),
                                          input->take<std::uint8_t>() % 4 == 0 ? nullptr : ranks,
                                          input->number() % 3, nullptr, report.get(), text.text,
                                          text.bytes, text.needed_bytes);
        }
        case 5: {
            std::int32_t rank = 0;
            std::int32_t count = 0;
            return gimlet_runtime_live_ranks(pick_handle(input, w.runtime),
                                             input->take<std::uint8_t>() % 4 == 0 ? nullptr : &rank,
                                             input->number() % 2, &count);
        }
        case 6:
            return gimlet_exchange_set_comm_stream(pick_handle(input, w.exchange), nullptr,
                                                   input->number() % 3);
        case 7: return gimlet_exchange_join(pick_handle(input, w.exchange), nullptr);
        default:
            return gimlet_exchange_events(pick_handle(input, w.exchange), text.text, text.bytes,
                                          text.needed_bytes);
    }
}

gimlet_moe_config take_config(Input* input) {
    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = input->number();
    config.topk = input->number();
    const auto hidden = static_cast<std::uint32_t>(input->number());
    const bool whole_rows = input->take<std::uint8_t>() % 2 == 0;
    config.hidden = static_cast<std::int32_t>(whole_rows ? hidden * 8 : hidden);  // may wrap
    config.max_tokens = input->number();
    config.dispatch_type = input->number() % 5;
    config.layout = input->number() % 3;
    config.expert_alignment = input->number();
    config.max_recv_rows = input->take<std::int64_t>();
    config.sm_budget = input->number();
    config.dispatch_threads = input->number();
    config.combine_threads = input->number();
    config.chunk_rows = input->number();
    config.mode = input->number() % 4;
    config.publish_rows = input->number();
    config.sync = input->number() % 3;
    config.tensors = input->number() % 3;
    config.ready_rows = input->number();
    config.ring_rows = input->number();
    config.send_rows = input->number();
    return config;
}

/// Plans, rings, records and events.
gimlet_status call_numbers(Input* input) {
    World& w = world();
    std::array<gimlet_device_event, 4> events{};
    std::array<gimlet_device_error, 2> errors{};
    std::array<gimlet_ring_counters, 2> rings{};
    std::int32_t count = 0;
    const std::int32_t capacity = input->number() % 5;
    const bool nothing = input->take<std::uint8_t>() % 4 == 0;
    gimlet_device_event* const list = nothing ? nullptr : events.data();
    switch (input->take<std::uint8_t>() % 9) {
        case 0: {
            Struct<gimlet_moe_config> config(input, take_config(input));
            return gimlet_moe_config_set_rings(config.get(), input->number(), input->number() % 3);
        }
        case 1: {
            Text text(input);
            Struct<gimlet_plan_info> info(input, gimlet_plan_info_init());
            Struct<gimlet_moe_config> config(input, take_config(input));
            return gimlet_runtime_plan(pick_handle(input, w.runtime), config.get(), info.get(),
                                       text.format, text.text, text.bytes, text.needed_bytes);
        }
        case 2:
            return gimlet_runtime_get_events(pick_handle(input, w.runtime), list, capacity, &count);
        case 3:
            return gimlet_exchange_get_events(pick_handle(input, w.exchange), list, capacity,
                                              &count);
        case 8:
            return gimlet_exchange_ring_counters(pick_handle(input, w.exchange),
                                                 nothing ? nullptr : rings.data(), capacity % 3,
                                                 &count);
        case 4:
            return gimlet_device_errors(nothing ? nullptr : errors.data(), capacity % 3, &count);
        case 5: {
            Text text(input);
            errors[0].primitive = input->take<std::uint32_t>();
            errors[0].fault = input->take<std::uint32_t>() % 16;
            errors[0].tag = input->take<std::uint32_t>() % 8;
            errors[0].peer = input->number();
            errors[0].elapsed_ns = input->take<std::uint64_t>();
            errors[0].epoch = input->take<std::uint64_t>();
            errors[0].expected = input->take<std::uint64_t>();
            errors[0].seen = input->take<std::uint64_t>();
            errors[0].step = input->take<std::uint64_t>();
            (void)gimlet_primitive_name(errors[0].primitive);
            (void)gimlet_fault_name(errors[0].fault);
            (void)gimlet_event_name(errors[0].primitive);
            (void)gimlet_fault_status(errors[0].fault);
            return gimlet_device_error_text(nothing ? nullptr : errors.data(), text.text,
                                            text.bytes, text.needed_bytes);
        }
        case 6: {
            gimlet_ready_view view{};
            return gimlet_get_ready_view(pick_handle(input, w.exchange),
                                         pick_handle(input, w.routings[0]),
                                         nothing ? nullptr : &view);
        }
        default: {
            // A second exchange, if the struct is one of any version.
            gimlet_moe_config good = gimlet_moe_config_init();
            good.expert_count = 3;
            good.topk = kTopk;
            good.hidden = 8;
            good.max_tokens = kTokens;
            good.sync = input->number() % 3;
            good.layout = input->number() % 3;
            Struct<gimlet_moe_config> config(input, good);
            gimlet_exchange* made = nullptr;
            const auto status = gimlet_exchange_create(pick_handle(input, w.runtime), config.get(),
                                                       nothing ? nullptr : &made);
            (void)gimlet_exchange_close(made);
            (void)gimlet_exchange_destroy(made);
            return status;
        }
    }
}

/// Bootstraps over messages that nobody answers, groups of survivors, and what needs no object.
gimlet_status call_beside(Input* input) {
    World& w = world();
    const std::array<std::int32_t, 2> ranks = {input->number(), input->number()};
    const std::int32_t* const list = input->take<std::uint8_t>() % 8 == 0 ? nullptr : ranks.data();
    const std::int32_t count = input->number() % 3;
    gimlet_bootstrap* made = nullptr;
    gimlet_status status = GIMLET_OK;
    switch (input->take<std::uint8_t>() % 8) {
        case 0: {
            gimlet_message_callbacks callbacks = gimlet_message_callbacks_init();
            callbacks.rank = input->number() % 4;
            callbacks.size = input->number() % 4;
            callbacks.timeout_ns = 1000;
            callbacks.send = [](void*, int32_t, int32_t, const void*, size_t) { return 0; };
            if (input->take<std::uint8_t>() % 8 == 0) callbacks.send = nullptr;
            callbacks.sent = [](void*, int32_t, int32_t*) { return 0; };
            callbacks.probe = [](void*, int32_t, int32_t, int32_t*, size_t*) { return 0; };
            callbacks.receive = [](void*, int32_t, int32_t, void*, size_t) { return 1; };
            Struct<gimlet_message_callbacks> in(input, callbacks);
            status = gimlet_bootstrap_create_messages(
                in.get(), input->take<std::uint8_t>() % 8 == 0 ? nullptr : &made);
            gimlet_bootstrap* left = nullptr;
            (void)gimlet_bootstrap_barrier(made);
            (void)gimlet_bootstrap_survivors(made, list, count, &left);
            (void)gimlet_bootstrap_destroy(left);
            break;
        }
        case 1:
            status =
                gimlet_bootstrap_survivors(pick_handle(input, w.bootstrap), list, count, &made);
            break;
        case 2: status = gimlet_fail(input->number(), list == nullptr ? nullptr : "text"); break;
        case 3: status = gimlet_reclaim(nullptr); break;
        default: return call_numbers(input);
    }
    (void)gimlet_bootstrap_destroy(made);
    return status;
}

/// Creations: what succeeds is destroyed again.
gimlet_status call_create(Input* input) {
    World& w = world();
    switch (input->take<std::uint8_t>() % 6) {
        case 0: {
            Struct<gimlet_moe_config> config(input, take_config(input));
            Text text(input);
            std::int32_t count = 0;
            return gimlet_moe_config_faults(config.get(), &count, text.text, text.bytes,
                                            text.needed_bytes);
        }
        case 1: {
            Struct<gimlet_moe_config> config(input, take_config(input));
            std::uint32_t bytes = 0;
            return gimlet_moe_config_row_bytes(config.get(), &bytes, nullptr);
        }
        case 2: {
            gimlet_bootstrap_callbacks callbacks = gimlet_bootstrap_callbacks_init();
            callbacks.rank = input->number();
            callbacks.size = input->number();
            callbacks.all_gather = [](void*, const void*, size_t, void*) { return 1; };
            Struct<gimlet_bootstrap_callbacks> in(input, callbacks);
            gimlet_bootstrap* made = nullptr;
            const auto status = gimlet_bootstrap_create(
                in.get(), input->take<std::uint8_t>() % 8 == 0 ? nullptr : &made);
            (void)gimlet_bootstrap_destroy(made);
            // An input from before there was more ends here, and reads zeros.
            return input->take<std::uint8_t>() % 2 == 0 ? status : call_beside(input);
        }
        case 3: {
            gimlet_routing* made = nullptr;
            const auto status = gimlet_routing_create(pick_handle(input, w.exchange), &made);
            (void)gimlet_routing_destroy(made);
            return status;
        }
        case 4: {
            gimlet_thread_group* group = nullptr;
            const auto status = gimlet_thread_group_create(input->number() % 64, 1000, &group);
            gimlet_bootstrap* member = nullptr;
            if (status == GIMLET_OK)
                (void)gimlet_thread_group_member(group, input->number(), &member);
            (void)gimlet_bootstrap_destroy(member);
            (void)gimlet_thread_group_destroy(group);
            return status;
        }
        default: {
            gimlet_runtime* made = nullptr;
            const auto status =
                gimlet_runtime_adopt(nullptr, pick_handle(input, w.bootstrap), nullptr, &made);
            require(status != GIMLET_OK, "capi: null is no communicator");
            return status;
        }
    }
}

gimlet_status call_state(Input* input) {
    World& w = world();
    switch (input->take<std::uint8_t>() % 14) {
        case 0: return gimlet_exchange_reserve(pick_handle(input, w.exchange), input->number() % 3);
        case 1: return gimlet_exchange_end_capture(pick_handle(input, w.exchange));
        case 2: return gimlet_exchange_check(pick_handle(input, w.exchange));
        case 3: return gimlet_exchange_synchronize(pick_handle(input, w.exchange), nullptr);
        case 4: return gimlet_runtime_synchronize(pick_handle(input, w.runtime), nullptr);
        case 5:
            return gimlet_runtime_barrier(pick_handle(input, w.runtime), nullptr,
                                          input->number() % 3, 0);
        case 6: return gimlet_runtime_close(pick_handle(input, w.runtime));
        case 7: {
            void* rows = nullptr;
            return gimlet_combine_input(pick_handle(input, w.exchange),
                                        input->take<std::uint8_t>() % 4 == 0 ? nullptr : &rows);
        }
        case 8: {
            // Another current device than at creation.
            (void)cudaSetDevice(1);
            const auto status = call_dispatch(input, input->take<std::uint8_t>() % 2 == 0);
            (void)cudaSetDevice(0);
            return status;
        }
        case 9: return gimlet_set_log_level(input->number() == 0 ? 0 : 99);
        // The next ones free memory: that no kernel uses it is the caller's duty.
        case 10:
            (void)cudaDeviceSynchronize();
            return gimlet_exchange_abort(pick_handle(input, w.exchange));
        case 11: return gimlet_exchange_close(pick_handle(input, w.exchange));
        case 12:
            (void)cudaDeviceSynchronize();
            return gimlet_exchange_destroy(pick_handle(input, w.exchange));
        default:
            (void)cudaDeviceSynchronize();
            return gimlet_routing_destroy(pick_handle(input, w.routings[1]));
    }
}

gimlet_status call_any(Input* input) {
    switch (input->take<std::uint8_t>() % 8) {
        case 0: return call_dispatch(input, false);
        case 1: return call_dispatch(input, true);
        case 2: return call_combine(input);
        case 3: return call_copy(input);
        case 4: return call_query(input);
        case 5: return call_group(input);
        case 6: return call_create(input);
        default: return call_state(input);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    gimlet::fuzz::quiet();
    World& w = world();
    Input input(data, bytes);
    for (int i = 0; i < kCallsPerInput && !input.empty(); ++i) {
        const gimlet_status status = call_any(&input);
        require(status >= GIMLET_OK && status < GIMLET_INTERNAL, "capi: a status that is one");
        if (status == GIMLET_OK) continue;
        require(gimlet_last_error_status() == status, "capi: the status of the last error");
        require(std::strlen(gimlet_last_error()) > 0, "capi: a failure with a text");
    }
    if (w.step()) return 0;
    // A refused step is overcome by recover(), unless the exchange is gone.
    if (gimlet_runtime_recover(w.runtime, nullptr, nullptr, 0, nullptr) == GIMLET_OK && w.step())
        return 0;
    // Closed, destroyed, or failed by a wrong expert: a new one must work.
    w.end();
    w.open();
    require(w.step(), "capi: a fresh world works");
    return 0;
}

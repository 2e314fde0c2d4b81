// SPDX-License-Identifier: Apache-2.0
// The tables that NCCL loads. No exception leaves this file, and every handle is checked.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "host/base/env.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/rma_plugin/abi.hpp"
#include "host/rma_plugin/endpoint.hpp"
#include "host/rma_plugin/object_table.hpp"

namespace gimlet::rma {

namespace {

using abi::Result;

constexpr int kSpeedMbps = 200000;
constexpr int kMaxComms = 1 << 16;
constexpr std::size_t kMaxBytes = std::size_t{1} << 40;
constexpr std::uint64_t kGuid = 0x676d6c7472610001ull;
constexpr int kMaxContexts = 1024;
constexpr int kMaxRanks = 1 << 16;

struct Session {
    std::uint64_t comm_id;
};

struct RmaContext {
    Endpoint* endpoint;
    void* endpoint_handle;
    int context_count;
};

ObjectTable<Session>& sessions() {
    static auto* table = new ObjectTable<Session>(1, "session");
    return *table;
}
ObjectTable<Listener>& listeners() {
    static auto* table = new ObjectTable<Listener>(2, "listener");
    return *table;
}
ObjectTable<Endpoint>& endpoints() {
    static auto* table = new ObjectTable<Endpoint>(3, "communicator");
    return *table;
}
ObjectTable<RmaContext>& contexts() {
    static auto* table = new ObjectTable<RmaContext>(4, "context");
    return *table;
}

std::atomic<abi::Logger> nccl_logger{nullptr};

/// What a person must see goes to NCCL's log if that is on, else to standard error: once.
void log_to_nccl(const LogRecord& record) {
    const abi::Logger logger = nccl_logger.load();
    const bool is_problem = record.level <= LogLevel::warn;
    if (logger == nullptr || (is_problem && !env_is_set(EnvVar::nccl_debug))) {
        std::fprintf(stderr, "%s\n", format_log_line(record).c_str());
        return;
    }
    logger(is_problem ? abi::kLogWarn : abi::kLogInfo, abi::kLogNet, "rma_plugin", 0, "%s",
           format_log_line(record).c_str());
}

void start_log(abi::Logger logger) {
    static std::atomic<bool> is_started{false};
    nccl_logger.store(logger);
    if (is_started.exchange(true)) return;
    // NCCL decides what of our information is shown.
    if (logger != nullptr) set_log_level(std::max(log_level(), LogLevel::info));
    (void)set_log_sink(log_to_nccl);
}

Result result_of(ErrorCode code) noexcept {
    switch (code) {
        case ErrorCode::invalid_argument:
        case ErrorCode::overflow: return abi::kInvalidArgument;
        case ErrorCode::invalid_usage:
        case ErrorCode::config_mismatch:
        case ErrorCode::not_supported: return abi::kInvalidUsage;
        case ErrorCode::cuda: return abi::kUnhandledCudaError;
        case ErrorCode::system:
        case ErrorCode::out_of_memory: return abi::kSystemError;
        case ErrorCode::timeout:
        case ErrorCode::peer_failed: return abi::kRemoteError;
        default: return abi::kInternalError;
    }
}

template <typename Body>
Result guarded(Body&& body) noexcept {
    try {
        body();
        return abi::kSuccess;
    } catch (const Error& error) {
        return result_of(error.code());  // logged where it was decided
    } catch (const std::exception& error) {
        log(LogLevel::error, kNoRank, "rma: {}", error.what());
        return abi::kInternalError;
    }
}

template <typename T>
T& required(T* pointer, const char* what) {
    if (pointer == nullptr) raise(ErrorCode::invalid_argument, kNoRank, "{} is NULL", what);
    return *pointer;
}

std::uint64_t handle_of(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

Result init(void** context, std::uint64_t comm_id, abi::Logger logger) {
    return guarded([&] {
        start_log(logger);
        required(context, "context") =
            sessions().insert(std::make_unique<Session>(Session{comm_id}));
        log(LogLevel::info, kNoRank, "rma: plugin of gimlet {} for communicator {:#x}",
            GIMLET_RMA_VERSION, comm_id);
    });
}

Result devices(int* count) {
    return guarded([&] { required(count, "count") = 1; });
}

Result get_properties(int device, abi::NetProperties* properties) {
    return guarded([&] {
        if (device != 0) {
            raise(ErrorCode::invalid_argument, kNoRank, "device {}: there is device 0 only",
                  device);
        }
        static char name[] = "gimlet-rma";
        abi::NetProperties& p = required(properties, "properties");
        std::memset(&p, 0, sizeof(p));
        p.name = name;
        p.guid = kGuid;
        p.pointer_support = abi::kPointerHost | abi::kPointerCuda;
        p.speed_mbps = kSpeedMbps;
        p.max_comms = kMaxComms;
        p.max_receives = kMaxReceives;
        p.net_device_type = abi::kDeviceTypeGinProxy;
        p.virtual_devices.count = 1;
        p.max_p2p_bytes = kMaxBytes;
        p.max_collective_bytes = kMaxBytes;
        p.max_multi_request_size = 1;
        p.rail_id = -1;
        p.plane_id = -1;
    });
}

Result listen(void*, int device, void* handle, void** listener) {
    return guarded([&] {
        if (device != 0) {
            raise(ErrorCode::invalid_argument, kNoRank, "device {}: there is device 0 only",
                  device);
        }
        auto created = std::make_unique<Listener>();
        required(static_cast<char*>(handle), "handle");
        std::memcpy(handle, &created->handle(), sizeof(WireHandle));
        required(listener, "listener") = listeners().insert(std::move(created));
    });
}

// The first argument may be the context of another plugin: it is not looked at.
Result connect(void*, void* handles[], int rank_count, int rank, void* listener, void** endpoint) {
    return guarded([&] {
        if (rank_count < 1 || rank_count > kMaxRanks || rank < 0 || rank >= rank_count) {
            raise(ErrorCode::invalid_argument, kNoRank, "rank {} of {} ranks", rank, rank_count);
        }
        required(handles, "handles");
        std::vector<WireHandle> all(static_cast<std::size_t>(rank_count));
        for (std::size_t i = 0; i < all.size(); ++i) {
            std::memcpy(&all[i], &required(static_cast<char*>(handles[i]), "handle"),
                        sizeof(WireHandle));
        }
        void** const result = &required(endpoint, "communicator");
        *result =
            endpoints().insert(std::make_unique<Endpoint>(all, rank, listeners().find(listener)));
    });
}

void make_context(void* endpoint, int context_count, void** rma_context) {
    if (context_count < 1 || context_count > kMaxContexts) {
        raise(ErrorCode::invalid_argument, kNoRank, "{} contexts; allowed are 1 to {}",
              context_count, kMaxContexts);
    }
    Endpoint& target = endpoints().find(endpoint);
    target.add_contexts(context_count);
    required(rma_context, "context") = contexts().insert(
        std::make_unique<RmaContext>(RmaContext{&target, endpoint, context_count}));
}

Result create_context_v14(void* endpoint, abi::ConfigV14* config, void** rma_context) {
    return guarded([&] {
        make_context(endpoint, required(config, "configuration").context_count, rma_context);
    });
}

Result create_context_v13(void* endpoint, abi::ConfigV13* config, void** rma_context,
                          void** device_handle) {
    return guarded([&] {
        make_context(endpoint, required(config, "configuration").context_count, rma_context);
        if (device_handle != nullptr) *device_handle = nullptr;
    });
}

Result register_region_v14(void* endpoint, void* data, std::size_t bytes, int type,
                           std::uint64_t flags, void** region) {
    return guarded([&] {
        if (data == nullptr || bytes == 0 || handle_of(data) + bytes < handle_of(data) ||
            (type != abi::kPointerHost && type != abi::kPointerCuda)) {
            raise(
                ErrorCode::invalid_argument, kNoRank,
                "registration of {} B at {:#x}, type {}: needs a buffer, and type host (1) or CUDA "
                "(2)",
                bytes, handle_of(data), type);
        }
        const MemoryKind kind = type == abi::kPointerHost ? MemoryKind::host : MemoryKind::device;
        void** const result = &required(region, "region");
        *result = reinterpret_cast<void*>(
            endpoints().find(endpoint).register_region(data, bytes, kind, flags));
    });
}

Result register_region_v13(void* endpoint, void* data, std::size_t bytes, int type,
                           std::uint64_t flags, void** region, void** device_region) {
    const Result result = register_region_v14(endpoint, data, bytes, type, flags, region);
    if (device_region != nullptr) *device_region = result == abi::kSuccess ? *region : nullptr;
    return result;
}

[[noreturn]] void refuse_dmabuf() {
    raise(ErrorCode::not_supported, kNoRank,
          "DMA buffers are not offered by this plugin; register the memory by its address");
}

Result register_dmabuf_v14(void*, void*, std::size_t, int, std::uint64_t, int, std::uint64_t,
                           void**) {
    return guarded([] { refuse_dmabuf(); });
}

Result register_dmabuf_v13(void*, void*, std::size_t, int, std::uint64_t, int, std::uint64_t,
                           void**, void**) {
    return guarded([] { refuse_dmabuf(); });
}

Result deregister_region(void* endpoint, void* region) {
    return guarded([&] { endpoints().find(endpoint).deregister_region(handle_of(region)); });
}

Result destroy_context(void* rma_context) {
    return guarded([&] {
        const std::unique_ptr<RmaContext> context = contexts().remove(rma_context);
        // Teardown comes in any order: the communicator may be closed already.
        endpoints().find(context->endpoint_handle).drain();
    });
}

Result close_endpoint(void* endpoint) {
    return guarded([&] {
        endpoints().find(endpoint).drain();
        (void)endpoints().remove(endpoint);
    });
}

Result close_listener(void* listener) {
    return guarded([&] { (void)listeners().remove(listener); });
}

RmaContext& find_context(void* rma_context, int context) {
    RmaContext& found = contexts().find(rma_context);
    if (context < 0 || context >= found.context_count) {
        raise(ErrorCode::invalid_argument, found.endpoint->rank(), "context {} is not below {}",
              context, found.context_count);
    }
    return found;
}

Result put(void* rma_context, int context, std::uint64_t source_offset, void* source,
           std::size_t bytes, std::uint64_t target_offset, void* target, std::uint32_t rank,
           void** request) {
    return guarded([&] {
        void** const result = &required(request, "request");
        const RequestId id = find_context(rma_context, context)
                                 .endpoint->put(context, {handle_of(source), source_offset}, bytes,
                                                {handle_of(target), target_offset}, rank, nullptr);
        *result = reinterpret_cast<void*>(id);
    });
}

Result put_signal_v14(void* rma_context, int context, std::uint64_t source_offset, void* source,
                      std::size_t bytes, std::uint64_t target_offset, void* target,
                      std::uint32_t rank, std::uint64_t signal_offset, void* signal,
                      std::uint64_t signal_value, std::uint32_t signal_op, bool, void** request) {
    return guarded([&] {
        if (signal_op != abi::kSignalIncrement && signal_op != abi::kSignalAdd) {
            raise(ErrorCode::invalid_argument, kNoRank,
                  "signal operation {}: known are increment (1) and add (2)", signal_op);
        }
        void** const result = &required(request, "request");
        const SignalUpdate update{{handle_of(signal), signal_offset},
                                  signal_op == abi::kSignalIncrement ? 1 : signal_value};
        const RequestId id = find_context(rma_context, context)
                                 .endpoint->put(context, {handle_of(source), source_offset}, bytes,
                                                {handle_of(target), target_offset}, rank, &update);
        *result = reinterpret_cast<void*>(id);
    });
}

// Every signal is a strong one, so nothing is lost here.
Result put_signal_v13(void* rma_context, int context, std::uint64_t source_offset, void* source,
                      std::size_t bytes, std::uint64_t target_offset, void* target,
                      std::uint32_t rank, std::uint64_t signal_offset, void* signal,
                      std::uint64_t signal_value, std::uint32_t signal_op, void** request) {
    return put_signal_v14(rma_context, context, source_offset, source, bytes, target_offset, target,
                          rank, signal_offset, signal, signal_value, signal_op, true, request);
}

Result get(void* rma_context, int context, std::uint64_t remote_offset, void* remote,
           std::size_t bytes, std::uint64_t local_offset, void* local, std::uint32_t rank,
           void** request) {
    return guarded([&] {
        void** const result = &required(request, "request");
        const RequestId id = find_context(rma_context, context)
                                 .endpoint->get(context, {handle_of(remote), remote_offset}, bytes,
                                                {handle_of(local), local_offset}, rank);
        *result = reinterpret_cast<void*>(id);
    });
}

// A get is reported done only when its bytes are where the GPU sees them: nothing is left to flush.
Result flush(void* rma_context, int context, void*, std::uint32_t, void** request) {
    return guarded([&] {
        (void)find_context(rma_context, context);
        required(request, "request") = nullptr;
    });
}

Result test(void* endpoint, void* request, int* done) {
    return guarded([&] {
        int& result = required(done, "done");
        result = 0;
        result = endpoints().find(endpoint).test(handle_of(request)) ? 1 : 0;
    });
}

Result progress(void* rma_context) {
    return guarded([&] { contexts().find(rma_context).endpoint->progress(); });
}

Result query_last_error(void* rma_context, bool* has_error) {
    return guarded([&] {
        required(has_error, "has_error") = contexts().find(rma_context).endpoint->has_error();
    });
}

Result finalize(void* context) {
    return guarded([&] { (void)sessions().remove(context); });
}

}  // namespace

}  // namespace gimlet::rma

namespace rma = gimlet::rma;

const rma::abi::TableV14 ncclRmaPlugin_v14 = {
    "gimlet",
    rma::init,
    rma::devices,
    rma::get_properties,
    rma::listen,
    rma::connect,
    rma::create_context_v14,
    rma::register_region_v14,
    rma::register_dmabuf_v14,
    rma::deregister_region,
    rma::destroy_context,
    rma::close_endpoint,
    rma::close_listener,
    rma::put,
    rma::put_signal_v14,
    rma::get,
    rma::flush,
    rma::test,
    rma::progress,
    rma::query_last_error,
    rma::finalize,
};

const rma::abi::TableV13 ncclRmaPlugin_v13 = {
    "gimlet",
    rma::init,
    rma::devices,
    rma::get_properties,
    rma::listen,
    rma::connect,
    rma::create_context_v13,
    rma::register_region_v13,
    rma::register_dmabuf_v13,
    rma::deregister_region,
    rma::destroy_context,
    rma::close_endpoint,
    rma::close_listener,
    rma::put,
    rma::put_signal_v13,
    rma::get,
    rma::flush,
    rma::test,
    rma::progress,
    rma::query_last_error,
    rma::finalize,
};

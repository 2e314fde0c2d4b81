// SPDX-License-Identifier: Apache-2.0
// The binary interface between NCCL and an RMA plugin: versions 14 and 13 of the table, and the
// network properties of version 12. Declared here so that the plugin needs no NCCL to build; the
// sizes and offsets are NCCL's and may never change.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gimlet::rma::abi {

/// ncclResult_t.
enum Result : int {
    kSuccess = 0,
    kUnhandledCudaError = 1,
    kSystemError = 2,
    kInternalError = 3,
    kInvalidArgument = 4,
    kInvalidUsage = 5,
    kRemoteError = 6,
};

inline constexpr int kHandleBytes = 128;       ///< most bytes that listen() may write
inline constexpr int kPointerHost = 1;         ///< memory type of regMrSym
inline constexpr int kPointerCuda = 2;         ///< memory type of regMrSym
inline constexpr int kDeviceTypeGinProxy = 2;  ///< netDeviceType that makes GIN the proxy kind
inline constexpr std::uint64_t kRegionStrictOrder = 1;
inline constexpr std::uint64_t kRegionSignalNeverReset = 2;
inline constexpr std::uint32_t kSignalIncrement = 1;
inline constexpr std::uint32_t kSignalAdd = 2;
inline constexpr int kRequestsPerReceive = 32;  ///< queue length = this times maxRecvs

inline constexpr int kLogWarn = 2;
inline constexpr int kLogInfo = 3;
inline constexpr unsigned long kLogNet = 0x10;
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

struct VirtualDevices {
    int count;
    int devices[8];
};

struct NetProperties {
    char* name;
    char* pci_path;
    std::uint64_t guid;
    int pointer_support;
    int registration_is_global;
    int force_flush;
    int speed_mbps;
    int port;
    float latency;
    int max_comms;
    int max_receives;
    int net_device_type;
    int net_device_version;
    VirtualDevices virtual_devices;
    std::size_t max_p2p_bytes;
    std::size_t max_collective_bytes;
    int max_multi_request_size;
    std::int16_t rail_id;
    std::int16_t plane_id;
};
static_assert(offsetof(NetProperties, name) == 0);
static_assert(offsetof(NetProperties, pci_path) == 8);
static_assert(offsetof(NetProperties, guid) == 16);
static_assert(offsetof(NetProperties, pointer_support) == 24);
static_assert(offsetof(NetProperties, speed_mbps) == 36);
static_assert(offsetof(NetProperties, latency) == 44);
static_assert(offsetof(NetProperties, max_receives) == 52);
static_assert(offsetof(NetProperties, net_device_type) == 56);
static_assert(offsetof(NetProperties, virtual_devices) == 64);
static_assert(offsetof(NetProperties, max_p2p_bytes) == 104);
static_assert(offsetof(NetProperties, max_multi_request_size) == 120);
static_assert(offsetof(NetProperties, plane_id) == 126);
static_assert(sizeof(NetProperties) == 128);

struct ConfigV14 {
    int context_count;
    int traffic_class;
    int rank_stride;
};
static_assert(sizeof(ConfigV14) == 12);

struct ConfigV13 {
    int signal_count;
    int counter_count;
    int context_count;
    int queue_depth;
    int traffic_class;
};
static_assert(sizeof(ConfigV13) == 20 && offsetof(ConfigV13, context_count) == 8);

struct TableV14 {
    const char* name;
    Result (*init)(void** context, std::uint64_t comm_id, Logger logger);
    Result (*devices)(int* count);
    Result (*get_properties)(int device, NetProperties* properties);
    Result (*listen)(void* context, int device, void* handle, void** listener);
    Result (*connect)(void* context, void* handles[], int rank_count, int rank, void* listener,
                      void** endpoint);
    Result (*create_context)(void* endpoint, ConfigV14* config, void** rma_context);
    Result (*register_region)(void* endpoint, void* data, std::size_t bytes, int type,
                              std::uint64_t flags, void** region);
    Result (*register_dmabuf)(void* endpoint, void* data, std::size_t bytes, int type,
                              std::uint64_t offset, int fd, std::uint64_t flags, void** region);
    Result (*deregister_region)(void* endpoint, void* region);
    Result (*destroy_context)(void* rma_context);
    Result (*close_endpoint)(void* endpoint);
    Result (*close_listener)(void* listener);
    Result (*put)(void* rma_context, int context, std::uint64_t source_offset, void* source,
                  std::size_t bytes, std::uint64_t target_offset, void* target, std::uint32_t rank,
                  void** request);
    Result (*put_signal)(void* rma_context, int context, std::uint64_t source_offset, void* source,
                         std::size_t bytes, std::uint64_t target_offset, void* target,
                         std::uint32_t rank, std::uint64_t signal_offset, void* signal,
                         std::uint64_t signal_value, std::uint32_t signal_op, bool is_strong,
                         void** request);
    Result (*get)(void* rma_context, int context, std::uint64_t remote_offset, void* remote,
                  std::size_t bytes, std::uint64_t local_offset, void* local, std::uint32_t rank,
                  void** request);
    Result (*flush)(void* rma_context, int context, void* region, std::uint32_t rank,
                    void** request);
    Result (*test)(void* endpoint, void* request, int* done);
    Result (*progress)(void* rma_context);
    Result (*query_last_error)(void* rma_context, bool* has_error);
    Result (*finalize)(void* context);
};
static_assert(sizeof(TableV14) == 21 * 8);
static_assert(offsetof(TableV14, listen) == 4 * 8);
static_assert(offsetof(TableV14, register_region) == 7 * 8);
static_assert(offsetof(TableV14, put) == 13 * 8);
static_assert(offsetof(TableV14, test) == 17 * 8);
static_assert(offsetof(TableV14, finalize) == 20 * 8);

/// As V14, except for create_context, both registrations, and put_signal without is_strong.
struct TableV13 {
    const char* name;
    Result (*init)(void** context, std::uint64_t comm_id, Logger logger);
    Result (*devices)(int* count);
    Result (*get_properties)(int device, NetProperties* properties);
    Result (*listen)(void* context, int device, void* handle, void** listener);
    Result (*connect)(void* context, void* handles[], int rank_count, int rank, void* listener,
                      void** endpoint);
    Result (*create_context)(void* endpoint, ConfigV13* config, void** rma_context,
                             void** device_handle);
    Result (*register_region)(void* endpoint, void* data, std::size_t bytes, int type,
                              std::uint64_t flags, void** region, void** device_region);
    Result (*register_dmabuf)(void* endpoint, void* data, std::size_t bytes, int type,
                              std::uint64_t offset, int fd, std::uint64_t flags, void** region,
                              void** device_region);
    Result (*deregister_region)(void* endpoint, void* region);
    Result (*destroy_context)(void* rma_context);
    Result (*close_endpoint)(void* endpoint);
    Result (*close_listener)(void* listener);
    Result (*put)(void* rma_context, int context, std::uint64_t source_offset, void* source,
                  std::size_t bytes, std::uint64_t target_offset, void* target, std::uint32_t rank,
                  void** request);
    Result (*put_signal)(void* rma_context, int context, std::uint64_t source_offset, void* source,
                         std::size_t bytes, std::uint64_t target_offset, void* target,
                         std::uint32_t rank, std::uint64_t signal_offset, void* signal,
                         std::uint64_t signal_value, std::uint32_t signal_op, void** request);
    Result (*get)(void* rma_context, int context, std::uint64_t remote_offset, void* remote,
                  std::size_t bytes, std::uint64_t local_offset, void* local, std::uint32_t rank,
                  void** request);
    Result (*flush)(void* rma_context, int context, void* region, std::uint32_t rank,
                    void** request);
    Result (*test)(void* endpoint, void* request, int* done);
    Result (*progress)(void* rma_context);
    Result (*query_last_error)(void* rma_context, bool* has_error);
    Result (*finalize)(void* context);
};
static_assert(sizeof(TableV13) == 21 * 8);
static_assert(offsetof(TableV13, put_signal) == 14 * 8);
static_assert(offsetof(TableV13, progress) == 18 * 8);

}  // namespace gimlet::rma::abi

/// What NCCL looks up in the library. Variables, not functions.
extern "C" {
[[gnu::visibility("default")]] extern const gimlet::rma::abi::TableV14 ncclRmaPlugin_v14;
[[gnu::visibility("default")]] extern const gimlet::rma::abi::TableV13 ncclRmaPlugin_v13;
}

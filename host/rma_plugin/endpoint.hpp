// SPDX-License-Identifier: Apache-2.0
// What NCCL calls a collective communicator of the plugin: one rank's links to all others, its
// registered memory, and its data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "host/rma_plugin/carrier.hpp"
#include "host/rma_plugin/channel.hpp"
#include "host/rma_plugin/handle.hpp"
#include "host/rma_plugin/ucx_engine.hpp"

namespace gimlet::rma {

inline constexpr int kMaxReceives = 4;
/// Requests that NCCL may have under way for one context and peer.
inline constexpr int kQueueLength = abi::kRequestsPerReceive * kMaxReceives;

/// Where peers find this rank until connect() is over.
class Listener {
  public:
    Listener();
    const WireHandle& handle() const noexcept { return handle_; }
    const FileDescriptor& unix_socket() const noexcept { return unix_socket_; }
    const FileDescriptor& tcp_socket() const noexcept { return tcp_socket_; }

  private:
    WireHandle handle_;
    FileDescriptor unix_socket_;
    FileDescriptor tcp_socket_;
};

/// A range of registered memory, as NCCL names it.
struct RegionRange {
    std::uint64_t handle = 0;
    std::uint64_t offset = 0;
};

struct SignalUpdate {
    RegionRange word;
    std::uint64_t value = 0;
};

/// Thread safe.
class Endpoint {
  public:
    /// Collective over the ranks whose handles these are. Raises Error.
    Endpoint(std::span<const WireHandle> handles, int rank, const Listener& listener);
    ~Endpoint();
    Endpoint(const Endpoint&) = delete;
    Endpoint& operator=(const Endpoint&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }
    EngineKind engine(int peer) const { return carrier_->link(peer).kind(); }

    /// Collective, same order on all ranks. Returns the handle, never 0, bit 63 clear.
    std::uint64_t register_region(void* data, std::size_t bytes, MemoryKind kind,
                                  std::uint64_t flags);
    /// Local.
    void deregister_region(std::uint64_t handle);

    /// Local. Makes room for the requests of `context_count` more contexts.
    void add_contexts(int context_count);

    RequestId put(int context, const RegionRange& source, std::size_t bytes,
                  const RegionRange& target, std::uint32_t peer, const SignalUpdate* signal);
    RequestId get(int context, const RegionRange& remote, std::size_t bytes,
                  const RegionRange& local, std::uint32_t peer);
    bool test(RequestId request);
    void progress();
    bool has_error() const noexcept { return carrier_->has_error(); }
    /// Waits, for a bounded time, until nothing of ours is under way.
    void drain();

  private:
    void connect_links(std::span<const WireHandle> handles, const Listener& listener);
    /// Links of one engine to all its peers, over sockets of `listener`.
    void connect_sockets(EngineKind kind, std::span<const WireHandle> handles,
                         const Listener& listener, const std::vector<EngineKind>& engines,
                         std::vector<std::unique_ptr<Link>>* links);
    std::unique_ptr<Link> make_socket_link(EngineKind kind, int peer, const WireHandle& peer_handle,
                                           FileDescriptor socket, FileDescriptor rings,
                                           std::uint64_t deadline_ns);
    void log_engines() const;

    std::unique_ptr<LocalRegion> describe(void* data, std::size_t bytes, MemoryKind kind,
                                          std::uint64_t flags, MemoryExport* exported);
    void exchange(LocalRegion& region, const MemoryExport& exported);
    void unmap_peers(LocalRegion& region) noexcept;
    void use_gpu_of(std::uint64_t address);

    LocalRegion& find_region(std::uint64_t handle, const char* what);
    Place local_place(const RegionRange& range, std::uint64_t bytes, const char* what);
    const RemoteRegion& remote_region(const RegionRange& range, std::uint64_t bytes,
                                      std::uint32_t peer, const char* what);
    void check_peer(std::uint32_t peer) const;

    const int rank_;
    const int size_;
    const std::uint64_t timeout_ns_;
    const std::uint64_t tag_;        ///< in all our region handles
    std::mutex registration_mutex_;  ///< held for whole collective rounds; before mutex_
    mutable std::mutex mutex_;
    std::unique_ptr<Gpu> gpu_;
    std::vector<std::unique_ptr<LocalRegion>> regions_;  ///< by sequence number
    std::shared_ptr<UcxEngine> ucx_;
    std::unique_ptr<Carrier> carrier_;
};

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/endpoint.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "host/base/env.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/rma_plugin/ring_link.hpp"

namespace gimlet::rma {

namespace {

constexpr std::uint64_t kNsPerMs = 1000000;
constexpr std::uint64_t kSequenceMask = 0xffffffff;
constexpr std::uint64_t kTagMask = 0x7fffffff;  // bit 63 of a handle stays clear
constexpr std::size_t kSpareRequests = 256;     // host RMA has queues of its own
constexpr std::uint64_t kMaxDrainNs = 5000 * kNsPerMs;

struct Hello {
    std::uint64_t group = 0;
    std::int32_t rank = 0;
    std::int32_t reserved = 0;
};

std::uint64_t next_tag() {
    static std::atomic<std::uint64_t> count{0};
    return (make_token() + count.fetch_add(1)) & kTagMask;
}

void check_range(const RegionRange& range, std::uint64_t bytes, std::uint64_t region_bytes,
                 const char* what, int rank) {
    if (bytes <= region_bytes && range.offset <= region_bytes - bytes) return;
    raise(ErrorCode::invalid_argument, rank,
          "{}: {} B at offset {} are outside the {} B registered", what, bytes, range.offset,
          region_bytes);
}

}  // namespace

Listener::Listener() : handle_(describe_process()) {
    handle_.listen_token = make_token();
    unix_socket_ = listen_unix(handle_.listen_token);
    handle_.tcp_address = interface_address(env_text(EnvVar::rma_interface));
    tcp_socket_ = listen_tcp(handle_.tcp_address, &handle_.tcp_port);
}

Endpoint::Endpoint(std::span<const WireHandle> handles, int rank, const Listener& listener)
    : rank_(rank),
      size_(static_cast<int>(handles.size())),
      timeout_ns_(static_cast<std::uint64_t>(env_int(EnvVar::rma_timeout_ms)) * kNsPerMs),
      tag_(next_tag()) {
    connect_links(handles, listener);
    log_engines();
    if (env_is_set(EnvVar::rma_fault)) {
        const FaultPlan plan = read_fault_plan(env_text(EnvVar::rma_fault));
        carrier_->inject_faults(plan, static_cast<std::uint64_t>(env_int(EnvVar::rma_fault_seed)));
    }
}

Endpoint::~Endpoint() {
    if (carrier_ == nullptr) return;
    for (int peer = 0; peer < size_; ++peer) carrier_->link(peer).say_goodbye();
    for (const auto& region : regions_) {
        if (region == nullptr || !region->is_open) continue;
        if (region->shared_is_open) region->shared_is_open->store(false);
        unmap_peers(*region);
    }
}

void Endpoint::connect_links(std::span<const WireHandle> handles, const Listener& listener) {
    std::vector<EngineKind> engines;
    for (int peer = 0; peer < size_; ++peer) {
        const WireHandle& handle = handles[static_cast<std::size_t>(peer)];
        if (handle.magic != kHandleMagic) {
            raise(ErrorCode::config_mismatch, rank_,
                  "rank {} uses another RMA plugin, or another version of this one", peer);
        }
        engines.push_back(
            choose_engine(handles[static_cast<std::size_t>(rank_)], handle, rank_, peer));
    }
    std::vector<std::unique_ptr<Link>> links(handles.size());
    const std::shared_ptr<LocalGroup> group = LocalGroup::join(group_id(handles));
    for (int peer = 0; peer < size_; ++peer) {
        const auto index = static_cast<std::size_t>(peer);
        if (engines[index] != EngineKind::loopback) continue;
        links[index] = std::make_unique<LoopbackLink>(group, rank_, peer);
    }
    connect_sockets(EngineKind::ipc, handles, listener, engines, &links);
    if (std::find(engines.begin(), engines.end(), EngineKind::ucx) != engines.end()) {
        ucx_ = make_ucx_engine(rank_);
        connect_sockets(EngineKind::ucx, handles, listener, engines, &links);
    }
    carrier_ = std::make_unique<Carrier>(rank_, std::move(links));
    carrier_->reserve(kSpareRequests);
}

std::unique_ptr<Link> Endpoint::make_socket_link(EngineKind kind, int peer,
                                                 const WireHandle& peer_handle,
                                                 FileDescriptor socket, FileDescriptor rings,
                                                 std::uint64_t deadline_ns) {
    Channel channel(std::move(socket), rank_, peer);
    if (kind == EngineKind::ucx) return ucx_->make_link(peer, std::move(channel), deadline_ns);
    return std::make_unique<IpcLink>(rank_, peer, std::move(channel),
                                     std::make_unique<SharedRings>(std::move(rings)), peer_handle);
}

void Endpoint::connect_sockets(EngineKind kind, std::span<const WireHandle> handles,
                               const Listener& listener, const std::vector<EngineKind>& engines,
                               std::vector<std::unique_ptr<Link>>* links) {
    const std::uint64_t deadline_ns = now_ns() + timeout_ns_;
    const std::uint64_t group = group_id(handles);
    const bool is_ipc = kind == EngineKind::ipc;
    std::vector<FileDescriptor> sockets(handles.size());
    std::vector<FileDescriptor> rings(handles.size());
    const auto missing_peer = [&](int peer) {
        const auto index = static_cast<std::size_t>(peer);
        return engines[index] == kind && !sockets[index].valid();
    };
    // Connecting needs nobody to accept, so all may connect to the lower ranks first.
    for (int peer = 0; peer < rank_; ++peer) {
        if (!missing_peer(peer)) continue;
        const auto index = static_cast<std::size_t>(peer);
        const WireHandle& handle = handles[index];
        sockets[index] = is_ipc ? connect_unix(handle.listen_token)
                                : connect_tcp(handle.tcp_address, handle.tcp_port, deadline_ns);
        if (is_ipc) rings[index] = create_ring_memory();
        const Hello hello{group, rank_, 0};
        Channel(sockets[index].duplicate(), rank_, peer)
            .send(&hello, sizeof(hello), rings[index].get());
    }
    for (;;) {
        std::string missing;
        for (int peer = rank_ + 1; peer < size_; ++peer) {
            if (missing_peer(peer)) missing += fmt::format(" {}", peer);
        }
        if (missing.empty()) break;
        auto socket =
            accept_until(is_ipc ? listener.unix_socket() : listener.tcp_socket(), deadline_ns);
        if (!socket) {
            raise(ErrorCode::timeout, rank_, "ranks that did not connect in {} ms:{}",
                  timeout_ns_ / kNsPerMs, missing);
        }
        Hello hello;
        FileDescriptor fd;
        Channel(socket->duplicate(), rank_, -1).receive(&hello, sizeof(hello), deadline_ns, &fd);
        const bool expected = hello.group == group && hello.rank > rank_ && hello.rank < size_ &&
                              missing_peer(hello.rank) && fd.valid() == is_ipc;
        if (!expected) continue;  // a stranger; its end will time out
        sockets[static_cast<std::size_t>(hello.rank)] = std::move(*socket);
        rings[static_cast<std::size_t>(hello.rank)] = std::move(fd);
    }
    // From here on both ends of each pair talk.
    for (std::size_t i = 0; i < handles.size(); ++i) {
        if (!sockets[i].valid()) continue;
        (*links)[i] = make_socket_link(kind, static_cast<int>(i), handles[i], std::move(sockets[i]),
                                       std::move(rings[i]), deadline_ns);
    }
}

void Endpoint::log_engines() const {
    int counts[4] = {};
    for (int peer = 0; peer < size_; ++peer) ++counts[static_cast<std::size_t>(engine(peer))];
    log(LogLevel::info, rank_, "rma: connected {} ranks: {} by loopback, {} by ipc, {} by ucx",
        size_, counts[1], counts[2], counts[3]);
}

// Registration.

void Endpoint::use_gpu_of(std::uint64_t address) {
    const int device = device_of(address);
    if (gpu_ == nullptr) {
        const std::lock_guard lock(mutex_);
        GpuOptions options;
        options.own_context = env_choice(EnvVar::rma_context) == "own";
        const std::string copier = env_choice(EnvVar::rma_copier);
        using Use = GpuOptions::UseCopier;
        options.copier = copier == "on" ? Use::yes : copier == "off" ? Use::no : Use::automatic;
        options.copier_options.limit_bytes =
            static_cast<std::size_t>(env_int(EnvVar::rma_copier_limit));
        options.copier_options.blocks = static_cast<unsigned>(env_int(EnvVar::rma_copier_blocks));
        gpu_ = std::make_unique<Gpu>(device, size_, options, address);
        carrier_->attach_gpu(gpu_.get());
        log(LogLevel::info, rank_, "rma: GPU {}, {} context; small copies by {}", device,
            gpu_->has_own_context() ? "own" : "the application's",
            gpu_->has_copier() ? "the copier" : "the driver");
    }
    if (gpu_->device() != device) {
        raise(ErrorCode::invalid_argument, rank_,
              "memory of GPU {} is registered, but this rank registered memory of GPU {} before",
              device, gpu_->device());
    }
}

std::unique_ptr<LocalRegion> Endpoint::describe(void* data, std::size_t bytes, MemoryKind kind,
                                                std::uint64_t flags, MemoryExport* exported) {
    auto region = std::make_unique<LocalRegion>();
    RegionRecord& record = region->record;
    record.sequence = regions_.size();
    record.address = reinterpret_cast<std::uint64_t>(data);
    record.bytes = bytes;
    record.kind = kind;
    region->flags = flags;
    region->shared_is_open = std::make_shared<std::atomic<bool>>(true);
    if (kind == MemoryKind::host) return region;
    try {
        use_gpu_of(record.address);
        record.device = gpu_->device();
        *exported = gpu_->export_memory(record.address);
        record.export_kind = exported->kind;
        record.allocation_bytes = exported->allocation_bytes;
        record.offset = exported->offset;
        record.ipc = exported->ipc;
        if ((flags & abi::kRegionSignalNeverReset) != 0) {
            region->totals = std::make_unique<std::uint64_t[]>(bytes / sizeof(std::uint64_t));
        }
    } catch (const Error&) {
        // The others wait for our word.
        record.failed = 1;
        exchange(*region, {});
        throw;
    }
    return region;
}

void Endpoint::exchange(LocalRegion& region, const MemoryExport& exported) {
    const std::uint64_t deadline_ns = now_ns() + timeout_ns_;
    for (int peer = 0; peer < size_; ++peer) carrier_->link(peer).offer_region(region, exported);
    if (region.record.failed != 0) return;
    for (int peer = 0; peer < size_; ++peer) {
        region.peers.push_back(
            carrier_->link(peer).await_region(region.record.sequence, gpu_.get(), deadline_ns));
    }
}

std::uint64_t Endpoint::register_region(void* data, std::size_t bytes, MemoryKind kind,
                                        std::uint64_t flags) {
    const std::lock_guard round(registration_mutex_);
    MemoryExport exported;
    std::unique_ptr<LocalRegion> region = describe(data, bytes, kind, flags, &exported);
    const FileDescriptor fd(exported.fd);
    try {
        exchange(*region, exported);
    } catch (const Error&) {
        unmap_peers(*region);
        throw;
    }
    const std::lock_guard lock(mutex_);
    carrier_->add_region(region.get());
    regions_.push_back(std::move(region));
    log(LogLevel::debug, rank_, "rma: region {}: {} B of {} memory", regions_.size() - 1, bytes,
        kind == MemoryKind::host ? "host" : "GPU");
    return tag_ << 32 | regions_.size();
}

void Endpoint::unmap_peers(LocalRegion& region) noexcept {
    for (RemoteRegion& peer : region.peers) {
        if (peer.mapping.base == 0) continue;
        try {
            gpu_->unmap(peer.mapping);
        } catch (const Error&) {
            // Logged; the mapping goes with the process.
        }
        peer.mapping = {};
    }
    region.peers.clear();
}

void Endpoint::deregister_region(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    LocalRegion& region = find_region(handle, "deregistration");
    if (!carrier_->drain(now_ns() + kMaxDrainNs)) {
        log(LogLevel::warn, rank_, "rma: region {} is deregistered with operations under way",
            region.record.sequence);
    }
    // The memory itself may be gone already: it is not touched.
    carrier_->forget_region(&region);
    region.shared_is_open->store(false);
    unmap_peers(region);
}

void Endpoint::add_contexts(int context_count) {
    const std::lock_guard lock(mutex_);
    carrier_->reserve(static_cast<std::size_t>(context_count) * static_cast<std::size_t>(size_) *
                          kQueueLength +
                      kSpareRequests);
}

// Operations.

LocalRegion& Endpoint::find_region(std::uint64_t handle, const char* what) {
    const std::uint64_t number = (handle & kSequenceMask) - 1;
    if (handle >> 32 != tag_ || number >= regions_.size() || !regions_[number]->is_open) {
        raise(ErrorCode::invalid_argument, rank_, "{}: {:#x} is no region that is registered here",
              what, handle);
    }
    return *regions_[number];
}

void Endpoint::check_peer(std::uint32_t peer) const {
    if (peer < static_cast<std::uint32_t>(size_)) return;
    raise(ErrorCode::invalid_argument, rank_, "rank {} is not below the number of ranks {}", peer,
          size_);
}

Place Endpoint::local_place(const RegionRange& range, std::uint64_t bytes, const char* what) {
    const LocalRegion& region = find_region(range.handle, what);
    check_range(range, bytes, region.record.bytes, what, rank_);
    Place place = region.place();
    place.address += range.offset;
    return place;
}

const RemoteRegion& Endpoint::remote_region(const RegionRange& range, std::uint64_t bytes,
                                            std::uint32_t peer, const char* what) {
    const LocalRegion& region = find_region(range.handle, what);
    const RemoteRegion& remote = region.peers[peer];
    check_range(range, bytes, remote.record.bytes, what, rank_);
    if (remote.is_open != nullptr && !remote.is_open->load()) {
        raise(ErrorCode::invalid_argument, rank_, "{}: rank {} has deregistered region {}", what,
              peer, remote.record.sequence);
    }
    return remote;
}

RequestId Endpoint::put(int context, const RegionRange& source, std::size_t bytes,
                        const RegionRange& target, std::uint32_t peer, const SignalUpdate* signal) {
    const std::lock_guard lock(mutex_);
    check_peer(peer);
    Operation operation;
    operation.context = context;
    operation.bytes = bytes;
    if (bytes > 0) {
        operation.source = local_place(source, bytes, "put source");
        const RemoteRegion& remote = remote_region(target, bytes, peer, "put target");
        operation.target = remote.place;
        operation.target.address += target.offset;
        operation.target_region = static_cast<std::uint32_t>(remote.record.sequence);
        operation.target_offset = target.offset;
    }
    if (signal != nullptr) {
        const RemoteRegion& remote =
            remote_region(signal->word, sizeof(std::uint64_t), peer, "signal");
        if ((remote.record.address + signal->word.offset) % sizeof(std::uint64_t) != 0) {
            raise(ErrorCode::invalid_argument, rank_, "signal: offset {} is not aligned to 8 B",
                  signal->word.offset);
        }
        operation.has_signal = true;
        operation.signal_region = static_cast<std::uint32_t>(remote.record.sequence);
        operation.signal_offset = signal->word.offset;
        operation.signal_value = signal->value;
    }
    return carrier_->submit(static_cast<int>(peer), operation);
}

RequestId Endpoint::get(int context, const RegionRange& remote_range, std::size_t bytes,
                        const RegionRange& local, std::uint32_t peer) {
    const std::lock_guard lock(mutex_);
    check_peer(peer);
    Operation operation;
    operation.context = context;
    operation.bytes = bytes;
    if (bytes == 0) return carrier_->submit(static_cast<int>(peer), operation);
    operation.target = local_place(local, bytes, "get target");
    const RemoteRegion& remote = remote_region(remote_range, bytes, peer, "get source");
    if (remote.place.access == Place::Access::none) {
        Message message;
        message.region = static_cast<std::uint32_t>(remote.record.sequence);
        message.offset = remote_range.offset;
        message.bytes = bytes;
        return carrier_->submit_remote_get(static_cast<int>(peer), operation.target, message);
    }
    operation.source = remote.place;
    operation.source.address += remote_range.offset;
    return carrier_->submit(static_cast<int>(peer), operation);
}

bool Endpoint::test(RequestId request) {
    const std::lock_guard lock(mutex_);
    return carrier_->test(request);
}

void Endpoint::progress() {
    const std::lock_guard lock(mutex_);
    carrier_->progress();
}

void Endpoint::drain() {
    const std::uint64_t deadline_ns = now_ns() + kMaxDrainNs;
    for (;;) {
        const std::lock_guard lock(mutex_);
        if (carrier_->drain(now_ns() + kNsPerMs) || now_ns() >= deadline_ns) return;
    }
}

}  // namespace gimlet::rma

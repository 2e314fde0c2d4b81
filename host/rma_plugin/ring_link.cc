// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/ring_link.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace gimlet::rma {

namespace {

constexpr std::size_t kMaxProcessCopyBytes = 1u << 30;  // below the limit of one system call

RingMemory* map_rings(int fd, int count) {
    const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void* memory = mmap(nullptr, sizeof(RingMemory) * static_cast<std::size_t>(count),
                        PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) {
        raise(ErrorCode::out_of_memory, kNoRank, "mapping {} B of message queues failed: {}",
              sizeof(RingMemory) * static_cast<std::size_t>(count), std::strerror(errno));
    }
    return static_cast<RingMemory*>(memory);
}

struct GroupRegistry {
    std::mutex mutex;
    std::map<std::uint64_t, std::weak_ptr<LocalGroup>> groups;
};

GroupRegistry& group_registry() {
    static auto* registry = new GroupRegistry;  // no destructor at dlclose
    return *registry;
}

}  // namespace

void check_record(const RegionRecord& record, std::uint64_t sequence, int rank, int peer) {
    if (record.failed != 0) {
        raise(ErrorCode::peer_failed, rank, "rank {} could not register its memory (region {})",
              peer, sequence);
    }
    if (record.sequence != sequence) {
        raise(ErrorCode::config_mismatch, rank,
              "rank {} registers region {} while this rank registers region {}; registrations must "
              "come in the same order everywhere",
              peer, record.sequence, sequence);
    }
}

void RingLink::poll(MessageSink& sink, int limit) {
    for (int i = 0; i < limit; ++i) {
        const Message* message = consumer_.front();
        if (message == nullptr) return;
        if (!sink.on_message(peer_, *message, consumer_.payload(*message))) return;
        consumer_.pop();
    }
}

std::shared_ptr<LocalGroup> LocalGroup::join(std::uint64_t id) {
    GroupRegistry& registry = group_registry();
    const std::lock_guard lock(registry.mutex);
    std::weak_ptr<LocalGroup>& entry = registry.groups[id];
    std::shared_ptr<LocalGroup> group = entry.lock();
    if (group == nullptr) {
        std::erase_if(registry.groups,
                      [id](const auto& item) { return item.first != id && item.second.expired(); });
        group = std::make_shared<LocalGroup>();
        registry.groups[id] = group;
    }
    return group;
}

LocalGroup::~LocalGroup() {
    for (const auto& [pair, memory] : rings_) (void)munmap(memory, sizeof(RingMemory));
}

RingMemory* LocalGroup::ring(int from, int to) {
    const std::lock_guard lock(mutex_);
    RingMemory*& memory = rings_[{from, to}];
    if (memory == nullptr) memory = map_rings(-1, 1);
    return memory;
}

void LocalGroup::announce(int rank, const Announcement& announcement) {
    const std::lock_guard lock(mutex_);
    announcements_[{rank, announcement.record.sequence}] = announcement;
    changed_.notify_all();
}

std::optional<LocalGroup::Announcement> LocalGroup::await(int rank, std::uint64_t sequence,
                                                          std::uint64_t deadline_ns) {
    const std::pair key(rank, sequence);
    std::unique_lock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::time_point(
        std::chrono::nanoseconds(static_cast<std::int64_t>(deadline_ns)));
    const bool here =
        changed_.wait_until(lock, deadline, [&] { return announcements_.contains(key); });
    if (!here) return std::nullopt;
    return announcements_[key];
}

void LoopbackLink::offer_region(const LocalRegion& region, const MemoryExport&) {
    group_->announce(rank_, {region.record, region.shared_is_open});
}

RemoteRegion LoopbackLink::await_region(std::uint64_t sequence, Gpu* gpu,
                                        std::uint64_t deadline_ns) {
    const auto announcement = group_->await(peer_, sequence, deadline_ns);
    if (!announcement) {
        raise(ErrorCode::timeout, rank_,
              "rank {} did not register its region {} before the deadline; all ranks must register "
              "in "
              "the same order",
              peer_, sequence);
    }
    RemoteRegion region;
    region.record = announcement->record;
    check_record(region.record, sequence, rank_, peer_);
    region.is_open = announcement->is_open;
    region.place = {Place::Access::host, region.record.address};
    if (region.record.kind == MemoryKind::host) return region;
    region.place.access = Place::Access::device;
    if (gpu == nullptr) {
        region.place.access = Place::Access::none;
    } else if (gpu->device() != region.record.device) {
        MemoryExport exported;
        exported.allocation_bytes = region.record.allocation_bytes;
        exported.offset = region.record.offset;
        region.mapping = gpu->map_local(region.record.address, exported);
        region.place.address = region.mapping.address;
        region.place.is_on_peer_gpu = true;
    }
    return region;
}

FileDescriptor create_ring_memory() {
    FileDescriptor fd(memfd_create("gimlet-rma", MFD_CLOEXEC));
    if (!fd.valid() || ftruncate(fd.get(), 2 * sizeof(RingMemory)) != 0) {
        raise(ErrorCode::system, kNoRank, "creating shared memory of {} B failed: {}",
              2 * sizeof(RingMemory), std::strerror(errno));
    }
    return fd;
}

SharedRings::SharedRings(FileDescriptor fd)
    : fd_(std::move(fd)), memory_(map_rings(fd_.get(), 2)) {}

SharedRings::~SharedRings() {
    (void)munmap(memory_, 2 * sizeof(RingMemory));
}

IpcLink::IpcLink(int rank, int peer, Channel channel, std::unique_ptr<SharedRings> rings,
                 const WireHandle& peer_handle)
    : RingLink(rank, peer, rings->ring(rank < peer ? 0 : 1), rings->ring(rank < peer ? 1 : 0)),
      channel_(std::move(channel)),
      rings_(std::move(rings)),
      peer_pid_(peer_handle.pid) {
    // The process number means nothing in another process namespace, and access may be forbidden.
    std::uint64_t word = 0;
    iovec mine{&word, sizeof(word)};
    iovec theirs{reinterpret_cast<void*>(peer_handle.probe_address), sizeof(word)};
    may_access_peer_ = process_vm_readv(peer_pid_, &mine, 1, &theirs, 1, 0) == sizeof(word) &&
                       word == peer_handle.process_token;
}

void IpcLink::offer_region(const LocalRegion& region, const MemoryExport& exported) {
    channel_.send(&region.record, sizeof(region.record), exported.fd);
}

RemoteRegion IpcLink::await_region(std::uint64_t sequence, Gpu* gpu, std::uint64_t deadline_ns) {
    RemoteRegion region;
    FileDescriptor fd;
    channel_.receive(&region.record, sizeof(region.record), deadline_ns, &fd);
    check_record(region.record, sequence, rank_, peer_);
    if (region.record.kind == MemoryKind::host) {
        if (may_access_peer_) {
            region.place = {Place::Access::process_vm, region.record.address, peer_pid_, false};
        }
        return region;
    }
    if (gpu == nullptr || region.record.export_kind == MemoryExport::Kind::none) return region;
    MemoryExport exported;
    exported.kind = region.record.export_kind;
    exported.fd = fd.release();
    exported.allocation_bytes = region.record.allocation_bytes;
    exported.offset = region.record.offset;
    exported.ipc = region.record.ipc;
    region.mapping = gpu->import_memory(exported);
    region.place = {Place::Access::device, region.mapping.address, 0,
                    !gpu->owns(region.mapping.address)};
    return region;
}

PeerState IpcLink::peer_state() {
    if (consumer_.producer_closed()) return PeerState::left;
    if (!channel_.at_end()) return PeerState::alive;
    // It may have closed both between the two looks.
    return consumer_.producer_closed() ? PeerState::left : PeerState::dead;
}

void copy_process_memory(int pid, std::uint64_t remote, void* local, std::size_t bytes,
                         bool is_write, int rank, int peer) {
    auto* position = static_cast<char*>(local);
    while (bytes > 0) {
        const std::size_t part = std::min(bytes, kMaxProcessCopyBytes);
        iovec mine{position, part};
        iovec theirs{reinterpret_cast<void*>(remote), part};
        const ssize_t copied = is_write ? process_vm_writev(pid, &mine, 1, &theirs, 1, 0)
                                        : process_vm_readv(pid, &mine, 1, &theirs, 1, 0);
        if (copied <= 0) {
            // Logged by whoever decides that the peer has failed.
            throw Error(ErrorCode::peer_failed, rank,
                        fmt::format("memory of rank {} is gone: {} B at {:#x}: {}", peer, part,
                                    remote, std::strerror(errno)));
        }
        position += copied;
        remote += static_cast<std::uint64_t>(copied);
        bytes -= static_cast<std::size_t>(copied);
    }
}

}  // namespace gimlet::rma

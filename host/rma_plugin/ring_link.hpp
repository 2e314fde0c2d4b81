// SPDX-License-Identifier: Apache-2.0
// Engines whose messages go through rings in shared memory: loopback (same process) and ipc (same
// host).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "host/rma_plugin/channel.hpp"
#include "host/rma_plugin/handle.hpp"
#include "host/rma_plugin/link.hpp"
#include "host/rma_plugin/ring.hpp"

namespace gimlet::rma {

class RingLink : public Link {
  public:
    RingLink(int rank, int peer, RingMemory* out, RingMemory* in)
        : rank_(rank), peer_(peer), producer_(out), consumer_(in) {}

    std::size_t max_payload_bytes() const noexcept override { return kPayloadCellBytes; }
    bool try_send(const Message& message, const void* payload) override {
        return producer_.try_send(message, payload);
    }
    void poll(MessageSink& sink, int limit) override;

  protected:
    int rank_;
    int peer_;
    RingProducer producer_;
    RingConsumer consumer_;
};

/// What the ranks of one group that live in one process share. Goes when the last of them does.
class LocalGroup {
  public:
    /// The group of this number; created by whoever comes first.
    static std::shared_ptr<LocalGroup> join(std::uint64_t id);
    ~LocalGroup();

    RingMemory* ring(int from, int to);

    struct Announcement {
        RegionRecord record;
        std::shared_ptr<std::atomic<bool>> is_open;
    };
    void announce(int rank, const Announcement& announcement);
    std::optional<Announcement> await(int rank, std::uint64_t sequence, std::uint64_t deadline_ns);

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::pair<int, int>, RingMemory*> rings_;
    std::map<std::pair<int, std::uint64_t>, Announcement> announcements_;
};

class LoopbackLink final : public RingLink {
  public:
    LoopbackLink(std::shared_ptr<LocalGroup> group, int rank, int peer)
        : RingLink(rank, peer, group->ring(rank, peer), group->ring(peer, rank)),
          group_(std::move(group)) {}

    EngineKind kind() const noexcept override { return EngineKind::loopback; }
    void offer_region(const LocalRegion& region, const MemoryExport& exported) override;
    RemoteRegion await_region(std::uint64_t sequence, Gpu* gpu, std::uint64_t deadline_ns) override;
    PeerState peer_state() override {
        return consumer_.producer_closed() ? PeerState::left : PeerState::alive;
    }
    void say_goodbye() override { producer_.close(); }

  private:
    std::shared_ptr<LocalGroup> group_;
};

/// Memory for the two rings of a pair, to be given to the peer.
FileDescriptor create_ring_memory();

/// Two rings in memory that both processes have mapped.
class SharedRings {
  public:
    /// Takes the descriptor.
    explicit SharedRings(FileDescriptor fd);
    ~SharedRings();
    SharedRings(const SharedRings&) = delete;
    SharedRings& operator=(const SharedRings&) = delete;

    RingMemory* ring(int index) const noexcept { return memory_ + index; }

  private:
    FileDescriptor fd_;
    RingMemory* memory_;
};

class IpcLink final : public RingLink {
  public:
    /// The lower rank of a pair writes into ring 0.
    IpcLink(int rank, int peer, Channel channel, std::unique_ptr<SharedRings> rings,
            const WireHandle& peer_handle);

    EngineKind kind() const noexcept override { return EngineKind::ipc; }
    void offer_region(const LocalRegion& region, const MemoryExport& exported) override;
    RemoteRegion await_region(std::uint64_t sequence, Gpu* gpu, std::uint64_t deadline_ns) override;
    PeerState peer_state() override;
    void say_goodbye() override { producer_.close(); }
    bool may_access_peer() const noexcept { return may_access_peer_; }

  private:
    Channel channel_;
    std::unique_ptr<SharedRings> rings_;
    int peer_pid_;
    bool may_access_peer_;  ///< process_vm_writev works
};

/// Reads or writes the memory of another process; raises Error(peer_failed) if it is refused.
void copy_process_memory(int pid, std::uint64_t remote, void* local, std::size_t bytes,
                         bool is_write, int rank, int peer);

}  // namespace gimlet::rma

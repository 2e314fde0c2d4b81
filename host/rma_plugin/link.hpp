// SPDX-License-Identifier: Apache-2.0
// The engine interface: how one rank reaches one other. Chosen per pair, the same at both ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host/rma_plugin/message.hpp"
#include "host/rma_plugin/region.hpp"

namespace gimlet::rma {

enum class EngineKind : std::uint32_t { loopback = 1, ipc = 2, ucx = 3 };
const char* engine_name(EngineKind kind) noexcept;

enum class PeerState { alive, left, dead };

/// Takes messages from a link.
class MessageSink {
  public:
    /// False: not now; the same message comes again, and those behind it wait.
    virtual bool on_message(int peer, const Message& message, const unsigned char* payload) = 0;

  protected:
    ~MessageSink() = default;
};

/// One direction out, one in. Calls come from one thread at a time, except await_region, which may
/// run beside all others.
class Link {
  public:
    virtual ~Link() = default;

    virtual EngineKind kind() const noexcept = 0;

    /// Registration, a round of all ranks: tell the peer about our memory, then learn about theirs.
    /// `exported.fd` stays the caller's.
    virtual void offer_region(const LocalRegion& region, const MemoryExport& exported) = 0;
    /// Waits until `deadline_ns`. `gpu` is null while this rank has no GPU memory.
    virtual RemoteRegion await_region(std::uint64_t sequence, Gpu* gpu,
                                      std::uint64_t deadline_ns) = 0;

    /// Most payload of one message.
    virtual std::size_t max_payload_bytes() const noexcept = 0;
    /// False: no room, try again. The payload is taken before the call returns.
    virtual bool try_send(const Message& message, const void* payload) = 0;

    /// Hands at most `limit` messages to the sink.
    virtual void poll(MessageSink& sink, int limit) = 0;

    /// May ask the operating system; call it now and then.
    virtual PeerState peer_state() = 0;

    /// Tells the peer that we leave in good order.
    virtual void say_goodbye() = 0;
};

/// Raises Error if a peer's announcement is not that of this registration.
void check_record(const RegionRecord& record, std::uint64_t sequence, int rank, int peer);

/// Nanoseconds of the monotonic clock.
std::uint64_t now_ns() noexcept;

}  // namespace gimlet::rma

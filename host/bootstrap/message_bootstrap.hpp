// SPDX-License-Identifier: Apache-2.0
// Ranks that can send each other messages: deadlines, and groups without the dead, come with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

/// Messages between pairs of ranks. Nothing here waits, whatever has become of the other rank.
/// Failures raise.
class MessageTransport {
  public:
    virtual ~MessageTransport() = default;
    MessageTransport(const MessageTransport&) = delete;
    MessageTransport& operator=(const MessageTransport&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }

    /// Takes a copy of `data`. Messages to one peer with one `tag` (0..32767) keep their order.
    virtual void send(int peer, int tag, std::span<const std::byte> data) = 0;
    /// Whether every message to `peer` gets there without another call of this rank.
    virtual bool sent(int peer) = 0;
    /// The oldest message of `peer` with `tag`, or none if there is none yet.
    virtual std::optional<std::vector<std::byte>> receive(int peer, int tag) = 0;

  protected:
    MessageTransport(int rank, int size) : rank_(rank), size_(size) {}

  private:
    int rank_;
    int size_;
};

struct MessageBootstrapOptions {
    /// Longest wait of one collective call; 0 = GIMLET_BOOTSTRAP_TIMEOUT_MS.
    std::uint64_t timeout_ns = 0;
    std::string members = "ranks";  ///< what they are, for texts
};

/// Local. Of all ranks of `transport`, which carries no other messages.
std::unique_ptr<Bootstrap> make_message_bootstrap(std::shared_ptr<MessageTransport> transport,
                                                  const MessageBootstrapOptions& options = {});

}  // namespace gimlet

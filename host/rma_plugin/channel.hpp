// SPDX-License-Identifier: Apache-2.0
// Stream sockets between two ranks: set-up, announcements of memory, and the news that a peer died.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace gimlet::rma {

/// Owns a file descriptor.
class FileDescriptor {
  public:
    FileDescriptor() = default;
    explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
    ~FileDescriptor() { reset(); }
    FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    /// Another descriptor of the same object; raises Error(system).
    FileDescriptor duplicate() const;
    int get() const noexcept { return fd_; }
    bool valid() const noexcept { return fd_ >= 0; }
    int release() noexcept {
        const int fd = fd_;
        fd_ = -1;
        return fd;
    }
    void reset(int fd = -1) noexcept;

  private:
    int fd_ = -1;
};

/// Listens under an abstract name made of `token`: no file is left behind.
FileDescriptor listen_unix(std::uint64_t token);
FileDescriptor connect_unix(std::uint64_t token);

/// Listens on a free port of `address` (network byte order), which is returned in host byte order.
FileDescriptor listen_tcp(std::uint32_t address, std::uint16_t* port);
FileDescriptor connect_tcp(std::uint32_t address, std::uint16_t port, std::uint64_t deadline_ns);

/// IPv4 address, network byte order, of the interface called `name`; with an empty name that of the
/// first one that is up and no loopback, or 127.0.0.1.
std::uint32_t interface_address(const std::string& name);

/// Nothing at the deadline.
std::optional<FileDescriptor> accept_until(const FileDescriptor& listener,
                                           std::uint64_t deadline_ns);

/// A connected socket. Every failure is Error(peer_failed, timeout or system) that names `peer`.
class Channel {
  public:
    Channel() = default;
    Channel(FileDescriptor socket, int rank, int peer)
        : socket_(std::move(socket)), rank_(rank), peer_(peer) {}

    void set_peer(int peer) noexcept { peer_ = peer; }
    /// `fd` >= 0 travels with the first byte (Unix sockets only) and stays ours as well.
    void send(const void* data, std::size_t bytes, int fd = -1);
    /// `fd`, if not null, gets the descriptor that came along, or an empty one.
    void receive(void* data, std::size_t bytes, std::uint64_t deadline_ns,
                 FileDescriptor* fd = nullptr);
    /// Copies the next bytes without taking them; false if not so many are here yet.
    bool peek(void* data, std::size_t bytes) const noexcept;
    /// True once the other end is closed and everything it sent has been received.
    bool at_end() const noexcept;

  private:
    FileDescriptor socket_;
    int rank_ = -1;
    int peer_ = -1;
};

}  // namespace gimlet::rma

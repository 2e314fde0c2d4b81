// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/channel.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "host/base/error.hpp"
#include "host/rma_plugin/link.hpp"

namespace gimlet::rma {

namespace {

constexpr int kBacklog = 1024;

[[noreturn]] void raise_system(int rank, const char* what) {
    const int number = errno;
    raise(ErrorCode::system, rank, "{} failed: {} (errno {})", what, std::strerror(number), number);
}

FileDescriptor open_socket(int family) {
    FileDescriptor result(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!result.valid()) raise_system(kNoRank, "socket");
    return result;
}

socklen_t unix_address(std::uint64_t token, sockaddr_un* address) {
    *address = {};
    address->sun_family = AF_UNIX;
    // A leading zero byte makes the name abstract.
    const std::string name = fmt::format("gimlet-rma-{:016x}", token);
    std::memcpy(address->sun_path + 1, name.data(), name.size());
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// True if the descriptor is ready for `events` before the deadline.
bool wait_for(int fd, short events, std::uint64_t deadline_ns) {
    for (;;) {
        const std::uint64_t now = now_ns();
        if (now >= deadline_ns) return false;
        const std::uint64_t left_ms = (deadline_ns - now) / 1000000 + 1;
        pollfd entry{fd, events, 0};
        const int count = poll(&entry, 1, static_cast<int>(std::min<std::uint64_t>(left_ms, 1000)));
        if (count > 0) return true;
        if (count < 0 && errno != EINTR) return true;  // the call that follows says what is wrong
    }
}

}  // namespace

void FileDescriptor::reset(int fd) noexcept {
    if (fd_ >= 0) (void)close(fd_);
    fd_ = fd;
}

FileDescriptor FileDescriptor::duplicate() const {
    FileDescriptor copy(fcntl(fd_, F_DUPFD_CLOEXEC, 0));
    if (!copy.valid()) raise_system(kNoRank, "duplicating a file descriptor");
    return copy;
}

FileDescriptor listen_unix(std::uint64_t token) {
    FileDescriptor result = open_socket(AF_UNIX);
    sockaddr_un address;
    const socklen_t bytes = unix_address(token, &address);
    if (bind(result.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
        listen(result.get(), kBacklog) != 0) {
        raise_system(kNoRank, "listening on a Unix socket");
    }
    return result;
}

FileDescriptor connect_unix(std::uint64_t token) {
    FileDescriptor result = open_socket(AF_UNIX);
    sockaddr_un address;
    const socklen_t bytes = unix_address(token, &address);
    if (connect(result.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) {
        raise_system(kNoRank, "connecting to a rank's Unix socket");
    }
    return result;
}

FileDescriptor listen_tcp(std::uint32_t address, std::uint16_t* port) {
    FileDescriptor result = open_socket(AF_INET);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = address;
    socklen_t bytes = sizeof(name);
    if (bind(result.get(), reinterpret_cast<sockaddr*>(&name), bytes) != 0 ||
        listen(result.get(), kBacklog) != 0 ||
        getsockname(result.get(), reinterpret_cast<sockaddr*>(&name), &bytes) != 0) {
        raise_system(kNoRank, "listening on a TCP socket");
    }
    *port = ntohs(name.sin_port);
    return result;
}

FileDescriptor connect_tcp(std::uint32_t address, std::uint16_t port, std::uint64_t deadline_ns) {
    FileDescriptor result = open_socket(AF_INET);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = address;
    name.sin_port = htons(port);
    const int flags = fcntl(result.get(), F_GETFL);
    (void)fcntl(result.get(), F_SETFL, flags | O_NONBLOCK);
    int status = connect(result.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name));
    if (status != 0 && errno == EINPROGRESS) {
        if (!wait_for(result.get(), POLLOUT, deadline_ns)) {
            raise(ErrorCode::timeout, kNoRank, "no TCP connection to port {} at the deadline",
                  port);
        }
        socklen_t bytes = sizeof(errno);
        (void)getsockopt(result.get(), SOL_SOCKET, SO_ERROR, &errno, &bytes);
        status = errno == 0 ? 0 : -1;
    }
    if (status != 0) raise_system(kNoRank, "connecting to a rank's TCP socket");
    (void)fcntl(result.get(), F_SETFL, flags);
    const int one = 1;
    (void)setsockopt(result.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return result;
}

std::uint32_t interface_address(const std::string& name) {
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0) raise_system(kNoRank, "getifaddrs");
    std::uint32_t result = htonl(INADDR_LOOPBACK);
    bool found = false;
    for (const ifaddrs* entry = list; entry != nullptr && !found; entry = entry->ifa_next) {
        if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
        const bool is_usable =
            (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0;
        found = name.empty() ? is_usable : name == entry->ifa_name;
        if (found) {
            sockaddr_in address;
            std::memcpy(&address, entry->ifa_addr, sizeof(address));
            result = address.sin_addr.s_addr;
        }
    }
    freeifaddrs(list);
    if (!found && !name.empty()) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "GIMLET_RMA_INTERFACE is '{}', which is no interface with an IPv4 address", name);
    }
    return result;
}

std::optional<FileDescriptor> accept_until(const FileDescriptor& listener,
                                           std::uint64_t deadline_ns) {
    for (;;) {
        if (!wait_for(listener.get(), POLLIN, deadline_ns)) return std::nullopt;
        FileDescriptor result(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (result.valid()) return result;
        if (errno != EINTR && errno != ECONNABORTED && errno != EAGAIN) {
            raise_system(kNoRank, "accept");
        }
    }
}

void Channel::send(const void* data, std::size_t bytes, int fd) {
    const auto* position = static_cast<const char*>(data);
    while (bytes > 0) {
        iovec part{const_cast<char*>(position), bytes};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
        if (fd >= 0) {
            header.msg_control = control;
            header.msg_controllen = sizeof(control);
            cmsghdr* entry = CMSG_FIRSTHDR(&header);
            entry->cmsg_level = SOL_SOCKET;
            entry->cmsg_type = SCM_RIGHTS;
            entry->cmsg_len = CMSG_LEN(sizeof(int));
            std::memcpy(CMSG_DATA(entry), &fd, sizeof(int));
        }
        const ssize_t sent = sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) {
            raise(ErrorCode::peer_failed, rank_, "rank {} is gone: sending to it failed ({})",
                  peer_, std::strerror(errno));
        }
        fd = -1;
        position += sent;
        bytes -= static_cast<std::size_t>(sent);
    }
}

void Channel::receive(void* data, std::size_t bytes, std::uint64_t deadline_ns,
                      FileDescriptor* fd) {
    auto* position = static_cast<char*>(data);
    const std::size_t wanted = bytes;
    while (bytes > 0) {
        if (!wait_for(socket_.get(), POLLIN, deadline_ns)) {
            raise(ErrorCode::timeout, rank_,
                  "rank {} sent {} of {} B before the deadline; it is late, hangs, or makes other "
                  "calls than this rank",
                  peer_, wanted - bytes, wanted);
        }
        iovec part{position, bytes};
        msghdr header{};
        header.msg_iov = &part;
        header.msg_iovlen = 1;
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
        header.msg_control = control;
        header.msg_controllen = sizeof(control);
        const ssize_t received = recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC);
        if (received < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (received <= 0) {
            raise(ErrorCode::peer_failed, rank_, "rank {} is gone: its connection is closed",
                  peer_);
        }
        const cmsghdr* entry = CMSG_FIRSTHDR(&header);
        if (entry != nullptr && entry->cmsg_type == SCM_RIGHTS) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(entry), sizeof(number));
            FileDescriptor owned(number);
            if (fd != nullptr) *fd = std::move(owned);
        }
        position += received;
        bytes -= static_cast<std::size_t>(received);
    }
}

bool Channel::peek(void* data, std::size_t bytes) const noexcept {
    return recv(socket_.get(), data, bytes, MSG_PEEK | MSG_DONTWAIT) == static_cast<ssize_t>(bytes);
}

bool Channel::at_end() const noexcept {
    char byte = 0;
    const ssize_t seen = recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (seen > 0) return false;
    return seen == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace gimlet::rma

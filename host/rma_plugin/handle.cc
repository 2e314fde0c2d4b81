// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/handle.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <string>

#include "host/base/env.hpp"
#include "host/base/error.hpp"
#include "host/base/hash.hpp"

namespace gimlet::rma {

namespace {

/// Read by peers to see whether they may access our memory.
std::atomic<std::uint64_t> probe_word{0};

std::uint64_t process_token() {
    static const std::uint64_t token = make_token();
    // A forked child has the token of its parent, and is another process.
    const pid_t pid = getpid();
    return hash_bytes(&pid, sizeof(pid), token);
}

std::uint64_t host_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::uint64_t id = hash_text(boot);
    // Abstract sockets end at the network namespace: another one is another host to us.
    struct stat facts {};
    if (stat("/proc/self/ns/net", &facts) == 0) {
        id = hash_bytes(&facts.st_ino, sizeof(facts.st_ino), id);
    }
    if (boot.empty()) {
        char name[256] = {};
        (void)gethostname(name, sizeof(name) - 1);
        id = hash_text(name, id);
    }
    return id;
}

EngineKind parse_engine(const std::string& name) {
    if (name == "loopback") return EngineKind::loopback;
    if (name == "ipc") return EngineKind::ipc;
    return EngineKind::ucx;
}

EngineKind best_engine(const WireHandle& a, const WireHandle& b) noexcept {
    if (a.process_token == b.process_token) return EngineKind::loopback;
    return a.host_id == b.host_id ? EngineKind::ipc : EngineKind::ucx;
}

}  // namespace

const char* engine_name(EngineKind kind) noexcept {
    switch (kind) {
        case EngineKind::loopback: return "loopback";
        case EngineKind::ipc: return "ipc";
        case EngineKind::ucx: return "ucx";
    }
    return "unknown";
}

std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

std::uint64_t make_token() {
    std::random_device device;
    const std::uint64_t high = device();
    return high << 32 ^ device() ^ now_ns() << 20;
}

WireHandle describe_process() {
    WireHandle handle;
    handle.magic = kHandleMagic;
    handle.process_token = process_token();
    handle.host_id = host_id();
    handle.pid = getpid();
    probe_word.store(handle.process_token, std::memory_order_relaxed);
    handle.probe_address = reinterpret_cast<std::uint64_t>(&probe_word);
    const std::string forced = env_choice(EnvVar::rma_engine);
    if (forced != "auto") handle.forced_engine = static_cast<std::uint32_t>(parse_engine(forced));
    return handle;
}

EngineKind choose_engine(const WireHandle& a, const WireHandle& b, int rank, int peer) {
    if (rank == peer) return EngineKind::loopback;
    const EngineKind best = best_engine(a, b);
    if (a.forced_engine == 0 && b.forced_engine == 0) return best;
    if (a.forced_engine != b.forced_engine) {
        raise(ErrorCode::config_mismatch, rank,
              "GIMLET_RMA_ENGINE differs between rank {} and rank {}; set it equally everywhere",
              rank, peer);
    }
    const auto forced = static_cast<EngineKind>(a.forced_engine);
    // A slower engine always works; a faster one needs what it stands for.
    const bool possible = forced == EngineKind::ucx || forced == best ||
                          (forced == EngineKind::ipc && best == EngineKind::loopback);
    if (!possible) {
        raise(ErrorCode::not_supported, rank,
              "GIMLET_RMA_ENGINE is {}, but rank {} and rank {} share only what {} needs",
              engine_name(forced), rank, peer, engine_name(best));
    }
    return forced;
}

std::uint64_t group_id(std::span<const WireHandle> handles) noexcept {
    std::uint64_t id = kHashStart;
    for (const WireHandle& handle : handles) {
        id = hash_bytes(&handle.listen_token, sizeof(handle.listen_token), id);
    }
    return id;
}

}  // namespace gimlet::rma

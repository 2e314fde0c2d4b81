// SPDX-License-Identifier: Apache-2.0
// Registered memory: as its owner knows it, as it is announced to peers, and as a peer can reach
// it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "host/rma_plugin/gpu.hpp"

namespace gimlet::rma {

enum class MemoryKind : std::uint32_t { host = 1, device = 2 };

/// What a rank tells its peers about one registration.
struct RegionRecord {
    std::uint64_t sequence = 0;  ///< registrations of one endpoint are numbered; never reused
    std::uint64_t address = 0;   ///< in the owner's process
    std::uint64_t bytes = 0;
    MemoryKind kind = MemoryKind::host;
    std::int32_t device = -1;
    std::uint32_t failed = 0;  ///< the owner could not register
    MemoryExport::Kind export_kind = MemoryExport::Kind::none;
    std::uint64_t allocation_bytes = 0;
    std::uint64_t offset = 0;
    cu::IpcHandle ipc{};
};
static_assert(std::is_trivially_copyable_v<RegionRecord>);

/// Where bytes are, seen from this rank.
struct Place {
    enum class Access : std::uint32_t {
        none,        ///< only its owner reaches it: send a message
        host,        ///< address in this process
        process_vm,  ///< address in process `pid` of this host
        device,      ///< address that our GPU reaches
    };
    Access access = Access::none;
    std::uint64_t address = 0;
    int pid = 0;
    bool is_on_peer_gpu = false;  ///< Access::device
};

/// A peer's registration.
struct RemoteRegion {
    RegionRecord record;
    Place place;
    MappedMemory mapping;  ///< base 0: nothing to unmap
    /// In the same process the owner can tell that it has taken the memory back; else null.
    std::shared_ptr<std::atomic<bool>> is_open;
};

/// A registration of this rank.
struct LocalRegion {
    RegionRecord record;
    std::uint64_t flags = 0;
    bool is_open = true;
    std::vector<RemoteRegion> peers;  ///< by rank
    /// Values of signal words that nobody else changes (abi::kRegionSignalNeverReset), else empty.
    std::unique_ptr<std::uint64_t[]> totals;
    std::shared_ptr<std::atomic<bool>> shared_is_open;

    Place place() const noexcept {
        return {record.kind == MemoryKind::host ? Place::Access::host : Place::Access::device,
                record.address};
    }
};

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
// What a rank says about itself before anybody is connected: 128 bytes that NCCL carries to all.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "host/rma_plugin/abi.hpp"
#include "host/rma_plugin/link.hpp"

namespace gimlet::rma {

struct WireHandle {
    std::uint64_t magic = 0;
    std::uint64_t listen_token = 0;   ///< one per listen()
    std::uint64_t process_token = 0;  ///< same: same process
    std::uint64_t host_id = 0;  ///< same: same boot of the same machine, same network namespace
    std::uint32_t forced_engine = 0;  ///< EngineKind from GIMLET_RMA_ENGINE, 0 = automatic
    std::uint32_t tcp_address = 0;    ///< network byte order; 0: no ucx here
    std::uint16_t tcp_port = 0;
    std::uint16_t has_fault_plan = 0;
    std::int32_t pid = 0;
    std::uint64_t probe_address = 0;  ///< of a word in that process that holds process_token
};
static_assert(sizeof(WireHandle) <= abi::kHandleBytes && std::is_trivially_copyable_v<WireHandle>);

inline constexpr std::uint64_t kHandleMagic = 0x31616d7267746d67ull;

/// Everything but the fields that belong to a listener.
WireHandle describe_process();

/// A new number that no other process or call gets.
std::uint64_t make_token();

/// Engine between these two, the same at both ends; a rank reaches itself by loopback. Raises
/// Error(config_mismatch) if the two were forced to different engines, Error(not_supported) if the
/// forced one cannot connect them.
EngineKind choose_engine(const WireHandle& a, const WireHandle& b, int rank, int peer);

/// The same number at all ranks of one group, and nowhere else.
std::uint64_t group_id(std::span<const WireHandle> handles) noexcept;

}  // namespace gimlet::rma

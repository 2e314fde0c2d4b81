// SPDX-License-Identifier: Apache-2.0
// What one rank tells another while kernels run. Messages from one rank to another stay in order.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gimlet::rma {

enum class MessageType : std::uint32_t {
    none = 0,
    signal = 1,       ///< add `value` to the 8-byte word at `offset` of `region`
    put_data = 2,     ///< write the payload at `offset` of `region`
    get_request = 3,  ///< send `bytes` from `offset` of `region` back, under `id`
    get_data = 4,     ///< the payload belongs at `offset` of the get with this `id`
    get_refused = 5,  ///< the get with this `id` was out of range at its target
};

struct Message {
    MessageType type = MessageType::none;
    std::uint32_t region = 0;  ///< sequence number of the target rank's registration
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t value = 0;
    std::uint64_t id = 0;
    std::uint32_t payload_bytes = 0;
    std::uint32_t payload_index = 0;  ///< of the ring's payload cells
    std::uint64_t reserved = 0;
};
static_assert(sizeof(Message) == 56 && std::is_trivially_copyable_v<Message>);

}  // namespace gimlet::rma

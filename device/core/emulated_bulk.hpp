// SPDX-License-Identifier: Apache-2.0
//
// Bulk copies, mbarriers and named barriers of the emulator. Used through bulk.hpp and group.hpp
// only.
#pragma once

#include <cstdint>

#include "host/emulator/include/gimlet_emu_device.hpp"

namespace gimlet::device::machine {

using emu::dev::bulk_commit;
using emu::dev::bulk_load;
using emu::dev::bulk_store;
using emu::dev::mbarrier_arrive;
using emu::dev::mbarrier_arrive_expect_tx;
using emu::dev::mbarrier_init;
using emu::dev::mbarrier_try_wait;

// A block's threads see an initialised mbarrier after the block's next barrier; the bulk engine
// sees it at once.
inline void mbarrier_init_fence() {}

template <int pending>
inline void bulk_wait_read() {
    emu::dev::bulk_wait_read(pending);
}

template <int pending>
inline void bulk_wait() {
    emu::dev::bulk_wait(pending);
}

inline void named_sync(std::uint32_t id, std::uint32_t thread_count) {
    emu::dev::named_barrier_sync(static_cast<int>(id), static_cast<int>(thread_count));
}

}  // namespace gimlet::device::machine

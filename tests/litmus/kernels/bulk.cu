// SPDX-License-Identifier: Apache-2.0
//
// Bulk copies between ranks of one LSA team, and the proxy fence.
#include "device/core/bulk.hpp"
#include "tests/litmus/kernels/launch.hpp"
#include "tests/litmus/kernels/machine.hpp"

namespace gimlet::litmus {

namespace {

/// A row by a bulk store.
GIMLET_DEVICE void bulk_store_row(const Machine& m, const std::uint64_t* staged) {
    bulk_store(m.other(kX), staged, kRowBytes);
    bulk_commit();
}

/// A row in shared memory that bulk stores may read.
GIMLET_DEVICE std::uint64_t* staged_row(std::uint64_t value) {
    auto* const staged = reinterpret_cast<std::uint64_t*>(dynamic_shared_memory());
    for (std::uint32_t i = 0; i < kRowWords; ++i) staged[i] = value;
    fence_proxy_async_shared();
    return staged;
}

GIMLET_DEVICE std::uint64_t bulk_load_word(const Machine& m) {
    auto* const staged = reinterpret_cast<std::uint64_t*>(dynamic_shared_memory());
    auto* const bar = reinterpret_cast<Mbarrier*>(dynamic_shared_memory() + 128);
    mbarrier_init(bar, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(bar, kRowBytes);
    bulk_load(staged, m.own(kX), kRowBytes, bar);
    mbarrier_wait(bar, 0);
    return staged[0];
}

GIMLET_DEVICE void writer(const Machine& m) {
    switch (m.args.program) {
        case ProgramId::lsa_bulk_store_waited:
        case ProgramId::lsa_bulk_to_bulk_fenced:
        case ProgramId::lsa_bulk_to_bulk_unfenced:
            bulk_store_row(m, staged_row(1));
            bulk_wait<0>();
            break;
        case ProgramId::lsa_bulk_store_read_only:
            bulk_store_row(m, staged_row(1));
            bulk_wait_read<0>();
            break;
        case ProgramId::lsa_bulk_store_unfenced: {
            std::uint64_t* const staged = staged_row(0);
            store_relaxed<Scope::block>(staged, 1);
            bulk_store_row(m, staged);
            bulk_wait<0>();
            break;
        }
        default: store_relaxed<Scope::system>(m.other(kX), 1);
    }
    store_release<Scope::system>(m.other(kFlag), 1);
}

GIMLET_DEVICE void reader(const Machine& m) {
    // An ordinary look, so that there is an old value for a bulk load to be left with.
    if (m.args.program == ProgramId::lsa_bulk_to_bulk_unfenced) m.look(kX);
    m.wait_acquire<Scope::system>(kFlag);
    switch (m.args.program) {
        case ProgramId::lsa_bulk_load_fenced:
        case ProgramId::lsa_bulk_to_bulk_fenced:
            fence_proxy_async();
            m.report(0, bulk_load_word(m));
            break;
        case ProgramId::lsa_bulk_load_unfenced:
        case ProgramId::lsa_bulk_to_bulk_unfenced: m.report(0, bulk_load_word(m)); break;
        case ProgramId::lsa_bulk_store_unfenced: m.report(0, m.look(kX)); break;
        default: m.look_twice(kX, kLast);
    }
}

GIMLET_GLOBAL void bulk_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    start_late(args);
    const Machine machine{args};
    args.rank == 0 ? writer(machine) : reader(machine);
}

}  // namespace

cudaError_t launch_bulk(const LitmusArgs& args, cudaStream_t stream) {
    return launch(bulk_kernel, 1, args, stream);
}

}  // namespace gimlet::litmus

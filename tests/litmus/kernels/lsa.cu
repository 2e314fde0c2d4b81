// SPDX-License-Identifier: Apache-2.0
//
// Loads and stores between ranks of one LSA team and between blocks of one rank. Blocks of one
// thread; block 1 acts only where a program is about two blocks.
#include "tests/litmus/kernels/launch.hpp"
#include "tests/litmus/kernels/machine.hpp"

namespace gimlet::litmus {

namespace {

GIMLET_DEVICE void chain(const Machine& m) {
    if (m.args.rank == 0 && block_index() == 0) {
        *m.other(kX) = 1;
        store_release<Scope::gpu>(m.own(kFlag2), 1);
    } else if (m.args.rank == 0) {
        m.wait_acquire<Scope::gpu>(kFlag2);
        store_release<Scope::system>(m.other(kFlag), 1);
    } else if (block_index() == 0) {
        m.wait_acquire<Scope::system>(kFlag);
        m.report(0, *m.own(kX));
    }
}

GIMLET_DEVICE void two_blocks(const Machine& m) {
    if (m.args.rank != 0) return;
    if (block_index() == 0) {
        *m.own(kX) = 1;
        store_release<Scope::gpu>(m.own(kFlag), 1);
    } else {
        m.wait_acquire<Scope::gpu>(kFlag);
        m.report(0, *m.own(kX));
    }
}

GIMLET_DEVICE void two_blocks_at_block_scope(const Machine& m) {
    if (m.args.rank != 0) return;
    if (block_index() == 0) {
        store_relaxed<Scope::gpu>(m.own(kX), 1);
        store_release<Scope::block>(m.own(kFlag), 1);
    } else {
        // The poll is of system scope: one of block scope need not end, and on an H200 it did not,
        // once in some thousand rounds.
        m.wait_relaxed(kFlag);
        load_acquire<Scope::block>(m.own(kFlag));
        m.report(0, load_relaxed<Scope::gpu>(m.own(kX)));
    }
}

GIMLET_DEVICE void writer(const Machine& m) {
    switch (m.args.program) {
        case ProgramId::lsa_release_acquire:
            *m.other(kX) = 1;
            store_relaxed<Scope::system>(m.other(kY), 1);
            store_release<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_fence_fence:
            *m.other(kX) = 1;
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_coherence:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_relaxed<Scope::system>(m.other(kX), 2);
            break;
        case ProgramId::lsa_atomic_add:
            m.report(0, fetch_add_relaxed<Scope::system>(m.other(kX), 1));
            break;
        case ProgramId::lsa_relaxed_relaxed:
        case ProgramId::lsa_relaxed_acquire:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_relaxed<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_release_relaxed:
        case ProgramId::lsa_acquire_gpu_scope:
        case ProgramId::lsa_acquire_block_scope:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_release<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_release_gpu_scope:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_release<Scope::gpu>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_fence_gpu_scope:
            store_relaxed<Scope::system>(m.other(kX), 1);
            fence_acq_rel<Scope::gpu>();
            store_relaxed<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_release_block_scope:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_release<Scope::block>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_fence_block_scope:
            store_relaxed<Scope::system>(m.other(kX), 1);
            fence_acq_rel<Scope::block>();
            store_relaxed<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_acq_rel_add:
            *m.other(kX) = 1;
            fetch_add_acq_rel<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_release_sequence:
            *m.other(kX) = 1;
            store_release<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_store_buffering:
            store_relaxed<Scope::system>(m.other(kX), 1);
            m.report(0, m.look(kX));
            break;
        default: break;
    }
}

GIMLET_DEVICE void reader(const Machine& m) {
    switch (m.args.program) {
        case ProgramId::lsa_release_acquire:
            m.wait_acquire<Scope::system>(kFlag);
            m.report(0, *m.own(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::lsa_fence_fence:
            m.wait_relaxed(kFlag);
            fence_acq_rel<Scope::system>();
            m.report(0, *m.own(kX));
            break;
        case ProgramId::lsa_coherence: m.look_twice(kX, kX); break;
        case ProgramId::lsa_atomic_add:
            m.report(1, fetch_add_relaxed<Scope::system>(m.own(kX), 1));
            break;
        case ProgramId::lsa_relaxed_relaxed:
        case ProgramId::lsa_release_relaxed:
            m.wait_relaxed(kFlag);
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_relaxed_acquire:
        case ProgramId::lsa_release_gpu_scope:
        case ProgramId::lsa_release_block_scope:
            m.wait_acquire<Scope::system>(kFlag);
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_acquire_gpu_scope:
            m.wait_acquire<Scope::gpu>(kFlag);
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_fence_gpu_scope:
            m.wait_relaxed(kFlag);
            fence_acq_rel<Scope::gpu>();
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_acquire_block_scope:
            // The poll is of system scope: one of block scope need not end.
            m.wait_relaxed(kFlag);
            load_acquire<Scope::block>(m.own(kFlag));
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_fence_block_scope:
            m.wait_relaxed(kFlag);
            fence_acq_rel<Scope::block>();
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_acq_rel_add:
            m.wait_relaxed(kFlag);
            fetch_add_acq_rel<Scope::system>(m.own(kFlag), 1);
            m.report(0, *m.own(kX));
            break;
        case ProgramId::lsa_release_sequence:
            m.wait_relaxed(kFlag);
            fetch_add_relaxed<Scope::system>(m.own(kFlag), 1);
            load_acquire<Scope::system>(m.own(kFlag));
            m.report(0, *m.own(kX));
            break;
        case ProgramId::lsa_store_buffering:
            store_relaxed<Scope::system>(m.other(kX), 1);
            m.report(1, m.look(kX));
            break;
        default: break;
    }
}

GIMLET_GLOBAL void lsa_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    start_late(args);
    const Machine machine{args};
    switch (args.program) {
        case ProgramId::lsa_chain: return chain(machine);
        case ProgramId::gpu_release_acquire: return two_blocks(machine);
        case ProgramId::gpu_block_scope: return two_blocks_at_block_scope(machine);
        default: break;
    }
    if (block_index() == 0) args.rank == 0 ? writer(machine) : reader(machine);
}

}  // namespace

cudaError_t launch_lsa(const LitmusArgs& args, cudaStream_t stream) {
    return launch(lsa_kernel, 2, args, stream);
}

}  // namespace gimlet::litmus

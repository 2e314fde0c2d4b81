// SPDX-License-Identifier: Apache-2.0
//
// What puts and signals say about each other.
#include "tests/litmus/kernels/gin_machine.hpp"
#include "tests/litmus/kernels/launch.hpp"

namespace gimlet::litmus {

namespace {

GIMLET_DEVICE void sender(const GinMachine& m) {
    m.fill(kSource, 1);
    m.fill(kSource2, 1);
    switch (m.args.program) {
        case ProgramId::put_put:
            m.put(0, kX, kSource);
            m.put(0, kY, kSource2);
            break;
        case ProgramId::put_in_pieces: m.put(0, kX, kSource); break;
        case ProgramId::put_weak_signal:
            m.put(0, kX, kSource, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::put_strong_signal:
            m.put(0, kX, kSource, ncclGin_StrongSignalInc{kSignalX});
            break;
        case ProgramId::put_then_weak_put:
            m.put(0, kX, kSource);
            m.put(0, kY, kSource2, ncclGin_WeakSignalInc{kSignalY});
            break;
        case ProgramId::put_then_weak_signal:
            m.put(0, kX, kSource);
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::put_then_strong_put:
            m.put(0, kX, kSource);
            m.put(0, kY, kSource2, ncclGin_StrongSignalInc{kSignalY});
            break;
        case ProgramId::put_then_strong_signal:
            m.put(0, kX, kSource);
            m.signal(0, ncclGin_StrongSignalInc{kSignalX});
            break;
        case ProgramId::two_contexts:
            m.put(0, kX, kSource);
            m.put(1, kY, kSource2, ncclGin_StrongSignalInc{kSignalY});
            break;
        case ProgramId::two_weak_signals:
            m.put(0, kX, kSource, ncclGin_WeakSignalInc{kSignalX});
            m.put(0, kY, kSource2, ncclGin_WeakSignalInc{kSignalY});
            break;
        case ProgramId::strong_covers_signals:
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            m.signal(0, ncclGin_StrongSignalInc{kSignalY});
            break;
        case ProgramId::put_value:
            m.gin(0).putValue(m.team(), m.partner(), m.args.window, m.offset(kX),
                              std::uint64_t{0x1122334455667788ull},
                              ncclGin_WeakSignalInc{kSignalX});
            break;
        default: break;
    }
    m.close_sender();
}

GIMLET_DEVICE void reader(const GinMachine& m) {
    switch (m.args.program) {
        case ProgramId::put_put: m.look_twice(kY, kX); break;
        case ProgramId::put_in_pieces: m.look_twice(kLast, kX); break;
        case ProgramId::put_weak_signal:
        case ProgramId::put_strong_signal:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, m.look(kLast));
            m.report(1, m.look(kX));
            break;
        case ProgramId::put_then_weak_put:
        case ProgramId::put_then_strong_put:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.look(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::put_then_weak_signal:
        case ProgramId::put_then_strong_signal:
        case ProgramId::put_value:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, m.look(kX));
            break;
        case ProgramId::two_contexts:
            m.wait_signal(1, kSignalY, 1);
            m.report(0, m.look(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::two_weak_signals:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.read_signal(0, kSignalX));
            m.report(1, m.look(kX));
            break;
        case ProgramId::strong_covers_signals:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.read_signal(0, kSignalX));
            break;
        default: break;
    }
    m.close_receiver();
}

GIMLET_GLOBAL void gin_order_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    start_late(args);
    const GinMachine machine(args);
    args.rank == 0 ? sender(machine) : reader(machine);
}

}  // namespace

cudaError_t launch_gin_order(const LitmusArgs& args, cudaStream_t stream) {
    return launch(gin_order_kernel, 1, args, stream);
}

}  // namespace gimlet::litmus

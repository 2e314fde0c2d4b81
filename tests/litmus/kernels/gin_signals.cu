// SPDX-License-Identifier: Apache-2.0
//
// Signals as numbers: wrap-around, shadows, high ids.
#include "tests/litmus/kernels/gin_machine.hpp"
#include "tests/litmus/kernels/launch.hpp"

namespace gimlet::litmus {

namespace {

/// A rolling compare sees half a turn ahead, so the reader answers each half.
constexpr std::uint64_t kHalfTurn = ~std::uint64_t{0} >> 1;

GIMLET_DEVICE void sender(const GinMachine& m) {
    m.fill(kSource, 1);
    switch (m.args.program) {
        case ProgramId::signal_wrap:
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, kHalfTurn});
            m.wait_signal(1, kSignalX, 1);
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, kHalfTurn});
            m.wait_signal(1, kSignalX, 2);
            m.reset_signal(1, kSignalX);
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, 5});
            break;
        case ProgramId::shadow_meet:
            m.put(0, kX, kSource, ncclGin_WeakSignalInc{kSignalX});
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::shadow_follow:
            GIMLET_ROLLED
            for (int i = 0; i < 3; ++i) m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::high_signal_id:
            m.signal(0, ncclGin_StrongSignalAdd{m.args.high_signal, 5});
            m.signal(0, ncclGin_StrongSignalInc{kSignalX});
            break;
        default: break;
    }
    m.close_sender();
}

GIMLET_DEVICE_COLD void wait_at_least(const GinMachine& m, std::uint64_t value) {
    m.gin(0).waitSignal(ncclCoopThread{}, kSignalX, value);
}

GIMLET_DEVICE void reader(const GinMachine& m) {
    switch (m.args.program) {
        case ProgramId::signal_wrap:
            wait_at_least(m, kHalfTurn);
            m.signal(1, ncclGin_StrongSignalInc{kSignalX});
            wait_at_least(m, 2 * kHalfTurn);
            m.signal(1, ncclGin_StrongSignalInc{kSignalX});
            m.flush(1);
            wait_at_least(m, 3);
            m.report(0, m.read_signal(0, kSignalX));
            break;
        case ProgramId::shadow_meet:
            m.gin(0).increaseSignalShadow(kSignalX, 3);
            m.gin(0).waitSignalMeetShadow(ncclCoopThread{}, kSignalX);
            m.report(0, m.read_signal(0, kSignalX));
            m.report(1, m.look(kX));
            break;
        case ProgramId::shadow_follow: {
            std::uint64_t before = 0;
            std::uint64_t delta = 0;
            m.gin(0).waitSignalFollowShadow(ncclCoopThread{}, kSignalX, std::uint64_t{1}, &before,
                                            &delta);
            m.report(0, delta);
            m.report(1, *m.gin(0).getSignalShadowPtr(kSignalX));
            break;
        }
        case ProgramId::high_signal_id:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, m.read_signal(0, m.args.high_signal));
            m.report(1, m.read_signal(0, m.args.high_signal - 65536));
            break;
        default: break;
    }
    m.close_receiver();
}

GIMLET_GLOBAL void gin_signals_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    start_late(args);
    const GinMachine machine(args);
    args.rank == 0 ? sender(machine) : reader(machine);
}

}  // namespace

cudaError_t launch_gin_signals(const LitmusArgs& args, cudaStream_t stream) {
    return launch(gin_signals_kernel, 1, args, stream);
}

}  // namespace gimlet::litmus

// SPDX-License-Identifier: Apache-2.0
//
// Completion: flush, counters, doorbells, gets, full queues, and puts to oneself.
#include "tests/litmus/kernels/gin_machine.hpp"
#include "tests/litmus/kernels/launch.hpp"

namespace gimlet::litmus {

namespace {

GIMLET_DEVICE void fill_queue(const GinMachine& m) {
    GIMLET_ROLLED
    for (std::uint32_t i = 0; i < kBackPressurePuts; ++i) {
        m.gin(0).putValue(m.team(), m.partner(), m.args.window, m.offset(kMany) + 8 * i,
                          std::uint64_t{i + 1});
    }
    m.signal(0, ncclGin_StrongSignalInc{kSignalX});
}

GIMLET_DEVICE std::uint64_t count_arrived(const GinMachine& m) {
    std::uint64_t right = 0;
    for (std::uint32_t i = 0; i < kBackPressurePuts; ++i) {
        right += m.look(kMany + 8 * i) == i + 1 ? 1 : 0;
    }
    return right;
}

/// Rank 1 has announced its word, so that a get reads what was there when the signal was seen.
GIMLET_DEVICE void get_word(const GinMachine& m) {
    m.wait_signal(1, kSignalX, 1);
    m.reset_signal(1, kSignalX);
    m.gin(0).get(m.team(), m.partner(), m.args.window, m.offset(kSource), m.args.window,
                 m.offset(kGot), 8);
    const bool early = m.args.program == ProgramId::get_before_flush;
    if (early) m.report(0, m.look(kGot));
    m.flush(0);
    m.report(early ? 1 : 0, m.look(kGot));
}

GIMLET_DEVICE void loop_back(const GinMachine& m) {
    m.put_to(m.args.rank, 0, kX, kSource, ncclGin_WeakSignalInc{kSignalX}, ncclGin_None{},
             ncclGinOptFlagsDefault);
    m.wait_signal(0, kSignalX, 1);
    m.report(0, m.look(kX));
    m.report(1, m.read_signal(0, kSignalX));
    m.flush(0);
    m.reset_signal(0, kSignalX);
}

GIMLET_DEVICE void sender(const GinMachine& m) {
    m.fill(kSource, 1);
    m.fill(kSource2, 1);
    switch (m.args.program) {
        case ProgramId::flush_is_local:
            m.put(0, kX, kSource);
            m.flush(0);
            m.fill(kSource, 2);
            m.signal(1, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::counter_is_local:
            m.put(0, kX, kSource, ncclGin_None{}, ncclGin_WeakCounterInc{kCounter});
            m.wait([&] { return m.gin(0).readCounter(kCounter) >= 1; });
            m.gin(0).resetCounter(kCounter);
            m.fill(kSource, 2);
            m.signal(1, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::aggregate_closed:
            m.put(0, kX, kSource, ncclGin_None{}, ncclGin_None{}, ncclGinOptFlagsAggregateRequests);
            m.put(0, kY, kSource2, ncclGin_StrongSignalInc{kSignalY});
            break;
        case ProgramId::aggregate_open:
            m.put(0, kX, kSource, ncclGin_None{}, ncclGin_None{}, ncclGinOptFlagsAggregateRequests);
            m.signal(1, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::back_pressure: fill_queue(m); break;
        case ProgramId::get_flush:
        case ProgramId::get_before_flush: get_word(m); break;
        case ProgramId::loop_back: loop_back(m); break;
        default: break;
    }
    m.close_sender();
}

GIMLET_DEVICE void reader(const GinMachine& m) {
    switch (m.args.program) {
        case ProgramId::flush_is_local:
        case ProgramId::counter_is_local:
        case ProgramId::aggregate_open:
            m.wait_signal(1, kSignalX, 1);
            m.report(0, m.look(kX));
            m.close_receiver();
            m.report(1, m.look(kX));
            return;
        case ProgramId::aggregate_closed:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.look(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::back_pressure:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, count_arrived(m));
            break;
        case ProgramId::get_flush:
        case ProgramId::get_before_flush:
            m.fill(kSource, 7);
            fence_acq_rel<Scope::system>();
            m.signal(1, ncclGin_StrongSignalInc{kSignalX});
            m.flush(1);
            break;
        default: break;
    }
    m.close_receiver();
}

GIMLET_GLOBAL void gin_completion_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    start_late(args);
    const GinMachine machine(args);
    args.rank == 0 ? sender(machine) : reader(machine);
}

}  // namespace

cudaError_t launch_gin_completion(const LitmusArgs& args, cudaStream_t stream) {
    return launch(gin_completion_kernel, 1, args, stream);
}

}  // namespace gimlet::litmus

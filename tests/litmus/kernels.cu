// SPDX-License-Identifier: Apache-2.0
//
// Each program is a function for rank 0 and one for rank 1 (`reader`). Only thread 0 of a block
// acts; block 1 only where a program is about two blocks.
#include "device/core/bulk.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/wait.hpp"
#include "tests/litmus/programs.hpp"

namespace gimlet::litmus {

using namespace gimlet::device;

namespace {

// Places in a slot, in bytes.
constexpr std::uint64_t kX = 0;
constexpr std::uint64_t kY = 128;
constexpr std::uint64_t kFlag = 256;
constexpr std::uint64_t kFlag2 = 384;
constexpr std::uint64_t kSource = 512;   // of puts to x
constexpr std::uint64_t kSource2 = 640;  // of puts to y
constexpr std::uint64_t kGot = 768;      // where gets land
constexpr std::uint64_t kMany = 1024;    // kBackPressurePuts words
constexpr std::uint32_t kRowBytes = 64;
constexpr std::uint32_t kRowWords = kRowBytes / 8;

// Signals, in each context.
constexpr std::uint32_t kSignalX = 0;
constexpr std::uint32_t kSignalY = 1;
constexpr std::uint32_t kClose = 2;  // never reset

constexpr std::uint32_t kCounter = 0;
constexpr int kContexts = 2;

struct Machine {
    const LitmusArgs& args;

    GIMLET_DEVICE std::uint64_t offset(std::uint64_t place) const {
        return args.slot_offset + place;
    }
    GIMLET_DEVICE std::uint64_t* own(std::uint64_t place) const {
        return reinterpret_cast<std::uint64_t*>(args.local + offset(place));
    }
    GIMLET_DEVICE std::uint64_t* other(std::uint64_t place) const {
        return reinterpret_cast<std::uint64_t*>(args.partner_bytes + offset(place));
    }
    GIMLET_DEVICE void report(int index, std::uint64_t value) const {
        args.registers[index] = value;
    }
    GIMLET_DEVICE std::uint64_t look(std::uint64_t place) const {
        return load_relaxed<Scope::system>(own(place));
    }
    /// Two looks, again and again until they show something (not for ever: it may all be over). The
    /// looks are reported in the order in which they were made.
    GIMLET_DEVICE void look_twice(std::uint64_t first, std::uint64_t second) const {
        std::uint64_t early = 0;
        std::uint64_t late = 0;
        for (int tries = 0; tries < 64 && early == late && late == 0; ++tries) {
            early = look(first);
            late = look(second);
        }
        report(0, early);
        report(1, late);
    }
    /// Polls until the probe holds; a reader that waits in vain says so.
    template <class Probe>
    GIMLET_DEVICE void wait(Probe probe) const {
        const WaitScope scope{
            args.deadline_ns,         nullptr, nullptr, 1, args.rank, static_cast<Tag>(0),
            static_cast<Primitive>(0)};
        const WaitStatus status = wait_until(scope, WaitTarget{1 - args.rank, -1, 0},
                                             [&](std::uint64_t&) { return probe(); });
        if (status != WaitStatus::ok) report(kRegisterCount - 1, kTimedOut);
    }

    // ---- GIN

    GIMLET_DEVICE ncclGin gin(int context) const {
        return ncclGin(args.dev_comm, context, NCCL_GIN_RESOURCE_SHARING_GPU);
    }
    GIMLET_DEVICE ncclTeam team() const { return ncclTeamWorld(args.dev_comm); }
    GIMLET_DEVICE int partner() const { return 1 - args.rank; }

    GIMLET_DEVICE void fill(std::uint64_t place, std::uint64_t value) const {
        for (std::uint32_t i = 0; i < kRowWords; ++i) own(place)[i] = value;
    }
    template <class Remote = ncclGin_None, class Local = ncclGin_None>
    GIMLET_DEVICE void put(int context, std::uint64_t to, std::uint64_t from, Remote remote = {},
                           Local local = {}, std::uint32_t flags = ncclGinOptFlagsDefault) const {
        gin(context).put(team(), partner(), args.window, offset(to), args.window, offset(from),
                         kRowBytes, remote, local, ncclCoopThread{}, ncclGin_None{},
                         cuda::thread_scope_thread, cuda::thread_scope_device, flags);
    }
    template <class Remote>
    GIMLET_DEVICE void signal(int context, Remote remote) const {
        gin(context).signal(team(), partner(), remote);
    }
    GIMLET_DEVICE void wait_signal(int context, std::uint32_t id, std::uint64_t least) const {
        const ncclGin queue = gin(context);
        wait([&] { return static_cast<std::int64_t>(queue.readSignal(id) - least) >= 0; });
    }
    GIMLET_DEVICE void flush(int context) const { gin(context).flush(ncclCoopThread{}); }

    /// All that was sent has arrived when both sides have come back from this.
    GIMLET_DEVICE void close_sender() const {
        for (int context = 0; context < kContexts; ++context) {
            signal(context, ncclGin_StrongSignalInc{kClose});
            flush(context);
        }
    }
    GIMLET_DEVICE void close_receiver() const {
        for (int context = 0; context < kContexts; ++context) {
            wait_signal(context, kClose, args.close_base + 1);
            gin(context).resetSignal(kSignalX);
            gin(context).resetSignal(kSignalY);
            if (args.high_signal >= kManySignalCount - 1)
                gin(context).resetSignal(args.high_signal);
        }
    }
};

// ---- GIN

GIMLET_DEVICE void gin_sender(const Machine& m) {
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
        case ProgramId::signal_wrap: {
            // A rolling compare sees half a turn ahead, so the reader answers each half.
            const std::uint64_t half = ~std::uint64_t{0} >> 1;
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, half});
            m.wait_signal(1, kSignalX, 1);
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, half});
            m.wait_signal(1, kSignalX, 2);
            m.gin(1).resetSignal(kSignalX);
            m.signal(0, ncclGin_StrongSignalAdd{kSignalX, 5});
            break;
        }
        case ProgramId::shadow_meet:
            m.put(0, kX, kSource, ncclGin_WeakSignalInc{kSignalX});
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::shadow_follow:
            for (int i = 0; i < 3; ++i) m.signal(0, ncclGin_WeakSignalInc{kSignalX});
            break;
        case ProgramId::back_pressure:
            for (std::uint32_t i = 0; i < kBackPressurePuts; ++i) {
                m.gin(0).putValue(m.team(), m.partner(), m.args.window, m.offset(kMany) + 8 * i,
                                  std::uint64_t{i + 1});
            }
            m.signal(0, ncclGin_StrongSignalInc{kSignalX});
            break;
        case ProgramId::high_signal_id:
            m.signal(0, ncclGin_StrongSignalAdd{m.args.high_signal, 5});
            m.signal(0, ncclGin_StrongSignalInc{kSignalX});
            break;
        default: break;
    }
    m.close_sender();
}

GIMLET_DEVICE void gin_reader(const Machine& m) {
    constexpr std::uint64_t kLast = kX + kRowBytes - 8;
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
        case ProgramId::aggregate_closed:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.look(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::put_then_weak_signal:
        case ProgramId::put_then_strong_signal:
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
            m.report(0, m.gin(0).readSignal(kSignalX));
            m.report(1, m.look(kX));
            break;
        case ProgramId::strong_covers_signals:
            m.wait_signal(0, kSignalY, 1);
            m.report(0, m.gin(0).readSignal(kSignalX));
            break;
        case ProgramId::put_value:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, m.look(kX));
            break;
        case ProgramId::flush_is_local:
        case ProgramId::counter_is_local:
        case ProgramId::aggregate_open:
            m.wait_signal(1, kSignalX, 1);
            m.report(0, m.look(kX));
            m.close_receiver();
            m.report(1, m.look(kX));
            return;
        case ProgramId::signal_wrap: {
            const std::uint64_t half = ~std::uint64_t{0} >> 1;
            m.gin(0).waitSignal(ncclCoopThread{}, kSignalX, half);
            m.signal(1, ncclGin_StrongSignalInc{kSignalX});
            m.gin(0).waitSignal(ncclCoopThread{}, kSignalX, 2 * half);
            m.signal(1, ncclGin_StrongSignalInc{kSignalX});
            m.flush(1);
            m.gin(0).waitSignal(ncclCoopThread{}, kSignalX, 3);
            m.report(0, m.gin(0).readSignal(kSignalX));
            break;
        }
        case ProgramId::shadow_meet:
            m.gin(0).increaseSignalShadow(kSignalX, 3);
            m.gin(0).waitSignalMeetShadow(ncclCoopThread{}, kSignalX);
            m.report(0, m.gin(0).readSignal(kSignalX));
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
        case ProgramId::back_pressure: {
            m.wait_signal(0, kSignalX, 1);
            std::uint64_t right = 0;
            for (std::uint32_t i = 0; i < kBackPressurePuts; ++i) {
                right += m.look(kMany + 8 * i) == i + 1 ? 1 : 0;
            }
            m.report(0, right);
            break;
        }
        case ProgramId::high_signal_id:
            m.wait_signal(0, kSignalX, 1);
            m.report(0, m.gin(0).readSignal(m.args.high_signal));
            m.report(1, m.gin(0).readSignal(m.args.high_signal - 65536));
            break;
        default: break;
    }
    m.close_receiver();
}

/// Programs in which rank 0 acts on its own, with rank 1's memory or its own.
GIMLET_DEVICE void gin_alone(const Machine& m) {
    const ncclGin queue = m.gin(0);
    if (m.args.program == ProgramId::loop_back) {
        m.fill(kSource, 1);
        queue.put(m.team(), m.args.rank, m.args.window, m.offset(kX), m.args.window,
                  m.offset(kSource), kRowBytes, ncclGin_WeakSignalInc{kSignalX});
        m.wait_signal(0, kSignalX, 1);
        m.report(0, m.look(kX));
        m.report(1, queue.readSignal(kSignalX));
        m.flush(0);
        queue.resetSignal(kSignalX);
    } else {
        queue.get(m.team(), m.partner(), m.args.window, m.offset(kSource), m.args.window,
                  m.offset(kGot), 8);
        if (m.args.program == ProgramId::get_before_flush) m.report(0, m.look(kGot));
        m.flush(0);
        m.report(m.args.program == ProgramId::get_before_flush ? 1 : 0, m.look(kGot));
    }
    m.close_sender();
}

GIMLET_DEVICE void run_gin(const Machine& m) {
    switch (m.args.program) {
        case ProgramId::loop_back: m.args.rank == 0 ? gin_alone(m) : m.close_receiver(); return;
        case ProgramId::get_flush:
        case ProgramId::get_before_flush:
            // Rank 1 announces its word first; a get reads what was there when the signal was seen.
            if (m.args.rank == 0) {
                m.wait_signal(1, kSignalX, 1);
                m.gin(1).resetSignal(kSignalX);
                gin_alone(m);
            } else {
                m.fill(kSource, 7);
                fence_acq_rel<Scope::system>();
                m.signal(1, ncclGin_StrongSignalInc{kSignalX});
                m.flush(1);
                m.close_receiver();
            }
            return;
        default: m.args.rank == 0 ? gin_sender(m) : gin_reader(m);
    }
}

// ---- LSA

GIMLET_DEVICE void chain(const Machine& m) {
    if (m.args.rank == 0 && block_index() == 0) {
        *m.other(kX) = 1;
        store_release<Scope::gpu>(m.own(kFlag2), 1);
    } else if (m.args.rank == 0) {
        m.wait([&] { return load_acquire<Scope::gpu>(m.own(kFlag2)) != 0; });
        store_release<Scope::system>(m.other(kFlag), 1);
    } else if (block_index() == 0) {
        m.wait([&] { return load_acquire<Scope::system>(m.own(kFlag)) != 0; });
        m.report(0, *m.own(kX));
    }
}

GIMLET_DEVICE void two_blocks(const Machine& m) {
    if (m.args.rank != 0) return;
    if (block_index() == 0) {
        *m.own(kX) = 1;
        store_release<Scope::gpu>(m.own(kFlag), 1);
    } else {
        m.wait([&] { return load_acquire<Scope::gpu>(m.own(kFlag)) != 0; });
        m.report(0, *m.own(kX));
    }
}

GIMLET_DEVICE void two_blocks_at_block_scope(const Machine& m) {
    if (m.args.rank != 0) return;
    if (block_index() == 0) {
        store_relaxed<Scope::gpu>(m.own(kX), 1);
        store_release<Scope::block>(m.own(kFlag), 1);
    } else {
        m.wait([&] { return load_acquire<Scope::block>(m.own(kFlag)) != 0; });
        m.report(0, load_relaxed<Scope::gpu>(m.own(kX)));
    }
}

/// A row of ones by a bulk store.
GIMLET_DEVICE void bulk_store_row(const Machine& m) {
    auto* const staged = reinterpret_cast<std::uint64_t*>(dynamic_shared_memory());
    for (std::uint32_t i = 0; i < kRowWords; ++i) staged[i] = 1;
    fence_proxy_async_shared();
    bulk_store(m.other(kX), staged, kRowBytes);
    bulk_commit();
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

GIMLET_DEVICE void lsa_writer(const Machine& m) {
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
        case ProgramId::lsa_bulk_store_waited:
            bulk_store_row(m);
            bulk_wait<0>();
            store_release<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_bulk_store_read_only:
            bulk_store_row(m);
            bulk_wait_read<0>();
            store_release<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_relaxed_relaxed:
        case ProgramId::lsa_relaxed_acquire:
            store_relaxed<Scope::system>(m.other(kX), 1);
            store_relaxed<Scope::system>(m.other(kFlag), 1);
            break;
        case ProgramId::lsa_release_relaxed:
        case ProgramId::lsa_acquire_gpu_scope:
        case ProgramId::lsa_bulk_load_fenced:
        case ProgramId::lsa_bulk_load_unfenced:
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
        case ProgramId::lsa_store_buffering:
            store_relaxed<Scope::system>(m.other(kX), 1);
            m.report(0, m.look(kX));
            break;
        default: break;
    }
}

GIMLET_DEVICE void lsa_reader(const Machine& m) {
    constexpr std::uint64_t kLast = kX + kRowBytes - 8;
    const auto wait_flag = [&] {
        m.wait([&] { return load_acquire<Scope::system>(m.own(kFlag)) != 0; });
    };
    switch (m.args.program) {
        case ProgramId::lsa_release_acquire:
            wait_flag();
            m.report(0, *m.own(kX));
            m.report(1, m.look(kY));
            break;
        case ProgramId::lsa_fence_fence:
            m.wait([&] { return m.look(kFlag) != 0; });
            fence_acq_rel<Scope::system>();
            m.report(0, *m.own(kX));
            break;
        case ProgramId::lsa_coherence: m.look_twice(kX, kX); break;
        case ProgramId::lsa_atomic_add:
            m.report(1, fetch_add_relaxed<Scope::system>(m.own(kX), 1));
            break;
        case ProgramId::lsa_bulk_store_waited:
        case ProgramId::lsa_bulk_store_read_only:
            wait_flag();
            m.look_twice(kX, kLast);
            break;
        case ProgramId::lsa_bulk_load_fenced:
            wait_flag();
            fence_proxy_async();
            m.report(0, bulk_load_word(m));
            break;
        case ProgramId::lsa_bulk_load_unfenced:
            wait_flag();
            m.report(0, bulk_load_word(m));
            break;
        case ProgramId::lsa_relaxed_relaxed:
        case ProgramId::lsa_release_relaxed:
            m.wait([&] { return m.look(kFlag) != 0; });
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_relaxed_acquire:
        case ProgramId::lsa_release_gpu_scope:
            wait_flag();
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_acquire_gpu_scope:
            m.wait([&] { return load_acquire<Scope::gpu>(m.own(kFlag)) != 0; });
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_fence_gpu_scope:
            m.wait([&] { return m.look(kFlag) != 0; });
            fence_acq_rel<Scope::gpu>();
            m.report(0, m.look(kX));
            break;
        case ProgramId::lsa_store_buffering:
            store_relaxed<Scope::system>(m.other(kX), 1);
            m.report(1, m.look(kX));
            break;
        default: break;
    }
}

GIMLET_DEVICE void run_lsa(const Machine& m) {
    switch (m.args.program) {
        case ProgramId::lsa_chain: return chain(m);
        case ProgramId::gpu_release_acquire: return two_blocks(m);
        case ProgramId::gpu_block_scope: return two_blocks_at_block_scope(m);
        default: break;
    }
    if (block_index() == 0) m.args.rank == 0 ? lsa_writer(m) : lsa_reader(m);
}

GIMLET_GLOBAL void litmus_kernel(const GIMLET_GRID_CONSTANT LitmusArgs args) {
    if (thread_index() != 0) return;
    if (args.delay_ns > 0) {
        const std::uint64_t start_ns = now_ns();
        while (now_ns() - start_ns < args.delay_ns) {
        }
    }
    const Machine machine{args};
    if (args.uses_gin == 0) {
        run_lsa(machine);
    } else if (block_index() == 0) {
        run_gin(machine);
    }
}

}  // namespace

cudaError_t launch_litmus(const LitmusArgs& args, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(kLitmusBlocks);
    config.blockDim = dim3(kLitmusThreads);
    config.dynamicSmemBytes = kLitmusSharedBytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, litmus_kernel, args);
}

}  // namespace gimlet::litmus

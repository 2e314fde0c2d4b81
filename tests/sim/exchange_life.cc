// SPDX-License-Identifier: Apache-2.0
// Calls of the host that one rank alone refuses; several Runtimes and Exchanges beside each other;
// what is left behind, and when it goes. A simulation's bootstrap has no deadline: a rank that
// waits for one that has refused never comes back, and the test fails with a deadlock.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "host/base/log.hpp"
#include "host/bootstrap/callback_bootstrap.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/engine.hpp"
#include "host/nccl/communicator.hpp"
#include "runtime/core.hpp"
#include "runtime/generators.hpp"
#include "tests/sim/exchange_member.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"
#include "tests/support/smallest_config.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kHourNs = 3'600'000'000'000;

/// Runs `body` on all ranks: on `bad` it must raise `code`, and at once peer_failed on the others,
/// which name that rank; all texts contain `reason`.
void refused_on(const Member& me, int bad, ErrorCode code, const std::string& reason,
                const std::function<void()>& body) {
    if (me.rank == bad) {
        me.fails(code, {reason}, "the refusal", body);
    } else {
        me.fails(ErrorCode::peer_failed, {fmt::format("rank {}", bad), reason}, "a peer's refusal",
                 body);
    }
}

/// Returns once all ranks are here.
class MeetingPlace {
  public:
    explicit MeetingPlace(int ranks) : ranks_(ranks) {}
    /// `round` counts from 1.
    void meet(int round) {
        ++arrived_;
        emu::Engine::get().progress();
        emu::Engine::get().wait("the others", [&, round] { return arrived_ >= round * ranks_; });
    }

  private:
    int ranks_;
    std::atomic<int> arrived_{0};
};

}  // namespace

TEST_CASE("exclude() that one rank refuses fails at once on all", "[sim][lifecycle][exclude]") {
    World world;
    const LogCapture quiet;
    MeetingPlace place(world.ranks);
    run_world(world, [&](Member& me) {
        me.step("before");
        const auto excludes = [&](std::vector<int> own, std::shared_ptr<Bootstrap> left) {
            return [&me, own, left] {
                (void)me.runtime.exclude(me.rank == 1 ? own : std::vector<int>{3},
                                         me.rank == 1 ? left : nullptr);
            };
        };
        if (me.rank != 3) {
            for (const int bad : {-1, 4, 1}) {
                refused_on(me, 1, ErrorCode::invalid_argument,
                           fmt::format("rank {} cannot be excluded", bad), excludes({bad}, {}));
            }
            refused_on(me, 1, ErrorCode::invalid_argument, "says rank 0 of 1",
                       excludes({3}, make_single_bootstrap()));
            refused_on(me, 1, ErrorCode::invalid_argument, "told so", [&] {
                if (me.rank == 1)
                    me.runtime.refuse_exclude(Error(ErrorCode::invalid_argument, 1, "told so"));
                (void)me.runtime.exclude(std::vector<int>{3});
            });
        }
        place.meet(1);
        require(me.runtime.live_ranks().size() == 4, "live ranks");
        refused_on(me, 2, ErrorCode::invalid_argument, "told so", [&] {
            if (me.rank == 2)
                me.runtime.refuse_recover(Error(ErrorCode::invalid_argument, 2, "told so"));
            (void)me.runtime.recover();
        });
        refused_on(me, 2, ErrorCode::invalid_argument, "told so", [&] {
            if (me.rank == 2)
                me.exchange.refuse_recover(Error(ErrorCode::invalid_argument, 2, "told so"));
            (void)me.exchange.recover();
        });
        // Nothing has happened.
        me.step("after");
        place.meet(2);
        if (me.rank == 3) {
            me.exchange.abort();
            me.runtime.abort();
            return;
        }
        work_on(me, {3});
    });
}

TEST_CASE("ranks with different open Exchanges hear it at once, and all may give it up",
          "[sim][lifecycle][recovery]") {
    const LogCapture quiet;
    for (const World& world : worlds()) {
        if (has_rail_rings(world)) continue;
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const auto other = me.runtime.create_exchange(smallest_config());
            const auto third = me.runtime.create_exchange(smallest_config());
            require(me.exchange.number() == 1 && other->number() == 2 && third->number() == 3,
                    "numbers");
            me.step("before");
            if (me.rank == 1) other->abort();
            const std::vector<std::string> texts{"rank 1 has '1, 3'", "'1-3'", "open Exchanges"};
            me.fails(ErrorCode::config_mismatch, texts, "recover",
                     [&] { (void)me.runtime.recover(); });
            me.fails(ErrorCode::config_mismatch, texts, "exclude",
                     [&] { (void)me.runtime.exclude(std::vector<int>{}); });
            me.fails(ErrorCode::config_mismatch, {"recover() of Exchange 1", "Runtime::recover"},
                     "different calls", [&] {
                         if (me.rank == 0)
                             (void)me.runtime.recover();
                         else
                             (void)me.exchange.recover();
                     });
            me.fails(ErrorCode::config_mismatch, {"close() of Exchange 1", "close() of Exchange 3"},
                     "different ends",
                     [&] { me.rank == 0 ? me.exchange.close() : third->close(); });
            third->close();
            me.step("beside it");
            if (me.rank != 1) other->abort();
            me.runtime.recover();
            require(take_leftovers(*me.runtime.core(), 2) == nullptr, "not freed");
            me.step("after");
            // With one Exchange that is still open somewhere the Runtime stays.
            if (me.rank != 1) me.exchange.abort();
            refused_on(me, 1, ErrorCode::invalid_usage, "1 Exchange(s) are still open",
                       [&] { me.runtime.close(); });
            me.exchange.abort();
            me.runtime.close();
            require(take_leftovers(*me.runtime.core(), 1) == nullptr, "not freed at the end");
        });
    }
}

TEST_CASE("a step with another current device fails at once on all", "[sim][lifecycle]") {
    const LogCapture quiet;
    for (World world : worlds()) {
        for (const bool in_combine : {false, true}) {
            if (in_combine && has_rail_rings(world)) continue;  // no tokens: some do not wait
            CAPTURE(text_of(world), in_combine);
            run_world(world, [&](Member& me) {
                me.step("before");
                Routing routing = me.exchange.make_routing();
                DispatchInputs inputs;
                inputs.deadline_ns = kHourNs;
                if (in_combine)
                    me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
                refused_on(
                    me, 1, ErrorCode::invalid_usage, in_combine ? "combine" : "dispatch", [&] {
                        const DeviceGuard guard(me.rank == 1 ? 0 : me.rank);
                        if (in_combine) {
                            CombineInputs outputs;
                            outputs.deadline_ns = kHourNs;
                            me.exchange.combine(outputs, routing, me.stream);
                        } else {
                            me.exchange.dispatch(inputs, &routing, CountMode::device, me.stream);
                        }
                        me.exchange.synchronize(me.stream);
                    });
                me.exchange.recover();
                me.step("after");
            });
        }
    }
}

TEST_CASE("errors after exclude() name world ranks", "[sim][lifecycle][exclude]") {
    const LogCapture quiet;
    for (const bool given : {false, true}) {
        World world;
        world.ranks = 5;
        CAPTURE(given);
        MeetingPlace place(world.ranks);
        run_world(world, [&](Member& me) {
            const auto other = me.runtime.create_exchange(smallest_config());
            // Of all ranks but the first, as a caller would bring it.
            std::shared_ptr<Bootstrap> left = me.runtime.bootstrap().split(me.rank > 0 ? 0 : -1, 0);
            place.meet(1);
            if (me.rank == 0) {
                other->abort();
                me.exchange.abort();
                me.runtime.abort();
                return;
            }
            me.runtime.exclude(std::vector<int>{0}, given ? left : nullptr);
            if (me.rank == 3) other->abort();
            me.fails(ErrorCode::config_mismatch, {"rank 3 has '1'", "ranks 1-2, 4 have '1-2'"},
                     "recover", [&] { (void)me.runtime.recover(); });
            if (me.rank != 3) other->abort();
            if (me.rank != 2) me.exchange.abort();
            refused_on(me, 2, ErrorCode::invalid_usage, "1 Exchange(s)",
                       [&] { me.runtime.close(); });
            int rank = kNoRank;
            try {
                me.runtime.close();
            } catch (const Error& error) {
                rank = error.rank();
            }
            require(rank == me.rank, fmt::format("rank {}: Error::rank {}", me.rank, rank));
            // Those that are left of those that are left.
            const std::vector<int> out{me.rank == 2 ? 3 : 4};
            if (me.rank < 4) {
                const std::string own = me.rank == 2 ? "1-2, 4" : "1-3";
                const std::string error_of = fmt::format("rank {} names {}", me.rank, own);
                me.fails(ErrorCode::config_mismatch, {error_of}, "different lists",
                         [&] { (void)me.runtime.exclude(out); });
            }
            me.exchange.abort();
            me.runtime.abort();
        });
    }
}

namespace {

bool runs(cudaStream_t stream) {
    return cudaStreamQuery(stream) == cudaErrorNotReady;
}

/// A Runtime whose things are destroyed, aborted or long closed while another Runtime's step runs.
struct Neighbour {
    explicit Neighbour(int rank)
        : runtime(Runtime::create(std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank)))) {
        for (auto& exchange : exchanges) exchange = runtime->create_exchange(smallest_config());
        routing = exchanges[0]->make_routing();
    }
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Exchange> exchanges[3];
    Routing routing;
};

void die_beside(Neighbour& closed, Neighbour& open, cudaStream_t stream) {
    const auto still_running = [&](const char* what) { require(runs(stream), what); };
    closed.routing = Routing();
    for (auto& exchange : closed.exchanges) exchange.reset();
    closed.runtime.reset();
    still_running("destructors of closed objects have waited");
    open.routing = Routing();
    still_running("~Routing has waited");
    open.exchanges[0].reset();  // closed
    open.exchanges[1].reset();
    still_running("~Exchange has waited");
    open.exchanges[2]->abort();
    still_running("Exchange::abort() has waited");
    open.runtime->abort();
    still_running("Runtime::abort() has waited");
    open.runtime.reset();
    open.exchanges[2].reset();
    still_running("destructors of aborted objects have waited");
}

}  // namespace

TEST_CASE("what is destroyed beside another Runtime's kernels waits for none of them",
          "[sim][lifecycle]") {
    const LogCapture quiet;
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        MeetingPlace place(world.ranks);
        run_world(world, [&](Member& me) {
            Neighbour closed(me.rank);
            Neighbour open(me.rank);
            closed.exchanges[0]->close();
            closed.exchanges[1]->close();
            closed.exchanges[2]->close();
            closed.runtime->close();
            open.exchanges[0]->close();
            me.step("before");
            require(Runtime::reclaim() == 0, "close() has left something");
            place.meet(1);
            const bool late = me.rank == 1;
            if (late) emu::Engine::get().sleep_ns(10'000'000, "a late rank");
            Routing routing = me.exchange.make_routing();
            me.exchange.dispatch({}, &routing, CountMode::device, me.stream);
            me.exchange.combine({}, routing, me.stream);
            if (!late) die_beside(closed, open, me.stream);
            me.exchange.synchronize(me.stream);
            place.meet(2);
            if (late) {
                open.exchanges[1]->abort();
                open.runtime->abort();
            }
            // Two Routings, two Exchanges and a Runtime.
            const int left = late ? 2 : 5;
            require(Runtime::reclaim() == left, fmt::format("not {} were left", left));
            me.step("after");
        });
    }
}

TEST_CASE("what an open Runtime has left is its own thread's to free", "[sim][lifecycle]") {
    const LogCapture quiet;
    for (const World& world : worlds()) {
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const auto left = me.runtime.create_exchange(smallest_config());
            const std::uint64_t number = left->number();
            left->abort();
            {
                Neighbour other(me.rank);
                (void)Runtime::reclaim();
                other.runtime->recover();
                for (auto& exchange : other.exchanges) exchange->close();
                other.runtime->close();
            }
            auto found = take_leftovers(*me.runtime.core(), number);
            require(found != nullptr, "another Runtime has freed it");
            keep_leftovers(std::move(found));
            me.runtime.recover();
            require(take_leftovers(*me.runtime.core(), number) == nullptr, "it is still there");
            me.step("after");
        });
    }
}

TEST_CASE("an aborted Exchange is freed once nothing is on its way to it",
          "[sim][lifecycle][recovery]") {
    const LogCapture quiet;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        World world;
        world.team = seed % 2 == 0 ? 2 : 1;
        world.seed = seed;
        world.gin = seed / 2 % 2 == 0 ? emu::GinMode::gdaki : emu::GinMode::proxy;
        world.faults.delay_chance = 0.5;
        world.faults.delay_min_ns = 1'000;
        world.faults.delay_mean_ns = 40'000;
        CAPTURE(text_of(world));
        MeetingPlace place(world.ranks);
        run_world(world, [&](Member& me) {
            const auto other = me.runtime.create_exchange(me.exchange.plan().config);
            {
                RehearsalOptions options;
                options.deadline_ns = me.rank == 1 ? 3'000 : kPatienceNs;
                Rehearsal rehearsal(*other, me.table, options);
                try {
                    for (int i = 0; i < 4; ++i) (void)rehearsal.step(CountMode::device, me.stream);
                } catch (const Error&) {
                }
            }
            other->abort();
            place.meet(1);
            switch (seed % 3) {
                case 0: me.runtime.recover(); break;
                case 1: me.exchange.recover(); break;
                default: return;  // close() comes next
            }
            require(take_leftovers(*me.runtime.core(), other->number()) == nullptr, "not freed");
            me.step("after");
        });
    }
}

namespace {

/// Two Exchanges of one Runtime, with a stream each.
struct Layers {
    Layers(Runtime& runtime, const RoutingTable& table, int rank) {
        for (int i = 0; i < 2; ++i) {
            MoeConfig config;
            config.expert_count = 5;
            config.topk = table.topk;
            config.hidden = 8 << i;
            config.max_tokens = 4;
            config.sm_budget = 1;
            config.layout = i == 0 ? Layout::rank_major : Layout::expert_major;
            exchanges[i] = runtime.create_exchange(config);
            streams[i] = Stream::create(rank);
            rehearsals[i] = std::make_unique<Rehearsal>(*exchanges[i], table, RehearsalOptions{});
        }
    }
    void close() {
        for (int i = 0; i < 2; ++i) {
            rehearsals[i].reset();
            exchanges[i]->close();
        }
    }
    std::unique_ptr<Exchange> exchanges[2];
    Stream streams[2];
    std::unique_ptr<Rehearsal> rehearsals[2];
};

}  // namespace

TEST_CASE("several Runtimes with several Exchanges on one communicator, all in flight",
          "[sim][lifecycle]") {
    GeneratorOptions routing;
    routing.rank_count = 3;
    routing.token_count = 4;
    routing.expert_count = 5;
    routing.topk = 2;
    const RoutingTable table = generate_routing(routing);
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        emu::SimOptions options;
        options.ranks = 3;
        options.lsa_team_size = seed % 2 == 0 ? 0 : 1;
        options.seed = seed;
        options.sm_count = 8;
        emu::simulate(options, [&](int rank) {
            const auto bootstrap = std::shared_ptr<Bootstrap>(make_sim_bootstrap(rank));
            const auto lender = Communicator::create(bootstrap);
            const auto first = Runtime::adopt(lender->handle(), bootstrap);
            const auto second = Runtime::adopt(lender->handle(), bootstrap);
            Layers a(*first, table, rank);
            Layers b(*second, table, rank);
            const Stream side = Stream::create(rank);
            const auto each = [&](bool backwards, const auto& body) {
                Layers* all[] = {&a, &a, &b, &b};
                for (int i = 0; i < 4; ++i) {
                    const int at = backwards ? 3 - i : i;
                    body(*all[at]->rehearsals[at % 2], all[at]->streams[at % 2].get());
                }
            };
            const auto right = [&](const std::string& difference) {
                require(difference.empty(), fmt::format("rank {}: {}", rank, difference));
            };
            for (int step = 0; step < 3; ++step) {
                // Ranks queue in different orders.
                const bool backwards = (rank + step) % 2 == 1;
                each(backwards, [](Rehearsal& one, cudaStream_t stream) {
                    one.dispatch(CountMode::device, stream);
                });
                first->barrier(side.get());
                second->barrier(side.get());
                each(!backwards, [&](Rehearsal& one, cudaStream_t stream) {
                    right(one.check_dispatch(stream));
                    one.answer(stream);
                });
                each(backwards, [](Rehearsal& one, cudaStream_t stream) { one.combine(stream); });
                each(!backwards, [&](Rehearsal& one, cudaStream_t stream) {
                    right(one.check_combine(stream));
                });
            }
            // A dispatch of one and a combine of the other at a time, on the same communicator.
            a.rehearsals[0]->dispatch(CountMode::device, a.streams[0].get());
            for (int step = 0; step < 4; ++step) {
                const int sends = 1 - step % 2;
                right(a.rehearsals[1 - sends]->check_dispatch(a.streams[1 - sends].get()));
                a.rehearsals[1 - sends]->answer(a.streams[1 - sends].get());
                a.rehearsals[1 - sends]->combine(a.streams[1 - sends].get());
                if (step < 3)
                    a.rehearsals[sends]->dispatch(CountMode::device, a.streams[sends].get());
                right(a.rehearsals[1 - sends]->check_combine(a.streams[1 - sends].get()));
            }
            first->synchronize(side.get());
            a.close();
            // One Runtime ends, the other works on.
            first->close();
            for (int i = 0; i < 2; ++i) {
                right(b.rehearsals[0]->step(CountMode::host, b.streams[0].get()));
                second->barrier(side.get());
            }
            second->synchronize(side.get());
            b.close();
            second->close();
            lender->close();
        });
    }
}

}  // namespace gimlet::test

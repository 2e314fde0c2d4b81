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
#include "runtime/core.hpp"
#include "tests/sim/exchange_member.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kHourNs = 3'600'000'000'000;

MoeConfig tiny_config() {
    MoeConfig config;
    config.expert_count = 4;
    config.topk = 1;
    config.hidden = 8;
    config.max_tokens = 2;
    config.sm_budget = 1;
    return config;
}

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
        CAPTURE(text_of(world));
        run_world(world, [&](Member& me) {
            const auto other = me.runtime.create_exchange(tiny_config());
            const auto third = me.runtime.create_exchange(tiny_config());
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
            const auto other = me.runtime.create_exchange(tiny_config());
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

}  // namespace gimlet::test

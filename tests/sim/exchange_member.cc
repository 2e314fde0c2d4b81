// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/exchange_member.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "host/base/text.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

std::uint32_t dropped_choices(const Member& me, int token, const std::vector<int>& lost) {
    std::uint32_t out = 0;
    for (int k = 0; k < me.table.topk; ++k) {
        const std::int64_t expert = me.table.index(me.rank, token, k);
        if (expert < 0) continue;
        const int owner = me.exchange.plan().experts.rank_of(static_cast<std::int32_t>(expert));
        if (std::find(lost.begin(), lost.end(), owner) != lost.end()) out |= 1u << k;
    }
    return out;
}

}  // namespace

std::string text_of(const World& world) {
    return fmt::format("ranks {} team {} gin {} {} {} {} seed {} stop {} at {} first step {}",
                       world.ranks, world.team, static_cast<int>(world.gin), name_of(world.layout),
                       name_of(world.sync), name_of(world.mode), world.seed, world.faults.stop_rank,
                       world.faults.stop_at_step, world.first_step);
}

const std::vector<World>& worlds() {
    static const std::vector<World> all = [] {
        std::vector<World> out(6);
        out[0].ranks = 3;
        out[1].team = 2;
        out[1].layout = Layout::expert_major;
        out[2].ranks = 3;
        out[2].team = 1;
        out[2].gin = emu::GinMode::proxy;
        out[3].ranks = 3;
        out[3].sync = Sync::fifo;
        out[4].team = 2;
        out[4].mode = ExchangeMode::hybrid;
        out[5].team = 2;
        out[5].gin = emu::GinMode::proxy;
        out[5].sync = Sync::fifo;
        return out;
    }();
    return all;
}

void require(bool good, const std::string& what) {
    if (!good) throw std::runtime_error(what);
}

void Member::step(const std::string& when) const {
    const std::string difference = rehearsal.step(CountMode::device, stream);
    require(difference.empty(), fmt::format("rank {}, {}: {}", rank, when, difference));
}

void Member::fails(ErrorCode code, const std::vector<std::string>& parts, const std::string& when,
                   const std::function<void()>& body) const {
    std::optional<Error> error;
    try {
        body();
    } catch (const Error& raised) {
        error = raised;
    }
    const char* wanted = error_code_name(code);
    require(error.has_value(), fmt::format("rank {}, {}: no {}", rank, when, wanted));
    const std::string text = error->what();
    require(error->code() == code,
            fmt::format("rank {}, {}: not {}, but {}", rank, when, wanted, text));
    for (const auto& part : parts) {
        require(text.find(part) != std::string::npos,
                fmt::format("rank {}, {}: '{}' is missing in: {}", rank, when, part, text));
    }
}

void work_on(Member& me, const std::vector<int>& lost) {
    const GroupReport report = me.runtime.exclude(lost);
    require(report.records.size() == static_cast<std::size_t>(me.world.ranks), "records");
    RehearsalOptions options;
    options.excluded = lost;
    Rehearsal rest(me.exchange, me.table, options);
    for (int i = 0; i < 2; ++i) {
        const std::string difference = rest.step(CountMode::host, me.stream);
        require(difference.empty(),
                fmt::format("rank {} without {}: {}", me.rank, format_ranks(lost), difference));
    }
    const Received received = me.exchange.received(rest.routing());
    StepCounts counts{};
    detail::device_copy(&counts, received.step, sizeof counts, me.rank);
    require(received.partial && counts.partial == 1, "not partial");
    const auto tokens =
        static_cast<std::size_t>(me.table.ranks[static_cast<std::size_t>(me.rank)].token_count);
    std::vector<std::uint32_t> dropped(tokens);
    if (tokens > 0) {
        detail::device_copy(dropped.data(), rest.routing().view().dropped, tokens * 4, me.rank);
    }
    for (std::size_t t = 0; t < tokens; ++t) {
        require(dropped[t] == dropped_choices(me, static_cast<int>(t), lost),
                fmt::format("rank {} token {}: dropped {:#x}", me.rank, t, dropped[t]));
    }
    me.runtime.barrier(me.stream, 2);
    me.runtime.synchronize(me.stream);
    me.fails(ErrorCode::not_supported, {"excluded"}, "a new Exchange",
             [&] { (void)me.runtime.create_exchange(me.exchange.plan().config); });
}

emu::SimReport run_world(const World& world, const std::function<void(Member&)>& body) {
    Scenario scenario = small_scenario(world.ranks, world.team,
                                       world.team == 0 ? emu::GinMode::off : world.gin, world.seed);
    scenario.sim.faults = world.faults;
    scenario.config.layout = world.layout;
    scenario.config.sync = world.sync;
    scenario.config.mode = world.mode;
    scenario.config.pre_sum = world.pre_sum;
    if (world.mode == ExchangeMode::hybrid) scenario.config.publish_rows = 2;
    if (world.sync == Sync::fifo) {
        scenario.config.chunks.nvl_recv = 3;
        if (world.team > 0) scenario.config.dispatch_threads = 96;
    }
    scenario.config.hidden = 32;
    GeneratorOptions options = routing_options(scenario);
    if (world.sender >= 0) {
        for (int rank = 0; rank < world.ranks; ++rank)
            if (rank != world.sender) options.empty_ranks.push_back(rank);
    }
    RoutingTable table = generate_routing(options);
    for (RankRouting& rank : table.ranks) {
        const std::size_t count = std::min(world.weights.size(), rank.weights.size());
        std::copy_n(world.weights.begin(), count, rank.weights.begin());
    }
    const auto live = [&](int rank) {
        RuntimeConfig runtime_config;
        runtime_config.deadline_ns = kDeadlineNs;
        runtime_config.first_step = world.first_step;
        if (world.events) runtime_config.event_ring = RuntimeConfig::EventRing::on;
        auto runtime = Runtime::create(make_sim_bootstrap(rank), runtime_config);
        auto exchange = runtime->create_exchange(scenario.config);
        const Stream stream = Stream::create(rank);
        {
            RehearsalOptions rehearsal_options;
            rehearsal_options.access = world.access;
            if (world.impatient >= 0 && rank != world.impatient)
                rehearsal_options.deadline_ns = kPatienceNs;
            Rehearsal rehearsal(*exchange, table, rehearsal_options);
            Member member{world, table, rank, *runtime, *exchange, rehearsal, stream.get()};
            body(member);
        }
        exchange->close();
        runtime->close();
    };
    return emu::simulate(scenario.sim, [&](int rank) {
        try {
            live(rank);
        } catch (const Error&) {
            // A stopped rank is unwound when the others are done, in the middle of some call.
            if (rank != world.faults.stop_rank) throw;
        }
    });
}

}  // namespace gimlet::test

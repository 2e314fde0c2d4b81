// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/exchange_member.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "host/cuda/stream.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kDeadlineNs = 20'000'000;

}  // namespace

std::string text_of(const World& world) {
    return fmt::format("ranks {} team {} gin {} {} {} seed {} stop {} at {} first step {}",
                       world.ranks, world.team, static_cast<int>(world.gin), name_of(world.layout),
                       name_of(world.sync), world.seed, world.faults.stop_rank,
                       world.faults.stop_at_step, world.first_step);
}

const std::vector<World>& worlds() {
    static const std::vector<World> all = [] {
        std::vector<World> out(4);
        out[0].ranks = 3;
        out[1].team = 2;
        out[1].layout = Layout::expert_major;
        out[2].ranks = 3;
        out[2].team = 1;
        out[2].gin = emu::GinMode::proxy;
        out[3].ranks = 3;
        out[3].sync = Sync::fifo;
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

emu::SimReport run_world(const World& world, const std::function<void(Member&)>& body) {
    Scenario scenario = small_scenario(world.ranks, world.team,
                                       world.team == 0 ? emu::GinMode::off : world.gin, world.seed);
    scenario.sim.faults = world.faults;
    scenario.config.layout = world.layout;
    scenario.config.sync = world.sync;
    scenario.config.mode = world.mode;
    if (world.mode == ExchangeMode::hybrid) scenario.config.publish_rows = 2;
    if (world.sync == Sync::fifo) scenario.config.chunks.nvl_recv = 3;
    scenario.config.hidden = 32;
    GeneratorOptions options = scenario.routing;
    options.rank_count = world.ranks;
    options.token_count = scenario.config.max_tokens;
    options.expert_count = scenario.config.expert_count;
    options.topk = scenario.config.topk;
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

// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/scenarios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <stdexcept>

#include "host/base/error.hpp"
#include "host/emulator/engine.hpp"
#include "runtime/sim/channel_scenarios.hpp"
#include "runtime/sim/exchange_world.hpp"
#include "runtime/sim/primitives_meeting.hpp"
#include "runtime/sim/primitives_puts.hpp"
#include "runtime/sim/primitives_world.hpp"
#include "runtime/sim/refusals.hpp"

namespace gimlet::sim {
namespace {

/// Virtual, so it costs nothing; long, because host calls measure the same span in real time, and a
/// busy machine must not decide a run.
constexpr std::uint64_t kDeadlineNs = 1'000'000'000'000;
constexpr std::uint64_t kStepLimit = 400'000'000;

/// What the seed decides beside the schedule: sizes and kinds.
class Draw {
  public:
    Draw(const SimCase& which, std::uint64_t salt)
        : rng_(which.seed * 0x2545f4914f6cdd1dull + salt) {}
    int between(int low, int high) {
        return low + static_cast<int>(rng_.below(static_cast<unsigned>(high - low + 1)));
    }
    bool one_in(int n) { return between(1, n) == 1; }
    template <typename T>
    T any_of(std::initializer_list<T> values) {
        return *(values.begin() + between(0, static_cast<int>(values.size()) - 1));
    }

  private:
    emu::Rng rng_;
};

emu::SimOptions options_of(const SimCase& which, int ranks, int team, emu::GinMode gin) {
    check_plan_ranks(which.plan, ranks);
    emu::SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = team;
    options.gin = gin;
    options.seed = which.seed;
    options.sm_count = 4;
    options.step_limit = kStepLimit;
    options.schedule = which.plan.schedule.value_or(static_cast<emu::Schedule>(which.seed % 3));
    if (which.plan.queue_depth) options.gin_queue_depth = *which.plan.queue_depth;
    options.faults = which.plan.faults;
    options.faults.wait_until_armed = true;
    options.memory = which.plan.memory;
    return options;
}

emu::GinMode any_gin(Draw& draw) {
    return draw.any_of({emu::GinMode::gdaki, emu::GinMode::gdaki, emu::GinMode::proxy});
}

/// A divisor of `ranks`, or 0 for all of them.
int any_team(Draw& draw, int ranks) {
    const int team = draw.any_of({0, 1, 2, 3});
    return team > 0 && ranks % team == 0 ? team : 0;
}

SimResult verdict(const MeetingOutcome& outcome, std::string description) {
    SimResult result;
    result.report = outcome.report;
    result.description = std::move(description);
    // What was read after a wait that had failed says little.
    if (!outcome.message.empty()) {
        result.fault = outcome.message;
    } else if (outcome.failures > 0) {
        result.fault =
            fmt::format("{} threads were told of a failure that is none", outcome.failures);
        for (const DeviceError& error : outcome.errors) {
            if (error.state != kDeviceErrorFree) result.fault += "; " + text_of(error);
        }
    } else if (outcome.mismatches > 0) {
        result.fault = fmt::format("{} words are not what their sender wrote", outcome.mismatches);
    }
    result.good = result.fault.empty();
    return result;
}

// --- barriers

struct Place {
    int ranks;
    int team;
};

MeetingCase base_meeting(Draw& draw, Meeting meeting) {
    MeetingCase out;
    out.meeting = meeting;
    out.rounds = draw.between(3, 6);
    out.threads = 32 * draw.between(1, 2);
    out.deadline_ns = kDeadlineNs;
    return out;
}

SimResult run_meeting_case(const SimCase& which, emu::Tracer* tracer, const Place& place,
                           emu::GinMode gin, const MeetingCase& meeting) {
    emu::SimOptions options = options_of(which, place.ranks, place.team, gin);
    options.tracer = tracer;
    return verdict(run_meeting(options, meeting), text_of(options) + ", " + text_of(meeting));
}

SimResult lsa_barrier(const SimCase& which, emu::Tracer* tracer, Meeting kind) {
    Draw draw(which, 1);
    const int ranks = which.sizes.ranks.value_or(draw.between(2, 6));
    MeetingCase meeting = base_meeting(draw, kind);
    meeting.store = draw.any_of({StoreKind::plain, StoreKind::bulk});
    meeting.start_near_wrap = which.plan.faults.near_wrap_counters || draw.one_in(4);
    return run_meeting_case(which, tracer, {ranks, ranks}, emu::GinMode::off, meeting);
}

SimResult gin_barrier(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 2);
    const int ranks = which.sizes.ranks.value_or(draw.between(2, 6));
    const int team = which.sizes.team.value_or(any_team(draw, ranks));
    MeetingCase meeting = base_meeting(draw, Meeting::gin);
    meeting.gin_team =
        draw.any_of({GinTeamChoice::world, GinTeamChoice::world_minus_lsa, GinTeamChoice::rail});
    meeting.first_context = draw.between(0, 1);
    meeting.contexts = draw.between(1, 3);
    meeting.start_near_wrap = !which.plan.faults.near_wrap_counters && draw.one_in(4);
    return run_meeting_case(which, tracer, {ranks, team}, any_gin(draw), meeting);
}

SimResult gpu_barrier(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 3);
    const int ranks = which.sizes.ranks.value_or(draw.any_of({2, 3, 4, 4, 6}));
    const int team = which.sizes.team.value_or(any_team(draw, ranks));
    MeetingCase meeting = base_meeting(draw, Meeting::gpu);
    meeting.teams = draw.any_of({TeamsChoice::world, TeamsChoice::world, TeamsChoice::scale_up,
                                 TeamsChoice::rail, TeamsChoice::scale_up_and_rail});
    meeting.store = draw.any_of({StoreKind::plain, StoreKind::bulk});
    meeting.blocks = draw.between(1, 4);
    meeting.contexts = draw.between(1, 2);
    return run_meeting_case(which, tracer, {ranks, team}, any_gin(draw), meeting);
}

SimResult grid_barrier(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 4);
    GridCase grid;
    grid.blocks = draw.between(2, 6);
    grid.threads = 32 * draw.between(1, 2);
    grid.rounds = draw.between(3, 8);
    grid.start = draw.one_in(2) ? 0x80000000u : 0u;
    grid.deadline_ns = kDeadlineNs;
    emu::SimOptions options = options_of(which, 1, 0, emu::GinMode::off);
    options.tracer = tracer;
    return verdict(run_grid(options, grid), fmt::format("grid of {} x {}, {} rounds", grid.blocks,
                                                        grid.threads, grid.rounds));
}

// --- a rank that does not come

std::string told_and_recovered(const MeetingOutcome& outcome, const MeetingCase& meeting,
                               int rest_rank) {
    if (!outcome.message.empty()) return outcome.message;
    if (outcome.mismatches > 0) return fmt::format("{} words differ", outcome.mismatches);
    const auto threads = static_cast<std::uint64_t>(meeting.blocks * meeting.threads);
    for (std::size_t rank = 0; rank < outcome.failures_of_rank.size(); ++rank) {
        const bool absent = static_cast<int>(rank) == meeting.absent_rank;
        const std::uint64_t told = outcome.failures_of_rank[rank];
        if (told != (absent ? 0 : threads))
            return fmt::format("rank {}: {} of {} threads were told", rank, told, threads);
        if (outcome.late_failures_of_rank[rank] != 0)
            return fmt::format("rank {}: the barrier after that failed too", rank);
        const DeviceError& error = outcome.errors[rank];
        if (absent) continue;
        if (error.state != kDeviceErrorComplete || error.fault != DeviceFault::timed_out)
            return fmt::format("rank {}: no record of a time-out, but {}", rank, text_of(error));
        if (error.rank != static_cast<int>(rank) || error.epoch != 1)
            return fmt::format("rank {}: the record is wrong: {}", rank, text_of(error));
        if (error.peer >= 0 && error.peer != meeting.absent_rank && error.peer != rest_rank)
            return fmt::format("rank {}: the record names rank {} instead of {}", rank, error.peer,
                               meeting.absent_rank);
        if (error.elapsed_ns < meeting.deadline_ns || error.elapsed_ns > 64 * meeting.deadline_ns)
            return fmt::format("rank {}: gave up after {} ns, the deadline is {} ns", rank,
                               error.elapsed_ns, meeting.deadline_ns);
    }
    return {};
}

SimResult absent_rank(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 5);
    MeetingCase meeting;
    meeting.meeting = draw.any_of({Meeting::nvlink, Meeting::block, Meeting::gin, Meeting::gpu});
    meeting.rounds = 1;
    meeting.threads = 32;
    if (meeting.meeting == Meeting::gpu) meeting.blocks = draw.between(1, 3);
    // Longer than the network may take over a signal and what is before it.
    meeting.deadline_ns = 2'000'000;
    const bool gin = meeting.meeting == Meeting::gin;
    const bool one_team = meeting.meeting == Meeting::nvlink || meeting.meeting == Meeting::block;
    const int ranks = gin ? 3 : 4;
    meeting.absent_rank = draw.between(0, ranks - 1);
    meeting.catch_up = true;
    // Deadlines are the subject: nothing else may hold anybody up.
    SimCase calm = which;
    calm.plan.faults = emu::FaultPlan{};
    emu::SimOptions options = options_of(calm, ranks,
                                         gin        ? 1
                                         : one_team ? ranks
                                                    : 2,
                                         one_team ? emu::GinMode::off : any_gin(draw));
    options.tracer = tracer;
    // Longer than a wait for a peer, shorter than one for a block: perhaps the others of its kernel
    // have given up when it looks.
    emu::FaultPlan& faults = options.faults;
    if (meeting.blocks > 1) {
        faults.rest_rank = (meeting.absent_rank + draw.between(1, ranks - 1)) % ranks;
        faults.rest_block = static_cast<unsigned>(draw.between(0, meeting.blocks - 1));
        faults.rest_from_ns = static_cast<std::uint64_t>(draw.between(0, 8'000));
        faults.rest_ns = meeting.deadline_ns * 3 / 2;
    }
    const MeetingOutcome outcome = run_meeting(options, meeting);
    SimResult result;
    result.report = outcome.report;
    result.description = text_of(options) + ", " + text_of(meeting) +
                         fmt::format(", rank {} absent", meeting.absent_rank);
    if (faults.rest_rank >= 0)
        result.description +=
            fmt::format(", rank {} block {} rests", faults.rest_rank, faults.rest_block);
    result.fault = told_and_recovered(outcome, meeting, faults.rest_rank);
    result.good = result.fault.empty();
    return result;
}

/// One wait of a step expires. Others that would be patient for much longer end soon after.
SimResult waits(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 12);
    SimCase calm = which;
    calm.plan.faults = emu::FaultPlan{};
    emu::SimOptions options = options_of(calm, 1, 0, emu::GinMode::off);
    options.tracer = tracer;
    FailedStep step;
    step.blocks = draw.between(1, 3);
    step.threads = 32 * draw.between(1, 2);
    step.impatient = draw.between(0, step.blocks * step.threads - 1);
    step.deadline_ns = 20'000;
    const FailedStepOutcome outcome = run_failed_step(options, step);
    SimResult result;
    result.report = outcome.report;
    result.description = fmt::format("{} x {} threads, thread {} gives up first", step.blocks,
                                     step.threads, step.impatient);
    result.fault = outcome.fault;
    result.good = result.fault.empty();
    return result;
}

// --- puts

SimResult puts(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 6);
    PutCase put;
    put.put_count = draw.any_of({0, 1, 2, 5, 15, 16, 17, 40});
    put.rounds = draw.between(2, 5);
    put.threads = 32 * draw.between(1, 2);
    put.context = draw.between(0, 2);
    put.deadline_ns = kDeadlineNs;
    const int ranks = which.sizes.ranks.value_or(draw.between(2, 5));
    emu::SimOptions options = options_of(which, ranks, 1, any_gin(draw));
    // Deeper than the puts that a batch leaves unsent, by little or by much.
    if (!which.plan.queue_depth) options.gin_queue_depth = draw.any_of({20, 64});
    options.tracer = tracer;
    return verdict(run_puts(options, put),
                   fmt::format("{}, {} puts a batch on context {}", text_of(options), put.put_count,
                               put.context));
}

SimResult follow(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 7);
    const int ranks = which.sizes.ranks.value_or(draw.between(2, 5));
    emu::SimOptions options = options_of(which, ranks, 1, any_gin(draw));
    options.tracer = tracer;
    return verdict(run_follow(options, draw.between(3, 9)),
                   text_of(options) + ", signals followed");
}

// --- many ranks, little work

/// Worlds that are large for a simulation; --ranks makes them larger.
Place many_ranks(const SimCase& which) {
    const int ranks = which.sizes.ranks.value_or(32);
    return {ranks, which.sizes.team.value_or(ranks % 8 == 0 ? 8 : 1)};
}

SimResult many_barriers(const SimCase& which, emu::Tracer* tracer) {
    MeetingCase meeting;
    meeting.meeting = Meeting::gpu;
    meeting.rounds = 2;
    meeting.deadline_ns = kDeadlineNs;
    const Place place = many_ranks(which);
    emu::SimOptions options = options_of(which, place.ranks, place.team, emu::GinMode::gdaki);
    options.fill_fresh_memory = false;  // each rank has room for the counts of all, and no use
    options.tracer = tracer;
    return verdict(run_meeting(options, meeting), text_of(options) + ", " + text_of(meeting));
}

/// Each rank tells every other something, as the count exchange does: a row and a signal.
SimResult many_notify(const SimCase& which, emu::Tracer* tracer) {
    PutCase put;
    put.put_count = 1;
    put.rounds = 2;
    put.threads = 32;
    put.flush = PutFlush::all_batches;
    put.deadline_ns = kDeadlineNs;
    emu::SimOptions options = options_of(which, many_ranks(which).ranks, 1, emu::GinMode::gdaki);
    options.fill_fresh_memory = false;
    options.tracer = tracer;
    return verdict(run_puts(options, put), text_of(options) + ", a row to everybody");
}

// --- dispatch and combine

SimResult run_exchange(const SimCase& which, emu::Tracer* tracer, Scenario scenario) {
    scenario.sim.tracer = tracer;
    scenario.config.deadline_ns = kDeadlineNs;
    if (which.plan.breaks_something()) scenario.expectation = Expectation::clean_failure;
    SimResult result;
    result.description = describe(scenario);
    try {
        result.report = run_scenario(scenario);
        result.good = true;
    } catch (const emu::SimFailure& failure) {
        result.fault = failure.what();
        result.report = failure.report();
    }
    return result;
}

void take_sizes(const SimCase& which, Scenario* scenario) {
    const SimSizes& sizes = which.sizes;
    MoeConfig& config = scenario->config;
    if (sizes.tokens) config.max_tokens = *sizes.tokens;
    if (sizes.hidden) config.hidden = *sizes.hidden;
    if (sizes.topk) config.topk = *sizes.topk;
    if (sizes.experts) config.expert_count = *sizes.experts;
}

/// The yardstick: four ranks, eight tokens each.
SimResult four_ranks(const SimCase& which, emu::Tracer* tracer) {
    const int ranks = which.sizes.ranks.value_or(4);
    const int team = which.sizes.team.value_or(2);
    Scenario scenario = small_scenario(ranks, team, emu::GinMode::gdaki, which.seed);
    scenario.sim = options_of(which, ranks, team, emu::GinMode::gdaki);
    scenario.sim.sm_count = 2;
    scenario.config.max_tokens = 8;
    take_sizes(which, &scenario);
    return run_exchange(which, tracer, scenario);
}

/// A token each: what grows with the ranks is the exchange of counts.
SimResult many_dispatch(const SimCase& which, emu::Tracer* tracer) {
    const Place place = many_ranks(which);
    Scenario scenario = small_scenario(place.ranks, place.team, emu::GinMode::gdaki, which.seed);
    scenario.sim = options_of(which, place.ranks, place.team, emu::GinMode::gdaki);
    scenario.sim.sm_count = 2;
    MoeConfig& config = scenario.config;
    config.max_tokens = 1;
    config.hidden = 8;
    config.topk = 2;
    config.expert_count = place.ranks;
    config.sm_budget = 1;
    config.combine_threads = 64;
    config.gin_context_count = place.team < place.ranks ? 1 : 0;
    take_sizes(which, &scenario);
    return run_exchange(which, tracer, scenario);
}

void draw_routing(Draw& draw, Scenario* scenario) {
    GeneratorOptions& routing = scenario->routing;
    routing.kind = draw.any_of({RoutingKind::uniform, RoutingKind::uniform, RoutingKind::hot});
    if (draw.one_in(2)) routing.spread = TokenSpread::random;
    if (draw.one_in(3)) routing.masked_choice_fraction = 0.3;
    if (draw.one_in(4)) routing.masked_row_fraction = 0.3;
    if (draw.one_in(5)) routing.empty_ranks = {0};
}

/// fifo: rings from one slot on, and a kernel that uses the rows beside the dispatch.
void draw_rings(Draw& draw, Scenario* scenario) {
    MoeConfig& config = scenario->config;
    config.sync = Sync::fifo;
    config.layout = draw.any_of({Layout::rank_major, Layout::expert_major});
    config.dispatch_threads = 32 * draw.between(2, 6);
    config.combine_threads = 32 * draw.any_of({2, 3, 4});
    const int least = config.layout == Layout::rank_major ? 1 : config.topk;
    config.chunks.nvl_recv = least + draw.any_of({0, 0, 1, 2, 5, 16});
    config.chunks.nvl_send = draw.between(1, config.chunks.nvl_recv);
    config.ready_rows = draw.any_of({1, 3, 8, 64});
    scenario->consume = draw.one_in(2);
    // Through a ring of one slot every row waits for the other end, which a plan may slow down.
    scenario->sim.step_limit = 4 * kStepLimit;
}

/// fifo between teams: the rings of the rail, too.
void draw_rail_rings(Draw& draw, Scenario* scenario) {
    MoeConfig& config = scenario->config;
    config.dispatch_threads += 32;  // a third warp for each channel
    config.pre_sum = draw.any_of({PreSum::on, PreSum::off});
    const bool sums = config.layout == Layout::rank_major && config.pre_sum == PreSum::on;
    config.chunks.rdma_recv = (sums ? 1 : config.topk) + draw.any_of({0, 0, 1, 4});
}

/// Size of LSA teams of which there are at least two, all equal.
int several_teams(Draw& draw, int ranks) {
    int team = draw.between(1, ranks / 2);
    while (ranks % team != 0) --team;
    return team;
}

/// Everything but the world: sizes, steps and inputs.
void draw_exchange(const SimCase& which, Draw& draw, Layout layout, Sync sync, Scenario* out) {
    const bool fifo = sync == Sync::fifo;
    const bool between = fifo && out->sim.lsa_team_size > 0;
    Scenario& scenario = *out;
    MoeConfig& config = scenario.config;
    config.layout = layout;
    config.expert_count = draw.between(4, 11);
    config.topk = draw.between(1, 4);
    config.hidden = draw.any_of({8, 64, 64, 136});
    config.max_tokens = draw.one_in(3) ? draw.between(13, 40) : draw.between(1, 12);
    config.sm_budget = draw.between(1, 3);
    config.dispatch_threads = 32 * draw.between(2, 4);
    config.combine_threads = 32 * draw.between(2, 3);
    config.chunk_rows = draw.between(1, 4);
    if (config.gin_context_count > 0) config.gin_context_count = draw.between(1, 3);
    if (fifo || layout == Layout::expert_major) {
        config.expert_alignment = draw.any_of({1, 1, 4});
        config.pad_fill = draw.any_of({PadFill::none, PadFill::zero});
    }
    if (draw.one_in(6)) config.hidden = 1032;  // several pieces a row
    if (fifo) draw_rings(draw, &scenario);
    if (between) draw_rail_rings(draw, &scenario);
    if (config.layout == Layout::rank_major) config.expert_alignment = 1;
    const bool near_wrap = which.plan.faults.near_wrap_counters;
    scenario.steps.clear();
    const int steps = near_wrap ? 6 : draw.between(2, 4);
    for (int i = 0; i < steps; ++i)
        // A step number whose low half is 0 looks like memory that was never written: near the
        // wrap, both buffers' count words are written first.
        scenario.steps.push_back(i > (near_wrap ? 3 : 0) && draw.one_in(3) ? StepKind::cached
                                                                           : StepKind::fresh);
    scenario.index_type = draw.any_of({IndexType::int32, IndexType::int64});
    scenario.weights = !draw.one_in(4);
    scenario.bias = draw.one_in(3);
    scenario.host_counts = !near_wrap && draw.one_in(3);
    scenario.think_ns = draw.any_of({0, 5'000, 50'000});
    draw_routing(draw, &scenario);
    // Each call's own flush and count exchange must do without those of the other kind.
    scenario.combines = draw.any_of({0, 1, 1, 1, 1, 3});
    take_sizes(which, &scenario);
}

SimResult exchange(const SimCase& which, emu::Tracer* tracer, Layout layout,
                   Sync sync = Sync::barrier) {
    const bool fifo = sync == Sync::fifo;
    Draw draw(which, fifo ? 11 : layout == Layout::rank_major ? 8 : 9);
    const int ranks = which.sizes.ranks.value_or(draw.any_of({2, 3, 4, 4, 6}));
    const int team = fifo ? 0 : which.sizes.team.value_or(any_team(draw, ranks));
    const emu::GinMode gin = fifo ? emu::GinMode::off : any_gin(draw);
    Scenario scenario = small_scenario(ranks, team, gin, which.seed);
    scenario.sim = options_of(which, ranks, team, gin);
    draw_exchange(which, draw, layout, sync, &scenario);
    return run_exchange(which, tracer, scenario);
}

/// Rows through rings, within teams and over the rail.
SimResult stream_teams(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 12);
    const int ranks = which.sizes.ranks.value_or(draw.any_of({2, 3, 4, 4, 6}));
    const int team = which.sizes.team.value_or(several_teams(draw, ranks));
    const emu::GinMode gin = any_gin(draw);
    Scenario scenario = small_scenario(ranks, team, gin, which.seed);
    scenario.sim = options_of(which, ranks, team, gin);
    draw_exchange(which, draw, Layout::rank_major, Sync::fifo, &scenario);
    return run_exchange(which, tracer, scenario);
}

/// Rows over the rail, once a team.
SimResult hybrid(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 13);
    const auto [drawn_ranks, drawn_team] =
        draw.any_of({Place{2, 1}, Place{4, 2}, Place{4, 2}, Place{6, 2}, Place{6, 3}, Place{4, 1}});
    const int ranks = which.sizes.ranks.value_or(drawn_ranks);
    const int team = which.sizes.team.value_or(drawn_team);
    const emu::GinMode gin = any_gin(draw);
    Scenario scenario = small_scenario(ranks, team, gin, which.seed);
    scenario.sim = options_of(which, ranks, team, gin);
    draw_exchange(which, draw, draw.any_of({Layout::rank_major, Layout::expert_major}),
                  Sync::barrier, &scenario);
    scenario.config.mode = ExchangeMode::hybrid;
    scenario.config.publish_rows = draw.any_of({1, 2, 3, 16});
    scenario.config.chunk_rows = 1;  // a channel may hold no more
    if (draw.one_in(4)) scenario.config.pre_sum = PreSum::off;
    return run_exchange(which, tracer, scenario);
}

/// One rank's input names an expert that does not exist: every rank stops at once, and says why.
SimResult refusal(const SimCase& which, emu::Tracer* tracer) {
    Draw draw(which, 10);
    const int ranks = draw.between(2, 5);
    SimCase calm = which;
    calm.plan.faults = emu::FaultPlan{};
    Scenario scenario = small_scenario(ranks, any_team(draw, ranks), any_gin(draw), which.seed);
    scenario.sim = options_of(calm, ranks, scenario.sim.lsa_team_size, scenario.sim.gin);
    scenario.sim.tracer = tracer;
    scenario.config.topk = 2;
    scenario.config.deadline_ns = kDeadlineNs;
    RefusalCase bad;
    bad.rank = draw.between(0, ranks - 1);
    bad.token = draw.between(0, 7);
    bad.kind = draw.any_of({RefusalCase::Kind::expert_too_high, RefusalCase::Kind::expert_below,
                            RefusalCase::Kind::expert_twice, RefusalCase::Kind::too_many_rows,
                            RefusalCase::Kind::no_output});
    if (draw.one_in(2)) {
        scenario.sim.faults.slow_rank = (bad.rank + 1) % ranks;
        scenario.sim.faults.slow_factor = 40;
    }
    SimResult result;
    result.description = describe(scenario) + fmt::format(", bad input on rank {}", bad.rank);
    try {
        result.report = run_refusal(scenario, bad);
        result.good = true;
    } catch (const emu::SimFailure& failure) {
        result.fault = failure.what();
        result.report = failure.report();
    }
    return result;
}

// --- channels

/// Old values and unordered accesses: what channels promise is order. Waits have no deadline: a
/// standstill ends with the emulator's table, and a leap of the virtual clock ends nothing.
emu::SimOptions channel_options(const SimCase& which, int ranks, int team, emu::GinMode gin,
                                emu::Tracer* tracer) {
    emu::SimOptions options = options_of(which, ranks, team, gin);
    options.memory.stale_loads = true;
    options.memory.find_races = true;
    options.tracer = tracer;
    return options;
}

SimResult flow(const SimCase& which, emu::Tracer* tracer, FifoLink link, FlowShape shape) {
    Draw draw(which, 11);
    FlowPlace place = draw_flow_place(which.seed, link, shape);
    if (which.sizes.ranks) place = {*which.sizes.ranks, link == FifoLink::lsa ? 0 : 1};
    const emu::GinMode gin = link == FifoLink::gin ? any_gin(draw) : emu::GinMode::off;
    const FlowCase flow = draw_flow(which.seed, link, shape, which.plan.faults.near_wrap_counters);
    const emu::SimOptions options = channel_options(which, place.ranks, place.team, gin, tracer);
    return verdict(run_flow(options, flow), text_of(options) + ", " + text_of(flow));
}

SimResult windowed(const SimCase& which, emu::Tracer* tracer) {
    const WindowCase window = draw_window(which.seed, which.plan.faults.near_wrap_counters);
    const int ranks = which.sizes.ranks.value_or(2);
    const emu::SimOptions options = channel_options(which, ranks, ranks, emu::GinMode::off, tracer);
    return verdict(run_window(options, window), text_of(options) + ", " + text_of(window));
}

SimResult pipeline(const SimCase& which, emu::Tracer* tracer) {
    const PipelineCase pipeline = draw_pipeline(which.seed);
    const emu::SimOptions options = channel_options(which, 1, 1, emu::GinMode::off, tracer);
    return verdict(run_pipeline(options, pipeline), text_of(options) + ", " + text_of(pipeline));
}

struct Entry {
    ScenarioInfo info;
    int fewest_ranks;  ///< whatever the seed; random plans name these
    bool takes_breaking_plans;
    std::function<SimResult(const SimCase&, emu::Tracer*)> run;
};

const std::vector<Entry>& entries() {
    static const std::vector<Entry> all = {
        {{"grid", "grid_barrier: the blocks of one kernel"}, 1, false, grid_barrier},
        {{"nvlink", "nvlink_barrier: rows stored to LSA peers"},
         2,
         false,
         [](const SimCase& c, emu::Tracer* t) { return lsa_barrier(c, t, Meeting::nvlink); }},
        {{"block", "block_barrier: rows stored to LSA peers"},
         2,
         false,
         [](const SimCase& c, emu::Tracer* t) { return lsa_barrier(c, t, Meeting::block); }},
        {{"gin", "gin_barrier: rows put to all, other teams, or the rail"}, 2, false, gin_barrier},
        {{"gpu", "gpu_barrier: whole kernels, LSA and GIN peers"}, 2, false, gpu_barrier},
        {{"absent", "a rank that does not come to a barrier"}, 2, false, absent_rank},
        {{"puts", "aggregated_put: batches with a signal, sources used again"}, 2, false, puts},
        {{"follow", "signal_shadow: signals in whatever portions they come"}, 2, false, follow},
        {{"fifo", "fifo over LSA: rows from each rank to the next"},
         2,
         false,
         [](const SimCase& c, emu::Tracer* t) {
             return flow(c, t, FifoLink::lsa, FlowShape::ring);
         }},
        {{"fifo-gin", "fifo over GIN: rows from each rank to the next"},
         2,
         false,
         [](const SimCase& c, emu::Tracer* t) {
             return flow(c, t, FifoLink::gin, FlowShape::ring);
         }},
        {{"fifo-chain", "fifo over LSA: send, forward, receive"},
         3,
         false,
         [](const SimCase& c, emu::Tracer* t) {
             return flow(c, t, FifoLink::lsa, FlowShape::chain);
         }},
        {{"fifo-chain-gin", "fifo over GIN: send, forward, receive"},
         3,
         false,
         [](const SimCase& c, emu::Tracer* t) {
             return flow(c, t, FifoLink::gin, FlowShape::chain);
         }},
        {{"windowed", "windowed_tail: several warps fill one fifo"}, 2, false, windowed},
        {{"pipeline", "pipeline: stages in shared memory between warps"}, 1, false, pipeline},
        {{"rank-major", "dispatch and combine, a row for each rank"},
         2,
         true,
         [](const SimCase& c, emu::Tracer* t) { return exchange(c, t, Layout::rank_major); }},
        {{"expert-major", "dispatch and combine, a row for each expert"},
         2,
         true,
         [](const SimCase& c, emu::Tracer* t) { return exchange(c, t, Layout::expert_major); }},
        {{"stream", "dispatch and combine through rings, rows used as they come"},
         2,
         true,
         [](const SimCase& c, emu::Tracer* t) {
             return exchange(c, t, Layout::rank_major, Sync::fifo);
         }},
        {{"hybrid", "dispatch and combine over rails, a copy for each team"}, 2, true, hybrid},
        {{"stream-teams", "through rings between LSA teams: relays, sums on the way home"},
         2,
         true,
         stream_teams},
        {{"waits", "one wait expires, the others of its step end with it"}, 1, false, waits},
        {{"many-barriers", "gpu_barrier of many ranks (--ranks)", true}, 32, false, many_barriers},
        {{"many-notify", "a row and a signal from each of many ranks to all (--ranks)", true},
         32,
         false,
         many_notify},
        {{"many-dispatch", "dispatch and combine of many ranks, a token each (--ranks)", true},
         32,
         false,
         many_dispatch},
        {{"refusal", "bad input on one rank: all stop and say why"}, 2, false, refusal},
        {{"four-ranks", "dispatch and combine, 4 ranks in 2 teams, 8 tokens each"},
         2,
         true,
         four_ranks},
    };
    return all;
}

const Entry& find_entry(const std::string& name) {
    std::vector<std::string> names;
    for (const Entry& entry : entries()) {
        if (name == entry.info.name) return entry;
        names.emplace_back(entry.info.name);
    }
    raise(ErrorCode::invalid_argument, kNoRank, "scenario '{}' is unknown; known are {}", name,
          fmt::join(names, ", "));
}

}  // namespace

const std::vector<ScenarioInfo>& scenario_list() {
    static const std::vector<ScenarioInfo> list = [] {
        std::vector<ScenarioInfo> out;
        for (const Entry& entry : entries()) out.push_back(entry.info);
        return out;
    }();
    return list;
}

SimPlan random_case_plan(const SimCase& which) {
    const Entry& entry = find_entry(which.scenario);
    SimPlan plan = random_plan(which.seed, which.sizes.ranks.value_or(entry.fewest_ranks));
    if (!entry.takes_breaking_plans) {
        plan.faults.stop_rank = -1;
        plan.faults.fail_put_rank = -1;
    }
    // All rows of a ring wait for the slowest rank, and rings may have one slot: more would be more
    // steps than a run may take.
    constexpr unsigned kSlowestReader = 6;
    if (which.scenario.rfind("stream", 0) == 0)
        plan.faults.slow_factor = std::min(plan.faults.slow_factor, kSlowestReader);
    return plan;
}

SimResult run_case(const SimCase& which, emu::Tracer* tracer) {
    const Entry& entry = find_entry(which.scenario);
    if (which.plan.breaks_something() && !entry.takes_breaking_plans) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "plan: stop_rank and fail_put: scenario '{}' has no use for a broken rank; try "
              "rank-major or expert-major",
              which.scenario);
    }
    return entry.run(which, tracer);
}

}  // namespace gimlet::sim

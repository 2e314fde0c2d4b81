// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/plan_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "host/base/error.hpp"
#include "host/emulator/engine.hpp"

namespace gimlet::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr emu::Schedule kSchedules[] = {emu::Schedule::uniform, emu::Schedule::priority,
                                        emu::Schedule::run_to_block};
constexpr std::uint64_t kStepNs = 2;
constexpr int kLargestRank = 1 << 20;
/// Of a random plan whose threads spin until they block.
constexpr double kSpinningDelayMax = 0.5;

template <typename... Args>
[[noreturn]] void refuse(const std::string& field, fmt::format_string<Args...> format,
                         Args&&... args) {
    raise(ErrorCode::invalid_argument, kNoRank, "plan: {}: {}", field,
          fmt::format(format, std::forward<Args>(args)...));
}

/// One JSON object of the plan; knows its own name for messages.
class Fields {
  public:
    Fields(const Json& object, std::string name, std::initializer_list<std::string_view> known)
        : object_(object), name_(std::move(name)) {
        if (!object.is_object())
            refuse(name_.empty() ? "top level" : name_, "{} must be an object", object.dump());
        for (const auto& [key, value] : object.items()) {
            if (std::find(known.begin(), known.end(), key) != known.end()) continue;
            refuse(full(key), "there is no such field; known are {}", fmt::join(known, ", "));
        }
    }

    bool has(const std::string& key) const { return object_.contains(key); }
    const Json& at(const std::string& key) const { return object_.at(key); }
    std::string full(const std::string& key) const {
        return name_.empty() ? key : name_ + "." + key;
    }

    std::uint64_t whole(const std::string& key, std::uint64_t low, std::uint64_t high) const {
        if (!has(key)) refuse(full(key), "is missing; it must be a whole number");
        const Json& value = object_.at(key);
        if (!value.is_number_unsigned() || value.get<std::uint64_t>() < low ||
            value.get<std::uint64_t>() > high) {
            refuse(full(key), "{} must be a whole number from {} to {}", value.dump(), low, high);
        }
        return value.get<std::uint64_t>();
    }

    int rank() const { return static_cast<int>(whole("rank", 0, kLargestRank)); }

    double chance(const std::string& key) const {
        const Json& value = object_.at(key);
        if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1))
            refuse(full(key), "{} must be a number from 0 to 1", value.dump());
        return value.get<double>();
    }

    bool flag(const std::string& key) const {
        const Json& value = object_.at(key);
        if (!value.is_boolean()) refuse(full(key), "{} must be true or false", value.dump());
        return value.get<bool>();
    }

    std::uint64_t time_ns(const std::string& key) const {
        if (!has(key)) refuse(full(key), "is missing; write a time such as \"20us\"");
        const Json& value = object_.at(key);
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (!value.is_string())
            refuse(full(key), "{} has no unit; write a time such as \"{}us\"", text, text);
        double number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
        double ns = -1;
        if (unit == "ns") ns = number;
        if (unit == "us") ns = number * 1e3;
        if (unit == "ms") ns = number * 1e6;
        if (unit == "s") ns = number * 1e9;
        if (error != std::errc{} || !(ns >= 0 && ns <= 1e13)) {
            refuse(full(key),
                   "\"{}\" must be a number from 0 and a unit, ns, us, ms or s, at most "
                   "10000s",
                   text);
        }
        return static_cast<std::uint64_t>(std::llround(ns));
    }

  private:
    const Json& object_;
    std::string name_;
};

void read_groups(const Fields& top, SimPlan* plan) {
    emu::FaultPlan& faults = plan->faults;
    if (top.has("delay")) {
        const Fields delay(top.at("delay"), "delay", {"chance", "min", "mean"});
        if (delay.has("chance")) faults.delay_chance = delay.chance("chance");
        if (faults.delay_chance > 0.99)
            refuse("delay.chance", "{} would stop everything; 0.99 is the most",
                   faults.delay_chance);
        if (delay.has("min")) faults.delay_min_ns = delay.time_ns("min");
        if (delay.has("mean")) faults.delay_mean_ns = delay.time_ns("mean");
        if (delay.has("mean") && faults.delay_mean_ns < faults.delay_min_ns) {
            refuse("delay.mean", "{} ns is below delay.min, {} ns", faults.delay_mean_ns,
                   faults.delay_min_ns);
        }
    }
    if (top.has("stall_block")) {
        const Fields stall(top.at("stall_block"), "stall_block", {"rank", "block", "time"});
        faults.stall_rank = stall.rank();
        faults.stall_block = static_cast<unsigned>(stall.whole("block", 0, kLargestRank));
        faults.stall_ns = stall.time_ns("time");
    }
    if (top.has("rest_block")) {
        const Fields rest(top.at("rest_block"), "rest_block", {"rank", "block", "from", "time"});
        faults.rest_rank = rest.rank();
        faults.rest_block = static_cast<unsigned>(rest.whole("block", 0, kLargestRank));
        faults.rest_from_ns = rest.time_ns("from");
        faults.rest_ns = rest.time_ns("time");
    }
    if (top.has("slow")) {
        const Fields slow(top.at("slow"), "slow", {"rank", "block", "factor"});
        faults.slow_rank = slow.rank();
        if (slow.has("block"))
            faults.slow_block = static_cast<int>(slow.whole("block", 0, kLargestRank));
        faults.slow_factor = static_cast<unsigned>(slow.whole("factor", 1, 1000));
    }
    if (top.has("late_rank")) {
        const Fields late(top.at("late_rank"), "late_rank", {"rank", "time", "steps"});
        faults.late_rank = late.rank();
        if (late.has("steps") == late.has("time"))
            refuse("late_rank", "give either \"time\" or \"steps\"");
        faults.late_ns =
            late.has("time") ? late.time_ns("time") : kStepNs * late.whole("steps", 0, 1ull << 40);
    }
    if (top.has("stop_rank")) {
        const Fields stop(top.at("stop_rank"), "stop_rank", {"rank", "step"});
        faults.stop_rank = stop.rank();
        faults.stop_at_step = stop.whole("step", 0, 1ull << 40);
    }
    if (top.has("fail_put")) {
        const Fields fail(top.at("fail_put"), "fail_put", {"rank", "number"});
        faults.fail_put_rank = fail.rank();
        faults.fail_put_number = fail.whole("number", 1, 1ull << 40);
    }
}

std::string time_text(std::uint64_t ns) {
    return fmt::format("{}ns", ns);
}

double round_chance(std::uint64_t draw) {
    return static_cast<double>(draw) / 100.0;
}

}  // namespace

const char* name_of(emu::Schedule schedule) {
    switch (schedule) {
        case emu::Schedule::uniform: return "uniform";
        case emu::Schedule::priority: return "priority";
        case emu::Schedule::run_to_block: return "run_to_block";
    }
    return "?";
}

SimPlan parse_plan(const std::string& json_text) {
    Json json;
    try {
        json = Json::parse(json_text);
    } catch (const Json::exception& error) {  // numbers too large are no parse_error
        raise(ErrorCode::invalid_argument, kNoRank, "plan: not JSON: {}", error.what());
    }
    const Fields top(json, "",
                     {"schedule", "queue_depth", "reorder", "split", "duplicate_doorbell", "delay",
                      "stall_block", "rest_block", "slow", "late_rank", "stop_rank", "fail_put",
                      "near_wrap", "late_completion", "late_arrival", "memory"});
    SimPlan plan;
    if (top.has("schedule")) {
        const Json& value = top.at("schedule");
        for (const emu::Schedule schedule : kSchedules) {
            if (value == name_of(schedule)) plan.schedule = schedule;
        }
        if (!plan.schedule)
            refuse("schedule", "{} must be uniform, priority or run_to_block", value.dump());
    }
    if (top.has("queue_depth"))
        plan.queue_depth = static_cast<int>(top.whole("queue_depth", 4, 1 << 20));
    if (top.has("reorder")) plan.faults.reorder_chance = top.chance("reorder");
    if (top.has("split")) plan.faults.split_chance = top.chance("split");
    if (top.has("duplicate_doorbell"))
        plan.faults.duplicate_doorbell_chance = top.chance("duplicate_doorbell");
    if (top.has("late_completion"))
        plan.faults.late_completion_chance = top.chance("late_completion");
    if (top.has("late_arrival")) plan.faults.late_arrival_chance = top.chance("late_arrival");
    if (top.has("memory")) {
        const Fields memory(top.at("memory"), "memory", {"stale_loads", "find_races"});
        if (memory.has("stale_loads")) plan.memory.stale_loads = memory.flag("stale_loads");
        if (memory.has("find_races")) plan.memory.find_races = memory.flag("find_races");
    }
    if (top.has("near_wrap")) {
        plan.faults.near_wrap_counters = top.flag("near_wrap");
    }
    read_groups(top, &plan);
    return plan;
}

SimPlan read_plan(const std::string& path) {
    std::ifstream file(path);
    if (!file)
        raise(ErrorCode::invalid_argument, kNoRank, "{}: cannot be read; --plan names a JSON file",
              path);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    try {
        return parse_plan(text);
    } catch (const Error& error) {
        throw Error(error.code(), kNoRank, path + ": " + error.message());
    }
}

SimPlan random_plan(std::uint64_t seed, int ranks) {
    emu::Rng rng(seed * 0x9e3779b97f4a7c15ull + 77);
    SimPlan plan;
    emu::FaultPlan& faults = plan.faults;
    const auto rank = [&] { return static_cast<int>(rng.below(static_cast<unsigned>(ranks))); };
    plan.schedule = kSchedules[rng.below(3)];
    if (rng.below(3) == 0) faults.reorder_chance = round_chance(rng.below(90));
    if (rng.below(3) == 0) faults.split_chance = round_chance(rng.below(100));
    if (rng.below(4) == 0) faults.duplicate_doorbell_chance = round_chance(1 + rng.below(100));
    if (rng.below(4) == 0) faults.delay_chance = round_chance(1 + rng.below(90));
    // A thread that spins until it blocks spins through every turn that the network skips: that may
    // be more steps than a run has.
    if (plan.schedule == emu::Schedule::run_to_block)
        faults.delay_chance = std::min(faults.delay_chance, kSpinningDelayMax);
    if (rng.below(4) == 0) {
        faults.delay_min_ns = rng.below(2000);
        faults.delay_mean_ns = faults.delay_min_ns + rng.below(20000);
    }
    if (rng.below(4) == 0) {
        faults.stall_rank = rank();
        faults.stall_block = static_cast<unsigned>(rng.below(2));
        faults.stall_ns = 1 + rng.below(200000);
    }
    if (rng.below(4) == 0) {
        faults.slow_rank = rank();
        faults.slow_block = static_cast<int>(rng.below(3)) - 1;
        faults.slow_factor = 2 + static_cast<unsigned>(rng.below(30));
    }
    if (rng.below(4) == 0) {
        faults.late_rank = rank();
        faults.late_ns = 1 + rng.below(500000);
    }
    if (rng.below(4) == 0) faults.near_wrap_counters = true;
    if (rng.below(4) == 0) plan.queue_depth = 20 + static_cast<int>(rng.below(12));
    const std::uint64_t broken = rng.below(16);
    if (broken == 0) {
        faults.stop_rank = rank();
        faults.stop_at_step = rng.below(40000);
    }
    if (broken == 1) {
        faults.fail_put_rank = rank();
        faults.fail_put_number = 1 + rng.below(40);
    }
    if (rng.below(4) == 0) {
        faults.rest_rank = rank();
        faults.rest_block = static_cast<unsigned>(rng.below(3));
        faults.rest_from_ns = rng.below(100000);
        faults.rest_ns = 1 + rng.below(1000000);
    }
    if (rng.below(4) == 0) faults.late_completion_chance = round_chance(1 + rng.below(100));
    if (rng.below(4) == 0) faults.late_arrival_chance = round_chance(1 + rng.below(100));
    return plan;
}

std::string plan_text(const SimPlan& plan) {
    const emu::FaultPlan& faults = plan.faults;
    const emu::FaultPlan none;
    Json json = Json::object();
    if (plan.schedule) json["schedule"] = name_of(*plan.schedule);
    if (plan.queue_depth) json["queue_depth"] = *plan.queue_depth;
    if (faults.reorder_chance != none.reorder_chance) json["reorder"] = faults.reorder_chance;
    if (faults.split_chance != none.split_chance) json["split"] = faults.split_chance;
    if (faults.duplicate_doorbell_chance > 0)
        json["duplicate_doorbell"] = faults.duplicate_doorbell_chance;
    if (faults.delay_chance > 0) json["delay"]["chance"] = faults.delay_chance;
    if (faults.delay_min_ns > 0) json["delay"]["min"] = time_text(faults.delay_min_ns);
    if (faults.delay_mean_ns > 0) json["delay"]["mean"] = time_text(faults.delay_mean_ns);
    if (faults.stall_rank >= 0) {
        json["stall_block"] = {{"rank", faults.stall_rank},
                               {"block", faults.stall_block},
                               {"time", time_text(faults.stall_ns)}};
    }
    if (faults.rest_rank >= 0) {
        json["rest_block"] = {{"rank", faults.rest_rank},
                              {"block", faults.rest_block},
                              {"from", time_text(faults.rest_from_ns)},
                              {"time", time_text(faults.rest_ns)}};
    }
    if (faults.slow_rank >= 0) {
        json["slow"]["rank"] = faults.slow_rank;
        if (faults.slow_block >= 0) json["slow"]["block"] = faults.slow_block;
        json["slow"]["factor"] = faults.slow_factor;
    }
    if (faults.late_rank >= 0)
        json["late_rank"] = {{"rank", faults.late_rank}, {"time", time_text(faults.late_ns)}};
    if (faults.stop_rank >= 0)
        json["stop_rank"] = {{"rank", faults.stop_rank}, {"step", faults.stop_at_step}};
    if (faults.fail_put_rank >= 0)
        json["fail_put"] = {{"rank", faults.fail_put_rank}, {"number", faults.fail_put_number}};
    if (faults.near_wrap_counters) json["near_wrap"] = true;
    if (faults.late_completion_chance > 0) json["late_completion"] = faults.late_completion_chance;
    if (faults.late_arrival_chance > 0) json["late_arrival"] = faults.late_arrival_chance;
    if (plan.memory.stale_loads) json["memory"]["stale_loads"] = true;
    if (plan.memory.find_races) json["memory"]["find_races"] = true;
    return json.dump();
}

void check_plan_ranks(const SimPlan& plan, int ranks) {
    const auto check = [ranks](const char* field, int rank) {
        if (rank >= ranks) refuse(field, "{} is not one of the {} ranks", rank, ranks);
    };
    check("stall_block.rank", plan.faults.stall_rank);
    check("rest_block.rank", plan.faults.rest_rank);
    check("slow.rank", plan.faults.slow_rank);
    check("late_rank.rank", plan.faults.late_rank);
    check("stop_rank.rank", plan.faults.stop_rank);
    check("fail_put.rank", plan.faults.fail_put_rank);
}

}  // namespace gimlet::sim

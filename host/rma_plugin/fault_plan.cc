// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/fault_plan.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "host/base/error.hpp"

namespace gimlet::rma {

namespace {

using Json = nlohmann::json;

constexpr double kMaxTimeNs = 1e13;
constexpr std::array kSimulatorOnly = {"schedule", "queue_depth", "duplicate_doorbell",
                                       "stall_block", "near_wrap"};

/// One object of the plan and its name for messages.
struct Fields {
    const Json& object;
    std::string name;

    [[noreturn]] void refuse(const std::string& field, const std::string& what) const {
        raise(ErrorCode::invalid_argument, kNoRank, "{}{}: {}", name, field, what);
    }
    const Json& at(const std::string& field) const {
        if (!object.contains(field)) refuse(field, "is missing");
        return object.at(field);
    }
    double chance(const std::string& field) const {
        const Json& value = at(field);
        if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= 1)) {
            refuse(field, value.dump() + " must be a number from 0 to 1");
        }
        return value.get<double>();
    }
    std::uint64_t whole(const std::string& field) const {
        const Json& value = at(field);
        if (!value.is_number_unsigned())
            refuse(field, value.dump() + " must be a whole number from 0");
        return value.get<std::uint64_t>();
    }
    int rank() const { return static_cast<int>(std::min<std::uint64_t>(whole("rank"), 1 << 30)); }
    std::uint64_t time_ns(const std::string& field) const;
    Fields group(const std::string& field) const {
        const Json& value = at(field);
        if (!value.is_object()) refuse(field, value.dump() + " must be an object");
        return {value, name + field + "."};
    }
};

std::uint64_t Fields::time_ns(const std::string& field) const {
    const Json& value = at(field);
    const std::string text = value.is_string() ? value.get<std::string>() : "";
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    double factor = 0;
    if (unit == "ns") factor = 1;
    if (unit == "us") factor = 1e3;
    if (unit == "ms") factor = 1e6;
    if (unit == "s") factor = 1e9;
    const double ns = number * factor;
    if (error != std::errc{} || factor == 0 || !(ns >= 0 && ns <= kMaxTimeNs)) {
        refuse(field, value.dump() + " must be a time with a unit, such as \"20us\"");
    }
    return static_cast<std::uint64_t>(std::llround(ns));
}

void read_rank_faults(const Fields& top, const std::string& field, FaultPlan* plan) {
    const Fields group = top.group(field);
    if (field == "slow") {
        plan->slow_rank = group.rank();
        plan->slow_factor =
            static_cast<unsigned>(std::clamp<std::uint64_t>(group.whole("factor"), 1, 1000));
    } else if (field == "late_rank") {
        plan->late_rank = group.rank();
        plan->late_ns = group.time_ns("time");
    } else if (field == "stop_rank") {
        plan->stop_rank = group.rank();
        plan->stop_at = group.whole("step");
    } else {
        plan->fail_rank = group.rank();
        plan->fail_number = group.whole("number");
    }
}

}  // namespace

FaultPlan parse_fault_plan(const std::string& json_text, const std::string& name) {
    const Json json = Json::parse(json_text, nullptr, false);
    const Fields top{json, name + ": "};
    if (!json.is_object()) top.refuse("the plan", "is no JSON object");
    FaultPlan plan;
    for (const auto& [field, value] : json.items()) {
        if (field == "reorder") {
            plan.reorder_chance = top.chance(field);
        } else if (field == "split") {
            plan.split_chance = top.chance(field);
        } else if (field == "delay") {
            const Fields delay = top.group(field);
            plan.delay_chance = value.contains("chance") ? delay.chance("chance") : 1;
            plan.delay_min_ns = value.contains("min") ? delay.time_ns("min") : 0;
            plan.delay_mean_ns = delay.time_ns("mean");
            if (plan.delay_mean_ns < plan.delay_min_ns) delay.refuse("mean", "is below delay.min");
        } else if (field == "slow" || field == "late_rank" || field == "stop_rank" ||
                   field == "fail_put") {
            read_rank_faults(top, field, &plan);
        } else if (std::find(kSimulatorOnly.begin(), kSimulatorOnly.end(), field) !=
                   kSimulatorOnly.end()) {
            plan.ignored += (plan.ignored.empty() ? "" : ", ") + field;
        } else {
            top.refuse(field, "there is no such field");
        }
    }
    return plan;
}

FaultPlan read_fault_plan(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "GIMLET_RMA_FAULT is '{}', which cannot be read", path);
    }
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    return parse_fault_plan(text, path);
}

FaultInjector::FaultInjector(const FaultPlan& plan, int rank, std::uint64_t seed,
                             std::uint64_t now_ns)
    : plan_(plan),
      rank_(rank),
      state_(seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(rank) + 1),
      start_ns_(now_ns) {}

std::uint64_t FaultInjector::below(std::uint64_t limit) noexcept {
    // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return (z ^ z >> 31) % limit;
}

double FaultInjector::chance() noexcept {
    constexpr std::uint64_t kSteps = std::uint64_t{1} << 53;
    return static_cast<double>(below(kSteps)) / static_cast<double>(kSteps);
}

FaultInjector::Decision FaultInjector::decide(int peer, int context, std::uint64_t bytes,
                                              bool has_signal) {
    ++operations_;
    Decision decision;
    if (rank_ == plan_.fail_rank && operations_ == plan_.fail_number) {
        lost_peer_ = peer;
        lost_context_ = context;
    }
    decision.is_lost = peer == lost_peer_ && context == lost_context_;
    if (chance() < plan_.delay_chance) {
        const double above = static_cast<double>(plan_.delay_mean_ns - plan_.delay_min_ns);
        const double rest = static_cast<double>(plan_.delay_min_ns) - above * std::log1p(-chance());
        decision.rest_ns = static_cast<std::uint64_t>(std::min(rest, kMaxTimeNs));
    }
    decision.may_be_passed = !has_signal && bytes > 0 && chance() < plan_.reorder_chance;
    decision.is_split = bytes > sizeof(std::uint64_t) && chance() < plan_.split_chance;
    return decision;
}

bool FaultInjector::has_stopped() const noexcept {
    return rank_ == plan_.stop_rank && operations_ >= plan_.stop_at;
}

bool FaultInjector::may_progress(std::uint64_t now_ns) {
    if (has_stopped()) return false;
    if (rank_ == plan_.late_rank && now_ns - start_ns_ < plan_.late_ns) return false;
    return rank_ != plan_.slow_rank || ++calls_ % plan_.slow_factor == 0;
}

}  // namespace gimlet::rma

// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/bench_timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace gimlet::cli {
namespace {

constexpr std::array<std::pair<const char*, std::uint64_t StepMarks::*>, 7> kMarks = {{
    {"first_begin_us", &StepMarks::first_begin},
    {"last_begin_us", &StepMarks::last_begin},
    {"first_ready_us", &StepMarks::first_ready},
    {"last_ready_us", &StepMarks::last_ready},
    {"rows_sent_us", &StepMarks::rows_sent},
    {"rows_here_us", &StepMarks::rows_here},
    {"end_us", &StepMarks::end},
}};

void widen(std::uint64_t time_ns, std::uint64_t* first, std::uint64_t* last) {
    if (*first == 0 || time_ns < *first) *first = time_ns;
    *last = std::max(*last, time_ns);
}

}  // namespace

StepMarks marks_of(const std::vector<DeviceEvent>& events) {
    StepMarks out;
    for (const DeviceEvent& event : events) {
        if (event.epoch != events.back().epoch || event.tag != events.back().tag) continue;
        switch (event.kind) {
            case EventKind::begin: widen(event.time_ns, &out.first_begin, &out.last_begin); break;
            case EventKind::counts_known:
            case EventKind::peers_ready:
                widen(event.time_ns, &out.first_ready, &out.last_ready);
                break;
            case EventKind::rows_sent: out.rows_sent = event.time_ns; break;
            case EventKind::rows_here: out.rows_here = event.time_ns; break;
            case EventKind::end:
            case EventKind::failed: out.end = event.time_ns; break;
            case EventKind::first_row:
            case EventKind::none: break;
        }
    }
    return out;
}

nlohmann::json timeline_of(Runtime& runtime, const std::vector<DeviceEvent>& events) {
    const auto all = runtime.bootstrap().all_gather_values(marks_of(events));
    const auto& places = runtime.topology().places;
    std::map<std::uint64_t, std::uint64_t> zero;  // by GPU
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        std::uint64_t& first = zero[places[rank].device_id];
        if (first == 0 || all[rank].first_begin < first) first = all[rank].first_begin;
    }
    nlohmann::json out = nlohmann::json::array();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        const std::uint64_t from = zero[places[rank].device_id];
        nlohmann::json line{{"rank", rank}};
        for (const auto& [name, mark] : kMarks) {
            const std::uint64_t at = all[rank].*mark;
            line[name] = at == 0 ? -1.0 : static_cast<double>(at - from) / 1e3;
        }
        out.push_back(std::move(line));
    }
    return out;
}

std::string describe_timeline(const nlohmann::json& timeline) {
    const auto us = [](const nlohmann::json& line, const char* name) {
        const double value = line.at(name).get<double>();
        return value < 0 ? std::string("-") : fmt::format("{:.1f}", value);
    };
    std::string out;
    for (const auto& line : timeline) {
        out += fmt::format(
            "    rank {}: blocks began {} to {}, ready {} to {}, rows sent {}, here {}, end {} "
            "us\n",
            line.at("rank").get<int>(), us(line, "first_begin_us"), us(line, "last_begin_us"),
            us(line, "first_ready_us"), us(line, "last_ready_us"), us(line, "rows_sent_us"),
            us(line, "rows_here_us"), us(line, "end_us"));
    }
    return out;
}

}  // namespace gimlet::cli

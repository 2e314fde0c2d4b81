// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/timeline.hpp"

#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "host/base/error.hpp"

namespace gimlet::sim {
namespace {

std::string track_name(int track) {
    if (track < 0) return "network";
    return track == 0 ? "device" : fmt::format("block {}", track - 1);
}

const char* verb_of(emu::TraceEvent::Kind kind) {
    switch (kind) {
        case emu::TraceEvent::Kind::instant: return "";
        case emu::TraceEvent::Kind::begin: return "begins: ";
        case emu::TraceEvent::Kind::end: return "ends: ";
    }
    return "";
}

}  // namespace

void Timeline::event(emu::TraceEvent event) {
    if (event.rank < 0) return;
    const auto rank = static_cast<std::size_t>(event.rank);
    if (rank >= last_.size()) last_.resize(rank + 1);
    if (keep_ == Keep::everything) all_.push_back(event);
    last_[rank].push_back(std::move(event));
    if (last_[rank].size() > last_count_) last_[rank].pop_front();
}

std::string Timeline::last_events() const {
    std::string text;
    for (std::size_t rank = 0; rank < last_.size(); ++rank) {
        text += fmt::format("rank {}, last {} events\n", rank, last_[rank].size());
        for (const emu::TraceEvent& event : last_[rank]) {
            text += fmt::format("  {:>12} ns  step {:>9}  {:<9} {}{}\n", event.ns, event.step,
                                track_name(event.track), verb_of(event.kind), event.text);
        }
    }
    return text;
}

void Timeline::write_chrome_trace(const std::string& path) const {
    std::ofstream file(path);
    file << "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    const char* separator = "";
    const auto put = [&](const nlohmann::ordered_json& json) {
        file << separator << json.dump();
        separator = ",\n";
    };
    std::set<std::pair<int, int>> tracks;
    for (const emu::TraceEvent& event : all_) {
        const int thread = event.track + 1;
        if (tracks.insert({event.rank, event.track}).second) {
            put({{"ph", "M"},
                 {"name", "process_name"},
                 {"pid", event.rank},
                 {"args", {{"name", fmt::format("rank {}", event.rank)}}}});
            put({{"ph", "M"},
                 {"name", "thread_name"},
                 {"pid", event.rank},
                 {"tid", thread},
                 {"args", {{"name", track_name(event.track)}}}});
        }
        nlohmann::ordered_json json = {{"name", event.text},
                                       {"pid", event.rank},
                                       {"tid", thread},
                                       {"ts", static_cast<double>(event.ns) / 1e3},
                                       {"args", {{"step", event.step}}}};
        switch (event.kind) {
            case emu::TraceEvent::Kind::begin: json["ph"] = "B"; break;
            case emu::TraceEvent::Kind::end: json["ph"] = "E"; break;
            case emu::TraceEvent::Kind::instant: json["ph"] = "i", json["s"] = "t"; break;
        }
        put(json);
    }
    file << "\n]}\n";
    file.close();
    if (!file) raise(ErrorCode::system, kNoRank, "{}: the trace cannot be written", path);
}

}  // namespace gimlet::sim

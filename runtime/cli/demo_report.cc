// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/demo_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "host/base/text.hpp"
#include "host/base/version.hpp"
#include "runtime/cli/table.hpp"

namespace gimlet::cli {
namespace {

std::string time_text(std::int64_t ns) {
    return format_duration_ns(static_cast<std::uint64_t>(ns));
}

/// Five numbers that say how even the load is, and the heaviest experts by name.
/// Every expert's count, where the list is short enough to read; --json has it always.
std::string expert_rows_text(const std::vector<std::int64_t>& rows) {
    constexpr std::size_t kMostListed = 64;
    constexpr std::size_t kPerLine = 16;
    if (rows.size() > kMostListed) return {};
    std::string out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (i % kPerLine == 0) out += fmt::format("{}  experts from {:2}:", i == 0 ? "" : "\n", i);
        out += fmt::format(" {:4}", rows[i]);
    }
    return out + "\n";
}

std::string expert_text(const std::vector<std::int64_t>& rows) {
    if (rows.empty()) return {};
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return rows[a] > rows[b]; });
    const auto total = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    const double mean = static_cast<double>(total) / static_cast<double>(rows.size());
    std::string out = fmt::format(
        "tokens per expert: {} in all, least {}, median {}, mean {:.1f}, most {}", total,
        rows[order.back()], rows[order[order.size() / 2]], mean, rows[order.front()]);
    if (mean > 0)
        out += fmt::format(" ({:.2f} x mean)", static_cast<double>(rows[order.front()]) / mean);
    out += "\n  heaviest:";
    for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 6); ++i) {
        out += fmt::format(" {}{} has {}", i == 0 ? "expert " : "", order[i], rows[order[i]]);
        out += i + 1 < std::min<std::size_t>(order.size(), 6) ? "," : "\n";
    }
    return out + expert_rows_text(rows);
}

}  // namespace

bool DemoReport::all_right() const {
    return std::all_of(ranks.begin(), ranks.end(),
                       [](const auto& r) { return r.steps_right == r.steps; });
}

std::string DemoReport::text(const Plan& plan) const {
    std::string out;
    if (plan.gin_peer_count > 0)
        out += fmt::format("mode {}: {}\n", name_of(plan.mode), plan.mode_reason);
    Table table({"rank", "team", "tokens", "sent", "via GIN", "received", "bytes", "GIN bytes",
                 "LSA bytes", "puts", "rings", "waits", "dispatch", "combine", "check"});
    std::int64_t barriers = 0;
    for (const auto& r : ranks) {
        table.add({std::to_string(r.rank), std::to_string(r.lsa_team), std::to_string(r.tokens),
                   std::to_string(r.rows_sent), std::to_string(r.gin_rows_sent),
                   std::to_string(r.rows_received),
                   format_bytes(static_cast<std::uint64_t>(r.bytes_sent)),
                   format_bytes(static_cast<std::uint64_t>(r.gin_bytes)),
                   format_bytes(static_cast<std::uint64_t>(r.lsa_bytes)), std::to_string(r.puts),
                   std::to_string(r.doorbells), std::to_string(r.rendezvous),
                   time_text(r.dispatch_ns), time_text(r.combine_ns),
                   r.steps_right == r.steps ? "exact" : "WRONG"});
        barriers = std::max(barriers, r.barriers);
    }
    out += table.text();
    out += expert_text(expert_rows);
    const int steps = ranks.empty() ? 0 : ranks[0].steps;
    out += fmt::format(
        "{} steps, {} barriers a rank; rows, bytes, puts, rings (doorbells) and waits are of all "
        "steps, "
        "times of the\nfastest{}\n",
        steps, barriers,
        std::string(backend_name()) == "emulator" ? ", on a CPU that stands in for the GPUs" : "");
    for (const auto& fault : faults) {
        if (!fault.empty()) out += "difference: " + fault + "\n";
    }
    const auto right = std::count_if(ranks.begin(), ranks.end(),
                                     [](const auto& r) { return r.steps_right == r.steps; });
    out += fmt::format(
        "{} of {} ranks match the reference byte for byte ({}, seed {}, plan {:016x}, {})\n", right,
        ranks.size(), source, seed, plan.hash(), format_duration_ns(wall_ns));
    return out;
}

std::string DemoReport::json(const Plan& plan) const {
    nlohmann::json out;
    out["version"] = version_text();
    out["backend"] = backend_name();
    out["source"] = source;
    out["seed"] = seed;
    out["match"] = all_right();
    out["wall_ns"] = wall_ns;
    out["plan"] = nlohmann::json::parse(plan.json());
    out["expert_rows"] = expert_rows;
    out["ranks"] = nlohmann::json::array();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto& r = ranks[i];
        nlohmann::json rank;
        rank["rank"] = r.rank;
        rank["lsa_team"] = r.lsa_team;
        rank["tokens"] = r.tokens;
        rank["rows_sent"] = r.rows_sent;
        rank["gin_rows_sent"] = r.gin_rows_sent;
        rank["rows_received"] = r.rows_received;
        rank["bytes_sent"] = r.bytes_sent;
        rank["gin_bytes"] = r.gin_bytes;
        rank["lsa_bytes"] = r.lsa_bytes;
        rank["puts"] = r.puts;
        rank["doorbells"] = r.doorbells;
        rank["rendezvous"] = r.rendezvous;
        rank["barriers"] = r.barriers;
        rank["dispatch_ns"] = r.dispatch_ns;
        rank["combine_ns"] = r.combine_ns;
        rank["steps"] = r.steps;
        rank["steps_right"] = r.steps_right;
        rank["difference"] = i < faults.size() ? faults[i] : "";
        out["ranks"].push_back(rank);
    }
    return out.dump() + "\n";
}

}  // namespace gimlet::cli

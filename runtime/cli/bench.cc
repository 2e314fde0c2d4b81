// SPDX-License-Identifier: Apache-2.0
// `gimlet bench`: times beside the least that the hardware must do. Every case names the bytes that
// have to move, the floor that follows from the measured copy rate, the time and their ratio.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "host/base/progress.hpp"
#include "host/base/version.hpp"
#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/cli/bench_cases.hpp"
#include "runtime/cli/bench_measure.hpp"
#include "runtime/cli/bench_timeline.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/session.hpp"
#include "runtime/cli/table.hpp"
#include "runtime/generators.hpp"
#include "runtime/rehearsal.hpp"

namespace gimlet::cli {
namespace {

struct BenchOptions {
    std::vector<std::string> cases = {"dispatch", "combine"};
    std::vector<int> tokens = {128, 4096};
    std::vector<int> hidden = {7168};
    std::vector<std::string> types = {"bf16"};
    std::vector<std::string> routings = {"uniform"};
    std::vector<std::string> modes = {"direct"};
    std::vector<std::string> syncs = {"barrier"};
    bool first_row = false;
    int ranks = 1;
    int experts = 256;
    int topk = 8;
    int sms = 0;
    std::string layout = "rank-major";
    std::string index = "int64";
    std::string json_path;
    int flush_mib = 128;
    std::int64_t deadline_ms = -1;  ///< -1 = the environment's
    bool event_ring = false;
    bool timeline = false;
    PrimitiveBenchOptions primitives;
    MeasureOptions measure;
    MoeConfig shape;  ///< geometry overrides

    bool has_case(const std::string& name) const {
        return std::find(cases.begin(), cases.end(), name) != cases.end();
    }
    bool has_exchange_case() const {
        return std::any_of(cases.begin(), cases.end(), [](const std::string& name) {
            return name != "barrier" && name != "put" && name != "pipeline" && name != "handover";
        });
    }
};

/// What one case moved at least, and how long it took.
struct CaseResult {
    std::string name;
    std::string type;
    std::string routing;
    std::string mode;
    std::string sync;
    std::uint64_t buffer_bytes = 0;  ///< of the window: what peers write or read
    double first_row_us =
        0;                   ///< from the start of a dispatch to the first usable row, slowest rank
    double last_row_us = 0;  ///< the same for the last row; 0 = not measured
    int tokens = 0;
    int hidden = 0;
    double bytes = 0;       ///< least bytes read and written on the busiest GPU
    double link_bytes = 0;  ///< least bytes over the busiest GPU's links, one direction
    // What the busiest rank sent in one call.
    std::int64_t gin_bytes = 0;
    std::int64_t lsa_bytes = 0;
    std::int64_t puts = 0;
    std::int64_t doorbells = 0;
    std::int64_t gin_rows = 0;
    // The least of each that the routing allows in this mode, of the rank that needs most.
    std::int64_t gin_rows_floor = 0;
    std::int64_t gin_bytes_floor = 0;
    std::int64_t lsa_bytes_floor = 0;
    std::int64_t puts_floor = 0;
    std::int64_t doorbells_floor = 0;
    std::int64_t doorbells_most = 0;  ///< hybrid dispatch: what its rows and streams allow
    Timing timing;
    nlohmann::json timeline;  ///< of the last call, with --timeline
};

/// Rows of one token that rank `from` must put at rank `to`: hybrid, one if it has an expert in the
/// other team, on its rail; direct, one if it has an expert there (expert_major: one for each).
std::int64_t least_gin_rows(const RoutingTable& table, const Plan& plan, int from, int to,
                            int token) {
    const int team = to / plan.lsa_size;
    const bool rail = plan.rail.active();
    if (team == from / plan.lsa_size) return 0;
    if (rail && from % plan.lsa_size != to % plan.lsa_size) return 0;
    std::int64_t choices = 0;
    for (int k = 0; k < table.topk; ++k) {
        const std::int64_t expert = table.index(from, token, k);
        if (expert < 0) continue;
        const int rank = plan.experts.rank_of(static_cast<std::int32_t>(expert));
        choices += rail ? rank / plan.lsa_size == team : rank == to;
    }
    const bool one_a_token = rail || plan.config.layout == Layout::rank_major;
    return one_a_token ? std::min<std::int64_t>(choices, 1) : choices;
}

/// The same for all tokens of `from`.
std::int64_t least_gin_rows(const RoutingTable& table, const Plan& plan, int from, int to) {
    std::int64_t rows = 0;
    const int tokens = table.ranks[static_cast<std::size_t>(from)].token_count;
    for (int token = 0; token < tokens; ++token)
        rows += least_gin_rows(table, plan, from, to, token);
    return rows;
}

/// Doorbells that a hybrid dispatch of this rank may ring: for each stream one in 6 rows and one at
/// its end, and one for each count row.
std::int64_t most_rail_doorbells(const RoutingTable& table, const Plan& plan) {
    const int tokens = table.ranks[static_cast<std::size_t>(plan.rank)].token_count;
    const int per_channel = std::max(plan.rail.channel_tokens(tokens), 1);
    std::int64_t out = plan.rail.peer_count() + plan.rail.pair_count();
    for (int to = plan.rank % plan.lsa_size; to < plan.rank_count; to += plan.lsa_size) {
        for (int first = 0; first < tokens; first += per_channel) {
            std::int64_t rows = 0;
            for (int token = first; token < std::min(first + per_channel, tokens); ++token)
                rows += least_gin_rows(table, plan, plan.rank, to, token);
            out += (rows + 5) / 6;
        }
    }
    return out;
}

/// The largest sum of `mine` over the ranks of one GPU.
double busiest_gpu(Runtime& runtime, double mine) {
    const auto all = runtime.bootstrap().all_gather_values(mine);
    std::map<std::uint64_t, double> by_gpu;
    for (std::size_t i = 0; i < all.size(); ++i)
        by_gpu[runtime.topology().places[i].device_id] += all[i];
    double most = 0;
    for (const auto& [gpu, sum] : by_gpu) most = std::max(most, sum);
    return most;
}

/// Bytes that the busiest GPU must read plus write: every rank's tokens once, every received (or
/// pulled) row once.
double least_bytes(Runtime& runtime, std::int64_t tokens, std::int64_t far_rows,
                   std::uint32_t row_bytes) {
    return busiest_gpu(runtime, static_cast<double>(tokens + far_rows) * row_bytes);
}

/// Bytes that must cross the busiest GPU's links in the busier direction.
double least_link_bytes(Runtime& runtime, const StepTraffic& traffic, std::uint32_t row_bytes) {
    const auto& places = runtime.topology().places;
    const auto& here = places[static_cast<std::size_t>(runtime.rank())];
    std::int64_t out = 0;
    std::int64_t in = 0;
    for (std::size_t peer = 0; peer < places.size(); ++peer) {
        if (places[peer].device_id == here.device_id || places[peer].host_id != here.host_id)
            continue;
        out += traffic.rows_to[peer];
        in += traffic.rows_from[peer];
    }
    const double row = row_bytes;
    return std::max(busiest_gpu(runtime, static_cast<double>(out) * row),
                    busiest_gpu(runtime, static_cast<double>(in) * row));
}

MoeConfig config_of(const BenchOptions& options, const std::string& type, int tokens, int hidden) {
    MoeConfig config = options.shape;
    config.expert_count = options.experts;
    config.topk = options.topk;
    config.hidden = hidden;
    config.max_tokens = tokens;
    config.sm_budget = options.sms;
    config.layout = options.layout == "expert-major" ? Layout::expert_major : Layout::rank_major;
    if (type == "fp8") {
        config.dispatch_type = ElementType::float8_e4m3;
        config.scale_words = fp8_float_scale_words(hidden);
    }
    return config;
}

/// One exchange shape: the cases that were asked for.
class ShapeBench {
  public:
    ShapeBench(Runtime& runtime, const BenchOptions& options, Measure& measure)
        : runtime_(runtime), options_(options), measure_(measure) {}

    void run(const std::string& mode, const std::string& sync, const std::string& type,
             const std::string& routing, int tokens, int hidden, std::vector<CaseResult>* results) {
        GeneratorOptions generate;
        parse_routing_kind(routing, &generate.kind);
        generate.rank_count = runtime_.size();
        generate.token_count = tokens;
        generate.expert_count = options_.experts;
        generate.topk = options_.topk;
        const RoutingTable table = generate_routing(generate);
        MoeConfig config = config_of(options_, type, tokens, hidden);
        parse_exchange_mode(mode, &config.mode);
        parse_sync(sync, &config.sync);
        auto exchange = Exchange::create(runtime_, config);
        exchange->reserve();
        RehearsalOptions rehearse;
        rehearse.index_type = options_.index == "int64" ? IndexType::int64 : IndexType::int32;
        {
            Rehearsal rehearsal(*exchange, table, rehearse);
            const Stream stream = Stream::create(runtime_.rank());
            rehearsal.dispatch(CountMode::device, stream.get());
            exchange->synchronize(stream.get());
            const StepTraffic traffic = exchange->traffic(rehearsal.routing());
            const std::uint32_t in_bytes = exchange->plan().token_layout.row_bytes;
            const std::uint32_t out_bytes = exchange->plan().combine_row_bytes;
            for (const std::string& name : options_.cases) {
                CaseResult result{.name = name,
                                  .type = type,
                                  .routing = routing,
                                  .mode = name_of(exchange->plan().mode),
                                  .sync = sync,
                                  .buffer_bytes = exchange->plan().window_bytes,
                                  .tokens = tokens,
                                  .hidden = hidden,
                                  .timing = {},
                                  .timeline = {}};
                add_traffic(traffic, &result);
                add_floors(exchange->plan(), table, traffic, &result);
                const double there = least_bytes(runtime_, tokens, traffic.rows_received, in_bytes);
                const double back = least_bytes(runtime_, tokens, traffic.rows_sent, out_bytes);
                const double link_there = least_link_bytes(runtime_, traffic, in_bytes);
                const double link_back = least_link_bytes(runtime_, traffic, out_bytes);
                if (name == "dispatch" || name == "cached") {
                    result.bytes = there;
                    result.link_bytes = link_there;
                    result.timing = measure_.run([&](cudaStream_t s) {
                        if (name == "cached") {
                            rehearsal.dispatch_cached(s);
                        } else {
                            rehearsal.dispatch(CountMode::device, s);
                        }
                    });
                } else if (name == "combine") {
                    result.bytes = back;
                    result.link_bytes = link_back;
                    result.timing = measure_.run([&](cudaStream_t s) { rehearsal.combine(s); });
                } else if (name == "roundtrip") {
                    result.bytes = there + back;
                    result.link_bytes = link_there + link_back;
                    result.timing = measure_.run([&](cudaStream_t s) {
                        rehearsal.dispatch(CountMode::device, s);
                        rehearsal.combine(s);
                    });
                } else if (name == "launch") {
                    result.timing = measure_.run([&](cudaStream_t s) {
                        cuda_check(cudaMemsetAsync(exchange->combine_input(), 0, 16, s),
                                   "cudaMemsetAsync", rank());
                    });
                } else {
                    continue;
                }
                if (options_.first_row && (name == "dispatch" || name == "cached"))
                    find_first_row(*exchange, &result);
                if (options_.timeline && name != "launch")
                    result.timeline = timeline_of(runtime_, exchange->health().events);
                results->push_back(result);
            }
        }
        exchange->close();
    }

  private:
    int rank() const { return runtime_.rank(); }

    /// By the events of the newest step. A barrier makes all rows usable at once, at its end.
    void find_first_row(const Exchange& exchange, CaseResult* result) {
        const std::vector<DeviceEvent> events = exchange.health().events;
        std::uint64_t begin = 0, first = 0, last = 0;
        for (const DeviceEvent& event : events) {
            if (event.epoch != events.back().epoch || event.tag != events.back().tag) continue;
            if (event.kind == EventKind::begin && (begin == 0 || event.time_ns < begin))
                begin = event.time_ns;
            if (event.kind == EventKind::first_row && (first == 0 || event.time_ns < first))
                first = event.time_ns;
            if (event.kind == EventKind::end) last = event.time_ns;
        }
        if (first == 0) first = last;
        const auto slowest = [&](std::uint64_t at) {
            const double mine = begin > 0 && at > begin ? static_cast<double>(at - begin) / 1e3 : 0;
            const auto all = runtime_.bootstrap().all_gather_values(mine);
            return *std::max_element(all.begin(), all.end());
        };
        result->first_row_us = slowest(first);
        result->last_row_us = slowest(last);
    }

    void add_traffic(const StepTraffic& traffic, CaseResult* result) {
        const bool there = result->name != "combine" && result->name != "launch";
        const bool back = result->name == "combine" || result->name == "roundtrip";
        const auto busiest = [&](std::int64_t dispatch, std::int64_t combine) {
            const std::int64_t mine = (there ? dispatch : 0) + (back ? combine : 0);
            const auto all = runtime_.bootstrap().all_gather_values(mine);
            return *std::max_element(all.begin(), all.end());
        };
        result->gin_bytes = busiest(traffic.dispatch_gin_bytes, traffic.combine_gin_bytes);
        result->lsa_bytes = busiest(traffic.dispatch_lsa_bytes, traffic.combine_lsa_bytes);
        result->puts = busiest(traffic.dispatch_puts, traffic.combine_puts);
        result->doorbells = busiest(traffic.dispatch_doorbells, traffic.combine_doorbells);
    }

    /// Payload only, and full puts.
    void add_floors(const Plan& plan, const RoutingTable& table, const StepTraffic& traffic,
                    CaseResult* result) {
        const bool there = result->name != "combine" && result->name != "launch";
        const bool back = result->name == "combine" || result->name == "roundtrip";
        const std::int64_t row = plan.token_layout.row_bytes;
        const std::int64_t home = plan.combine_row_bytes;
        std::int64_t rows = 0;
        std::int64_t rows_back = 0;  // of others' tokens
        for (int peer = 0; peer < plan.rank_count; ++peer) {
            rows += least_gin_rows(table, plan, plan.rank, peer);
            rows_back += least_gin_rows(table, plan, peer, plan.rank);
        }
        const std::int64_t lsa_rows =
            traffic.dispatch_lsa_bytes / (row + plan.token_layout.record_bytes());
        const std::int64_t batch = plan.rail.active()
                                       ? std::min(plan.kernels.chunk_rows, plan.rail.publish_rows)
                                       : plan.kernels.chunk_rows;
        const auto puts = [batch](std::int64_t count) { return (count + batch - 1) / batch; };
        const std::int64_t count_rows =
            plan.rail.active() ? plan.rail.peer_count() : plan.gin_peer_count;
        const auto most = [&](std::int64_t dispatch, std::int64_t combine) {
            const auto all = runtime_.bootstrap().all_gather_values((there ? dispatch : 0) +
                                                                    (back ? combine : 0));
            return *std::max_element(all.begin(), all.end());
        };
        result->gin_rows = most(traffic.gin_rows_sent, traffic.combine_gin_bytes / home);
        result->gin_rows_floor = most(rows, rows_back);
        result->gin_bytes_floor = most(rows * row, rows_back * home);
        result->lsa_bytes_floor = most(lsa_rows * row, lsa_rows * home);
        result->puts_floor = most(puts(rows) + count_rows, puts(rows_back));
        // Each stream of a rail is finished by one, each context of direct mode announces.
        const std::int64_t contexts = std::max(plan.kernels.gin_context_count, 2) - 1;
        const std::int64_t ends =
            plan.rail.active() ? plan.rail.pair_count() : plan.gin_peer_count * contexts;
        const std::int64_t ends_back = plan.rail.active() ? plan.rail.pair_count() : 0;
        result->doorbells_floor = most(count_rows + ends, count_rows + ends_back);
        if (plan.rail.active()) result->doorbells_most = most(most_rail_doorbells(table, plan), 0);
    }

    Runtime& runtime_;
    const BenchOptions& options_;
    Measure& measure_;
};

/// The longer of what memory and what the links need, in microseconds.
double floor_of(const CaseResult& result, const CopyRates& rates) {
    const double memory_us = result.bytes / rates.copy_bytes_per_s * 1e6;
    if (rates.link_bytes_per_s <= 0) return memory_us;
    return std::max(memory_us, result.link_bytes / rates.link_bytes_per_s * 1e6);
}

nlohmann::json to_json(const CaseResult& result, const Runtime& runtime, const CopyRates& rates,
                       const BenchOptions& options) {
    const double floor_us = floor_of(result, rates);
    return {{"case", result.name},
            {"type", result.type},
            {"routing", result.routing},
            {"mode", result.mode},
            {"sync", result.sync},
            {"buffer_bytes", result.buffer_bytes},
            {"first_row_us", result.first_row_us},
            {"last_row_us", result.last_row_us},
            {"gin_bytes", result.gin_bytes},
            {"lsa_bytes", result.lsa_bytes},
            {"puts", result.puts},
            {"doorbells", result.doorbells},
            {"gin_rows", result.gin_rows},
            {"gin_rows_floor", result.gin_rows_floor},
            {"gin_bytes_floor", result.gin_bytes_floor},
            {"lsa_bytes_floor", result.lsa_bytes_floor},
            {"puts_floor", result.puts_floor},
            {"doorbells_floor", result.doorbells_floor},
            {"doorbells_most", result.doorbells_most},
            {"tokens", result.tokens},
            {"hidden", result.hidden},
            {"ranks", runtime.size()},
            {"lsa_size", runtime.topology().lsa_size},
            {"sms_per_rank", options.sms},
            {"deadline_ns", runtime.deadline_ns()},
            {"event_ring", options.event_ring},
            {"device", runtime.device().name},
            {"bytes", result.bytes},
            {"link_bytes", result.link_bytes},
            {"copy_bytes_per_s", rates.copy_bytes_per_s},
            {"link_bytes_per_s", rates.link_bytes_per_s},
            {"floor_us", floor_us},
            {"median_us", result.timing.median_us},
            {"best_us", result.timing.best_us},
            {"worst_us", result.timing.worst_us},
            {"wall_us", result.timing.wall_us},
            {"host_us", result.timing.host_us},
            {"ratio", floor_us > 0 ? result.timing.median_us / floor_us : 0},
            {"calls", result.timing.calls},
            {"commit", git_hash()}};
}

Table table_of(const std::vector<CaseResult>& results, const CopyRates& rates) {
    Table table({"case", "mode", "sync", "type", "routing", "T", "H", "floor us", "time us",
                 "ratio", "wall us", "host us"});
    for (const CaseResult& r : results) {
        const double floor_us = floor_of(r, rates);
        table.add({r.name, r.mode, r.sync, r.type, r.routing, std::to_string(r.tokens),
                   std::to_string(r.hidden), fmt::format("{:.1f}", floor_us),
                   fmt::format("{:.1f}", r.timing.median_us),
                   fmt::format("{:.2f}", floor_us > 0 ? r.timing.median_us / floor_us : 0),
                   fmt::format("{:.1f}", r.timing.wall_us),
                   fmt::format("{:.1f}", r.timing.host_us)});
    }
    return table;
}

/// What the two ways of waiting take and give.
Table sync_table(const std::vector<CaseResult>& results) {
    Table table(
        {"case", "sync", "T", "H", "buffer bytes", "time us", "first row us", "last row us"});
    const auto time = [](double us) {
        return us > 0 ? fmt::format("{:.1f}", us) : std::string("-");
    };
    for (const CaseResult& r : results) {
        table.add({r.name, r.sync, std::to_string(r.tokens), std::to_string(r.hidden),
                   std::to_string(r.buffer_bytes), fmt::format("{:.1f}", r.timing.median_us),
                   time(r.first_row_us), time(r.last_row_us)});
    }
    return table;
}

/// Who sent how much by which way, and below it the least that the routing allows.
Table traffic_table(const std::vector<CaseResult>& results, double ceiling) {
    Table table({"case", "mode", "T", "H", "GIN rows", "GIN bytes", "us", "LSA bytes", "us", "puts",
                 "doorbells"});
    const auto us = [ceiling](std::int64_t bytes) {
        return fmt::format("{:.1f}", 2.0 * static_cast<double>(bytes) / ceiling * 1e6);
    };
    for (const CaseResult& r : results) {
        table.add({r.name, r.mode, std::to_string(r.tokens), std::to_string(r.hidden),
                   std::to_string(r.gin_rows), std::to_string(r.gin_bytes), us(r.gin_bytes),
                   std::to_string(r.lsa_bytes), us(r.lsa_bytes), std::to_string(r.puts),
                   std::to_string(r.doorbells)});
        table.add({"  floor", "", "", "", std::to_string(r.gin_rows_floor),
                   std::to_string(r.gin_bytes_floor), us(r.gin_bytes_floor),
                   std::to_string(r.lsa_bytes_floor), us(r.lsa_bytes_floor),
                   std::to_string(r.puts_floor), std::to_string(r.doorbells_floor)});
    }
    return table;
}

CaseReport bench_exchanges(Runtime& runtime, const BenchOptions& options, Measure& measure,
                           const CopyRates& rates, const std::function<void()>& tick) {
    std::vector<CaseResult> results;
    ShapeBench bench(runtime, options, measure);
    const auto each_shape = [&](const std::string& mode, const std::string& sync,
                                const std::string& type, const std::string& routing) {
        for (const int hidden : options.hidden) {
            for (const int tokens : options.tokens) {
                bench.run(mode, sync, type, routing, tokens, hidden, &results);
                tick();
            }
        }
    };
    for (const auto& mode : options.modes) {
        for (const auto& type : options.types) {
            for (const auto& routing : options.routings) {
                for (const auto& sync : options.syncs) each_shape(mode, sync, type, routing);
            }
        }
    }
    CaseReport report{table_of(results, rates), {}, {}};
    for (const CaseResult& r : results) {
        report.lines.push_back(to_json(r, runtime, rates, options));
        if (r.timeline.is_null()) continue;
        report.lines.back()["timeline"] = r.timeline;
        report.notes.push_back(fmt::format("{} {} T {} H {}, the last call:\n{}", r.name, r.type,
                                           r.tokens, r.hidden, describe_timeline(r.timeline)));
    }
    if (options.syncs.size() > 1 || options.first_row) {
        report.notes.push_back(
            "buffers: the window of one rank; rows: from the start of one dispatch to\n"
            "the first and the last row that a kernel may use\n" +
            sync_table(results).text());
    }
    if (runtime.topology().lsa_size < runtime.size()) {
        report.notes.push_back(
            "sent by the busiest rank in one call; us: read and written once at the copy rate;\n"
            "floor: the least that the routing allows, payload only, in full puts\n" +
            traffic_table(results, rates.copy_bytes_per_s).text());
    }
    return report;
}

std::vector<CaseReport> run_cases(Runtime& runtime, const BenchOptions& options, Measure& measure,
                                  const CopyRates& rates) {
    const std::size_t shapes = options.modes.size() * options.syncs.size() * options.types.size() *
                               options.routings.size() * options.tokens.size() *
                               options.hidden.size();
    Progress progress("bench", options.has_case("barrier") + options.has_case("put") +
                                   options.has_case("pipeline") + options.has_case("handover") +
                                   (options.has_exchange_case() ? shapes : 0));
    std::uint64_t done = 0;
    const auto tick = [&] {
        ++done;
        if (runtime.rank() == 0) progress.update(done);
    };
    PrimitiveBenchOptions primitives = options.primitives;
    primitives.sms = options.sms;
    primitives.measure = options.measure;
    std::vector<CaseReport> reports;
    if (options.has_case("barrier")) {
        reports.push_back(bench_barriers(runtime, primitives));
        tick();
    }
    if (options.has_case("put")) {
        reports.push_back(bench_puts(runtime, primitives, measure, rates));
        tick();
    }
    if (options.has_case("handover")) {
        reports.push_back(bench_handover(runtime, primitives));
        tick();
    }
    if (options.has_case("pipeline")) {
        reports.push_back(bench_pipeline(runtime, primitives, options.tokens, options.hidden));
        tick();
    }
    if (options.has_exchange_case())
        reports.push_back(bench_exchanges(runtime, options, measure, rates, tick));
    return reports;
}

void write_lines(const std::vector<CaseReport>& reports, const std::string& path) {
    std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "a");
    if (file == nullptr) raise(ErrorCode::system, 0, "cannot write {}", path);
    for (const CaseReport& report : reports) {
        for (const auto& line : report.lines) std::fputs((line.dump() + "\n").c_str(), file);
    }
    if (file != stdout) std::fclose(file);
}

int run_rank(const BenchOptions& options, std::shared_ptr<Bootstrap> bootstrap) {
    RuntimeConfig config;
    if (options.deadline_ms >= 0)
        config.deadline_ns = static_cast<std::uint64_t>(options.deadline_ms) * 1'000'000;
    if (options.event_ring || options.first_row || options.timeline)
        config.event_ring = RuntimeConfig::EventRing::on;
    auto runtime = Runtime::create(bootstrap, config);
    std::vector<CaseReport> reports;
    CopyRates rates;
    {
        Measure measure(*runtime, static_cast<std::size_t>(options.flush_mib) << 20,
                        options.measure);
        rates = {measure.copy_ceiling_bytes_per_s(), measure.link_rate_bytes_per_s()};
        reports = run_cases(*runtime, options, measure, rates);
    }
    if (runtime->rank() == 0) {
        std::printf("%s, %d ranks, LSA teams of %d, copy %.2f TB/s (read + write)\n",
                    runtime->device().name.c_str(), runtime->size(), runtime->topology().lsa_size,
                    rates.copy_bytes_per_s / 1e12);
        if (rates.link_bytes_per_s > 0) {
            std::printf("copy to another GPU %.0f GB/s, all GPUs side by side\n",
                        rates.link_bytes_per_s / 1e9);
        }
        for (const CaseReport& report : reports) {
            std::fputs(report.table.text().c_str(), stdout);
            for (const std::string& note : report.notes) std::printf("%s\n", note.c_str());
        }
        if (!options.json_path.empty()) write_lines(reports, options.json_path);
    }
    runtime->close();
    return 0;
}

const char* const kCases[] = {"barrier", "put",     "handover",  "pipeline", "dispatch",
                              "cached",  "combine", "roundtrip", "launch"};

void add_pipeline_options(CLI::App* bench, BenchOptions* options) {
    PrimitiveBenchOptions& pipeline = options->primitives;
    bench->add_option("--stages", pipeline.stages, "pipeline: stages that each row goes through")
        ->check(CLI::PositiveNumber);
    bench
        ->add_option("--batches", pipeline.batches,
                     "pipeline: how the T rows come: whole, even (four), skewed (four), a list")
        ->delimiter(',')
        ->check(CLI::IsMember({"whole", "even", "skewed"}));
    bench->add_option("--fifo-slots", pipeline.fifo_slots, "pipeline: slots of a lane's ring");
    bench->add_option("--fifo-chunk", pipeline.fifo_chunk,
                      "pipeline: rows between two moves of a tail, and of a head");
    bench->add_option("--model-flag-ns", pipeline.model.flag_ns,
                      "pipeline: the model's time from a flag's store until it is seen");
    bench->add_option("--model-barrier-ns", pipeline.model.barrier_ns,
                      "pipeline: the model's time of a barrier");
    bench
        ->add_option("--model-lane-rate", pipeline.model.lane_bytes_per_s,
                     "pipeline: bytes a second that one lane copies in the model")
        ->check(CLI::PositiveNumber);
}

}  // namespace

void add_bench(CLI::App* app, const Arguments& arguments, Action* action) {
    auto options = std::make_shared<BenchOptions>();
    CLI::App* bench = app->add_subcommand(
        "bench",
        "Times cases and compares them with the floor: the bytes "
        "that must be read and written once, over the measured\n"
        "device copy rate, or cross the links between GPUs, over "
        "the measured rate of a peer copy. Run it under mpirun for one process a "
        "rank, or with --ranks N for threads.");
    bench
        ->add_option(
            "cases,--case", options->cases,
            "barrier (beside NCCL's own), put (LSA and GIN, by size), handover (fifo beside "
            "a flag), pipeline (barriers against fifos), dispatch, cached, "
            "combine, roundtrip, launch (a 16-byte memset: what starting anything costs)")
        ->delimiter(',')
        ->check(CLI::IsMember(std::vector<std::string>(std::begin(kCases), std::end(kCases))));
    bench->add_option("--tokens", options->tokens, "tokens a rank, a list")
        ->delimiter(',')
        ->check(CLI::PositiveNumber);
    bench->add_option("--hidden", options->hidden, "elements of a row, a list")->delimiter(',');
    bench
        ->add_option("--type", options->types,
                     "dispatched type: bf16, fp8 (with fp32 scales per 128)")
        ->delimiter(',')
        ->check(CLI::IsMember({"bf16", "fp8"}));
    bench->add_option("--routing", options->routings, "uniform, log-normal, hot, grouped; a list")
        ->delimiter(',')
        ->check(CLI::IsMember({"uniform", "log-normal", "hot", "grouped"}));
    bench
        ->add_option("--mode", options->modes,
                     "direct, hybrid, automatic: how rows reach other LSA teams, a list")
        ->delimiter(',')
        ->check(CLI::IsMember({"direct", "hybrid", "automatic"}));
    bench
        ->add_option("--sync", options->syncs,
                     "barrier, fifo: how ranks wait for each other, a list (pipeline: both, if not "
                     "given)")
        ->delimiter(',')
        ->check(CLI::IsMember({"barrier", "fifo"}));
    bench->add_flag("--first-row", options->first_row,
                    "Also says when the first and the last row of a dispatch are there, by events "
                    "that its kernel then writes");
    bench->add_option("--ring-rows", options->shape.chunks.nvl_recv,
                      "fifo: rows that a ring holds, 0 = choose");
    bench->add_option("--send-rows", options->shape.chunks.nvl_send,
                      "fifo: rows between two moves of a ring's tail, 0 = choose");
    bench->add_option("--rail-ring-rows", options->shape.chunks.rdma_recv,
                      "fifo: rows that a ring between LSA teams holds, 0 = choose");
    bench->add_option("--rail-send-rows", options->shape.chunks.rdma_send,
                      "fifo: rows between two moves of its tail, 0 = choose");
    bench->add_option("--publish-rows", options->shape.publish_rows,
                      "hybrid: rows between two moves of a rail stream's tail, 0 = choose");
    bench->add_option("--experts", options->experts, "experts over all ranks");
    bench->add_option("--topk", options->topk, "experts a token");
    bench->add_option("--sms", options->sms, "SMs that a rank may occupy, 0 = choose");
    bench->add_option("--layout", options->layout)
        ->check(CLI::IsMember({"rank-major", "expert-major"}));
    bench->add_option("--index", options->index)->check(CLI::IsMember({"int32", "int64"}));
    bench->add_option("--dispatch-threads", options->shape.dispatch_threads);
    bench->add_option("--combine-threads", options->shape.combine_threads);
    bench->add_option("--combine-blocks", options->shape.combine_blocks_per_sm,
                      "combine blocks an SM");
    bench
        ->add_option("--barrier-repeats", options->primitives.barrier_repeats,
                     "barrier: barriers in one launch")
        ->check(CLI::PositiveNumber);
    bench->add_option("--put-bytes", options->primitives.put_bytes, "put: sizes of one put, a list")
        ->delimiter(',');
    bench
        ->add_option("--put-total-kib", options->primitives.put_total_kib,
                     "put: bytes of one measured launch")
        ->check(CLI::PositiveNumber);
    bench
        ->add_option("--put-contexts", options->primitives.put_contexts,
                     "put: GIN contexts used side by side")
        ->check(CLI::Range(1, 32));
    add_pipeline_options(bench, options.get());
    bench->add_option("--calls", options->measure.calls, "measured calls a case")
        ->check(CLI::PositiveNumber);
    bench->add_option("--warmups", options->measure.warmups);
    bench->add_option("--flush-mib", options->flush_mib,
                      "memory overwritten between calls to empty L2, 0 = none");
    bench
        ->add_option(
            "--deadline-ms", options->deadline_ms,
            "longest wait of a kernel, 0 = none: what deadlines cost; GIMLET_TIMEOUT_MS if "
            "not given")
        ->check(CLI::NonNegativeNumber);
    bench->add_flag("--event-ring", options->event_ring,
                    "kernels note where they are: what that costs");
    bench->add_flag("--timeline", options->timeline,
                    "Also says when the last call of a case came where on each rank, by events "
                    "that its kernels then write: where the time goes");
    bench->add_option("--ranks", options->ranks, "ranks as threads, without mpirun");
    bench->add_option("--json", options->json_path,
                      "appends one JSON line a case to this file, - = standard output");
    bench->callback([bench, options, arguments, action] {
        if (bench->count("--sync") > 0) {
            options->primitives.syncs.clear();
            for (const std::string& sync : options->syncs) {
                options->primitives.syncs.push_back(sync == "fifo" ? PipelineSync::fifo
                                                                   : PipelineSync::barrier);
            }
        }
        *action = [options, arguments] {
            SessionOptions session;
            session.thread_ranks = options->ranks;
            return run_ranks(session, arguments.argc, arguments.argv,
                             [&](std::shared_ptr<Bootstrap> bootstrap) {
                                 return run_rank(*options, bootstrap);
                             });
        };
    });
}

}  // namespace gimlet::cli

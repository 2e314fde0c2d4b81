// SPDX-License-Identifier: Apache-2.0
#include "runtime/health.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "host/base/text.hpp"

namespace gimlet {
namespace {

bool of_step(const DeviceError& error) {
    return error.tag == static_cast<std::uint32_t>(Tag::dispatch) ||
           error.tag == static_cast<std::uint32_t>(Tag::combine);
}

/// How far the peer of a wait that ended without it had come.
enum class Progress {
    absent,   ///< it has not entered
    no_data,  ///< it has: dispatch and combine use channels only once they know that
    no_room,  ///< the same
    unknown,
};

Progress progress_of_peer(Primitive primitive) {
    switch (primitive) {
        case Primitive::count_exchange:
        case Primitive::combine_ready:
        case Primitive::nvlink_barrier:
        case Primitive::gin_barrier:
        case Primitive::block_barrier: return Progress::absent;
        case Primitive::dispatch_arrival:
        case Primitive::combine_chunk:
        case Primitive::rail_dispatch:
        case Primitive::rail_combine:
        case Primitive::fifo_wait: return Progress::no_data;
        case Primitive::fifo_reserve: return Progress::no_room;
        case Primitive::none:
        case Primitive::user:
        case Primitive::grid_barrier:
        case Primitive::windowed_tail:
        case Primitive::pipeline:
        case Primitive::ready_block: break;
    }
    return Progress::unknown;
}

/// "rank 3", or, in a step, "rank 3 entered this combine, but".
std::string channel_end(const DeviceError& error) {
    if (!of_step(error)) return fmt::format("rank {}", error.peer);
    return fmt::format("rank {} entered this {}, but", error.peer,
                       name_of(static_cast<Tag>(error.tag)));
}

/// What a wait that ended without its peer says about that peer.
std::string meaning(const DeviceError& error) {
    switch (error.primitive) {
        case Primitive::count_exchange:
            if (error.peer == error.rank)
                return "another block of this rank's own kernel did not run: too few free SMs?";
            return fmt::format(
                "rank {} has not entered this dispatch; it is late, gone, or in another step",
                error.peer);
        case Primitive::dispatch_arrival:
            return fmt::format("rank {} entered this dispatch, but its rows have not all arrived",
                               error.peer);
        case Primitive::combine_ready:
            return fmt::format(
                "rank {} has not entered this combine; it is late, gone, or in another step",
                error.peer);
        case Primitive::combine_chunk:
            return fmt::format("rank {} entered this combine, but its rows have not all come home",
                               error.peer);
        case Primitive::rail_dispatch:
            return fmt::format(
                "rank {} entered this dispatch, but its rows for this team have not all arrived",
                error.peer);
        case Primitive::rail_combine:
            return fmt::format(
                "rank {} entered this combine, but its team's sums have not all come home",
                error.peer);
        case Primitive::grid_barrier:
            return "a block of this rank's own kernel did not run: too few free SMs?";
        case Primitive::nvlink_barrier:
        case Primitive::gin_barrier:
        case Primitive::block_barrier:
            return fmt::format("rank {} has not entered this barrier; it is late or gone",
                               error.peer);
        case Primitive::fifo_reserve:
            return channel_end(error) + " has not freed slots of this channel: it is slow or gone";
        case Primitive::fifo_wait:
            return channel_end(error) + " has not filled slots of this channel: it is slow or gone";
        case Primitive::windowed_tail:
        case Primitive::pipeline:
            return "another warp of this rank's own kernel has stopped, or waits for a peer";
        case Primitive::ready_block:
            return "rows of this block have not arrived: the dispatch is late, or was never queued";
        case Primitive::none:
        case Primitive::user: break;
    }
    return "the peer is late or gone";
}

const char* name_of_context(Primitive primitive) {
    switch (primitive) {
        case Primitive::fifo_reserve:
        case Primitive::fifo_wait: return "channel";
        case Primitive::pipeline: return "stage";
        default: return "GIN context";
    }
}

/// Also of a wait that was cut short, whose deadline was not the point.
std::string describe_timeout(const DeviceError& error) {
    std::string out = fmt::format("{} waited {} in {}", name_of(static_cast<Tag>(error.tag)),
                                  format_duration_ns(error.elapsed_ns), name_of(error.primitive));
    if (error.peer >= 0) out += fmt::format(" for rank {}", error.peer);
    if (error.context >= 0)
        out += fmt::format(" on {} {}", name_of_context(error.primitive), error.context);
    out += fmt::format(": epoch {}, expected {}, seen {}; {}; ", error.epoch, error.expected,
                       error.seen, meaning(error));
    return out + (error.fault == DeviceFault::cut_short
                      ? "another rank's deadline has expired"
                      : "deadline_ns or GIMLET_TIMEOUT_MS raises the limit");
}

bool is_cause(const DeviceError& error) {
    return error.fault != DeviceFault::timed_out && error.fault != DeviceFault::cut_short &&
           error.fault != DeviceFault::peer_refused;
}

/// The step of a record, to tell ranks in one step from ranks in different ones.
bool same_step(const DeviceError& a, const DeviceError& b) {
    return a.tag == b.tag && a.epoch == b.epoch;
}

/// What is wrong with a rank, by the first record that points at it and by its own.
const char* charge(const DeviceError& first, const std::optional<DeviceError>& own) {
    if (first.fault == DeviceFault::peer_refused) return "it refused the step";
    const Progress progress = progress_of_peer(first.primitive);
    if (progress == Progress::no_data)
        return of_step(first) ? "it entered the step, but its data is missing"
                              : "its data is missing";
    if (progress == Progress::no_room)
        return of_step(first) ? "it entered the step, but frees no room for more rows"
                              : "it frees no room";
    if (own && same_step(*own, first)) return "it entered the step, but its word has not arrived";
    return "it never entered the step";
}

std::string accusation(const GroupReport& report, int suspect) {
    std::vector<int> waiting;
    const DeviceError* first = nullptr;
    for (std::size_t r = 0; r < report.records.size(); ++r) {
        const auto& record = report.records[r];
        if (!record || record->peer != suspect) continue;
        waiting.push_back(static_cast<int>(r));
        if (first == nullptr) first = &*record;
    }
    if (first == nullptr) return fmt::format("rank {} has reported nothing", suspect);
    const auto& own = report.records[static_cast<std::size_t>(suspect)];
    const char* kernel = name_of(static_cast<Tag>(first->tag));
    return fmt::format("rank {} ({}{}): {} {} in {} of {} {}", suspect, charge(*first, own),
                       own ? "" : "; no report from it", format_ranks(waiting),
                       waiting.size() == 1 ? "waits" : "wait", name_of(first->primitive), kernel,
                       first->epoch);
}

/// Whom the records point at. Ranks that refused come first: the others only suffer from them.
/// Then those whom somebody waits for and who say nothing, then those who say something else.
std::vector<int> find_suspects(const GroupReport& report) {
    std::vector<int> causes, silent, accused, quiet;
    const auto add = [](std::vector<int>* list, int rank) {
        if (std::find(list->begin(), list->end(), rank) == list->end()) list->push_back(rank);
    };
    for (std::size_t r = 0; r < report.records.size(); ++r) {
        const int rank = static_cast<int>(r);
        const auto& record = report.records[r];
        if (!record) {
            const auto& out = report.excluded;
            if (std::find(out.begin(), out.end(), rank) == out.end()) quiet.push_back(rank);
            continue;
        }
        if (is_cause(*record)) causes.push_back(rank);
        const auto peer = static_cast<std::size_t>(record->peer);
        if (record->peer < 0 || peer >= report.records.size() || record->peer == rank) continue;
        add(report.records[peer] ? &accused : &silent, record->peer);
    }
    for (auto* list : {&causes, &silent, &accused, &quiet}) {
        if (list->empty()) continue;
        std::sort(list->begin(), list->end());
        return *list;
    }
    return {};
}

/// Ranks that have said nothing and that nobody's record points at, where a record names only the
/// first of several missing ranks.
std::string also_silent(const GroupReport& report) {
    constexpr int kMostNamed = 8;
    std::string out;
    int named = 0;
    for (std::size_t r = 0; r < report.records.size(); ++r) {
        const auto among = [r](const std::vector<int>& ranks) {
            return std::find(ranks.begin(), ranks.end(), static_cast<int>(r)) != ranks.end();
        };
        if (report.records[r] || among(report.suspects) || among(report.excluded)) continue;
        if (++named > kMostNamed) continue;
        out += fmt::format("{}rank {}", out.empty() ? "; nothing was heard of " : ", ", r);
    }
    if (named > kMostNamed) out += fmt::format(" and {} more", named - kMostNamed);
    return out;
}

}  // namespace

GroupReport make_group_report(std::vector<std::optional<DeviceError>> records,
                              std::vector<int> excluded) {
    constexpr std::size_t kMostLines = 16;
    GroupReport report;
    report.records = std::move(records);
    report.excluded = std::move(excluded);
    const bool any = std::any_of(report.records.begin(), report.records.end(),
                                 [](const auto& record) { return record.has_value(); });
    if (!any) return report;
    report.suspects = find_suspects(report);
    for (const int suspect : report.suspects) {
        const auto& own = report.records[static_cast<std::size_t>(suspect)];
        if (!report.cause.empty()) report.cause += "; ";
        report.cause += own && is_cause(*own) ? fmt::format("rank {}: {}", suspect, describe(*own))
                                              : accusation(report, suspect);
        if (report.cause.size() > 1000) break;
    }
    report.cause += also_silent(report);
    report.text = "the step failed; cause: " + report.cause;
    std::vector<int> silent;
    std::size_t lines = 0;
    for (std::size_t r = 0; r < report.records.size(); ++r) {
        const auto& record = report.records[r];
        if (!record) {
            silent.push_back(static_cast<int>(r));
        } else if (++lines <= kMostLines) {
            report.text += fmt::format("\n  rank {}: {}", r, describe(*record));
        }
    }
    if (lines > kMostLines) {
        report.text += fmt::format("\n  ... and {} more ranks", lines - kMostLines);
    }
    if (!silent.empty()) report.text += "\n  no report: ranks " + format_ranks(silent);
    if (!report.excluded.empty()) {
        report.text += "\n  excluded: ranks " + format_ranks(report.excluded);
    }
    return report;
}

ErrorCode error_code_of(DeviceFault fault) noexcept {
    switch (fault) {
        case DeviceFault::none: return ErrorCode::internal;
        case DeviceFault::timed_out: return ErrorCode::timeout;
        case DeviceFault::expert_out_of_range: return ErrorCode::invalid_argument;
        case DeviceFault::duplicate_expert: return ErrorCode::invalid_argument;
        case DeviceFault::capacity_exceeded: return ErrorCode::overflow;
        case DeviceFault::mode_mismatch: return ErrorCode::invalid_usage;
        case DeviceFault::peer_refused: return ErrorCode::peer_failed;
        case DeviceFault::host_refused: return ErrorCode::invalid_argument;
        case DeviceFault::wrong_buffer: return ErrorCode::invalid_usage;
        case DeviceFault::cut_short: return ErrorCode::timeout;
        case DeviceFault::rails_left: return ErrorCode::invalid_usage;
    }
    return ErrorCode::internal;
}

std::string describe(const DeviceError& error) {
    const char* kernel = name_of(static_cast<Tag>(error.tag));
    const auto seen = static_cast<std::int64_t>(error.seen);
    const auto expected = static_cast<std::int64_t>(error.expected);
    switch (error.fault) {
        case DeviceFault::none: break;
        case DeviceFault::timed_out:
        case DeviceFault::cut_short: return describe_timeout(error);
        case DeviceFault::expert_out_of_range:
            return fmt::format("{} {}: token {} names expert {}; it must be -1 (masked) or 0..{}",
                               kernel, error.epoch, error.token, seen,
                               static_cast<std::int64_t>(error.expected - 1));
        case DeviceFault::duplicate_expert:
            return fmt::format(
                "{} {}: token {} names expert {} twice; the choices of a token must differ", kernel,
                error.epoch, error.token, seen);
        case DeviceFault::capacity_exceeded:
            return fmt::format(
                "{} {}: {} rows would arrive at rank {}, its buffer holds {}; raise max_recv_rows, "
                "or set "
                "it to 0 for the worst case",
                kernel, error.epoch, seen, error.peer, expected);
        case DeviceFault::mode_mismatch:
            return fmt::format(
                "{} {}: rank {} runs a {} dispatch, this rank a {} one; all ranks must use a "
                "cached "
                "routing in the same steps",
                kernel, error.epoch, error.peer, seen == 1 ? "cached" : "fresh",
                expected == 1 ? "cached" : "fresh");
        case DeviceFault::peer_refused:
            return fmt::format(
                "{} {}: rank {} refused its own input and sent nothing; its report says why",
                kernel, error.epoch, error.peer);
        case DeviceFault::host_refused:
            return fmt::format(
                "{} {}: the arguments of the call on rank {} were refused; its own error says why",
                kernel, error.epoch, error.rank);
        case DeviceFault::wrong_buffer:
            return fmt::format(
                "{} {}: its addresses belong to buffer {}, this step uses buffer {}; between the "
                "capture of a graph and its launch an odd number of steps ran (see reserve())",
                kernel, error.epoch, expected, seen % 2);
        case DeviceFault::rails_left:
            return fmt::format(
                "{} {}: its graph was captured in hybrid mode, which this Exchange has left "
                "because "
                "ranks were excluded; capture it again",
                kernel, error.epoch);
    }
    return fmt::format("{} {}: unknown fault {}", kernel, error.epoch,
                       static_cast<std::uint32_t>(error.fault));
}

std::string describe(const std::vector<DeviceEvent>& events) {
    constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << 56) - 1;
    std::string out;
    for (const DeviceEvent& event : events) {
        out += fmt::format("{}{} {} {} block {}, {} before the last", out.empty() ? "" : "\n  ",
                           name_of(static_cast<Tag>(event.tag)), event.epoch, name_of(event.kind),
                           event.block,
                           format_duration_ns((events.back().time_ns - event.time_ns) & kTimeMask));
    }
    return out;
}

std::optional<DeviceError> read_device_error(const DeviceError* record) noexcept {
    if (record == nullptr) return std::nullopt;
    if (__atomic_load_n(&record->state, __ATOMIC_ACQUIRE) != kDeviceErrorComplete)
        return std::nullopt;
    DeviceError copy;
    std::memcpy(&copy, record, sizeof copy);
    return copy;
}

}  // namespace gimlet

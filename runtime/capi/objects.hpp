// SPDX-License-Identifier: Apache-2.0
// The objects behind the handles. Internal.
#pragma once

#include <memory>
#include <vector>

#include "host/bootstrap/bootstrap.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "runtime/capi/boundary.hpp"
#include "runtime/exchange.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::capi {

using ThreadGroups = HandleTable<gimlet_thread_group, ThreadGroup, HandleKind::thread_group>;
using Bootstraps = HandleTable<gimlet_bootstrap, Bootstrap, HandleKind::bootstrap>;
using Runtimes = HandleTable<gimlet_runtime, Runtime, HandleKind::runtime>;
using Exchanges = HandleTable<gimlet_exchange, Exchange, HandleKind::exchange>;
using Routings = HandleTable<gimlet_routing, Routing, HandleKind::routing>;

/// C has no optional: 0 = unset, GIMLET_NO_DEADLINE = 0.
inline std::optional<std::uint64_t> deadline_from(std::uint64_t deadline_ns) {
    if (deadline_ns == 0) return std::nullopt;
    return deadline_ns == GIMLET_NO_DEADLINE ? 0 : deadline_ns;
}
inline std::uint64_t deadline_to(std::uint64_t deadline_ns) {
    return deadline_ns == 0 ? GIMLET_NO_DEADLINE : deadline_ns;
}

MoeConfig read_moe_config(const gimlet_moe_config* config);

/// Fills state and record, and writes the report.
void write_health(const Health& health, const StructOut<gimlet_health>& to, const TextOut& text);

void write_events(const std::vector<DeviceEvent>& from, const ListOut<gimlet_device_event>& to);

/// A caller's gimlet_group_report, checked before anything is done.
class GroupReportOut {
  public:
    /// `report` may be null. Raises Error(invalid_argument) if its arrays do not hold `rank_count`.
    GroupReportOut(gimlet_group_report* report, std::int32_t rank_count);
    void write(const std::optional<GroupReport>& from) const noexcept;

  private:
    StructOut<gimlet_group_report> out_;
    gimlet_group_report value_ = gimlet_group_report_init();
    std::int32_t rank_count_;
};

/// Writes what all ranks say about a failure, or that nothing has failed.
inline void write_group(const std::optional<GroupReport>& from, const GroupReportOut& report,
                        const TextOut& text) {
    report.write(from);
    text.write(from ? std::string_view(from->text) : std::string_view());
}

// What a Runtime and an Exchange have in common.

inline std::int32_t rank_count_of(const Runtime& runtime) {
    return runtime.size();
}
inline std::int32_t rank_count_of(const Exchange& exchange) {
    return exchange.plan().rank_count;
}

template <typename Object>
void tell_health(const Object& object, gimlet_health* health, const TextOut& text) {
    const StructOut out(health, "health");
    write_health(object.health(), out, text);
}

template <typename Object>
void tell_group(const Object& object, gimlet_group_report* report, const TextOut& text) {
    const GroupReportOut out(report, rank_count_of(object));
    write_group(object.health().group, out, text);
}

template <typename Object>
void tell_events(const Object& object, const TextOut& text) {
    text.write(describe(object.health().events));
}

/// Where a caller wants the report of a call of all ranks; checked before anything is done.
struct GroupOutputs {
    GroupReportOut report;
    TextOut text;
    void write(const std::optional<GroupReport>& from) const { write_group(from, report, text); }
};

/// Arguments of a call that the other ranks make, too: `refuse` tells them, and raises.
template <typename Read, typename Refuse>
auto read_or(Read read, Refuse refuse) {
    try {
        return read();
    } catch (const Error& fault) {
        refuse(fault);
        throw;
    }
}

template <typename Object>
void recover(Object& object, gimlet_group_report* report, char* text, std::size_t text_bytes,
             std::size_t* needed_bytes) {
    const auto outputs = read_or(
        [&] {
            return GroupOutputs{{report, rank_count_of(object)}, {text, text_bytes, needed_bytes}};
        },
        [&](const Error& fault) { object.refuse_recover(fault); });
    outputs.write(object.recover());
}

/// Text or JSON; refuses another format before `text` and `json` are called.
template <typename Text, typename Json>
void write_text(gimlet_text_format format, const TextOut& out, Text text, Json json) {
    if (format != GIMLET_TEXT && format != GIMLET_JSON) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "format is {}; it must be GIMLET_TEXT or GIMLET_JSON", format);
    }
    out.write(format == GIMLET_TEXT ? text() : json());
}

}  // namespace gimlet::capi

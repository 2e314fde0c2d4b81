// SPDX-License-Identifier: Apache-2.0
// How a plan prints itself.
#include <fmt/format.h>

#include "host/base/text.hpp"
#include "runtime/plan.hpp"

namespace gimlet {
namespace {

std::string shape_text(const char* name, const KernelShape& shape) {
    return fmt::format("  {:<10}{:>6} blocks x {:>4} threads, {:>9} shared\n", name,
                       shape.block_count, shape.thread_count, format_bytes(shape.shared_bytes));
}

std::string shape_json(const KernelShape& shape) {
    return fmt::format(
        "{{\"block_count\":{},\"thread_count\":{},\"shared_bytes\":{},\"copy_warps\":{},"
        "\"slots_per_warp\":{},\"slot_bytes\":{},\"forward_warps\":{},\"count_warps\":{}}}",
        shape.block_count, shape.thread_count, shape.shared_bytes, shape.copy_warps,
        shape.slots_per_warp, shape.slot_bytes, shape.forward_warps, shape.count_warps);
}

}  // namespace

std::string Plan::text() const {
    std::string out =
        fmt::format("plan {:016x}: {} ranks, LSA teams of {}, {} experts, top {}, {}\n", hash(),
                    rank_count, lsa_size, config.expert_count, config.topk, name_of(config.layout));
    out += fmt::format("  rows      {} x {} ({}) out, {} ({}) back, record {} B, {} scale words\n",
                       config.hidden, name_of(config.dispatch_type),
                       format_bytes(token_layout.row_bytes), name_of(config.combine_type),
                       format_bytes(combine_row_bytes), token_layout.record_bytes(),
                       config.scale_words);
    out += fmt::format("  capacity  {} tokens a rank; {} rows received at most, buffers hold {}\n",
                       config.max_tokens, worst_case_rows, row_capacity);
    if (gin_peer_count > 0) out += fmt::format("  mode      {}: {}\n", name_of(mode), mode_reason);
    if (rail.active()) {
        out += fmt::format(
            "  rail      {} teams, {} channels of {} tokens, tails every {} rows, pre-sum {}\n",
            rail.team_count, rail.channel_count, rail.channel_rows,
            stream.active() ? stream.rail_dispatch_rows : rail.publish_rows,
            rail.pre_sum == PreSum::on ? "on" : "off");
        std::string spare = fallback != nullptr ? "direct when ranks are excluded"
                                                : "none, exclude() is refused: " + fallback_reason;
        if (spare.size() > 86) spare = spare.substr(0, 83) + "...";
        out += fmt::format("  fallback  {}\n", spare);
    }
    if (stream.active()) {
        out += fmt::format(
            "  fifo      {} channels, rings of {} slots of {} ({})\n"
            "            tails every {} rows out, {} back; blocks of {} rows counted\n",
            stream.channel_count, stream.slot_count, format_bytes(stream.slot_bytes), stream_reason,
            stream.dispatch_rows, stream.combine_rows, stream.ready_rows);
        if (rail.active()) {
            out += fmt::format(
                "            between teams rings of {} slots, tails every {} rows out, {} back\n",
                stream.rail_slots, stream.rail_dispatch_rows, stream.rail_combine_rows);
        }
    }
    if (gin_peer_count > 0) {
        out += fmt::format(
            "  GIN       {} peers, {} contexts, {} signals each, {} rows a put, {} send rows\n",
            gin_peer_count, kernels.gin_context_count, signal_count, kernels.chunk_rows,
            send_capacity);
    } else {
        out += "  GIN       not needed\n";
    }
    out += shape_text("dispatch", kernels.dispatch);
    out += fmt::format("            {} copy warps x {} slots of {}, {} count warps\n",
                       kernels.dispatch.copy_warps, kernels.dispatch.slots_per_warp,
                       format_bytes(kernels.dispatch.slot_bytes), kernels.dispatch.count_warps);
    out += shape_text("combine", kernels.combine);
    out += shape_text("barrier", kernels.barrier);
    if (tensors.total_bytes > 0)
        out +=
            fmt::format("  tensors   {} of the library's own\n", format_bytes(tensors.total_bytes));
    out += fmt::format("  window    {}, wait deadline {}\n", format_bytes(window_bytes),
                       deadline_ns == 0 ? std::string("none") : format_duration_ns(deadline_ns));
    const WindowLayout layout = window_layout();
    for (const auto& region : layout.regions()) {
        if (region.bytes == 0) continue;
        out += fmt::format("    {:<16} at {:>14}  {:>10}\n", region.name, region.offset_bytes,
                           format_bytes(region.bytes));
    }
    return out;
}

std::string Plan::json() const {
    std::string out =
        fmt::format("{{\"hash\":\"{:016x}\",\"rank\":{},\"lsa_rank\":{},\"gin_peer_count\":{},",
                    hash(), rank, lsa_rank, gin_peer_count);
    out += fmt::format("\"mode\":{},\"mode_reason\":{},", json_quote(name_of(mode)),
                       json_quote(mode_reason));
    out += fmt::format("\"fallback_reason\":{},", json_quote(fallback_reason));
    out += fmt::format("\"worst_case_rows\":{},\"deadline_ns\":{},\"agreed\":{{", worst_case_rows,
                       deadline_ns);
    bool first = true;
    for (const auto& field : agreed_fields()) {
        out += fmt::format("{}{}:{}", first ? "" : ",", json_quote(field.name),
                           json_quote(field.value));
        first = false;
    }
    out += fmt::format(
        "}},\"kernels\":{{\"dispatch\":{},\"combine\":{},\"barrier\":{}}},\"regions\":[",
        shape_json(kernels.dispatch), shape_json(kernels.combine), shape_json(kernels.barrier));
    first = true;
    const WindowLayout layout = window_layout();
    for (const auto& region : layout.regions()) {
        out += fmt::format("{}{{\"name\":{},\"offset_bytes\":{},\"bytes\":{}}}", first ? "" : ",",
                           json_quote(region.name), region.offset_bytes, region.bytes);
        first = false;
    }
    return out + "]}";
}

}  // namespace gimlet

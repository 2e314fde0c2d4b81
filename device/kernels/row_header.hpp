// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/kernels/dispatch_context.hpp"

// Rows that somebody else hands on travel with a header that says where they go: rows on the rail,
// and rows in rings.
namespace gimlet::device {

GIMLET_DEVICE RailRowLayout rail_layout(const ExchangeArgs& exchange) {
    return RailRowLayout{exchange.token_layout.row_bytes, static_cast<std::uint32_t>(exchange.topk),
                         exchange.token_layout.scale_words};
}

/// The record that the row of choice `choice` gets at `rank`, from the header that its row
/// travelled with.
/// Lanes below K hold the token's experts and weights. Whole warp.
template <Reach R>
GIMLET_DEVICE void write_forwarded_record(const DispatchContext<R>& ctx,
                                          const std::uint32_t* header, std::uint32_t* record,
                                          std::int32_t source, std::int32_t rank,
                                          std::int32_t choice) {
    const TokenLayout& layout = ctx.exchange.token_layout;
    const RailRowLayout rail = rail_layout(ctx.exchange);
    const auto lane = static_cast<std::uint32_t>(lane_index());
    if (lane == 0) {
        record[layout.token_word()] = header[0];
        record[layout.source_word()] = static_cast<std::uint32_t>(source);
    }
    if (ctx.rank_major()) {
        if (lane < rail.topk) {
            const auto expert = static_cast<std::int32_t>(header[rail.index_word() + lane]);
            const std::int32_t local = expert - ctx.experts.first(rank);
            const bool here = expert >= 0 && local >= 0 && local < ctx.experts.local_count(rank);
            record[layout.index_word() + lane] =
                here ? static_cast<std::uint32_t>(local) : 0xffffffffu;
            record[layout.weight_word() + lane] = header[rail.weight_word() + lane];
        }
    } else if (lane == 0) {
        record[layout.index_word()] = static_cast<std::uint32_t>(choice);
        record[layout.weight_word()] =
            header[rail.weight_word() + static_cast<std::uint32_t>(choice)];
    }
    GIMLET_ROLLED
    for (std::uint32_t w = lane; w < layout.scale_words; w += kWarpSize)
        record[layout.scale_word() + w] = header[rail.scale_word() + w];
    const std::uint32_t spare = layout.used_words() + lane;
    if (spare < layout.record_words()) record[spare] = 0;
}

}  // namespace gimlet::device

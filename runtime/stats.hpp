// SPDX-License-Identifier: Apache-2.0
// What an Exchange did, and what one step moved.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan.hpp"

namespace gimlet {

/// Counters of one Exchange on one rank, since its creation. Captured calls count once, when they
/// are captured.
struct ExchangeStats {
    std::uint64_t dispatches = 0;  ///< fresh and cached
    std::uint64_t cached_dispatches = 0;
    std::uint64_t combines = 0;
    std::uint64_t captured_calls = 0;     ///< dispatches and combines inside a graph capture
    std::uint64_t host_count_waits = 0;   ///< dispatches that waited for host counts
    std::uint64_t tokens_dispatched = 0;  ///< T summed over dispatches
    std::uint64_t recoveries = 0;
};

/// Messages and bytes of one dispatch and one combine of this rank, exact, from the counts of the
/// step.
struct StepTraffic {
    std::vector<std::int64_t> rows_to;     ///< [R]
    std::vector<std::int64_t> rows_from;   ///< [R]
    std::int64_t rows_sent = 0;            ///< this rank's own included
    std::int64_t rows_received = 0;        ///< without padding
    std::int64_t lsa_rows_sent = 0;        ///< to this rank and its LSA peers
    std::int64_t gin_rows_sent = 0;        ///< hybrid: one for each (token, other team) pair
    std::int64_t dispatch_bytes_sent = 0;  ///< rows and records
    std::int64_t combine_bytes_sent = 0;   ///< rows pushed home, and rows that LSA peers pull
    std::int64_t dispatch_gin_bytes = 0;   ///< rows, records and headers that this rank puts
    std::int64_t dispatch_lsa_bytes = 0;   ///< that it stores at other ranks of its team
    std::int64_t combine_gin_bytes = 0;    ///< rows or sums that it puts home
    std::int64_t combine_lsa_bytes = 0;    ///< rows that it pulls from other ranks of its team
    std::int64_t dispatch_puts = 0;  ///< GIN puts: count rows, chunks of rows, chunks of records
    std::int64_t dispatch_doorbells = 0;  ///< aggregated puts ring once; arrival signals ring too
    std::int64_t combine_puts = 0;        ///< GIN puts: chunks going home
    std::int64_t combine_doorbells = 0;   ///< puts and ready signals
    std::int32_t rendezvous =
        0;  ///< times that this rank waits for all others: counts, arrival, ready
};

/// What a Routing holds about the rail; empty in direct mode.
struct RailCounts {
    std::span<const std::int32_t> sent;      ///< [pairs]
    std::span<const std::int32_t> received;  ///< [pairs]
    std::span<const SlotRef> slots;          ///< [pairs * channel_rows][K], of received rows
};

/// `counts` is a Routing's table [R][count_row_words]; each row starts with a header word, then
/// rows per rank (rank_major: tokens per rank), then rows per expert.
StepTraffic compute_traffic(const Plan& plan, std::span<const std::int32_t> counts,
                            const RailCounts& rail = {});

}  // namespace gimlet

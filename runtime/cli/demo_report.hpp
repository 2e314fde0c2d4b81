// SPDX-License-Identifier: Apache-2.0
// What the demo found, rank by rank, and how it is shown.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/plan.hpp"

namespace gimlet::cli {

/// One rank's part; travels between ranks as bytes. Rows, puts and barriers are of all steps
/// together.
struct RankReport {
    std::int32_t rank = 0;
    std::int32_t lsa_team = 0;
    std::int64_t tokens = 0;  ///< of one step
    std::int64_t rows_sent = 0;
    std::int64_t gin_rows_sent = 0;
    std::int64_t rows_received = 0;
    std::int64_t bytes_sent = 0;
    std::int64_t gin_bytes = 0;  ///< of these, by puts
    std::int64_t lsa_bytes = 0;  ///< stored at, or pulled from, other ranks of the team
    std::int64_t puts = 0;
    std::int64_t doorbells = 0;
    std::int64_t rendezvous = 0;
    std::int64_t barriers = 0;
    std::int64_t dispatch_ns = 0;  ///< fastest step, host clock
    std::int64_t combine_ns = 0;
    std::int32_t steps = 0;
    std::int32_t steps_right = 0;
};

struct DemoReport {
    std::string source;  ///< generator or file
    std::uint64_t seed = 0;
    std::vector<RankReport> ranks;
    std::vector<std::string> faults;        ///< [R], empty = right
    std::vector<std::int64_t> expert_rows;  ///< [E] tokens that name each expert, of one step
    std::uint64_t wall_ns = 0;

    bool all_right() const;
    std::string text(const Plan& plan) const;
    std::string json(const Plan& plan) const;
};

}  // namespace gimlet::cli

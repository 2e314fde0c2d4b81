// SPDX-License-Identifier: Apache-2.0
#include "runtime/stats.hpp"

#include "host/base/error.hpp"

namespace gimlet {
namespace {

/// Reads one rank's count table.
class CountTable {
  public:
    CountTable(const Plan& plan, std::span<const std::int32_t> counts)
        : plan_(plan), counts_(counts) {
        const auto needed = static_cast<std::size_t>(plan.shape.count_row_words()) *
                            static_cast<std::size_t>(plan.rank_count);
        if (counts.size() < needed) {
            raise(ErrorCode::invalid_argument, plan.rank, "count table has {} words, {} are needed",
                  counts.size(), needed);
        }
    }

    /// Rows from `source` to `rank`, and the GIN chunks that they make (in either direction).
    struct Pair {
        std::int64_t rows = 0;
        std::int64_t chunks = 0;
    };
    Pair pair(int source, int rank) const {
        Pair out;
        if (plan_.config.layout == Layout::rank_major) {
            out.rows = word(source, 1 + rank);
            out.chunks = chunks(out.rows);
            return out;
        }
        for (auto e = plan_.experts.first(rank); e < plan_.experts.first(rank + 1); ++e) {
            const std::int64_t rows = word(source, 1 + plan_.rank_count + e);
            out.rows += rows;
            out.chunks += chunks(rows);
        }
        return out;
    }

  private:
    std::int64_t word(int source, int index) const {
        return counts_[static_cast<std::size_t>(source) *
                           static_cast<std::size_t>(plan_.shape.count_row_words()) +
                       static_cast<std::size_t>(index)];
    }
    std::int64_t chunks(std::int64_t rows) const {
        return (rows + plan_.kernels.chunk_rows - 1) / plan_.kernels.chunk_rows;
    }

    const Plan& plan_;
    std::span<const std::int32_t> counts_;
};

}  // namespace

StepTraffic compute_traffic(const Plan& plan, std::span<const std::int32_t> counts) {
    const CountTable table(plan, counts);
    const std::int64_t contexts = plan.kernels.gin_context_count;
    const std::int64_t data_contexts = contexts > 1 ? contexts - 1 : contexts;
    const std::int64_t row_bytes = plan.token_layout.row_bytes;
    const std::int64_t record_bytes = plan.token_layout.record_bytes();
    StepTraffic out;
    for (int peer = 0; peer < plan.rank_count; ++peer) {
        const auto to = table.pair(plan.rank, peer);
        const auto from = table.pair(peer, plan.rank);
        out.rows_to.push_back(to.rows);
        out.rows_from.push_back(from.rows);
        out.rows_sent += to.rows;
        out.rows_received += from.rows;
        out.dispatch_bytes_sent += to.rows * (row_bytes + record_bytes);
        out.combine_bytes_sent += from.rows * plan.combine_row_bytes;
        if (peer / plan.lsa_size == plan.rank / plan.lsa_size) {
            out.lsa_rows_sent += to.rows;
            continue;
        }
        out.gin_rows_sent += to.rows;
        out.dispatch_puts += 1 + 2 * to.chunks;
        out.dispatch_doorbells += 1 + to.chunks + data_contexts;
        out.combine_puts += from.chunks;
        out.combine_doorbells += from.chunks + 1;
    }
    out.rendezvous = 3;
    return out;
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "runtime/stats.hpp"

#include <algorithm>

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

/// Puts and doorbells of a stream of rows, in the order in which kernels publish them.
class StreamCost {
  public:
    StreamCost(const Plan& plan, StepTraffic* traffic) : plan_(plan), traffic_(*traffic) {}

    /// A dispatch's stream: a batch every publish_rows rows, the first one sooner, then what is
    /// left, if only the flag.
    void dispatch(std::int32_t pair, std::int64_t rows) {
        if (plan_.stream.active()) {
            const std::int64_t puts = tails(rows, plan_.stream.rail_dispatch_rows);
            traffic_.dispatch_puts += puts;
            traffic_.dispatch_doorbells += puts + 1;  // one says the end
            return;
        }
        const std::int64_t every = plan_.rail.publish_rows;
        const std::int64_t first = every - plan_.rail.head_start(pair);
        if (rows >= first) {
            batch(first);
            rows -= first;
            for (; rows >= every; rows -= every) batch(every);
        }
        batch(rows);
        traffic_.dispatch_puts += puts_;
        traffic_.dispatch_doorbells += doorbells_;
        puts_ = doorbells_ = 0;
    }

    /// A combine's: the last batch carries the flag.
    void combine(std::int32_t pair, const std::vector<int>& sums) {
        if (plan_.stream.active()) {
            std::int64_t rows = 0;
            for (const int sum : sums) rows += sum;
            const std::int64_t puts = tails(rows, plan_.stream.rail_combine_rows);
            traffic_.combine_puts += puts;
            traffic_.combine_doorbells += puts;
            return;
        }
        std::int64_t waiting = 0;
        std::int64_t due = plan_.rail.publish_rows - plan_.rail.head_start(pair);
        for (std::size_t i = 0; i < sums.size(); ++i) {
            waiting += sums[i];
            if (waiting < due || i + 1 == sums.size()) continue;
            batch(waiting);
            waiting = 0;
            due = plan_.rail.publish_rows;
        }
        batch(waiting);
        traffic_.combine_puts += puts_;
        traffic_.combine_doorbells += doorbells_;
        puts_ = doorbells_ = 0;
    }

  private:
    /// fifo: at least so many, each a put; a sender that waits for room moves the tail before.
    static std::int64_t tails(std::int64_t rows, std::int64_t every) {
        return (rows + every - 1) / every;
    }
    void batch(std::int64_t rows) {
        const std::int64_t puts = (rows + plan_.kernels.chunk_rows - 1) / plan_.kernels.chunk_rows;
        puts_ += puts;
        doorbells_ += 1 + (puts > 0 ? (puts - 1) / kRingEvery : 0);
    }

    static constexpr std::int64_t kRingEvery = 16;  // of AggregatedPut

    const Plan& plan_;
    StepTraffic& traffic_;
    std::int64_t puts_ = 0;
    std::int64_t doorbells_ = 0;
};

/// Choices of one received row of the rail that opened a row in this team.
int row_choices(const Plan& plan, const RailCounts& rail, std::int64_t row) {
    const auto topk = static_cast<std::size_t>(plan.config.topk);
    const auto refs = rail.slots.subspan(static_cast<std::size_t>(row) * topk, topk);
    return static_cast<int>(
        std::count_if(refs.begin(), refs.end(), [](const SlotRef& ref) { return ref.rank >= 0; }));
}

void add_rail(const Plan& plan, const RailCounts& rail, StepTraffic* out) {
    const RailShape& shape = plan.rail;
    StreamCost cost(plan, out);
    for (std::int32_t pair = 0; pair < shape.pair_count(); ++pair) {
        const auto at = static_cast<std::size_t>(pair);
        out->gin_rows_sent += rail.sent[at];
        cost.dispatch(pair, rail.sent[at]);
        std::vector<int> sums;
        for (std::int32_t i = 0; i < rail.received[at]; ++i) {
            const int choices = row_choices(plan, rail, shape.first_row(pair) + i);
            sums.push_back(shape.pre_sum == PreSum::on ? 1 : choices);
            // Slots of rings move as a whole.
            out->combine_gin_bytes +=
                std::int64_t{sums.back()} *
                (plan.stream.active() ? plan.stream.slot_bytes : plan.combine_row_bytes);
            for (int k = 0; k < plan.config.topk; ++k) {
                const SlotRef ref = rail.slots[static_cast<std::size_t>(
                    (shape.first_row(pair) + i) * plan.config.topk + k)];
                if (ref.rank < 0 || ref.rank == plan.rank) continue;
                out->dispatch_lsa_bytes +=
                    plan.token_layout.row_bytes + plan.token_layout.record_bytes();
                out->combine_lsa_bytes += plan.combine_row_bytes;
            }
        }
        cost.combine(pair, sums);
    }
    out->dispatch_gin_bytes = out->gin_rows_sent * (plan.stream.active() ? plan.stream.slot_bytes
                                                                         : plan.send_row_bytes());
    out->dispatch_puts += shape.peer_count();
    out->dispatch_doorbells += shape.peer_count();
    const bool weights = !plan.stream.active() && plan.rail_weight_bytes() > 0;
    for (std::int32_t pair = 0; weights && pair < shape.pair_count(); ++pair)
        out->combine_puts += rail.sent[static_cast<std::size_t>(pair)] > 0 ? 1 : 0;
    out->combine_doorbells += weights ? shape.pair_count() : shape.peer_count();
}

}  // namespace

StepTraffic compute_traffic(const Plan& plan, std::span<const std::int32_t> counts,
                            const RailCounts& rail) {
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
        if (peer / plan.lsa_size == plan.rank / plan.lsa_size) {
            out.lsa_rows_sent += to.rows;
            if (peer == plan.rank) continue;
            out.dispatch_lsa_bytes += to.rows * (row_bytes + record_bytes);
            out.combine_lsa_bytes += to.rows * plan.combine_row_bytes;
            continue;
        }
        if (plan.rail.active()) continue;
        out.gin_rows_sent += to.rows;
        out.dispatch_gin_bytes += to.rows * (row_bytes + record_bytes);
        out.combine_gin_bytes += from.rows * plan.combine_row_bytes;
        out.dispatch_puts += 1 + 2 * to.chunks;
        out.dispatch_doorbells += 1 + to.chunks + data_contexts;
        out.combine_puts += from.chunks;
        out.combine_doorbells += from.chunks + 1;
    }
    out.dispatch_bytes_sent = out.rows_sent * (row_bytes + record_bytes);
    out.combine_bytes_sent = out.rows_received * plan.combine_row_bytes;
    if (plan.rail.active()) {
        add_rail(plan, rail, &out);
        const std::int64_t own = out.rows_to[static_cast<std::size_t>(plan.rank)];
        out.dispatch_bytes_sent =
            out.dispatch_gin_bytes + out.dispatch_lsa_bytes + own * (row_bytes + record_bytes);
        out.combine_bytes_sent =
            out.combine_gin_bytes + out.combine_lsa_bytes + own * plan.combine_row_bytes;
    }
    out.rendezvous = 3;
    return out;
}

}  // namespace gimlet

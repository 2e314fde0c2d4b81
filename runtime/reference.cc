// SPDX-License-Identifier: Apache-2.0
#include "runtime/reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/element.hpp"

namespace gimlet {
namespace {

/// owner[e] for experts in consecutive blocks, the first E % R ranks having one more.
std::vector<std::int32_t> place_experts(std::int32_t expert_count,
                                        std::vector<ReferenceRank>* ranks) {
    std::vector<std::int32_t> owner;
    const auto rank_count = static_cast<std::int32_t>(ranks->size());
    for (std::int32_t r = 0; r < rank_count; ++r) {
        auto& rank = (*ranks)[static_cast<std::size_t>(r)];
        rank.first_expert = static_cast<std::int32_t>(owner.size());
        rank.local_expert_count =
            expert_count / rank_count + (r < expert_count % rank_count ? 1 : 0);
        owner.insert(owner.end(), static_cast<std::size_t>(rank.local_expert_count), r);
    }
    return owner;
}

std::size_t at(int token, int topk, int choice) {
    return static_cast<std::size_t>(token) * static_cast<std::size_t>(topk) +
           static_cast<std::size_t>(choice);
}

/// Walks sources and tokens in order; `visit(source, token)`.
template <typename Visit>
void each_token(const RoutingTable& table, Visit visit) {
    for (int source = 0; source < static_cast<int>(table.ranks.size()); ++source) {
        for (int token = 0; token < table.ranks[static_cast<std::size_t>(source)].token_count;
             ++token) {
            visit(source, token);
        }
    }
}

void add_row(Reference* reference, const ReferenceRow& row, int topk, int rank, int choice) {
    auto& to = reference->ranks[static_cast<std::size_t>(rank)];
    auto& from = reference->ranks[static_cast<std::size_t>(row.source)];
    from.slots[at(row.token, topk, choice)] = {rank, static_cast<std::int32_t>(to.rows.size())};
    to.rows.push_back(row);
    ++to.token_row_count;
    ++to.source_offsets[static_cast<std::size_t>(row.source) + 1];
    ++from.sent_row_count;
    ++from.rows_to[static_cast<std::size_t>(rank)];
}

void place_rank_major(const RoutingTable& table, const std::vector<std::int32_t>& owner,
                      Reference* reference) {
    each_token(table, [&](int source, int token) {
        std::vector<std::int32_t> reached;
        for (int k = 0; k < table.topk; ++k) {
            const auto expert = table.index(source, token, k);
            if (expert < 0) continue;
            const auto rank = owner[static_cast<std::size_t>(expert)];
            auto& to = reference->ranks[static_cast<std::size_t>(rank)];
            ++to.expert_counts[static_cast<std::size_t>(expert - to.first_expert)];
            if (std::find(reached.begin(), reached.end(), rank) != reached.end()) continue;
            reached.push_back(rank);
            add_row(reference, {source, token, -1}, table.topk, rank, k);
        }
    });
}

void place_expert_major(const RoutingTable& table, Reference* reference) {
    for (int r = 0; r < static_cast<int>(reference->ranks.size()); ++r) {
        auto& rank = reference->ranks[static_cast<std::size_t>(r)];
        for (std::int32_t local = 0; local < rank.local_expert_count; ++local) {
            rank.expert_offsets[static_cast<std::size_t>(local)] =
                static_cast<std::int32_t>(rank.rows.size());
            each_token(table, [&](int source, int token) {
                for (int k = 0; k < table.topk; ++k) {
                    if (table.index(source, token, k) != rank.first_expert + local) continue;
                    add_row(reference, {source, token, k}, table.topk, r, k);
                    ++rank.expert_counts[static_cast<std::size_t>(local)];
                }
            });
            while (rank.rows.size() % static_cast<std::size_t>(reference->shape.expert_alignment) !=
                   0) {
                rank.rows.push_back({});
            }
        }
        rank.expert_offsets.back() = static_cast<std::int32_t>(rank.rows.size());
    }
}

std::string row_name(const ReferenceRow& row) {
    if (row.source < 0) return "a padding row";
    return fmt::format("token {} of rank {}{}", row.token, row.source,
                       row.choice < 0 ? std::string() : fmt::format(", choice {}", row.choice));
}

std::string first_difference(std::span<const std::byte> got, std::span<const std::byte> want) {
    std::size_t i = 0;
    while (i < want.size() && got[i] == want[i]) ++i;
    return fmt::format("byte {} of {} is 0x{:02x}, expected 0x{:02x}", i, want.size(),
                       static_cast<int>(got[i]), static_cast<int>(want[i]));
}

}  // namespace

Reference make_reference(const RoutingTable& table, const ReferenceShape& shape) {
    Reference reference;
    reference.shape = shape;
    reference.ranks.resize(table.ranks.size());
    const auto owner = place_experts(shape.expert_count, &reference.ranks);
    for (std::size_t r = 0; r < table.ranks.size(); ++r) {
        auto& rank = reference.ranks[r];
        rank.expert_counts.resize(static_cast<std::size_t>(rank.local_expert_count));
        rank.expert_offsets.resize(static_cast<std::size_t>(rank.local_expert_count) + 1);
        rank.source_offsets.resize(table.ranks.size() + 1);
        rank.rows_to.resize(table.ranks.size());
        rank.slots.resize(at(table.ranks[r].token_count, table.topk, 0));
    }
    if (shape.layout == Layout::rank_major) {
        place_rank_major(table, owner, &reference);
    } else {
        place_expert_major(table, &reference);
    }
    for (auto& rank : reference.ranks) {
        for (std::size_t s = 1; s < rank.source_offsets.size(); ++s) {
            rank.source_offsets[s] += rank.source_offsets[s - 1];
        }
    }
    return reference;
}

std::vector<std::uint32_t> reference_record(const RoutingTable& table, const Reference& reference,
                                            int rank, int row, const ReferenceInputs& inputs) {
    const auto& owner = reference.ranks[static_cast<std::size_t>(rank)];
    const ReferenceRow& place = owner.rows[static_cast<std::size_t>(row)];
    if (place.source < 0) return {~0u, ~0u, ~0u};
    const auto& source = table.ranks[static_cast<std::size_t>(place.source)];
    std::vector<std::uint32_t> words = {static_cast<std::uint32_t>(place.token),
                                        static_cast<std::uint32_t>(place.source)};
    std::vector<int> choices;
    for (int k = 0; k < table.topk; ++k) {
        if (place.choice < 0 || place.choice == k) choices.push_back(k);
    }
    for (const int k : choices) {
        const auto local = table.index(place.source, place.token, k) - owner.first_expert;
        const bool here = local >= 0 && local < owner.local_expert_count &&
                          table.index(place.source, place.token, k) >= 0;
        const int rank_major_word = here ? static_cast<int>(local) : -1;
        words.push_back(static_cast<std::uint32_t>(place.choice < 0 ? rank_major_word : k));
    }
    const bool absent =
        source.weights.empty() || inputs.weights == ReferenceInputs::Weights::absent;
    for (const int k : choices) {
        const float weight = absent ? 0.0f : source.weights[at(place.token, table.topk, k)];
        words.push_back(std::bit_cast<std::uint32_t>(weight));
    }
    for (std::uint32_t w = 0; w < inputs.scale_words; ++w) {
        words.push_back(inputs.scale(place.source, place.token, static_cast<int>(w)));
    }
    return words;
}

std::string compare_received(const RoutingTable& table, const Reference& reference, int rank,
                             const ReferenceInputs& inputs, const ReceivedBytes& received) {
    const auto& rows = reference.ranks[static_cast<std::size_t>(rank)].rows;
    if (received.rows.size() < rows.size() * inputs.row_bytes ||
        received.records.size() < rows.size() * received.record_bytes) {
        return fmt::format("rank {}: {} rows expected, fewer bytes were downloaded", rank,
                           rows.size());
    }
    std::vector<std::byte> want(inputs.row_bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto record = reference_record(table, reference, rank, static_cast<int>(i), inputs);
        const auto want_words = std::as_bytes(std::span(record));
        const auto got_words =
            received.records.subspan(i * received.record_bytes, want_words.size());
        if (std::memcmp(got_words.data(), want_words.data(), want_words.size()) != 0) {
            return fmt::format("rank {}, record {} ({}): {}", rank, i, row_name(rows[i]),
                               first_difference(got_words, want_words));
        }
        const bool padding = rows[i].source < 0;
        if (padding && !received.check_padding_payload) continue;
        std::fill(want.begin(), want.end(), std::byte{0});
        if (!padding) inputs.row(rows[i].source, rows[i].token, want.data());
        const auto got = received.rows.subspan(i * inputs.row_bytes, inputs.row_bytes);
        if (std::memcmp(got.data(), want.data(), want.size()) != 0) {
            return fmt::format("rank {}, row {} ({}): {}", rank, i, row_name(rows[i]),
                               first_difference(got, want));
        }
    }
    return {};
}

namespace {

/// One token's sums, one row at a time.
class TokenSum {
  public:
    TokenSum(const RoutingTable& table, const Reference& reference, int rank,
             const ReferenceCombine& combine)
        : table_(table),
          slots_(reference.ranks[static_cast<std::size_t>(rank)].slots),
          weights_(table.ranks[static_cast<std::size_t>(rank)].weights),
          combine_(combine),
          rank_(rank) {}

    std::vector<float> of(int token) const {
        std::vector<float> sum(static_cast<std::size_t>(combine_.hidden), 0.0f);
        for (int k = 0; k < table_.topk; ++k) {
            const int team = far_team(token, k);
            if (team < 0) {
                add_row(token, k, sum);
            } else if (is_first_of(token, k, team)) {
                add_team(token, team, sum);
            }
        }
        return sum;
    }

  private:
    /// The team whose sum the choice is a part of; -1 = the choice stands for itself, or has no
    /// row.
    int far_team(int token, int k) const {
        const int rank = slots_[at(token, table_.topk, k)].rank;
        if (rank < 0 || combine_.pre_sum_team == 0) return -1;
        const int team = rank / combine_.pre_sum_team;
        return team == rank_ / combine_.pre_sum_team ? -1 : team;
    }

    bool is_first_of(int token, int k, int team) const {
        for (int earlier = 0; earlier < k; ++earlier) {
            if (far_team(token, earlier) == team) return false;
        }
        return true;
    }

    void add_row(int token, int k, std::vector<float>& sum) const {
        const ReferenceSlot slot = slots_[at(token, table_.topk, k)];
        if (slot.rank < 0) return;
        const std::byte* row = combine_.row(slot.rank, slot.slot);
        const bool weighted = combine_.weights == ReferenceCombine::Weights::applied;
        const std::size_t element = element_bytes(combine_.type);
        for (std::size_t h = 0; h < sum.size(); ++h) {
            const float value = load_element(combine_.type, row + h * element);
            sum[h] = weighted ? std::fma(value, weights_[at(token, table_.topk, k)], sum[h])
                              : sum[h] + value;
        }
    }

    void add_team(int token, int team, std::vector<float>& sum) const {
        std::vector<float> part(sum.size(), 0.0f);
        for (int k = 0; k < table_.topk; ++k) {
            if (far_team(token, k) == team) add_row(token, k, part);
        }
        for (std::size_t h = 0; h < sum.size(); ++h) {
            std::byte rounded[4];
            store_element(combine_.type, rounded, part[h]);
            sum[h] += load_element(combine_.type, rounded);
        }
    }

    const RoutingTable& table_;
    const std::vector<ReferenceSlot>& slots_;
    const std::vector<float>& weights_;
    const ReferenceCombine& combine_;
    int rank_;
};

}  // namespace

std::vector<std::byte> reference_combine(const RoutingTable& table, const Reference& reference,
                                         int rank, const ReferenceCombine& combine) {
    const auto& routing = table.ranks[static_cast<std::size_t>(rank)];
    const std::size_t element = element_bytes(combine.type);
    const std::size_t row_bytes = static_cast<std::size_t>(combine.hidden) * element;
    std::vector<std::byte> out(row_bytes * static_cast<std::size_t>(routing.token_count));
    const TokenSum token_sum(table, reference, rank, combine);
    for (int token = 0; token < routing.token_count; ++token) {
        std::vector<float> sum = token_sum.of(token);
        const std::byte* bias = combine.bias ? combine.bias(token) : nullptr;
        for (std::size_t h = 0; h < sum.size(); ++h) {
            if (bias != nullptr) sum[h] += load_element(combine.type, bias + h * element);
            store_element(combine.type,
                          out.data() + static_cast<std::size_t>(token) * row_bytes + h * element,
                          sum[h]);
        }
    }
    return out;
}

}  // namespace gimlet

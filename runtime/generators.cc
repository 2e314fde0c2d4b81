// SPDX-License-Identifier: Apache-2.0
#include "runtime/generators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "device/abi/expert_map.hpp"
#include "device/abi/limits.hpp"
#include "host/base/error.hpp"
#include "runtime/element.hpp"
#include "runtime/rng.hpp"

namespace gimlet {
namespace {

struct KindName {
    RoutingKind kind;
    const char* name;
};
constexpr KindName kKinds[] = {{RoutingKind::uniform, "uniform"},
                               {RoutingKind::log_normal, "log-normal"},
                               {RoutingKind::hot, "hot"},
                               {RoutingKind::grouped, "grouped"}};

std::uint64_t millionths(double fraction) {
    return static_cast<std::uint64_t>(std::llround(fraction * 1e6));
}

/// Draws different experts by integer popularity.
class PopularityDraw {
  public:
    explicit PopularityDraw(std::vector<std::uint64_t> weights)
        : weights_(std::move(weights)), sums_(weights_.size()) {
        std::uint64_t sum = 0;
        for (std::size_t e = 0; e < weights_.size(); ++e) sums_[e] = sum += weights_[e];
    }

    /// Appends experts to `chosen` until it has `count` different ones.
    void draw(InputRng& rng, std::size_t count, std::vector<std::int64_t>* chosen) const {
        while (chosen->size() < count) chosen->push_back(draw_one(rng, *chosen));
    }

  private:
    static bool holds(const std::vector<std::int64_t>& chosen, std::int64_t expert) {
        return std::find(chosen.begin(), chosen.end(), expert) != chosen.end();
    }

    std::int64_t draw_one(InputRng& rng, const std::vector<std::int64_t>& chosen) const {
        for (int attempt = 0; attempt < 16; ++attempt) {
            const std::uint64_t at = rng.below(sums_.back());
            const auto expert = std::upper_bound(sums_.begin(), sums_.end(), at) - sums_.begin();
            if (!holds(chosen, expert)) return expert;
        }
        // Few popular experts, all taken: draw among the others only.
        std::uint64_t left = sums_.back();
        for (const auto expert : chosen) left -= weights_[static_cast<std::size_t>(expert)];
        std::uint64_t at = rng.below(left);
        for (std::size_t e = 0; e < weights_.size(); ++e) {
            if (holds(chosen, static_cast<std::int64_t>(e))) continue;
            if (at < weights_[e]) return static_cast<std::int64_t>(e);
            at -= weights_[e];
        }
        raise(ErrorCode::internal, kNoRank, "generator: no expert left after {} choices",
              chosen.size());
    }

    std::vector<std::uint64_t> weights_;
    std::vector<std::uint64_t> sums_;
};

std::vector<std::uint64_t> popularity(const GeneratorOptions& options) {
    std::vector<std::uint64_t> weights(static_cast<std::size_t>(options.expert_count), 1u << 20);
    if (options.kind != RoutingKind::log_normal) return weights;
    auto rng = InputRng::stream(options.seed, 0x706f70);
    // exp(skew * z) = 2^(skew * log2(e) * z)
    const std::int64_t scale_q16 = std::llround(options.skew * 1.4426950408889634 * 65536.0);
    for (auto& weight : weights) {
        const std::int64_t x_q16 = rng.normal_q16() * scale_q16 / 65536;
        // 20 fractional bits, never 0; 2^40 at most, so that 8192 of them fit 64 bits.
        weight = std::clamp<std::uint64_t>(exp2_q32(x_q16) >> 12, 1, std::uint64_t{1} << 40);
    }
    return weights;
}

void random_weights(InputRng& rng, std::size_t count, std::vector<float>* weights) {
    std::vector<std::uint64_t> parts(count);
    std::uint64_t sum = 0;
    for (auto& part : parts) sum += part = 1 + rng.below(1u << 20);
    for (const auto part : parts) {
        weights->push_back(
            static_cast<float>(static_cast<double>(part) / static_cast<double>(sum)));
    }
}

/// Scores of one token in fixed point, and the selection that DeepSeek-V3's gate makes from them.
class GroupedGate {
  public:
    explicit GroupedGate(const GeneratorOptions& options)
        : options_(options), groups_{options.expert_count, options.group_count} {
        auto rng = InputRng::stream(options.seed, 0x62696173);
        for (std::int32_t e = 0; e < options.expert_count; ++e) {
            bias_.push_back(rng.normal_q16() *
                            3277);  // standard deviation 0.05, 32 fractional bits
        }
        scores_.resize(bias_.size());
    }

    void draw(InputRng& rng, std::vector<std::int64_t>* chosen, std::vector<float>* weights) {
        for (auto& score : scores_)
            score = static_cast<std::int64_t>(sigmoid_q32(rng.normal_q16()));
        std::vector<std::int32_t> candidates;
        for (const auto group : best_groups()) {
            for (auto e = groups_.first(group); e < groups_.first(group + 1); ++e)
                candidates.push_back(e);
        }
        const auto better = [this](std::int32_t a, std::int32_t b) {
            return biased(a) != biased(b) ? biased(a) > biased(b) : a < b;
        };
        std::partial_sort(candidates.begin(), candidates.begin() + options_.topk, candidates.end(),
                          better);
        double sum = 0;
        for (std::int32_t k = 0; k < options_.topk; ++k)
            sum += score(candidates[static_cast<std::size_t>(k)]);
        for (std::int32_t k = 0; k < options_.topk; ++k) {
            const auto expert = candidates[static_cast<std::size_t>(k)];
            chosen->push_back(expert);
            weights->push_back(static_cast<float>(score(expert) / sum));
        }
    }

  private:
    double score(std::int32_t e) const {
        return static_cast<double>(scores_[static_cast<std::size_t>(e)]);
    }
    std::int64_t biased(std::int32_t e) const {
        return scores_[static_cast<std::size_t>(e)] + bias_[static_cast<std::size_t>(e)];
    }

    std::vector<std::int32_t> best_groups() const {
        std::vector<std::pair<std::int64_t, std::int32_t>> ranked;
        for (std::int32_t g = 0; g < options_.group_count; ++g) {
            std::vector<std::int64_t> values;
            for (auto e = groups_.first(g); e < groups_.first(g + 1); ++e)
                values.push_back(biased(e));
            std::sort(values.rbegin(), values.rend());
            ranked.emplace_back(-(values[0] + (values.size() > 1 ? values[1] : 0)), g);
        }
        std::sort(ranked.begin(), ranked.end());
        std::vector<std::int32_t> groups;
        for (std::int32_t i = 0; i < options_.selected_group_count; ++i) {
            groups.push_back(ranked[static_cast<std::size_t>(i)].second);
        }
        return groups;
    }

    const GeneratorOptions& options_;
    ExpertMap groups_;
    std::vector<std::int64_t> bias_;
    std::vector<std::int64_t> scores_;
};

void mask(const GeneratorOptions& options, InputRng& rng, std::vector<std::int64_t>* chosen) {
    const bool whole_row = rng.chance_millionths(millionths(options.masked_row_fraction));
    for (auto& expert : *chosen) {
        if (rng.chance_millionths(millionths(options.masked_choice_fraction)) || whole_row)
            expert = -1;
    }
}

std::vector<std::int32_t> token_counts(const GeneratorOptions& options) {
    std::vector<std::int32_t> counts(static_cast<std::size_t>(options.rank_count),
                                     options.token_count);
    if (options.spread == TokenSpread::random) {
        auto rng = InputRng::stream(options.seed, 0x636f756e74);
        for (auto& count : counts) {
            count = static_cast<std::int32_t>(
                rng.below(static_cast<std::uint64_t>(options.token_count) + 1));
        }
        counts[rng.below(counts.size())] = options.token_count;
    }
    for (const auto rank : options.empty_ranks) counts[static_cast<std::size_t>(rank)] = 0;
    return counts;
}

void group_faults(const GeneratorOptions& options, std::vector<std::string>* faults) {
    if (options.group_count < 1 || options.group_count > options.expert_count) {
        faults->push_back(
            fmt::format("group_count is {}; it must be 1..{}, one expert a group at least",
                        options.group_count, options.expert_count));
        return;
    }
    if (options.selected_group_count < 1 || options.selected_group_count > options.group_count) {
        faults->push_back(fmt::format("selected_group_count is {}; it must be 1..{} (group_count)",
                                      options.selected_group_count, options.group_count));
        return;
    }
    const std::int32_t candidates =
        options.selected_group_count * (options.expert_count / options.group_count);
    if (options.topk > candidates) {
        faults->push_back(
            fmt::format("topk is {}, but {} of {} groups of {} experts hold only {}; select more "
                        "groups or lower topk",
                        options.topk, options.selected_group_count, options.group_count,
                        options.expert_count, candidates));
    }
}

}  // namespace

const char* name_of(RoutingKind kind) noexcept {
    for (const auto& entry : kKinds) {
        if (entry.kind == kind) return entry.name;
    }
    return "?";
}

bool parse_routing_kind(std::string_view name, RoutingKind* kind) noexcept {
    for (const auto& entry : kKinds) {
        if (name == entry.name) {
            *kind = entry.kind;
            return true;
        }
    }
    return false;
}

std::vector<std::string> generator_faults(const GeneratorOptions& options) {
    std::vector<std::string> faults;
    const auto range = [&faults](const char* name, std::int64_t value, std::int64_t least,
                                 std::int64_t most) {
        if (value < least || value > most) {
            faults.push_back(fmt::format("{} is {}; it must be {}..{}", name, value, least, most));
        }
    };
    const auto fraction = [&faults](const char* name, double value) {
        if (!(value >= 0 && value <= 1))
            faults.push_back(fmt::format("{} is {}; it must be 0..1", name, value));
    };
    range("rank_count", options.rank_count, 1, kMaxRanks);
    range("token_count", options.token_count, 0, kMaxRows);
    range("expert_count", options.expert_count, 1, kMaxExperts);
    range("topk", options.topk, 1,
          std::min<std::int64_t>(kMaxTopK, std::max(options.expert_count, 1)));
    fraction("masked_choice_fraction", options.masked_choice_fraction);
    fraction("masked_row_fraction", options.masked_row_fraction);
    if (options.kind == RoutingKind::log_normal && !(options.skew >= 0 && options.skew <= 5)) {
        faults.push_back(fmt::format("skew is {}; it must be 0..5 (0 = uniform)", options.skew));
    }
    if (options.kind == RoutingKind::hot) {
        range("hot_expert", options.hot_expert, 0, options.expert_count - 1);
        fraction("hot_fraction", options.hot_fraction);
    }
    if (options.kind == RoutingKind::grouped) group_faults(options, &faults);
    for (const auto rank : options.empty_ranks)
        range("empty rank", rank, 0, options.rank_count - 1);
    return faults;
}

RoutingTable generate_routing(const GeneratorOptions& options) {
    const auto faults = generator_faults(options);
    if (!faults.empty()) {
        raise(ErrorCode::invalid_argument, kNoRank, "routing generator: {}",
              fmt::join(faults, "; "));
    }
    RoutingTable table;
    table.topk = options.topk;
    const auto counts = token_counts(options);
    const PopularityDraw draw(popularity(options));
    GroupedGate gate(options);
    for (std::int32_t r = 0; r < options.rank_count; ++r) {
        RankRouting rank;
        rank.token_count = counts[static_cast<std::size_t>(r)];
        for (std::int32_t t = 0; t < rank.token_count; ++t) {
            auto rng = InputRng::stream(options.seed, static_cast<std::uint64_t>(r) + 1,
                                        static_cast<std::uint64_t>(t));
            std::vector<std::int64_t> chosen;
            if (options.kind == RoutingKind::grouped) {
                gate.draw(rng, &chosen, &rank.weights);
            } else {
                const bool hot = options.kind == RoutingKind::hot &&
                                 rng.chance_millionths(millionths(options.hot_fraction));
                if (hot) chosen.push_back(options.hot_expert);
                draw.draw(rng, static_cast<std::size_t>(options.topk), &chosen);
                if (hot) std::swap(chosen[0], chosen[rng.below(chosen.size())]);
                random_weights(rng, chosen.size(), &rank.weights);
            }
            mask(options, rng, &chosen);
            rank.indices.insert(rank.indices.end(), chosen.begin(), chosen.end());
        }
        table.ranks.push_back(std::move(rank));
    }
    return table;
}

std::vector<std::string> routing_faults(const RoutingTable& table, std::int32_t expert_count,
                                        int limit) {
    std::vector<std::string> faults;
    for (std::size_t r = 0; r < table.ranks.size(); ++r) {
        for (std::int32_t t = 0; t < table.ranks[r].token_count; ++t) {
            for (std::int32_t k = 0; k < table.topk; ++k) {
                const auto expert = table.index(static_cast<int>(r), t, k);
                if (expert < -1 || expert >= expert_count) {
                    faults.push_back(
                        fmt::format("rank {}, token {}, choice {}: expert {} is outside -1..{}", r,
                                    t, k, expert, expert_count - 1));
                }
                for (std::int32_t j = 0; j < k && expert >= 0; ++j) {
                    if (table.index(static_cast<int>(r), t, j) == expert) {
                        faults.push_back(fmt::format(
                            "rank {}, token {}: expert {} is named twice (choices {} and {})", r, t,
                            expert, j, k));
                    }
                }
                if (faults.size() >= static_cast<std::size_t>(limit)) return faults;
            }
        }
    }
    return faults;
}

void fill_row_pattern(std::uint64_t seed, std::int32_t rank, std::int32_t token, ElementType type,
                      void* row, std::size_t bytes) {
    auto rng = InputRng::stream(seed, 0x726f77 + static_cast<std::uint64_t>(rank),
                                static_cast<std::uint64_t>(token));
    auto* out = static_cast<std::byte*>(row);
    for (std::size_t at = 0; at < bytes; at += element_bytes(type)) {
        const int eighths = static_cast<int>(rng.below(15)) - 7;
        store_element(type, out + at, static_cast<float>(eighths) * 0.125f);
    }
}

}  // namespace gimlet

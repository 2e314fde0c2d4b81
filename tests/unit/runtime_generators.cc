// SPDX-License-Identifier: Apache-2.0
#include "runtime/generators.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "device/abi/expert_map.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "runtime/element.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

std::vector<std::int64_t> loads(const RoutingTable& table, std::int32_t expert_count) {
    std::vector<std::int64_t> count(static_cast<std::size_t>(expert_count));
    for (const auto& rank : table.ranks) {
        for (const auto expert : rank.indices) {
            if (expert >= 0) ++count[static_cast<std::size_t>(expert)];
        }
    }
    return count;
}

std::uint64_t table_hash(const RoutingTable& table) {
    std::uint64_t hash = kHashStart;
    for (const auto& rank : table.ranks) {
        hash = hash_bytes(rank.indices.data(), rank.indices.size() * 8, hash);
        hash = hash_bytes(rank.weights.data(), rank.weights.size() * 4, hash);
    }
    return hash;
}

}  // namespace

TEST_CASE("every generator makes legal routings of every shape", "[runtime][generators]") {
    for (const auto kind :
         {RoutingKind::uniform, RoutingKind::log_normal, RoutingKind::hot, RoutingKind::grouped}) {
        for (const std::int32_t topk : {1, 2, 8, 32}) {
            GeneratorOptions options;
            options.kind = kind;
            options.rank_count = 3;
            options.token_count = 17;
            options.expert_count = 67;
            options.topk = topk;
            options.selected_group_count = 8;
            options.skew = 2.5;
            CAPTURE(name_of(kind), topk);
            const auto table = generate_routing(options);
            REQUIRE(table.ranks.size() == 3);
            CHECK(routing_faults(table, options.expert_count).empty());
            for (const auto& rank : table.ranks) {
                REQUIRE(rank.token_count == 17);
                REQUIRE(rank.indices.size() == static_cast<std::size_t>(17 * topk));
                REQUIRE(rank.weights.size() == rank.indices.size());
                for (int t = 0; t < 17; ++t) {
                    const float sum = std::accumulate(rank.weights.begin() + t * topk,
                                                      rank.weights.begin() + (t + 1) * topk, 0.0f);
                    CHECK(sum == Approx(1.0).epsilon(1e-4));
                }
            }
        }
    }
}

TEST_CASE("K = E works: every token names every expert", "[runtime][generators]") {
    for (const auto kind : {RoutingKind::uniform, RoutingKind::log_normal, RoutingKind::hot}) {
        GeneratorOptions options;
        options.kind = kind;
        options.expert_count = 6;
        options.topk = 6;
        options.skew = 5;
        const auto table = generate_routing(options);
        CHECK(routing_faults(table, 6).empty());
        CHECK(loads(table, 6) == std::vector<std::int64_t>(6, 64));
    }
}

TEST_CASE("a seed gives the same routing everywhere", "[runtime][generators]") {
    // Golden values: they change only if the generators do, and then recorded results change
    // meaning.
    std::map<RoutingKind, std::uint64_t> hashes;
    for (const auto kind :
         {RoutingKind::uniform, RoutingKind::log_normal, RoutingKind::hot, RoutingKind::grouped}) {
        GeneratorOptions options;
        options.kind = kind;
        options.seed = 42;
        options.rank_count = 2;
        hashes[kind] = table_hash(generate_routing(options));
        CHECK(table_hash(generate_routing(options)) == hashes[kind]);
        options.seed = 43;
        CHECK(table_hash(generate_routing(options)) != hashes[kind]);
    }
    CHECK(hashes[RoutingKind::uniform] == 0x5edf451692dd20eaull);
    CHECK(hashes[RoutingKind::log_normal] == 0x464e9f5a19aa315bull);
    CHECK(hashes[RoutingKind::hot] == 0xa1dc97108f4dab0dull);
    CHECK(hashes[RoutingKind::grouped] == 0x51cda2a933afda33ull);
}

TEST_CASE("a rank's tokens do not depend on the other ranks", "[runtime][generators]") {
    GeneratorOptions options;
    options.rank_count = 2;
    const auto small = generate_routing(options);
    options.rank_count = 5;
    const auto large = generate_routing(options);
    CHECK(small.ranks[1].indices == large.ranks[1].indices);
}

TEST_CASE("skew makes loads uneven, uniform keeps them even", "[runtime][generators]") {
    GeneratorOptions options;
    options.token_count = 4000;
    options.expert_count = 16;
    options.topk = 2;
    const auto even = loads(generate_routing(options), 16);
    CHECK(*std::max_element(even.begin(), even.end()) < 600);
    CHECK(*std::min_element(even.begin(), even.end()) > 400);
    options.kind = RoutingKind::log_normal;
    options.skew = 1.5;
    const auto skewed = loads(generate_routing(options), 16);
    CHECK(*std::max_element(skewed.begin(), skewed.end()) >
          4 * *std::min_element(skewed.begin(), skewed.end()));
    options.kind = RoutingKind::hot;
    options.hot_expert = 5;
    CHECK(loads(generate_routing(options), 16)[5] == 4000);
    options.hot_fraction = 0.5;
    const auto half = loads(generate_routing(options), 16)[5];
    CHECK(half > 2000);
    CHECK(half < 2600);
}

TEST_CASE("grouped gating stays inside the selected groups", "[runtime][generators]") {
    GeneratorOptions options;
    options.kind = RoutingKind::grouped;
    options.expert_count = 64;
    options.group_count = 8;
    options.selected_group_count = 2;
    options.topk = 8;
    const auto table = generate_routing(options);
    for (int t = 0; t < 64; ++t) {
        std::set<std::int64_t> groups;
        for (int k = 0; k < 8; ++k) groups.insert(table.index(0, t, k) / 8);
        CHECK(groups.size() <= 2);
    }
}

TEST_CASE("masks, empty ranks and uneven token counts", "[runtime][generators]") {
    GeneratorOptions options;
    options.rank_count = 4;
    options.token_count = 500;
    options.masked_row_fraction = 0.25;
    options.masked_choice_fraction = 0.1;
    options.empty_ranks = {2};
    options.spread = TokenSpread::random;
    const auto table = generate_routing(options);
    CHECK(table.ranks[2].token_count == 0);
    CHECK(table.ranks[2].indices.empty());
    int masked_rows = 0;
    int rows = 0;
    for (int r = 0; r < 4; ++r) {
        for (int t = 0; t < table.ranks[static_cast<std::size_t>(r)].token_count; ++t, ++rows) {
            int masked = 0;
            for (int k = 0; k < 4; ++k) masked += table.index(r, t, k) == -1;
            masked_rows += masked == 4;
        }
    }
    CHECK(masked_rows > rows / 5);
    CHECK(masked_rows < rows / 3);
    options.masked_row_fraction = 1;
    for (const auto& rank : generate_routing(options).ranks) {
        CHECK(
            std::all_of(rank.indices.begin(), rank.indices.end(), [](auto e) { return e == -1; }));
    }
    options.empty_ranks = {0, 1, 2, 3};
    CHECK(generate_routing(options).max_token_count() == 0);
}

TEST_CASE("impossible options are refused together", "[runtime][generators]") {
    GeneratorOptions options;
    options.topk = 33;
    options.token_count = -1;
    options.kind = RoutingKind::log_normal;
    options.skew = std::nan("");
    options.empty_ranks = {1};
    options.masked_row_fraction = 1.5;
    CHECK(generator_faults(options).size() == 5);
    LogCapture quiet;
    CHECK_THROWS_WITH(generate_routing(options), contains_text("topk is 33") &&
                                                     contains_text("token_count is -1") &&
                                                     contains_text("skew is nan"));
    GeneratorOptions grouped;
    grouped.kind = RoutingKind::grouped;
    grouped.expert_count = 8;
    grouped.topk = 5;
    CHECK_THAT(generator_faults(grouped).at(0), contains_text("hold only 4"));
}

TEST_CASE("routing faults name the place", "[runtime][generators]") {
    RoutingTable table;
    table.topk = 2;
    table.ranks.resize(2);
    table.ranks[1].token_count = 3;
    table.ranks[1].indices = {0, 1, -1, -1, 7, -2};
    auto faults = routing_faults(table, 7);
    REQUIRE(faults.size() == 2);
    CHECK_THAT(faults[0], contains_text("rank 1, token 2, choice 0: expert 7 is outside -1..6"));
    CHECK_THAT(faults[1], contains_text("expert -2"));
    table.ranks[1].indices = {3, 3, -1, -1, 0, 1};
    faults = routing_faults(table, 7);
    REQUIRE(faults.size() == 1);
    CHECK_THAT(faults[0], contains_text("token 0: expert 3 is named twice"));
}

TEST_CASE("row patterns differ by token and rank and are exact", "[runtime][generators]") {
    for (const auto type : {ElementType::float32, ElementType::float16, ElementType::bfloat16,
                            ElementType::float8_e4m3}) {
        std::vector<std::byte> a(256), b(256), c(256);
        fill_row_pattern(1, 0, 0, type, a.data(), a.size());
        fill_row_pattern(1, 0, 1, type, b.data(), b.size());
        fill_row_pattern(1, 1, 0, type, c.data(), c.size());
        CHECK(a != b);
        CHECK(a != c);
        for (std::size_t at = 0; at < a.size(); at += element_bytes(type)) {
            const float eighths = load_element(type, a.data() + at) * 8;
            CHECK(eighths == std::round(eighths));
            CHECK(std::fabs(eighths) <= 7);
        }
    }
}

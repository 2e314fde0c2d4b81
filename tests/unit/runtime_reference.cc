// SPDX-License-Identifier: Apache-2.0
// The reference is what everything else is checked against, so it is checked against cases worked
// out by hand.
#include "runtime/reference.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/element.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

// Two ranks, three experts: rank 0 owns experts 0 and 1, rank 1 owns expert 2.
RoutingTable small_table() {
    RoutingTable table;
    table.topk = 2;
    table.ranks.resize(2);
    table.ranks[0].token_count = 3;
    table.ranks[0].indices = {2, 0, 1, 0, -1, 2};
    table.ranks[0].weights = {0.5f, 0.25f, 1.0f, 2.0f, 8.0f, 4.0f};
    table.ranks[1].token_count = 2;
    table.ranks[1].indices = {-1, -1, 0, 1};
    table.ranks[1].weights = {1.0f, 1.0f, 3.0f, 5.0f};
    return table;
}

ReferenceInputs inputs(std::uint32_t scale_words = 0) {
    ReferenceInputs in;
    in.row_bytes = 16;
    in.scale_words = scale_words;
    in.row = [](int rank, int token, std::byte* row) {
        for (int i = 0; i < 16; ++i) row[i] = static_cast<std::byte>(rank * 100 + token * 10 + i);
    };
    in.scale = [](int rank, int token, int word) {
        return static_cast<std::uint32_t>(rank * 1000 + token * 10 + word);
    };
    return in;
}

std::uint32_t bits(float value) {
    return std::bit_cast<std::uint32_t>(value);
}

}  // namespace

TEST_CASE("rank_major by hand", "[runtime][reference]") {
    const auto table = small_table();
    const auto reference = make_reference(table, {3, Layout::rank_major, 1});
    const auto& zero = reference.ranks[0];
    REQUIRE(zero.rows.size() == 3);  // tokens 0 and 1 of rank 0, token 1 of rank 1
    CHECK(zero.rows[0].token == 0);
    CHECK(zero.rows[1].token == 1);
    CHECK(zero.rows[2].source == 1);
    CHECK(zero.rows[2].token == 1);
    CHECK(zero.expert_counts == std::vector<std::int32_t>{3, 2});
    CHECK(zero.source_offsets == std::vector<std::int32_t>{0, 2, 3});
    CHECK(zero.sent_row_count == 4);
    CHECK(zero.rows_to == std::vector<std::int32_t>{2, 2});
    const auto& one = reference.ranks[1];
    REQUIRE(one.rows.size() == 2);
    CHECK(one.expert_counts == std::vector<std::int32_t>{2});
    CHECK(one.source_offsets == std::vector<std::int32_t>{0, 2, 2});
    // Token 1 of rank 0 names two experts of rank 0: the first choice has the row.
    CHECK(zero.slots[2].rank == 0);
    CHECK(zero.slots[2].slot == 1);
    CHECK(zero.slots[3].rank == -1);
    CHECK(zero.slots[4].rank == -1);
    CHECK(zero.slots[5].rank == 1);
    CHECK(zero.slots[5].slot == 1);

    const auto record = reference_record(table, reference, 0, 0, inputs(2));
    CHECK(record == std::vector<std::uint32_t>{0, 0, ~0u, 0, bits(0.5f), bits(0.25f), 0, 1});
    const auto last = reference_record(table, reference, 0, 2, inputs());
    CHECK(last == std::vector<std::uint32_t>{1, 1, 0, 1, bits(3.0f), bits(5.0f)});
}

TEST_CASE("expert_major by hand, with padding", "[runtime][reference]") {
    const auto table = small_table();
    const auto reference = make_reference(table, {3, Layout::expert_major, 4});
    const auto& zero = reference.ranks[0];
    REQUIRE(zero.rows.size() == 8);
    CHECK(zero.expert_counts == std::vector<std::int32_t>{3, 2});
    CHECK(zero.expert_offsets == std::vector<std::int32_t>{0, 4, 8});
    CHECK(zero.token_row_count == 5);
    CHECK(zero.source_offsets == std::vector<std::int32_t>{0, 3, 5});
    CHECK(zero.rows[0].choice == 1);  // token 0 names expert 0 second
    CHECK(zero.rows[1].choice == 1);
    CHECK(zero.rows[2].source == 1);
    CHECK(zero.rows[3].source == -1);
    CHECK(zero.rows[4].token == 1);
    CHECK(zero.rows[5].source == 1);
    CHECK(zero.slots[2].slot == 4);
    CHECK(zero.slots[3].slot == 1);
    CHECK(reference_record(table, reference, 0, 1, inputs(1)) ==
          std::vector<std::uint32_t>{1, 0, 1, bits(2.0f), 10});
    CHECK(reference_record(table, reference, 0, 3, inputs(1)) ==
          std::vector<std::uint32_t>{~0u, ~0u, ~0u});
}

TEST_CASE("more ranks than experts leaves ranks without", "[runtime][reference]") {
    RoutingTable table;
    table.topk = 1;
    table.ranks.resize(4);
    for (auto& rank : table.ranks) {
        rank.token_count = 1;
        rank.indices = {1};
    }
    const auto reference = make_reference(table, {2, Layout::expert_major, 1});
    CHECK(reference.ranks[3].local_expert_count == 0);
    CHECK(reference.ranks[3].rows.empty());
    CHECK(reference.ranks[3].expert_offsets == std::vector<std::int32_t>{0});
    CHECK(reference.ranks[1].rows.size() == 4);
    CHECK(reference_record(table, reference, 1, 0, inputs())[3] == 0);  // no weights: zero
}

TEST_CASE("combine by hand: order, weights, bias, one rounding", "[runtime][reference]") {
    RoutingTable table;
    table.topk = 3;
    table.ranks.resize(1);
    table.ranks[0].token_count = 2;
    table.ranks[0].indices = {0, 1, 2, -1, -1, -1};
    table.ranks[0].weights = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    const auto reference = make_reference(table, {3, Layout::expert_major, 1});
    // (1e8 + 1) - 1e8 is 0 in fp32, in this order; any other order gives 1.
    std::vector<float> rows = {1e8f, 1.0f, -1e8f};
    ReferenceCombine combine;
    combine.type = ElementType::float32;
    combine.hidden = 1;
    combine.row = [&rows](int, int slot) {
        return reinterpret_cast<const std::byte*>(&rows[static_cast<std::size_t>(slot)]);
    };
    auto out = reference_combine(table, reference, 0, combine);
    float values[2];
    std::memcpy(values, out.data(), 8);
    CHECK(values[0] == 0.0f);
    CHECK(values[1] == 0.0f);

    const float bias = 2.5f;
    combine.bias = [&bias](int) { return reinterpret_cast<const std::byte*>(&bias); };
    out = reference_combine(table, reference, 0, combine);
    std::memcpy(values, out.data(), 8);
    CHECK(values[0] == 2.5f);
    CHECK(values[1] == 2.5f);

    // One fused multiply-add: the product is not rounded before it is added.
    rows = {1.0f + 0x1.0p-23f, -1.0f, 0.0f};
    table.ranks[0].weights = {1.0f, 1.0f, 1.0f, 0, 0, 0};
    table.ranks[0].weights[0] = 1.0f + 0x1.0p-23f;
    table.ranks[0].indices = {1, 0, 2, -1, -1, -1};
    const auto swapped = make_reference(table, {3, Layout::expert_major, 1});
    rows = {1.0f + 0x1.0p-23f, -1.0f, 0.0f};  // slot 0 is choice 1, slot 1 is choice 0
    table.ranks[0].weights = {1.0f, 1.0f + 0x1.0p-23f, 1.0f, 0, 0, 0};
    combine.bias = nullptr;
    combine.weights = ReferenceCombine::Weights::applied;
    out = reference_combine(table, swapped, 0, combine);
    std::memcpy(values, out.data(), 8);
    CHECK(values[0] == std::fma(1.0f + 0x1.0p-23f, 1.0f + 0x1.0p-23f, -1.0f));
}

TEST_CASE("16-bit results are rounded once, at the end", "[runtime][reference]") {
    RoutingTable table;
    table.topk = 2;
    table.ranks.resize(1);
    table.ranks[0].token_count = 1;
    table.ranks[0].indices = {0, 1};
    const auto reference = make_reference(table, {2, Layout::expert_major, 1});
    std::uint16_t rows[2];
    store_element(ElementType::bfloat16, &rows[0], 1.0f);
    store_element(ElementType::bfloat16, &rows[1], 0.00390625f);  // 2^-8: half a step at 1.0
    std::uint16_t bias;
    store_element(ElementType::bfloat16, &bias, 0.00390625f);
    ReferenceCombine combine;
    combine.type = ElementType::bfloat16;
    combine.hidden = 1;
    combine.row = [&rows](int, int slot) {
        return reinterpret_cast<const std::byte*>(&rows[slot]);
    };
    combine.bias = [&bias](int) { return reinterpret_cast<const std::byte*>(&bias); };
    const auto out = reference_combine(table, reference, 0, combine);
    CHECK(load_element(ElementType::bfloat16, out.data()) ==
          1.0078125f);  // rounding twice gives 1.0
}

TEST_CASE("with pre-sums, another team's rows are rounded as one", "[runtime][reference][hybrid]") {
    // Four ranks with an expert each, teams of two: choices 0 and 2 lie in the other team.
    RoutingTable table;
    table.topk = 3;
    table.ranks.resize(4);
    table.ranks[0].token_count = 1;
    table.ranks[0].indices = {2, 1, 3};
    const auto reference = make_reference(table, {4, Layout::rank_major, 1});
    std::uint16_t rows[4];
    store_element(ElementType::bfloat16, &rows[1], 0.00390625f);  // 2^-8: half a step at 1.0
    store_element(ElementType::bfloat16, &rows[2], 1.0f);
    store_element(ElementType::bfloat16, &rows[3], 0.00390625f);
    ReferenceCombine combine;
    combine.type = ElementType::bfloat16;
    combine.hidden = 1;
    combine.row = [&rows](int rank, int) {
        return reinterpret_cast<const std::byte*>(&rows[rank]);
    };
    auto out = reference_combine(table, reference, 0, combine);
    CHECK(load_element(ElementType::bfloat16, out.data()) == 1.0078125f);
    combine.pre_sum_team = 2;  // 1 + 2^-8 becomes 1 there, and again here
    out = reference_combine(table, reference, 0, combine);
    CHECK(load_element(ElementType::bfloat16, out.data()) == 1.0f);
    combine.pre_sum_team = 4;  // nobody is elsewhere
    out = reference_combine(table, reference, 0, combine);
    CHECK(load_element(ElementType::bfloat16, out.data()) == 1.0078125f);
}

TEST_CASE("differences are found and named", "[runtime][reference]") {
    const auto table = small_table();
    const auto reference = make_reference(table, {3, Layout::rank_major, 1});
    const auto in = inputs(1);
    const std::uint32_t record_bytes = 32;
    std::vector<std::byte> rows(3 * 16), records(3 * record_bytes);
    for (int i = 0; i < 3; ++i) {
        const auto& row = reference.ranks[0].rows[static_cast<std::size_t>(i)];
        in.row(row.source, row.token, rows.data() + i * 16);
        const auto words = reference_record(table, reference, 0, i, in);
        std::memcpy(records.data() + i * record_bytes, words.data(), words.size() * 4);
    }
    const auto compare = [&] {
        return compare_received(table, reference, 0, in, {rows, records, record_bytes, false});
    };
    CHECK(compare().empty());
    rows[2 * 16 + 5] ^= std::byte{1};
    CHECK_THAT(compare(), contains_text("rank 0, row 2 (token 1 of rank 1): byte 5"));
    rows[2 * 16 + 5] ^= std::byte{1};
    records[record_bytes + 8] ^= std::byte{4};
    CHECK_THAT(compare(), contains_text("record 1 (token 1 of rank 0): byte 8"));
    records[record_bytes + 8] ^= std::byte{4};
    rows.resize(32);
    CHECK_THAT(compare(), contains_text("3 rows expected"));
}

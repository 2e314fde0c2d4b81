// SPDX-License-Identifier: Apache-2.0
#include "runtime/config.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "device/abi/limits.hpp"
#include "host/base/log.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

MoeConfig good_config() {
    MoeConfig config;
    config.expert_count = 32;
    config.topk = 4;
    config.hidden = 512;
    config.max_tokens = 64;
    return config;
}

std::set<std::string> faulty_fields(const MoeConfig& config) {
    std::set<std::string> fields;
    for (const auto& fault : validate(config)) fields.insert(fault.field);
    return fields;
}

}  // namespace

TEST_CASE("a plain config has no faults", "[runtime][config]") {
    CHECK(validate(good_config()).empty());
    CHECK_NOTHROW(require_valid(good_config()));
}

TEST_CASE("all faults come at once", "[runtime][config]") {
    MoeConfig config;
    config.expert_count = 0;
    config.topk = 40;
    config.hidden = 100;
    config.max_tokens = -1;
    config.dispatch_type = ElementType::float8_e4m3;
    config.combine_type = ElementType::float8_e4m3;
    config.scale_words = -2;
    config.expert_alignment = 0;
    config.max_recv_rows = -1;
    config.dispatch_threads = 100;
    config.chunk_rows = -1;
    const std::set<std::string> expected = {"expert_count",     "topk",          "hidden",
                                            "max_tokens",       "combine_type",  "scale_words",
                                            "expert_alignment", "max_recv_rows", "dispatch_threads",
                                            "chunk_rows"};
    CHECK(faulty_fields(config) == expected);
    LogCapture quiet;
    CHECK_THROWS_WITH(require_valid(config, 3), contains_text("rank 3") &&
                                                    contains_text("10 faults") &&
                                                    contains_text("topk is 40; it must be 1..32"));
}

TEST_CASE("a fault names the value, the limit and the cure", "[runtime][config]") {
    MoeConfig config = good_config();
    config.hidden = 4;
    const auto faults = validate(config);
    REQUIRE(faults.size() == 1);
    CHECK_THAT(faults[0].text, contains_text("4 bf16 elements") && contains_text("8 bytes") &&
                                   contains_text("multiple of 16") &&
                                   contains_text("hidden a multiple of 8"));
}

TEST_CASE("limits are exact", "[runtime][config]") {
    const auto with = [](auto change) {
        MoeConfig config = good_config();
        change(&config);
        return validate(config).empty();
    };
    CHECK(with([](MoeConfig* c) { c->expert_count = kMaxExperts, c->topk = 32; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->expert_count = kMaxExperts + 1; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->topk = 33; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->topk = 0; }));
    CHECK(with([](MoeConfig* c) { c->expert_count = 4; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->expert_count = 3; }));
    CHECK(with([](MoeConfig* c) { c->hidden = 8; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->hidden = 0; }));
    CHECK(with([](MoeConfig* c) { c->max_tokens = 1; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->max_tokens = 0; }));
    CHECK(with([](MoeConfig* c) { c->dispatch_threads = 1024; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->dispatch_threads = 1056; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->expert_alignment = 8; }));
    CHECK(with([](MoeConfig* c) { c->expert_alignment = 8, c->layout = Layout::expert_major; }));
    CHECK_FALSE(with([](MoeConfig* c) { c->dispatch_type = static_cast<ElementType>(9); }));
    CHECK_FALSE(with([](MoeConfig* c) { c->layout = static_cast<Layout>(7); }));
    CHECK_FALSE(with([](MoeConfig* c) { c->hidden = 2147483647; }));
}

TEST_CASE("the row of each type must be whole bulk copies", "[runtime][config]") {
    MoeConfig config = good_config();
    config.dispatch_type = ElementType::float8_e4m3;
    config.hidden = 24;  // 24 bytes out, 48 back
    CHECK(faulty_fields(config) == std::set<std::string>{"hidden"});
    config.hidden = 48;
    CHECK(validate(config).empty());
    CHECK(dispatch_row_bytes(config) == 48);
    CHECK(combine_row_bytes(config) == 96);
}

TEST_CASE("scale words follow blocks of 128", "[runtime][config]") {
    CHECK(fp8_float_scale_words(7168) == 56);
    CHECK(fp8_float_scale_words(129) == 2);
    CHECK(fp8_packed_scale_words(7168) == 14);
    CHECK(fp8_packed_scale_words(512) == 1);
    CHECK(fp8_packed_scale_words(513) == 2);
}

TEST_CASE("every field of a config is compared between ranks", "[runtime][config]") {
    const auto base = config_fields(good_config());
    const auto differs = [&base](auto change) {
        MoeConfig config = good_config();
        change(&config);
        const auto fields = config_fields(config);
        int count = 0;
        for (std::size_t i = 0; i < base.size(); ++i) count += base[i].value != fields[i].value;
        return count == 1;
    };
    CHECK(differs([](MoeConfig* c) { c->expert_count = 33; }));
    CHECK(differs([](MoeConfig* c) { c->topk = 5; }));
    CHECK(differs([](MoeConfig* c) { c->hidden = 520; }));
    CHECK(differs([](MoeConfig* c) { c->max_tokens = 65; }));
    CHECK(differs([](MoeConfig* c) { c->dispatch_type = ElementType::float16; }));
    CHECK(differs([](MoeConfig* c) { c->scale_words = 1; }));
    CHECK(differs([](MoeConfig* c) { c->combine_type = ElementType::float32; }));
    CHECK(differs([](MoeConfig* c) { c->layout = Layout::expert_major; }));
    CHECK(differs([](MoeConfig* c) { c->expert_alignment = 2; }));
    CHECK(differs([](MoeConfig* c) { c->pad_fill = PadFill::zero; }));
    CHECK(differs([](MoeConfig* c) { c->max_recv_rows = 9; }));
    CHECK(differs([](MoeConfig* c) { c->sm_budget = 3; }));
    CHECK(differs([](MoeConfig* c) { c->dispatch_threads = 64; }));
    CHECK(differs([](MoeConfig* c) { c->combine_threads = 64; }));
    CHECK(differs([](MoeConfig* c) { c->combine_blocks_per_sm = 2; }));
    CHECK(differs([](MoeConfig* c) { c->gin_context_count = 2; }));
    CHECK(differs([](MoeConfig* c) { c->chunk_rows = 2; }));
    CHECK(differs([](MoeConfig* c) { c->sync = Sync::fifo; }));
    CHECK(differs([](MoeConfig* c) { c->tensors = StreamTensors::caller; }));
    CHECK(differs([](MoeConfig* c) { c->ready_rows = 3; }));
    CHECK(differs([](MoeConfig* c) { c->chunks.num_sms = 2; }));
    CHECK(differs([](MoeConfig* c) { c->chunks.nvl_send = 2; }));
    CHECK(differs([](MoeConfig* c) { c->chunks.nvl_recv = 2; }));
    CHECK(differs([](MoeConfig* c) { c->chunks.rdma_send = 2; }));
    CHECK(differs([](MoeConfig* c) { c->chunks.rdma_recv = 2; }));
    CHECK(differs([](MoeConfig* c) { c->deadline_ns = 5; }));
}

TEST_CASE("chunks: each rule by its numbers", "[runtime][config]") {
    const auto fault_of = [](const ChunkConfig& chunks) {
        MoeConfig config = good_config();
        config.sync = Sync::fifo;
        config.chunks = chunks;
        const auto faults = validate(config);
        return faults.empty() ? std::string() : faults[0].field + ": " + faults[0].text;
    };
    CHECK(fault_of({}) == "");
    CHECK(fault_of({4, 1, 1, 1, 2}) == "");
    CHECK_THAT(fault_of({0, 3, 2, 0, 0}), contains_text("nvl_send is 3") &&
                                              contains_text("nvl_recv is 2") &&
                                              contains_text("at least one chunk"));
    CHECK_THAT(fault_of({0, 0, 0, 3, 8}), contains_text("rdma_recv is 8") &&
                                              contains_text("multiple of chunks.rdma_send (3)"));
    CHECK_THAT(fault_of({0, 0, 0, 4, 4}), contains_text("above half of chunks.rdma_recv (4)"));
    CHECK_THAT(fault_of({0, -1, 0, 0, 0}), contains_text("chunks.nvl_send is -1"));
    CHECK_THAT(fault_of({65535, 0, 1 << 20, 0, 0}), contains_text("counted in 32 bits"));
    MoeConfig config = good_config();
    config.chunks.num_sms = 3;
    config.sm_budget = 4;
    REQUIRE(faulty_fields(config) == std::set<std::string>{"chunks.num_sms"});
    config.chunks.num_sms = 0;
    config.tensors = StreamTensors::caller;
    CHECK(faulty_fields(config) == std::set<std::string>{"tensors"});
}

TEST_CASE("chunks: the table", "[runtime][config]") {
    using Direction = ChunkConfig::Direction;
    for (const int ranks : {1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128, 1024}) {
        for (const auto direction : {Direction::dispatch, Direction::combine}) {
            MoeConfig config = good_config();
            config.chunks = ChunkConfig::defaults(ranks, direction);
            CAPTURE(ranks);
            CHECK(validate(config).empty());
        }
    }
    CHECK(ChunkConfig::defaults(8, Direction::dispatch).nvl_send == 6);
    CHECK(ChunkConfig::defaults(8, Direction::combine).nvl_send == 4);
    CHECK(ChunkConfig::defaults(3, Direction::combine).nvl_send == 9);
    CHECK(ChunkConfig::defaults(128, Direction::dispatch).nvl_recv == 560);
}

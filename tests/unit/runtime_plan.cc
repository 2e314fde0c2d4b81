// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "device/kernels/dispatch_shared.hpp"
#include "host/base/log.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "runtime/stats.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

std::uint32_t shared_bytes(const ExchangeArgs& exchange, const KernelShape& shape) {
    return DispatchSharedLayout::build(shape, exchange.peers.rank_count,
                                       exchange.experts.expert_count, exchange.layout,
                                       exchange.rail, exchange.stream)
        .total_bytes;
}

MoeConfig good_config() {
    MoeConfig config;
    config.expert_count = 32;
    config.topk = 4;
    config.hidden = 512;
    config.max_tokens = 64;
    return config;
}

PlanInputs machine(int ranks, int lsa_size, int sm_count = 132) {
    PlanInputs inputs;
    inputs.topology.size = ranks;
    inputs.topology.lsa_size = lsa_size;
    inputs.topology.lsa_team_count = ranks / lsa_size;
    inputs.topology.gin_type = GinType::gdaki;
    inputs.topology.railed_gin_type = GinType::gdaki;
    inputs.topology.symmetric_memory = true;
    for (int r = 0; r < ranks; ++r) {
        RankPlace place;
        place.device_id = static_cast<std::uint64_t>(r) + 1;
        place.sm_count = sm_count;
        inputs.topology.places.push_back(place);
    }
    inputs.device.sm_count = sm_count;
    inputs.device.shared_optin_bytes = 227 << 10;
    inputs.device.max_threads_per_block = 1024;
    inputs.device.memory_bytes = std::uint64_t{80} << 30;
    inputs.dispatch_shared_bytes = shared_bytes;
    inputs.default_deadline_ns = 5000000000;
    return inputs;
}

}  // namespace

TEST_CASE("defaults on a large GPU", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.hidden = 7168;
    config.expert_count = 256;
    config.topk = 8;
    config.max_tokens = 4096;
    const Plan plan = make_plan(config, machine(8, 8));
    CHECK(plan.sm_budget == 32);
    CHECK(plan.kernels.dispatch.block_count == 32);
    CHECK(plan.kernels.dispatch.thread_count == 512);
    CHECK(plan.kernels.dispatch.copy_warps == 3);
    CHECK(plan.kernels.dispatch.slots_per_warp == 2);
    CHECK(plan.kernels.dispatch.slot_bytes == 14336);
    CHECK(plan.kernels.dispatch.shared_bytes <= 227 << 10);
    CHECK(plan.kernels.combine.block_count >= 32);
    CHECK(plan.kernels.combine.slots_per_warp >= 2);
    CHECK(plan.kernels.combine.shared_bytes <= 227 << 10);
    CHECK(plan.kernels.gin_context_count == 0);
    CHECK(plan.signal_count == 0);
    CHECK(plan.send_capacity == 0);
    CHECK(plan.shape.chunk_slots == 0);
    CHECK(plan.row_capacity == 8 * 4096);
    CHECK(plan.device_comm_request().gin_connection == GinConnection::none);
    CHECK_FALSE(plan.device_comm_request().needs_gin());
}

TEST_CASE("long rows move in 16-byte pieces, with two slots a warp", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.dispatch_type = ElementType::float32;
    config.combine_type = ElementType::float32;
    config.hidden = 16384;
    const Plan plan = make_plan(config, machine(4, 4));
    const KernelShape& shape = plan.kernels.dispatch;
    CHECK(shape.slot_bytes < 65536);
    CHECK(shape.slot_bytes % 16 == 0);
    CHECK(shape.slots_per_warp == 2);
    CHECK(shape.shared_bytes <= 227 << 10);
    CHECK(shape.shared_bytes > 220 << 10);
}

TEST_CASE("small devices get small kernels", "[runtime][plan]") {
    const Plan plan = make_plan(good_config(), machine(8, 4, 8));
    CHECK(plan.kernels.dispatch.block_count == 2);
    CHECK(plan.kernels.dispatch.thread_count == 96);
    CHECK(plan.kernels.combine.block_count == 2);
    CHECK(plan.kernels.combine.thread_count == 128);
}

TEST_CASE("ranks on one GPU share its SMs, and the scarcest GPU counts", "[runtime][plan]") {
    PlanInputs inputs = machine(4, 4);
    for (auto& place : inputs.topology.places) place.device_id = 1;
    CHECK(make_plan(good_config(), inputs).sm_budget == 32);
    MoeConfig config = good_config();
    config.sm_budget = 34;
    const LogCapture quiet;
    CHECK_THROWS_WITH(make_plan(config, inputs),
                      contains_text("sm_budget is 34") && contains_text("33 SMs"));
    // The RMA plugin's copier needs room, where it carries GIN.
    for (auto& place : inputs.topology.places) place.copier_sms = 8;
    CHECK(make_plan(good_config(), inputs).sm_budget == 32);
    inputs.topology.railed_gin_type = inputs.topology.gin_type = GinType::proxy;
    CHECK(make_plan(good_config(), inputs).sm_budget == 25);
    CHECK_THROWS_WITH(make_plan(config, inputs),
                      contains_text("25 SMs resident beside 8 of the RMA plugin's copier"));
    inputs = machine(4, 4);
    inputs.topology.places[2].sm_count = 20;
    CHECK(make_plan(good_config(), inputs).sm_budget == 20);
}

TEST_CASE("ranks that share a large GPU have small shares but full blocks", "[runtime][plan]") {
    PlanInputs inputs = machine(8, 8);
    for (auto& place : inputs.topology.places) place.device_id = 1;
    const Plan plan = make_plan(good_config(), inputs);
    CHECK(plan.sm_budget == 16);
    CHECK(plan.kernels.dispatch.thread_count == 512);
    CHECK(plan.kernels.combine.thread_count == 576);
    CHECK(plan.kernels.combine.copy_warps == 2);
}

TEST_CASE("combine blocks have two rings where the warps can be shared out", "[runtime][plan]") {
    MoeConfig config = good_config();
    const auto rings = [&](std::int32_t threads) {
        config.combine_threads = threads;
        return make_plan(config, machine(4, 4)).kernels.combine.copy_warps;
    };
    CHECK(rings(64) == 1);
    CHECK(rings(96) == 1);
    CHECK(rings(128) == 2);
    CHECK(rings(160) == 1);
    CHECK(rings(192) == 2);
}

TEST_CASE("worst-case rows of both layouts", "[runtime][plan]") {
    MoeConfig config = good_config();
    CHECK(make_plan(config, machine(8, 8)).row_capacity == 8 * 64);
    config.layout = Layout::expert_major;
    CHECK(make_plan(config, machine(8, 8)).row_capacity == 8 * 64 * 4);
    config.expert_count = 16;  // two experts a rank: a token names at most two of them
    CHECK(make_plan(config, machine(8, 8)).row_capacity == 8 * 64 * 2);
    config.expert_alignment = 16;
    CHECK(make_plan(config, machine(8, 8)).row_capacity == 8 * 64 * 2 + 32);
    config.expert_count = 17;  // rank 0 owns three
    CHECK(make_plan(config, machine(8, 8)).row_capacity == (8 * 64 * 3 + 45 + 15) / 16 * 16);
    config.max_recv_rows = 100;
    CHECK(make_plan(config, machine(8, 8)).row_capacity == 112);
    CHECK(make_plan(config, machine(8, 8)).worst_case_rows > 112);
    config.max_recv_rows = 1 << 30;
    CHECK(make_plan(config, machine(8, 8)).row_capacity == (8 * 64 * 3 + 45 + 15) / 16 * 16);
}

TEST_CASE("GIN resources exist only where a peer needs them", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.chunk_rows = 8;
    const Plan plan = make_plan(config, machine(8, 4));
    CHECK(plan.gin_peer_count == 4);
    CHECK(plan.kernels.gin_context_count == 4);
    CHECK(plan.signal_count == 57);
    CHECK(plan.send_capacity == 64 * 4);
    CHECK(plan.shape.chunk_slots == 64 * 4 / 8 + 32 + 1);
    const auto request = plan.device_comm_request();
    CHECK(request.gin_connection == GinConnection::full);
    CHECK(request.gin_signal_count == 57);
    CHECK(make_plan(config, machine(8, 1)).send_capacity == 64 * 4);
    CHECK(make_plan(config, machine(2, 1)).send_capacity == 64);
    config.layout = Layout::expert_major;
    CHECK(make_plan(config, machine(2, 1)).send_capacity == 64 * 4);
    PlanInputs fewer = machine(8, 4);
    fewer.actual_gin_context_count = 2;
    CHECK(make_plan(config, fewer).kernels.gin_context_count == 2);
}

TEST_CASE("GIN missing where a peer needs it has its own code", "[runtime][plan]") {
    const LogCapture quiet;
    PlanInputs inputs = machine(8, 4);
    inputs.topology.gin_type = GinType::none;
    try {
        make_plan(good_config(), inputs);
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::gin_unavailable);
        CHECK_THAT(error.what(), contains_text("4 of 8 ranks"));
    }
    inputs.topology = machine(8, 8).topology;
    inputs.topology.gin_type = GinType::none;
    CHECK_NOTHROW(make_plan(good_config(), inputs));
}

TEST_CASE("sizes that overflow are refused, not wrapped", "[runtime][plan]") {
    const LogCapture quiet;
    MoeConfig config = good_config();
    config.max_tokens = 2147483647;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 8)), contains_text("rows may arrive"));
    config.max_recv_rows = 1000;
    CHECK_NOTHROW(make_plan(config, machine(8, 8)));
    CHECK_THROWS_WITH(make_plan(config, machine(8, 4)), contains_text("leave through GIN"));
    config = good_config();
    config.max_tokens = 1 << 20;
    config.hidden = 1 << 20;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 8)),
                      contains_text("the window needs") && contains_text("80 GiB"));
    // The bytes themselves: 2^31 rows x 2^31 bytes x several regions.
    config.max_tokens = 2147483647;
    config.hidden = 1073741816;
    config.dispatch_type = config.combine_type = ElementType::bfloat16;
    PlanInputs one = machine(1, 1);
    one.device.memory_bytes = 0;
    CHECK_THROWS_WITH(make_plan(config, one), contains_text("limit"));
}

TEST_CASE("table offsets are ordered, aligned and disjoint for odd shapes", "[runtime][plan]") {
    for (const int ranks : {1, 2, 3, 6, 7, 64}) {
        for (const int lsa : {1, ranks}) {
            for (const auto layout : {Layout::rank_major, Layout::expert_major}) {
                for (const int experts : {1, 5, 256}) {
                    MoeConfig config = good_config();
                    config.layout = layout;
                    config.expert_count = experts;
                    config.topk = std::min(experts, 8);
                    config.hidden = 24;
                    config.max_tokens = 3;
                    config.scale_words = 3;
                    const Plan plan = make_plan(config, machine(ranks, lsa));
                    CAPTURE(ranks, lsa, experts);
                    const auto window = plan.window_layout();
                    const RegionOffsets& at = plan.regions;
                    REQUIRE(window.region("recv_rows[0]").offset_bytes == at.recv_rows[0]);
                    REQUIRE(window.region("recv_rows[1]").offset_bytes == at.recv_rows[1]);
                    REQUIRE(window.region("recv_meta[1]").offset_bytes == at.recv_meta[1]);
                    REQUIRE(window.region("combine_rows[1]").offset_bytes == at.combine_rows[1]);
                    REQUIRE(window.region("send_rows").offset_bytes == at.send_rows);
                    REQUIRE(window.region("send_meta").offset_bytes == at.send_meta);
                    REQUIRE(window.region("home_rows").offset_bytes == at.home_rows);
                    REQUIRE(window.total_bytes() <= plan.window_bytes);
                    std::uint64_t end = 0;
                    for (const auto& region : window.regions()) {
                        REQUIRE(region.offset_bytes >= end);
                        REQUIRE(region.offset_bytes % 256 == 0);
                        end = region.offset_bytes + region.bytes;
                    }
                    REQUIRE(end <= plan.window_bytes);
                }
            }
        }
    }
}

TEST_CASE("plans print themselves within 100 columns", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.max_tokens = 8192;
    config.hidden = 7168;
    const Plan plan = make_plan(config, machine(64, 8));
    std::istringstream lines(plan.text());
    std::string line;
    int count = 0;
    while (std::getline(lines, line)) {
        CAPTURE(line);
        CHECK(line.size() <= 100);
        ++count;
    }
    CHECK(count > 12);
    CHECK_THAT(plan.text(),
               contains_text("64 ranks, LSA teams of 8") && contains_text("home_rows"));
    const std::string json = plan.json();
    CHECK(std::count(json.begin(), json.end(), '{') == std::count(json.begin(), json.end(), '}'));
    CHECK_THAT(json, contains_text("\"plan.row_capacity\":\"524288\""));
}

TEST_CASE("the mode follows the topology, and says why", "[runtime][plan][hybrid]") {
    const auto plan_of = [](ExchangeMode mode, int ranks, int team) {
        MoeConfig config = good_config();
        config.mode = mode;
        return make_plan(config, machine(ranks, team));
    };
    const auto automatic = plan_of(ExchangeMode::automatic, 8, 4);
    CHECK(automatic.mode == ExchangeMode::hybrid);
    CHECK_THAT(automatic.mode_reason, contains_text("2 LSA teams of 4"));
    CHECK_THAT(automatic.text(), contains_text("hybrid") && contains_text(automatic.mode_reason));
    CHECK_THAT(automatic.json(), contains_text("\"mode\":\"hybrid\""));
    CHECK(plan_of(ExchangeMode::direct, 8, 4).mode == ExchangeMode::direct);
    CHECK(plan_of(ExchangeMode::hybrid, 8, 8).mode == ExchangeMode::direct);
    CHECK_THAT(plan_of(ExchangeMode::hybrid, 8, 8).mode_reason, contains_text("one LSA team"));
    CHECK(plan_of(ExchangeMode::hybrid, 8, 1).mode == ExchangeMode::direct);
    CHECK_THAT(plan_of(ExchangeMode::automatic, 8, 1).mode_reason, contains_text("one rank"));
}

TEST_CASE("hybrid needs rails, not connections between all ranks", "[runtime][plan][hybrid]") {
    MoeConfig config = good_config();
    PlanInputs inputs = machine(8, 4);
    inputs.topology.gin_type = GinType::none;
    config.mode = ExchangeMode::automatic;
    const Plan plan = make_plan(config, inputs);
    CHECK(plan.mode == ExchangeMode::hybrid);
    CHECK(plan.device_comm_request().gin_connection == GinConnection::rail);
    CHECK(plan.exchange_args().peers.rails_only == 1);
    CHECK(plan.fallback == nullptr);
    CHECK_THAT(plan.text(), contains_text("exclude() is refused: GIN reaches the ranks of a rail"));
    const LogCapture quiet;
    config.mode = ExchangeMode::direct;
    CHECK_THROWS_WITH(make_plan(config, inputs), contains_text("mode hybrid needs rails only"));
    inputs.topology.railed_gin_type = GinType::none;
    config.mode = ExchangeMode::hybrid;
    CHECK_THROWS_WITH(make_plan(config, inputs), contains_text("ranks of one LSA index"));
}

TEST_CASE("rings between teams bring nothing along: exclude() is refused",
          "[runtime][plan][fifo]") {
    MoeConfig config = good_config();
    config.sync = Sync::fifo;
    const Plan plan = make_plan(config, machine(8, 4));
    CHECK(plan.fallback == nullptr);
    CHECK(plan.fallback_bytes == 0);
    // Reports of failures reach all ranks where GIN does.
    CHECK(plan.exchange_args().peers.rails_only == 0);
    PlanInputs rails = machine(8, 4);
    rails.topology.gin_type = GinType::none;
    CHECK(make_plan(config, rails).exchange_args().peers.rails_only == 1);
    CHECK_THAT(plan.text(), contains_text("exclude() is refused: sync is fifo"));
}

TEST_CASE("hybrid brings direct mode along in its window, for ranks that are excluded",
          "[runtime][plan][hybrid][exclude]") {
    for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
        for (const PreSum pre_sum : {PreSum::on, PreSum::off}) {
            for (const auto& [ranks, lsa] : std::vector<std::pair<int, int>>{{4, 2}, {24, 8}}) {
                MoeConfig config = good_config();
                config.mode = ExchangeMode::hybrid;
                config.layout = layout;
                config.pre_sum = pre_sum;
                const Plan plan = make_plan(config, machine(ranks, lsa));
                REQUIRE(plan.fallback != nullptr);
                const Plan& direct = *plan.fallback;
                CAPTURE(ranks, plan.text(), direct.text());
                CHECK(direct.mode == ExchangeMode::direct);
                CHECK_FALSE(direct.rail.active());
                CHECK_THAT(direct.text(), contains_text("ranks are excluded"));
                CHECK_THAT(plan.text(), contains_text("direct when ranks are excluded"));
                CHECK(plan.device_comm_request().gin_connection == GinConnection::full);
                CHECK(plan.exchange_args().peers.rails_only == 0);
                // Words, contexts, signals and what the caller has addresses of stay.
                CHECK(std::memcmp(&plan.workspace, &direct.workspace, sizeof plan.workspace) == 0);
                CHECK(std::memcmp(&plan.shape, &direct.shape, sizeof plan.shape) == 0);
                CHECK(plan.kernels.gin_context_count == direct.kernels.gin_context_count);
                CHECK(plan.signal_count == direct.signal_count);
                for (int buffer = 0; buffer < kBufferCount; ++buffer) {
                    CHECK(plan.regions.recv_rows[buffer] == direct.regions.recv_rows[buffer]);
                    CHECK(plan.regions.recv_meta[buffer] == direct.regions.recv_meta[buffer]);
                    CHECK(plan.regions.combine_rows[buffer] == direct.regions.combine_rows[buffer]);
                }
                CHECK(plan.regions.rank_skew(1) == direct.regions.rank_skew(1));
                CHECK(plan.row_capacity == direct.row_capacity);
                CHECK(plan.window_bytes == direct.window_bytes);
                CHECK(direct.window_layout().total_bytes() <= plan.window_bytes);
                CHECK(plan.window_layout().total_bytes() <= plan.window_bytes);
                // Direct mode has all that it would have by itself.
                config.mode = ExchangeMode::direct;
                const Plan alone = make_plan(config, machine(ranks, lsa));
                CHECK(direct.send_capacity == alone.send_capacity);
                CHECK(direct.shape.chunk_slots == alone.shape.chunk_slots);
                CHECK(direct.kernels.dispatch.shared_bytes == alone.kernels.dispatch.shared_bytes);
            }
        }
    }
}

TEST_CASE("over the proxy, the rail carries larger batches, each as one put",
          "[runtime][plan][hybrid]") {
    MoeConfig config = good_config();
    config.mode = ExchangeMode::hybrid;
    config.hidden = 7168;
    config.max_tokens = 4096;
    PlanInputs inputs = machine(8, 4);
    CHECK(make_plan(config, inputs).rail.publish_rows == 6);
    inputs.topology.gin_type = inputs.topology.railed_gin_type = GinType::proxy;
    const Plan plan = make_plan(config, inputs);
    // 43 rows a channel; 36 rows of 14 KiB are 504 KiB.
    CHECK(plan.rail.channel_rows == 43);
    CHECK(plan.rail.publish_rows == 36);
    CHECK(plan.kernels.chunk_rows == 36);
    // 73 rows of 14 KiB are 1 MiB; 64 Ki rows in 3 x 160 puts are 137 each.
    config.max_tokens = 32768;
    CHECK(make_plan(config, inputs).rail.publish_rows == 73);
    config.max_tokens = 65536;
    CHECK(make_plan(config, inputs).rail.publish_rows == 137);
    config.max_tokens = 64;
    CHECK(make_plan(config, inputs).rail.publish_rows == 6);
    config.max_tokens = 4096;
    config.publish_rows = 4;
    config.chunk_rows = 2;
    CHECK(make_plan(config, inputs).rail.publish_rows == 4);
    CHECK(make_plan(config, inputs).kernels.chunk_rows == 2);
}

TEST_CASE("over the proxy, direct mode leaves room in the queues of puts", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.hidden = 7168;
    config.max_tokens = 8192;
    PlanInputs inputs = machine(8, 4);
    CHECK(make_plan(config, inputs).kernels.chunk_rows == 9);  // 128 KiB
    inputs.topology.gin_type = inputs.topology.railed_gin_type = GinType::proxy;
    const auto queue_puts = [&] {
        const Plan plan = make_plan(config, inputs);
        const std::int64_t copies = config.layout == Layout::rank_major ? 1 : config.topk;
        const std::int64_t chunks = copies * config.max_tokens / plan.kernels.chunk_rows /
                                    (plan.kernels.gin_context_count - 1);
        return 2 * chunks;  // rows and records
    };
    CHECK(queue_puts() <= 160);
    config.layout = Layout::expert_major;
    CHECK(queue_puts() <= 160);
}

TEST_CASE("hybrid refuses what its rails cannot carry", "[runtime][plan][hybrid]") {
    const LogCapture quiet;
    MoeConfig config = good_config();
    config.mode = ExchangeMode::hybrid;
    PlanInputs unequal = machine(8, 4);
    unequal.topology.size = 7;
    unequal.topology.places.resize(7);
    CHECK_THROWS_WITH(make_plan(config, unequal),
                      contains_text("7 ranks") && contains_text("2 LSA teams of 4"));
    config.mode = ExchangeMode::automatic;
    CHECK(make_plan(config, unequal).mode == ExchangeMode::direct);
    config = good_config();
    config.mode = ExchangeMode::hybrid;
    config.chunk_rows = 65;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 4)), contains_text("chunk_rows is 65"));
    config.chunk_rows = 0;
    config.dispatch_threads = 32;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 4)), contains_text("dispatch_threads is 32"));
}

TEST_CASE("hybrid buffers: a channel a copy warp, a home row a token and team",
          "[runtime][plan][hybrid]") {
    MoeConfig config = good_config();
    config.mode = ExchangeMode::hybrid;
    config.max_tokens = 1000;
    const Plan plan = make_plan(config, machine(24, 8));
    const KernelShape& shape = plan.kernels.dispatch;
    CHECK(shape.forward_warps == shape.copy_warps);
    CHECK(plan.rail.team_count == 3);
    const std::int32_t channels = shape.block_count * shape.copy_warps;
    CHECK(plan.rail.channel_count == channels);
    CHECK(plan.rail.channel_rows == (1000 + channels - 1) / channels);
    const std::int64_t rows = std::int64_t{2} * channels * plan.rail.channel_rows;
    CHECK(plan.send_capacity == rows);
    CHECK(plan.home_capacity() == rows);
    CHECK(plan.window_bytes == plan.regions.total_bytes);
    config.pre_sum = PreSum::off;
    CHECK(make_plan(config, machine(24, 8)).home_capacity() == 4 * rows);
    const auto window = plan.window_layout();
    std::uint64_t end = 0;
    for (const auto& region : window.regions()) end = region.offset_bytes + region.bytes;
    CHECK(end <= plan.window_bytes);
    CHECK(plan.window_bytes - end < kRegionAlignment);
}

TEST_CASE("equal inputs give equal hashes, other inputs others", "[runtime][plan]") {
    const auto base = make_plan(good_config(), machine(8, 4)).hash();
    CHECK(make_plan(good_config(), machine(8, 4)).hash() == base);
    MoeConfig config = good_config();
    config.chunk_rows = 7;
    CHECK(make_plan(config, machine(8, 4)).hash() != base);
    PlanInputs other_rank = machine(8, 4);
    other_rank.topology.rank = 5;
    other_rank.topology.lsa_rank = 1;
    CHECK(make_plan(good_config(), other_rank).hash() == base);
}

TEST_CASE("traffic is exact for a counted step", "[runtime][stats]") {
    MoeConfig config = good_config();
    config.expert_count = 4;
    config.topk = 2;
    config.chunk_rows = 3;
    config.gin_context_count = 3;
    const Plan plan = make_plan(config, machine(4, 2));
    const int words = plan.shape.count_row_words();
    std::vector<std::int32_t> counts(static_cast<std::size_t>(4 * words));
    const std::int32_t rows[4][4] = {{5, 4, 7, 0}, {1, 0, 2, 0}, {4, 0, 0, 0}, {3, 1, 1, 1}};
    for (int s = 0; s < 4; ++s) {
        for (int d = 0; d < 4; ++d)
            counts[static_cast<std::size_t>(s * words + 1 + d)] = rows[s][d];
    }
    const StepTraffic traffic = compute_traffic(plan, counts);
    CHECK(traffic.rows_sent == 16);
    CHECK(traffic.rows_received == 13);
    CHECK(traffic.lsa_rows_sent == 9);
    CHECK(traffic.gin_rows_sent == 7);
    CHECK(traffic.rows_from == std::vector<std::int64_t>{5, 1, 4, 3});
    // Rank 2: count row, three chunks of rows and of records; rank 3: count row only.
    CHECK(traffic.dispatch_puts == 1 + 6 + 1);
    CHECK(traffic.dispatch_doorbells == (1 + 3 + 2) + (1 + 0 + 2));
    CHECK(traffic.combine_puts == 2 + 1);  // 4 rows to rank 2, 3 rows to rank 3
    CHECK(traffic.dispatch_bytes_sent == 16 * (1024 + 32));
    const LogCapture quiet;
    CHECK_THROWS_WITH(compute_traffic(plan, std::vector<std::int32_t>(3)),
                      contains_text("3 words"));
}

TEST_CASE("sizes beyond 32 bits", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.expert_count = 256;
    config.topk = 8;
    config.hidden = 7168;
    config.max_tokens = 8192;
    const Plan plan = make_plan(config, machine(64, 8));
    const std::int64_t rows = std::int64_t{64} * 8192;
    CHECK(plan.row_capacity == rows);
    REQUIRE(rows * config.hidden > std::int64_t{1} << 31);
    const auto bytes = static_cast<std::uint64_t>(rows) * 14336;
    REQUIRE(bytes > std::uint64_t{1} << 32);
    CHECK(plan.regions.recv_rows[1] - plan.regions.recv_rows[0] >= bytes);
    CHECK(plan.regions.combine_rows[1] - plan.regions.combine_rows[0] >= bytes);
    CHECK(plan.window_bytes >= 4 * bytes);
    CHECK(plan.window_layout().total_bytes() == plan.window_bytes);

    // Identical tokens: every rank sends all of its rows to rank 0.
    const int words = plan.shape.count_row_words();
    std::vector<std::int32_t> counts(static_cast<std::size_t>(64 * words));
    for (int s = 0; s < 64; ++s) counts[static_cast<std::size_t>(s * words + 1)] = 8192;
    const StepTraffic traffic = compute_traffic(plan, counts);
    CHECK(traffic.rows_received == rows);
    // As many of their rows as LSA peers pull, and the others that are pushed home.
    CHECK(traffic.combine_bytes_sent >=
          static_cast<std::int64_t>(bytes) - std::int64_t{8192} * 14336);

    // Rows beyond 2^31 do not fit a slot number.
    config.max_tokens = 1 << 30;
    CHECK_THROWS_WITH(make_plan(config, machine(64, 8)), contains_text("max_recv_rows"));
}

TEST_CASE("fifo: the window does not grow with the tokens", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.sync = Sync::fifo;
    config.ready_rows = 1 << 20;  // the counters of blocks do
    PlanInputs inputs = machine(8, 8);
    const Plan small = make_plan(config, inputs);
    config.max_tokens = 65536;
    const Plan large = make_plan(config, inputs);
    CHECK(large.window_bytes == small.window_bytes);
    CHECK(large.tensors.total_bytes > small.tensors.total_bytes);
    config.tensors = StreamTensors::caller;
    CHECK(make_plan(config, inputs).tensors.total_bytes == 0);
    config.max_tokens = 4096;
    config.hidden = 7168;
    config.tensors = StreamTensors::library;
    CHECK_THAT(make_plan(config, inputs).text(),
               contains_text("rings of 256 slots") && contains_text("the table's"));
    inputs.device.l2_bytes = 60 << 20;
    const Plan fifo = make_plan(config, inputs);
    config.sync = Sync::barrier;
    CHECK(fifo.window_bytes <= make_plan(config, inputs).window_bytes / 4);
}

TEST_CASE("fifo: rings stay in the cache, unless asked for", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.sync = Sync::fifo;
    config.hidden = 7168;
    PlanInputs inputs = machine(8, 8);
    inputs.device.l2_bytes = 60 << 20;
    const Plan plan = make_plan(config, inputs);
    CHECK(plan.stream.slot_count < 256);
    CHECK(plan.stream.slot_count >= 2);
    CHECK(plan.stream.channels_per_block == 2);
    CHECK(plan.kernels.dispatch.copy_warps == 2);
    CHECK(plan.kernels.dispatch.forward_warps == 4);
    CHECK(plan.kernels.combine.thread_count == 640);
    CHECK(plan.kernels.combine.copy_warps == 2);
    config.chunks.nvl_recv = 300;
    CHECK(make_plan(config, inputs).stream.slot_count == 300);
    config.chunks.nvl_recv = 1;
    config.chunks.nvl_send = 1;
    CHECK(make_plan(config, inputs).stream.slot_count == 1);
}

TEST_CASE("fifo: between teams over the rails, with rings of a fixed size", "[runtime][plan]") {
    MoeConfig config = good_config();
    config.sync = Sync::fifo;
    config.ready_rows = 1 << 20;
    const Plan plan = make_plan(config, machine(8, 4));
    CHECK(plan.mode == ExchangeMode::hybrid);
    CHECK(plan.gin_connection == GinConnection::full);
    CHECK(plan.stream.relay_warps == plan.stream.channels_per_block);
    CHECK(plan.rail.channel_count == plan.stream.channel_count);
    CHECK(plan.kernels.combine.forward_warps == 2 * plan.stream.channels_per_block);
    CHECK(plan.shape.stream_rail_count == 2 * plan.stream.channel_count);
    CHECK(plan.send_capacity == 0);
    CHECK(plan.rail_buffer_rows() == 0);
    CHECK_THAT(plan.text(), contains_text("between teams rings of 16 slots"));
    CHECK(plan.window_layout().total_bytes() == plan.window_bytes);
    config.max_tokens *= 16;
    CHECK(make_plan(config, machine(8, 4)).window_bytes == plan.window_bytes);
    config.chunks.rdma_recv = 40;
    CHECK(make_plan(config, machine(8, 4)).stream.rail_slots == 40);
    // Weights do not travel: home applies them, so rows come home one by one.
    config.layout = Layout::expert_major;
    CHECK(make_plan(config, machine(8, 4)).pre_sum_team() == 0);
    config.chunks.rdma_recv = 2;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 4)), contains_text("rdma_recv is 2"));
}

TEST_CASE("fifo: what the plan refuses", "[runtime][plan]") {
    LogCapture quiet;
    MoeConfig config = good_config();
    config.sync = Sync::fifo;
    PlanInputs uneven = machine(7, 4);
    uneven.topology.lsa_team_count = 2;
    CHECK_THROWS_WITH(make_plan(config, uneven), contains_text("7 ranks do not make 2 LSA teams") &&
                                                     contains_text("use sync barrier"));
    CHECK_THROWS_WITH(make_plan(config, machine(64, 64)), contains_text("the limit is 32"));
    config.dispatch_threads = 64;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 4)), contains_text("needs at least 96"));
    config.dispatch_threads = 0;
    config.combine_blocks_per_sm = 2;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 8)),
                      contains_text("combine_blocks_per_sm is 2"));
    config.combine_blocks_per_sm = 0;
    config.combine_threads = 1024;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 8)), contains_text("adds 64 that send"));
    config.combine_threads = 0;
    config.layout = Layout::expert_major;
    config.chunks.nvl_recv = 2;
    CHECK_THROWS_WITH(make_plan(config, machine(8, 8)),
                      contains_text("may have 4 rows at one rank"));
}

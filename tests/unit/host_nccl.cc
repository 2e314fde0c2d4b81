// SPDX-License-Identifier: Apache-2.0
// What can be checked of host/nccl without a communicator; the rest is in host_sim.cc.
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "host/base/env.hpp"
#include "host/bootstrap/callback_bootstrap.hpp"
#include "host/nccl/check.hpp"
#include "host/nccl/communicator.hpp"
#include "host/nccl/communicator_state.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/topology.hpp"
#include "host/nccl/version.hpp"
#include "host/nccl/window_layout.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::contains_text;

TEST_CASE("NCCL versions are told apart, with both named and a cure", "[host][nccl][version]") {
    CHECK(nccl_version_text(23007) == "2.30.7");
    CHECK(nccl_version_text(22809) == "2.28.9");
    CHECK(nccl_version_text(2708) == "2.7.8");
    CHECK(nccl_compiled_version() >= kOldestNcclVersion);
    CHECK_FALSE(nccl_version_fault(23005, 23005).has_value());
    CHECK_FALSE(nccl_version_fault(23007, 23203).has_value());
    const auto too_old = nccl_version_fault(23007, 22809);
    REQUIRE(too_old.has_value());
    CHECK_THAT(*too_old, contains_text("compiled with NCCL 2.30.7"));
    CHECK_THAT(*too_old, contains_text("running with NCCL 2.28.9"));
    CHECK_THAT(*too_old, contains_text("2.30.5 or newer is needed"));
    CHECK_THAT(*too_old, contains_text("LD_LIBRARY_PATH"));
    const auto compiled_newer = nccl_version_fault(23203, 23007);
    REQUIRE(compiled_newer.has_value());
    CHECK_THAT(*compiled_newer, contains_text("load NCCL 2.32.3 or newer"));
    const auto major = nccl_version_fault(23007, 30000);
    REQUIRE(major.has_value());
    CHECK_THAT(*major, contains_text("major"));
}

TEST_CASE("NCCL results map to codes, and the text names the call", "[host][nccl]") {
    CHECK(error_code_of(ncclSuccess) == ErrorCode::ok);
    CHECK(error_code_of(ncclRemoteError) == ErrorCode::peer_failed);
    CHECK(error_code_of(ncclUnhandledCudaError) == ErrorCode::cuda);
    CHECK(error_code_of(ncclInvalidArgument) == ErrorCode::nccl);
    CHECK_NOTHROW(nccl_check(ncclSuccess, "ncclFoo", 0));
    check_error([] { nccl_check(ncclInvalidUsage, "ncclFoo", 2); }, ErrorCode::nccl,
                {"ncclFoo failed", "result 5", "NCCL_MULTI_RANK_GPU_ENABLE=1"});
}

TEST_CASE("window layout: aligned, ordered, exact", "[host][nccl][layout]") {
    WindowLayout layout;
    CHECK(layout.total_bytes() == 0);
    CHECK(layout.add("flags", 8) == 0);
    CHECK(layout.add("empty", 0) == 1);
    CHECK(layout.add("rows", 1000, 4096) == 2);
    CHECK(layout.add("tail", 1) == 3);
    CHECK(layout.region(0).offset_bytes == 0);
    CHECK(layout.region("empty").offset_bytes == 128);
    CHECK(layout.region("rows").offset_bytes == 4096);
    CHECK(layout.region("tail").offset_bytes == 4096 + 1024);
    CHECK(layout.total_bytes() == 4096 + 1024 + 128);
    CHECK_THAT(layout.text(), contains_text("rows"));
    WindowLayout other;
    other.add("flags", 8);
    CHECK(other.hash() != layout.hash());
    other.add("empty", 0);
    other.add("rows", 1000, 4096);
    other.add("tail", 1);
    CHECK(other.hash() == layout.hash());
}

TEST_CASE("window layout: what it refuses", "[host][nccl][layout]") {
    WindowLayout layout;
    layout.add("flags", 8);
    check_error([&] { layout.add("flags", 8); }, ErrorCode::invalid_argument,
                {"'flags'", "exists"});
    check_error([&] { layout.add("", 8); }, ErrorCode::invalid_argument, {"empty name"});
    check_error([&] { layout.add("x", 8, 64); }, ErrorCode::invalid_argument,
                {"64 B", "at least 128 B"});
    check_error([&] { layout.add("x", 8, 384); }, ErrorCode::invalid_argument,
                {"384 B", "power of two"});
    check_error([&] { layout.add("x", UINT64_MAX); }, ErrorCode::overflow, {"'x'"});
    check_error([&] { layout.add("x", UINT64_MAX - 128); }, ErrorCode::overflow, {"'x'"});
    check_error([&] { (void)layout.region("y"); }, ErrorCode::invalid_argument, {"'y'", "flags"});
    check_error([&] { (void)layout.region(1); }, ErrorCode::invalid_argument,
                {"region 1", "there are 1"});
    CHECK(layout.regions().size() == 1);
    CHECK(layout.total_bytes() == 128);
}

TEST_CASE("device communicator requests: all faults at once, each with value and limit",
          "[host][nccl][devcomm]") {
    const CommunicatorProperties properties;
    CHECK(request_faults({}, properties).empty());
    DeviceCommRequest good;
    good.gin_connection = GinConnection::full;
    good.gin_context_count = 2;
    good.gin_signal_count = 17;
    CHECK(request_faults(good, properties).empty());

    DeviceCommRequest bad;
    bad.lsa_barrier_count = -1;
    bad.gin_signal_count = 3;
    bad.lsa_multimem = true;
    const auto faults = request_faults(bad, properties);
    REQUIRE(faults.size() == 3);
    CHECK_THAT(faults[0], contains_text("lsa_barrier_count is -1, must be 0.."));
    CHECK_THAT(faults[1], contains_text("gin_connection none"));
    CHECK_THAT(faults[2], contains_text("lsa_multimem"));

    DeviceCommRequest rail = good;
    rail.gin_connection = GinConnection::rail;
    rail.world_gin_barrier_count = 2;
    rail.gin_context_count = 0;
    const auto rail_faults = request_faults(rail, properties);
    REQUIRE(rail_faults.size() == 2);
    CHECK_THAT(rail_faults[0], contains_text("gin_context_count is 0"));
    CHECK_THAT(rail_faults[1], contains_text("world_gin_barrier_count is 2"));
}

TEST_CASE("device communicator requests reach NCCL's direct fields only", "[host][nccl][devcomm]") {
    DeviceCommRequest request;
    request.lsa_barrier_count = 3;
    request.gin_connection = GinConnection::rail;
    request.gin_context_count = 5;
    request.gin_signal_count = 7;
    request.gin_counter_count = 11;
    request.rail_gin_barrier_count = 2;
    request.gin_queue_depth = 64;
    const ncclDevCommRequirements_t to = make_requirements(request);
    CHECK(to.version == NCCL_VERSION_CODE);
    CHECK(to.resourceRequirementsList == nullptr);
    CHECK(to.teamRequirementsList == nullptr);
    CHECK(to.lsaBarrierCount == 3);
    CHECK(to.barrierCount == 0);
    CHECK(to.ginConnectionType == NCCL_GIN_CONNECTION_RAIL);
    CHECK(to.ginContextCount == 5);
    CHECK(to.ginSignalCount == 7);
    CHECK(to.ginCounterCount == 11);
    CHECK(to.railGinBarrierCount == 2);
    CHECK(to.ginQueueDepth == 64);
    CHECK(to.ginStrongSignalsRequired);
    CHECK_FALSE(to.ginVaSignalsRequired);

    // Without GIN nothing may be demanded of a backend that is not there.
    const ncclDevCommRequirements_t none = make_requirements({});
    CHECK(none.ginConnectionType == NCCL_GIN_CONNECTION_NONE);
    CHECK_FALSE(none.ginStrongSignalsRequired);
    CHECK_FALSE(none.ginVaSignalsRequired);
    CHECK(none.ginSignalCount == 0);
}

TEST_CASE("communicators refuse null", "[host][nccl]") {
    check_error([] { Communicator::create(nullptr); }, ErrorCode::invalid_argument,
                {"bootstrap is null"});
    check_error([] { Communicator::adopt(nullptr, make_single_bootstrap()); },
                ErrorCode::invalid_argument, {"ncclComm_t is null"});
}

namespace {

/// Eight ranks in two LSA teams of four, seen from rank 5; ranks 4-7 on one GPU, 4 in the same
/// process.
Topology two_teams() {
    Topology topology;
    topology.rank = 5;
    topology.size = 8;
    topology.lsa_rank = 1;
    topology.lsa_size = 4;
    topology.lsa_team_index = 1;
    topology.lsa_team_count = 2;
    topology.gin_type = GinType::proxy;
    topology.railed_gin_type = GinType::proxy;
    topology.symmetric_memory = true;
    for (int r = 0; r < 8; ++r) {
        RankPlace place;
        place.host_id = r < 4 ? 1 : 2;
        place.device_id = r < 4 ? static_cast<std::uint64_t>(r) : 99;
        place.process_id = r < 6 ? 10 : 11;
        place.sm_count = 132;
        topology.places.push_back(place);
    }
    return topology;
}

}  // namespace

TEST_CASE("topology: teams, rails and reach", "[host][nccl][topology]") {
    Topology topology = two_teams();
    CHECK(topology.lsa_team_of(3) == 0);
    CHECK(topology.lsa_team_of(4) == 1);
    CHECK(topology.lsa_rank_of(6) == 2);
    CHECK(topology.rank_at(1, 3) == 7);
    CHECK(topology.reach(5, GinConnection::none) == Reach::self);
    CHECK(topology.reach(6, GinConnection::none) == Reach::lsa);
    CHECK(topology.reach(1, GinConnection::none) == Reach::none);
    CHECK(topology.reach(1, GinConnection::rail) == Reach::gin);
    CHECK(topology.reach(2, GinConnection::rail) == Reach::none);
    CHECK(topology.reach(2, GinConnection::full) == Reach::gin);
    CHECK(topology.connection_needed() == GinConnection::full);
    CHECK(topology.host_count() == 2);
    CHECK(topology.ranks_on_my_gpu() == std::vector<int>{4, 5, 6, 7});
    CHECK(topology.shares_gpu_across_processes());
    CHECK_THAT(topology.text(), contains_text("LSA team 1 of 2, index 1 of 4; GIN proxy"));
    CHECK_THAT(topology.json(), contains_text("\"lsa_team_count\":2"));
    topology.gin_type = GinType::none;
    CHECK(topology.reach(2, GinConnection::full) == Reach::none);
    CHECK(topology.reach(1, GinConnection::rail) == Reach::gin);
    topology.symmetric_memory = false;
    CHECK(topology.reach(6, GinConnection::full) == Reach::none);
    check_error([&] { (void)topology.reach(8, GinConnection::full); }, ErrorCode::invalid_argument,
                {"rank 8", "0..7"});
    check_error([&] { (void)topology.rank_at(2, 0); }, ErrorCode::invalid_argument,
                {"team 2", "0..1"});
    Topology one;
    CHECK(one.connection_needed() == GinConnection::none);
}

TEST_CASE("processes on one GPU without MPS are warned of once", "[host][nccl][topology]") {
    Topology topology = two_teams();
    CHECK(time_slicing_warning(topology).empty());  // rank 4 says it
    topology.rank = 4;
    CHECK_THAT(time_slicing_warning(topology), contains_text("ranks 4-7 are processes"));
    CHECK_THAT(time_slicing_warning(topology), contains_text("nvidia-cuda-mps-control -d"));
    topology.places[4].mps_client = 1;
    CHECK(time_slicing_warning(topology).empty());
    topology.rank = 0;  // alone on its GPU
    CHECK(time_slicing_warning(topology).empty());
    topology = two_teams();
    topology.rank = 4;
    for (RankPlace& place : topology.places) place.process_id = 10;  // threads of one process
    CHECK(time_slicing_warning(topology).empty());
}

TEST_CASE("host identity does not change within a boot", "[host][nccl][topology]") {
    CHECK(host_identity() == host_identity());
    CHECK(host_identity() != 0);
}

TEST_CASE("missing symmetric memory and missing GIN are explained with a cure", "[host][nccl]") {
    const EnvOverride win(EnvVar::nccl_win_enable, "");
    const EnvOverride cumem(EnvVar::nccl_cumem_enable, "");
    const EnvOverride gin(EnvVar::nccl_gin_enable, "");
    const EnvOverride emu(EnvVar::emu_gin, "");
    CommunicatorProperties properties;
    properties.size = 8;
    properties.lsa_team_count = 2;
    CHECK_THAT(no_symmetric_memory_reason(properties), contains_text("8 ranks form 2 LSA teams"));
    CHECK_THAT(no_symmetric_memory_reason(properties), contains_text("NCCL_RMA_PLUGIN"));
    {
        const EnvOverride off(EnvVar::nccl_win_enable, "0");
        CHECK_THAT(no_symmetric_memory_reason(properties), contains_text("unset it"));
    }
    {
        const EnvOverride off(EnvVar::emu_gin, "off");
        CHECK_THAT(no_gin_reason(properties), contains_text("GIMLET_EMU_GIN"));
    }
    properties.railed_gin_type = GinType::gdaki;
    CHECK_THAT(no_gin_reason(properties), contains_text("NCCL_CROSS_NIC"));
}

// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <vector>

#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

TEST_CASE("version and error texts", "[emulator][nccl]") {
    int version = 0;
    REQUIRE(ncclGetVersion(&version) == ncclSuccess);
    REQUIRE(version == 23007);
    REQUIRE(NCCL_VERSION(2, 30, 7) == NCCL_VERSION_CODE);
    REQUIRE(NCCL_VERSION(2, 8, 3) == 2803);
    for (int code = 0; code <= ncclNumResults; ++code) {
        REQUIRE(std::string(ncclGetErrorString(static_cast<ncclResult_t>(code))).size() > 3);
    }
}

TEST_CASE("a communicator knows its ranks and its machine", "[emulator][nccl]") {
    const int team = GENERATE(0, 1, 2, 3, 4, 16);
    SimOptions options;
    options.ranks = 4;
    options.lsa_team_size = team;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 4);
        int count = 0, user_rank = -1, device = -1;
        NCCL_OK(ncclCommCount(comm, &count));
        NCCL_OK(ncclCommUserRank(comm, &user_rank));
        NCCL_OK(ncclCommCuDevice(comm, &device));
        VERIFY(count == 4 && user_rank == rank && device == rank);
        ncclCommProperties props = NCCL_COMM_PROPERTIES_INITIALIZER;
        NCCL_OK(ncclCommQueryProperties(comm, &props));
        const int lsa_size = team == 0 || team == 16 ? 4 : team == 3 ? 1 : team;
        VERIFY(props.rank == rank && props.nRanks == 4 && props.nLsaTeams == 4 / lsa_size);
        VERIFY(props.deviceApiSupport && !props.multimemSupport);
        VERIFY(props.ginType == NCCL_GIN_TYPE_GDAKI && props.railedGinType == NCCL_GIN_TYPE_GDAKI);
        const ncclTeam lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm),
                       world = ncclTeamWorld(comm);
        VERIFY(lsa.nRanks == lsa_size && lsa.rank == rank % lsa_size && lsa.stride == 1);
        VERIFY(rail.nRanks == 4 / lsa_size && rail.rank == rank / lsa_size &&
               rail.stride == lsa_size);
        VERIFY(world.nRanks == 4 && world.rank == rank);
        VERIFY(ncclTeamRankToWorld(comm, rail, 0) == rank % lsa_size);
        props.magic = 0;
        NCCL_GIVES(ncclInvalidUsage, ncclCommQueryProperties(comm, &props));
        NCCL_OK(ncclCommDestroy(comm));
        NCCL_GIVES(ncclInvalidArgument, ncclCommCount(comm, &count));
    });
}

TEST_CASE("init refuses what makes no sense", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 1;
    simulate(options, [&](int) {
        ncclUniqueId id;
        NCCL_OK(ncclGetUniqueId(&id));
        ncclComm_t comm = nullptr;
        NCCL_GIVES(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0));
        NCCL_GIVES(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
        NCCL_GIVES(ncclInvalidArgument, ncclCommInitRank(nullptr, 1, id, 0));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.magic = 1;
        NCCL_GIVES(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
        config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        NCCL_OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
        NCCL_GIVES(ncclInvalidUsage, ncclGroupEnd());
        const ncclUniqueId nonsense = {};
        ncclComm_t other = nullptr;
        NCCL_GIVES(ncclSystemError, ncclCommInitRank(&other, 1, nonsense, 0));
        VERIFY(other == nullptr);
    });
}

TEST_CASE("one thread drives all ranks in a group", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 1;
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    simulate(options, [&](int) {
        constexpr int kRanks = 4;
        const int devices[kRanks] = {0, 0, 0, 0};
        ncclComm_t comms[kRanks];
        NCCL_OK(ncclCommInitAll(comms, kRanks, devices));
        void* memory[kRanks];
        ncclWindow_t windows[kRanks];
        ncclDevComm devs[kRanks];
        const ncclDevCommRequirements reqs = lsa_requirements();
        for (auto& one : memory) NCCL_OK(ncclMemAlloc(&one, 4096));
        NCCL_OK(ncclGroupStart());
        for (int r = 0; r < kRanks; ++r)
            NCCL_OK(ncclCommWindowRegister(comms[r], memory[r], 4096, &windows[r], 0));
        NCCL_OK(ncclGroupEnd());
        NCCL_OK(ncclGroupStart());
        for (int r = 0; r < kRanks; ++r) NCCL_OK(ncclDevCommCreate(comms[r], &reqs, &devs[r]));
        NCCL_OK(ncclGroupEnd());
        for (int r = 0; r < kRanks; ++r) {
            VERIFY(devs[r].rank == r && devs[r].nRanks == kRanks);
            void* peer = nullptr;
            NCCL_OK(ncclGetPeerDevicePointer(windows[r], 8, (r + 1) % kRanks, &peer));
            VERIFY(peer == static_cast<char*>(memory[(r + 1) % kRanks]) + 8);
        }
    });
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const std::string text = failure_of(options, [&](int) {
        const int devices[2] = {0, 0};
        ncclComm_t comms[2];
        NCCL_GIVES(ncclInvalidUsage, ncclCommInitAll(comms, 2, devices));
    });
    REQUIRE(text.empty());
}

TEST_CASE("split orders by key, and colour -1 gets nothing", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 6;
    options.lsa_team_size = 2;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 6);
        ncclComm_t part = reinterpret_cast<ncclComm_t>(1);
        const int color = rank == 5 ? NCCL_SPLIT_NOCOLOR : rank % 2;
        NCCL_OK(ncclCommSplit(comm, color, -rank, &part, nullptr));
        if (rank == 5) {
            VERIFY(part == nullptr);
            return;
        }
        int count = 0, my_rank = -1;
        NCCL_OK(ncclCommCount(part, &count));
        NCCL_OK(ncclCommUserRank(part, &my_rank));
        // Even: 4, 2, 0. Odd: 3, 1.
        VERIFY(count == (color == 0 ? 3 : 2));
        VERIFY(my_rank == (color == 0 ? (4 - rank) / 2 : (3 - rank) / 2));
        void* memory = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, 8192));
        ncclWindow_t window = nullptr;
        NCCL_OK(ncclCommWindowRegister(part, memory, 8192, &window, 0));
        VERIFY(window != nullptr);
        NCCL_GIVES(ncclInvalidArgument, ncclCommSplit(comm, -7, 0, &part, nullptr));
    });
}

TEST_CASE("windows: alignment, memory, flags, and the NULL window", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 2;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 2);
        void* memory = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, 3 * 4096));
        char* bytes = static_cast<char*>(memory);
        ncclWindow_t window = nullptr;
        NCCL_GIVES(ncclInvalidArgument, ncclCommWindowRegister(comm, bytes + 64, 4096, &window, 0));
        VERIFY(window == nullptr);
        NCCL_GIVES(ncclInvalidArgument,
                   ncclCommWindowRegister(comm, memory, 3 * 4096, &window, 64));
        NCCL_GIVES(ncclInvalidArgument, ncclCommWindowRegister(comm, memory, 4 * 4096, &window, 0));
        void* plain = nullptr;
        VERIFY(cudaMalloc(&plain, 4096) == cudaSuccess);
        NCCL_GIVES(ncclInvalidArgument, ncclCommWindowRegister(comm, plain, 4096, &window, 0));
        // A rank that does everything right hears that another one did not.
        NCCL_GIVES(rank == 0 ? ncclInvalidArgument : ncclRemoteError,
                   ncclCommWindowRegister(comm, rank == 0 ? bytes + 8 : bytes, 64, &window, 0));
        NCCL_OK(ncclCommWindowRegister(comm, bytes + 4096, 100, &window, 0));
        void* user = nullptr;
        NCCL_OK(ncclWinGetUserPtr(comm, window, &user));
        VERIFY(user == bytes + 4096);
        void* pointer = nullptr;
        NCCL_GIVES(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 100, 0, &pointer));
        NCCL_GIVES(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 2, &pointer));
        NCCL_OK(ncclGetLsaDevicePointer(window, 99, rank, &pointer));
        VERIFY(pointer == bytes + 4096 + 99);
        NCCL_OK(ncclGetLsaMultimemDevicePointer(window, 0, &pointer));
        VERIFY(pointer == nullptr);
        gimlet::emu::host_barrier();
        NCCL_OK(ncclCommWindowDeregister(comm, window));
        NCCL_GIVES(ncclInvalidArgument, ncclGetLsaDevicePointer(window, 0, 0, &pointer));
        NCCL_OK(ncclMemFree(memory));
        NCCL_GIVES(ncclInvalidArgument, ncclMemFree(plain));
    });
    options.ranks = 4;
    options.lsa_team_size = 2;
    options.gin = GinMode::off;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 4);
        void* memory = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, 4096));
        ncclWindow_t window = reinterpret_cast<ncclWindow_t>(1);
        NCCL_OK(ncclCommWindowRegister(comm, memory, 4096, &window, 0));
        VERIFY(window == nullptr);
        const ncclDevCommRequirements reqs = lsa_requirements();
        ncclDevComm dev;
        NCCL_GIVES(ncclInvalidUsage, ncclDevCommCreate(comm, &reqs, &dev));
        ncclCommProperties props = NCCL_COMM_PROPERTIES_INITIALIZER;
        NCCL_OK(ncclCommQueryProperties(comm, &props));
        VERIFY(!props.deviceApiSupport && props.ginType == NCCL_GIN_TYPE_NONE);
    });
}

TEST_CASE("host getters give NULL for peers outside of the team", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 4;
    options.lsa_team_size = 2;
    simulate(options, [&](int rank) {
        Rank r(rank, 4, lsa_requirements());
        for (int peer = 0; peer < 4; ++peer) {
            void* pointer = &pointer;
            NCCL_OK(ncclGetPeerDevicePointer(r.window, 0, peer, &pointer));
            VERIFY((pointer != nullptr) == (peer / 2 == rank / 2));
        }
        void* pointer = nullptr;
        NCCL_GIVES(ncclInvalidArgument, ncclGetPeerDevicePointer(r.window, 0, 4, &pointer));
        NCCL_GIVES(ncclInvalidArgument,
                   ncclGetLsaDevicePointer(r.dev.resourceWindow, 0, 0, &pointer));
        r.close();
    });
}

TEST_CASE("device communicator requirements are checked as NCCL checks them", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 2;
    options.gin_contexts_max = 3;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 2);
        ncclDevComm dev;
        const auto gives = [&](ncclResult_t wanted, const ncclDevCommRequirements& reqs) {
            NCCL_GIVES(wanted, ncclDevCommCreate(comm, &reqs, &dev));
        };
        ncclDevCommRequirements reqs = lsa_requirements();
        reqs.magic = 0;
        gives(ncclInvalidUsage, reqs);
        reqs = lsa_requirements();
        reqs.version = NCCL_VERSION_CODE + 1;
        gives(ncclInvalidUsage, reqs);
        reqs = lsa_requirements();
        reqs.barrierCount = 1;  // counts as GIN
        gives(ncclInvalidArgument, reqs);
        reqs = lsa_requirements();
        reqs.ginSignalCount = 1;
        gives(ncclInvalidArgument, reqs);
        reqs.ginForceEnable = true;
        gives(ncclSuccess, reqs);
        VERIFY(dev.ginContextCount == 3);  // default 4, this machine has 3
        reqs = gin_requirements();
        reqs.worldGinBarrierCount = 1;
        gives(ncclSuccess, reqs);
        reqs.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
        gives(ncclInvalidArgument, reqs);
        reqs = lsa_requirements(-1);
        gives(ncclInvalidArgument, reqs);
        reqs = lsa_requirements();
        reqs.lsaMultimem = true;
        gives(ncclInvalidUsage, reqs);
        reqs = lsa_requirements();
        gives(ncclSuccess, reqs);
        VERIFY(dev.ginContextCount == 0 && dev.rank == rank && dev.lsaSize == 2 &&
               dev.abortFlag == nullptr);
        gives(ncclInvalidUsage, lsa_requirements(3 + rank));  // ranks disagree
    });
}

TEST_CASE("resource lists give buffers but drop GIN ids", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 2;
    simulate(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 2);
        ncclDevCommRequirements reqs = gin_requirements(5);
        ncclLsaBarrierHandle lsa = {0xdead, 0};
        ncclGinBarrierHandle gin = {0xdead, 0};
        ncclDevResourceRequirements lsa_req, gin_req;
        NCCL_OK(ncclLsaBarrierCreateRequirement(ncclTeamLsa(comm), 3, &lsa, &lsa_req));
        NCCL_OK(ncclGinBarrierCreateRequirement(comm, ncclTeamWorld(comm), 3, &gin, &gin_req));
        lsa_req.next = &gin_req;
        reqs.resourceRequirementsList = &lsa_req;
        ncclDevComm dev;
        NCCL_OK(ncclDevCommCreate(comm, &reqs, &dev));
        VERIFY(lsa.bufHandle != 0xdead && lsa.nBarriers == 3);
        VERIFY(gin.signal0 == 0xdead);  // the trap of 2.30.7
        VERIFY(dev.ginSignalCount == 5);
    });
}

TEST_CASE("NCCL_CROSS_NIC=0 leaves only rail connections", "[emulator][nccl]") {
    setenv("NCCL_CROSS_NIC", "0", 1);
    SimOptions options;
    options.ranks = 4;
    options.lsa_team_size = 2;
    const std::string text = failure_of(options, [&](int rank) {
        ncclComm_t comm = join_world(rank, 4);
        ncclCommProperties props = NCCL_COMM_PROPERTIES_INITIALIZER;
        NCCL_OK(ncclCommQueryProperties(comm, &props));
        VERIFY(props.ginType == NCCL_GIN_TYPE_NONE && props.railedGinType == NCCL_GIN_TYPE_GDAKI);
        ncclDevCommRequirements reqs = gin_requirements();
        ncclDevComm dev;
        NCCL_GIVES(ncclInvalidArgument, ncclDevCommCreate(comm, &reqs, &dev));
        reqs.ginConnectionType = NCCL_GIN_CONNECTION_RAIL;
        NCCL_OK(ncclDevCommCreate(comm, &reqs, &dev));
        VERIFY(dev.ginContextsRailed && dev.ginConnectionsRailed);
    });
    unsetenv("NCCL_CROSS_NIC");
    REQUIRE(text == "");
}

TEST_CASE("a rank that does not come is named in the deadlock table", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 3;
    const std::string text = failure_of(options, [&](int rank) {
        ncclUniqueId id = {};
        if (rank == 0) NCCL_OK(ncclGetUniqueId(&id));
        const auto all = gimlet::emu::host_all_gather(&id, sizeof(id));
        std::memcpy(&id, all[0].data(), sizeof(id));
        if (rank == 1) return;
        ncclComm_t comm = nullptr;
        NCCL_OK(ncclCommInitRank(&comm, 3, id, rank));
    });
    REQUIRE_THAT(text, contains_text("ncclCommInitRank waits for rank(s) 1"));
}

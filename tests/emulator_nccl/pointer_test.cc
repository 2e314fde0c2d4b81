// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

TEST_CASE("team translations", "[emulator][nccl]") {
    ncclDevComm comm = {};
    comm.nRanks = 12;
    comm.lsaSize = 4;
    for (int rank = 0; rank < 12; ++rank) {
        comm.rank = rank;
        comm.lsaRank = rank % 4;
        const ncclTeam world = ncclTeamWorld(comm), lsa = ncclTeamLsa(comm),
                       rail = ncclTeamRail(comm);
        for (int r = 0; r < 12; ++r) {
            REQUIRE(ncclTeamRankIsMember(lsa, world, r) == (r / 4 == rank / 4));
            REQUIRE(ncclTeamRankIsMember(rail, world, r) == (r % 4 == rank % 4));
            if (r / 4 == rank / 4) REQUIRE(ncclTeamRankToTeam(lsa, world, r) == r % 4);
            if (r % 4 == rank % 4) REQUIRE(ncclTeamRankToTeam(rail, world, r) == r / 4);
        }
        for (int r = 0; r < 3; ++r) REQUIRE(ncclTeamRankToWorld(comm, rail, r) == r * 4 + rank % 4);
        for (int r = 0; r < 4; ++r) {
            REQUIRE(ncclTeamRankToWorld(comm, lsa, r) == rank / 4 * 4 + r);
            REQUIRE(ncclTeamRankToLsa(comm, lsa, r) == r);
        }
        const ncclTeam inner = ncclTeamInnerFactor(world, 3), outer = ncclTeamOuterFactor(world, 3);
        REQUIRE((inner.nRanks == 3 && inner.rank == rank % 3 && inner.stride == 1));
        REQUIRE((outer.nRanks == 4 && outer.rank == rank / 3 && outer.stride == 3));
        int index = 0;
        for (int r = 0; r < 12; ++r) {
            if (r / 4 != rank / 4) REQUIRE(ncclTeamRankInDifference(world, lsa, index++) == r);
        }
        index = 0;
        for (int r = 0; r < 12; ++r) {
            if (r % 4 != rank % 4) REQUIRE(ncclTeamRankInDifference(world, rail, index++) == r);
        }
    }
}

TEST_CASE("LSA peers read each other's stores", "[emulator][nccl]") {
    const int ranks = GENERATE(1, 2, 3, 4);
    SimOptions options;
    options.ranks = ranks;
    options.lsa_team_size = ranks == 4 ? 2 : 0;
    simulate(options, [&](int rank) {
        Rank r(rank, ranks, lsa_requirements());
        r.run([&] {
            const ncclTeam lsa = ncclTeamLsa(r.dev);
            for (int peer = 0; peer < lsa.nRanks; ++peer) {
                auto* word =
                    static_cast<uint64_t*>(ncclGetLsaPointer(r.window, 8 * lsa.rank, peer));
                *word = 100 * rank + peer;
            }
            ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), r.dev, ncclTeamTagLsa(),
                                                          0);
            barrier.sync(ncclCoopThread(), cuda::memory_order_acq_rel);
            const int first = rank - lsa.rank;
            for (int peer = 0; peer < lsa.nRanks; ++peer) {
                const ncclSymPtr<uint64_t> mine(r.window);
                VERIFY((mine + peer).localPtr()[0] == uint64_t(100 * (first + peer) + lsa.rank));
                VERIFY((mine + lsa.rank).lsaPtr(peer)[0] == uint64_t(100 * rank + peer));
                VERIFY((mine + lsa.rank).peerPtr(first + peer)[0] == uint64_t(100 * rank + peer));
                VERIFY((mine + lsa.rank).peerPtr(lsa, peer)[0] == uint64_t(100 * rank + peer));
            }
            VERIFY(ncclFindWindow(ncclCoopThread(), r.dev, r.words + 3) == r.window);
        });
        r.close();
    });
}

TEST_CASE("pointers outside of team or window are refused", "[emulator][nccl]") {
    SimOptions options;
    options.ranks = 4;
    options.lsa_team_size = 2;
    const auto refused = [&](const std::function<void(Rank&)>& use) {
        return failure_of(options, [&](int rank) {
            Rank r(rank, 4, lsa_requirements());
            if (rank == 0) r.run([&] { use(r); });
        });
    };
    REQUIRE_THAT(refused([](Rank& r) { ncclGetLsaPointer(r.window, 0, 2); }),
                 contains_text("outside of its LSA team"));
    REQUIRE_THAT(refused([](Rank& r) { ncclGetPeerPointer(r.window, 0, 3); }),
                 contains_text("outside of its LSA team"));
    REQUIRE_THAT(refused([](Rank& r) { ncclGetLsaPointer(r.window, 0, -1); }),
                 contains_text("outside of its LSA team"));
    REQUIRE_THAT(refused([](Rank& r) { ncclGetLocalPointer(r.window, 8193); }),
                 contains_text("offset 8193"));
    REQUIRE_THAT(refused([](Rank&) { ncclGetLocalPointer(nullptr, 0); }), contains_text("NULL"));
    REQUIRE_THAT(refused([](Rank& r) { ncclGetLsaMultimemPointer(r.window, 0, r.dev); }),
                 contains_text("multicast"));
    REQUIRE_THAT(refused([](Rank& r) { ncclFindWindow(ncclCoopThread(), r.dev, &r); }),
                 contains_text("no window"));
    REQUIRE(refused([](Rank& r) { ncclGetLsaPointer(r.window, 8192, 1); }).empty());
}

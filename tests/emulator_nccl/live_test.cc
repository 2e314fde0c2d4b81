// SPDX-License-Identifier: Apache-2.0
// Live mode: ranks are processes. Every rank is a fresh child of this test, so that no engine
// thread exists before the fork.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/emulator_nccl/rig.hpp"

using namespace gimlet::test;

namespace {

/// What the children share: the unique id, and a count of arrivals for a plain barrier.
struct Shared {
    std::atomic<int> id_ready;
    std::atomic<int> arrived;
    ncclUniqueId id;
};

struct Family {
    Shared* shared;
    int ranks;

    explicit Family(int ranks_in) : ranks(ranks_in) {
        void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        shared = new (memory) Shared();
    }
    ~Family() { munmap(shared, sizeof(Shared)); }

    ncclComm_t join(int rank) const {
        if (rank == 0) {
            NCCL_OK(ncclGetUniqueId(&shared->id));
            shared->id_ready = 1;
        }
        while (shared->id_ready == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ncclComm_t comm = nullptr;
        NCCL_OK(ncclCommInitRank(&comm, ranks, shared->id, rank));
        return comm;
    }
    void barrier(int number) const {
        shared->arrived += 1;
        while (shared->arrived < number * ranks)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    /// Runs `program` in one process per rank; returns how many did not end with status 0.
    int run(const std::function<void(int)>& program) const {
        std::fflush(nullptr);
        std::vector<pid_t> children;
        for (int rank = 0; rank < ranks; ++rank) {
            const pid_t child = fork();
            if (child == 0) {
                alarm(60);
                int status = 0;
                try {
                    program(rank);
                } catch (const std::exception& error) {
                    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
                    status = 1;
                }
                std::fflush(nullptr);
                _exit(status);
            }
            children.push_back(child);
        }
        int bad = 0;
        for (const pid_t child : children) {
            int status = 0;
            waitpid(child, &status, 0);
            bad += status != 0;
        }
        return bad;
    }
};

void ring(const Family& family, int rank, bool with_lsa) {
    ncclComm_t comm = family.join(rank);
    void* memory = nullptr;
    NCCL_OK(ncclMemAlloc(&memory, 1 << 16));
    auto* words = static_cast<uint64_t*>(memory);
    ncclWindow_t window = nullptr;
    NCCL_OK(ncclCommWindowRegister(comm, memory, 1 << 16, &window, NCCL_WIN_STRICT_ORDERING));
    ncclDevCommRequirements reqs = gin_requirements(4, 2, 2);
    reqs.barrierCount = 1;
    reqs.lsaBarrierCount = 1;
    ncclDevComm dev;
    NCCL_OK(ncclDevCommCreate(comm, &reqs, &dev));
    for (int i = 0; i < 1024; ++i) words[i] = static_cast<uint64_t>(rank * 10000 + i);
    family.barrier(1);
    const int ranks = family.ranks, left = (rank + ranks - 1) % ranks;
    launch(1, 32, [&] {
        const ncclGin gin(dev, 1);
        const ncclTeam world = ncclTeamWorld(dev);
        gin.put(world, (rank + 1) % ranks, window, 16384, window, 0, 8192,
                ncclGin_StrongSignalInc{0}, ncclGin_WeakCounterInc{1}, ncclCoopWarp());
        gin.waitSignal(ncclCoopWarp(), 0, 1);
        for (int i = threadIdx.x; i < 1024; i += 32) {
            VERIFY(words[2048 + i] == static_cast<uint64_t>(left * 10000 + i));
        }
        gin.waitCounter(ncclCoopWarp(), 1, 1);
        if (with_lsa) {
            const ncclTeam lsa = ncclTeamLsa(dev);
            if (threadIdx.x < static_cast<unsigned>(lsa.nRanks)) {
                ncclSymPtr<uint64_t>(window, 32768).lsaPtr(threadIdx.x)[lsa.rank] =
                    static_cast<uint64_t>(rank + 1);
            }
            ncclLsaBarrierSession<ncclCoopWarp> barrier(ncclCoopWarp(), dev, ncclTeamTagLsa(), 0);
            barrier.sync(ncclCoopWarp(), cuda::memory_order_acq_rel);
            for (int p = 0; p < lsa.nRanks; ++p) {
                VERIFY(words[4096 + p] == static_cast<uint64_t>(rank - lsa.rank + p + 1));
            }
        }
        if (threadIdx.x == 0) gin.get(world, left, window, 0, window, 40960, 8);
        ncclBarrier(ncclCoopWarp(), ncclTeamTagWorld(), gin, 0);
        VERIFY(words[5120] == static_cast<uint64_t>(left * 10000));
    });
    family.barrier(2);
    NCCL_OK(ncclDevCommDestroy(comm, &dev));
    NCCL_OK(ncclCommWindowDeregister(comm, window));
    family.barrier(3);
    NCCL_OK(ncclMemFree(memory));
    NCCL_OK(ncclCommDestroy(comm));
}

}  // namespace

TEST_CASE("live: four processes", "[emulator][nccl][live]") {
    const char* team = GENERATE("1", "2", "4");
    const char* gin = GENERATE("gdaki", "proxy");
    setenv("NCCL_LSA_TEAM_SIZE", team, 1);
    setenv("GIMLET_EMU_GIN", gin, 1);
    const Family family(4);
    REQUIRE(family.run([&](int rank) { ring(family, rank, true); }) == 0);
    unsetenv("NCCL_LSA_TEAM_SIZE");
    unsetenv("GIMLET_EMU_GIN");
}

TEST_CASE("live: one process, a thread per rank", "[emulator][nccl][live]") {
    const Family family(1);
    REQUIRE(family.run([&](int) {
        ncclUniqueId id;
        NCCL_OK(ncclGetUniqueId(&id));
        std::atomic<int> good{0};
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 3; ++rank) {
            threads.emplace_back([&, rank] {
                if (cudaSetDevice(rank) != cudaSuccess) return;
                ncclComm_t comm = nullptr, half = nullptr;
                NCCL_OK(ncclCommInitRank(&comm, 3, id, rank));
                NCCL_OK(ncclCommSplit(comm, rank / 2, rank, &half, nullptr));
                int count = 0;
                NCCL_OK(ncclCommCount(half, &count));
                if (count == (rank == 2 ? 1 : 2)) ++good;
                NCCL_OK(ncclCommDestroy(half));
                NCCL_OK(ncclCommDestroy(comm));
            });
        }
        for (auto& thread : threads) thread.join();
        VERIFY(good == 3);
    }) == 0);
}

TEST_CASE("live: missing and dead ranks end in an error that names them",
          "[emulator][nccl][live]") {
    const Family family(3);
    setenv("GIMLET_EMU_NCCL_TIMEOUT_SECONDS", "1.5", 1);
    REQUIRE(family.run([&](int rank) {
        if (rank == 1) return;  // never joins
        if (rank == 0) {
            NCCL_OK(ncclGetUniqueId(&family.shared->id));
            family.shared->id_ready = 1;
        }
        while (family.shared->id_ready == 0)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ncclComm_t comm = nullptr;
        NCCL_GIVES(ncclSystemError, ncclCommInitRank(&comm, 3, family.shared->id, rank));
        VERIFY(comm == nullptr);
        VERIFY(std::string(ncclGetLastError(nullptr)).find("rank(s) 1 of 3") != std::string::npos);
    }) == 0);
    setenv("GIMLET_EMU_NCCL_TIMEOUT_SECONDS", "30", 1);
    const Family second(3);
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(second.run([&](int rank) {
        ncclComm_t comm = second.join(rank);
        if (rank == 2) _exit(0);
        void* memory = nullptr;
        NCCL_OK(ncclMemAlloc(&memory, 4096));
        ncclWindow_t window = nullptr;
        NCCL_GIVES(ncclRemoteError, ncclCommWindowRegister(comm, memory, 4096, &window, 0));
        VERIFY(std::string(ncclGetLastError(comm)).find("rank 2") != std::string::npos);
        NCCL_OK(ncclCommAbort(comm));
        NCCL_OK(ncclMemFree(memory));
    }) == 0);
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    unsetenv("GIMLET_EMU_NCCL_TIMEOUT_SECONDS");
}

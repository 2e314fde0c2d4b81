// SPDX-License-Identifier: Apache-2.0
//
// The simulation as a whole: determinism, deadlock, failures, faults.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <vector>

#include "host/emulator/engine.hpp"
#include "tests/emulator/emulator_test.hpp"

namespace gimlet::emu::test {
namespace {

__global__ void ring_step(unsigned* flags, int from, int to, unsigned value) {
    if (threadIdx.x != 0) return;
    while (__ldcv(flags + from) < value) {
    }
    atomicAdd(flags + to, 1u);
}

__global__ void never_comes(unsigned* flag) {
    if (threadIdx.x == 5) {
        while (__ldcv(flag) == 0) {
        }
    }
    __syncthreads();
}

__global__ void deadline(unsigned* flag, unsigned* expired, long long span_ns) {
    const long long end = clock64() + span_ns;
    while (__ldcv(flag) == 0) {
        if (clock64() > end) {
            atomicExch(expired, 1u);
            return;
        }
        __nanosleep(100);
    }
}

__global__ void deep(int* out, int depth) {
    volatile char room[1024];
    room[depth % 1024] = static_cast<char>(depth);
    dev::poll_point();
    if (depth > 0) deep(out, depth - 1);
    out[0] += room[depth % 1024];
}

// Each rank passes a token to the next through a common array.
SimReport ring(const SimOptions& options) {
    const auto flags = std::make_unique<unsigned[]>(static_cast<std::size_t>(options.ranks) + 1);
    flags[0] = 1;
    SimReport report = simulate(options, [&](int rank) {
        EMU_CHECK(launch({.grid = 2, .block = 40}, ring_step, flags.get(), rank, rank + 1, 1u));
        EMU_CHECK(cudaDeviceSynchronize());
        host_barrier();
    });
    REQUIRE(flags[static_cast<std::size_t>(options.ranks)] == 2);
    return report;
}

struct Counted {
    explicit Counted(std::atomic<int>& count_in) : count(count_in) { ++count; }
    ~Counted() {
        --count;
        cudaStreamSynchronize(nullptr);  // a destructor that waits must not hang a run that ends
    }
    std::atomic<int>& count;
};

}  // namespace

TEST_CASE("the same seed gives the same run", "[emulator][engine]") {
    for (const Schedule schedule :
         {Schedule::uniform, Schedule::priority, Schedule::run_to_block}) {
        SimOptions options;
        options.ranks = 5;
        options.seed = 42;
        options.schedule = schedule;
        const SimReport first = ring(options);
        const SimReport second = ring(options);
        REQUIRE(first.trace_hash == second.trace_hash);
        REQUIRE(first.steps == second.steps);
        REQUIRE(first.switches == second.switches);
        REQUIRE(first.virtual_ns == second.virtual_ns);
        options.seed = 43;
        REQUIRE(ring(options).trace_hash != first.trace_hash);
    }
}

TEST_CASE("a deadlock ends with a table of who waits for what", "[emulator][engine]") {
    for (const Schedule schedule :
         {Schedule::uniform, Schedule::priority, Schedule::run_to_block}) {
        SimOptions options;
        options.ranks = 2;
        options.seed = 7;
        options.schedule = schedule;
        unsigned flag = 0;
        const std::string failure = failure_of(options, [&](int rank) {
            if (rank == 1) EMU_CHECK(launch({.block = 64}, never_comes, &flag));
            EMU_CHECK(cudaDeviceSynchronize());
            host_barrier();
        });
        REQUIRE_THAT(failure, contains_text("deadlock"));
        REQUIRE_THAT(failure, contains_text("rank 0 | host program | host_all_gather"));
        REQUIRE_THAT(failure, contains_text("rank 1 | host program | cudaDeviceSynchronize"));
        REQUIRE_THAT(failure,
                     contains_text("never_comes | block 0 threads 0-4, 6-63 | __syncthreads"));
        REQUIRE_THAT(failure, contains_text("block 0 threads 5 | polled memory"));
        REQUIRE_THAT(failure, contains_text("[seed 7]"));
    }
}

TEST_CASE("a deadline expires instead of a deadlock", "[emulator][engine]") {
    constexpr long long kMinuteNs = 60000000000;
    unsigned flag = 0;
    const SimReport report = simulate(one_rank(3), [&](int) {
        Pinned<unsigned> expired(1);
        EMU_CHECK(launch({.block = 64}, deadline, &flag, expired.get(), kMinuteNs));
        EMU_CHECK(cudaDeviceSynchronize());
        REQUIRE(expired[0] == 1);
    });
    REQUIRE(report.virtual_ns >= static_cast<uint64_t>(kMinuteNs));
}

TEST_CASE("an exception of one rank ends all, and everything is unwound", "[emulator][engine]") {
    std::atomic<int> alive{0};
    unsigned flag = 0;
    SimOptions options;
    options.ranks = 4;
    options.seed = 11;
    const std::string failure = failure_of(options, [&](int rank) {
        Counted counted(alive);
        EMU_CHECK(launch({.block = 64}, never_comes, &flag));
        if (rank == 2) throw std::runtime_error("rank two gives up");
        EMU_CHECK(cudaDeviceSynchronize());
    });
    REQUIRE_THAT(failure, contains_text("rank 2: rank two gives up"));
    REQUIRE(alive == 0);
}

TEST_CASE("a failing assertion of a host program reaches the test framework",
          "[emulator][engine]") {
    struct NotStandard {};
    REQUIRE_THROWS_AS(simulate(one_rank(1), [](int) { throw NotStandard{}; }), NotStandard);
}

TEST_CASE("refuse names the place", "[emulator][engine]") {
    const std::string failure =
        failure_of(one_rank(2), [](int) { Engine::get().refuse("a test"); });
    REQUIRE_THAT(failure, contains_text("refused, because hardware leaves it undefined: a test"));
    REQUIRE_THAT(failure, contains_text("host program of rank 0"));
}

TEST_CASE("the step limit ends a run", "[emulator][engine]") {
    SimOptions options = one_rank(1);
    options.step_limit = 5000;
    unsigned flag = 0;
    const std::string failure = failure_of(options, [&](int) {
        EMU_CHECK(launch({.block = 64}, never_comes, &flag));
        EMU_CHECK(cudaDeviceSynchronize());
    });
    REQUIRE_THAT(failure, contains_text("step limit of 5000"));
}

TEST_CASE("bad options are named", "[emulator][engine]") {
    SimOptions options;
    options.ranks = 0;
    REQUIRE_THROWS_WITH(simulate(options, [](int) {}), contains_text("ranks = 0"));
}

TEST_CASE("host programs exchange data by rank", "[emulator][engine]") {
    SimOptions options;
    options.ranks = 3;
    simulate(options, [](int rank) {
        for (int round = 0; round < 4; ++round) {
            const std::vector<int> mine(static_cast<std::size_t>(rank) + 1, rank * 10 + round);
            const auto all = host_all_gather(mine.data(), mine.size() * sizeof(int));
            REQUIRE(all.size() == 3);
            for (int r = 0; r < 3; ++r) {
                REQUIRE(all[r].size() == (static_cast<std::size_t>(r) + 1) * sizeof(int));
                REQUIRE(reinterpret_cast<const int*>(all[r].data())[r] == r * 10 + round);
            }
        }
    });
}

TEST_CASE("faults: late rank, stalled block, stopped rank", "[emulator][engine]") {
    SimOptions options;
    options.ranks = 3;
    options.faults.late_rank = 1;
    options.faults.late_ns = 5000000;
    REQUIRE(ring(options).virtual_ns >= 5000000);
    options.faults = FaultPlan{};
    options.faults.stall_rank = 2;
    options.faults.stall_block = 1;
    options.faults.stall_ns = 7000000;
    REQUIRE(ring(options).virtual_ns >= 7000000);
    options.faults = FaultPlan{};
    options.faults.stop_rank = 0;
    options.faults.stop_at_step = 1;
    unsigned flags[4] = {1, 0, 0, 0};
    const std::string failure = failure_of(options, [&](int rank) {
        EMU_CHECK(launch({}, ring_step, flags, rank, rank + 1, 1u));
        EMU_CHECK(cudaDeviceSynchronize());
    });
    REQUIRE_THAT(failure, contains_text("deadlock"));
}

TEST_CASE("a stack that overflows is not silent", "[emulator][engine]") {
    simulate(one_rank(1), [](int) {
        Pinned<int> out(1);
        EMU_CHECK(launch({.block = 1}, deep, out.get(), 20));
        EMU_CHECK(cudaDeviceSynchronize());
    });
#if !defined(GIMLET_TSAN)  // it does not like to be forked
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const int quiet = open("/dev/null", O_WRONLY);
        dup2(quiet, STDERR_FILENO);
        // Catch2 would report the signal and go on with the other tests.
        for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(signal, SIG_DFL);
        const std::string failure = failure_of(one_rank(1), [](int) {
            Pinned<int> out(1);
            EMU_CHECK(launch({.block = 1}, deep, out.get(), 100));
            EMU_CHECK(cudaDeviceSynchronize());
        });
        _exit(failure.empty() ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 1));
#endif
}

}  // namespace gimlet::emu::test

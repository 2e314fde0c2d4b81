// SPDX-License-Identifier: Apache-2.0
// host/{cuda,bootstrap,nccl} on the emulator: every test runs in a simulation of several ranks.
// Host programs are fibers of this thread. CHECK works in them; LogCapture belongs outside, because
// captures of interleaved fibers would not nest.
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/base/fault.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/device_info.hpp"
#include "host/cuda/launch.hpp"
#include "host/cuda/poll.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/simulation.hpp"
#include "host/nccl/communicator.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/doctor.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "host/nccl/topology.hpp"
#include "tests/support/sim_bootstrap.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::contains_text;

namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

using Program = std::function<void(std::shared_ptr<Bootstrap>)>;

struct World {
    int ranks = 2;
    int lsa_team_size = 0;
    emu::GinMode gin = emu::GinMode::gdaki;
    std::uint64_t seed = 1;
};

/// Runs `program` on all ranks of `world`, quietly.
emu::SimReport run(const World& world, const Program& program) {
    const LogCapture quiet;
    emu::SimOptions options;
    options.ranks = world.ranks;
    options.lsa_team_size = world.lsa_team_size;
    options.gin = world.gin;
    options.seed = world.seed;
    INFO("ranks " << world.ranks << ", LSA team size " << world.lsa_team_size << ", seed "
                  << world.seed);
    return emu::simulate(options, [&](int rank) { program(make_sim_bootstrap(rank)); });
}

/// The Error of `call`, if it throws one.
std::optional<Error> caught(const std::function<void()>& call) {
    try {
        call();
    } catch (const Error& error) {
        return error;
    }
    return std::nullopt;
}

/// In host programs: `call` raises `code` and its message has every one of `parts`.
void expect_error(const std::function<void()>& call, ErrorCode code,
                  const std::vector<std::string>& parts) {
    const std::optional<Error> error = caught(call);
    CHECK(error.has_value());
    if (!error) return;
    CHECK(std::string(error_code_name(error->code())) == error_code_name(code));
    for (const std::string& part : parts) CHECK_THAT(error->message(), contains_text(part));
}

WindowLayout small_layout() {
    WindowLayout layout;
    layout.add("flags", 256);
    layout.add("rows", 10000);
    return layout;
}

DeviceCommRequest gin_request() {
    DeviceCommRequest request;
    request.lsa_barrier_count = 1;
    request.gin_connection = GinConnection::full;
    request.gin_context_count = 2;
    request.gin_signal_count = 4;
    return request;
}

__global__ void add_kernel(std::uint64_t* word, std::uint64_t amount) {
    if (threadIdx.x == 0 && blockIdx.x == 0) __atomic_fetch_add(word, amount, __ATOMIC_RELEASE);
}

__global__ void wait_kernel(volatile std::uint64_t* gate) {
    while (*gate == 0) __nanosleep(100);
}

}  // namespace

TEST_CASE("sim: bootstrap gathers, splits and agrees", "[host][sim]") {
    for (const int ranks : {1, 2, 5}) {
        run({.ranks = ranks}, [](std::shared_ptr<Bootstrap> bootstrap) {
            for (int round = 0; round < 20; ++round) {
                const auto values = bootstrap->all_gather_values(bootstrap->rank() * 100 + round);
                for (int r = 0; r < bootstrap->size(); ++r) {
                    CHECK(values[static_cast<std::size_t>(r)] == r * 100 + round);
                }
            }
            const int color = bootstrap->rank() == 4 ? kNoColor : bootstrap->rank() % 2;
            const auto child = bootstrap->split(color, -bootstrap->rank());
            CHECK((child == nullptr) == (color == kNoColor));
            if (child != nullptr) {
                const auto parents = child->all_gather_values(bootstrap->rank());
                for (std::size_t i = 1; i < parents.size(); ++i)
                    CHECK(parents[i] == parents[i - 1] - 2);
            }
            bootstrap->barrier();
        });
    }
    check_error([] { make_sim_bootstrap(0); }, ErrorCode::invalid_usage, {"no simulation"});
}

TEST_CASE("sim: device facts, buffers, streams and events", "[host][sim][cuda]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const int rank = bootstrap->rank();
        const DeviceInfo info = query_device_info(current_device(rank), rank);
        CHECK(info.sm_count == 8);
        CHECK(info.shared_optin_bytes > 48 * 1024);
        CHECK(info.compute_capability >= 90);
        CHECK(info.cooperative_launch);
        CHECK_FALSE(info.text().empty());
        expect_error([] { query_device_info(1000); }, ErrorCode::invalid_argument,
                     {"device 1000", "0.."});

        DeviceBuffer<int> buffer(100, rank);
        buffer.fill_bytes(0xff);
        std::vector<int> data(100, 0);
        buffer.download(data);
        CHECK(data == std::vector<int>(100, -1));
        for (int i = 0; i < 100; ++i) data[static_cast<std::size_t>(i)] = i;
        buffer.upload(data);
        std::vector<int> back(50, 0);
        buffer.download(back);
        CHECK(back[49] == 49);
        DeviceBuffer<int> moved = std::move(buffer);
        CHECK(buffer.get() == nullptr);
        CHECK(moved.count() == 100);

        const Stream stream = Stream::create(rank);
        const Event start = Event::create(EventTiming::on, rank);
        const Event end = Event::create(EventTiming::on, rank);
        CHECK_FALSE(stream_is_capturing(stream.get(), rank));
        start.record(stream.get());
        cuda_check(cudaMemsetAsync(moved.get(), 0, moved.bytes(), stream.get()), "memset", rank);
        end.record(stream.get());
        end.synchronize();
        CHECK(end.query());
        CHECK(Event::elapsed_ms(start, end) >= 0);
        const DeviceGuard guard(current_device(rank), rank);
    });
}

TEST_CASE("sim: a kernel is launched and waited for through a mapped word", "[host][sim][cuda]") {
    run({.ranks = 1}, [](std::shared_ptr<Bootstrap>) {
        const Stream stream = Stream::create(0);
        MappedBuffer<std::uint64_t> word(1, 0);
        CHECK(word[0] == 0);
        const LaunchShape shape{2, 64, 60 * 1024, Cooperative::no};
        launch(add_kernel, "add", shape, stream.get(), 0, word.device(), std::uint64_t{5});
        wait_word_at_least(stream.get(), word.host(), 5, 20 * kSecondNs, "add", 0);
        CHECK(word[0] == 5);
        wait_stream(stream.get(), 20 * kSecondNs, "add", 0);
        expect_error(
            [&] { wait_word_at_least(stream.get(), word.host(), 6, 20 * kSecondNs, "add", 0); },
            ErrorCode::internal, {"add", "word is 5", "at least 6"});
        // A counter that wraps: 2 comes after UINT64_MAX.
        word[0] = 2;
        wait_word_at_least(stream.get(), word.host(), UINT64_MAX, kSecondNs, "wrapped", 0);

        CHECK(resident_blocks_per_sm(add_kernel, "add", 64, 0) >= 1);
        expect_error(
            [&] {
                launch(add_kernel, "add", {1, 32, 1 << 30, Cooperative::no}, stream.get(), 3,
                       word.device(), std::uint64_t{1});
            },
            ErrorCode::invalid_argument, {"add", "1073741824 B", "this device allows"});
    });
}

TEST_CASE("sim: a wait that passes its deadline says what it waited for", "[host][sim][cuda]") {
    run({.ranks = 1}, [](std::shared_ptr<Bootstrap>) {
        const Stream stream = Stream::create(0);
        MappedBuffer<std::uint64_t> words(2, 0);
        launch(wait_kernel, "wait", {1, 1, 0, Cooperative::no}, stream.get(), 0,
               static_cast<volatile std::uint64_t*>(words.device()));
        expect_error([&] { wait_word_at_least(stream.get(), &words[1], 7, 1000, "step 3", 0); },
                     ErrorCode::timeout,
                     {"step 3", "1 us", "reach 7", "is 0", "GIMLET_TIMEOUT_MS"});
        expect_error([&] { wait_stream(stream.get(), 1000, "step 3", 0); }, ErrorCode::timeout,
                     {"step 3", "still busy after 1 us"});
        __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
        wait_stream(stream.get(), 20 * kSecondNs, "gate", 0);
    });
}

TEST_CASE("sim: communicators know their teams, and close", "[host][sim][nccl]") {
    for (const auto& [ranks, team] :
         std::vector<std::pair<int, int>>{{1, 0}, {2, 1}, {3, 0}, {8, 4}}) {
        run({.ranks = ranks, .lsa_team_size = team},
            [team = team](std::shared_ptr<Bootstrap> bootstrap) {
                const auto communicator = Communicator::create(bootstrap);
                const int size = bootstrap->size();
                const int lsa_size = team == 0 ? size : team;
                const CommunicatorProperties& properties = communicator->properties();
                CHECK(communicator->rank() == bootstrap->rank());
                CHECK(communicator->size() == size);
                CHECK(communicator->ownership() == Ownership::owned);
                CHECK(properties.symmetric_memory);
                CHECK(properties.lsa_size == lsa_size);
                CHECK(properties.lsa_rank == bootstrap->rank() % lsa_size);
                CHECK(properties.lsa_team_count == size / lsa_size);
                CHECK(properties.gin_type == GinType::gdaki);
                communicator->check_async_error();
                const Topology topology = query_topology(*communicator);
                CHECK(topology.lsa_team_index == bootstrap->rank() / lsa_size);
                CHECK(topology.places.size() == static_cast<std::size_t>(size));
                CHECK(topology.host_count() == 1);
                CHECK(topology.ranks_on_my_gpu() == std::vector<int>{bootstrap->rank()});
                for (int r = 0; r < size; ++r) {
                    const bool same_team = r / lsa_size == bootstrap->rank() / lsa_size;
                    CHECK(topology.reach(r, GinConnection::full) == (r == bootstrap->rank()
                                                                         ? Reach::self
                                                                     : same_team ? Reach::lsa
                                                                                 : Reach::gin));
                }
                communicator->close();
                communicator->close();
                CHECK_FALSE(communicator->is_open());
                expect_error([&] { (void)communicator->handle(); }, ErrorCode::closed, {"closed"});
            });
    }
}

TEST_CASE("sim: doctor has nothing against the emulator", "[host][sim][doctor]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto communicator = Communicator::create(bootstrap);
        DoctorFacts facts = collect_doctor_facts();
        facts.topology = query_topology(*communicator);
        facts.findings.clear();
        diagnose(&facts);
        CHECK(facts.healthy());
        CHECK(facts.devices.size() == 2);
        communicator->close();
    });
}

TEST_CASE("sim: split makes independent communicators", "[host][sim][nccl]") {
    run({.ranks = 5}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto world = Communicator::create(bootstrap);
        const int rank = bootstrap->rank();
        const auto half = world->split(rank == 4 ? kNoColor : rank % 2, -rank);
        CHECK((half == nullptr) == (rank == 4));
        if (half != nullptr) {
            CHECK(half->size() == 2);
            CHECK(half->rank() == (rank < 2 ? 1 : 0));
            CHECK(half->bootstrap().rank() == half->rank());
            const auto window = SymmetricWindow::create(*half, small_layout());
            CHECK(window->bytes() >= small_layout().total_bytes());
            window->close();
            half->close();
        }
        CHECK(world->is_open());
        expect_error([&] { (void)world->split(-7, 0); }, ErrorCode::invalid_argument, {"color -7"});
        world->close();
    });
}

TEST_CASE("sim: an adopted communicator is used and left alone", "[host][sim][nccl]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto lender = Communicator::create(bootstrap);
        {
            const auto borrowed = Communicator::adopt(lender->handle(), bootstrap);
            CHECK(borrowed->ownership() == Ownership::adopted);
            CHECK(borrowed->properties().lsa_size == 2);
            const auto window = SymmetricWindow::create(*borrowed, small_layout());
            window->close();
            borrowed->close();
        }
        {
            const auto borrowed = Communicator::adopt(lender->handle(), bootstrap);
            borrowed->abort();
        }
        lender->check_async_error();
        const auto window = SymmetricWindow::create(*lender, small_layout());
        window->close();

        // Ranks in another order: refused on all ranks, and the lender's communicator still works.
        const std::shared_ptr<Bootstrap> reversed = bootstrap->split(0, -bootstrap->rank());
        expect_error([&] { (void)Communicator::adopt(lender->handle(), reversed); },
                     ErrorCode::invalid_argument,
                     {"communicator says rank", "bootstrap says rank"});
        lender->close();
    });
}

TEST_CASE("sim: adopting null on one rank fails on all", "[host][sim][nccl]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto lender = Communicator::create(bootstrap);
        const ncclComm_t comm = bootstrap->rank() == 1 ? nullptr : lender->handle();
        const auto error = caught([&] { (void)Communicator::adopt(comm, bootstrap); });
        CHECK(error.has_value());
        if (error) {
            CHECK(error->code() ==
                  (bootstrap->rank() == 1 ? ErrorCode::invalid_argument : ErrorCode::peer_failed));
            CHECK_THAT(error->message(), contains_text("null"));
        }
        lender->close();
    });
}

TEST_CASE("sim: windows are zeroed, shared with the LSA team and closed to others",
          "[host][sim][nccl]") {
    run({.ranks = 4, .lsa_team_size = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const int rank = bootstrap->rank();
        const auto communicator = Communicator::create(bootstrap);
        const auto window = SymmetricWindow::create(*communicator, small_layout());
        CHECK(window->bytes() % NCCL_WIN_REQUIRED_ALIGNMENT == 0);
        CHECK(window->handle() != nullptr);
        const auto* bytes = static_cast<const unsigned char*>(window->local());
        std::uint64_t sum = 0;
        for (std::uint64_t i = 0; i < window->bytes(); ++i) sum += bytes[i];
        CHECK(sum == 0);

        const std::uint64_t offset = window->layout().region("rows").offset_bytes;
        for (int peer = 0; peer < 4; ++peer) {
            const bool reachable = peer / 2 == rank / 2;
            CHECK((window->peer(peer, offset) != nullptr) == reachable);
        }
        bootstrap->barrier();
        *static_cast<int*>(window->peer(rank ^ 1, offset)) = 100 + rank;
        bootstrap->barrier();
        CHECK(*window->local_region<int>("rows") == 100 + (rank ^ 1));
        CHECK(*static_cast<int*>(window->local_flat(offset)) == 100 + (rank ^ 1));

        expect_error([&] { (void)window->local(window->bytes()); }, ErrorCode::invalid_argument,
                     {"outside the window"});
        expect_error([&] { (void)window->peer(4); }, ErrorCode::invalid_argument,
                     {"rank 4", "0..3"});
        expect_error([&] { communicator->close(); }, ErrorCode::invalid_usage, {"1 window(s)"});
        window->close();
        window->close();
        CHECK_FALSE(window->is_open());
        expect_error([&] { (void)window->handle(); }, ErrorCode::closed, {"closed"});
        expect_error([&] { (void)window->local(); }, ErrorCode::closed, {"closed"});
        communicator->close();
    });
}

TEST_CASE("sim: an empty layout is a window of one page", "[host][sim][nccl]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto communicator = Communicator::create(bootstrap);
        const auto window = SymmetricWindow::create(*communicator, WindowLayout{});
        CHECK(window->bytes() == NCCL_WIN_REQUIRED_ALIGNMENT);
        window->close();
        communicator->close();
    });
}

TEST_CASE("sim: windows that differ are refused, and the rank is named", "[host][sim][nccl]") {
    run({.ranks = 3}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto communicator = Communicator::create(bootstrap);
        WindowLayout layout;
        layout.add("rows", bootstrap->rank() == 1 ? 4096 : 8192);
        expect_error([&] { (void)SymmetricWindow::create(*communicator, layout); },
                     ErrorCode::config_mismatch, {"total bytes", "rank 1 has '4096'", "'8192'"});
        communicator->close();
    });
}

TEST_CASE("sim: several LSA teams without GIN have no window, and the error says why",
          "[host][sim][nccl]") {
    run({.ranks = 4, .lsa_team_size = 2, .gin = emu::GinMode::off},
        [](std::shared_ptr<Bootstrap> bootstrap) {
            const auto communicator = Communicator::create(bootstrap);
            CHECK_FALSE(communicator->properties().symmetric_memory);
            CHECK(communicator->properties().lsa_team_count == 2);
            expect_error([&] { (void)SymmetricWindow::create(*communicator, small_layout()); },
                         ErrorCode::not_supported, {"4 ranks form 2 LSA teams", "GIN"});
            expect_error([&] { (void)DeviceCommunicator::create(*communicator, {}); },
                         ErrorCode::not_supported, {"symmetric memory"});
            communicator->close();
        });
}

TEST_CASE("sim: device communicators have what was asked for", "[host][sim][nccl]") {
    run({.ranks = 4, .lsa_team_size = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto communicator = Communicator::create(bootstrap);
        const auto with_gin = DeviceCommunicator::create(*communicator, gin_request());
        CHECK(with_gin->get().rank == bootstrap->rank());
        CHECK(with_gin->get().nRanks == 4);
        CHECK(with_gin->get().lsaSize == 2);
        CHECK(with_gin->gin_context_count() >= 1);
        DeviceCommRequest lsa_only;
        lsa_only.lsa_barrier_count = 2;
        const auto without = DeviceCommunicator::create(*communicator, lsa_only);
        CHECK(without->gin_context_count() == 0);
        expect_error([&] { communicator->close(); }, ErrorCode::invalid_usage,
                     {"2 device communicator(s)"});
        bootstrap->barrier();
        with_gin->close();
        with_gin->close();
        without->close();
        expect_error([&] { (void)with_gin->get(); }, ErrorCode::closed, {"closed"});

        DeviceCommRequest wrong = gin_request();
        wrong.gin_connection = GinConnection::none;
        expect_error([&] { (void)DeviceCommunicator::create(*communicator, wrong); },
                     ErrorCode::invalid_argument, {"gin_connection none"});
        DeviceCommRequest different = gin_request();
        different.gin_signal_count += bootstrap->rank() == 3 ? 1 : 0;
        expect_error([&] { (void)DeviceCommunicator::create(*communicator, different); },
                     ErrorCode::config_mismatch, {"rank 3"});
        communicator->close();
    });
}

TEST_CASE("sim: GIN off works in one LSA team and is refused by name when asked for",
          "[host][sim][nccl]") {
    run({.ranks = 3, .gin = emu::GinMode::off}, [](std::shared_ptr<Bootstrap> bootstrap) {
        const auto communicator = Communicator::create(bootstrap);
        CHECK(communicator->properties().symmetric_memory);
        CHECK(communicator->properties().gin_type == GinType::none);
        DeviceCommRequest lsa_only;
        lsa_only.lsa_barrier_count = 1;
        const auto device_comm = DeviceCommunicator::create(*communicator, lsa_only);
        expect_error([&] { (void)DeviceCommunicator::create(*communicator, gin_request()); },
                     ErrorCode::gin_unavailable, {"full GIN connection", "none"});
        device_comm->close();
        communicator->close();
    });
}

TEST_CASE("sim: a creation that fails on one rank fails on all, leaves nothing, and works again",
          "[host][sim][nccl][fault]") {
    for (const FaultPoint point :
         {FaultPoint::window_allocate, FaultPoint::window_register, FaultPoint::window_null,
          FaultPoint::device_comm_create, FaultPoint::communicator_create}) {
        INFO("fault point " << fault_point_name(point));
        const FaultScope fault(point, 1);
        int failed = 0;
        run({.ranks = 3}, [&](std::shared_ptr<Bootstrap> bootstrap) {
            const auto whole = [&] {
                const auto communicator = Communicator::create(bootstrap);
                {
                    // Close even if what follows fails: nothing may be left that refuses it.
                    std::exception_ptr failure;
                    try {
                        const auto window = SymmetricWindow::create(*communicator, small_layout());
                        const auto device_comm =
                            DeviceCommunicator::create(*communicator, gin_request());
                        bootstrap->barrier();
                        device_comm->close();
                        window->close();
                    } catch (const Error&) {
                        failure = std::current_exception();
                    }
                    bootstrap->barrier();
                    communicator->close();
                    if (failure) std::rethrow_exception(failure);
                }
            };
            const std::optional<Error> error = caught(whole);
            CHECK(error.has_value());
            if (error) {
                ++failed;
                CHECK((error->code() == ErrorCode::peer_failed) == (bootstrap->rank() != 1));
                if (bootstrap->rank() != 1)
                    CHECK_THAT(error->message(), contains_text("failed on rank 1"));
            }
            CHECK_FALSE(caught(whole).has_value());
        });
        CHECK(failed == 3);
        CHECK(fault.fired() == 1);
    }
}

TEST_CASE("sim: objects may die in any order", "[host][sim][nccl]") {
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        auto communicator = Communicator::create(bootstrap);
        auto window = SymmetricWindow::create(*communicator, small_layout());
        auto device_comm = DeviceCommunicator::create(*communicator, gin_request());
        communicator->abort();
        communicator->abort();
        expect_error([&] { (void)communicator->handle(); }, ErrorCode::closed, {"aborted"});
        communicator.reset();
        window->close();
        device_comm.reset();
    });
    // A destructor does not wait for others: here only rank 0's communicator goes without close().
    run({.ranks = 2}, [](std::shared_ptr<Bootstrap> bootstrap) {
        auto communicator = Communicator::create(bootstrap);
        if (bootstrap->rank() == 0) {
            communicator.reset();
        } else {
            communicator->abort();
        }
    });
}

TEST_CASE("sim: the same seed gives the same run", "[host][sim]") {
    const auto once = [](std::uint64_t seed) {
        return run({.ranks = 3, .seed = seed},
                   [](std::shared_ptr<Bootstrap> bootstrap) {
                       const auto communicator = Communicator::create(bootstrap);
                       const auto window = SymmetricWindow::create(*communicator, small_layout());
                       window->close();
                       communicator->close();
                   })
            .trace_hash;
    };
    CHECK(once(7) == once(7));
}

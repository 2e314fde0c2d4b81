// SPDX-License-Identifier: Apache-2.0
// The C ABI: its border (errors, structs of other versions, handles), and whole steps through it.
#include "runtime/capi/gimlet.h"

#include <cuda_runtime.h>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/abi/device_error.hpp"
#include "host/base/log.hpp"
#include "runtime/capi/boundary.hpp"
#include "runtime/config.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

/// A struct that has grown once since its first release.
struct Grown {
    std::size_t struct_bytes;
    std::int32_t first;
    std::int32_t second;
    std::int64_t added;
};

struct GrownAndMore {
    Grown known;
    std::int64_t unknown;
};

std::string last_error() {
    return gimlet_last_error();
}

}  // namespace

template <>
inline constexpr std::size_t gimlet::capi::kFirstBytes<Grown> = 16;

TEST_CASE("no exception crosses the border", "[capi]") {
    const LogCapture quiet;
    CHECK(capi::guarded("f", [] {}) == GIMLET_OK);
    CHECK(capi::guarded("f", [] { raise(ErrorCode::timeout, 3, "late"); }) == GIMLET_TIMEOUT);
    CHECK(last_error() == "f: late");
    CHECK(gimlet_last_error_status() == GIMLET_TIMEOUT);
    CHECK(gimlet_last_error_rank() == 3);
    CHECK(capi::guarded("f", [] { throw std::bad_alloc(); }) == GIMLET_OUT_OF_MEMORY);
    CHECK(gimlet_last_error_rank() == -1);
    CHECK(capi::guarded("f", [] { throw std::runtime_error("odd"); }) == GIMLET_INTERNAL);
    CHECK(last_error() == "f: odd");
    CHECK(capi::guarded("f", [] { throw 7; }) == GIMLET_INTERNAL);
    const std::string before = last_error();
    CHECK(capi::guarded("f", [] {}) == GIMLET_OK);
    CHECK(last_error() == before);  // success leaves it
    std::string other = "unset";
    std::thread([&] { other = gimlet_last_error(); }).join();
    CHECK(other.empty());  // one a thread

    const std::string text(3 * GIMLET_ERROR_TEXT_BYTES, 'x');
    CHECK(capi::guarded("f", [&] { raise_text(ErrorCode::system, -1, text); }) == GIMLET_SYSTEM);
    CHECK(last_error().size() == GIMLET_ERROR_TEXT_BYTES - 1);
}

TEST_CASE("structs of other versions", "[capi]") {
    const LogCapture quiet;
    const Grown defaults{sizeof(Grown), 1, 2, 3};
    Grown in{16, 10, 20, 30};
    // The older header has no `added`: its default is taken, not what lies behind the struct.
    const Grown old = capi::read_struct(&in, defaults, "in");
    CHECK(old.first == 10);
    CHECK(old.second == 20);
    CHECK(old.added == 3);
    in.struct_bytes = sizeof in;
    CHECK(capi::read_struct(&in, defaults, "in").added == 30);

    GrownAndMore newer{in, 0};
    newer.known.struct_bytes = sizeof newer;
    CHECK(capi::read_struct(&newer.known, defaults, "in").added == 30);
    newer.unknown = 1;
    const auto refused = [&](std::size_t bytes) {
        newer.known.struct_bytes = bytes;
        return capi::guarded("f", [&] { capi::read_struct(&newer.known, defaults, "in"); });
    };
    CHECK(refused(sizeof newer) == GIMLET_NOT_SUPPORTED);
    CHECK_THAT(last_error(), contains_text("byte 24"));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{15}, sizeof(Grown) + 1025,
                                    std::numeric_limits<std::size_t>::max()}) {
        CHECK(refused(bytes) == GIMLET_INVALID_ARGUMENT);
        CHECK_THAT(last_error(), contains_text("struct_bytes is " + std::to_string(bytes)));
    }

    // Output: only what the caller's header knows is written, and its size stays.
    Grown out{16, 0, 0, 77};
    capi::StructOut(&out, "out").write(Grown{0, 5, 6, 7});
    CHECK(out.struct_bytes == 16);
    CHECK(out.second == 6);
    CHECK(out.added == 77);
}

TEST_CASE("texts are cut to the caller's buffer", "[capi]") {
    const LogCapture quiet;
    std::size_t needed = 0;
    REQUIRE(gimlet_environment(GIMLET_TEXT, nullptr, 0, &needed) == GIMLET_OK);
    std::vector<char> all(needed, 'x');
    REQUIRE(gimlet_environment(GIMLET_TEXT, all.data(), all.size(), nullptr) == GIMLET_OK);
    CHECK(std::strlen(all.data()) == needed - 1);
    std::vector<char> few(8, 'x');
    REQUIRE(gimlet_environment(GIMLET_TEXT, few.data(), 5, &needed) == GIMLET_OK);
    CHECK(std::string(few.data()) == std::string(all.data(), 4));
    CHECK(few[5] == 'x');
    CHECK(gimlet_environment(GIMLET_TEXT, nullptr, 5, &needed) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_environment(2, few.data(), 5, &needed) == GIMLET_INVALID_ARGUMENT);
}

TEST_CASE("stale, null and mistyped handles are refused", "[capi]") {
    const LogCapture quiet;
    gimlet_bootstrap* first = nullptr;
    REQUIRE(gimlet_bootstrap_create_single(&first) == GIMLET_OK);
    REQUIRE(gimlet_bootstrap_destroy(first) == GIMLET_OK);
    CHECK(gimlet_bootstrap_barrier(first) == GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("no live bootstrap handle"));
    CHECK(gimlet_bootstrap_destroy(first) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_bootstrap_destroy(nullptr) == GIMLET_OK);
    CHECK(gimlet_bootstrap_barrier(nullptr) == GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("the bootstrap handle is null"));
    gimlet_bootstrap* second = nullptr;
    REQUIRE(gimlet_bootstrap_create_single(&second) == GIMLET_OK);
    CHECK(second != first);
    CHECK(gimlet_bootstrap_barrier(first) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_runtime_close(reinterpret_cast<gimlet_runtime*>(second)) ==
          GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("no live runtime handle"));
    CHECK(gimlet_exchange_close(reinterpret_cast<gimlet_exchange*>(~std::uintptr_t{0})) ==
          GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_bootstrap_destroy(second) == GIMLET_OK);
}

TEST_CASE("a faulty config is reported in full", "[capi]") {
    const LogCapture quiet;
    gimlet_moe_config config = gimlet_moe_config_init();
    std::int32_t count = -1;
    char text[2048];
    REQUIRE(gimlet_moe_config_faults(&config, &count, text, sizeof text, nullptr) == GIMLET_OK);
    CHECK(count == 4);  // expert_count, topk, hidden, max_tokens
    CHECK_THAT(std::string(text), contains_text("hidden is 0"));
    std::uint32_t dispatch_bytes = 0;
    std::uint32_t combine_bytes = 0;
    CHECK(gimlet_moe_config_row_bytes(&config, &dispatch_bytes, &combine_bytes) ==
          GIMLET_INVALID_ARGUMENT);
    config.expert_count = 8;
    config.topk = 2;
    config.hidden = 64;
    config.max_tokens = 4;
    config.combine_type = GIMLET_FLOAT32;
    REQUIRE(gimlet_moe_config_faults(&config, &count, text, sizeof text, nullptr) == GIMLET_OK);
    CHECK(count == 0);
    REQUIRE(gimlet_moe_config_row_bytes(&config, &dispatch_bytes, &combine_bytes) == GIMLET_OK);
    CHECK(dispatch_bytes == 128);
    CHECK(combine_bytes == 256);
}

TEST_CASE("rings from the table", "[capi]") {
    const LogCapture quiet;
    for (const int rings : {GIMLET_RINGS_OF_DISPATCH, GIMLET_RINGS_OF_COMBINE}) {
        for (const int ranks : {1, 4, 16, 1000}) {
            gimlet_moe_config config = gimlet_moe_config_init();
            config.hidden = 77;
            REQUIRE(gimlet_moe_config_set_rings(&config, ranks, rings) == GIMLET_OK);
            const auto wanted = gimlet::ChunkConfig::defaults(
                ranks, rings == GIMLET_RINGS_OF_DISPATCH ? gimlet::ChunkConfig::Direction::dispatch
                                                         : gimlet::ChunkConfig::Direction::combine);
            CHECK(config.ring_sm_budget == wanted.num_sms);
            CHECK(config.ring_rows == wanted.nvl_recv);
            CHECK(config.send_rows == wanted.nvl_send);
            CHECK(config.rail_ring_rows == wanted.rdma_recv);
            CHECK(config.rail_send_rows == wanted.rdma_send);
            CHECK(config.hidden == 77);
        }
    }
    gimlet_moe_config config = gimlet_moe_config_init();
    CHECK(gimlet_moe_config_set_rings(&config, 0, 0) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_moe_config_set_rings(&config, 2, 2) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_moe_config_set_rings(nullptr, 2, 0) == GIMLET_INVALID_ARGUMENT);
    config.struct_bytes = 88;  // of the first release
    CHECK(gimlet_moe_config_set_rings(&config, 2, 0) == GIMLET_NOT_SUPPORTED);
    CHECK(config.ring_rows == 0);
}

TEST_CASE("records as text, and their status", "[capi]") {
    const LogCapture quiet;
    gimlet_device_error record{};
    record.primitive = static_cast<std::uint32_t>(gimlet::Primitive::count_exchange);
    record.fault = static_cast<std::uint32_t>(gimlet::DeviceFault::timed_out);
    record.tag = static_cast<std::uint32_t>(gimlet::Tag::dispatch);
    record.peer = 5;
    record.context = -1;
    char text[512];
    REQUIRE(gimlet_device_error_text(&record, text, sizeof text, nullptr) == GIMLET_OK);
    CHECK_THAT(std::string(text), contains_text("rank 5 has not entered this dispatch"));
    CHECK(gimlet_device_error_text(nullptr, text, sizeof text, nullptr) == GIMLET_INVALID_ARGUMENT);
    record.fault = static_cast<std::uint32_t>(gimlet::DeviceFault::expert_out_of_range);
    record.expected = std::uint64_t{1} << 63;
    REQUIRE(gimlet_device_error_text(&record, text, sizeof text, nullptr) == GIMLET_OK);
    CHECK_THAT(std::string(text), contains_text("0..9223372036854775807"));
    record.primitive = 12345;
    record.fault = 999;
    record.tag = 999;
    REQUIRE(gimlet_device_error_text(&record, text, sizeof text, nullptr) == GIMLET_OK);
    CHECK(gimlet_fault_status(1) == GIMLET_TIMEOUT);
    CHECK(gimlet_fault_status(4) == GIMLET_OVERFLOW);
    CHECK(gimlet_fault_status(999) == GIMLET_INTERNAL);
    CHECK(std::string(gimlet_event_name(6)) == "end");
    CHECK(std::string(gimlet_event_name(999)) == "?");
    std::int32_t count = -1;
    CHECK(gimlet_device_errors(nullptr, 0, &count) == GIMLET_OK);
    CHECK(count == 0);
    CHECK(gimlet_device_errors(nullptr, 1, &count) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_device_errors(&record, -1, &count) == GIMLET_INVALID_ARGUMENT);
}

namespace {

struct CallbackWorld {
    int gathers = 0;
    int releases = 0;
    int result = 0;
};

int gather_alone(void* context, const void* send, size_t bytes, void* receive) {
    auto* world = static_cast<CallbackWorld*>(context);
    ++world->gathers;
    if (bytes > 0) std::memcpy(receive, send, bytes);
    return world->result;
}

}  // namespace

TEST_CASE("a close() that fails late leaves nothing that can be used", "[capi]") {
    const LogCapture quiet;
    struct Context {
        int gathers = 0;
        int last = -1;
    } world;
    gimlet_bootstrap_callbacks callbacks = gimlet_bootstrap_callbacks_init();
    callbacks.context = &world;
    callbacks.rank = 0;
    callbacks.size = 1;
    callbacks.all_gather = [](void* context, const void* send, size_t bytes, void* receive) {
        if (bytes > 0) std::memcpy(receive, send, bytes);
        auto* const world = static_cast<Context*>(context);
        return ++world->gathers == world->last ? 7 : 0;
    };
    cudaSetDevice(0);
    gimlet_bootstrap* bootstrap = nullptr;
    REQUIRE(gimlet_bootstrap_create(&callbacks, &bootstrap) == GIMLET_OK);
    gimlet_runtime* runtime = nullptr;
    REQUIRE(gimlet_runtime_create(bootstrap, nullptr, &runtime) == GIMLET_OK);
    const int before = world.gathers;
    REQUIRE(gimlet_runtime_close(runtime) == GIMLET_OK);
    const int of_close = world.gathers - before;
    REQUIRE(gimlet_runtime_destroy(runtime) == GIMLET_OK);
    REQUIRE(gimlet_runtime_create(bootstrap, nullptr, &runtime) == GIMLET_OK);
    world.last = world.gathers + of_close;
    CHECK(gimlet_runtime_close(runtime) == GIMLET_SYSTEM);
    CHECK_THAT(last_error(), contains_text("all_gather returned 7") && contains_text("is aborted"));
    CHECK(gimlet_runtime_barrier(runtime, nullptr, 1, 0) == GIMLET_CLOSED);
    CHECK(gimlet_runtime_close(runtime) == GIMLET_OK);
    CHECK(gimlet_runtime_destroy(runtime) == GIMLET_OK);
    CHECK(gimlet_bootstrap_destroy(bootstrap) == GIMLET_OK);
}

TEST_CASE("bootstrap over callbacks of C", "[capi]") {
    const LogCapture quiet;
    CallbackWorld world;
    gimlet_bootstrap_callbacks callbacks = gimlet_bootstrap_callbacks_init();
    callbacks.context = &world;
    callbacks.release = [](void* context) { ++static_cast<CallbackWorld*>(context)->releases; };
    gimlet_bootstrap* bootstrap = nullptr;
    CHECK(gimlet_bootstrap_create(&callbacks, &bootstrap) == GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("all_gather is not set"));
    callbacks.all_gather = gather_alone;
    for (const auto& [rank, size] : {std::pair{1, 1}, {-1, 1}, {0, 0}, {0, -5}}) {
        callbacks.rank = rank;
        callbacks.size = size;
        CHECK(gimlet_bootstrap_create(&callbacks, &bootstrap) == GIMLET_INVALID_ARGUMENT);
    }
    CHECK(bootstrap == nullptr);
    CHECK(world.releases == 0);  // of creations that failed
    callbacks.rank = 0;
    callbacks.size = 1;
    REQUIRE(gimlet_bootstrap_create(&callbacks, &bootstrap) == GIMLET_OK);
    CHECK(gimlet_bootstrap_barrier(bootstrap) == GIMLET_OK);
    CHECK(world.gathers == 1);
    gimlet_bootstrap* child = nullptr;
    CHECK(gimlet_bootstrap_split(bootstrap, 0, 0, &child) == GIMLET_NOT_SUPPORTED);
    world.result = 42;
    CHECK(gimlet_bootstrap_barrier(bootstrap) == GIMLET_SYSTEM);
    CHECK_THAT(last_error(), contains_text("all_gather returned 42"));
    CHECK(gimlet_bootstrap_destroy(bootstrap) == GIMLET_OK);
    CHECK(world.releases == 1);
}

namespace {

/// A mailbox for one message a pair of ranks, of two ranks in one thread.
struct MessageWorld {
    std::map<std::pair<int, int>, std::vector<std::vector<char>>> boxes;  // to, tag
    int rank = 0;
    int releases = 0;
    int result = 0;
};

gimlet_message_callbacks callbacks_of(MessageWorld* world) {
    gimlet_message_callbacks out = gimlet_message_callbacks_init();
    out.context = world;
    out.size = 2;
    out.timeout_ns = 20'000'000;
    out.send = [](void* context, int32_t peer, int32_t tag, const void* data, size_t bytes) {
        auto* to = static_cast<MessageWorld*>(context);
        const char* text = static_cast<const char*>(data);
        to->boxes[{peer, tag}].emplace_back(text, text + bytes);
        return to->result;
    };
    out.sent = [](void*, int32_t, int32_t* done) {
        *done = 1;
        return 0;
    };
    // The other rank says what this one says.
    out.probe = [](void* context, int32_t peer, int32_t tag, int32_t* found, size_t* bytes) {
        const auto& box = static_cast<MessageWorld*>(context)->boxes[{peer, tag}];
        *found = box.empty() ? 0 : 1;
        *bytes = box.empty() ? 0 : box.front().size();
        return 0;
    };
    out.receive = [](void* context, int32_t peer, int32_t tag, void* data, size_t bytes) {
        auto& box = static_cast<MessageWorld*>(context)->boxes[{peer, tag}];
        std::memcpy(data, box.front().data(), bytes);
        box.erase(box.begin());
        return 0;
    };
    out.release = [](void* context) { ++static_cast<MessageWorld*>(context)->releases; };
    return out;
}

}  // namespace

TEST_CASE("bootstrap over messages of C", "[capi]") {
    const LogCapture quiet;
    MessageWorld world;
    gimlet_message_callbacks callbacks = callbacks_of(&world);
    gimlet_bootstrap* bootstrap = nullptr;
    callbacks.probe = nullptr;
    CHECK(gimlet_bootstrap_create_messages(&callbacks, &bootstrap) == GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("probe is null"));
    callbacks = callbacks_of(&world);
    callbacks.size = 0;
    CHECK(gimlet_bootstrap_create_messages(&callbacks, &bootstrap) == GIMLET_INVALID_ARGUMENT);
    CHECK(world.releases == 0);  // of creations that failed
    callbacks.size = 2;
    REQUIRE(gimlet_bootstrap_create_messages(&callbacks, &bootstrap) == GIMLET_OK);

    const int mine = 7;
    int both[2] = {0, 0};
    REQUIRE(gimlet_bootstrap_all_gather(bootstrap, &mine, sizeof mine, both) == GIMLET_OK);
    CHECK(both[0] == 7);
    CHECK(both[1] == 7);
    gimlet_bootstrap* left = nullptr;
    const int32_t all[] = {0, 1};
    REQUIRE(gimlet_bootstrap_survivors(bootstrap, all, 2, &left) == GIMLET_OK);
    CHECK(gimlet_bootstrap_barrier(left) == GIMLET_OK);
    CHECK(gimlet_bootstrap_destroy(left) == GIMLET_OK);
    const int32_t alone[] = {0};
    REQUIRE(gimlet_bootstrap_survivors(bootstrap, alone, 1, &left) == GIMLET_OK);
    CHECK(gimlet_bootstrap_destroy(left) == GIMLET_OK);
    for (const auto& ranks :
         {std::vector<int32_t>{1}, {1, 0}, {0, 2}, {-1, 0}, {0, 0}, {0, 1, 2}}) {
        CHECK(gimlet_bootstrap_survivors(bootstrap, ranks.data(),
                                         static_cast<int32_t>(ranks.size()),
                                         &left) == GIMLET_INVALID_ARGUMENT);
    }

    // Nobody answers any more: the deadline, with the rank's number.
    callbacks.probe = [](void*, int32_t, int32_t, int32_t* found, size_t*) {
        *found = 0;
        return 0;
    };
    gimlet_bootstrap* deaf = nullptr;
    REQUIRE(gimlet_bootstrap_create_messages(&callbacks, &deaf) == GIMLET_OK);
    CHECK(gimlet_bootstrap_barrier(deaf) == GIMLET_TIMEOUT);
    CHECK_THAT(last_error(), contains_text("rank 1 did not come within 20 ms"));
    CHECK(gimlet_bootstrap_destroy(deaf) == GIMLET_OK);
    world.result = 42;
    CHECK(gimlet_bootstrap_barrier(bootstrap) == GIMLET_SYSTEM);
    CHECK_THAT(last_error(), contains_text("send returned 42"));
    CHECK(gimlet_bootstrap_destroy(bootstrap) == GIMLET_OK);
    CHECK(world.releases == 2);
    uint64_t timeout_ns = 0;
    CHECK(gimlet_bootstrap_timeout_ns(&timeout_ns) == GIMLET_OK);
    CHECK(timeout_ns > 0);
}

TEST_CASE("a failure of code beside the library is kept like the library's own", "[capi]") {
    const LogCapture quiet;
    CHECK(gimlet_fail(GIMLET_MPI, "the text") == GIMLET_MPI);
    CHECK_THAT(last_error(), contains_text("the text"));
    CHECK(gimlet_last_error_status() == GIMLET_MPI);
    CHECK(gimlet_fail(GIMLET_OK, "no failure") == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_fail(99, "unknown") == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_fail(GIMLET_MPI, nullptr) == GIMLET_INVALID_ARGUMENT);
    CHECK(std::string(gimlet_primitive_name(3)) == "gin_barrier");
    CHECK(std::string(gimlet_fault_name(1)) == "timed_out");
    CHECK(std::string(gimlet_tag_name(2)) == "dispatch");
    CHECK(std::string(gimlet_tag_name(999)) == "?");
}

TEST_CASE("a child of the split callback changes hands", "[capi]") {
    const LogCapture quiet;
    CallbackWorld world;
    gimlet_bootstrap_callbacks callbacks = gimlet_bootstrap_callbacks_init();
    callbacks.context = &world;
    callbacks.all_gather = gather_alone;
    callbacks.split = [](void*, int32_t color, int32_t, gimlet_bootstrap** child) {
        if (color == 9) *child = reinterpret_cast<gimlet_bootstrap*>(std::uintptr_t{12345});
        return color >= 0 && color != 9 ? static_cast<int>(gimlet_bootstrap_create_single(child))
                                        : 0;
    };
    gimlet_bootstrap* bootstrap = nullptr;
    REQUIRE(gimlet_bootstrap_create(&callbacks, &bootstrap) == GIMLET_OK);
    gimlet_bootstrap* child = nullptr;
    REQUIRE(gimlet_bootstrap_split(bootstrap, 1, 0, &child) == GIMLET_OK);
    REQUIRE(child != nullptr);
    CHECK(gimlet_bootstrap_barrier(child) == GIMLET_OK);
    CHECK(gimlet_bootstrap_destroy(child) == GIMLET_OK);
    CHECK(gimlet_bootstrap_split(bootstrap, -1, 0, &child) == GIMLET_OK);
    CHECK(child == nullptr);
    CHECK(gimlet_bootstrap_split(bootstrap, 9, 0, &child) == GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_bootstrap_destroy(bootstrap) == GIMLET_OK);
}

namespace {

constexpr int kRanks = 3;
constexpr int kTokens = 4;
constexpr int kHidden = 8;  // fp16-sized: one 16-byte row
constexpr int kTopk = 2;

/// Device memory of a test.
template <typename T>
class Memory {
  public:
    explicit Memory(const std::vector<T>& from) : count_(from.size()) {
        if (cudaMalloc(reinterpret_cast<void**>(&pointer_), count_ * sizeof(T)) != cudaSuccess)
            throw std::runtime_error("cudaMalloc");
        cudaMemcpy(pointer_, from.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    }
    ~Memory() { cudaFree(pointer_); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    T* get() const { return pointer_; }
    std::vector<T> read() const {
        std::vector<T> to(count_);
        cudaMemcpy(to.data(), pointer_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
        return to;
    }

  private:
    T* pointer_ = nullptr;
    std::size_t count_;
};

void must(gimlet_status status, const char* what) {
    if (status != GIMLET_OK)
        throw std::runtime_error(std::string(what) + ": " + gimlet_last_error());
}
#define MUST(call) must((call), #call)

void must_be(bool right, const char* what) {
    if (!right) throw std::runtime_error(std::string("not so: ") + what);
}
#define MUST_BE(condition) must_be((condition), #condition)

/// Every function of a step, on one rank of a thread group.
void run_rank(gimlet_thread_group* group, int rank) {
    cudaSetDevice(rank);
    gimlet_bootstrap* bootstrap = nullptr;
    MUST(gimlet_thread_group_member(group, rank, &bootstrap));
    gimlet_runtime_config runtime_config = gimlet_runtime_config_init();
    runtime_config.deadline_ns = 20000000000;
    runtime_config.name = "capi test";
    runtime_config.event_ring = 1;
    runtime_config.first_step = std::numeric_limits<std::uint32_t>::max();
    gimlet_runtime* runtime = nullptr;
    MUST(gimlet_runtime_create(bootstrap, &runtime_config, &runtime));
    MUST(gimlet_bootstrap_destroy(bootstrap));  // the runtime keeps what it needs

    gimlet_runtime_info info = gimlet_runtime_info_init();
    MUST(gimlet_runtime_get_info(runtime, &info));
    MUST_BE(info.rank == rank && info.size == kRanks && info.comm != nullptr);
    MUST_BE(info.deadline_ns == 20000000000);
    gimlet_rank_place place = gimlet_rank_place_init();
    MUST(gimlet_runtime_get_place(runtime, rank, &place));
    MUST_BE(place.reach == GIMLET_REACH_SELF && place.device == rank);
    MUST_BE(gimlet_runtime_get_place(runtime, kRanks, &place) == GIMLET_INVALID_ARGUMENT);

    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = kRanks;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    config.layout = GIMLET_EXPERT_MAJOR;
    config.deadline_ns = GIMLET_NO_DEADLINE;
    gimlet_plan_info before = gimlet_plan_info_init();
    std::size_t plan_bytes = 0;
    MUST(gimlet_runtime_plan(runtime, &config, &before, GIMLET_TEXT, nullptr, 0, &plan_bytes));
    MUST_BE(plan_bytes > 100);
    config.topk = 33;
    MUST_BE(gimlet_runtime_plan(runtime, &config, nullptr, GIMLET_JSON, nullptr, 0, nullptr) ==
            GIMLET_INVALID_ARGUMENT);
    config.topk = kTopk;
    gimlet_exchange* exchange = nullptr;
    MUST(gimlet_exchange_create(runtime, &config, &exchange));
    gimlet_plan_info plan = gimlet_plan_info_init();
    MUST(gimlet_exchange_get_plan(exchange, &plan));
    MUST_BE(before.hash == plan.hash && before.window_bytes == plan.window_bytes);
    MUST_BE(plan.mode == GIMLET_MODE_DIRECT && plan.lsa_size == kRanks && plan.ring_count == 0);
    MUST_BE(plan.rank_count == kRanks && plan.first_local_expert == rank);
    MUST_BE(plan.deadline_ns == GIMLET_NO_DEADLINE && plan.dispatch_row_bytes == 16);
    MUST(gimlet_exchange_reserve(exchange, GIMLET_GRAPH_IN_PLACE));
    MUST_BE(gimlet_exchange_reserve(exchange, 2) == GIMLET_INVALID_ARGUMENT);
    gimlet_routing* routing = nullptr;
    MUST(gimlet_routing_create(exchange, &routing));

    // Every token goes to experts 0 and 1, so that rank 2 receives nothing.
    const std::uint16_t one = 0x3f80;
    const Memory<std::uint16_t> rows(std::vector<std::uint16_t>(kTokens * kHidden, one));
    const Memory<std::int64_t> experts(std::vector<std::int64_t>{0, 1, 1, 0, 0, 1, 1, 0});
    const Memory<std::uint16_t> out(std::vector<std::uint16_t>(kTokens * kHidden, 0));
    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    inputs.rows = rows.get();
    inputs.expert_indices = experts.get();
    inputs.index_type = GIMLET_INT64;
    inputs.token_count = kTokens;
    gimlet_received received = gimlet_received_init();
    MUST_BE(gimlet_get_received(exchange, routing, &received) == GIMLET_INVALID_USAGE);
    MUST(gimlet_dispatch(exchange, &inputs, routing, GIMLET_COUNTS_HOST, nullptr, &received));
    const std::int32_t expected = rank < 2 ? kRanks * kTokens : 0;
    MUST_BE(received.has_counts == 1 && received.row_count == expected);
    MUST_BE(received.local_expert_count == 1 && received.expert_counts[0] == expected);
    MUST_BE(received.rank_count == kRanks && received.source_offsets[kRanks] == expected);
    MUST_BE(received.epoch == runtime_config.first_step + 1);
    gimlet_routing_info routed = gimlet_routing_info_init();
    MUST(gimlet_routing_get_info(routing, &routed));
    MUST_BE(routed.filled == 1 && routed.token_count == kTokens);

    // The expert answers with its rows.
    const std::size_t row_room = static_cast<std::size_t>(kRanks * kTokens);
    const Memory<std::uint16_t> answers(std::vector<std::uint16_t>(row_room * kHidden, 0));
    const Memory<std::int32_t> sources(std::vector<std::int32_t>(row_room * 2, 0));
    gimlet_unpack_outputs copies = gimlet_unpack_outputs_init();
    copies.rows = answers.get();
    copies.source = sources.get();
    copies.capacity = static_cast<std::int64_t>(row_room);
    MUST(gimlet_unpack(exchange, routing, &copies, nullptr));
    MUST(gimlet_pack(exchange, answers.get(), routing, nullptr));
    void* combine_rows = nullptr;
    MUST(gimlet_combine_input(exchange, &combine_rows));
    MUST_BE(combine_rows != nullptr);
    gimlet_combine_inputs combine = gimlet_combine_inputs_init();
    combine.out = out.get();
    MUST(gimlet_combine(exchange, &combine, routing, nullptr));
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    const std::uint16_t two = 0x4000;
    MUST_BE(out.read() == std::vector<std::uint16_t>(kTokens * kHidden, two));
    if (expected > 0) MUST_BE(sources.read().back() == kTokens - 1);

    // A second step on the slots of the first.
    MUST(gimlet_dispatch_cached(exchange, &inputs, routing, nullptr, nullptr));
    MUST(gimlet_get_received(exchange, routing, &received));
    MUST_BE(received.epoch == runtime_config.first_step + 2 && received.has_counts == 0 &&
            received.expert_counts == nullptr);
    MUST(gimlet_pack(exchange, answers.get(), routing, nullptr));
    MUST(gimlet_combine(exchange, &combine, routing, nullptr));
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    MUST(gimlet_exchange_end_capture(exchange));
    std::size_t events_bytes = 0;
    MUST(gimlet_exchange_events(exchange, nullptr, 0, &events_bytes));
    MUST_BE(events_bytes > 1);
    std::int32_t event_count = 0;
    MUST(gimlet_exchange_get_events(exchange, nullptr, 0, &event_count));
    MUST_BE(event_count > 2);
    std::vector<gimlet_device_event> events(static_cast<std::size_t>(event_count));
    MUST(gimlet_exchange_get_events(exchange, events.data(), event_count, nullptr));
    MUST_BE(std::string(gimlet_event_name(events.back().kind)) == "end");
    MUST_BE(events.back().epoch == runtime_config.first_step + 2);
    gimlet_device_event newest{};
    MUST(gimlet_exchange_get_events(exchange, &newest, 1, nullptr));
    MUST_BE(newest.number == events.back().number);
    MUST_BE(gimlet_exchange_get_events(exchange, nullptr, 1, nullptr) == GIMLET_INVALID_ARGUMENT);
    MUST(gimlet_runtime_get_events(runtime, nullptr, 0, &event_count));
    MUST_BE(event_count == 0);  // no barrier so far
    gimlet_ready_view no_view;
    MUST(gimlet_get_ready_view(exchange, routing, &no_view));
    MUST_BE(no_view.arrived == nullptr && no_view.error == nullptr);
    gimlet_group_report report = gimlet_group_report_init();
    char nothing[4] = "xyz";
    MUST(gimlet_exchange_group_report(exchange, &report, nothing, sizeof nothing, nullptr));
    MUST_BE(report.rank_count == 0 && nothing[0] == 0);

    // A third on a stream of its own.
    cudaStream_t comm_stream = nullptr;
    MUST_BE(cudaStreamCreateWithFlags(&comm_stream, cudaStreamNonBlocking) == cudaSuccess);
    MUST_BE(gimlet_exchange_set_comm_stream(exchange, comm_stream, 2) == GIMLET_INVALID_ARGUMENT);
    MUST(gimlet_exchange_set_comm_stream(exchange, comm_stream, GIMLET_JOIN_LATER));
    MUST(gimlet_dispatch_cached(exchange, &inputs, routing, nullptr, nullptr));
    MUST(gimlet_exchange_join(exchange, nullptr));
    MUST(gimlet_pack(exchange, answers.get(), routing, nullptr));
    MUST(gimlet_combine(exchange, &combine, routing, nullptr));
    MUST(gimlet_exchange_join(exchange, nullptr));
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    MUST_BE(out.read() == std::vector<std::uint16_t>(kTokens * kHidden, two));
    MUST(gimlet_exchange_set_comm_stream(exchange, nullptr, GIMLET_JOIN_AT_ONCE));
    MUST_BE(cudaStreamDestroy(comm_stream) == cudaSuccess);

    gimlet_exchange_stats stats = gimlet_exchange_stats_init();
    MUST(gimlet_exchange_get_stats(exchange, &stats));
    MUST_BE(stats.dispatches == 3 && stats.cached_dispatches == 2 && stats.combines == 3);
    std::vector<std::int64_t> rows_to(kRanks, -1);
    gimlet_step_traffic traffic = gimlet_step_traffic_init();
    traffic.rows_to = rows_to.data();
    traffic.rank_capacity = kRanks - 1;
    MUST_BE(gimlet_routing_traffic(exchange, routing, &traffic) == GIMLET_INVALID_ARGUMENT);
    traffic.rank_capacity = kRanks;
    MUST(gimlet_routing_traffic(exchange, routing, &traffic));
    MUST_BE(rows_to == (std::vector<std::int64_t>{kTokens, kTokens, 0}));
    MUST_BE(traffic.rows_to == rows_to.data() && traffic.rows_sent == 2 * kTokens);
    const std::int64_t away = rank < 2 ? kTokens : 2 * kTokens;  // rows to others
    MUST_BE(traffic.dispatch_lsa_bytes == away * (plan.dispatch_row_bytes + plan.record_bytes));
    MUST_BE(traffic.combine_lsa_bytes == away * plan.combine_row_bytes);
    MUST_BE(traffic.dispatch_gin_bytes == 0 && traffic.combine_gin_bytes == 0);

    MUST(gimlet_runtime_barrier(runtime, nullptr, 2, GIMLET_NO_DEADLINE));
    MUST(gimlet_runtime_synchronize(runtime, nullptr));
    gimlet_health health = gimlet_health_init();
    MUST(gimlet_exchange_health(exchange, &health, nullptr, 0, nullptr));
    MUST_BE(health.state == GIMLET_HEALTH_OPEN && health.has_error == 0);
    MUST_BE(gimlet_runtime_close(runtime) == GIMLET_INVALID_USAGE);  // an exchange is open

    MUST(gimlet_routing_destroy(routing));
    MUST(gimlet_exchange_close(exchange));
    MUST(gimlet_exchange_close(exchange));
    MUST_BE(gimlet_exchange_check(exchange) == GIMLET_CLOSED);
    MUST(gimlet_exchange_health(exchange, &health, nullptr, 0, nullptr));
    MUST_BE(health.state == GIMLET_HEALTH_CLOSED);
    MUST(gimlet_exchange_destroy(exchange));
    MUST(gimlet_runtime_close(runtime));
    MUST(gimlet_runtime_get_info(runtime, &info));
    MUST_BE(info.comm == nullptr && info.barrier_count == 2);
    MUST(gimlet_runtime_destroy(runtime));
}

/// Rank 2 makes no step. The others time out, learn that it is rank 2, exclude it and work on.
/// `gone` is entered by all at the end: rank 2's memory stays until then.
void lose_a_rank(gimlet_thread_group* group, int rank, std::barrier<>& gone) {
    cudaSetDevice(rank);
    gimlet_bootstrap* bootstrap = nullptr;
    MUST(gimlet_thread_group_member(group, rank, &bootstrap));
    gimlet_runtime_config runtime_config = gimlet_runtime_config_init();
    runtime_config.deadline_ns = 1500000000;
    gimlet_runtime* runtime = nullptr;
    MUST(gimlet_runtime_create(bootstrap, &runtime_config, &runtime));
    MUST(gimlet_bootstrap_destroy(bootstrap));
    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = kRanks;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    gimlet_exchange* exchange = nullptr;
    MUST(gimlet_exchange_create(runtime, &config, &exchange));
    if (rank == kRanks - 1) {
        gone.arrive_and_wait();
        MUST(gimlet_exchange_destroy(exchange));
        MUST(gimlet_runtime_destroy(runtime));
        return;
    }
    gimlet_routing* routing = nullptr;
    MUST(gimlet_routing_create(exchange, &routing));
    const Memory<std::uint16_t> rows(std::vector<std::uint16_t>(kTokens * kHidden, 0x3f80));
    const Memory<std::int32_t> experts(std::vector<std::int32_t>{0, 2, 1, 2, 0, 1, 2, 0});
    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    inputs.rows = rows.get();
    inputs.expert_indices = experts.get();
    inputs.index_type = GIMLET_INT32;
    inputs.token_count = kTokens;
    MUST(gimlet_dispatch(exchange, &inputs, routing, GIMLET_COUNTS_DEVICE, nullptr, nullptr));
    MUST_BE(gimlet_exchange_synchronize(exchange, nullptr) == GIMLET_TIMEOUT);

    // Of both threads, perhaps.
    std::vector<gimlet_device_error> seen(kRanks);
    std::int32_t seen_count = 0;
    MUST(gimlet_device_errors(seen.data(), kRanks, &seen_count));
    MUST_BE(seen_count >= 1 && seen[0].peer == kRanks - 1);

    std::vector<gimlet_device_error> records(kRanks);
    std::vector<std::uint32_t> flags(kRanks, 99);
    gimlet_group_report report = gimlet_group_report_init();
    report.records = records.data();
    report.rank_flags = flags.data();
    report.rank_capacity = kRanks - 1;
    MUST_BE(gimlet_exchange_group_report(exchange, &report, nullptr, 0, nullptr) ==
            GIMLET_INVALID_ARGUMENT);
    report.rank_capacity = kRanks;
    std::size_t text_bytes = 0;
    MUST(gimlet_exchange_group_report(exchange, &report, nullptr, 0, &text_bytes));
    MUST_BE(report.rank_count == kRanks && text_bytes > 1);
    MUST_BE((flags[static_cast<std::size_t>(rank)] & GIMLET_RANK_HAS_RECORD) != 0);
    MUST_BE(records[static_cast<std::size_t>(rank)].peer == kRanks - 1);
    MUST_BE(records[static_cast<std::size_t>(rank)].step == 1);
    MUST_BE(flags[kRanks - 1] == GIMLET_RANK_IS_SUSPECT);

    const std::int32_t lost[] = {kRanks - 1};
    MUST_BE(gimlet_runtime_exclude(runtime, lost, kRanks + 1, nullptr, nullptr, nullptr, 0,
                                   nullptr) == GIMLET_INVALID_ARGUMENT);
    MUST_BE(gimlet_runtime_exclude(runtime, nullptr, 1, nullptr, nullptr, nullptr, 0, nullptr) ==
            GIMLET_INVALID_ARGUMENT);
    MUST(gimlet_runtime_exclude(runtime, lost, 1, nullptr, &report, nullptr, 0, nullptr));
    MUST_BE((flags[kRanks - 1] & GIMLET_RANK_IS_EXCLUDED) != 0);
    std::int32_t left[kRanks] = {-1, -1, -1};
    std::int32_t left_count = 0;
    MUST(gimlet_runtime_live_ranks(runtime, left, kRanks, &left_count));
    MUST_BE(left_count == 2 && left[0] == 0 && left[1] == 1 && left[2] == -1);

    gimlet_received received = gimlet_received_init();
    MUST(gimlet_dispatch(exchange, &inputs, routing, GIMLET_COUNTS_HOST, nullptr, &received));
    MUST_BE(received.partial == 1 && received.source_offsets[kRanks] == received.row_count);
    MUST_BE(received.source_offsets[2] == received.row_count);  // nothing of rank 2
    gimlet_routing_info routed = gimlet_routing_info_init();
    MUST(gimlet_routing_get_info(routing, &routed));
    std::uint32_t dropped[kTokens] = {};
    MUST_BE(cudaMemcpy(dropped, routed.dropped, sizeof dropped, cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    MUST_BE(dropped[0] == 2 && dropped[1] == 2 && dropped[2] == 0 && dropped[3] == 1);
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    MUST(gimlet_routing_destroy(routing));
    MUST(gimlet_exchange_close(exchange));
    MUST(gimlet_runtime_close(runtime));
    gone.arrive_and_wait();
    MUST(gimlet_exchange_destroy(exchange));
    MUST(gimlet_runtime_destroy(runtime));
}

/// After one dispatch of `experts` below.
void check_ring_counters(gimlet_exchange* exchange, int rank, int ring_rows) {
    std::int32_t ring_count = 0;
    MUST(gimlet_exchange_ring_counters(exchange, nullptr, 0, &ring_count));
    std::vector<gimlet_ring_counters> rings(static_cast<std::size_t>(ring_count));
    MUST(gimlet_exchange_ring_counters(exchange, rings.data(), ring_count, nullptr));
    MUST_BE(gimlet_exchange_ring_counters(exchange, nullptr, 1, nullptr) ==
            GIMLET_INVALID_ARGUMENT);
    // Of four tokens, two choices each: rank 0 and 2 are chosen by three, rank 1 by two.
    const std::array<std::uint64_t, kRanks> wanted = {3, 2, 3};
    std::array<std::uint64_t, kRanks> sent{};
    std::array<std::uint64_t, kRanks> taken{};
    for (const gimlet_ring_counters& ring : rings) {
        const auto peer = static_cast<std::size_t>(ring.peer);
        (ring.is_receiver != 0 ? taken : sent)[peer] += ring.rows;
        MUST_BE(ring.over_gin == 0 && ring.slot_count == static_cast<std::uint32_t>(ring_rows));
        MUST_BE(ring.most_occupied <= ring.slot_count);
        if (ring.is_receiver == 0) MUST_BE((ring.rows == 0) == (ring.most_occupied == 0));
        MUST_BE(ring.flags <= ring.rows);
    }
    MUST_BE(sent == wanted);
    for (const std::uint64_t rows : taken) MUST_BE(rows == wanted[static_cast<std::size_t>(rank)]);
}

/// A step through rings, of sizes from the table, with what a kernel beside it would get.
void stream_a_step(gimlet_thread_group* group, int rank) {
    cudaSetDevice(rank);
    gimlet_bootstrap* bootstrap = nullptr;
    MUST(gimlet_thread_group_member(group, rank, &bootstrap));
    gimlet_runtime* runtime = nullptr;
    MUST(gimlet_runtime_create(bootstrap, nullptr, &runtime));
    MUST(gimlet_bootstrap_destroy(bootstrap));
    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = kRanks;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    config.sync = GIMLET_SYNC_FIFO;
    MUST(gimlet_moe_config_set_rings(&config, kRanks, GIMLET_RINGS_OF_COMBINE));
    config.ring_sm_budget = 2;
    gimlet_exchange* exchange = nullptr;
    MUST(gimlet_exchange_create(runtime, &config, &exchange));
    gimlet_plan_info plan = gimlet_plan_info_init();
    MUST(gimlet_exchange_get_plan(exchange, &plan));
    MUST_BE(plan.ring_rows == config.ring_rows && plan.ring_count >= kRanks);
    MUST_BE(plan.tensor_bytes > 0);
    gimlet_routing* routing = nullptr;
    MUST(gimlet_routing_create(exchange, &routing));
    const Memory<std::uint16_t> rows(std::vector<std::uint16_t>(kTokens * kHidden, 0x3f80));
    const Memory<std::int32_t> experts(std::vector<std::int32_t>{0, 2, 1, 2, 0, 1, 2, 0});
    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    inputs.rows = rows.get();
    inputs.expert_indices = experts.get();
    inputs.token_count = kTokens;
    gimlet_received received = gimlet_received_init();
    MUST(gimlet_dispatch(exchange, &inputs, routing, GIMLET_COUNTS_DEVICE, nullptr, &received));
    gimlet_ready_view view;
    MUST(gimlet_get_ready_view(exchange, routing, &view));
    MUST_BE(view.step == received.step && view.epoch == received.epoch && view.rank == rank);
    MUST_BE(view.block_rows == received.ready_block_rows && view.poison != nullptr);
    MUST_BE(view.block_count == received.ready_block_count && view.error != nullptr);
    MUST_BE(received.ready_rows == view.arrived ||
            received.ready_rows == view.arrived + view.block_count);
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    std::uint32_t arrived = 0;
    MUST_BE(cudaMemcpy(&arrived, received.ready_rows, sizeof arrived, cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    gimlet_step_counts counts{};
    MUST_BE(cudaMemcpy(&counts, view.step, sizeof counts, cudaMemcpyDeviceToHost) == cudaSuccess);
    MUST_BE(counts.row_count > 0 && arrived == static_cast<std::uint32_t>(counts.row_count));
    check_ring_counters(exchange, rank, plan.ring_rows);
    MUST(gimlet_routing_destroy(routing));
    MUST(gimlet_exchange_close(exchange));
    MUST(gimlet_exchange_destroy(exchange));
    MUST(gimlet_runtime_close(runtime));
    MUST(gimlet_runtime_destroy(runtime));
}

/// One thread a rank; what they threw.
template <typename Body>
std::vector<std::string> on_all_ranks(Body body) {
    gimlet_thread_group* group = nullptr;
    REQUIRE(gimlet_thread_group_create(kRanks, 60000000000, &group) == GIMLET_OK);
    std::vector<std::string> failures(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                body(group, rank);
            } catch (const std::exception& error) {
                failures[static_cast<std::size_t>(rank)] = error.what();
                gimlet_thread_group_abort(group, error.what());
            }
        });
    }
    for (auto& thread : threads) thread.join();
    CHECK(gimlet_thread_group_destroy(group) == GIMLET_OK);
    return failures;
}

}  // namespace

TEST_CASE("whole steps of three ranks through the C ABI", "[capi]") {
    const LogCapture quiet;
    CHECK(on_all_ranks(run_rank) == std::vector<std::string>(kRanks));
}

namespace {

/// Rank 1 passes arguments of steps that the C ABI itself refuses. `refused` checks what a rank
/// hears.
template <typename Refused>
void refuse_steps(gimlet_exchange* exchange, int rank, Refused refused) {
    const bool bad = rank == 1;
    gimlet_routing* routing = nullptr;
    gimlet_routing* stale = nullptr;
    MUST(gimlet_routing_create(exchange, &routing));
    MUST(gimlet_routing_create(exchange, &stale));
    MUST(gimlet_routing_destroy(stale));
    const gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();  // no tokens
    const gimlet_combine_inputs combine = gimlet_combine_inputs_init();
    gimlet_received received = gimlet_received_init();
    // The rank with the fault hears of it from the call, the others at the end of their step.
    const auto heard = [&](gimlet_status status, const char* reason) {
        if (!bad && status == GIMLET_OK) status = gimlet_exchange_synchronize(exchange, nullptr);
        refused(status, bad ? reason : "rank 1 refused its own input");
        MUST(gimlet_exchange_recover(exchange, nullptr, nullptr, 0, nullptr));
    };
    const auto dispatch = [&](const gimlet_dispatch_inputs* from, gimlet_routing* to,
                              std::int32_t counts, gimlet_received* out) {
        return gimlet_dispatch(exchange, from, to, counts, nullptr, out);
    };
    heard(dispatch(bad ? nullptr : &inputs, routing, GIMLET_COUNTS_DEVICE, nullptr),
          "inputs is null");
    heard(dispatch(&inputs, bad ? stale : routing, GIMLET_COUNTS_HOST, nullptr),
          "is no live routing handle");
    heard(dispatch(&inputs, routing, bad ? 9 : GIMLET_COUNTS_DEVICE, nullptr), "count_mode is 9");
    received.struct_bytes = bad ? 3 : sizeof received;
    heard(dispatch(&inputs, routing, GIMLET_COUNTS_HOST, &received), "struct_bytes is 3");
    MUST(dispatch(&inputs, routing, GIMLET_COUNTS_HOST, nullptr));
    heard(gimlet_dispatch_cached(exchange, bad ? nullptr : &inputs, routing, nullptr, nullptr),
          "inputs is null");
    MUST(dispatch(&inputs, routing, GIMLET_COUNTS_HOST, nullptr));
    heard(gimlet_combine(exchange, bad ? nullptr : &combine, routing, nullptr), "inputs is null");
    MUST(dispatch(&inputs, routing, GIMLET_COUNTS_HOST, nullptr));
    heard(gimlet_combine(exchange, &combine, bad ? nullptr : routing, nullptr),
          "the routing handle is null");
    MUST(dispatch(&inputs, routing, GIMLET_COUNTS_HOST, nullptr));
    MUST(gimlet_combine(exchange, &combine, routing, nullptr));
    MUST(gimlet_exchange_synchronize(exchange, nullptr));
    MUST(gimlet_routing_destroy(routing));
}

/// Rank 1 passes something that the C ABI itself refuses.
void refuse_on_one_rank(gimlet_thread_group* group, int rank) {
    cudaSetDevice(rank);
    const bool bad = rank == 1;
    gimlet_bootstrap* bootstrap = nullptr;
    MUST(gimlet_thread_group_member(group, rank, &bootstrap));
    gimlet_runtime* runtime = nullptr;
    const auto refused = [&](gimlet_status status, const char* reason) {
        MUST_BE(status == (bad ? GIMLET_INVALID_ARGUMENT : GIMLET_PEER_FAILED));
        must_be(std::strstr(gimlet_last_error(), reason) != nullptr, gimlet_last_error());
        if (!bad) MUST_BE(std::strstr(gimlet_last_error(), "rank 1") != nullptr);
    };
    gimlet_runtime_config runtime_config = gimlet_runtime_config_init();
    runtime_config.event_ring = bad ? 7 : 0;
    refused(gimlet_runtime_create(bootstrap, &runtime_config, &runtime), "event_ring is 7");
    refused(gimlet_runtime_create(bootstrap, nullptr, bad ? nullptr : &runtime), "runtime is null");
    runtime_config = gimlet_runtime_config_init();
    if (bad) runtime_config.struct_bytes = 3;
    refused(gimlet_runtime_adopt(nullptr, bootstrap, &runtime_config, &runtime),
            "struct_bytes is 3");
    MUST_BE(runtime == nullptr);
    MUST(gimlet_runtime_create(bootstrap, nullptr, &runtime));
    MUST(gimlet_bootstrap_destroy(bootstrap));

    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = kRanks;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    const gimlet_moe_config good = config;
    gimlet_exchange* exchange = nullptr;
    if (bad) config.struct_bytes = 0;
    refused(gimlet_exchange_create(runtime, &config, &exchange), "struct_bytes is 0");
    config = good;
    config.layout = bad ? 9 : GIMLET_RANK_MAJOR;
    refused(gimlet_exchange_create(runtime, &config, &exchange), "layout is 9");
    refused(gimlet_exchange_create(runtime, bad ? nullptr : &good, &exchange), "config is null");
    refused(gimlet_exchange_create(runtime, &good, bad ? nullptr : &exchange), "exchange is null");
    MUST_BE(exchange == nullptr);
    MUST(gimlet_exchange_create(runtime, &good, &exchange));
    refuse_steps(exchange, rank, refused);
    gimlet_plan_info plan = gimlet_plan_info_init();
    MUST(gimlet_exchange_get_plan(exchange, &plan));
    MUST_BE(plan.exchange_number == 1);
    gimlet_group_report report = gimlet_group_report_init();
    if (bad) report.struct_bytes = 1;
    refused(gimlet_exchange_recover(exchange, &report, nullptr, 0, nullptr), "struct_bytes is 1");
    refused(gimlet_runtime_recover(runtime, &report, nullptr, 0, nullptr), "struct_bytes is 1");
    const int32_t none = 0;
    refused(
        gimlet_runtime_exclude(runtime, &none, bad ? -1 : 0, nullptr, nullptr, nullptr, 0, nullptr),
        "rank_count is -1");
    MUST(gimlet_runtime_recover(runtime, nullptr, nullptr, 0, nullptr));
    MUST(gimlet_exchange_close(exchange));
    MUST(gimlet_exchange_destroy(exchange));
    MUST(gimlet_runtime_close(runtime));
    MUST(gimlet_runtime_destroy(runtime));
}

}  // namespace

TEST_CASE("what the C ABI refuses on one rank, the others hear at once", "[capi]") {
    const LogCapture quiet;
    const auto start = std::chrono::steady_clock::now();
    CHECK(on_all_ranks(refuse_on_one_rank) == std::vector<std::string>(kRanks));
    // The bootstrap's own deadline is a minute.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("a step through rings of three ranks through the C ABI", "[capi]") {
    const LogCapture quiet;
    CHECK(on_all_ranks(stream_a_step) == std::vector<std::string>(kRanks));
}

TEST_CASE("a rank is lost and excluded through the C ABI", "[capi]") {
    const LogCapture quiet;
    std::barrier<> gone(kRanks);
    const auto body = [&](gimlet_thread_group* group, int rank) {
        try {
            lose_a_rank(group, rank, gone);
        } catch (...) {
            gone.arrive_and_drop();
            throw;
        }
    };
    CHECK(on_all_ranks(body) == std::vector<std::string>(kRanks));
}

TEST_CASE("the longest deadlines do not end at once", "[capi]") {
    const LogCapture quiet;
    gimlet_thread_group* group = nullptr;
    REQUIRE(gimlet_thread_group_create(2, GIMLET_NO_DEADLINE, &group) == GIMLET_OK);
    gimlet_bootstrap* members[2] = {};
    for (int rank = 0; rank < 2; ++rank)
        REQUIRE(gimlet_thread_group_member(group, rank, &members[rank]) == GIMLET_OK);
    gimlet_status first = GIMLET_INTERNAL;
    std::thread thread([&] { first = gimlet_bootstrap_barrier(members[0]); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(gimlet_bootstrap_barrier(members[1]) == GIMLET_OK);
    thread.join();
    CHECK(first == GIMLET_OK);
    for (gimlet_bootstrap* member : members) CHECK(gimlet_bootstrap_destroy(member) == GIMLET_OK);
    CHECK(gimlet_thread_group_destroy(group) == GIMLET_OK);
}

namespace {

/// One rank alone, for calls that must be refused before a kernel starts.
struct Alone {
    gimlet_bootstrap* bootstrap = nullptr;
    gimlet_runtime* runtime = nullptr;
    gimlet_exchange* exchange = nullptr;
    gimlet_routing* routing = nullptr;
    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    gimlet_combine_inputs combine = gimlet_combine_inputs_init();

    Alone() {
        cudaSetDevice(0);
        MUST(gimlet_bootstrap_create_single(&bootstrap));
        MUST(gimlet_runtime_create(bootstrap, nullptr, &runtime));
        gimlet_moe_config config = gimlet_moe_config_init();
        config.expert_count = 2;
        config.topk = 1;
        config.hidden = kHidden;
        config.max_tokens = kTokens;
        MUST(gimlet_exchange_create(runtime, &config, &exchange));
        MUST(gimlet_routing_create(exchange, &routing));
    }
    ~Alone() {
        gimlet_routing_destroy(routing);
        gimlet_exchange_close(exchange);
        gimlet_exchange_destroy(exchange);
        gimlet_runtime_close(runtime);
        gimlet_runtime_destroy(runtime);
        gimlet_bootstrap_destroy(bootstrap);
    }
    Alone(const Alone&) = delete;
    Alone& operator=(const Alone&) = delete;

    gimlet_status dispatch(const gimlet_dispatch_inputs& from,
                           gimlet_received* received = nullptr) {
        return gimlet_dispatch(exchange, &from, routing, GIMLET_COUNTS_HOST, nullptr, received);
    }
};

template <typename T>
T* moved(T* pointer, std::size_t bytes) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
}

}  // namespace

TEST_CASE("what would end the CUDA context is refused", "[capi]") {
    const LogCapture quiet;
    Alone alone;
    const Memory<std::uint16_t> rows(std::vector<std::uint16_t>(2 * kTokens * kHidden, 0x3f80));
    const Memory<std::int32_t> experts(std::vector<std::int32_t>(2 * kTokens, 1));
    const Memory<float> weights(std::vector<float>(2 * kTokens, 1.0F));
    cudaSetDevice(1);
    const Memory<std::uint16_t> foreign(std::vector<std::uint16_t>(kTokens * kHidden, 0));
    cudaSetDevice(0);
    std::uint16_t host[64] = {};
    alone.inputs.rows = rows.get();
    alone.inputs.expert_indices = experts.get();
    alone.inputs.weights = weights.get();
    alone.inputs.token_count = kTokens;

    // A refused step has failed on all ranks; here there is one.
    const auto recover = [&](gimlet_status failure = GIMLET_INVALID_ARGUMENT) {
        CHECK(gimlet_exchange_check(alone.exchange) == failure);
        std::size_t needed = 0;
        CHECK(gimlet_exchange_recover(alone.exchange, nullptr, nullptr, 0, &needed) == GIMLET_OK);
        CHECK(needed > 1);
        CHECK(gimlet_exchange_check(alone.exchange) == GIMLET_OK);
    };
    const auto refused = [&](auto member, const void* pointer, const char* text) {
        gimlet_dispatch_inputs inputs = alone.inputs;
        inputs.*member = static_cast<std::remove_reference_t<decltype(inputs.*member)>>(pointer);
        CHECK(alone.dispatch(inputs) == GIMLET_INVALID_ARGUMENT);
        CHECK_THAT(last_error(), contains_text(text));
        recover();
    };
    refused(&gimlet_dispatch_inputs::rows, host, "not memory of the device");
    refused(&gimlet_dispatch_inputs::rows, reinterpret_cast<void*>(16), "not memory of the device");
    refused(&gimlet_dispatch_inputs::rows, moved(rows.get(), 8), "not a multiple of 16");
    refused(&gimlet_dispatch_inputs::rows, foreign.get(), "memory of device 1");
    refused(&gimlet_dispatch_inputs::rows, nullptr, "rows is null");
    refused(&gimlet_dispatch_inputs::expert_indices, moved(experts.get(), 2),
            "not a multiple of 4");
    refused(&gimlet_dispatch_inputs::expert_indices, foreign.get(), "memory of device 1");
    refused(&gimlet_dispatch_inputs::weights, moved(weights.get(), 1), "not a multiple of 4");
    refused(&gimlet_dispatch_inputs::weights, host, "weights is at address");
    refused(&gimlet_dispatch_inputs::scales, weights.get(), "the config has scale_words 0");

    // Another current device than the runtime's.
    cudaSetDevice(1);
    CHECK(alone.dispatch(alone.inputs) == GIMLET_INVALID_USAGE);
    CHECK_THAT(last_error(), contains_text("the current device is 1"));
    CHECK(gimlet_runtime_barrier(alone.runtime, nullptr, 1, 0) == GIMLET_INVALID_USAGE);
    cudaSetDevice(0);
    recover(GIMLET_INVALID_USAGE);
    CHECK(gimlet_runtime_barrier(alone.runtime, nullptr, 1, 0) == GIMLET_INVALID_USAGE);
    REQUIRE(gimlet_runtime_recover(alone.runtime, nullptr, nullptr, 0, nullptr) == GIMLET_OK);
    CHECK(gimlet_runtime_barrier(alone.runtime, nullptr, 1, 0) == GIMLET_OK);
    CHECK(gimlet_dispatch(alone.exchange, &alone.inputs, alone.routing, 2, nullptr, nullptr) ==
          GIMLET_INVALID_ARGUMENT);
    recover();

    gimlet_received received = gimlet_received_init();
    REQUIRE(alone.dispatch(alone.inputs, &received) == GIMLET_OK);
    void* answers = nullptr;
    REQUIRE(gimlet_combine_input(alone.exchange, &answers) == GIMLET_OK);

    // Outputs inside the window, where peers work.
    gimlet_unpack_outputs copies = gimlet_unpack_outputs_init();
    copies.capacity = kTokens;
    copies.rows = answers;
    CHECK(gimlet_unpack(alone.exchange, alone.routing, &copies, nullptr) ==
          GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("own window"));
    copies.rows = nullptr;
    copies.source = reinterpret_cast<std::int32_t*>(moved(rows.get(), 2));
    CHECK(gimlet_unpack(alone.exchange, alone.routing, &copies, nullptr) ==
          GIMLET_INVALID_ARGUMENT);
    copies.source = nullptr;
    copies.capacity = -1;
    CHECK(gimlet_unpack(alone.exchange, alone.routing, &copies, nullptr) ==
          GIMLET_INVALID_ARGUMENT);
    CHECK(gimlet_pack(alone.exchange, moved(answers, 16), alone.routing, nullptr) ==
          GIMLET_INVALID_ARGUMENT);
    CHECK_THAT(last_error(), contains_text("overlap the combine input"));
    CHECK(gimlet_pack(alone.exchange, host, alone.routing, nullptr) == GIMLET_INVALID_ARGUMENT);
    for (void* out : {static_cast<void*>(host), static_cast<void*>(foreign.get()),
                      static_cast<void*>(moved(rows.get(), 2)), answers}) {
        alone.combine.out = out;
        CHECK(gimlet_combine(alone.exchange, &alone.combine, alone.routing, nullptr) ==
              GIMLET_INVALID_ARGUMENT);
        recover();
        REQUIRE(alone.dispatch(alone.inputs, &received) == GIMLET_OK);
    }

    // Nothing is spoiled: received rows may be packed as they are.
    REQUIRE(gimlet_pack(alone.exchange, received.rows, alone.routing, nullptr) == GIMLET_OK);
    alone.combine.out = rows.get();
    REQUIRE(gimlet_combine(alone.exchange, &alone.combine, alone.routing, nullptr) == GIMLET_OK);
    REQUIRE(gimlet_exchange_synchronize(alone.exchange, nullptr) == GIMLET_OK);
    CHECK(rows.read() == std::vector<std::uint16_t>(2 * kTokens * kHidden, 0x3f80));
}

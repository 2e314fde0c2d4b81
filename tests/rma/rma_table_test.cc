// SPDX-License-Identifier: Apache-2.0
// The entries of the RMA plugin's table one by one: what they promise, what they refuse.
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "tests/rma/rma_world.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet::test;

namespace {

void* pointer(std::uint64_t value) {
    return reinterpret_cast<void*>(value);
}

constexpr std::size_t kBytes = 4096;

}  // namespace

TEST_CASE("rma: properties", "[rma]") {
    const auto& table = plugin_v14();
    CHECK(std::string(table.name) == "gimlet");
    int count = 0;
    REQUIRE(table.devices(&count) == abi::kSuccess);
    CHECK(count == 1);
    abi::NetProperties properties;
    std::memset(&properties, 0x5a, sizeof(properties));
    REQUIRE(table.get_properties(0, &properties) == abi::kSuccess);
    CHECK(std::string(properties.name) != "");
    CHECK(properties.pci_path == nullptr);
    CHECK(properties.guid != 0);
    CHECK(properties.pointer_support == 3);
    CHECK(properties.speed_mbps > 0);
    CHECK(properties.net_device_type == abi::kDeviceTypeGinProxy);
    // NCCL's queue index is masked by 32 * maxRecvs - 1.
    CHECK((properties.max_receives & (properties.max_receives - 1)) == 0);
    CHECK(properties.max_receives > 0);
    CHECK(properties.virtual_devices.count == 1);
    CHECK(properties.rail_id == -1);
    CHECK(properties.plane_id == -1);
    CHECK(table.get_properties(1, &properties) == abi::kInvalidArgument);
    CHECK(table.get_properties(0, nullptr) == abi::kInvalidArgument);
}

TEST_CASE("rma: the tables of both versions are complete", "[rma]") {
    void* const* v14 = reinterpret_cast<void* const*>(&plugin_v14());
    void* const* v13 = reinterpret_cast<void* const*>(&plugin_v13());
    for (int i = 0; i < 21; ++i) {
        CHECK(v14[i] != nullptr);
        CHECK(v13[i] != nullptr);
    }
}

TEST_CASE("rma: version 13 of the table moves data as version 14 does", "[rma]") {
    const std::string failures = run_ranks(2, RankKind::threads, [](RankWorld& world) {
        world.connect(1);
        const auto& table = plugin_v13();
        // Whatever depth is asked for: operations wait for room by themselves.
        abi::ConfigV13 config{1, 0, 2, 1024, 0};
        void* context = nullptr;
        void* device_handle = pointer(1);
        GIMLET_EXPECT(table.create_context(world.endpoint, &config, &context, &device_handle) == 0);
        Memory memory(kBytes, MemoryPlace::host);
        void* region = nullptr;
        void* device_region = nullptr;
        GIMLET_EXPECT(table.register_region(world.endpoint, memory.data(), kBytes, 1, 0, &region,
                                            &device_region) == 0);
        GIMLET_EXPECT(device_region == region);
        memory.data()[100] = static_cast<unsigned char>(7 + world.rank);
        world.barrier();
        void* request = nullptr;
        GIMLET_EXPECT(table.put_signal(context, 1, 100, region, 1, 200, region,
                                       static_cast<std::uint32_t>(1 - world.rank), 8, region, 1, 1,
                                       &request) == 0);
        world.finish(request);
        world.progress_until([&] { return memory.word(1) == 1; }, "the signal");
        GIMLET_EXPECT(memory.data()[200] == 7 + 1 - world.rank);
        GIMLET_EXPECT(table.destroy_context(context) == 0);
        world.barrier();
        world.close();
    });
    CHECK(failures == "");
}

TEST_CASE("rma: teardown in any order", "[rma]") {
    const auto kind = GENERATE(RankKind::threads, RankKind::processes);
    const std::string failures = run_ranks(3, kind, [](RankWorld& world) {
        world.connect(2);
        Memory memory(kBytes, MemoryPlace::host);
        void* region = world.register_region(memory.data(), kBytes, memory.type());
        void* request = nullptr;
        const auto& table = plugin_v14();
        const auto next = static_cast<std::uint32_t>((world.rank + 1) % world.size);
        GIMLET_EXPECT(table.put_signal(world.context, 0, 0, region, 64, 128, region, next, 8,
                                       region, 1, 1, true, &request) == 0);
        world.finish(request);
        world.progress_until([&] { return memory.word(1) == 1; }, "the signal");
        world.barrier();
        if (world.rank == 0) {
            // Communicator first, context never; its handle is dead then.
            GIMLET_EXPECT(table.close_endpoint(world.endpoint) == 0);
            GIMLET_EXPECT(table.progress(pointer(5)) != 0);
            world.endpoint = nullptr;
            GIMLET_EXPECT(table.destroy_context(world.context) != 0);
            world.context = nullptr;
        } else {
            GIMLET_EXPECT(table.destroy_context(world.context) == 0);
            world.context = nullptr;
            GIMLET_EXPECT(table.deregister_region(world.endpoint, region) == 0);
            GIMLET_EXPECT(table.deregister_region(world.endpoint, region) == abi::kInvalidArgument);
        }
    });
    CHECK(failures == "");
}

TEST_CASE("rma: a slow peer loses nothing", "[rma]") {
    const auto kind = GENERATE(RankKind::threads, RankKind::processes);
    const std::string failures = run_ranks(2, kind, [](RankWorld& world) {
        constexpr int kSignals = 6000;  // several times what the message queue holds
        world.connect(4);
        Memory memory(kBytes, MemoryPlace::host);
        void* region = world.register_region(memory.data(), kBytes, memory.type());
        const auto& table = plugin_v14();
        if (world.rank == 1) {
            usleep(200 * 1000);
            world.progress_until([&] { return memory.word(0) == kSignals; }, "all signals");
            world.barrier();
            world.close();
            return;
        }
        std::vector<void*> requests;
        for (int i = 0; i < kSignals; ++i) {
            void* request = nullptr;
            while (requests.size() >= 4 * 128) {
                world.progress();
                std::erase_if(requests, [&](void* r) { return world.test(r); });
            }
            GIMLET_EXPECT(table.put_signal(world.context, i % 4, 0, nullptr, 0, 0, nullptr, 1, 0,
                                           region, 1, 1, true, &request) == 0);
            requests.push_back(request);
        }
        for (void* request : requests) world.finish(request);
        world.barrier();
        world.close();
    });
    CHECK(failures == "");
}

TEST_CASE("rma: a killed peer is an error that names it, said once", "[rma]") {
    const std::string failures = run_ranks(
        3, RankKind::processes,
        [](RankWorld& world) {
            world.connect(1);
            Memory memory(kBytes, MemoryPlace::host);
            void* region = world.register_region(memory.data(), kBytes, memory.type());
            const auto& table = plugin_v14();
            world.barrier();
            if (world.rank == 1) (void)kill(getpid(), SIGKILL);
            clear_logged_warnings();
            bool has_error = false;
            int result = 0;
            world.progress_until(
                [&] {
                    void* request = nullptr;
                    result = table.put_signal(world.context, 0, 0, region, 64, 0, region, 1, 0,
                                              region, 1, 1, true, &request);
                    int done = 0;
                    while (result == 0 && done == 0) {
                        result = table.test(world.endpoint, request, &done);
                        GIMLET_EXPECT(table.progress(world.context) == 0);
                    }
                    return result != 0;
                },
                "the error");
            GIMLET_EXPECT(result == abi::kRemoteError);
            GIMLET_EXPECT(table.query_last_error(world.context, &has_error) == 0);
            GIMLET_EXPECT(has_error);
            GIMLET_EXPECT(logged_warnings("rank 1") == 1);
            // The others still reach each other.
            void* request = nullptr;
            GIMLET_EXPECT(table.put_signal(world.context, 0, 0, nullptr, 0, 0, nullptr,
                                           static_cast<std::uint32_t>(2 - world.rank), 64, region,
                                           5, 2, true, &request) == 0);
            world.progress_until([&] { return memory.word(8) == 5; }, "a signal of the other rank");
            world.barrier(2);
        },
        {1});
    CHECK(failures == "");
}

TEST_CASE("rma: a peer that never registers is a timeout that names it", "[rma]") {
    (void)setenv("GIMLET_RMA_TIMEOUT_MS", "300", 1);
    const auto kind = GENERATE(RankKind::threads, RankKind::processes);
    const std::string failures = run_ranks(2, kind, [](RankWorld& world) {
        world.connect(1);
        clear_logged_warnings();
        world.barrier();
        if (world.rank == 0) {
            Memory memory(kBytes, MemoryPlace::host);
            void* region = nullptr;
            GIMLET_EXPECT(plugin_v14().register_region(world.endpoint, memory.data(), kBytes, 1, 0,
                                                       &region) == abi::kRemoteError);
            GIMLET_EXPECT(logged_warnings("rank 1") == 1);
        }
        world.barrier();
        world.close();
    });
    (void)unsetenv("GIMLET_RMA_TIMEOUT_MS");
    CHECK(failures == "");
}

namespace {

/// Calls with one thing wrong, or everything. Whatever is not valid must be refused.
struct Fuzzer {
    RankWorld& world;
    Random random;
    void* region;
    std::size_t bytes;

    std::uint64_t wild_handle() {
        const auto good = reinterpret_cast<std::uint64_t>(region);
        switch (random.below(5)) {
            case 0: return 0;
            case 1: return random.next();
            case 2: return good ^ 1ull << random.below(64);
            case 3: return good + 1 + random.below(100);
            default: return random.below(1 << 20);
        }
    }
    std::uint64_t wild_offset(std::uint64_t size) {
        switch (random.below(4)) {
            case 0: return bytes - size + 1 + random.below(64);
            case 1: return ~std::uint64_t{0} - random.below(2 * bytes);
            case 2: return random.next() | 1ull << 40;
            default: return bytes + random.below(1 << 20);
        }
    }
    std::uint64_t wild_size() {
        return random.below(2) == 0 ? bytes + 1 + random.below(bytes)
                                    : ~std::uint64_t{0} - random.below(bytes);
    }

    int call() {
        const auto& table = plugin_v14();
        void* source = region;
        void* target = region;
        std::uint64_t source_offset = 0, target_offset = 0, size = 1 + random.below(256);
        std::uint64_t signal_offset = 8 * random.below(bytes / 8);
        void* signal = region;
        std::uint32_t rank = static_cast<std::uint32_t>(1 - world.rank), op = 1;
        int context = 0;
        void* rma_context = world.context;
        const std::uint64_t kind = random.below(3);
        const std::uint64_t flaw = random.below(kind == 1 ? 11 : 8);
        switch (flaw) {
            case 0: source = pointer(wild_handle()); break;
            case 1: target = pointer(wild_handle()); break;
            case 2: source_offset = wild_offset(size); break;
            case 3: target_offset = wild_offset(size); break;
            case 4: size = wild_size(); break;
            case 5: rank = static_cast<std::uint32_t>(2 + random.below(0xfffffffd)); break;
            case 6:
                context = random.below(2) == 0 ? -1 - static_cast<int>(random.below(1000)) : 1;
                break;
            case 7: rma_context = pointer(random.next()); break;
            case 8: signal = pointer(wild_handle()); break;
            case 9:
                signal_offset = random.below(2) == 0 ? wild_offset(8)
                                                     : 8 * random.below(100) + 1 + random.below(7);
                break;
            default: op = static_cast<std::uint32_t>(3 + random.below(1000)); break;
        }
        void* request = pointer(0x77);
        int result = 0;
        if (kind == 0) {
            result = table.put(rma_context, context, source_offset, source, size, target_offset,
                               target, rank, &request);
        } else if (kind == 1) {
            result =
                table.put_signal(rma_context, context, source_offset, source, size, target_offset,
                                 target, rank, signal_offset, signal, 1, op, true, &request);
        } else {
            result = table.get(rma_context, context, source_offset, source, size, target_offset,
                               target, rank, &request);
        }
        expect(request == pointer(0x77), "a refused call leaves the request alone");
        return result;
    }
};

}  // namespace

TEST_CASE("rma: wrong handles, offsets and sizes are refused, and nothing is written", "[rma]") {
    const auto kind = GENERATE(RankKind::threads, RankKind::processes);
    const std::string failures = run_ranks(2, kind, [](RankWorld& world) {
        world.connect(1);
        Memory memory(3 * kBytes, MemoryPlace::host);
        std::memset(memory.data(), 0x3c, memory.bytes());
        // The middle is registered, the rest is there to be hit.
        void* region = world.register_region(memory.data() + kBytes, kBytes, memory.type());
        world.barrier();
        Fuzzer fuzzer{world, Random(static_cast<std::uint64_t>(world.rank) + 99), region, kBytes};
        for (int i = 0; i < 3000; ++i) {
            GIMLET_EXPECT(fuzzer.call() != 0);
            int done = 1;
            GIMLET_EXPECT(plugin_v14().test(world.endpoint, pointer(fuzzer.random.next()), &done) !=
                          0);
            GIMLET_EXPECT(done == 0);
            if (i % 64 == 0) world.progress();
        }
        const auto& table = plugin_v14();
        void* out = nullptr;
        GIMLET_EXPECT(table.register_region(world.endpoint, nullptr, 8, 1, 0, &out) != 0);
        GIMLET_EXPECT(table.register_region(world.endpoint, memory.data(), 0, 1, 0, &out) != 0);
        GIMLET_EXPECT(table.register_region(world.endpoint, memory.data(), 8, 3, 0, &out) != 0);
        GIMLET_EXPECT(table.register_region(world.endpoint, memory.data(), ~0ull, 1, 0, &out) != 0);
        GIMLET_EXPECT(table.register_region(pointer(123), memory.data(), 8, 1, 0, &out) != 0);
        GIMLET_EXPECT(table.register_dmabuf(world.endpoint, memory.data(), 8, 1, 0, 0, 0, &out) !=
                      0);
        GIMLET_EXPECT(table.deregister_region(world.endpoint, pointer(fuzzer.wild_handle())) != 0);
        abi::ConfigV14 config{0, 0, 1};
        GIMLET_EXPECT(table.create_context(world.endpoint, &config, &out) != 0);
        GIMLET_EXPECT(table.create_context(world.endpoint, nullptr, &out) != 0);
        GIMLET_EXPECT(table.flush(world.context, 1, nullptr, 0, &out) != 0);
        world.barrier();
        for (std::size_t i = 0; i < memory.bytes(); ++i) GIMLET_EXPECT(memory.data()[i] == 0x3c);
        world.barrier();
        // And it still works.
        void* request = nullptr;
        GIMLET_EXPECT(table.put(world.context, 0, 0, region, 8, 16, region,
                                static_cast<std::uint32_t>(1 - world.rank), &request) == 0);
        world.finish(request);
        GIMLET_EXPECT(table.flush(world.context, 0, nullptr, 0, &request) == 0);
        GIMLET_EXPECT(request == nullptr);
        world.barrier();
        world.close();
    });
    CHECK(failures == "");
}

TEST_CASE("rma: a forced engine that cannot connect the ranks is refused", "[rma]") {
    (void)setenv("GIMLET_RMA_ENGINE", "loopback", 1);
    const std::string failures = run_ranks(2, RankKind::processes, [](RankWorld& world) {
        try {
            world.connect(1);
        } catch (const std::runtime_error&) {
            GIMLET_EXPECT(logged_warnings("GIMLET_RMA_ENGINE") > 0);
            return;
        }
        throw std::runtime_error("two processes were joined by loopback");
    });
    (void)unsetenv("GIMLET_RMA_ENGINE");
    CHECK(failures == "");
}

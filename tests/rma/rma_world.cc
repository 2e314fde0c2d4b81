// SPDX-License-Identifier: Apache-2.0
#include "tests/rma/rma_world.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/rma/fake_cuda.hpp"

namespace gimlet::test {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

thread_local int current_device = 0;
std::mutex log_mutex;
std::vector<std::string> log_lines;

void collect_log(int level, unsigned long, const char*, int, const char* format, ...) {
    if (level > abi::kLogWarn) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    (void)std::vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (std::getenv("GIMLET_RMA_TEST_LOG") != nullptr) (void)std::fprintf(stderr, "%s\n", text);
    const std::lock_guard lock(log_mutex);
    log_lines.emplace_back(text);
}

void* library(const char* path) {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return handle;
}

void* plugin_library() {
    static void* const handle = [] {
        // The plugin reads its environment once it is used.
        (void)setenv("GIMLET_RMA_CUDA_LIBRARY", GIMLET_FAKE_CUDA_FILE, 1);
        (void)setenv("NCCL_DEBUG", "WARN", 1);
        return library(GIMLET_RMA_PLUGIN_FILE);
    }();
    return handle;
}

void* fake_symbol(const char* name) {
    static void* const handle = library(GIMLET_FAKE_CUDA_FILE);
    return dlsym(handle, name);
}

void record_failure(SharedWorld* shared, int rank, const char* text) {
    auto& place = shared->failure[static_cast<std::size_t>(rank)];
    (void)std::snprintf(place.data(), place.size(), "%s", text);
    shared->failed.fetch_add(1);
}

void run_rank(SharedWorld* shared, int rank, int size,
              const std::function<void(RankWorld&)>& body) {
    RankWorld world(shared, rank, size);
    try {
        body(world);
    } catch (const std::exception& error) {
        record_failure(shared, rank, error.what());
        // Peers still write, and memory is left to them: no orderly end after a failure.
        world.context = world.endpoint = world.session = nullptr;
    }
}

std::string wait_for_processes(const std::vector<pid_t>& children,
                               const std::vector<int>& may_die) {
    std::string failures;
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
        int status = 0;
        (void)waitpid(children[rank], &status, 0);
        bool expected = status == 0;
        for (const int doomed : may_die) expected |= doomed == static_cast<int>(rank);
        if (!expected) {
            failures += "rank " + std::to_string(rank) + " ended with status " +
                        std::to_string(status) + "\n";
        }
    }
    return failures;
}

}  // namespace

const abi::TableV14& plugin_v14() {
    return *static_cast<const abi::TableV14*>(dlsym(plugin_library(), "ncclRmaPlugin_v14"));
}

const abi::TableV13& plugin_v13() {
    return *static_cast<const abi::TableV13*>(dlsym(plugin_library(), "ncclRmaPlugin_v13"));
}

void expect(bool condition, const std::string& what) {
    if (!condition) throw std::runtime_error("not so: " + what);
}

int logged_warnings(const std::string& part) {
    const std::lock_guard lock(log_mutex);
    int count = 0;
    for (const std::string& line : log_lines) count += line.find(part) != std::string::npos ? 1 : 0;
    return count;
}

void clear_logged_warnings() {
    const std::lock_guard lock(log_mutex);
    log_lines.clear();
}

RankWorld::~RankWorld() {
    const abi::TableV14& table = plugin_v14();
    if (context != nullptr) (void)table.destroy_context(context);
    if (endpoint != nullptr) (void)table.close_endpoint(endpoint);
    if (session != nullptr) (void)table.finalize(session);
}

void RankWorld::connect(int context_count) {
    const abi::TableV14& table = plugin_v14();
    GIMLET_EXPECT(table.init(&session, 77, collect_log) == abi::kSuccess);
    void* listener = nullptr;
    auto& handles = shared->handles;
    GIMLET_EXPECT(table.listen(session, 0, handles[static_cast<std::size_t>(rank)].data(),
                               &listener) == abi::kSuccess);
    barrier();
    void* pointers[kMaxWorldRanks];
    for (int i = 0; i < size; ++i) pointers[i] = handles[static_cast<std::size_t>(i)].data();
    // NCCL's host RMA passes a context of another plugin here.
    GIMLET_EXPECT(table.connect(reinterpret_cast<void*>(0xbad), pointers, size, rank, listener,
                                &endpoint) == abi::kSuccess);
    GIMLET_EXPECT(table.close_listener(listener) == abi::kSuccess);
    abi::ConfigV14 config{context_count, 0, 1};
    GIMLET_EXPECT(table.create_context(endpoint, &config, &context) == abi::kSuccess);
    barrier();
}

void* RankWorld::register_region(void* memory, std::size_t bytes, int type, std::uint64_t flags) {
    void* region = nullptr;
    GIMLET_EXPECT(plugin_v14().register_region(endpoint, memory, bytes, type, flags, &region) ==
                  abi::kSuccess);
    GIMLET_EXPECT(region != nullptr);
    GIMLET_EXPECT(reinterpret_cast<std::uint64_t>(region) >> 63 == 0);
    return region;
}

void RankWorld::barrier(int ranks) {
    const auto wanted = static_cast<std::uint32_t>(ranks < 0 ? size : ranks);
    const std::uint32_t round = shared->round.load();
    if (shared->arrived.fetch_add(1) + 1 == wanted) {
        shared->arrived.store(0);
        shared->round.fetch_add(1);
        return;
    }
    const auto start = Clock::now();
    while (shared->round.load() == round) {
        expect(shared->failed.load() == 0, "another rank failed");
        expect(Clock::now() - start < kPatience, "the other ranks came to the barrier");
        // Others may need us to deliver what they wait for.
        if (context != nullptr) (void)plugin_v14().progress(context);
        sched_yield();
    }
}

void RankWorld::progress() {
    GIMLET_EXPECT(plugin_v14().progress(context) == abi::kSuccess);
    expect(shared->failed.load() == 0, "another rank failed");
    sched_yield();
}

void RankWorld::progress_until(const std::function<bool()>& condition, const std::string& what) {
    const auto start = Clock::now();
    while (!condition()) {
        progress();
        expect(Clock::now() - start < kPatience, what + " within a minute");
    }
}

bool RankWorld::test(void* request) {
    int done = -1;
    GIMLET_EXPECT(plugin_v14().test(endpoint, request, &done) == abi::kSuccess);
    GIMLET_EXPECT(done == 0 || done == 1);
    return done == 1;
}

void RankWorld::finish(void* request) {
    progress_until([&] { return test(request); }, "a request is done");
}

void RankWorld::close() {
    const abi::TableV14& table = plugin_v14();
    GIMLET_EXPECT(table.destroy_context(context) == abi::kSuccess);
    context = nullptr;
    GIMLET_EXPECT(table.close_endpoint(endpoint) == abi::kSuccess);
    endpoint = nullptr;
    GIMLET_EXPECT(table.finalize(session) == abi::kSuccess);
    session = nullptr;
}

void use_device(int device) {
    current_device = device;
}

Memory::Memory(std::size_t bytes, MemoryPlace place, bool exportable)
    : bytes_(bytes), place_(place) {
    void* memory = nullptr;
    if (place == MemoryPlace::device) {
        (void)plugin_library();
        memory = reinterpret_cast<decltype(&fake_cuda_alloc)>(fake_symbol("fake_cuda_alloc"))(
            bytes, exportable ? 1 : 0, current_device);
    } else {
        memory = std::calloc(1, bytes);
    }
    if (memory == nullptr) throw std::bad_alloc();
    data_ = static_cast<unsigned char*>(memory);
}

Memory::~Memory() {
    if (std::uncaught_exceptions() > 0) return;  // peers may still write into it
    if (place_ == MemoryPlace::host) {
        std::free(data_);
        return;
    }
    reinterpret_cast<decltype(&fake_cuda_free)>(fake_symbol("fake_cuda_free"))(data_, bytes_);
}

int Memory::type() const noexcept {
    return place_ == MemoryPlace::host ? abi::kPointerHost : abi::kPointerCuda;
}

std::uint64_t Memory::word(std::size_t index) const noexcept {
    return std::atomic_ref(*(reinterpret_cast<std::uint64_t*>(data_) + index))
        .load(std::memory_order_acquire);
}

std::string run_ranks(int size, RankKind kind, const std::function<void(RankWorld&)>& body,
                      const std::vector<int>& may_die) {
    void* memory = mmap(nullptr, sizeof(SharedWorld), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    auto* shared = static_cast<SharedWorld*>(memory);
    std::string failures;
    if (kind == RankKind::threads) {
        std::vector<std::thread> threads;
        for (int rank = 0; rank < size; ++rank) {
            threads.emplace_back([=, &body] { run_rank(shared, rank, size, body); });
        }
        for (std::thread& thread : threads) thread.join();
    } else {
        std::vector<pid_t> children;
        (void)std::fflush(nullptr);
        for (int rank = 0; rank < size; ++rank) {
            const pid_t child = fork();
            if (child == 0) {
                run_rank(shared, rank, size, body);
                _exit(0);  // the test program's own end is the parent's
            }
            children.push_back(child);
        }
        failures = wait_for_processes(children, may_die);
    }
    for (int rank = 0; rank < size; ++rank) {
        const char* text = shared->failure[static_cast<std::size_t>(rank)].data();
        if (*text != 0) failures += "rank " + std::to_string(rank) + ": " + text + "\n";
    }
    (void)munmap(memory, sizeof(SharedWorld));
    return failures;
}

}  // namespace gimlet::test

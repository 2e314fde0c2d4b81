// SPDX-License-Identifier: Apache-2.0
// Fault plans (GIMLET_RMA_FAULT) and ranks that reach each other over UCX only.
#include <dlfcn.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/rma/rma_player.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet::test;

namespace {

/// A variable for the life of the object; children inherit it.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) {
        (void)setenv(name, value.c_str(), 1);
    }
    ~Variable() { (void)unsetenv(name_); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

  private:
    const char* name_;
};

/// A plan file for the life of the object.
class PlanFile {
  public:
    explicit PlanFile(const std::string& text)
        : path_("/tmp/gimlet-rma-plan-" + std::to_string(getpid()) + ".json") {
        std::ofstream(path_) << text;
        variable_ = std::make_unique<Variable>("GIMLET_RMA_FAULT", path_);
    }
    ~PlanFile() { (void)unlink(path_.c_str()); }

  private:
    std::string path_;
    std::unique_ptr<Variable> variable_;
};

bool has_ucx() {
#if defined(__SANITIZE_THREAD__)
    // UCX is not instrumented: its hooks in the allocator end in the sanitizer.
    WARN("skipped: UCX and ThreadSanitizer");
    return false;
#else
    void* library = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) WARN("skipped: libucp.so.0 is not installed");
    return library != nullptr;
#endif
}

/// Root with the right to make network namespaces, and the `ip` tool.
bool can_make_namespaces() {
    const pid_t child = fork();
    if (child == 0)
        _exit(unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
                      std::system("ip link >/dev/null 2>&1") == 0
                  ? 0
                  : 1);
    int status = 1;
    (void)waitpid(child, &status, 0);
    if (status != 0) WARN("skipped: no right to make network namespaces, or no `ip`");
    return status == 0;
}

}  // namespace

TEST_CASE("rma: delays, reordering and splitting keep every promise", "[rma]") {
    const PlanFile plan(R"({"reorder": 0.5, "split": 0.5, "near_wrap": true,
                            "delay": {"chance": 0.2, "min": "5us", "mean": "100us"}})");
    play({3, RankKind::threads, MemoryPlace::host, 31, 200});
    play({2, RankKind::processes, MemoryPlace::device, 32, 200});
}

TEST_CASE("rma: a slow rank and a late rank are waited for", "[rma]") {
    const PlanFile plan(
        R"({"slow": {"rank": 0, "factor": 5}, "late_rank": {"rank": 1, "time": "50ms"}})");
    play({2, RankKind::threads, MemoryPlace::host, 33, 200});
}

TEST_CASE("rma: a put that is lost is done locally, and what follows it is lost too", "[rma]") {
    const PlanFile plan(R"({"fail_put": {"rank": 0, "number": 3}})");
    const std::string failures = run_ranks(2, RankKind::threads, [](RankWorld& world) {
        world.connect(2);
        Memory memory(4096, MemoryPlace::host);
        void* region = world.register_region(memory.data(), memory.bytes(), memory.type());
        const auto send = [&](int context, std::uint64_t offset) {
            void* request = nullptr;
            GIMLET_EXPECT(plugin_v14().put_signal(world.context, context, 0, nullptr, 0, 0, nullptr,
                                                  1, offset, region, 1, 1, true, &request) == 0);
            world.finish(request);
        };
        if (world.rank == 0) {
            for (int i = 0; i < 5; ++i) send(0, 0);  // the third breaks the connection
            send(1, 8);                              // another context goes on
        } else {
            world.progress_until([&] { return memory.word(1) == 1; }, "the other context's signal");
            GIMLET_EXPECT(memory.word(0) == 2);
        }
        world.barrier();
        world.close();
    });
    CHECK(failures == "");
}

TEST_CASE("rma: a rank that stops is silent", "[rma]") {
    const PlanFile plan(R"({"stop_rank": {"rank": 0, "step": 2}})");
    const std::string failures = run_ranks(2, RankKind::threads, [](RankWorld& world) {
        world.connect(1);
        Memory memory(4096, MemoryPlace::host);
        void* region = world.register_region(memory.data(), memory.bytes(), memory.type());
        for (int i = 0; i < 3 && world.rank == 0; ++i) {
            void* request = nullptr;
            GIMLET_EXPECT(plugin_v14().put_signal(world.context, 0, 0, nullptr, 0, 0, nullptr, 1, 0,
                                                  region, 1, 1, true, &request) == 0);
            world.progress();
            GIMLET_EXPECT(world.test(request) == (i < 1));
        }
        world.barrier();
        for (int i = 0; i < 200; ++i) world.progress();
        GIMLET_EXPECT(memory.word(0) == (world.rank == 0 ? 0 : 1));
        world.barrier();
        world.close();
    });
    CHECK(failures == "");
}

TEST_CASE("rma: a plan with an unknown field or a time without unit is refused", "[rma]") {
    const char* text =
        GENERATE(R"({"reorderr": 1})", R"({"delay": {"mean": 5}})", R"({"split": 2})", "[");
    const PlanFile plan(text);
    INFO(text);
    clear_logged_warnings();
    const std::string failures = run_ranks(1, RankKind::threads, [](RankWorld& world) {
        try {
            world.connect(1);
        } catch (const std::runtime_error&) {
            GIMLET_EXPECT(logged_warnings("gimlet-rma-plan") == 1);
            return;
        }
        throw std::runtime_error("the plan was taken");
    });
    CHECK(failures == "");
}

TEST_CASE("rma: random operations over UCX", "[rma]") {
    if (!has_ucx()) return;
    const Variable engine("GIMLET_RMA_ENGINE", "ucx");
    play({2, RankKind::processes, MemoryPlace::host, 41, 300});
    play({3, RankKind::processes, MemoryPlace::device, 42, 150});
    play({2, RankKind::threads, MemoryPlace::host, 43, 200});
}

TEST_CASE("rma: two network namespaces over veth", "[rma]") {
    if (!has_ucx() || !can_make_namespaces()) return;
    const Shape shape{2, RankKind::processes, MemoryPlace::host, 51, 200};
    const std::string failures = run_ranks(2, RankKind::processes, [&](RankWorld& world) {
        const std::string mine = world.rank == 0 ? "gimlet0" : "gimlet1";
        const auto run = [](const std::string& command) {
            expect(std::system(command.c_str()) == 0, command + " succeeds");
        };
        // UCX finds interfaces in /sys, which shows the namespace that it was mounted in.
        GIMLET_EXPECT(unshare(CLONE_NEWNET | CLONE_NEWNS) == 0);
        GIMLET_EXPECT(mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
        GIMLET_EXPECT(mount("sysfs", "/sys", "sysfs", 0, nullptr) == 0);
        world.shared->words[static_cast<std::size_t>(world.rank)].store(
            static_cast<std::uint64_t>(getpid()));
        world.barrier();
        if (world.rank == 0) {
            run("ip link add gimlet0 type veth peer name gimlet1 netns " +
                std::to_string(world.shared->words[1].load()));
        }
        world.barrier();
        run("ip link set lo up");
        run("ip addr add 10.77.0." + std::to_string(world.rank + 1) + "/24 dev " + mine);
        run("ip link set " + mine + " up");
        const Variable interface("GIMLET_RMA_INTERFACE", mine);
        const Variable devices("UCX_NET_DEVICES", mine);
        // The kernel says «running» a while after both ends are up, and UCX looks at that.
        run("timeout 10 sh -c 'until grep -q up /sys/class/net/" + mine +
            "/operstate; do sleep 0.02; done'");
        world.barrier();
        play_rank(world, shape);  // the engine is chosen, not forced
    });
    CHECK(failures == "");
}

// SPDX-License-Identifier: Apache-2.0
// Ranks that drive the RMA plugin's table as NCCL does: threads of this process, or processes of
// their own.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/rma_plugin/abi.hpp"

namespace gimlet::test {

namespace abi = gimlet::rma::abi;

inline constexpr int kMaxWorldRanks = 8;

enum class RankKind { threads, processes };
enum class MemoryPlace { host, device };

/// The table, loaded from the library file by dlopen.
const abi::TableV14& plugin_v14();
const abi::TableV13& plugin_v13();

/// Raises std::runtime_error with the condition's text; works in child processes, where Catch does
/// not.
void expect(bool condition, const std::string& what);
#define GIMLET_EXPECT(condition) \
    ((condition)                 \
         ? void()                \
         : ::gimlet::test::expect(false, #condition " at line " + std::to_string(__LINE__)))

/// What all ranks share: lives in shared memory. Zero is the start.
struct SharedWorld {
    std::array<std::array<char, abi::kHandleBytes>, kMaxWorldRanks> handles;
    std::atomic<std::uint32_t> arrived;
    std::atomic<std::uint32_t> round;
    std::atomic<std::uint32_t> failed;
    std::array<std::array<char, 512>, kMaxWorldRanks> failure;
    std::array<std::atomic<std::uint64_t>, 64> words;  ///< for the test's own use
};

/// One rank's view. Methods that are collective say so.
class RankWorld {
  public:
    RankWorld(SharedWorld* shared, int rank, int size) : rank(rank), size(size), shared(shared) {}
    ~RankWorld();

    /// Collective: listen, connect, close the listener, one context set of `context_count`.
    void connect(int context_count);
    /// Collective. Returns the handle.
    void* register_region(void* memory, std::size_t bytes, int type, std::uint64_t flags = 0);
    /// Collective over those that still take part, outside the plugin. `ranks` < 0 = all.
    void barrier(int ranks = -1);
    /// Progress of the plugin and a look at the watch: fails after 60 s without change.
    void progress();
    void progress_until(const std::function<bool()>& condition, const std::string& what);
    /// True once.
    bool test(void* request);
    void finish(void* request);
    void close();

    const int rank;
    const int size;
    SharedWorld* const shared;
    void* session = nullptr;
    void* endpoint = nullptr;
    void* context = nullptr;
};

/// Device of the calling thread's Memory from now on; 0 at first.
void use_device(int device);

/// Zeroed memory that the plugin can register as `place`; device memory comes from the stand-in
/// driver.
class Memory {
  public:
    Memory(std::size_t bytes, MemoryPlace place, bool exportable = true);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    unsigned char* data() const noexcept { return data_; }
    std::size_t bytes() const noexcept { return bytes_; }
    int type() const noexcept;
    std::uint64_t word(std::size_t index) const noexcept;  ///< acquire

  private:
    unsigned char* data_;
    std::size_t bytes_;
    MemoryPlace place_;
};

/// Runs `body` on all ranks and returns the failures, empty if there were none. Ranks that die are
/// failures unless listed in `may_die`.
std::string run_ranks(int size, RankKind kind, const std::function<void(RankWorld&)>& body,
                      const std::vector<int>& may_die = {});

/// Calls of the logger that was given to init, in this process, at warning level.
int logged_warnings(const std::string& part);
void clear_logged_warnings();

/// Small, fast, the same everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 0x1234567) {}
    std::uint64_t next() noexcept {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ z >> 27) * 0x94d049bb133111ebull;
        return z ^ z >> 31;
    }
    std::uint64_t below(std::uint64_t limit) noexcept { return next() % limit; }

  private:
    std::uint64_t state_;
};

}  // namespace gimlet::test

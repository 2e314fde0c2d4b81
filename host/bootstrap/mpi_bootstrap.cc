// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/mpi_bootstrap.hpp"

#include <mpi.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/base/checked_math.hpp"
#include "host/base/deadline.hpp"
#include "host/base/env.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"

namespace gimlet {

namespace {

void mpi_check(int result, const char* what, int rank) {
    if (result == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(result, text, &length);
    raise(ErrorCode::mpi, rank, "{} failed: {}", what, text);
}

bool mpi_is_running() {
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    return initialized != 0 && finalized == 0;
}

int comm_rank(MPI_Comm comm) {
    int rank = 0;
    mpi_check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank", kNoRank);
    return rank;
}

int comm_size(MPI_Comm comm) {
    int size = 0;
    mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size", kNoRank);
    return size;
}

/// Runs `done` until it is true or the deadline has passed; whether it became true.
template <typename Done>
bool poll_until(std::chrono::steady_clock::time_point deadline, const Done& done) {
    constexpr auto kBusyTime = std::chrono::milliseconds(10);
    constexpr auto kNap = std::chrono::microseconds(100);
    const auto start = std::chrono::steady_clock::now();
    while (!done()) {
        const auto now = std::chrono::steady_clock::now();
        if (now >= deadline) return false;
        if (now - start < kBusyTime) {
            std::this_thread::yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
    }
    return true;
}

std::uint64_t timeout_ns_from_env() {
    return static_cast<std::uint64_t>(env_int(EnvVar::bootstrap_timeout_ms)) * 1'000'000;
}

/// One all-gather: a message to and from every other rank. MPI may touch it for as long as a
/// request is open.
struct Round {
    std::vector<std::byte> send;
    std::vector<std::byte> receive;
    std::vector<int> peers;             // ranks in the bootstrap
    std::vector<MPI_Request> requests;  // receives by peer, then sends by peer
};

/// Some ranks of a communicator. Messages between pairs and no collectives of MPI: those have no
/// deadline, and they need ranks that may be dead.
class MpiBootstrap final : public Bootstrap {
  public:
    /// `members` are ranks of `comm`. Groups that share ranks of a communicator need a `tag` each.
    MpiBootstrap(MPI_Comm comm, std::vector<int> members, int index, int tag)
        : Bootstrap(index, static_cast<int>(members.size())),
          comm_(comm),
          members_(std::move(members)),
          tag_(tag),
          timeout_ns_(timeout_ns_from_env()) {}

    // MPI_Comm_free is collective, and a destructor must not wait for other ranks. The handle is a
    // few hundred bytes, and MPI_Finalize takes it.
    ~MpiBootstrap() override = default;

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        if (failure_) raise_text(failure_code_, rank(), *failure_);
        const int count = narrow<int>(bytes, "MPI all-gather bytes per rank", rank());
        auto round = std::make_unique<Round>();
        try {
            start(round.get(), send, count);
            finish(round.get(), count);
        } catch (const Error& error) {
            failure_ = error.message();
            failure_code_ = error.code();
            // A message may still come.
            (void)round.release();
            throw;
        }
        if (bytes > 0) std::memcpy(receive, round->receive.data(), round->receive.size());
    }

    void barrier() override {
        const std::byte one{1};
        (void)Bootstrap::all_gather(&one, 1);
    }

    std::unique_ptr<Bootstrap> split(int color, int key) override {
        const std::vector<int> members = split_members(color, key);
        const int salt = tag_ + kSplitSalt * ++split_count_;
        return color == kNoColor ? nullptr : part(members, salt);
    }

    /// Needs no message. Whoever names the same ranks meets here, from whichever earlier group of
    /// the communicator: of those that excluded others, some may have come further than the rest.
    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        return part(ranks, 0);
    }

  private:
    static constexpr int kSplitSalt = 65537;

    std::unique_ptr<Bootstrap> part(std::span<const int> ranks, int salt) const {
        // The standard promises tags up to 32767; 0 is the whole communicator's.
        constexpr std::uint64_t kTags = 32767;
        std::vector<int> members;
        for (const int r : ranks) members.push_back(members_[static_cast<std::size_t>(r)]);
        std::vector<int> name = members;
        name.push_back(salt);
        const auto hash = hash_bytes(name.data(), name.size() * sizeof(int));
        const auto me = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
        return std::make_unique<MpiBootstrap>(comm_, std::move(members), static_cast<int>(me),
                                              static_cast<int>(1 + hash % kTags));
    }

    void start(Round* round, const void* send, int count) const {
        const auto bytes = static_cast<std::size_t>(count);
        const auto parts = static_cast<std::size_t>(size());
        round->send.resize(bytes);
        round->receive.resize(checked_mul(bytes, parts, "all-gather bytes", rank()));
        const auto slot = [&](int r) {
            return round->receive.data() + static_cast<std::size_t>(r) * bytes;
        };
        if (bytes > 0) {
            std::memcpy(round->send.data(), send, bytes);
            std::memcpy(slot(rank()), send, bytes);
        }
        for (int r = 1; r < size(); ++r) round->peers.push_back((rank() + r) % size());
        round->requests.assign(2 * round->peers.size(), MPI_REQUEST_NULL);
        auto request = round->requests.begin();
        for (const int peer : round->peers) {
            mpi_check(MPI_Irecv(slot(peer), count, MPI_BYTE, member(peer), tag_, comm_, &*request),
                      "MPI_Irecv", rank());
            ++request;
        }
        for (const int peer : round->peers) {
            mpi_check(MPI_Isend(round->send.data(), count, MPI_BYTE, member(peer), tag_, comm_,
                                &*request),
                      "MPI_Isend", rank());
            ++request;
        }
    }

    void finish(Round* round, int count) const {
        std::vector<MPI_Status> states(round->requests.size());
        const bool done = poll_until(deadline_after(timeout_ns_), [&] {
            int all = 0;
            const int result = MPI_Testall(static_cast<int>(round->requests.size()),
                                           round->requests.data(), &all, states.data());
            if (result == MPI_ERR_IN_STATUS) raise_first(*round, states);
            mpi_check(result, "MPI_Testall", rank());
            return all != 0;
        });
        if (!done) raise_missing(round);
        for (std::size_t i = 0; i < round->peers.size(); ++i) {
            int got = 0;
            MPI_Get_count(&states[i], MPI_BYTE, &got);
            if (got != count) raise_size(round->peers[i], count);
        }
    }

    [[noreturn]] void raise_first(const Round& round, const std::vector<MPI_Status>& states) const {
        for (std::size_t i = 0; i < states.size(); ++i) {
            const int result = states[i].MPI_ERROR;
            if (result == MPI_SUCCESS || result == MPI_ERR_PENDING) continue;
            const int peer = round.peers[i % round.peers.size()];
            int kind = MPI_SUCCESS;
            MPI_Error_class(result, &kind);
            if (kind == MPI_ERR_TRUNCATE) raise_size(peer, static_cast<int>(round.send.size()));
            mpi_check(result, fmt::format("a message of rank {}", member(peer)).c_str(), rank());
        }
        raise(ErrorCode::mpi, rank(), "MPI_Testall failed and does not say why");
    }

    [[noreturn]] void raise_size(int peer, int count) const {
        raise(ErrorCode::config_mismatch, rank(),
              "all-gather: rank {} brought another number of bytes than rank {}, which brought "
              "{} B; ranks must make the same calls in the same order",
              member(peer), member(rank()), count);
    }

    [[noreturn]] void raise_missing(Round* round) const {
        std::vector<int> missing;
        for (std::size_t i = 0; i < round->requests.size(); ++i) {
            int done = 0;
            MPI_Test(&round->requests[i], &done, MPI_STATUS_IGNORE);
            if (done == 0) missing.push_back(member(round->peers[i % round->peers.size()]));
        }
        std::sort(missing.begin(), missing.end());
        missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
        raise(ErrorCode::timeout, rank(),
              "bootstrap of {} MPI processes: rank {} did not come within {}; it may have failed "
              "or called in another order (GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)",
              size(), format_ranks(missing), format_duration_ns(timeout_ns_));
    }

    /// Its rank in the communicator.
    int member(int r) const { return members_[static_cast<std::size_t>(r)]; }

    MPI_Comm comm_;
    std::vector<int> members_;
    int tag_;
    std::uint64_t timeout_ns_;
    int split_count_ = 0;
    std::optional<std::string> failure_;  // of the first call that failed: no later one can work
    ErrorCode failure_code_ = ErrorCode::mpi;
};

std::unique_ptr<Bootstrap> duplicate(MPI_Comm comm) {
    if (comm == MPI_COMM_NULL) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "MPI bootstrap: the communicator is MPI_COMM_NULL");
    }
    const std::uint64_t timeout_ns = timeout_ns_from_env();
    // Both outlive a call that gives up.
    auto own = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    auto request = std::make_unique<MPI_Request>(MPI_REQUEST_NULL);
    mpi_check(MPI_Comm_idup(comm, own.get(), request.get()), "MPI_Comm_idup", kNoRank);
    const bool done = poll_until(deadline_after(timeout_ns), [&] {
        int all = 0;
        mpi_check(MPI_Test(request.get(), &all, MPI_STATUS_IGNORE), "MPI_Comm_idup", kNoRank);
        return all != 0;
    });
    if (!done) {
        (void)own.release();
        (void)request.release();
        raise(ErrorCode::timeout, comm_rank(comm),
              "MPI bootstrap: not all {} processes of the communicator came within {} "
              "(GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)",
              comm_size(comm), format_duration_ns(timeout_ns));
    }
    // MPI's default is to end the job without a word of ours.
    mpi_check(MPI_Comm_set_errhandler(*own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", kNoRank);
    std::vector<int> members(static_cast<std::size_t>(comm_size(*own)));
    std::iota(members.begin(), members.end(), 0);
    return std::make_unique<MpiBootstrap>(*own, std::move(members), comm_rank(*own), 0);
}

void require_running() {
    if (!mpi_is_running()) {
        raise(ErrorCode::invalid_usage, kNoRank,
              "MPI bootstrap: MPI is not initialised (or already finalised); make an MpiSession or "
              "call "
              "MPI_Init first");
    }
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) : exceptions_at_start_(std::uncaught_exceptions()) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) return;
    int provided = 0;
    mpi_check(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread",
              kNoRank);
    started_here_ = true;
}

MpiSession::~MpiSession() {
    if (!started_here_ || !mpi_is_running()) return;
    if (std::uncaught_exceptions() > exceptions_at_start_) {
        log(LogLevel::warn, kNoRank, "MPI_Finalize is left out because an error is under way");
        return;
    }
    MPI_Finalize();
}

std::unique_ptr<Bootstrap> make_mpi_bootstrap() {
    require_running();
    return duplicate(MPI_COMM_WORLD);
}

std::unique_ptr<Bootstrap> make_mpi_bootstrap(const void* comm) {
    require_running();
    if (comm == nullptr) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "MPI bootstrap: the communicator pointer is null");
    }
    return duplicate(*static_cast<const MPI_Comm*>(comm));
}

void mpi_abort(int exit_code) {
    if (mpi_is_running()) MPI_Abort(MPI_COMM_WORLD, exit_code);
    std::_Exit(exit_code);
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/mpi_bootstrap.hpp"

#include <mpi.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/base/checked_math.hpp"
#include "host/base/deadline.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/bootstrap/message_bootstrap.hpp"

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

/// Messages over a communicator of its own.
class MpiTransport final : public MessageTransport {
  public:
    explicit MpiTransport(MPI_Comm comm)
        : MessageTransport(comm_rank(comm), comm_size(comm)), comm_(comm) {}

    // MPI_Comm_free is collective, and a destructor must not wait for other ranks. The handle is a
    // few hundred bytes, and MPI_Finalize takes it. MPI may touch an open message for ever.
    ~MpiTransport() override {
        finish_sends();
        for (auto& sending : sending_) (void)sending.release();
    }

    void send(int peer, int tag, std::span<const std::byte> data) override {
        const int count = narrow<int>(data.size(), "bytes of an MPI message", rank());
        auto sending = std::make_unique<Sending>();
        sending->peer = peer;
        sending->data.assign(data.begin(), data.end());
        mpi_check(
            MPI_Isend(sending->data.data(), count, MPI_BYTE, peer, tag, comm_, &sending->request),
            "MPI_Isend", rank());
        sending_.push_back(std::move(sending));
    }

    bool sent(int peer) override {
        finish_sends();
        return std::none_of(sending_.begin(), sending_.end(),
                            [&](const auto& sending) { return sending->peer == peer; });
    }

    std::optional<std::vector<std::byte>> receive(int peer, int tag) override {
        int here = 0;
        MPI_Status status;
        mpi_check(MPI_Iprobe(peer, tag, comm_, &here, &status), "MPI_Iprobe", rank());
        if (here == 0) return std::nullopt;
        int count = 0;
        mpi_check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count", rank());
        std::vector<std::byte> data(static_cast<std::size_t>(count));
        mpi_check(MPI_Recv(data.data(), count, MPI_BYTE, peer, tag, comm_, MPI_STATUS_IGNORE),
                  "MPI_Recv", rank());
        return data;
    }

  private:
    struct Sending {
        int peer = 0;
        std::vector<std::byte> data;
        MPI_Request request = MPI_REQUEST_NULL;
    };

    void finish_sends() {
        if (!mpi_is_running()) return;
        // A message to a dead rank may fail; the wait for that rank's answer says so better.
        std::erase_if(sending_, [](const auto& sending) {
            int done = 0;
            return MPI_Test(&sending->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
                   done != 0;
        });
    }

    MPI_Comm comm_;
    std::vector<std::unique_ptr<Sending>> sending_;
};

std::unique_ptr<Bootstrap> duplicate(MPI_Comm comm) {
    if (comm == MPI_COMM_NULL) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "MPI bootstrap: the communicator is MPI_COMM_NULL");
    }
    const std::uint64_t timeout_ns = bootstrap_timeout_ns();
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
    MessageBootstrapOptions options;
    options.timeout_ns = timeout_ns;
    options.members = "MPI processes";
    return make_message_bootstrap(std::make_shared<MpiTransport>(*own), options);
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

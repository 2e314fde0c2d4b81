// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/mpi_bootstrap.hpp"

#include <mpi.h>

#include <cstdlib>
#include <exception>

#include "host/base/checked_math.hpp"
#include "host/base/log.hpp"

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

class MpiBootstrap final : public Bootstrap {
  public:
    /// Takes `comm` over.
    explicit MpiBootstrap(MPI_Comm comm)
        : Bootstrap(comm_rank(comm), comm_size(comm)), comm_(comm) {}

    ~MpiBootstrap() override {
        // MPI_Comm_free is collective, and a destructor must not wait for other ranks. The handle
        // is a few hundred bytes, and MPI_Finalize takes it.
        comm_ = MPI_COMM_NULL;
    }

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        const int count = narrow<int>(bytes, "MPI all-gather bytes per rank", rank());
        mpi_check(MPI_Allgather(send, count, MPI_BYTE, receive, count, MPI_BYTE, comm_),
                  "MPI_Allgather", rank());
    }

    void barrier() override { mpi_check(MPI_Barrier(comm_), "MPI_Barrier", rank()); }

    std::unique_ptr<Bootstrap> split(int color, int key) override {
        if (color < 0 && color != kNoColor) {
            raise(ErrorCode::invalid_argument, rank(),
                  "split: color {} is below 0 and not kNoColor", color);
        }
        MPI_Comm child = MPI_COMM_NULL;
        mpi_check(MPI_Comm_split(comm_, color == kNoColor ? MPI_UNDEFINED : color, key, &child),
                  "MPI_Comm_split", rank());
        if (child == MPI_COMM_NULL) return nullptr;
        // MPI_Comm_split inherits the error handler, so errors come back as codes here too.
        return std::make_unique<MpiBootstrap>(child);
    }

    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        MPI_Group all = MPI_GROUP_NULL;
        MPI_Group left = MPI_GROUP_NULL;
        MPI_Comm child = MPI_COMM_NULL;
        mpi_check(MPI_Comm_group(comm_, &all), "MPI_Comm_group", rank());
        const int included =
            MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &left);
        MPI_Group_free(&all);
        mpi_check(included, "MPI_Group_incl", rank());
        const int created = MPI_Comm_create_group(comm_, left, 0, &child);
        MPI_Group_free(&left);
        mpi_check(created, "MPI_Comm_create_group", rank());
        mpi_check(MPI_Comm_set_errhandler(child, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler",
                  rank());
        return std::make_unique<MpiBootstrap>(child);
    }

  private:
    MPI_Comm comm_;
};

std::unique_ptr<Bootstrap> duplicate(MPI_Comm comm) {
    MPI_Comm own = MPI_COMM_NULL;
    mpi_check(MPI_Comm_dup(comm, &own), "MPI_Comm_dup", kNoRank);
    // MPI's default is to end the job without a word of ours.
    mpi_check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", kNoRank);
    return std::make_unique<MpiBootstrap>(own);
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

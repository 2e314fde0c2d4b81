// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/primitives_world.hpp"

#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace gimlet::sim {

void check(cudaError_t result, const char* call) {
    if (result != cudaSuccess)
        throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* call) {
    if (result != ncclSuccess)
        throw std::runtime_error(std::string(call) + ": " + ncclGetErrorString(result));
}

void expect(bool condition, const std::string& message) {
    if (!condition) throw std::runtime_error(message);
}

std::string text_of(const DeviceError& error) {
    std::ostringstream out;
    out << "state " << error.state << ", " << name_of(error.primitive) << " "
        << name_of(error.fault) << " on rank " << error.rank << ", peer " << error.peer
        << ", context " << error.context << ", tag " << error.tag << ", token " << error.token
        << ", epoch " << error.epoch << ", expected " << error.expected << ", seen " << error.seen
        << ", after " << error.elapsed_ns << " ns";
    return out.str();
}

std::string text_of(const emu::SimOptions& options) {
    std::ostringstream out;
    out << "ranks " << options.ranks << ", LSA team " << options.lsa_team_size << ", GIN "
        << (options.gin == emu::GinMode::off     ? "off"
            : options.gin == emu::GinMode::gdaki ? "gdaki"
                                                 : "proxy")
        << ", schedule " << static_cast<int>(options.schedule) << ", seed " << options.seed;
    return out.str();
}

RankWorld::RankWorld(int rank, const emu::SimOptions& options, const WorldShape& shape) {
    const int lsa_size = options.lsa_team_size == 0 ? options.ranks : options.lsa_team_size;
    ncclUniqueId id;
    std::memset(&id, 0, sizeof id);
    if (rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const auto ids = emu::host_all_gather(&id, sizeof id);
    std::memcpy(&id, ids[0].data(), sizeof id);
    check(ncclCommInitRank(&comm_, options.ranks, id, rank), "ncclCommInitRank");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");

    const int contexts = options.gin == emu::GinMode::off ? 0 : shape.contexts;
    peers_.shape = WorkspaceShape{};
    peers_.shape.rank_count = options.ranks;
    peers_.shape.gin_context_count = contexts;
    peers_.layout = WorkspaceLayout::build(peers_.shape);
    window_bytes_ = align_up(peers_.layout.total_bytes + shape.data_bytes, 4096);
    void* memory = nullptr;
    check(ncclMemAlloc(&memory, window_bytes_), "ncclMemAlloc");
    memory_ = static_cast<std::byte*>(memory);
    // Fresh memory that is not filled is zero, and costs nothing until somebody uses it.
    if (options.fill_fresh_memory)
        check(cudaMemsetAsync(memory, 0, window_bytes_, stream_), "cudaMemsetAsync");
    check(cudaMalloc(reinterpret_cast<void**>(&scratch_), kScratchWords * sizeof(std::uint64_t)),
          "cudaMalloc");
    check(cudaMemsetAsync(scratch_, 0, kScratchWords * sizeof(std::uint64_t), stream_),
          "cudaMemsetAsync");
    synchronize();
    check(ncclCommWindowRegister(comm_, memory, window_bytes_, &window_, NCCL_WIN_COLL_SYMMETRIC),
          "ncclCommWindowRegister");

    ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.ginConnectionType =
        contexts > 0 ? NCCL_GIN_CONNECTION_FULL : NCCL_GIN_CONNECTION_NONE;
    requirements.ginContextCount = contexts > 0 ? contexts : 1;
    requirements.ginSignalCount =
        contexts > 0 ? static_cast<int>(SignalMap{options.ranks}.signal_count()) : 0;
    requirements.ginStrongSignalsRequired = contexts > 0;
    requirements.ginVaSignalsRequired = false;
    check(ncclDevCommCreate(comm_, &requirements, &peers_.dev_comm), "ncclDevCommCreate");
    expect(peers_.dev_comm.lsaSize == lsa_size, "LSA team size differs from the simulation's");
    expect(contexts == 0 || static_cast<int>(peers_.dev_comm.ginContextCount) >= contexts,
           "too few GIN contexts");
    if (options.faults.near_wrap_counters && contexts > 0) {
        const std::vector<std::uint64_t> sums(
            static_cast<std::size_t>(contexts) * SignalMap{options.ranks}.signal_count(),
            emu::kNearWrapSignal);
        write_window(peers_.layout.signal_expected, sums.data(),
                     sums.size() * sizeof(std::uint64_t));
    }

    void* flat = nullptr;
    check(ncclGetLsaDevicePointer(window_, 0, rank % lsa_size, &flat), "ncclGetLsaDevicePointer");
    void* error = nullptr;
    check(cudaHostAlloc(&error, sizeof(DeviceError), cudaHostAllocMapped), "cudaHostAlloc");
    std::memset(error, 0, sizeof(DeviceError));
    error_ = static_cast<DeviceError*>(error);
    void* error_on_device = nullptr;
    check(cudaHostGetDevicePointer(&error_on_device, error, 0), "cudaHostGetDevicePointer");

    peers_.window = window_;
    peers_.local = static_cast<std::byte*>(flat);
    peers_.rank = rank;
    peers_.rank_count = options.ranks;
    peers_.lsa_rank = rank % lsa_size;
    peers_.lsa_size = lsa_size;
    peers_.gin_context_count = contexts;
    peers_.deadline_ns = shape.deadline_ns;
    peers_.error = static_cast<DeviceError*>(error_on_device);
    emu::host_barrier();
}

RankWorld::~RankWorld() noexcept(false) {
    // A run that is being ended by an exception takes the machine down with it.
    if (std::uncaught_exceptions() > 0) return;
    emu::host_barrier();
    check(ncclDevCommDestroy(comm_, &peers_.dev_comm), "ncclDevCommDestroy");
    check(ncclCommWindowDeregister(comm_, window_), "ncclCommWindowDeregister");
    check(ncclMemFree(memory_), "ncclMemFree");
    check(cudaFree(scratch_), "cudaFree");
    check(cudaFreeHost(error_), "cudaFreeHost");
    check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    check(ncclCommDestroy(comm_), "ncclCommDestroy");
}

void RankWorld::synchronize() const {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

std::uint64_t RankWorld::read_scratch(int index) const {
    std::uint64_t value = 0;
    check(cudaMemcpyAsync(&value, scratch(index), sizeof value, cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    synchronize();
    return value;
}

void RankWorld::write_window(std::uint64_t offset, const void* from, std::size_t bytes) const {
    check(cudaMemcpyAsync(memory_ + offset, from, bytes, cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    synchronize();
}

void RankWorld::read_window(std::uint64_t offset, void* to, std::size_t bytes) const {
    check(cudaMemcpyAsync(to, memory_ + offset, bytes, cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    synchronize();
}

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
//
// One rank of a simulated world: communicator, window with workspace, device communicator, scratch
// memory.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/abi/kernel_args.hpp"
#include "host/emulator/simulation.hpp"

namespace gimlet::sim {

struct WorldShape {
    int contexts = 0;              ///< GIN contexts, 0 = none
    std::uint64_t data_bytes = 0;  ///< of the window, behind the workspace
    std::uint64_t deadline_ns = 0;
};

class RankWorld {
  public:
    static constexpr int kScratchWords = 4096;

    /// Collective over the simulation's host programs. All memory starts at zero.
    RankWorld(int rank, const emu::SimOptions& options, const WorldShape& shape);
    /// Collective.
    ~RankWorld() noexcept(false);
    RankWorld(const RankWorld&) = delete;
    RankWorld& operator=(const RankWorld&) = delete;

    const PeerHandles& peers() const { return peers_; }
    std::uint64_t data_offset() const { return peers_.layout.total_bytes; }
    cudaStream_t stream() const { return stream_; }
    /// Device memory of kScratchWords words.
    std::uint64_t* scratch(int index = 0) const { return scratch_ + index; }
    /// The rank's error record.
    DeviceError& error() const { return *error_; }

    /// Waits for the stream.
    void synchronize() const;
    std::uint64_t read_scratch(int index) const;
    /// Writes this rank's own window.
    void write_window(std::uint64_t offset, const void* from, std::size_t bytes) const;
    void read_window(std::uint64_t offset, void* to, std::size_t bytes) const;

  private:
    PeerHandles peers_{};
    ncclComm_t comm_ = nullptr;
    ncclWindow_t window_ = nullptr;
    std::byte* memory_ = nullptr;
    std::uint64_t window_bytes_ = 0;
    cudaStream_t stream_ = nullptr;
    std::uint64_t* scratch_ = nullptr;
    DeviceError* error_ = nullptr;
};

/// Throw std::runtime_error that names the call.
void check(cudaError_t result, const char* call);
void check(ncclResult_t result, const char* call);

/// Throws std::runtime_error(message) unless `condition`; inside a host program, where Catch2's
/// macros must not end the fiber.
void expect(bool condition, const std::string& message);

std::string text_of(const DeviceError& error);
std::string text_of(const emu::SimOptions& options);

}  // namespace gimlet::sim

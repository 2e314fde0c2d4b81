// SPDX-License-Identifier: Apache-2.0
// The cases of `gimlet bench` that time primitives instead of an Exchange.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "device/abi/bench_args.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/cli/bench_measure.hpp"
#include "runtime/cli/table.hpp"
#include "runtime/core.hpp"
#include "runtime/pipeline_model.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::cli {

struct PrimitiveBenchOptions {
    int sms = 0;                 ///< blocks of grid and gpu barriers, and of copies; 0 = all
    int barrier_repeats = 1000;  ///< barriers in one launch
    std::vector<std::uint64_t> put_bytes = {64, 1024, 16384, 262144, 1048576, 8388608, 67108864};
    std::uint64_t put_total_kib = 65536;  ///< bytes of one measured launch, at least one put
    int put_contexts = 1;                 ///< GIN contexts side by side
    int stages = 3;
    std::vector<PipelineSync> syncs = {PipelineSync::barrier, PipelineSync::fifo};
    std::vector<std::string> batches = {"whole"};  ///< whole, even, skewed
    std::uint32_t fifo_slots = 16;                 ///< of a lane's ring
    std::uint32_t fifo_chunk = 4;                  ///< rows a tail, and a head
    PipelineModel model;
    MeasureOptions measure;
};

/// What a case has to say: a table for people, lines for programs, and what was left out and why.
struct CaseReport {
    Table table;
    std::vector<nlohmann::json> lines;
    std::vector<std::string> notes;
};

/// A window, a device communicator with NCCL's barriers, and an error record, for bench kernels.
/// `data_bytes` are added to the window behind the workspace, as regions "source", "target" and
/// "flags".
class BenchWorld {
  public:
    /// Collective. GIN is there iff NCCL offers it for all ranks.
    BenchWorld(Runtime& runtime, std::uint64_t data_bytes, int gin_contexts);
    /// Collective.
    void close();

    const PeerHandles& peers() const noexcept { return peers_; }
    SymmetricWindow& window() const noexcept { return *window_; }
    bool has_gin() const noexcept { return peers_.gin_context_count > 0; }
    BenchTime* time() const noexcept { return time_.device(); }
    /// SMs that each rank may count as its own; `wanted` = 0 takes all. Raises
    /// Error(invalid_argument) if more are wanted than can be resident.
    int blocks(int wanted) const;

    /// Numbers for `count` rounds, equal on all ranks.
    std::uint64_t take_epochs(std::uint64_t count);
    /// Waits for the stream, raises what a kernel reported, and returns what it measured.
    BenchTime finish(const Stream& stream);

  private:
    Runtime& runtime_;
    std::unique_ptr<DeviceCommunicator> device_comm_;
    std::unique_ptr<SymmetricWindow> window_;
    MappedBuffer<DeviceError> error_;
    MappedBuffer<BenchTime> time_;
    PeerHandles peers_{};
    std::uint64_t next_epoch_ = 1;
};

/// The slowest rank's value of each turn.
std::vector<double> slowest_rank(Bootstrap& bootstrap, const std::vector<double>& mine);

/// Fields that every line has.
nlohmann::json line_of(const std::string& name, const Runtime& runtime);

/// Collective. Barriers of all kinds, NCCL's beside ours, turn by turn in one run.
CaseReport bench_barriers(Runtime& runtime, const PrimitiveBenchOptions& options);

/// Collective. Puts of all sizes over LSA, and over GIN where it exists: bandwidth, round trips,
/// small puts a second. Raises Error(internal) if bytes arrived that were not sent.
CaseReport bench_puts(Runtime& runtime, const PrimitiveBenchOptions& options, Measure& measure,
                      const CopyRates& rates);

/// Collective. T rows through a pipeline of stages, led by barriers and by FIFOs, turn by turn.
/// Raises Error(invalid_argument) for stages or rings that cannot be, Error(internal) if a row came
/// out wrong.
CaseReport bench_pipeline(Runtime& runtime, const PrimitiveBenchOptions& options,
                          const std::vector<int>& tokens, const std::vector<int>& hidden);

/// Collective. One hand-over from warp to warp: by a flag, and by a FIFO, turn by turn.
CaseReport bench_handover(Runtime& runtime, const PrimitiveBenchOptions& options);

}  // namespace gimlet::cli

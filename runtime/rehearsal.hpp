// SPDX-License-Identifier: Apache-2.0
// Whole steps with made-up tokens, checked to the byte: what the demo, the MPI cases, the
// simulation and the benchmark run. It takes the place of the model: uploads tokens, plays the
// experts, and knows what must come out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host/cuda/buffer.hpp"
#include "runtime/exchange.hpp"
#include "runtime/reference.hpp"
#include "runtime/routing_table.hpp"

namespace gimlet {

/// How rows are read and written by the stand-in model.
enum class RowAccess {
    in_place,  ///< in the window
    copied,    ///< through unpack and pack
};

struct RehearsalOptions {
    std::uint64_t seed = 1;  ///< of the payload
    IndexType index_type = IndexType::int32;
    RowAccess access = RowAccess::in_place;
    enum class Part { absent, present };
    Part weights = Part::present;         ///< routing weights go along with dispatch
    Part bias = Part::absent;             ///< of combine
    Part combine_weights = Part::absent;  ///< expert_major: rows are weighted in combine
    std::vector<int>
        excluded;  ///< ranks that the Runtime has excluded: nothing of theirs must come
    std::optional<std::uint64_t> deadline_ns;  ///< of this rank's calls; unset = the Exchange's
};

/// One rank's side of steps of one Exchange with one routing. Every rank has the same table. The
/// checks are local: they need nothing from the other ranks but what the Exchange moved.
///
/// The expert that the stand-in plays: expert e answers row x with x * (1 + e % 4 / 4). rank_major
/// answers are the sum over the token's experts on this rank, each times its weight (1 without
/// weights), in fp32, rounded once.
class Rehearsal {
  public:
    /// Local. Allocates and uploads. The table must be free of routing_faults(). `table` must
    /// outlive this.
    Rehearsal(Exchange& exchange, const RoutingTable& table, const RehearsalOptions& options = {});

    /// Other payload, same routing. Blocks.
    void refill(std::uint64_t seed);

    /// Queues the dispatch of this rank's tokens.
    Received dispatch(CountMode mode, cudaStream_t stream);
    Received dispatch_cached(cudaStream_t stream);

    /// Blocks. Compares rows, records and counts with the reference; empty = all right.
    std::string check_dispatch(cudaStream_t stream);

    /// Blocks. Reads what arrived, answers as the experts, and leaves the answers for combine.
    void answer(cudaStream_t stream);
    /// Queues a copy of the answers of the latest answer() again. For captures, where answer()
    /// cannot be called.
    void repeat_answer(cudaStream_t stream);

    /// Queues the combine.
    void combine(cudaStream_t stream);
    /// Blocks. Compares the combined tokens with the reference; empty = all right.
    std::string check_combine(cudaStream_t stream);

    /// All of the above in order; the first difference, or empty. Blocks.
    std::string step(CountMode mode, cudaStream_t stream);

    const Reference& reference() const noexcept { return reference_; }
    Routing& routing() noexcept { return routing_; }
    /// Combined rows, [T][hidden] of combine_type, in device memory.
    const std::byte* output() const noexcept { return out_.get(); }
    /// Overwrites the output with a pattern, so that a combine that writes nothing is seen. Blocks.
    void spoil_output();

  private:
    ReferenceInputs inputs() const;
    std::string check_counts(const Received& received, cudaStream_t stream);
    void download(cudaStream_t stream);
    void answer_row(const std::byte* row, const std::uint32_t* record, int rank,
                    std::byte* out) const;
    DispatchInputs dispatch_inputs() const;

    Exchange& exchange_;
    RoutingTable remaining_;  // with excluded ranks only
    const RoutingTable& table_;
    RehearsalOptions options_;
    Reference reference_;
    Routing routing_;
    std::uint32_t record_stride_ = 0;  // bytes of one downloaded record

    DeviceBuffer<std::byte> rows_;
    DeviceBuffer<std::uint32_t> scales_;
    DeviceBuffer<std::int32_t> indices32_;
    DeviceBuffer<std::int64_t> indices64_;
    DeviceBuffer<float> weights_;
    DeviceBuffer<std::byte> bias_;
    DeviceBuffer<std::byte> out_;
    DeviceBuffer<std::byte> answers_;
    // RowAccess::copied
    DeviceBuffer<std::byte> copied_rows_;
    DeviceBuffer<std::int32_t> copied_indices_;
    DeviceBuffer<float> copied_weights_;
    DeviceBuffer<std::uint32_t> copied_scales_;
    DeviceBuffer<std::int32_t> copied_source_;
    std::vector<std::byte> got_rows_;
    std::vector<std::byte> got_records_;
};

}  // namespace gimlet

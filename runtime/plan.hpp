// SPDX-License-Identifier: Apache-2.0
// From a config, the topology and the device to every number that an Exchange needs. Pure: nothing
// is allocated, no rank is asked, and equal inputs give equal plans.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/abi/kernel_args.hpp"
#include "host/cuda/device_info.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/topology.hpp"
#include "host/nccl/window_layout.hpp"
#include "runtime/config.hpp"

namespace gimlet {

/// Dynamic shared memory of the dispatch kernel for a geometry; device/kernels/launch.hpp has the
/// real one.
using SharedBytesFunction = std::uint32_t (*)(const ExchangeArgs&, const KernelShape&);

struct PlanInputs {
    Topology topology;
    DeviceInfo device;
    SharedBytesFunction dispatch_shared_bytes = nullptr;
    /// Contexts that NCCL really made, where it made fewer than asked for; 0 = not known yet.
    std::int32_t actual_gin_context_count = 0;
    std::uint64_t default_deadline_ns = 0;
};

struct Plan {
    MoeConfig config;
    std::int32_t rank = 0;
    std::int32_t rank_count = 1;
    std::int32_t lsa_rank = 0;
    std::int32_t lsa_size = 1;
    std::int32_t gin_peer_count = 0;  ///< ranks that are reached through GIN
    std::int32_t sm_budget = 0;
    GinConnection gin_connection = GinConnection::none;
    ExchangeMode mode = ExchangeMode::direct;  ///< never automatic
    std::string mode_reason;                   ///< why, in one line
    /// hybrid: the plan that takes this one's place when ranks are excluded: direct mode in the
    /// same window, with the same control words and contexts. Null = exclude() is refused.
    std::shared_ptr<const Plan> fallback;
    std::string fallback_reason;  ///< hybrid: why there is none
    RailShape rail{};             ///< all zero in direct mode
    StreamShape stream{};         ///< all zero with Sync::barrier
    std::string stream_reason;    ///< why its rings are as long as they are

    ExpertMap experts{};
    KernelPlan kernels{};
    TokenLayout token_layout{};
    StepCountsLayout step_layout{};
    WorkspaceShape shape{};
    WorkspaceLayout workspace{};
    RegionOffsets regions{};
    /// fifo: where the library's own rows, records and answers are in a tensor outside of the
    /// window; total_bytes is 0 if the caller has them.
    RegionOffsets tensors{};

    std::int64_t row_capacity = 0;     ///< rows of one receive buffer, and of one combine buffer
    std::int64_t worst_case_rows = 0;  ///< rows that can ever arrive in one step, padding included
    /// Rows of the GIN send buffer, and of the home buffer; 0 without GIN. hybrid: rows of each of
    /// the rail's buffers, with the home buffers rail.copy_count times as many.
    std::int64_t send_capacity = 0;
    std::uint32_t combine_row_bytes = 0;
    std::int32_t signal_count = 0;  ///< GIN signals a context
    std::uint64_t deadline_ns = 0;
    std::uint64_t window_bytes = 0;
    /// hybrid: what the fallback's rows need beyond those of the rail, at the end of the window.
    std::uint64_t fallback_bytes = 0;

    /// Skews that lie beside each other in the window, see RegionOffsets.
    std::int32_t skew_steps() const {
        return (rank_count < RegionOffsets::kSkewCount ? rank_count : RegionOffsets::kSkewCount) -
               1;
    }

    /// Bytes of a row on its way to another rank, and of the record that goes beside it (hybrid:
    /// the row holds both).
    std::uint32_t send_row_bytes() const;
    std::uint32_t send_record_bytes() const;
    /// hybrid: rows of each of the rail's buffers; 0 with rings.
    std::int64_t rail_buffer_rows() const { return stream.active() ? 0 : rail.row_count(); }
    /// Rows of the home buffer.
    std::int64_t home_capacity() const;
    /// hybrid: bytes of the combine weights of one rail row, 0 if none travel.
    std::uint32_t rail_weight_bytes() const;

    /// hybrid with pre-sums: ranks of a team whose rows come home as one; else 0.
    std::int32_t pre_sum_team() const {
        return rail.active() && rail.pre_sum == PreSum::on ? lsa_size : 0;
    }

    /// The window as named regions, workspace first; offsets equal those of `workspace` and
    /// `regions`.
    WindowLayout window_layout() const;
    /// Blocks of the largest kernel, with those of the fallback.
    std::int32_t most_blocks() const;
    /// Exactly the device communicator that the kernels need.
    DeviceCommRequest device_comm_request() const;
    /// All that is known before window and communicator exist; `peers` is filled as far as the plan
    /// knows it.
    ExchangeArgs exchange_args() const;

    /// What every rank must have chosen alike, by name.
    std::vector<AgreementField> agreed_fields() const;
    /// Hash of agreed_fields().
    std::uint64_t hash() const;
    /// At most 100 columns.
    std::string text() const;
    std::string json() const;
};

/// Raises Error(invalid_argument) with all faults at once (value, limit and cure each),
/// Error(gin_unavailable) if a peer needs GIN and there is none, Error(overflow) if a size does not
/// fit 64 bits.
Plan make_plan(const MoeConfig& config, const PlanInputs& inputs);

/// Collective: raises Error(config_mismatch) naming the field and the ranks that differ.
void check_plan_agreement(Bootstrap& bootstrap, const Plan& plan);

/// Ranks on the most crowded GPU, and the fewest SMs that a rank may count as its own, over all
/// ranks.
struct SmShare {
    std::int32_t ranks_on_gpu = 1;
    std::int32_t sm_count = 1;    ///< SMs of a GPU / ranks on it - copier_sms, at least 1
    std::int32_t copier_sms = 0;  ///< left to the RMA plugin; without them its puts wait for ever

    /// For messages: "" or why there are fewer.
    std::string copier_text() const;
};
SmShare smallest_sm_share(const Topology& topology, const DeviceInfo& device);

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// What a caller asks of an Exchange, and everything that can be wrong with it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/abi/types.hpp"
#include "host/bootstrap/bootstrap.hpp"
#include "host/nccl/communicator.hpp"

namespace gimlet {

/// Sizes of the rings of Sync::fifo, in rows. 0 = the table's value for the number of ranks, and
/// for the rings no more than fits the GPU's L2 cache.
struct ChunkConfig {
    /// SMs that the kernels may occupy, as MoeConfig::sm_budget.
    std::int32_t num_sms = 0;
    /// Rows between two moves of a ring's tail, at most nvl_recv.
    std::int32_t nvl_send = 0;
    /// Rows that one ring holds.
    std::int32_t nvl_recv = 0;
    /// The same on the rail between LSA teams. rdma_recv is a multiple of rdma_send, and at least
    /// twice as much, because heads are given back lazily.
    std::int32_t rdma_send = 0;
    std::int32_t rdma_recv = 0;

    enum class Direction { dispatch, combine };
    /// The row of the table for the smallest listed number of ranks that is at least `rank_count`
    /// (2, 4, 8, 16, 24, 32, 48, 64, 96, 128; beyond: the last).
    static ChunkConfig defaults(std::int32_t rank_count, Direction direction);
};

/// One MoE layer's exchange. Equal on all ranks (checked, collectively). 0 means "choose for me"
/// where said so; Plan shows the choice.
struct MoeConfig {
    /// E, 1..kMaxExperts; need not be a multiple of the ranks, may be smaller.
    std::int32_t expert_count = 0;
    /// K, 1..32 and <= E.
    std::int32_t topk = 0;
    /// H, elements of a row; a row is a multiple of 16 bytes in both types.
    std::int32_t hidden = 0;
    /// Most tokens that any rank passes to one dispatch, >= 1.
    std::int32_t max_tokens = 0;

    ElementType dispatch_type = ElementType::bfloat16;
    /// 32-bit words of scales carried with a token, 0 = none; see fp8_*_scale_words.
    std::int32_t scale_words = 0;
    /// fp32, fp16 or bf16; sums are fp32.
    ElementType combine_type = ElementType::bfloat16;

    Layout layout = Layout::rank_major;
    /// expert_major: expert blocks start at multiples of this many rows.
    std::int32_t expert_alignment = 1;
    /// expert_major: payload of the padding rows.
    PadFill pad_fill = PadFill::none;
    /// Rows of a receive buffer; 0 = as many as can ever arrive.
    std::int64_t max_recv_rows = 0;

    /// SMs that the kernels may occupy; 0 = min(32, SMs / ranks on the GPU), 2 on an emulated
    /// device.
    std::int32_t sm_budget = 0;
    /// Threads of a dispatch block, multiple of 32; 0 = 512, 96 on an emulated device.
    std::int32_t dispatch_threads = 0;
    /// Threads of a combine block, multiple of 32; 0 = 576, 128 on an emulated device.
    std::int32_t combine_threads = 0;
    /// 0 = 1.
    std::int32_t combine_blocks_per_sm = 0;
    /// Queue pairs a peer; 0 = 4 if some peer needs GIN.
    std::int32_t gin_context_count = 0;
    /// Rows of one GIN put; 0 = about 128 KiB, 64 rows at most; over the proxy 512 KiB or more.
    std::int32_t chunk_rows = 0;

    /// How rows reach other LSA teams; Plan says what automatic chose, and why.
    ExchangeMode mode = ExchangeMode::direct;
    /// hybrid: rows that a rail stream moves on by at a time; 0 = 6, over the proxy 512 KiB or
    /// more.
    std::int32_t publish_rows = 0;
    /// hybrid: off gives the sums of direct bit for bit, for more traffic home. With Sync::fifo,
    /// rows of expert_major are weighted at home, as if it were off.
    PreSum pre_sum = PreSum::on;

    /// How ranks wait for each other in a step. fifo: the window holds rings of few rows, whatever
    /// max_tokens is; up to 32 ranks. Several LSA teams of equal size always use the rails,
    /// whatever `mode` says.
    Sync sync = Sync::barrier;
    /// fifo only.
    ChunkConfig chunks;
    StreamTensors tensors = StreamTensors::library;
    /// fifo: rows of a block whose arrival is counted by itself, 0 = 64.
    std::int32_t ready_rows = 0;

    /// Longest single wait of a kernel, 0 = for ever. Unset = the Runtime's.
    std::optional<std::uint64_t> deadline_ns;
};

/// Words of scales a token: one fp32 per 128 elements, and one byte per 128 packed four to a word.
constexpr std::int32_t fp8_float_scale_words(std::int32_t hidden) {
    return (hidden + 127) / 128;
}
constexpr std::int32_t fp8_packed_scale_words(std::int32_t hidden) {
    return (hidden + 511) / 512;
}

/// False if `name` is none of direct, hybrid, automatic.
bool parse_exchange_mode(const std::string& name, ExchangeMode* mode);

/// False if `name` is none of barrier, fifo.
bool parse_sync(const std::string& name, Sync* sync);

/// One thing that is wrong: which field, and a sentence with its value, the limit and the cure.
struct ConfigFault {
    std::string field;
    std::string text;
};

/// All faults at once; empty = acceptable. Pure. What depends on the machine is Plan's to refuse.
std::vector<ConfigFault> validate(const MoeConfig& config);

/// Raises Error(invalid_argument) with all faults, one a line.
void require_valid(const MoeConfig& config, int rank = kNoRank);

/// Every field by name, as text: for agreement between ranks, hashing and printing.
std::vector<AgreementField> config_fields(const MoeConfig& config);

/// Bytes of one dispatched row and of one combine row. Only for a valid config.
std::uint32_t dispatch_row_bytes(const MoeConfig& config);
std::uint32_t combine_row_bytes(const MoeConfig& config);

/// Of a Runtime.
struct RuntimeConfig {
    /// Longest single wait of a kernel, 0 = for ever. Unset = the value of GIMLET_TIMEOUT_MS.
    std::optional<std::uint64_t> deadline_ns;
    /// GIN contexts of the barrier, if some peer needs GIN.
    std::int32_t barrier_gin_context_count = 1;
    CommunicatorConfig communicator;
    /// Whether kernels note where they are: a ring of the newest steps for each window, which is
    /// shown when a step fails.
    enum class EventRing { off, on };
    EventRing event_ring = EventRing::off;
    /// Number of the step before the first, of the barrier and of every Exchange. For tests of
    /// numbers that wrap.
    std::uint64_t first_step = 0;
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "runtime/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "device/abi/limits.hpp"
#include "host/base/error.hpp"

namespace gimlet {
namespace {

/// Collects faults while walking through the fields.
class Checker {
  public:
    template <typename... Args>
    void fault(const char* field, fmt::format_string<Args...> format, Args&&... args) {
        faults_.push_back({field, fmt::format(format, std::forward<Args>(args)...)});
    }

    bool range(const char* field, std::int64_t value, std::int64_t least, std::int64_t most,
               const char* cure) {
        if (value >= least && value <= most) return true;
        fault(field, "{} is {}; it must be {}..{}: {}", field, value, least, most, cure);
        return false;
    }

    void threads(const char* field, std::int32_t value) {
        if (value != 0 && (value < kWarpSize || value > 1024 || value % kWarpSize != 0)) {
            fault(field, "{} is {}; it must be a multiple of {} in {}..1024, or 0 for the default",
                  field, value, kWarpSize, kWarpSize);
        }
    }

    /// Row of `hidden` elements in bytes: 32 bits, and whole bulk copies.
    void row(const char* field, std::int32_t hidden, ElementType type) {
        const std::int64_t bytes = std::int64_t{hidden} * element_bytes(type);
        const std::int64_t per_row = kBulkAlignment / element_bytes(type);
        if (bytes % kBulkAlignment != 0) {
            fault(field,
                  "a row of {} {} elements has {} bytes, not a multiple of {}; make hidden a "
                  "multiple of {}",
                  hidden, name_of(type), bytes, kBulkAlignment, per_row);
        }
        if (bytes > kMaxRows) {
            fault(field, "a row of {} {} elements has {} bytes; the limit is {}: lower hidden",
                  hidden, name_of(type), bytes, kMaxRows);
        }
    }

    std::vector<ConfigFault> take() { return std::move(faults_); }

  private:
    std::vector<ConfigFault> faults_;
};

bool known(ElementType type) {
    return type == ElementType::float32 || type == ElementType::float16 ||
           type == ElementType::bfloat16 || type == ElementType::float8_e4m3;
}

void check_types(const MoeConfig& config, Checker* checker) {
    const bool dispatch_known = known(config.dispatch_type);
    if (!dispatch_known) {
        checker->fault("dispatch_type",
                       "dispatch_type is {}; it must be fp32, fp16, bf16 or fp8_e4m3",
                       static_cast<int>(config.dispatch_type));
    }
    const bool combine_known =
        known(config.combine_type) && config.combine_type != ElementType::float8_e4m3;
    if (!combine_known) {
        checker->fault("combine_type", "combine_type is {}; it must be fp32, fp16 or bf16",
                       known(config.combine_type)
                           ? name_of(config.combine_type)
                           : std::to_string(static_cast<int>(config.combine_type)));
    }
    const bool hidden_ok =
        checker->range("hidden", config.hidden, 1, kMaxRows, "pass the elements of one token row");
    if (hidden_ok && dispatch_known) checker->row("hidden", config.hidden, config.dispatch_type);
    if (hidden_ok && combine_known && config.combine_type != config.dispatch_type) {
        checker->row("hidden", config.hidden, config.combine_type);
    }
    checker->range("scale_words", config.scale_words, 0, 1 << 20,
                   "pass the 32-bit words of scales of one token, 0 for none");
}

void check_layout(const MoeConfig& config, Checker* checker) {
    if (config.layout != Layout::rank_major && config.layout != Layout::expert_major) {
        checker->fault("layout", "layout is {}; it must be rank_major or expert_major",
                       static_cast<int>(config.layout));
        return;
    }
    if (config.pad_fill != PadFill::none && config.pad_fill != PadFill::zero) {
        checker->fault("pad_fill", "pad_fill is {}; it must be none or zero",
                       static_cast<int>(config.pad_fill));
    }
    checker->range("expert_alignment", config.expert_alignment, 1, 1 << 20, "1 means no padding");
    if (config.layout == Layout::rank_major && config.expert_alignment > 1) {
        checker->fault("expert_alignment",
                       "expert_alignment is {}, but rank_major rows have no expert blocks; use 1 "
                       "or expert_major",
                       config.expert_alignment);
    }
}

void check_chunks(const MoeConfig& config, Checker* checker) {
    if (config.sync != Sync::barrier && config.sync != Sync::fifo) {
        checker->fault("sync", "sync is {}; it must be barrier or fifo",
                       static_cast<int>(config.sync));
    }
    if (config.tensors != StreamTensors::library && config.tensors != StreamTensors::caller) {
        checker->fault("tensors", "tensors is {}; it must be library or caller",
                       static_cast<int>(config.tensors));
    } else if (config.tensors == StreamTensors::caller && config.sync != Sync::fifo) {
        checker->fault("tensors",
                       "tensors is caller, but sync is barrier: its rows arrive in the window; use "
                       "library or sync fifo");
    }
    checker->range("ready_rows", config.ready_rows, 0, kMaxRows, "0 means the default");
    const ChunkConfig& chunks = config.chunks;
    const char* const cure = "0 means the default";
    const bool good = checker->range("chunks.num_sms", chunks.num_sms, 0, 65535, cure) &
                      checker->range("chunks.nvl_send", chunks.nvl_send, 0, kMaxRows, cure) &
                      checker->range("chunks.nvl_recv", chunks.nvl_recv, 0, kMaxRows, cure) &
                      checker->range("chunks.rdma_send", chunks.rdma_send, 0, kMaxRows, cure) &
                      checker->range("chunks.rdma_recv", chunks.rdma_recv, 0, kMaxRows, cure);
    if (!good) return;
    if (chunks.num_sms > 0 && config.sm_budget > 0 && chunks.num_sms != config.sm_budget) {
        checker->fault("chunks.num_sms",
                       "chunks.num_sms is {}, sm_budget is {}: they are the same number; set one",
                       chunks.num_sms, config.sm_budget);
    }
    if (chunks.nvl_send > 0 && chunks.nvl_recv > 0 && chunks.nvl_send > chunks.nvl_recv) {
        checker->fault("chunks.nvl_send",
                       "chunks.nvl_send is {}, chunks.nvl_recv is {}: a ring holds at least one "
                       "chunk; raise nvl_recv or lower nvl_send",
                       chunks.nvl_send, chunks.nvl_recv);
    }
    if (chunks.rdma_send > 0 && chunks.rdma_recv > 0) {
        if (chunks.rdma_recv % chunks.rdma_send != 0) {
            checker->fault("chunks.rdma_recv",
                           "chunks.rdma_recv is {}, not a multiple of chunks.rdma_send ({}): no "
                           "chunk may cross the end of a ring",
                           chunks.rdma_recv, chunks.rdma_send);
        }
        if (chunks.rdma_send > chunks.rdma_recv / 2) {
            checker->fault("chunks.rdma_send",
                           "chunks.rdma_send is {}, above half of chunks.rdma_recv ({}): heads "
                           "come back a chunk late, so a ring holds at least two",
                           chunks.rdma_send, chunks.rdma_recv);
        }
    }
    const std::int64_t rows =
        std::int64_t{std::max(1, chunks.num_sms)} * std::max(chunks.nvl_recv, chunks.rdma_recv);
    if (rows > kMaxRows) {
        checker->fault("chunks.num_sms",
                       "chunks.num_sms x rows of a ring is {}; the limit is {}: the rows of all "
                       "channels are counted in 32 bits",
                       rows, kMaxRows);
    }
}

}  // namespace

ChunkConfig ChunkConfig::defaults(std::int32_t rank_count, Direction direction) {
    struct Row {
        std::int32_t ranks, dispatch_nvl_send, combine_nvl_send, nvl_recv, dispatch_rdma_send,
            combine_rdma_send, rdma_recv;
    };
    static constexpr Row kTable[] = {
        {2, 24, 10, 256, 6, 6, 128},   {4, 6, 9, 256, 6, 6, 128},   {8, 6, 4, 256, 6, 6, 128},
        {16, 36, 4, 288, 20, 12, 128}, {24, 32, 1, 288, 8, 8, 128}, {32, 32, 1, 288, 8, 8, 128},
        {48, 32, 1, 288, 8, 8, 128},   {64, 32, 1, 288, 8, 8, 128}, {96, 20, 1, 480, 12, 8, 128},
        {128, 20, 1, 560, 12, 8, 128},
    };
    const Row* row = kTable;
    while (row->ranks < rank_count && row + 1 != std::end(kTable)) ++row;
    const bool dispatch = direction == Direction::dispatch;
    ChunkConfig out;
    out.num_sms = 20;
    out.nvl_send = dispatch ? row->dispatch_nvl_send : row->combine_nvl_send;
    out.nvl_recv = row->nvl_recv;
    out.rdma_send = dispatch ? row->dispatch_rdma_send : row->combine_rdma_send;
    // No chunk crosses the end of a ring.
    out.rdma_recv = (row->rdma_recv + out.rdma_send - 1) / out.rdma_send * out.rdma_send;
    return out;
}

std::vector<ConfigFault> validate(const MoeConfig& config) {
    Checker checker;
    const bool experts_ok = checker.range("expert_count", config.expert_count, 1, kMaxExperts,
                                          "pass the experts of all ranks together");
    const bool topk_ok =
        checker.range("topk", config.topk, 1, kMaxTopK, "one lane of a warp carries one choice");
    if (experts_ok && topk_ok && config.topk > config.expert_count) {
        checker.fault(
            "topk",
            "topk is {}, above the {} experts; an expert may be named once a token: lower topk",
            config.topk, config.expert_count);
    }
    checker.range("max_tokens", config.max_tokens, 1, kMaxRows,
                  "pass the most tokens of any rank in any step");
    check_types(config, &checker);
    check_layout(config, &checker);
    checker.range("max_recv_rows", config.max_recv_rows, 0, kMaxRows,
                  "0 means as many as can ever arrive");
    checker.range("sm_budget", config.sm_budget, 0, 65535, "0 means the default");
    checker.threads("dispatch_threads", config.dispatch_threads);
    checker.threads("combine_threads", config.combine_threads);
    checker.range("combine_blocks_per_sm", config.combine_blocks_per_sm, 0, 32,
                  "0 means the default");
    checker.range("gin_context_count", config.gin_context_count, 0, kMaxGinContexts,
                  "0 means the default");
    checker.range("chunk_rows", config.chunk_rows, 0, kMaxRows, "0 means the default");
    if (config.mode != ExchangeMode::direct && config.mode != ExchangeMode::hybrid &&
        config.mode != ExchangeMode::automatic) {
        checker.fault("mode", "mode is {}; it must be direct, hybrid or automatic",
                      static_cast<int>(config.mode));
    }
    checker.range("publish_rows", config.publish_rows, 0, kMaxPublishRows, "0 means the default");
    if (config.pre_sum != PreSum::on && config.pre_sum != PreSum::off) {
        checker.fault("pre_sum", "pre_sum is {}; it must be on or off",
                      static_cast<int>(config.pre_sum));
    }
    check_chunks(config, &checker);
    return checker.take();
}

void require_valid(const MoeConfig& config, int rank) {
    const auto faults = validate(config);
    if (faults.empty()) return;
    std::vector<std::string> lines;
    for (const auto& fault : faults) lines.push_back(fault.text);
    raise(ErrorCode::invalid_argument, rank, "MoE config has {} fault{}: {}", faults.size(),
          faults.size() == 1 ? "" : "s", fmt::join(lines, "; "));
}

std::vector<AgreementField> config_fields(const MoeConfig& config) {
    const auto number = [](auto value) { return fmt::format("{}", value); };
    return {
        {"expert_count", number(config.expert_count)},
        {"topk", number(config.topk)},
        {"hidden", number(config.hidden)},
        {"max_tokens", number(config.max_tokens)},
        {"dispatch_type", name_of(config.dispatch_type)},
        {"scale_words", number(config.scale_words)},
        {"combine_type", name_of(config.combine_type)},
        {"layout", name_of(config.layout)},
        {"expert_alignment", number(config.expert_alignment)},
        {"pad_fill", config.pad_fill == PadFill::zero ? "zero" : "none"},
        {"max_recv_rows", number(config.max_recv_rows)},
        {"sm_budget", number(config.sm_budget)},
        {"dispatch_threads", number(config.dispatch_threads)},
        {"combine_threads", number(config.combine_threads)},
        {"combine_blocks_per_sm", number(config.combine_blocks_per_sm)},
        {"gin_context_count", number(config.gin_context_count)},
        {"chunk_rows", number(config.chunk_rows)},
        {"mode", name_of(config.mode)},
        {"publish_rows", number(config.publish_rows)},
        {"pre_sum", config.pre_sum == PreSum::off ? "off" : "on"},
        {"sync", name_of(config.sync)},
        {"chunks.num_sms", number(config.chunks.num_sms)},
        {"chunks.nvl_send", number(config.chunks.nvl_send)},
        {"chunks.nvl_recv", number(config.chunks.nvl_recv)},
        {"chunks.rdma_send", number(config.chunks.rdma_send)},
        {"chunks.rdma_recv", number(config.chunks.rdma_recv)},
        {"tensors", config.tensors == StreamTensors::caller ? "caller" : "library"},
        {"ready_rows", number(config.ready_rows)},
        {"deadline_ns", config.deadline_ns ? number(*config.deadline_ns) : "runtime"},
    };
}

bool parse_exchange_mode(const std::string& name, ExchangeMode* mode) {
    for (const ExchangeMode candidate :
         {ExchangeMode::direct, ExchangeMode::hybrid, ExchangeMode::automatic}) {
        if (name != name_of(candidate)) continue;
        *mode = candidate;
        return true;
    }
    return false;
}

bool parse_sync(const std::string& name, Sync* sync) {
    for (const Sync candidate : {Sync::barrier, Sync::fifo}) {
        if (name != name_of(candidate)) continue;
        *sync = candidate;
        return true;
    }
    return false;
}

std::uint32_t dispatch_row_bytes(const MoeConfig& config) {
    return static_cast<std::uint32_t>(config.hidden) * element_bytes(config.dispatch_type);
}

std::uint32_t combine_row_bytes(const MoeConfig& config) {
    return static_cast<std::uint32_t>(config.hidden) * element_bytes(config.combine_type);
}

}  // namespace gimlet

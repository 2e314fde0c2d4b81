// SPDX-License-Identifier: Apache-2.0
// C ABI: names, log, environment, doctor, configs.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/base/version.hpp"
#include "host/nccl/doctor.hpp"
#include "runtime/capi/objects.hpp"

using namespace gimlet;
using namespace gimlet::capi;

// The numbers of the C ABI are those of the C++ enums.
static_assert(GIMLET_INTERNAL == static_cast<int>(ErrorCode::internal));
static_assert(GIMLET_INTERNAL + 1 == kErrorCodeCount);
static_assert(GIMLET_LOG_TRACE == static_cast<int>(LogLevel::trace));
static_assert(GIMLET_LOG_TRACE + 1 == kLogLevelCount);
static_assert(GIMLET_MODE_AUTOMATIC == static_cast<int>(ExchangeMode::automatic));
static_assert(GIMLET_SYNC_FIFO == static_cast<int>(Sync::fifo));
static_assert(GIMLET_TENSORS_CALLER == static_cast<int>(StreamTensors::caller));
static_assert(GIMLET_PRE_SUM_OFF == static_cast<int>(PreSum::off));
static_assert(GIMLET_FLOAT8_E4M3 == static_cast<int>(ElementType::float8_e4m3));
static_assert(GIMLET_BFLOAT16 == static_cast<int>(ElementType::bfloat16));
static_assert(GIMLET_FLOAT16 == static_cast<int>(ElementType::float16));
static_assert(GIMLET_FLOAT32 == static_cast<int>(ElementType::float32));
static_assert(GIMLET_EXPERT_MAJOR == static_cast<int>(Layout::expert_major));
static_assert(GIMLET_PAD_ZERO == static_cast<int>(PadFill::zero));
static_assert(GIMLET_INT64 == static_cast<int>(IndexType::int64));

namespace gimlet::capi {

MoeConfig read_moe_config(const gimlet_moe_config* config) {
    const auto from = read_struct(config, gimlet_moe_config_init(), "config");
    MoeConfig to;
    to.expert_count = from.expert_count;
    to.topk = from.topk;
    to.hidden = from.hidden;
    to.max_tokens = from.max_tokens;
    to.dispatch_type = static_cast<ElementType>(from.dispatch_type);
    to.scale_words = from.scale_words;
    to.combine_type = static_cast<ElementType>(from.combine_type);
    to.layout = static_cast<Layout>(from.layout);
    to.expert_alignment = from.expert_alignment;
    to.pad_fill = static_cast<PadFill>(from.pad_fill);
    to.max_recv_rows = from.max_recv_rows;
    to.sm_budget = from.sm_budget;
    to.dispatch_threads = from.dispatch_threads;
    to.combine_threads = from.combine_threads;
    to.combine_blocks_per_sm = from.combine_blocks_per_sm;
    to.gin_context_count = from.gin_context_count;
    to.chunk_rows = from.chunk_rows;
    to.deadline_ns = deadline_from(from.deadline_ns);
    to.mode = static_cast<ExchangeMode>(from.mode);
    to.publish_rows = from.publish_rows;
    to.pre_sum = static_cast<PreSum>(from.pre_sum);
    to.sync = static_cast<Sync>(from.sync);
    to.tensors = static_cast<StreamTensors>(from.tensors);
    to.ready_rows = from.ready_rows;
    to.chunks.nvl_recv = from.ring_rows;
    to.chunks.nvl_send = from.send_rows;
    to.chunks.num_sms = from.ring_sm_budget;
    to.chunks.rdma_recv = from.rail_ring_rows;
    to.chunks.rdma_send = from.rail_send_rows;
    return to;
}

}  // namespace gimlet::capi

extern "C" {

const char* gimlet_status_name(gimlet_status status) {
    return error_code_name(static_cast<ErrorCode>(status));
}

const char* gimlet_version(void) {
    return version_text();
}

const char* gimlet_git_hash(void) {
    return git_hash();
}

const char* gimlet_backend(void) {
    return backend_name();
}

gimlet_status gimlet_fail(gimlet_status status, const char* text) {
    return guarded(__func__, [&] {
        if (status < GIMLET_INVALID_ARGUMENT || status > GIMLET_INTERNAL) {
            raise(ErrorCode::invalid_argument, kNoRank, "status is {}; it must be {}..{}", status,
                  static_cast<int>(GIMLET_INVALID_ARGUMENT), static_cast<int>(GIMLET_INTERNAL));
        }
        raise_text(static_cast<ErrorCode>(status), kNoRank, &require_pointer(text, "text"));
    });
}

gimlet_status gimlet_set_log_level(gimlet_log_level level) {
    return guarded(__func__, [&] {
        if (level < GIMLET_LOG_OFF || level > GIMLET_LOG_TRACE) {
            raise(ErrorCode::invalid_argument, kNoRank, "level is {}; it must be {}..{}", level,
                  static_cast<int>(GIMLET_LOG_OFF), static_cast<int>(GIMLET_LOG_TRACE));
        }
        set_log_level(static_cast<LogLevel>(level));
    });
}

gimlet_status gimlet_set_log_sink(gimlet_log_function function, void* context) {
    return guarded(__func__, [&] {
        if (function == nullptr) {
            set_log_sink({});
            return;
        }
        set_log_sink([function, context](const LogRecord& record) {
            function(context, static_cast<gimlet_log_level>(record.level), record.rank,
                     record.message.c_str());
        });
    });
}

gimlet_status gimlet_environment(gimlet_text_format format, char* text, size_t text_bytes,
                                 size_t* needed_bytes) {
    return guarded(__func__, [&] {
        write_text(format, TextOut(text, text_bytes, needed_bytes), env_dump_text, env_dump_json);
    });
}

gimlet_status gimlet_doctor(gimlet_runtime* runtime, gimlet_text_format format, char* text,
                            size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const TextOut out(text, text_bytes, needed_bytes);
        const auto object = runtime == nullptr ? nullptr : Runtimes::get().find(runtime);
        const auto facts = [&] {
            DoctorFacts all = collect_doctor_facts();
            if (object == nullptr) return all;
            all.topology = object->topology();
            all.findings.clear();
            diagnose(&all);
            return all;
        };
        write_text(
            format, out, [&] { return facts().text(); }, [&] { return facts().json(); });
    });
}

gimlet_status gimlet_moe_config_faults(const gimlet_moe_config* config, int32_t* fault_count,
                                       char* text, size_t text_bytes, size_t* needed_bytes) {
    return guarded(__func__, [&] {
        const TextOut out(text, text_bytes, needed_bytes);
        int32_t* const count = optional_pointer(fault_count, "fault_count");
        std::vector<std::string> lines;
        for (const auto& fault : validate(read_moe_config(config))) lines.push_back(fault.text);
        out.write(fmt::format("{}", fmt::join(lines, "\n")));
        if (count != nullptr) *count = static_cast<int32_t>(lines.size());
    });
}

gimlet_status gimlet_moe_config_set_rings(gimlet_moe_config* config, int32_t rank_count,
                                          int32_t rings) {
    return guarded(__func__, [&] {
        const StructOut out(config, "config");
        auto value = read_struct(config, gimlet_moe_config_init(), "config");
        if (config->struct_bytes < offsetof(gimlet_moe_config, rail_send_rows) + sizeof(int32_t)) {
            raise(ErrorCode::not_supported, kNoRank,
                  "config: struct_bytes is {}: this header's struct has no members for rings",
                  config->struct_bytes);
        }
        if (rank_count < 1) {
            raise(ErrorCode::invalid_argument, kNoRank, "rank_count is {}; it must be 1 or more",
                  rank_count);
        }
        if (rings != GIMLET_RINGS_OF_DISPATCH && rings != GIMLET_RINGS_OF_COMBINE) {
            raise(ErrorCode::invalid_argument, kNoRank,
                  "rings is {}; it must be GIMLET_RINGS_OF_DISPATCH or GIMLET_RINGS_OF_COMBINE",
                  rings);
        }
        const auto from = ChunkConfig::defaults(rank_count, rings == GIMLET_RINGS_OF_DISPATCH
                                                                ? ChunkConfig::Direction::dispatch
                                                                : ChunkConfig::Direction::combine);
        value.ring_sm_budget = from.num_sms;
        value.ring_rows = from.nvl_recv;
        value.send_rows = from.nvl_send;
        value.rail_ring_rows = from.rdma_recv;
        value.rail_send_rows = from.rdma_send;
        out.write(value);
    });
}

gimlet_status gimlet_moe_config_row_bytes(const gimlet_moe_config* config, uint32_t* dispatch_bytes,
                                          uint32_t* combine_bytes) {
    return guarded(__func__, [&] {
        const MoeConfig from = read_moe_config(config);
        uint32_t* const dispatch = optional_pointer(dispatch_bytes, "dispatch_row_bytes");
        uint32_t* const combine = optional_pointer(combine_bytes, "combine_row_bytes");
        require_valid(from);
        if (dispatch != nullptr) *dispatch = dispatch_row_bytes(from);
        if (combine != nullptr) *combine = combine_row_bytes(from);
    });
}

}  // extern "C"

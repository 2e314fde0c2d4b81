// SPDX-License-Identifier: Apache-2.0
// The only place that reads the environment. Every variable is a row of one table.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace gimlet {

/// One enumerator per row of the table, same order.
enum class EnvVar : int {
    log,                   ///< GIMLET_LOG
    timeout_ms,            ///< GIMLET_TIMEOUT_MS
    bootstrap_timeout_ms,  ///< GIMLET_BOOTSTRAP_TIMEOUT_MS
    progress,              ///< GIMLET_PROGRESS
    emu_seed,              ///< GIMLET_EMU_SEED
    emu_sms,               ///< GIMLET_EMU_SMS
    emu_gin,               ///< GIMLET_EMU_GIN
    emu_devices,           ///< GIMLET_EMU_DEVICES
    rma_engine,            ///< GIMLET_RMA_ENGINE
    rma_timeout_ms,        ///< GIMLET_RMA_TIMEOUT_MS
    rma_context,           ///< GIMLET_RMA_CONTEXT
    rma_copier,            ///< GIMLET_RMA_COPIER
    rma_copier_limit,      ///< GIMLET_RMA_COPIER_LIMIT
    rma_copier_blocks,     ///< GIMLET_RMA_COPIER_BLOCKS
    rma_cuda_library,      ///< GIMLET_RMA_CUDA_LIBRARY
    rma_ucx_library,       ///< GIMLET_RMA_UCX_LIBRARY
    rma_interface,         ///< GIMLET_RMA_INTERFACE
    rma_fault,             ///< GIMLET_RMA_FAULT
    rma_fault_seed,        ///< GIMLET_RMA_FAULT_SEED
    nccl_lsa_team_size,    ///< NCCL_LSA_TEAM_SIZE
    nccl_gin_enable,       ///< NCCL_GIN_ENABLE
    nccl_gin_type,         ///< NCCL_GIN_TYPE
    nccl_nvls_enable,      ///< NCCL_NVLS_ENABLE
    nccl_multi_rank_gpu,   ///< NCCL_MULTI_RANK_GPU_ENABLE
    nccl_cumem_enable,     ///< NCCL_CUMEM_ENABLE
    nccl_win_enable,       ///< NCCL_WIN_ENABLE
    nccl_cross_nic,        ///< NCCL_CROSS_NIC
    nccl_rma_plugin,       ///< NCCL_RMA_PLUGIN
    nccl_gin_plugin,       ///< NCCL_GIN_PLUGIN
    nccl_debug,            ///< NCCL_DEBUG
    cuda_mps_pipe,         ///< CUDA_MPS_PIPE_DIRECTORY
    launcher_ompi,         ///< OMPI_COMM_WORLD_SIZE
    launcher_pmi,          ///< PMI_SIZE
    launcher_pmix,         ///< PMIX_RANK
};

enum class EnvType { flag, integer, choice, text };

struct EnvEntry {
    EnvVar id;
    const char* name;
    EnvType type;
    const char* default_text;  ///< "" means unset
    std::int64_t min;          ///< integer only
    std::int64_t max;          ///< integer only
    const char* choices;       ///< choice only, separated by '|'
    const char* help;          ///< one sentence, with the unit
};

std::span<const EnvEntry> env_table() noexcept;
const EnvEntry& env_entry(EnvVar variable) noexcept;

/// True if the variable is in the environment (or overridden) and not empty.
bool env_is_set(EnvVar variable);

/// The text as it stands in the environment, unchecked; nothing if unset or empty. Never raises.
std::optional<std::string> env_raw(EnvVar variable);

/// Value, or the table's default. Each raises Error(invalid_argument) naming the variable, its
/// value and what is allowed; `env_int` accepts a plain decimal number and nothing around it,
/// `env_flag` 0/1/on/off/true/false/yes/no. Asking with the wrong type is Error(internal).
bool env_flag(EnvVar variable);
std::int64_t env_int(EnvVar variable);
std::string env_choice(EnvVar variable);
std::string env_text(EnvVar variable);

/// All variables with value, default and help. An unparsable value is shown and marked, not raised.
std::string env_dump_text();
std::string env_dump_json();

/// For tests: pretends that the variable has this value, for the object's lifetime, in this
/// process.
class EnvOverride {
  public:
    EnvOverride(EnvVar variable, std::string_view value);
    ~EnvOverride();
    EnvOverride(const EnvOverride&) = delete;
    EnvOverride& operator=(const EnvOverride&) = delete;

  private:
    EnvVar variable_;
    bool had_before_;
    std::string before_;
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "host/base/env.hpp"

#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

#include "host/base/error.hpp"
#include "host/base/text.hpp"

namespace gimlet {

namespace {

constexpr std::int64_t kDayMs = 24LL * 3600 * 1000;

// Defaults of NCCL's variables are empty: NCCL decides, and its default may change. They are read
// only to explain what NCCL did. Those of the emulator are read by the emulator.
constexpr std::array kTable = {
    EnvEntry{EnvVar::log, "GIMLET_LOG", EnvType::choice, "warn", 0, 0,
             "off|error|warn|info|debug|trace", "How much is logged to standard error."},
    EnvEntry{EnvVar::timeout_ms, "GIMLET_TIMEOUT_MS", EnvType::integer, "30000", 0, kDayMs, "",
             "Deadline of one wait on the device or in NCCL, in milliseconds; 0 = none."},
    EnvEntry{EnvVar::bootstrap_timeout_ms, "GIMLET_BOOTSTRAP_TIMEOUT_MS", EnvType::integer,
             "120000", 1, kDayMs, "",
             "Deadline of one collective step between ranks on the host, in milliseconds."},
    EnvEntry{EnvVar::progress, "GIMLET_PROGRESS", EnvType::flag, "1", 0, 0, "",
             "Whether work that takes over two seconds prints progress lines."},
    EnvEntry{EnvVar::emu_seed, "GIMLET_EMU_SEED", EnvType::integer, "1", 0, INT64_MAX, "",
             "Seed of the emulator when ranks are processes."},
    EnvEntry{EnvVar::emu_sms, "GIMLET_EMU_SMS", EnvType::integer, "8", 1, 1024, "",
             "Number of SMs of an emulated device."},
    EnvEntry{EnvVar::emu_gin, "GIMLET_EMU_GIN", EnvType::choice, "gdaki", 0, 0, "off|gdaki|proxy",
             "GIN backend that the emulator imitates."},
    EnvEntry{EnvVar::emu_devices, "GIMLET_EMU_DEVICES", EnvType::integer, "16", 1, 1024, "",
             "Number of emulated devices that a process sees."},
    EnvEntry{EnvVar::rma_engine, "GIMLET_RMA_ENGINE", EnvType::choice, "auto", 0, 0,
             "auto|loopback|ipc|ucx",
             "Forces how the RMA plugin reaches other ranks; equal on all ranks."},
    EnvEntry{EnvVar::rma_timeout_ms, "GIMLET_RMA_TIMEOUT_MS", EnvType::integer, "60000", 1, kDayMs,
             "", "Deadline of the RMA plugin for connecting and registering, in milliseconds."},
    EnvEntry{EnvVar::rma_context, "GIMLET_RMA_CONTEXT", EnvType::choice, "own", 0, 0, "own|primary",
             "CUDA context of the RMA plugin's copies: one of its own, or the application's."},
    EnvEntry{EnvVar::rma_copier, "GIMLET_RMA_COPIER", EnvType::choice, "auto", 0, 0, "auto|on|off",
             "Whether kernels of the RMA plugin carry out small copies; auto: under MPS."},
    EnvEntry{EnvVar::rma_copier_limit, "GIMLET_RMA_COPIER_LIMIT", EnvType::integer, "4194304", 0,
             1 << 30, "",
             "Largest copy within a GPU that the RMA plugin's kernels carry out, in bytes."},
    EnvEntry{
        EnvVar::rma_copier_blocks, "GIMLET_RMA_COPIER_BLOCKS", EnvType::integer, "8", 1, 16, "",
        "Blocks of the RMA plugin's kernel that copies; plans leave it as many multiprocessors."},
    EnvEntry{EnvVar::rma_cuda_library, "GIMLET_RMA_CUDA_LIBRARY", EnvType::text, "libcuda.so.1", 0,
             0, "", "CUDA driver that the RMA plugin loads: name or path."},
    EnvEntry{EnvVar::rma_ucx_library, "GIMLET_RMA_UCX_LIBRARY", EnvType::text, "libucp.so.0", 0, 0,
             "", "UCX that the RMA plugin loads for ranks of other hosts: name or path."},
    EnvEntry{
        EnvVar::rma_interface, "GIMLET_RMA_INTERFACE", EnvType::text, "", 0, 0, "",
        "Network interface at which the RMA plugin's ranks meet across hosts; empty: the first."},
    EnvEntry{EnvVar::rma_fault, "GIMLET_RMA_FAULT", EnvType::text, "", 0, 0, "",
             "Fault plan (JSON file, as for gimlet sim) that the RMA plugin carries out."},
    EnvEntry{EnvVar::rma_fault_seed, "GIMLET_RMA_FAULT_SEED", EnvType::integer, "1", 0, INT64_MAX,
             "", "Seed of the RMA plugin's fault plan."},
    EnvEntry{EnvVar::nccl_lsa_team_size, "NCCL_LSA_TEAM_SIZE", EnvType::integer, "", 0, 1 << 20, "",
             "Forces the number of ranks of an LSA team; 0 lets NCCL choose."},
    EnvEntry{EnvVar::nccl_gin_enable, "NCCL_GIN_ENABLE", EnvType::text, "", 0, 0, "",
             "0 switches GIN off; NCCL still reports it as present, and fails when it is used."},
    EnvEntry{EnvVar::nccl_gin_type, "NCCL_GIN_TYPE", EnvType::text, "", 0, 0, "",
             "Restricts GIN to one backend: 2 proxy, 3 GDAKI, 4 GPI; -1 any."},
    EnvEntry{EnvVar::nccl_nvls_enable, "NCCL_NVLS_ENABLE", EnvType::text, "", 0, 0, "",
             "1 forces NVLink multicast, which several ranks on one GPU cannot have."},
    EnvEntry{EnvVar::nccl_multi_rank_gpu, "NCCL_MULTI_RANK_GPU_ENABLE", EnvType::text, "", 0, 0, "",
             "1 allows several ranks on one GPU."},
    EnvEntry{EnvVar::nccl_cumem_enable, "NCCL_CUMEM_ENABLE", EnvType::text, "", 0, 0, "",
             "0 switches off the memory that symmetric windows need."},
    EnvEntry{EnvVar::nccl_win_enable, "NCCL_WIN_ENABLE", EnvType::text, "", 0, 0, "",
             "0 switches symmetric windows off."},
    EnvEntry{EnvVar::nccl_cross_nic, "NCCL_CROSS_NIC", EnvType::text, "", 0, 0, "",
             "0 restricts GIN to the rail: peers with the same LSA index."},
    EnvEntry{EnvVar::nccl_rma_plugin, "NCCL_RMA_PLUGIN", EnvType::text, "", 0, 0, "",
             "RMA plugin that carries GIN where there is no RDMA NIC: name or path."},
    EnvEntry{EnvVar::nccl_gin_plugin, "NCCL_GIN_PLUGIN", EnvType::text, "", 0, 0, "",
             "GIN plugin: name or path."},
    EnvEntry{EnvVar::nccl_debug, "NCCL_DEBUG", EnvType::text, "", 0, 0, "",
             "How much NCCL itself logs: VERSION, WARN, INFO or TRACE."},
    EnvEntry{EnvVar::cuda_mps_pipe, "CUDA_MPS_PIPE_DIRECTORY", EnvType::text, "", 0, 0, "",
             "Folder of the MPS daemon that several processes on one GPU share."},
    EnvEntry{EnvVar::launcher_ompi, "OMPI_COMM_WORLD_SIZE", EnvType::text, "", 0, 0, "",
             "Set by Open MPI's mpirun: this process is one of its ranks."},
    EnvEntry{EnvVar::launcher_pmi, "PMI_SIZE", EnvType::text, "", 0, 0, "",
             "Set by MPICH's and Slurm's launchers: this process is one of their ranks."},
    EnvEntry{EnvVar::launcher_pmix, "PMIX_RANK", EnvType::text, "", 0, 0, "",
             "Set by PMIx launchers: this process is one of their ranks."},
};

consteval bool in_enum_order() {
    for (std::size_t i = 0; i < kTable.size(); ++i) {
        if (static_cast<std::size_t>(kTable[i].id) != i) return false;
    }
    return true;
}
static_assert(in_enum_order(), "the table has one row per EnvVar, in its order");
static_assert(kTable.size() == static_cast<std::size_t>(EnvVar::launcher_pmix) + 1);

struct Overrides {
    std::mutex mutex;
    std::map<EnvVar, std::string> values;
};

Overrides& overrides() {
    static auto* instance = new Overrides;  // outlives objects with static lifetime that read
    return *instance;
}

const char* type_name(EnvType type) {
    switch (type) {
        case EnvType::flag: return "flag";
        case EnvType::integer: return "integer";
        case EnvType::choice: return "choice";
        case EnvType::text: return "text";
    }
    return "unknown";
}

std::string value_text(const EnvEntry& entry) {
    return env_raw(entry.id).value_or(entry.default_text);
}

bool parse_flag(std::string_view text, bool* value) {
    for (const char* yes : {"1", "on", "true", "yes"}) {
        if (text == yes) return *value = true, true;
    }
    for (const char* no : {"0", "off", "false", "no"}) {
        if (text == no) return *value = false, true;
    }
    return false;
}

bool parse_int(std::string_view text, std::int64_t* value) {
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return failure == std::errc{} && end == text.data() + text.size();
}

bool is_choice(std::string_view choices, std::string_view text) {
    while (!choices.empty()) {
        const std::size_t bar = choices.find('|');
        if (choices.substr(0, bar) == text) return true;
        if (bar == std::string_view::npos) break;
        choices.remove_prefix(bar + 1);
    }
    return false;
}

std::string allowed(const EnvEntry& entry) {
    switch (entry.type) {
        case EnvType::flag: return "0|1|on|off|true|false|yes|no";
        case EnvType::integer: return fmt::format("{}..{}", entry.min, entry.max);
        case EnvType::choice: return entry.choices;
        case EnvType::text: return "any text";
    }
    return "";
}

bool is_valid(const EnvEntry& entry, const std::string& text) {
    bool flag = false;
    std::int64_t number = 0;
    switch (entry.type) {
        case EnvType::flag: return parse_flag(text, &flag);
        case EnvType::integer:
            return parse_int(text, &number) && number >= entry.min && number <= entry.max;
        case EnvType::choice: return is_choice(entry.choices, text);
        case EnvType::text: return true;
    }
    return false;
}

const EnvEntry& checked_entry(EnvVar variable, EnvType wanted) {
    const EnvEntry& entry = env_entry(variable);
    if (entry.type != wanted) {
        raise(ErrorCode::internal, kNoRank, "environment variable {} is of type {}, read as {}",
              entry.name, type_name(entry.type), type_name(wanted));
    }
    return entry;
}

std::string checked_text(EnvVar variable, EnvType wanted) {
    const EnvEntry& entry = checked_entry(variable, wanted);
    std::string text = value_text(entry);
    // Only what a person wrote can be wrong; an empty default means "not set".
    if (env_is_set(variable) && !is_valid(entry, text)) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "environment variable {}='{}' is not valid; it is of type {}, allowed: {}",
              entry.name, text, type_name(entry.type), allowed(entry));
    }
    return text;
}

}  // namespace

std::span<const EnvEntry> env_table() noexcept {
    return kTable;
}

const EnvEntry& env_entry(EnvVar variable) noexcept {
    return kTable[static_cast<std::size_t>(variable)];
}

std::optional<std::string> env_raw(EnvVar variable) {
    {
        Overrides& all = overrides();
        const std::lock_guard lock(all.mutex);
        if (const auto found = all.values.find(variable); found != all.values.end()) {
            if (found->second.empty()) return std::nullopt;
            return found->second;
        }
    }
    const char* text = std::getenv(env_entry(variable).name);
    if (text == nullptr || *text == '\0') return std::nullopt;
    return std::string(text);
}

bool env_is_set(EnvVar variable) {
    return env_raw(variable).has_value();
}

bool env_flag(EnvVar variable) {
    bool value = false;
    parse_flag(checked_text(variable, EnvType::flag), &value);
    return value;
}

std::int64_t env_int(EnvVar variable) {
    std::int64_t value = 0;
    parse_int(checked_text(variable, EnvType::integer), &value);
    return value;
}

std::string env_choice(EnvVar variable) {
    return checked_text(variable, EnvType::choice);
}

std::string env_text(EnvVar variable) {
    return checked_text(variable, EnvType::text);
}

std::string env_dump_text() {
    std::string result;
    for (const EnvEntry& entry : kTable) {
        const std::string value = value_text(entry);
        const bool set = env_is_set(entry.id);
        result += fmt::format("{}={}  [{}; {}; default {}] {}{}\n", entry.name, value,
                              type_name(entry.type), allowed(entry),
                              *entry.default_text ? entry.default_text : "unset", entry.help,
                              set && !is_valid(entry, value) ? "  << NOT VALID" : "");
    }
    return result;
}

std::string env_dump_json() {
    std::string result = "[";
    for (const EnvEntry& entry : kTable) {
        const std::string value = value_text(entry);
        const bool set = env_is_set(entry.id);
        result += fmt::format(
            "{}{{\"name\":{},\"value\":{},\"set\":{},\"valid\":{},\"type\":{},\"allowed\":{},"
            "\"default\":{},\"help\":{}}}",
            result.size() > 1 ? "," : "", json_quote(entry.name), json_quote(value), set,
            !set || is_valid(entry, value), json_quote(type_name(entry.type)),
            json_quote(allowed(entry)), json_quote(entry.default_text), json_quote(entry.help));
    }
    return result + "]";
}

EnvOverride::EnvOverride(EnvVar variable, std::string_view value)
    : variable_(variable), had_before_(false) {
    Overrides& all = overrides();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.values.find(variable); found != all.values.end()) {
        had_before_ = true;
        before_ = found->second;
    }
    all.values[variable] = std::string(value);
}

EnvOverride::~EnvOverride() {
    Overrides& all = overrides();
    const std::lock_guard lock(all.mutex);
    if (had_before_) {
        all.values[variable_] = before_;
    } else {
        all.values.erase(variable_);
    }
}

}  // namespace gimlet

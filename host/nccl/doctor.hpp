// SPDX-License-Identifier: Apache-2.0
// What `gimlet doctor` knows: the facts, and for each obstacle its reason and its cure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/cuda/device_info.hpp"
#include "host/nccl/topology.hpp"

namespace gimlet {

enum class Severity { note, warning, obstacle };
const char* severity_name(Severity severity) noexcept;

struct Finding {
    Severity severity = Severity::note;
    std::string subject;  ///< "gin", "version", "mps", "nvls", "symmetric memory", "device"
    std::string text;     ///< what was seen
    std::string cure;     ///< what to do; empty if nothing has to be done
};

/// Environment values that change NCCL's mind; empty = unset.
struct DoctorEnvironment {
    std::string gin_enable, gin_type, nvls_enable, multi_rank_gpu, cumem_enable, win_enable,
        cross_nic, rma_plugin, rma_engine, gin_plugin, lsa_team_size;
};
DoctorEnvironment read_doctor_environment();

/// What NCCL would find when it looks for an RMA plugin, found in the same way.
struct RmaPluginFacts {
    std::string requested;  ///< NCCL_RMA_PLUGIN, or NCCL's default name
    std::string path;       ///< file that was loaded; empty if none
    std::string name;       ///< as the plugin calls itself
    int table_version = 0;  ///< 14 or 13; 0: the file has no table that NCCL knows
    std::string error;      ///< of the loader
    bool ours() const noexcept { return name == "gimlet"; }
};

/// Loads and unloads the library. Never raises.
RmaPluginFacts probe_rma_plugin(const std::string& requested);

struct DoctorFacts {
    std::string version, git_hash, backend;
    int nccl_compiled = 0;
    int nccl_runtime = 0;
    int cuda_runtime = 0;  ///< 13000 = 13.0
    int cuda_driver = 0;
    std::vector<DeviceInfo> devices;
    std::string device_error;  ///< why `devices` is not complete; "" if it is
    DoctorEnvironment environment;
    RmaPluginFacts rma_plugin;
    std::optional<Topology> topology;  ///< absent before a communicator exists
    std::vector<Finding> findings;

    bool healthy() const noexcept;  ///< no obstacle
    std::string text() const;
    std::string json() const;
};

/// Local. Facts that need no communicator; never raises for a sick machine, that becomes a finding.
DoctorFacts collect_doctor_facts();

/// Adds to `facts.findings` what follows from everything else in `facts`. Pure. After setting
/// `topology`, clear the findings and call it again.
void diagnose(DoctorFacts* facts);

}  // namespace gimlet

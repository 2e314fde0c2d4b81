// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/doctor.hpp"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <string_view>

#include "host/base/env.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"
#include "host/base/version.hpp"
#include "host/nccl/version.hpp"

namespace gimlet {

namespace {

/// "13.0" for 13000.
std::string cuda_version_text(int version) {
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void diagnose_versions(DoctorFacts* facts) {
    if (const auto fault = nccl_version_fault(facts->nccl_compiled, facts->nccl_runtime)) {
        facts->findings.push_back({Severity::obstacle, "version", *fault,
                                   "load the NCCL that the library was built with, or rebuild"});
    }
    if (facts->cuda_driver > 0 && facts->cuda_driver < facts->cuda_runtime) {
        facts->findings.push_back(
            {Severity::warning, "version",
             fmt::format("the driver supports CUDA {}, the runtime is {}",
                         cuda_version_text(facts->cuda_driver),
                         cuda_version_text(facts->cuda_runtime)),
             "works within one major version; otherwise install a newer driver"});
    }
}

void diagnose_devices(DoctorFacts* facts) {
    if (!facts->device_error.empty()) {
        facts->findings.push_back({Severity::obstacle, "device", facts->device_error,
                                   "check the driver with nvidia-smi"});
    } else if (facts->devices.empty()) {
        facts->findings.push_back({Severity::obstacle, "device", "no CUDA device is visible",
                                   "check nvidia-smi and CUDA_VISIBLE_DEVICES, or build with "
                                   "GIMLET_BACKEND=emulator"});
    }
    for (const DeviceInfo& device : facts->devices) {
        if (device.compute_capability < 90) {
            facts->findings.push_back(
                {Severity::obstacle, "device",
                 fmt::format("device {} ({}) has compute capability {}.{}; bulk copies need 9.0",
                             device.device, device.name, device.compute_capability / 10,
                             device.compute_capability % 10),
                 "use a Hopper or newer GPU"});
        }
        if (device.gpu_direct_rdma_with_vmm == 0) {
            facts->findings.push_back({Severity::warning, "gin",
                                       fmt::format("device {}: the driver offers no GPUDirect RDMA "
                                                   "for VMM memory, so NCCL switches "
                                                   "GIN off whatever the plugin says",
                                                   device.device),
                                       "use a newer driver, or a machine without virtualised GPUs; "
                                       "no variable changes this"});
        }
    }
}

void diagnose_environment(DoctorFacts* facts) {
    const DoctorEnvironment& env = facts->environment;
    const auto add = [&](Severity severity, const char* subject, std::string text,
                         std::string cure) {
        facts->findings.push_back({severity, subject, std::move(text), std::move(cure)});
    };
    if (env.win_enable == "0") {
        add(Severity::obstacle, "symmetric memory", "NCCL_WIN_ENABLE is 0",
            "unset NCCL_WIN_ENABLE");
    }
    if (env.cumem_enable == "0") {
        add(Severity::obstacle, "symmetric memory", "NCCL_CUMEM_ENABLE is 0",
            "unset NCCL_CUMEM_ENABLE");
    }
    if (env.gin_enable == "0") {
        add(Severity::warning, "gin",
            "NCCL_GIN_ENABLE is 0: NCCL reports GIN as present and fails when it is used",
            "unset NCCL_GIN_ENABLE, or run in one LSA team");
    }
    if (env.cross_nic == "0") {
        add(Severity::warning, "gin",
            "NCCL_CROSS_NIC is 0: GIN reaches only ranks with the same LSA index",
            "unset NCCL_CROSS_NIC");
    }
    if (env.rma_plugin == "none") {
        add(Severity::note, "gin", "NCCL_RMA_PLUGIN is none: no GIN without an RDMA NIC",
            "set it to libnccl-rma-gimlet.so if there is none");
    }
    if (env.multi_rank_gpu == "1" && env.nvls_enable == "1") {
        add(Severity::obstacle, "nvls",
            "NCCL_NVLS_ENABLE is 1 together with NCCL_MULTI_RANK_GPU_ENABLE: NCCL refuses to start",
            "unset NCCL_NVLS_ENABLE or set it to 0");
    }
}

/// What is left where there is no RDMA NIC.
const char* without_nic(int nccl_runtime) {
    constexpr int kFirstWithSockets = 23200;
    return nccl_runtime < kFirstWithSockets
               ? "without an RDMA NIC this NCCL offers GIN through an RMA plugin only"
               : "without an RDMA NIC there are an RMA plugin and NCCL's socket backend, which "
                 "needs "
                 "GDRCopy (we have not tried that one on a GPU)";
}

void diagnose_rma_plugin(DoctorFacts* facts) {
    const RmaPluginFacts& plugin = facts->rma_plugin;
    const bool was_asked_for = !facts->environment.rma_plugin.empty();
    if (!was_asked_for && plugin.path.empty()) return;  // nobody wants one
    if (plugin.requested == "none") return;             // said elsewhere
    if (plugin.path.empty()) {
        facts->findings.push_back(
            {Severity::warning, "rma plugin",
             fmt::format("NCCL_RMA_PLUGIN is {}, which cannot be loaded ({}); NCCL goes on without "
                         "it, and says so only with NCCL_DEBUG=INFO",
                         plugin.requested, plugin.error),
             "give the absolute path, the same on all ranks"});
        return;
    }
    if (plugin.table_version == 0) {
        facts->findings.push_back(
            {Severity::warning, "rma plugin",
             fmt::format("{} exports neither ncclRmaPlugin_v14 nor ncclRmaPlugin_v13", plugin.path),
             "set NCCL_RMA_PLUGIN to libnccl-rma-gimlet.so"});
        return;
    }
    std::string text = fmt::format("NCCL would load {} (\"{}\", table version {})", plugin.path,
                                   plugin.name, plugin.table_version);
    if (plugin.ours()) {
        const std::string& forced = facts->environment.rma_engine;
        text +=
            forced.empty() || forced == "auto"
                ? "; it chooses loopback for ranks of one process, ipc for processes of one host"
                : fmt::format("; GIMLET_RMA_ENGINE forces {}", forced);
    }
    facts->findings.push_back({Severity::note, "rma plugin", text, ""});
}

void diagnose_topology(DoctorFacts* facts) {
    if (!facts->topology) return;
    const Topology& topology = *facts->topology;
    if (!topology.symmetric_memory) {
        facts->findings.push_back(
            {Severity::obstacle, "symmetric memory",
             fmt::format("NCCL offers no symmetric memory to these {} ranks in {} LSA team(s)",
                         topology.size, topology.lsa_team_count),
             topology.lsa_team_count > 1 && topology.railed_gin_type == GinType::none
                 ? "several LSA teams need GIN: provide an RDMA NIC or an RMA plugin"
                 : "look for cuMemEnable and P2P in the output of NCCL_DEBUG=INFO"});
    }
    if (topology.gin_type != GinType::none) {
        facts->findings.push_back(
            {Severity::note, "gin",
             fmt::format("backend {} reaches all ranks", gin_type_name(topology.gin_type)), ""});
    } else if (topology.railed_gin_type != GinType::none) {
        facts->findings.push_back(
            {Severity::warning, "gin",
             fmt::format("backend {} reaches only ranks with the same LSA index",
                         gin_type_name(topology.railed_gin_type)),
             "unset NCCL_CROSS_NIC"});
    } else {
        facts->findings.push_back(
            {topology.lsa_team_count > 1 ? Severity::obstacle : Severity::note, "gin",
             fmt::format(
                 "none; refused: GDAKI needs a Mellanox RDMA NIC, the proxy needs an RMA plugin "
                 "(NCCL_RMA_PLUGIN is {}); {}{}",
                 facts->environment.rma_plugin.empty() ? "unset" : facts->environment.rma_plugin,
                 without_nic(facts->nccl_runtime),
                 facts->environment.gin_type.empty()
                     ? ""
                     : fmt::format("; NCCL_GIN_TYPE={} allows only that backend",
                                   facts->environment.gin_type)),
             topology.lsa_team_count > 1
                 ? "set NCCL_RMA_PLUGIN=libnccl-rma-gimlet.so on all ranks, or use one LSA team"
                 : "not needed: one LSA team works without GIN"});
    }
    const std::vector<int> sharing = topology.ranks_on_my_gpu();
    if (sharing.size() < 2) return;
    const RankPlace& mine = topology.places[static_cast<std::size_t>(topology.rank)];
    if (topology.shares_gpu_across_processes() && mine.mps_client == 0) {
        facts->findings.push_back(
            {Severity::warning, "mps",
             fmt::format(
                 "ranks {} are processes that share one GPU, and no MPS daemon is in use: the GPU "
                 "switches between them in slices of milliseconds, a barrier takes thousands of "
                 "times "
                 "longer",
                 format_ranks(sharing)),
             "start nvidia-cuda-mps-control -d with CUDA_MPS_PIPE_DIRECTORY in a folder of your "
             "own, and "
             "set the same for the ranks"});
    }
    facts->findings.push_back(
        {Severity::note, "device",
         fmt::format(
             "ranks {} share one GPU: their kernels must be resident together, {} SMs for {} ranks",
             format_ranks(sharing), mine.sm_count, sharing.size()),
         fmt::format("keep each rank's grid at {} blocks or fewer",
                     mine.sm_count / static_cast<int>(sharing.size()))});
}

}  // namespace

const char* severity_name(Severity severity) noexcept {
    switch (severity) {
        case Severity::note: return "note";
        case Severity::warning: return "warning";
        case Severity::obstacle: return "obstacle";
    }
    return "unknown";
}

DoctorEnvironment read_doctor_environment() {
    const auto read = [](EnvVar variable) { return env_raw(variable).value_or(""); };
    DoctorEnvironment result;
    result.gin_enable = read(EnvVar::nccl_gin_enable);
    result.gin_type = read(EnvVar::nccl_gin_type);
    result.nvls_enable = read(EnvVar::nccl_nvls_enable);
    result.multi_rank_gpu = read(EnvVar::nccl_multi_rank_gpu);
    result.cumem_enable = read(EnvVar::nccl_cumem_enable);
    result.win_enable = read(EnvVar::nccl_win_enable);
    result.cross_nic = read(EnvVar::nccl_cross_nic);
    result.rma_plugin = read(EnvVar::nccl_rma_plugin);
    result.rma_engine = read(EnvVar::rma_engine);
    result.gin_plugin = read(EnvVar::nccl_gin_plugin);
    result.lsa_team_size = read(EnvVar::nccl_lsa_team_size);
    return result;
}

RmaPluginFacts probe_rma_plugin(const std::string& requested) {
    RmaPluginFacts facts;
    facts.requested = requested.empty() ? "libnccl-rma.so" : requested;
    if (facts.requested == "none") return facts;
    // NCCL takes the first name of a list that loads, and completes a bare word.
    std::string_view rest = facts.requested;
    while (!rest.empty() && facts.path.empty()) {
        const std::string name(rest.substr(0, rest.find(',')));
        rest.remove_prefix(std::min(rest.size(), name.size() + 1));
        void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) facts.error = dlerror();
        if (library == nullptr && name.find('/') == std::string::npos) {
            library = dlopen(fmt::format("libnccl-rma-{}.so", name).c_str(), RTLD_NOW | RTLD_LOCAL);
        }
        if (library == nullptr) continue;
        const link_map* map = nullptr;
        facts.path = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
        for (const int version : {14, 13}) {
            const void* table = dlsym(library, fmt::format("ncclRmaPlugin_v{}", version).c_str());
            if (table == nullptr) continue;
            facts.table_version = version;
            facts.name = *static_cast<const char* const*>(table);  // the first member is the name
            break;
        }
        (void)dlclose(library);
    }
    return facts;
}

DoctorFacts collect_doctor_facts() {
    DoctorFacts facts;
    facts.version = version_text();
    facts.git_hash = git_hash();
    facts.backend = backend_name();
    facts.nccl_compiled = nccl_compiled_version();
    facts.environment = read_doctor_environment();
    facts.rma_plugin = probe_rma_plugin(facts.environment.rma_plugin);
    (void)cudaRuntimeGetVersion(&facts.cuda_runtime);
    (void)cudaDriverGetVersion(&facts.cuda_driver);
    try {
        facts.nccl_runtime = nccl_runtime_version();
        int count = 0;
        if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
        (void)cudaGetLastError();
        for (int device = 0; device < count; ++device) {
            facts.devices.push_back(query_device_info(device));
        }
    } catch (const Error& error) {
        facts.device_error = error.message();
    }
    diagnose(&facts);
    return facts;
}

void diagnose(DoctorFacts* facts) {
    diagnose_versions(facts);
    diagnose_devices(facts);
    diagnose_environment(facts);
    diagnose_rma_plugin(facts);
    diagnose_topology(facts);
}

bool DoctorFacts::healthy() const noexcept {
    for (const Finding& finding : findings) {
        if (finding.severity == Severity::obstacle) return false;
    }
    return true;
}

std::string DoctorFacts::text() const {
    std::string result = fmt::format(
        "gimlet {} ({}, {})\nNCCL {} at run time, {} at compile time\nCUDA {} at run time, driver "
        "up to {}\n",
        version, git_hash, backend, nccl_version_text(nccl_runtime),
        nccl_version_text(nccl_compiled), cuda_version_text(cuda_runtime),
        cuda_version_text(cuda_driver));
    for (const DeviceInfo& device : devices) result += device.text() + "\n";
    if (topology) result += topology->text() + "\n";
    for (const Finding& finding : findings) {
        result += fmt::format("{:<8} {}: {}\n", severity_name(finding.severity), finding.subject,
                              finding.text);
        if (!finding.cure.empty()) result += fmt::format("         cure: {}\n", finding.cure);
    }
    return result + (healthy() ? "healthy\n" : "not usable: see the obstacles above\n");
}

std::string DoctorFacts::json() const {
    std::string device_list;
    for (const DeviceInfo& device : devices) {
        device_list += fmt::format(
            "{}{{\"device\":{},\"name\":{},\"sm_count\":{},\"compute_capability\":{},\"memory_"
            "bytes\":{},"
            "\"shared_optin_bytes\":{},\"pci_bus_id\":{}}}",
            device_list.empty() ? "" : ",", device.device, json_quote(device.name), device.sm_count,
            device.compute_capability, device.memory_bytes, device.shared_optin_bytes,
            json_quote(device.pci_bus_id));
    }
    std::string finding_list;
    for (const Finding& finding : findings) {
        finding_list += fmt::format(
            "{}{{\"severity\":{},\"subject\":{},\"text\":{},\"cure\":{}}}",
            finding_list.empty() ? "" : ",", json_quote(severity_name(finding.severity)),
            json_quote(finding.subject), json_quote(finding.text), json_quote(finding.cure));
    }
    return fmt::format(
        "{{\"version\":{},\"git_hash\":{},\"backend\":{},\"nccl_compiled\":{},\"nccl_runtime\":{},"
        "\"cuda_runtime\":{},\"cuda_driver\":{},\"healthy\":{},\"devices\":[{}],\"topology\":{},"
        "\"findings\":[{}]}}",
        json_quote(version), json_quote(git_hash), json_quote(backend),
        json_quote(nccl_version_text(nccl_compiled)), json_quote(nccl_version_text(nccl_runtime)),
        cuda_runtime, cuda_driver, healthy(), device_list, topology ? topology->json() : "null",
        finding_list);
}

}  // namespace gimlet

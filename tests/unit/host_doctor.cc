// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "host/nccl/doctor.hpp"
#include "host/nccl/version.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

DoctorFacts healthy_facts() {
    DoctorFacts facts;
    facts.version = "0.1.0";
    facts.git_hash = "abc";
    facts.backend = "cuda";
    facts.nccl_compiled = 23007;
    facts.nccl_runtime = 23007;
    facts.cuda_runtime = 13000;
    facts.cuda_driver = 13000;
    DeviceInfo device;
    device.device = 0;
    device.name = "Some \"GPU\"";
    device.compute_capability = 90;
    device.sm_count = 132;
    device.gpu_direct_rdma_with_vmm = 1;
    facts.devices.push_back(device);
    return facts;
}

const Finding* find(const DoctorFacts& facts, Severity severity, const std::string& subject) {
    for (const Finding& finding : facts.findings) {
        if (finding.severity == severity && finding.subject == subject) return &finding;
    }
    return nullptr;
}

Topology sharing_topology(int other_process) {
    Topology topology;
    topology.size = 2;
    topology.lsa_size = 2;
    topology.symmetric_memory = true;
    topology.places = {{1, 7, 0, 10, 132, 0}, {1, 7, 0, other_process, 132, 0}};
    return topology;
}

}  // namespace

TEST_CASE("doctor: nothing to say about a healthy machine", "[host][doctor]") {
    DoctorFacts facts = healthy_facts();
    diagnose(&facts);
    CHECK(facts.findings.empty());
    CHECK(facts.healthy());
    CHECK_THAT(facts.text(), contains_text("NCCL 2.30.7 at run time, 2.30.7 at compile time"));
    CHECK_THAT(facts.text(), contains_text("CUDA 13.0"));
    CHECK_THAT(facts.text(), contains_text("healthy"));
    CHECK_THAT(facts.json(), contains_text("\"name\":\"Some \\\"GPU\\\"\""));
    CHECK_THAT(facts.json(), contains_text("\"healthy\":true"));
}

TEST_CASE("doctor: obstacles come with a cure", "[host][doctor]") {
    DoctorFacts facts = healthy_facts();
    facts.nccl_runtime = 22809;
    facts.devices[0].compute_capability = 80;
    facts.devices[0].gpu_direct_rdma_with_vmm = 0;
    facts.environment.cumem_enable = "0";
    facts.environment.multi_rank_gpu = "1";
    facts.environment.nvls_enable = "1";
    diagnose(&facts);
    CHECK_FALSE(facts.healthy());
    REQUIRE(find(facts, Severity::obstacle, "version") != nullptr);
    CHECK_THAT(find(facts, Severity::obstacle, "version")->text, contains_text("2.28.9"));
    REQUIRE(find(facts, Severity::obstacle, "device") != nullptr);
    CHECK_THAT(find(facts, Severity::obstacle, "device")->text, contains_text("8.0"));
    CHECK(find(facts, Severity::warning, "gin") != nullptr);
    REQUIRE(find(facts, Severity::obstacle, "symmetric memory") != nullptr);
    REQUIRE(find(facts, Severity::obstacle, "nvls") != nullptr);
    CHECK_THAT(find(facts, Severity::obstacle, "nvls")->cure, contains_text("NCCL_NVLS_ENABLE"));
    for (const Finding& finding : facts.findings) CHECK_FALSE(finding.cure.empty());
    CHECK_THAT(facts.text(), contains_text("not usable"));
}

TEST_CASE("doctor: no device", "[host][doctor]") {
    DoctorFacts facts = healthy_facts();
    facts.devices.clear();
    diagnose(&facts);
    CHECK(find(facts, Severity::obstacle, "device") != nullptr);

    // Facts are looked at again after a communicator was made: what went wrong before must stay.
    facts.device_error = "no driver answers";
    for (int time = 0; time < 2; ++time) {
        facts.findings.clear();
        diagnose(&facts);
        REQUIRE(find(facts, Severity::obstacle, "device") != nullptr);
        CHECK(find(facts, Severity::obstacle, "device")->text == "no driver answers");
        CHECK_FALSE(facts.healthy());
    }
}

TEST_CASE("doctor: processes on one GPU want MPS, threads do not", "[host][doctor]") {
    DoctorFacts facts = healthy_facts();
    facts.topology = sharing_topology(11);
    diagnose(&facts);
    REQUIRE(find(facts, Severity::warning, "mps") != nullptr);
    CHECK_THAT(find(facts, Severity::warning, "mps")->cure,
               contains_text("nvidia-cuda-mps-control"));
    REQUIRE(find(facts, Severity::note, "device") != nullptr);
    CHECK_THAT(find(facts, Severity::note, "device")->cure, contains_text("66 blocks"));

    DoctorFacts threads = healthy_facts();
    threads.topology = sharing_topology(10);
    diagnose(&threads);
    CHECK(find(threads, Severity::warning, "mps") == nullptr);

    DoctorFacts served = healthy_facts();
    served.topology = sharing_topology(11);
    served.topology->places[0].mps_client = 1;
    diagnose(&served);
    CHECK(find(served, Severity::warning, "mps") == nullptr);
}

TEST_CASE("doctor: GIN backend, and why there is none", "[host][doctor]") {
    DoctorFacts facts = healthy_facts();
    facts.topology = sharing_topology(10);
    diagnose(&facts);
    REQUIRE(find(facts, Severity::note, "gin") != nullptr);  // one team: not needed
    CHECK(facts.healthy());

    DoctorFacts two = healthy_facts();
    two.topology = sharing_topology(10);
    two.topology->lsa_size = 1;
    two.topology->lsa_team_count = 2;
    two.topology->symmetric_memory = false;
    two.environment.gin_type = "3";
    diagnose(&two);
    const Finding* gin = find(two, Severity::obstacle, "gin");
    REQUIRE(gin != nullptr);
    CHECK_THAT(gin->text, contains_text("NCCL_GIN_TYPE=3"));
    CHECK_THAT(gin->cure, contains_text("NCCL_RMA_PLUGIN"));
    CHECK_THAT(gin->text, contains_text("this NCCL offers GIN through an RMA plugin only"));
    REQUIRE(find(two, Severity::obstacle, "symmetric memory") != nullptr);

    two.findings.clear();
    two.nccl_runtime = 23203;
    diagnose(&two);
    gin = find(two, Severity::obstacle, "gin");
    REQUIRE(gin != nullptr);
    CHECK_THAT(gin->text, contains_text("socket backend, which needs GDRCopy"));

    DoctorFacts rail = healthy_facts();
    rail.topology = sharing_topology(10);
    rail.topology->railed_gin_type = GinType::gdaki;
    diagnose(&rail);
    REQUIRE(find(rail, Severity::warning, "gin") != nullptr);
    CHECK_THAT(find(rail, Severity::warning, "gin")->cure, contains_text("NCCL_CROSS_NIC"));
}

TEST_CASE("doctor: the RMA plugin that NCCL would load", "[host][doctor]") {
    DoctorFacts silent = healthy_facts();
    diagnose(&silent);
    CHECK(silent.findings.empty());

    DoctorFacts missing = healthy_facts();
    missing.environment.rma_plugin = "libnccl-rma-nowhere.so";
    missing.rma_plugin = probe_rma_plugin(missing.environment.rma_plugin);
    CHECK(missing.rma_plugin.path.empty());
    diagnose(&missing);
    REQUIRE(find(missing, Severity::warning, "rma plugin") != nullptr);
    CHECK_THAT(find(missing, Severity::warning, "rma plugin")->text,
               contains_text("libnccl-rma-nowhere.so"));
    CHECK_THAT(find(missing, Severity::warning, "rma plugin")->cure, contains_text("absolute"));

    DoctorFacts other = healthy_facts();
    other.environment.rma_plugin = "nowhere,libc.so.6";  // a library, but no plugin
    other.rma_plugin = probe_rma_plugin(other.environment.rma_plugin);
    CHECK_THAT(other.rma_plugin.path, contains_text("libc.so.6"));
    diagnose(&other);
    REQUIRE(find(other, Severity::warning, "rma plugin") != nullptr);
    CHECK_THAT(find(other, Severity::warning, "rma plugin")->text,
               contains_text("exports neither"));

    DoctorFacts ours = healthy_facts();
    ours.environment.rma_plugin = "libnccl-rma-gimlet.so";
    ours.environment.rma_engine = "ipc";
    ours.rma_plugin = {"libnccl-rma-gimlet.so", "/x/libnccl-rma-gimlet.so", "gimlet", 14, ""};
    diagnose(&ours);
    REQUIRE(find(ours, Severity::note, "rma plugin") != nullptr);
    CHECK_THAT(find(ours, Severity::note, "rma plugin")->text, contains_text("forces ipc"));
    CHECK_THAT(find(ours, Severity::note, "rma plugin")->text, contains_text("version 14"));
    CHECK(ours.healthy());
}

TEST_CASE("doctor: facts of this machine can be collected without a GPU", "[host][doctor]") {
    const LogCapture quiet;
    const DoctorFacts facts = collect_doctor_facts();
    CHECK(facts.version == "0.1.0");
    CHECK(facts.nccl_compiled == nccl_compiled_version());
    CHECK_THAT(facts.json(), contains_text("\"findings\":["));
}

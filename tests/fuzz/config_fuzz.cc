// SPDX-License-Identifier: Apache-2.0
// Any config on any machine: either faults in words, or a plan whose numbers hold together.
#include <cstddef>
#include <cstdint>
#include <string>

#include "device/kernels/launch.hpp"
#include "host/base/error.hpp"
#include "runtime/config.hpp"
#include "runtime/plan.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace gimlet;

namespace {

MoeConfig take_config(fuzz::Input* input) {
    MoeConfig config;
    config.expert_count = input->number();
    config.topk = input->number();
    config.hidden = input->number();
    config.max_tokens = input->number();
    config.dispatch_type = static_cast<ElementType>(input->number());
    config.scale_words = input->number();
    config.combine_type = static_cast<ElementType>(input->number());
    config.layout = static_cast<Layout>(input->number());
    config.expert_alignment = input->number();
    config.pad_fill = static_cast<PadFill>(input->number());
    config.max_recv_rows = input->number();
    config.sm_budget = input->number();
    config.dispatch_threads = input->number();
    config.combine_threads = input->number();
    config.combine_blocks_per_sm = input->number();
    config.gin_context_count = input->number();
    config.chunk_rows = input->number();
    if (input->number() % 2 != 0) config.deadline_ns = input->take<std::uint64_t>();
    return config;
}

/// A machine that can exist: the topology's own numbers are NCCL's, and checked elsewhere.
PlanInputs take_machine(fuzz::Input* input) {
    PlanInputs inputs;
    Topology& topology = inputs.topology;
    topology.lsa_size = 1 + input->take<std::uint8_t>() % 72;
    topology.lsa_team_count = 1 + input->take<std::uint8_t>() % 20;
    topology.size = topology.lsa_size * topology.lsa_team_count;
    topology.rank = input->take<std::uint16_t>() % topology.size;
    topology.lsa_rank = topology.rank % topology.lsa_size;
    topology.lsa_team_index = topology.rank / topology.lsa_size;
    topology.gin_type = static_cast<GinType>(input->take<std::uint8_t>() % 5);
    topology.symmetric_memory = true;
    const int ranks_per_gpu = 1 + input->take<std::uint8_t>() % 8;
    const int sm_count = input->take<std::uint8_t>() % 160;
    for (int rank = 0; rank < topology.size; ++rank) {
        RankPlace place;
        place.device_id = static_cast<std::uint64_t>(rank / ranks_per_gpu) + 1;
        place.sm_count = sm_count;
        topology.places.push_back(place);
    }
    inputs.device.sm_count = sm_count;
    inputs.device.shared_optin_bytes = input->take<std::uint8_t>() * 1024;
    inputs.device.max_threads_per_block = 1024;
    inputs.device.memory_bytes = std::uint64_t{1} << (20 + input->take<std::uint8_t>() % 44);
    inputs.dispatch_shared_bytes = dispatch_shared_bytes;
    inputs.actual_gin_context_count = input->take<std::uint8_t>() % 8;
    inputs.default_deadline_ns = 1;
    return inputs;
}

/// Behind everything else, so that the corpus keeps its meaning.
void take_newer_fields(fuzz::Input* input, MoeConfig* config) {
    config->mode = static_cast<ExchangeMode>(input->number());
    config->publish_rows = input->number();
    config->sync = static_cast<Sync>(input->number() % 3);
    config->tensors = static_cast<StreamTensors>(input->number() % 3);
    config->ready_rows = input->number();
    config->chunks = {input->number(), input->number(), input->number(), input->number(),
                      input->number()};
    config->pre_sum = static_cast<PreSum>(input->number());
}

void check_plan(const Plan& plan, const PlanInputs& inputs) {
    fuzz::require(plan.row_capacity >= 0 && plan.row_capacity <= plan.worst_case_rows,
                  "plan: capacity within the worst case");
    fuzz::require(plan.window_layout().total_bytes() == plan.window_bytes,
                  "plan: the regions add up to the window");
    fuzz::require(plan.window_bytes <= inputs.device.memory_bytes, "plan: the window fits");
    const auto limit = static_cast<std::uint32_t>(inputs.device.shared_optin_bytes);
    for (const KernelShape* shape : {&plan.kernels.dispatch, &plan.kernels.combine}) {
        fuzz::require(shape->shared_bytes <= limit, "plan: shared memory within the device's");
        fuzz::require(shape->slot_bytes % kBulkAlignment == 0 && shape->slot_bytes > 0,
                      "plan: pieces of 16 bytes");
        fuzz::require(shape->block_count > 0 && shape->thread_count > 0, "plan: a shape");
    }
    fuzz::require(!plan.text().empty() && !plan.json().empty(), "plan: prints itself");
    fuzz::require(plan.hash() == plan.hash(), "plan: a stable hash");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    fuzz::quiet();
    fuzz::Input input(data, bytes);
    MoeConfig config = take_config(&input);
    const PlanInputs inputs = take_machine(&input);
    take_newer_fields(&input, &config);
    const auto faults = validate(config);
    for (const auto& fault : faults) {
        fuzz::require(!fault.field.empty() && !fault.text.empty(), "config: a fault in words");
    }
    fuzz::require(config_fields(config).size() >= 18, "config: every field by name");
    try {
        const Plan plan = make_plan(config, inputs);
        fuzz::require(faults.empty(), "plan: none for a faulty config");
        check_plan(plan, inputs);
    } catch (const Error& error) {
        fuzz::require(error.code() == ErrorCode::invalid_argument ||
                          error.code() == ErrorCode::gin_unavailable ||
                          error.code() == ErrorCode::overflow,
                      "plan: the code of a refusal");
        fuzz::require(!error.message().empty(), "plan: the text of a refusal");
    }
    return 0;
}

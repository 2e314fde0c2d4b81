// SPDX-License-Identifier: Apache-2.0
// Lesson: one MoE layer from C11, with libgimlet.so and MPI.
//
//   NCCL_LSA_TEAM_SIZE=2 mpirun -n 4 gimlet_example_plain_c
//
// As one_layer.cc: every rank has three tokens of 64 bf16 elements, filled with 1.0; each expert
// returns its rows unchanged, and each token comes back as 1.0 + 1.0. Before that it shows what a
// refusal looks like.
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/capi/gimlet.h"
#include "runtime/capi/gimlet_mpi.h"

enum { kTokens = 3, kHidden = 64, kTopk = 2, kElements = kTokens * kHidden };

static void give_up(const char* what, const char* why) {
    fprintf(stderr, "%s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 2);
    abort();
}

/// A failed call has left its text.
static void must(gimlet_status status, const char* what) {
    if (status != GIMLET_OK) give_up(what, gimlet_last_error());
}

static void must_cuda(cudaError_t error, const char* what) {
    if (error != cudaSuccess) give_up(what, cudaGetErrorString(error));
}

static void* device_copy(const void* from, size_t bytes) {
    void* to = NULL;
    must_cuda(cudaMalloc(&to, bytes), "cudaMalloc");
    must_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return to;
}

/// Queues one step; the experts' work is a copy.
static int32_t queue_step(gimlet_exchange* exchange, gimlet_routing* routing,
                          const gimlet_dispatch_inputs* inputs, void* out, cudaStream_t stream) {
    gimlet_received received = gimlet_received_init();
    must(gimlet_dispatch(exchange, inputs, routing, GIMLET_COUNTS_HOST, stream, &received),
         "dispatch");
    void* answers = NULL;
    must(gimlet_combine_input(exchange, &answers), "combine input");
    const size_t bytes = (size_t)received.row_count * received.row_bytes;
    must_cuda(cudaMemcpyAsync(answers, received.rows, bytes, cudaMemcpyDeviceToDevice, stream),
              "cudaMemcpyAsync");
    gimlet_combine_inputs combine = gimlet_combine_inputs_init();
    combine.out = out;
    must(gimlet_combine(exchange, &combine, routing, stream), "combine");
    must(gimlet_exchange_synchronize(exchange, stream), "synchronize");
    return received.row_count;
}

static int run(int rank) {
    gimlet_bootstrap* bootstrap = NULL;
    must(gimlet_bootstrap_create_mpi(MPI_COMM_WORLD, &bootstrap), "bootstrap");
    gimlet_runtime* runtime = NULL;
    must(gimlet_runtime_create(bootstrap, NULL, &runtime), "runtime");
    must(gimlet_bootstrap_destroy(bootstrap), "bootstrap");

    gimlet_moe_config config = gimlet_moe_config_init();
    config.expert_count = 4;
    config.topk = kTopk;
    config.hidden = kHidden;
    config.max_tokens = kTokens;
    config.layout = GIMLET_EXPERT_MAJOR;
    gimlet_exchange* exchange = NULL;
    must(gimlet_exchange_create(runtime, &config, &exchange), "exchange");
    gimlet_routing* routing = NULL;
    must(gimlet_routing_create(exchange, &routing), "routing");

    uint16_t host[kElements];
    for (int i = 0; i < kElements; ++i) host[i] = 0x3f80;  // 1.0 in bf16
    const int32_t experts[kTokens * kTopk] = {0, 1, 1, 2, 2, 3};
    void* tokens = device_copy(host, sizeof host);
    void* indices = device_copy(experts, sizeof experts);
    void* out = device_copy(host, sizeof host);
    cudaStream_t stream = NULL;
    must_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");

    gimlet_dispatch_inputs inputs = gimlet_dispatch_inputs_init();
    inputs.rows = tokens;
    inputs.expert_indices = indices;
    // Too many tokens, on every rank: refused with a text. A refused step is a failed one, which
    // all ranks hear of; recover() ends it.
    must(gimlet_set_log_level(GIMLET_LOG_OFF), "log level");
    inputs.token_count = kTokens + 1;
    if (gimlet_dispatch(exchange, &inputs, routing, GIMLET_COUNTS_HOST, stream, NULL) == GIMLET_OK)
        give_up("dispatch", "too many tokens were accepted");
    if (rank == 0) printf("refused, as it should be: %s\n", gimlet_last_error());
    must(gimlet_exchange_recover(exchange, NULL, NULL, 0, NULL), "recover");
    must(gimlet_set_log_level(GIMLET_LOG_WARN), "log level");
    inputs.token_count = kTokens;
    const int32_t row_count = queue_step(exchange, routing, &inputs, out, stream);

    must_cuda(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost), "cudaMemcpy");
    int right = 1;
    for (int i = 0; i < kElements; ++i) right = right && host[i] == 0x4000;  // 2.0
    printf("rank %d received %d rows; its tokens came back %s\n", rank, (int)row_count,
           right ? "right" : "WRONG");

    // The end: collective closes first, then the handles.
    must(gimlet_routing_destroy(routing), "routing");
    must(gimlet_exchange_close(exchange), "exchange");
    must(gimlet_exchange_destroy(exchange), "exchange");
    must(gimlet_runtime_close(runtime), "runtime");
    must(gimlet_runtime_destroy(runtime), "runtime");
    cudaFree(tokens);
    cudaFree(indices);
    cudaFree(out);
    cudaStreamDestroy(stream);
    return right ? 0 : 1;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int devices = 0;
    must_cuda(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    must_cuda(cudaSetDevice(rank % devices), "cudaSetDevice");
    if (rank == 0) printf("gimlet %s, %s\n", gimlet_version(), gimlet_backend());
    const int status = run(rank);
    MPI_Finalize();
    return status;
}

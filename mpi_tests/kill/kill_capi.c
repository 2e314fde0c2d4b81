// SPDX-License-Identifier: Apache-2.0
// The same from C: one process is killed; the others' bootstrap over MPI names it in time, and they
// exclude it without a bootstrap of their own making. Run by mpi_tests/run_kills.sh.
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/capi/gimlet.h"
#include "runtime/capi/gimlet_mpi.h"

/// Ends the process without MPI_Finalize, which would wait for the dead.
_Noreturn static void leave(int rank, const char* what, const char* why) {
    if (why != NULL) printf("FAILED rank %d: %s: %s\n", rank, what, why);
    fflush(NULL);
    _Exit(why != NULL);
}

static void must(int rank, gimlet_status status, const char* what) {
    if (status != GIMLET_OK) leave(rank, what, gimlet_last_error());
}

/// `what` must fail with `wanted` and a text that contains `part`.
static void must_fail(int rank, gimlet_status status, gimlet_status wanted, const char* part,
                      const char* what) {
    if (status == GIMLET_OK) leave(rank, what, "it went well");
    if (status != wanted || strstr(gimlet_last_error(), part) == NULL)
        leave(rank, what, gimlet_last_error());
}

/// Groups of two, as a check that messages of one do not reach the other.
static void split(int rank, gimlet_bootstrap* all) {
    gimlet_bootstrap* pair = NULL;
    must(rank, gimlet_bootstrap_split(all, rank / 2, -rank, &pair), "split");
    int32_t index = -1;
    int32_t size = 0;
    int32_t both[2] = {-1, -1};
    must(rank, gimlet_bootstrap_rank(pair, &index, &size), "rank");
    if (size > 2) leave(rank, "split", "more than two");
    must(rank, gimlet_bootstrap_all_gather(pair, &rank, sizeof rank, both), "all-gather");
    if (both[index] != rank) leave(rank, "split", "another order");
    must(rank, gimlet_bootstrap_destroy(pair), "destroy");
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int32_t victim = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 1;
    gimlet_set_log_level(GIMLET_LOG_OFF);

    gimlet_bootstrap* bootstrap = NULL;
    must(rank, gimlet_bootstrap_create_mpi(MPI_COMM_WORLD, &bootstrap), "bootstrap");
    split(rank, bootstrap);
    gimlet_runtime_config config = gimlet_runtime_config_init();
    config.deadline_ns = 2000000000;
    config.first_step = UINT32_MAX;
    gimlet_runtime* runtime = NULL;
    must(rank, gimlet_runtime_create(bootstrap, &config, &runtime), "runtime");
    must(rank, gimlet_runtime_barrier(runtime, NULL, 1, 0), "barrier");
    must(rank, gimlet_runtime_synchronize(runtime, NULL), "synchronize");
    if (rank == victim) raise(SIGKILL);

    char named[32];
    snprintf(named, sizeof named, "rank %d", (int)victim);
    gimlet_status status = gimlet_runtime_barrier(runtime, NULL, 1, 0);
    if (status == GIMLET_OK) status = gimlet_runtime_synchronize(runtime, NULL);
    must_fail(rank, status, GIMLET_TIMEOUT, named, "barrier without the victim");
    must_fail(rank, gimlet_bootstrap_barrier(bootstrap), GIMLET_TIMEOUT, named,
              "bootstrap without the victim");
    must(rank, gimlet_runtime_exclude(runtime, &victim, 1, NULL, NULL, NULL, 0, NULL), "exclude");
    must(rank, gimlet_runtime_barrier(runtime, NULL, 1, 0), "barrier of those that are left");
    must(rank, gimlet_runtime_synchronize(runtime, NULL), "synchronize");
    must(rank, gimlet_runtime_close(runtime), "close");
    must(rank, gimlet_runtime_destroy(runtime), "destroy");
    printf("survived: rank %d\n", rank);
    leave(rank, NULL, NULL);
}

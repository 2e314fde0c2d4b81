// SPDX-License-Identifier: Apache-2.0
// A bootstrap over MPI for programs in C. It is compiled by the caller, so that libgimlet.so works
// with any MPI.
#pragma once

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>

#include "runtime/capi/gimlet.h"

static inline int gimlet_mpi_all_gather(void* context, const void* send, size_t bytes,
                                        void* receive) {
    if (bytes > INT_MAX) return MPI_ERR_COUNT;
    return MPI_Allgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE,
                         *(MPI_Comm*)context);
}

static inline int gimlet_mpi_barrier(void* context) {
    return MPI_Barrier(*(MPI_Comm*)context);
}

static inline void gimlet_mpi_release(void* context) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free((MPI_Comm*)context);
    free(context);
}

static inline gimlet_status gimlet_bootstrap_create_mpi(MPI_Comm comm,
                                                        gimlet_bootstrap** bootstrap);

static inline int gimlet_mpi_split(void* context, int32_t color, int32_t key,
                                   gimlet_bootstrap** child) {
    MPI_Comm part = MPI_COMM_NULL;
    const int result =
        MPI_Comm_split(*(MPI_Comm*)context, color < 0 ? MPI_UNDEFINED : color, key, &part);
    if (result != MPI_SUCCESS || part == MPI_COMM_NULL) return result;
    const gimlet_status status = gimlet_bootstrap_create_mpi(part, child);
    MPI_Comm_free(&part);
    return (int)status;
}

/// Collective over `comm`, of which it uses a duplicate. MPI must be initialised. Destroy the
/// bootstrap, and everything made on it, before MPI_Finalize.
static inline gimlet_status gimlet_bootstrap_create_mpi(MPI_Comm comm,
                                                        gimlet_bootstrap** bootstrap) {
    MPI_Comm* own = (MPI_Comm*)malloc(sizeof *own);
    if (own == NULL) return GIMLET_OUT_OF_MEMORY;
    if (MPI_Comm_dup(comm, own) != MPI_SUCCESS) {
        free(own);
        return GIMLET_MPI;
    }
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(*own, &rank);
    MPI_Comm_size(*own, &size);
    gimlet_bootstrap_callbacks callbacks = gimlet_bootstrap_callbacks_init();
    callbacks.context = own;
    callbacks.rank = rank;
    callbacks.size = size;
    callbacks.all_gather = gimlet_mpi_all_gather;
    callbacks.barrier = gimlet_mpi_barrier;
    callbacks.split = gimlet_mpi_split;
    callbacks.release = gimlet_mpi_release;
    const gimlet_status status = gimlet_bootstrap_create(&callbacks, bootstrap);
    if (status != GIMLET_OK) gimlet_mpi_release(own);
    return status;
}

// SPDX-License-Identifier: Apache-2.0
// A bootstrap over MPI for programs in C: calls have a deadline and name the ranks that did not
// come, and gimlet_runtime_exclude() needs no bootstrap of the caller's. It is compiled by the
// caller, so that libgimlet.so works with any MPI.
#pragma once

#include <limits.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/capi/gimlet.h"

/// A message that MPI may still read; its bytes follow.
typedef struct gimlet_mpi_message {
    struct gimlet_mpi_message* next;
    MPI_Request request;
    int32_t peer;
} gimlet_mpi_message;

typedef struct gimlet_mpi {
    MPI_Comm comm;
    gimlet_mpi_message* sending;
} gimlet_mpi;

static inline int gimlet_mpi_send(void* context, int32_t peer, int32_t tag, const void* data,
                                  size_t bytes) {
    gimlet_mpi* const mpi = (gimlet_mpi*)context;
    if (bytes > INT_MAX) return MPI_ERR_COUNT;
    gimlet_mpi_message* const message = (gimlet_mpi_message*)malloc(sizeof *message + bytes);
    if (message == NULL) return MPI_ERR_NO_MEM;
    if (bytes > 0) memcpy(message + 1, data, bytes);
    message->peer = peer;
    const int result =
        MPI_Isend(message + 1, (int)bytes, MPI_BYTE, peer, tag, mpi->comm, &message->request);
    if (result != MPI_SUCCESS) {
        free(message);
        return result;
    }
    message->next = mpi->sending;
    mpi->sending = message;
    return 0;
}

static inline int gimlet_mpi_sent(void* context, int32_t peer, int32_t* done) {
    gimlet_mpi_message** at = &((gimlet_mpi*)context)->sending;
    *done = 1;
    while (*at != NULL) {
        gimlet_mpi_message* const message = *at;
        int gone = 0;
        // A message to a dead rank may fail; the wait for that rank's answer says so better.
        if (MPI_Test(&message->request, &gone, MPI_STATUS_IGNORE) != MPI_SUCCESS || gone) {
            *at = message->next;
            free(message);
            continue;
        }
        if (message->peer == peer) *done = 0;
        at = &message->next;
    }
    return 0;
}

static inline int gimlet_mpi_probe(void* context, int32_t peer, int32_t tag, int32_t* found,
                                   size_t* bytes) {
    MPI_Status status;
    int here = 0;
    int count = 0;
    int result = MPI_Iprobe(peer, tag, ((gimlet_mpi*)context)->comm, &here, &status);
    if (result == MPI_SUCCESS && here) result = MPI_Get_count(&status, MPI_BYTE, &count);
    *found = here;
    *bytes = (size_t)count;
    return result;
}

static inline int gimlet_mpi_receive(void* context, int32_t peer, int32_t tag, void* data,
                                     size_t bytes) {
    return MPI_Recv(data, (int)bytes, MPI_BYTE, peer, tag, ((gimlet_mpi*)context)->comm,
                    MPI_STATUS_IGNORE);
}

/// MPI_Comm_free waits for other ranks, so the communicator stays until MPI_Finalize; a message
/// that is still open stays for ever.
static inline void gimlet_mpi_release(void* context) {
    int finalized = 0;
    int32_t done = 0;
    MPI_Finalized(&finalized);
    if (!finalized) gimlet_mpi_sent(context, 0, &done);
    free(context);
}

/// `MPI_Comm_dup` that gives up. What MPI may still write to outlives the call then.
static inline gimlet_status gimlet_mpi_duplicate(MPI_Comm from, uint64_t timeout_ns, MPI_Comm* to) {
    typedef struct {
        MPI_Comm comm;
        MPI_Request request;
    } duplication;
    duplication* const own = (duplication*)malloc(sizeof *own);
    if (own == NULL) return gimlet_fail(GIMLET_OUT_OF_MEMORY, "no memory for a communicator");
    if (MPI_Comm_idup(from, &own->comm, &own->request) != MPI_SUCCESS) {
        free(own);
        return gimlet_fail(GIMLET_MPI, "MPI_Comm_idup failed");
    }
    const double start = MPI_Wtime();
    for (;;) {
        int done = 0;
        if (MPI_Test(&own->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return gimlet_fail(GIMLET_MPI, "MPI_Comm_idup failed");
        if (done) break;
        if ((MPI_Wtime() - start) * 1e9 > (double)timeout_ns) {
            return gimlet_fail(GIMLET_TIMEOUT,
                               "MPI bootstrap: not all processes of the communicator came in time "
                               "(GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)");
        }
    }
    *to = own->comm;
    free(own);
    // MPI's default is to end the job without a word.
    if (MPI_Comm_set_errhandler(*to, MPI_ERRORS_RETURN) != MPI_SUCCESS)
        return gimlet_fail(GIMLET_MPI, "MPI_Comm_set_errhandler failed");
    return GIMLET_OK;
}

/// Collective over `comm`, of which it uses a duplicate. MPI must be initialised. Destroy the
/// bootstrap, and everything made on it, before MPI_Finalize. GIMLET_TIMEOUT if not all ranks come
/// within gimlet_bootstrap_timeout_ns(), which is the limit of each later call, too.
static inline gimlet_status gimlet_bootstrap_create_mpi(MPI_Comm comm,
                                                        gimlet_bootstrap** bootstrap) {
    gimlet_message_callbacks callbacks = gimlet_message_callbacks_init();
    gimlet_status status = gimlet_bootstrap_timeout_ns(&callbacks.timeout_ns);
    if (status != GIMLET_OK) return status;
    gimlet_mpi* const mpi = (gimlet_mpi*)calloc(1, sizeof *mpi);
    if (mpi == NULL) return gimlet_fail(GIMLET_OUT_OF_MEMORY, "no memory for an MPI bootstrap");
    status = gimlet_mpi_duplicate(comm, callbacks.timeout_ns, &mpi->comm);
    if (status != GIMLET_OK) {
        free(mpi);
        return status;
    }
    int rank = 0;
    int size = 1;
    MPI_Comm_rank(mpi->comm, &rank);
    MPI_Comm_size(mpi->comm, &size);
    callbacks.context = mpi;
    callbacks.rank = rank;
    callbacks.size = size;
    callbacks.send = gimlet_mpi_send;
    callbacks.sent = gimlet_mpi_sent;
    callbacks.probe = gimlet_mpi_probe;
    callbacks.receive = gimlet_mpi_receive;
    callbacks.release = gimlet_mpi_release;
    status = gimlet_bootstrap_create_messages(&callbacks, bootstrap);
    if (status != GIMLET_OK) gimlet_mpi_release(mpi);
    return status;
}

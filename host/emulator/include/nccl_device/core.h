// SPDX-License-Identifier: Apache-2.0
// Host side of the emulated device API, teams, and window pointers.
#pragma once

#include <nccl.h>

#include "coop.h"
#include "net_device.h"
#include "utility.h"

#define NCCL_GIN_MAX_CONNECTIONS 4

struct ncclDevComm;
typedef struct ncclDevComm ncclDevComm_t;

typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef struct {
    uint64_t opaque[2];
} ncclGinRequest_t;

/// Every stride-th rank of the world around this one; rank is this rank's index in it.
struct ncclTeam {
    int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;
struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};

struct ncclMultimemHandle {
    void* mcBasePtr;
};
typedef struct ncclMultimemHandle ncclMultimemHandle_t;

struct ncclLsaBarrierHandle {
    ncclDevResourceHandle_t bufHandle;
    int nBarriers;
};
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;

struct ncclGinBarrierHandle {
    ncclGinSignal_t signal0;
    ncclDevResourceHandle_t unused;
};
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;

typedef enum {
    NCCL_GIN_CONNECTION_NONE = 0,
    NCCL_GIN_CONNECTION_FULL = 1,
    NCCL_GIN_CONNECTION_RAIL = 2
} ncclGinConnectionType_t;

typedef enum {
    NCCL_GIN_TYPE_NONE = 0,
    NCCL_GIN_TYPE_PROXY = 2,
    NCCL_GIN_TYPE_GDAKI = 3,
    NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;

typedef enum ncclGinSignalOp_t { ncclGinSignalInc = 0, ncclGinSignalAdd = 1 } ncclGinSignalOp_t;

/// A buffer (and, in NCCL after 2.30.7, GIN ids) that devComm creation shall provide. As in 2.30.7
/// the GIN fields of list entries are dropped without an error: their out pointers stay untouched.
struct ncclDevResourceRequirements {
    struct ncclDevResourceRequirements* next;
    size_t bufferSize, bufferAlign;
    ncclDevResourceHandle_t* outBufferHandle;
    int ginSignalCount;
    int ginCounterCount;
    ncclGinSignal_t* outGinSignalStart;
    ncclGinCounter_t* outGinCounterStart;
};
typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;

struct ncclTeamRequirements {
    struct ncclTeamRequirements* next;
    ncclTeam_t team;
    bool multimem;
    ncclMultimemHandle_t* outMultimemHandle;
};
typedef struct ncclTeamRequirements ncclTeamRequirements_t;

/// What a device communicator shall have. Start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER.
struct ncclDevCommRequirements {
    size_t size;
    unsigned int magic;
    unsigned int version;
    ncclDevResourceRequirements_t* resourceRequirementsList;
    ncclTeamRequirements_t* teamRequirementsList;
    bool lsaMultimem;
    int barrierCount;
    int lsaBarrierCount;
    int railGinBarrierCount;
    int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
    bool ginForceEnable;
    int ginContextCount;  ///< a hint: read ncclDevComm::ginContextCount back
    int ginSignalCount;   ///< per context, ids from 0
    int ginCounterCount;  ///< per context, ids from 0
    ncclGinConnectionType_t ginConnectionType;
    bool ginExclusiveContexts;
    int ginQueueDepth;
    int ginTrafficClass;
    int worldGinBarrierCount;
    bool ginStrongSignalsRequired;  ///< also makes the legacy signal actions strong
    bool ginVaSignalsRequired;
};
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                             \
    {                                                                                      \
        sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* header */ \
            NULL, NULL,                      /* resource and team lists */                 \
            false,                           /* lsaMultimem */                             \
            0, 0, 0,                         /* hybrid, LSA, rail GIN barriers */          \
            0, 0,                            /* LLA2A blocks, slots */                     \
            false,                           /* ginForceEnable */                          \
            4, 0, 0,                         /* GIN contexts, signals, counters */         \
            NCCL_GIN_CONNECTION_NONE, false, /* connection type, exclusive contexts */     \
            0, NCCL_CONFIG_UNDEF_INT,        /* queue depth, traffic class */              \
            0,                               /* world GIN barriers */                      \
            true, true                       /* strong signals, VA signals required */     \
    }

struct ncclCommProperties {
    size_t size;
    unsigned int magic;
    unsigned int version;
    int rank;
    int nRanks;
    int cudaDev;
    int nvmlDev;
    bool deviceApiSupport;
    bool multimemSupport;
    ncclGinType_t ginType;
    int nLsaTeams;
    bool hostRmaSupport;
    ncclGinType_t railedGinType;
};
typedef struct ncclCommProperties ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                           \
    {                                                                                              \
        sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, \
            NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE                                       \
    }

/// What this communicator can do. Local.
NCCL_EXTERN_C ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);
/// Collective. All ranks must ask for the same. The result is passed to kernels by value.
NCCL_EXTERN_C ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                                             ncclDevComm_t* out_dev_comm);
/// Local. Refuses GIN operations that are still in flight: end with a barrier on every context
/// used.
NCCL_EXTERN_C ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* dev_comm);

/// Host getters. They know only windows of ncclCommWindowRegister, not devComm.resourceWindow.
NCCL_EXTERN_C ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsa_rank,
                                                   void** out_ptr);
/// Success with NULL for a peer outside of the LSA team.
NCCL_EXTERN_C ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer,
                                                    void** out_ptr);
/// There is no multicast here: success with NULL.
NCCL_EXTERN_C ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                                           void** out_ptr);
NCCL_EXTERN_C ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                                        ncclMultimemHandle_t multimem,
                                                        void** out_ptr);

NCCL_EXTERN_C ncclTeam_t ncclTeamWorld(ncclComm_t comm);
NCCL_EXTERN_C ncclTeam_t ncclTeamLsa(ncclComm_t comm);
NCCL_EXTERN_C ncclTeam_t ncclTeamRail(ncclComm_t comm);
NCCL_EXTERN_C int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
NCCL_EXTERN_C int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

struct ncclDevCommWindowTable;
typedef struct ncclDevCommWindowTable* ncclDevCommWindowTable_t;

/// A rank's view of its communicator's device side. Fields are filled by ncclDevCommCreate.
struct ncclDevComm {
    unsigned int magic;
    unsigned int version;
    int rank, nRanks;
    int lsaRank, lsaSize;
    ncclDevCommWindowTable_t windowTable;
    ncclWindow_t resourceWindow;
    ncclMultimemHandle_t lsaMultimem;
    ncclLsaBarrierHandle_t lsaBarrier;
    ncclGinBarrierHandle_t railGinBarrier;
    ncclGinBarrierHandle_t worldGinBarrier;
    ncclLsaBarrierHandle_t hybridLsaBarrier;
    ncclGinBarrierHandle_t hybridRailGinBarrier;
    ncclGinBarrierHandle_t hybridWorldGinBarrier;
    uint8_t ginConnectionCount;
    uint8_t ginNetDeviceTypes[NCCL_GIN_MAX_CONNECTIONS];
    void* ginHandles[NCCL_GIN_MAX_CONNECTIONS];  ///< [0] is the emulator's own state
    int ginSignalCount;
    int ginCounterCount;
    uint64_t* ginSignalShadows;  ///< [context][signal]
    uint32_t ginContextCount;
    bool ginConnectionsRailed;
    bool ginStrongLegacySignals;
    bool ginContextsRailed;
    uint32_t* abortFlag;  ///< NULL, as in user devComms of NCCL
};

inline ncclTeam ncclTeamWorld(const ncclDevComm& comm) {
    return {comm.nRanks, comm.rank, 1};
}
inline ncclTeam ncclTeamLsa(const ncclDevComm& comm) {
    return {comm.lsaSize, comm.lsaRank, 1};
}
inline ncclTeam ncclTeamRail(const ncclDevComm& comm) {
    return {comm.nRanks / comm.lsaSize, comm.rank / comm.lsaSize, comm.lsaSize};
}

inline int ncclTeamRankToWorld(const ncclDevComm& comm, ncclTeam team, int rank) {
    return comm.rank + team.stride * (rank - team.rank);
}
inline int ncclTeamRankToLsa(const ncclDevComm& comm, ncclTeam team, int rank) {
    return comm.lsaRank + team.stride * (rank - team.rank);
}

/// Index in team a of rank bPeer of team b; check ncclTeamRankIsMember first.
inline int ncclTeamRankToTeam(ncclTeam_t a, ncclTeam_t b, int bPeer) {
    const int distance = b.stride * (bPeer - b.rank);
    return a.rank + distance / a.stride;
}
inline bool ncclTeamRankIsMember(ncclTeam_t a, ncclTeam_t b, int bPeer) {
    const int distance = b.stride * (bPeer - b.rank);
    const int index = a.rank + distance / a.stride;
    return distance % a.stride == 0 && index >= 0 && index < a.nRanks;
}

/// parent cut into blocks of innerSize: the block of this rank, and the ranks with its place in
/// their block.
inline ncclTeam_t ncclTeamInnerFactor(ncclTeam_t parent, int innerSize) {
    return {innerSize, parent.rank % innerSize, parent.stride};
}
inline ncclTeam_t ncclTeamOuterFactor(ncclTeam_t parent, int innerSize) {
    return {parent.nRanks / innerSize, parent.rank / innerSize, parent.stride * innerSize};
}

/// index-th rank of parent that is not in subset; subset must be part of parent.
inline int ncclTeamRankInDifference(ncclTeam_t parent, ncclTeam_t subset, int index) {
    for (int rank = 0; rank < parent.nRanks; ++rank) {
        if (ncclTeamRankIsMember(subset, parent, rank)) continue;
        if (index-- == 0) return rank;
    }
    return parent.nRanks + index;
}

/// Resource handles count in units of 128 bytes.
inline size_t ncclGetResourceBufferOffset(ncclDevResourceHandle_t handle) {
    return size_t{128} * handle;
}

/// Pointers into a window. LSA peers only: anything else, and offsets beyond the window, are
/// refused.
inline void* ncclGetLocalPointer(ncclWindow_t w, size_t offset) {
    return gimlet::emu::nccl::local_pointer(w, offset, "ncclGetLocalPointer");
}
inline void* ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer) {
    return gimlet::emu::nccl::lsa_pointer(w, offset, peer, "ncclGetLsaPointer");
}
inline void* ncclGetPeerPointer(ncclWindow_t w, size_t offset, int peer) {
    const int lsa_peer = gimlet::emu::nccl::world_to_lsa(w, peer);
    return gimlet::emu::nccl::lsa_pointer(w, offset, lsa_peer, "ncclGetPeerPointer");
}
inline void* ncclGetPeerPointer(ncclWindow_t w, size_t offset, ncclTeam tm, int peer) {
    const int lsa_peer = gimlet::emu::nccl::lsa_rank(w) + tm.stride * (peer - tm.rank);
    return gimlet::emu::nccl::lsa_pointer(w, offset, lsa_peer, "ncclGetPeerPointer");
}
inline void* ncclGetMultimemPointer(ncclWindow_t, size_t, ncclMultimemHandle) {
    gimlet::emu::nccl::refuse_use("ncclGetMultimemPointer: this machine has no multicast memory");
}
inline void* ncclGetLsaMultimemPointer(ncclWindow_t, size_t, const ncclDevComm&) {
    gimlet::emu::nccl::refuse_use(
        "ncclGetLsaMultimemPointer: this machine has no multicast memory");
}

/// Window that holds ptr. On the GPU the search never ends when there is none; here it is refused.
template <typename Coop>
ncclWindow_t ncclFindWindow(Coop, const ncclDevComm& comm, const void* ptr) {
    const ncclWindow_t window = gimlet::emu::nccl::find_window(comm, ptr);
    if (window == nullptr) {
        gimlet::emu::nccl::refuse_use("ncclFindWindow: %p lies in no window of the communicator",
                                      ptr);
    }
    return window;
}

inline void* ncclGetResourceBufferLocalPointer(const ncclDevComm& comm, ncclDevResourceHandle h) {
    return ncclGetLocalPointer(comm.resourceWindow, ncclGetResourceBufferOffset(h));
}
inline void* ncclGetResourceBufferLsaPointer(const ncclDevComm& comm, ncclDevResourceHandle h,
                                             int peer) {
    return ncclGetLsaPointer(comm.resourceWindow, ncclGetResourceBufferOffset(h), peer);
}
inline void* ncclGetResourceBufferPeerPointer(const ncclDevComm& comm, ncclDevResourceHandle h,
                                              ncclTeam team, int peer) {
    return ncclGetPeerPointer(comm.resourceWindow, ncclGetResourceBufferOffset(h), team, peer);
}
inline void* ncclGetResourceBufferMultimemPointer(const ncclDevComm& comm, ncclDevResourceHandle h,
                                                  ncclMultimemHandle mm) {
    return ncclGetMultimemPointer(comm.resourceWindow, ncclGetResourceBufferOffset(h), mm);
}
inline void* ncclGetResourceBufferLsaMultimemPointer(const ncclDevComm& comm,
                                                     ncclDevResourceHandle h) {
    return ncclGetLsaMultimemPointer(comm.resourceWindow, ncclGetResourceBufferOffset(h), comm);
}

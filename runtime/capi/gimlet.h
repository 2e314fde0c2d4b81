// SPDX-License-Identifier: Apache-2.0
// Gimlet for C and everything that can call C. Needs no other header of Gimlet, CUDA or NCCL.
//
// Calls.     Each returns a gimlet_status; 0 is success. The text of a failure is kept for the
//            calling thread (gimlet_last_error). No C++ exception comes out. Outputs are written on
//            success only.
// Handles.   Made by create functions, ended by destroy functions. A null, destroyed or mistyped
//            handle is GIMLET_INVALID_ARGUMENT, always: handle values are never used twice.
// Structs.   The first member is the struct's own size. Fill it through the gimlet_..._init()
//            functions. Later versions append members; a struct of an older header gets their
//            defaults, a struct of a newer header is refused if it asks for something unknown.
// Threads.   One handle serves one thread at a time; different handles are independent.
// Streams.   `stream` is a cudaStream_t. What is queued keeps the order of the stream.
// Meaning.   The same as in runtime/runtime.hpp and runtime/exchange.hpp, unless said otherwise.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GIMLET_API __attribute__((visibility("default")))
#ifdef __cplusplus
#define GIMLET_ZEROS \
    {}
#else
#define GIMLET_ZEROS \
    { 0 }
#endif

/// Pointer targets of cudaStream_t and ncclComm_t.
struct CUstream_st;
struct ncclComm;

typedef struct gimlet_thread_group gimlet_thread_group;
typedef struct gimlet_bootstrap gimlet_bootstrap;
typedef struct gimlet_runtime gimlet_runtime;
typedef struct gimlet_exchange gimlet_exchange;
typedef struct gimlet_routing gimlet_routing;

// ---- status -------------------------------------------------------------------------------------

/// Numbers are kept for ever; new ones are appended.
typedef int32_t gimlet_status;
enum {
    GIMLET_OK = 0,
    GIMLET_INVALID_ARGUMENT = 1,  ///< a value is out of its documented range
    GIMLET_INVALID_USAGE = 2,     ///< not allowed in the object's present state
    GIMLET_OUT_OF_MEMORY = 3,
    GIMLET_CUDA = 4,    ///< a CUDA call failed
    GIMLET_NCCL = 5,    ///< an NCCL call failed
    GIMLET_MPI = 6,     ///< an MPI call failed
    GIMLET_SYSTEM = 7,  ///< the operating system, or a callback, refused
    GIMLET_VERSION_MISMATCH = 8,
    GIMLET_GIN_UNAVAILABLE = 9,
    GIMLET_NOT_SUPPORTED = 10,
    GIMLET_CONFIG_MISMATCH = 11,  ///< ranks disagree in something that must be equal
    GIMLET_TIMEOUT = 12,
    GIMLET_PEER_FAILED = 13,
    GIMLET_OVERFLOW = 14,
    GIMLET_CLOSED = 15,
    GIMLET_INTERNAL = 16  ///< a defect of this library
};

/// "invalid_argument"; "unknown" for a number that is no status. Static storage.
GIMLET_API const char* gimlet_status_name(gimlet_status status);
/// One line about the newest call of this thread that failed, "" if none has. At most
/// GIMLET_ERROR_TEXT_BYTES with its end; valid until the thread's next failure.
GIMLET_API const char* gimlet_last_error(void);
#define GIMLET_ERROR_TEXT_BYTES 4096
/// Its status and the world rank that it names, -1 if none.
GIMLET_API gimlet_status gimlet_last_error_status(void);
GIMLET_API int32_t gimlet_last_error_rank(void);
/// For code between the library and its user, such as gimlet_mpi.h: keeps `text` as the thread's
/// newest failure, and returns `status`.
GIMLET_API gimlet_status gimlet_fail(gimlet_status status, const char* text);

/// Of the library that is loaded: "0.1.0", a commit hash, "emulator" or "cuda". Static storage.
GIMLET_API const char* gimlet_version(void);
GIMLET_API const char* gimlet_git_hash(void);
GIMLET_API const char* gimlet_backend(void);

// Texts are written to `text`, cut to `text_bytes` with their end. `needed_bytes` (may be null)
// gets the room for all of it, so that a first call with null and 0 asks for the size.

// ---- log, environment, doctor -------------------------------------------------------------------

typedef int32_t gimlet_log_level;
enum {
    GIMLET_LOG_OFF = 0,
    GIMLET_LOG_ERROR = 1,
    GIMLET_LOG_WARN = 2,
    GIMLET_LOG_INFO = 3,
    GIMLET_LOG_DEBUG = 4,
    GIMLET_LOG_TRACE = 5
};

/// Called with one record at a time, by any thread. `rank` is -1 if none. Must not call Gimlet.
typedef void (*gimlet_log_function)(void* context, gimlet_log_level level, int32_t rank,
                                    const char* message);

GIMLET_API gimlet_status gimlet_set_log_level(gimlet_log_level level);
/// Null = standard error. `context` must live until another sink is set.
GIMLET_API gimlet_status gimlet_set_log_sink(gimlet_log_function function, void* context);

typedef int32_t gimlet_text_format;
enum { GIMLET_TEXT = 0, GIMLET_JSON = 1 };

/// All environment variables with value, default and help.
GIMLET_API gimlet_status gimlet_environment(gimlet_text_format format, char* text,
                                            size_t text_bytes, size_t* needed_bytes);
/// Versions, devices and findings with their cures; with the topology if `runtime` is not null.
GIMLET_API gimlet_status gimlet_doctor(gimlet_runtime* runtime, gimlet_text_format format,
                                       char* text, size_t text_bytes, size_t* needed_bytes);

// ---- configs ------------------------------------------------------------------------------------

enum { GIMLET_FLOAT32 = 0, GIMLET_FLOAT16 = 1, GIMLET_BFLOAT16 = 2, GIMLET_FLOAT8_E4M3 = 3 };
enum { GIMLET_RANK_MAJOR = 0, GIMLET_EXPERT_MAJOR = 1 };
enum { GIMLET_PAD_NONE = 0, GIMLET_PAD_ZERO = 1 };
enum { GIMLET_INT32 = 0, GIMLET_INT64 = 1 };
enum { GIMLET_COUNTS_DEVICE = 0, GIMLET_COUNTS_HOST = 1 };
enum { GIMLET_MODE_DIRECT = 0, GIMLET_MODE_HYBRID = 1, GIMLET_MODE_AUTOMATIC = 2 };
enum { GIMLET_PRE_SUM_ON = 0, GIMLET_PRE_SUM_OFF = 1 };
enum { GIMLET_SYNC_BARRIER = 0, GIMLET_SYNC_FIFO = 1 };
enum { GIMLET_TENSORS_LIBRARY = 0, GIMLET_TENSORS_CALLER = 1 };
enum { GIMLET_GRAPH_IN_PLACE = 0, GIMLET_GRAPH_COPIED = 1 };
enum { GIMLET_JOIN_AT_ONCE = 0, GIMLET_JOIN_LATER = 1 };

/// Deadlines: 0 = what the level above says, GIMLET_NO_DEADLINE = none of its own: the wait ends
/// when another rank of the step reports a failure, such as its own deadline, and otherwise never.
#define GIMLET_NO_DEADLINE UINT64_MAX

typedef struct gimlet_runtime_config {
    size_t struct_bytes;
    uint64_t deadline_ns;               ///< longest single wait of a kernel; 0 = GIMLET_TIMEOUT_MS
    int32_t barrier_gin_context_count;  ///< 1 or more; used if some peer needs GIN
    int32_t max_cta_count;              ///< blocks of NCCL's own kernels; 0 = NCCL's choice
    const char* name;                   ///< in NCCL's log; may be null
    int32_t event_ring;                 ///< 1: kernels note where they are, see gimlet_..._events()
    int32_t padding;
    uint64_t first_step;  ///< steps and barriers are numbered from the number after it
} gimlet_runtime_config;

static inline gimlet_runtime_config gimlet_runtime_config_init(void) {
    gimlet_runtime_config config = GIMLET_ZEROS;
    config.struct_bytes = sizeof config;
    config.barrier_gin_context_count = 1;
    return config;
}

/// Equal on all ranks. Ranges and defaults: MoeConfig in runtime/config.hpp.
typedef struct gimlet_moe_config {
    size_t struct_bytes;
    int32_t expert_count;
    int32_t topk;
    int32_t hidden;            ///< elements of a row; rows are multiples of 16 bytes
    int32_t max_tokens;        ///< most tokens of any rank in one dispatch
    int32_t dispatch_type;     ///< GIMLET_FLOAT32, ...
    int32_t scale_words;       ///< 32-bit words of scales a token
    int32_t combine_type;      ///< not GIMLET_FLOAT8_E4M3
    int32_t layout;            ///< GIMLET_RANK_MAJOR, GIMLET_EXPERT_MAJOR
    int32_t expert_alignment;  ///< rows; 1 for rank_major
    int32_t pad_fill;
    int64_t max_recv_rows;  ///< 0 = as many as can ever arrive
    int32_t sm_budget;      ///< 0 = default, here and in the next five
    int32_t dispatch_threads;
    int32_t combine_threads;
    int32_t combine_blocks_per_sm;
    int32_t gin_context_count;
    int32_t chunk_rows;
    uint64_t deadline_ns;  ///< 0 = the runtime's
    int32_t mode;          ///< how rows reach other LSA teams: GIMLET_MODE_...
    int32_t publish_rows;  ///< hybrid: rows that a rail stream moves on by, 0 = default
    int32_t pre_sum;       ///< hybrid: GIMLET_PRE_SUM_...
    int32_t padding;
    int32_t sync;            ///< how ranks wait for each other: GIMLET_SYNC_...
    int32_t tensors;         ///< fifo: whose tensors hold received rows: GIMLET_TENSORS_...
    int32_t ready_rows;      ///< fifo: rows of a block that is counted by itself, 0 = default
    int32_t ring_rows;       ///< fifo: rows that one ring holds, 0 = default
    int32_t send_rows;       ///< fifo: rows between two moves of a ring's tail, 0 = default
    int32_t ring_sm_budget;  ///< fifo: as sm_budget
    // fifo, on the rail between LSA teams: ring_rows (a multiple of send_rows, at least twice as
    // many) and send_rows.
    int32_t rail_ring_rows;
    int32_t rail_send_rows;
} gimlet_moe_config;

static inline gimlet_moe_config gimlet_moe_config_init(void) {
    gimlet_moe_config config = GIMLET_ZEROS;
    config.struct_bytes = sizeof config;
    config.dispatch_type = GIMLET_BFLOAT16;
    config.combine_type = GIMLET_BFLOAT16;
    config.expert_alignment = 1;
    return config;
}

/// Local, pure. All faults of a config, one a line; `fault_count` (may be null) 0 = acceptable. A
/// faulty config is not a failure of this call.
GIMLET_API gimlet_status gimlet_moe_config_faults(const gimlet_moe_config* config,
                                                  int32_t* fault_count, char* text,
                                                  size_t text_bytes, size_t* needed_bytes);
/// Local, pure. Bytes of a dispatched row and of a combine row (either may be null) of an
/// acceptable config.
GIMLET_API gimlet_status gimlet_moe_config_row_bytes(const gimlet_moe_config* config,
                                                     uint32_t* dispatch_row_bytes,
                                                     uint32_t* combine_row_bytes);

/// What the rings of a fifo config are sized for: see ChunkConfig::defaults() in
/// runtime/config.hpp.
enum { GIMLET_RINGS_OF_DISPATCH = 0, GIMLET_RINGS_OF_COMBINE = 1 };
/// Local, pure. Sets ring_sm_budget, ring_rows, send_rows, rail_ring_rows and rail_send_rows to the
/// table's values for `rank_count` (1 or more) ranks; `rings` is GIMLET_RINGS_OF_...
GIMLET_API gimlet_status gimlet_moe_config_set_rings(gimlet_moe_config* config, int32_t rank_count,
                                                     int32_t rings);

/// Words of scales a token: one fp32 per 128 elements, or one byte per 128 packed four to a word.
static inline int32_t gimlet_fp8_float_scale_words(int32_t hidden) {
    return (int32_t)(((int64_t)hidden + 127) / 128);
}
static inline int32_t gimlet_fp8_packed_scale_words(int32_t hidden) {
    return (int32_t)(((int64_t)hidden + 511) / 512);
}

// ---- bootstrap: how ranks find each other -------------------------------------------------------

/// Collectives of the embedding program. Each returns 0, or anything else for a failure, and must
/// not throw.
typedef struct gimlet_bootstrap_callbacks {
    size_t struct_bytes;
    void* context;
    int32_t rank;
    int32_t size;
    /// Required. `receive` has room for size * bytes; rank r's part lands at r * bytes. `bytes` is
    /// equal on all ranks and may be 0.
    int (*all_gather)(void* context, const void* send, size_t bytes, void* receive);
    /// Optional: an all-gather of one byte otherwise.
    int (*barrier)(void* context);
    /// Optional. `*child` gets the bootstrap of this rank's colour, or null for colour -1. The
    /// library destroys the child.
    int (*split)(void* context, int32_t color, int32_t key, gimlet_bootstrap** child);
    /// Optional. Called once, when nothing uses `context` any more.
    void (*release)(void* context);
    /// Optional. Called on `rank_count` ranks alone (ascending, this one among them), when the
    /// others may be dead. `*child` gets their bootstrap; the library destroys it. A rank that
    /// refuses its own call of gimlet_runtime_exclude() does not call it, and the others wait here:
    /// gimlet_bootstrap_create_messages() tells them at once.
    int (*survivors)(void* context, const int32_t* ranks, int32_t rank_count,
                     gimlet_bootstrap** child);
} gimlet_bootstrap_callbacks;

static inline gimlet_bootstrap_callbacks gimlet_bootstrap_callbacks_init(void) {
    gimlet_bootstrap_callbacks callbacks = GIMLET_ZEROS;
    callbacks.struct_bytes = sizeof callbacks;
    callbacks.size = 1;
    return callbacks;
}

/// The group of one rank.
GIMLET_API gimlet_status gimlet_bootstrap_create_single(gimlet_bootstrap** bootstrap);
/// If it fails, `release` is not called.
GIMLET_API gimlet_status gimlet_bootstrap_create(const gimlet_bootstrap_callbacks* callbacks,
                                                 gimlet_bootstrap** bootstrap);

/// Messages between pairs of ranks, of the embedding program. The library makes collectives with a
/// deadline of them, which name the ranks that did not come, and bootstraps of survivors. Each
/// returns 0, or anything else for a failure; none may wait, whatever has become of the other rank.
typedef struct gimlet_message_callbacks {
    size_t struct_bytes;
    void* context;
    int32_t rank;
    int32_t size;
    uint64_t timeout_ns;  ///< longest collective; 0 = gimlet_bootstrap_timeout_ns()
    /// Takes a copy of `data`. Messages to one peer with one `tag` (0..32767) keep their order.
    int (*send)(void* context, int32_t peer, int32_t tag, const void* data, size_t bytes);
    /// `*done` = 1 if every message to `peer` gets there without another call of this rank, else 0.
    int (*sent)(void* context, int32_t peer, int32_t* done);
    /// `*found` = 1 and `*bytes` = its size if a message of `peer` with `tag` is here, else 0.
    int (*probe)(void* context, int32_t peer, int32_t tag, int32_t* found, size_t* bytes);
    /// Takes the message that probe has found.
    int (*receive)(void* context, int32_t peer, int32_t tag, void* data, size_t bytes);
    /// Optional. Called once, when nothing uses `context` any more.
    void (*release)(void* context);
} gimlet_message_callbacks;

static inline gimlet_message_callbacks gimlet_message_callbacks_init(void) {
    gimlet_message_callbacks callbacks = GIMLET_ZEROS;
    callbacks.struct_bytes = sizeof callbacks;
    callbacks.size = 1;
    return callbacks;
}

/// Local. Of all ranks that the callbacks reach; they carry no other messages. If it fails,
/// `release` is not called.
GIMLET_API gimlet_status gimlet_bootstrap_create_messages(const gimlet_message_callbacks* callbacks,
                                                          gimlet_bootstrap** bootstrap);
/// Local. GIMLET_BOOTSTRAP_TIMEOUT_MS, in nanoseconds.
GIMLET_API gimlet_status gimlet_bootstrap_timeout_ns(uint64_t* timeout_ns);

GIMLET_API gimlet_status gimlet_bootstrap_rank(gimlet_bootstrap* bootstrap, int32_t* rank,
                                               int32_t* size);
/// Collective.
GIMLET_API gimlet_status gimlet_bootstrap_all_gather(gimlet_bootstrap* bootstrap, const void* send,
                                                     size_t bytes, void* receive);
/// Collective.
GIMLET_API gimlet_status gimlet_bootstrap_barrier(gimlet_bootstrap* bootstrap);
/// Collective. Ranks of equal colour (>= 0) form a group ordered by (key, rank); colour -1 gets a
/// null child.
GIMLET_API gimlet_status gimlet_bootstrap_split(gimlet_bootstrap* bootstrap, int32_t color,
                                                int32_t key, gimlet_bootstrap** child);
/// Collective over `rank_count` ranks alone (ascending, this one among them), while the others may
/// be dead; works on a bootstrap whose collectives have failed. GIMLET_CONFIG_MISMATCH at once if
/// one of them names other ranks.
GIMLET_API gimlet_status gimlet_bootstrap_survivors(gimlet_bootstrap* bootstrap,
                                                    const int32_t* ranks, int32_t rank_count,
                                                    gimlet_bootstrap** child);
/// Local. A runtime made on the bootstrap keeps what it needs. Null does nothing.
GIMLET_API gimlet_status gimlet_bootstrap_destroy(gimlet_bootstrap* bootstrap);

/// Ranks that are threads of one process. A collective that takes longer than `timeout_ns` fails (0
/// = GIMLET_BOOTSTRAP_TIMEOUT_MS).
GIMLET_API gimlet_status gimlet_thread_group_create(int32_t size, uint64_t timeout_ns,
                                                    gimlet_thread_group** group);
/// The bootstrap of one rank; once a rank.
GIMLET_API gimlet_status gimlet_thread_group_member(gimlet_thread_group* group, int32_t rank,
                                                    gimlet_bootstrap** bootstrap);
/// Any thread: wakes every waiting rank with GIMLET_PEER_FAILED and the reason.
GIMLET_API gimlet_status gimlet_thread_group_abort(gimlet_thread_group* group, const char* reason);
/// Local. Members keep what they need. Null does nothing.
GIMLET_API gimlet_status gimlet_thread_group_destroy(gimlet_thread_group* group);

// ---- health -------------------------------------------------------------------------------------

enum { GIMLET_HEALTH_OPEN = 0, GIMLET_HEALTH_FAILED = 1, GIMLET_HEALTH_CLOSED = 2 };

/// The record of a kernel that gave up; numbers: device/abi/device_error.hpp.
typedef struct gimlet_device_error {
    uint32_t primitive;
    uint32_t fault;
    int32_t rank;     ///< world rank that waited
    int32_t peer;     ///< world rank waited for, -1 if none
    int32_t context;  ///< GIN context or channel, -1 if none
    uint32_t tag;     ///< which kernel
    int32_t token;    ///< of a routing fault, -1 otherwise
    uint32_t padding;
    uint64_t epoch;
    uint64_t expected;
    uint64_t seen;
    uint64_t elapsed_ns;
    /// Number, among all dispatches and combines of the exchange, of the first step that the rank
    /// knows to have failed: the same on all ranks. 0 outside of an exchange.
    uint64_t step;
} gimlet_device_error;

/// Names of its numbers, "?" for one that is none. Static storage.
GIMLET_API const char* gimlet_primitive_name(uint32_t primitive);
GIMLET_API const char* gimlet_fault_name(uint32_t fault);
GIMLET_API const char* gimlet_tag_name(uint32_t tag);

/// The status that a fault becomes; GIMLET_INTERNAL for a number that is none.
GIMLET_API gimlet_status gimlet_fault_status(uint32_t fault);
/// Local, pure. A record in one line: who waited in which primitive of which step for which peer,
/// what was expected and seen, for how long, what that means and what to do.
GIMLET_API gimlet_status gimlet_device_error_text(const gimlet_device_error* error, char* text,
                                                  size_t text_bytes, size_t* needed_bytes);
/// Local; any thread at any time, also while calls or kernels of this process hang. The records of
/// all failed steps of this process that have not been recovered from: the first `capacity` to
/// `errors` (may be null with capacity 0), their number to `count` (may be null). For watchdogs.
GIMLET_API gimlet_status gimlet_device_errors(gimlet_device_error* errors, int32_t capacity,
                                              int32_t* count);

/// One entry of a ring of events; numbers: device/abi/device_event.hpp.
typedef struct gimlet_device_event {
    uint64_t number;   ///< place among the events of one call, 1 = the oldest
    uint64_t time_ns;  ///< of the GPU's clock, arbitrary zero, modulo 2^56
    uint64_t epoch;
    uint32_t kind;
    uint32_t tag;  ///< which kernel
    uint32_t block;
    uint32_t padding;
} gimlet_device_event;

/// "?" for one that is none. Static storage.
GIMLET_API const char* gimlet_event_name(uint32_t kind);

typedef struct gimlet_health {
    size_t struct_bytes;
    int32_t state;
    int32_t has_error;          ///< 1: `error` holds the record behind the report
    gimlet_device_error error;  ///< zeros otherwise
} gimlet_health;

static inline gimlet_health gimlet_health_init(void) {
    gimlet_health health = GIMLET_ZEROS;
    health.struct_bytes = sizeof health;
    return health;
}

/// What is known of a rank after a failed step.
enum {
    GIMLET_RANK_HAS_RECORD = 1,   ///< its record is there
    GIMLET_RANK_IS_SUSPECT = 2,   ///< the others' records point at it
    GIMLET_RANK_IS_EXCLUDED = 4,  ///< it is expected to say nothing
};

/// What all ranks say about a failed step, by world rank. The caller provides the arrays.
typedef struct gimlet_group_report {
    size_t struct_bytes;
    gimlet_device_error* records;  ///< in: [rank_capacity] or null; zeros where there is none
    uint32_t* rank_flags;          ///< in: [rank_capacity] or null; GIMLET_RANK_...
    int32_t rank_capacity;         ///< in: at least the number of ranks, if an array is given
    int32_t rank_count;            ///< out: ranks of the report; 0 = nothing has failed
} gimlet_group_report;

static inline gimlet_group_report gimlet_group_report_init(void) {
    gimlet_group_report report = GIMLET_ZEROS;
    report.struct_bytes = sizeof report;
    return report;
}

// ---- runtime ------------------------------------------------------------------------------------

/// Collective, on the current device. What one rank refuses of its own arguments, the others hear
/// at once (GIMLET_PEER_FAILED), here and in gimlet_exchange_create(). `config` may be null. Shares
/// the bootstrap, whose handle may be destroyed at once.
GIMLET_API gimlet_status gimlet_runtime_create(gimlet_bootstrap* bootstrap,
                                               const gimlet_runtime_config* config,
                                               gimlet_runtime** runtime);
/// The same on a communicator of the caller's, who keeps it alive until gimlet_runtime_close() has
/// returned on all ranks.
GIMLET_API gimlet_status gimlet_runtime_adopt(struct ncclComm* comm, gimlet_bootstrap* bootstrap,
                                              const gimlet_runtime_config* config,
                                              gimlet_runtime** runtime);

enum {
    GIMLET_GIN_NONE = 0,
    GIMLET_GIN_PROXY = 1,
    GIMLET_GIN_GDAKI = 2,
    GIMLET_GIN_GPI = 3,
    GIMLET_GIN_OTHER = 4
};

typedef struct gimlet_runtime_info {
    size_t struct_bytes;
    int32_t rank;
    int32_t size;
    int32_t device;  ///< CUDA ordinal
    int32_t sm_count;
    int32_t lsa_rank;
    int32_t lsa_size;
    int32_t lsa_team_index;
    int32_t lsa_team_count;
    int32_t gin_type;         ///< reaches all ranks
    int32_t railed_gin_type;  ///< reaches ranks of the same LSA index
    int32_t symmetric_memory;
    int32_t multimem;
    uint64_t deadline_ns;    ///< GIMLET_NO_DEADLINE = none
    uint64_t barrier_count;  ///< queued so far
    struct ncclComm* comm;   ///< null once closed
} gimlet_runtime_info;

static inline gimlet_runtime_info gimlet_runtime_info_init(void) {
    gimlet_runtime_info info = GIMLET_ZEROS;
    info.struct_bytes = sizeof info;
    return info;
}

/// Where one rank runs.
typedef struct gimlet_rank_place {
    size_t struct_bytes;
    uint64_t host_id;
    uint64_t device_id;  ///< equal = the same GPU
    int32_t device;      ///< CUDA ordinal in the rank's process
    int32_t process_id;
    int32_t sm_count;
    int32_t mps_client;
    int32_t reach;  ///< from this rank: GIMLET_REACH_...
    int32_t padding;
} gimlet_rank_place;

enum { GIMLET_REACH_SELF = 0, GIMLET_REACH_LSA = 1, GIMLET_REACH_GIN = 2, GIMLET_REACH_NONE = 3 };

static inline gimlet_rank_place gimlet_rank_place_init(void) {
    gimlet_rank_place place = GIMLET_ZEROS;
    place.struct_bytes = sizeof place;
    return place;
}

GIMLET_API gimlet_status gimlet_runtime_get_info(gimlet_runtime* runtime,
                                                 gimlet_runtime_info* info);
GIMLET_API gimlet_status gimlet_runtime_get_place(gimlet_runtime* runtime, int32_t rank,
                                                  gimlet_rank_place* place);
GIMLET_API gimlet_status gimlet_runtime_topology(gimlet_runtime* runtime, gimlet_text_format format,
                                                 char* text, size_t text_bytes,
                                                 size_t* needed_bytes);
/// Collective on the device: queues `repeat_count` (>= 1) barriers of all ranks. `deadline_ns` is
/// of this call; 0 = the runtime's.
GIMLET_API gimlet_status gimlet_runtime_barrier(gimlet_runtime* runtime, struct CUstream_st* stream,
                                                int32_t repeat_count, uint64_t deadline_ns);
/// Local. Blocks until the stream's work is done; fails if a barrier did.
GIMLET_API gimlet_status gimlet_runtime_synchronize(gimlet_runtime* runtime,
                                                    struct CUstream_st* stream);
/// Local. State and record; the report, one line, as text.
GIMLET_API gimlet_status gimlet_runtime_health(gimlet_runtime* runtime, gimlet_health* health,
                                               char* text, size_t text_bytes, size_t* needed_bytes);
/// Local. What this rank knows of the group's failure, which a call has reported; the text has many
/// lines. Of the barrier's failures.
GIMLET_API gimlet_status gimlet_runtime_group_report(gimlet_runtime* runtime,
                                                     gimlet_group_report* report, char* text,
                                                     size_t text_bytes, size_t* needed_bytes);
/// Local. The newest device events of this rank's barriers, one a line, newest last; "" without
/// gimlet_runtime_config::event_ring.
GIMLET_API gimlet_status gimlet_runtime_events(gimlet_runtime* runtime, char* text,
                                               size_t text_bytes, size_t* needed_bytes);
/// The same as numbers: the newest `capacity` events to `events` (may be null with capacity 0), how
/// many there are to `count` (may be null).
GIMLET_API gimlet_status gimlet_runtime_get_events(gimlet_runtime* runtime,
                                                   gimlet_device_event* events, int32_t capacity,
                                                   int32_t* count);
/// Collective. Makes the barrier and all open exchanges usable again after a failure on any rank.
/// Ranks with different exchanges open (gimlet_plan_info::exchange_number) hear it at once
/// (GIMLET_CONFIG_MISMATCH), and all if one refuses its own arguments (GIMLET_PEER_FAILED); the
/// same holds for gimlet_runtime_exclude() and gimlet_exchange_recover(). Report (may be null) and
/// text are what the ranks said about the first failure.
GIMLET_API gimlet_status gimlet_runtime_recover(gimlet_runtime* runtime,
                                                gimlet_group_report* report, char* text,
                                                size_t text_bytes, size_t* needed_bytes);
/// Collective over the ranks that are left, which all name the same `rank_count` world ranks. Takes
/// them out for good and recovers: see Runtime::exclude() in runtime/runtime.hpp. `survivors` is a
/// bootstrap of those that are left, in the old order; null = made of the runtime's own, where that
/// kind can.
GIMLET_API gimlet_status gimlet_runtime_exclude(gimlet_runtime* runtime, const int32_t* ranks,
                                                int32_t rank_count, gimlet_bootstrap* survivors,
                                                gimlet_group_report* report, char* text,
                                                size_t text_bytes, size_t* needed_bytes);
/// Local. World ranks that are left, ascending; `rank_count` (may be null) = how many. At most
/// `rank_capacity` are written.
GIMLET_API gimlet_status gimlet_runtime_live_ranks(gimlet_runtime* runtime, int32_t* ranks,
                                                   int32_t rank_capacity, int32_t* rank_count);
/// Collective; a second call does nothing. GIMLET_INVALID_USAGE while exchanges are open, and at
/// once GIMLET_PEER_FAILED on the other ranks.
GIMLET_API gimlet_status gimlet_runtime_close(gimlet_runtime* runtime);
/// Local, for a rank that has given up; never waits, whatever runs on the device. What it leaves is
/// freed once the device is idle: by the next create or adopt on it, by the close of another
/// runtime there, or by gimlet_reclaim().
GIMLET_API gimlet_status gimlet_runtime_abort(gimlet_runtime* runtime);
/// Local, for any thread. Waits for the current device and frees what closed and aborted runtimes
/// and destroyed routings have left on it. `count` (may be null) = how many objects.
GIMLET_API gimlet_status gimlet_reclaim(int32_t* count);
/// Local, never blocks on peers; aborts what is not closed. Null does nothing.
GIMLET_API gimlet_status gimlet_runtime_destroy(gimlet_runtime* runtime);

// ---- exchange -----------------------------------------------------------------------------------

/// Collective.
GIMLET_API gimlet_status gimlet_exchange_create(gimlet_runtime* runtime,
                                                const gimlet_moe_config* config,
                                                gimlet_exchange** exchange);

/// What was planned for this rank.
typedef struct gimlet_plan_info {
    size_t struct_bytes;
    int32_t rank;
    int32_t rank_count;
    int32_t local_expert_count;
    int32_t first_local_expert;
    int32_t sm_budget;
    int32_t gin_peer_count;
    int32_t gin_context_count;
    int32_t signal_count;
    int64_t row_capacity;     ///< rows of one receive buffer, and of one combine buffer
    int64_t worst_case_rows;  ///< rows that can ever arrive in one step
    int64_t send_capacity;
    uint64_t window_bytes;
    uint64_t deadline_ns;  ///< GIMLET_NO_DEADLINE = none
    uint64_t hash;
    uint32_t dispatch_row_bytes;
    uint32_t combine_row_bytes;
    uint32_t record_bytes;
    // Fields of a received row's record, in 32-bit words from its start.
    uint32_t token_word;    ///< source token, -1 = padding
    uint32_t source_word;   ///< source rank
    uint32_t index_word;    ///< choice_count words: local expert indices, or the choice
    uint32_t weight_word;   ///< choice_count fp32
    uint32_t scale_word;    ///< scale_words words
    uint32_t choice_count;  ///< K for rank_major, 1 for expert_major
    // Fields of a step's counts behind their header, in bytes from the start of gimlet_step_counts.
    uint32_t expert_counts_offset;   ///< int32[local experts]
    uint32_t expert_offsets_offset;  ///< int32[local experts + 1], expert_major
    uint32_t source_offsets_offset;  ///< int32[ranks + 1]
    uint64_t tensor_bytes;           ///< fifo: beside the window, 0 if the caller has them
    int32_t mode;                    ///< GIMLET_MODE_DIRECT or GIMLET_MODE_HYBRID
    int32_t lsa_size;                ///< ranks of this rank's LSA team
    int32_t ring_rows;               ///< fifo: rows of one ring
    int32_t ring_count;              ///< fifo: rings of this rank, in each direction
    uint64_t exchange_number;  ///< of gimlet_exchange_get_plan(): which exchange of its runtime
                               ///< it is, by creation, from 1; errors name it. 0 otherwise
} gimlet_plan_info;

static inline gimlet_plan_info gimlet_plan_info_init(void) {
    gimlet_plan_info info = GIMLET_ZEROS;
    info.struct_bytes = sizeof info;
    return info;
}

/// Local. What gimlet_exchange_create() would plan here: sizes before anything is allocated. NCCL
/// may then grant fewer GIN contexts than asked for. `info` may be null.
GIMLET_API gimlet_status gimlet_runtime_plan(gimlet_runtime* runtime,
                                             const gimlet_moe_config* config,
                                             gimlet_plan_info* info, gimlet_text_format format,
                                             char* text, size_t text_bytes, size_t* needed_bytes);
GIMLET_API gimlet_status gimlet_exchange_get_plan(gimlet_exchange* exchange,
                                                  gimlet_plan_info* info);
GIMLET_API gimlet_status gimlet_exchange_plan(gimlet_exchange* exchange, gimlet_text_format format,
                                              char* text, size_t text_bytes, size_t* needed_bytes);

/// Local. Loads the kernels; call it before a capture. `graph_addresses` is GIMLET_GRAPH_...: see
/// GraphAddresses in runtime/exchange.hpp.
GIMLET_API gimlet_status gimlet_exchange_reserve(gimlet_exchange* exchange,
                                                 int32_t graph_addresses);

/// Local. From now on dispatch and combine run on `comm_stream`, behind the work that the stream of
/// the call holds by then; null = on the stream of the call again. `join` is GIMLET_JOIN_...: see
/// Exchange::set_comm_stream().
GIMLET_API gimlet_status gimlet_exchange_set_comm_stream(gimlet_exchange* exchange,
                                                         struct CUstream_st* comm_stream,
                                                         int32_t join);
/// Local. Work queued on `stream` after this call waits for all steps queued so far.
GIMLET_API gimlet_status gimlet_exchange_join(gimlet_exchange* exchange,
                                              struct CUstream_st* stream);

/// Local; allocates. Not inside a capture.
GIMLET_API gimlet_status gimlet_routing_create(gimlet_exchange* exchange, gimlet_routing** routing);
/// Local, never waits. Steps that are queued may still use it, graphs may not: see Routing in
/// runtime/routing.hpp. Serves the thread of its exchange. Null does nothing.
GIMLET_API gimlet_status gimlet_routing_destroy(gimlet_routing* routing);

/// Header of a step's counts, in device memory.
typedef struct gimlet_step_counts {
    uint64_t epoch;
    int32_t row_count;        ///< rows received, padding included
    int32_t token_row_count;  ///< without padding
    int32_t local_expert_count;
    int32_t sent_row_count;
    int32_t partial;  ///< 1: ranks are excluded, their tokens and experts are missing
    int32_t padding;
} gimlet_step_counts;

/// Where one choice went; rank = -1: masked, or served by an earlier choice's row.
typedef struct gimlet_slot_ref {
    int32_t rank;
    int32_t slot;
} gimlet_slot_ref;

/// Device pointers of a routing, for kernels of the caller's own.
typedef struct gimlet_routing_info {
    size_t struct_bytes;
    const gimlet_slot_ref* slots;    ///< [max_tokens][K]
    const int32_t* counts;           ///< [ranks][words of a row]
    const gimlet_step_counts* step;  ///< header and arrays, see gimlet_plan_info
    int32_t filled;                  ///< 1 once a dispatch has filled it
    int32_t token_count;             ///< of that dispatch
    const uint32_t* dropped;         ///< [max_tokens]: bit k = choice k is of an excluded rank
} gimlet_routing_info;

static inline gimlet_routing_info gimlet_routing_info_init(void) {
    gimlet_routing_info info = GIMLET_ZEROS;
    info.struct_bytes = sizeof info;
    return info;
}

GIMLET_API gimlet_status gimlet_routing_get_info(gimlet_routing* routing,
                                                 gimlet_routing_info* info);

/// Device pointers of one rank's tokens. With token_count = 0 each may be null.
typedef struct gimlet_dispatch_inputs {
    size_t struct_bytes;
    const void* rows;            ///< [T][hidden] of dispatch_type, 16-byte aligned
    const uint32_t* scales;      ///< [T][scale_words]; null without scales
    const void* expert_indices;  ///< [T][K]; -1 = masked
    const float* weights;        ///< [T][K] or null
    int32_t index_type;          ///< GIMLET_INT32, GIMLET_INT64
    int32_t token_count;         ///< T
    uint64_t deadline_ns;        ///< of this call; 0 = the exchange's
    void* out_rows;              ///< GIMLET_TENSORS_CALLER: [row_capacity][row_bytes]
    void* out_records;           ///< the same, [row_capacity][record_bytes]
} gimlet_dispatch_inputs;

static inline gimlet_dispatch_inputs gimlet_dispatch_inputs_init(void) {
    gimlet_dispatch_inputs inputs = GIMLET_ZEROS;
    inputs.struct_bytes = sizeof inputs;
    return inputs;
}

/// Where the rows of one dispatch are. The first three are device pointers, valid until the second
/// next dispatch; the host arrays hold until the routing's next dispatch and are null without host
/// counts.
typedef struct gimlet_received {
    size_t struct_bytes;
    const void* rows;     ///< [row_count][row_bytes]
    const void* records;  ///< [row_count][record_bytes]
    const gimlet_step_counts* step;
    int64_t row_capacity;
    uint32_t row_bytes;
    uint32_t record_bytes;
    uint64_t epoch;
    int32_t has_counts;  ///< 1: the members below are set
    int32_t row_count;
    int32_t token_row_count;
    int32_t sent_row_count;
    int32_t local_expert_count;
    int32_t rank_count;
    const int32_t* expert_counts;   ///< host, [local_expert_count]
    const int32_t* expert_offsets;  ///< host, [local_expert_count + 1], expert_major
    const int32_t* source_offsets;  ///< host, [rank_count + 1]
    int32_t partial;                ///< 1: ranks are excluded, their tokens and experts are missing
    int32_t padding;
    // fifo, null elsewhere: device counters of the rows that have arrived in each block of
    // ready_block_rows rows. They grow while the dispatch runs.
    const uint32_t* ready_rows;
    int32_t ready_block_rows;
    int32_t ready_block_count;
} gimlet_received;

static inline gimlet_received gimlet_received_init(void) {
    gimlet_received received = GIMLET_ZEROS;
    received.struct_bytes = sizeof received;
    return received;
}

/// Collective on the device. `count_mode` is GIMLET_COUNTS_...; `received` may be null.
GIMLET_API gimlet_status gimlet_dispatch(gimlet_exchange* exchange,
                                         const gimlet_dispatch_inputs* inputs,
                                         gimlet_routing* routing, int32_t count_mode,
                                         struct CUstream_st* stream, gimlet_received* received);
/// Collective on the device: the slots of a filled routing again, for new rows of the same tokens.
GIMLET_API gimlet_status gimlet_dispatch_cached(gimlet_exchange* exchange,
                                                const gimlet_dispatch_inputs* inputs,
                                                gimlet_routing* routing, struct CUstream_st* stream,
                                                gimlet_received* received);
/// Local. Of the routing's newest dispatch; without host counts.
GIMLET_API gimlet_status gimlet_get_received(gimlet_exchange* exchange, gimlet_routing* routing,
                                             gimlet_received* received);

/// fifo: what a kernel of the caller's own needs to use the rows of a dispatch while it still runs.
/// The same as gimlet::ReadyView of device/abi/ready_view.hpp, which device/channel/ready.hpp
/// takes.
typedef struct gimlet_ready_view {
    const uint32_t* arrived;         ///< device, [sets][block_count]; null with GIMLET_SYNC_BARRIER
    const gimlet_step_counts* step;  ///< device
    uint64_t epoch;                  ///< of the dispatch
    int32_t block_rows;
    int32_t block_count;
    uint64_t deadline_ns;  ///< of one wait, 0 = none
    void* error;           ///< the exchange's record
    uint64_t* poison;      ///< device: epoch of the rank's failed dispatch
    int32_t rank;
    int32_t padding;
} gimlet_ready_view;

/// Local. Of the routing's newest dispatch; `*view` is all zeros where there is none: barriers,
/// captures.
GIMLET_API gimlet_status gimlet_get_ready_view(gimlet_exchange* exchange, gimlet_routing* routing,
                                               gimlet_ready_view* view);

/// Contiguous copies of what was received; null members are skipped. Device pointers.
typedef struct gimlet_unpack_outputs {
    size_t struct_bytes;
    void* rows;        ///< [capacity][hidden], 16-byte aligned
    int32_t* indices;  ///< [capacity][choice_count]
    float* weights;    ///< [capacity][choice_count]
    uint32_t* scales;  ///< [capacity][scale_words]
    int32_t* source;   ///< [capacity][2]: source rank, source token
    int64_t capacity;  ///< rows beyond it are not written
} gimlet_unpack_outputs;

static inline gimlet_unpack_outputs gimlet_unpack_outputs_init(void) {
    gimlet_unpack_outputs outputs = GIMLET_ZEROS;
    outputs.struct_bytes = sizeof outputs;
    return outputs;
}

/// Local.
GIMLET_API gimlet_status gimlet_unpack(gimlet_exchange* exchange, gimlet_routing* routing,
                                       const gimlet_unpack_outputs* outputs,
                                       struct CUstream_st* stream);
/// Local. Device buffer that the next combine reads: [row_capacity][combine row].
GIMLET_API gimlet_status gimlet_combine_input(gimlet_exchange* exchange, void** rows);
/// Local. Copies answers of the routing's rows from a contiguous tensor into the combine input.
GIMLET_API gimlet_status gimlet_pack(gimlet_exchange* exchange, const void* rows,
                                     gimlet_routing* routing, struct CUstream_st* stream);

typedef struct gimlet_combine_inputs {
    size_t struct_bytes;
    void* out;             ///< [T][hidden] of combine_type, 16-byte aligned
    const void* bias;      ///< [T][hidden] or null
    const float* weights;  ///< [T][K] or null; expert_major only
    uint64_t deadline_ns;  ///< of this call; 0 = the exchange's
    const void* answers;   ///< GIMLET_TENSORS_CALLER: [row_capacity][combine row]
} gimlet_combine_inputs;

static inline gimlet_combine_inputs gimlet_combine_inputs_init(void) {
    gimlet_combine_inputs inputs = GIMLET_ZEROS;
    inputs.struct_bytes = sizeof inputs;
    return inputs;
}

/// Collective on the device.
GIMLET_API gimlet_status gimlet_combine(gimlet_exchange* exchange,
                                        const gimlet_combine_inputs* inputs,
                                        gimlet_routing* routing, struct CUstream_st* stream);

/// Local. Declares the newest capture finished and checks that it held an even number of steps.
GIMLET_API gimlet_status gimlet_exchange_end_capture(gimlet_exchange* exchange);
/// Local. Blocks until the stream's work is done; fails if a step did.
GIMLET_API gimlet_status gimlet_exchange_synchronize(gimlet_exchange* exchange,
                                                     struct CUstream_st* stream);
/// Local, cheap. Fails if a step has failed so far.
GIMLET_API gimlet_status gimlet_exchange_check(gimlet_exchange* exchange);
/// Local. State and record; the report, one line, as text.
GIMLET_API gimlet_status gimlet_exchange_health(gimlet_exchange* exchange, gimlet_health* health,
                                                char* text, size_t text_bytes,
                                                size_t* needed_bytes);

/// Collective, whatever state each rank's exchange is in; not inside a capture. After a step that
/// failed (faulty arguments of gimlet_dispatch or gimlet_combine on any rank are such a failure)
/// the exchange refuses all work until this has succeeded. Routings are empty again for eager
/// calls. Report (may be null) and text are what the ranks said, "" if nothing had failed.
GIMLET_API gimlet_status gimlet_exchange_recover(gimlet_exchange* exchange,
                                                 gimlet_group_report* report, char* text,
                                                 size_t text_bytes, size_t* needed_bytes);
/// Local. See gimlet_runtime_group_report() and gimlet_runtime_events(): of this exchange's steps.
GIMLET_API gimlet_status gimlet_exchange_group_report(gimlet_exchange* exchange,
                                                      gimlet_group_report* report, char* text,
                                                      size_t text_bytes, size_t* needed_bytes);
GIMLET_API gimlet_status gimlet_exchange_events(gimlet_exchange* exchange, char* text,
                                                size_t text_bytes, size_t* needed_bytes);
GIMLET_API gimlet_status gimlet_exchange_get_events(gimlet_exchange* exchange,
                                                    gimlet_device_event* events, int32_t capacity,
                                                    int32_t* count);

/// Counters since creation.
typedef struct gimlet_exchange_stats {
    size_t struct_bytes;
    uint64_t dispatches;
    uint64_t cached_dispatches;
    uint64_t combines;
    uint64_t captured_calls;
    uint64_t host_count_waits;
    uint64_t tokens_dispatched;
    uint64_t recoveries;
} gimlet_exchange_stats;

static inline gimlet_exchange_stats gimlet_exchange_stats_init(void) {
    gimlet_exchange_stats stats = GIMLET_ZEROS;
    stats.struct_bytes = sizeof stats;
    return stats;
}

GIMLET_API gimlet_status gimlet_exchange_get_stats(gimlet_exchange* exchange,
                                                   gimlet_exchange_stats* stats);

/// One end of a ring of GIMLET_SYNC_FIFO, counted since the exchange was made.
typedef struct gimlet_ring_counters {
    int32_t is_receiver;  ///< 0: this rank sends
    int32_t over_gin;     ///< 1: a ring between LSA teams
    int32_t peer;         ///< world rank at the other end
    int32_t channel;
    uint32_t slot_count;     ///< capacity; a slot holds one row
    uint32_t most_occupied;  ///< most slots in use at one time, as this end saw it
    uint64_t rows;           ///< rows published (sender) or freed (receiver), modulo 2^64
    uint64_t flags;          ///< moves of the tail (sender) or of the head (receiver)
    uint64_t stalls;         ///< waits for room (sender) or for rows (receiver)
} gimlet_ring_counters;

/// Local; blocks. All steps must be synchronised. The first `capacity` to `rings` (may be null with
/// capacity 0), their number to `count` (may be null); none with GIMLET_SYNC_BARRIER.
GIMLET_API gimlet_status gimlet_exchange_ring_counters(gimlet_exchange* exchange,
                                                       gimlet_ring_counters* rings,
                                                       int32_t capacity, int32_t* count);

/// Messages and bytes of a routing's dispatch and of one combine.
typedef struct gimlet_step_traffic {
    size_t struct_bytes;
    int64_t* rows_to;       ///< in: null, or room for rank_capacity numbers; [ranks]
    int64_t* rows_from;     ///< the same
    int32_t rank_capacity;  ///< in; at least the ranks if one of the two is not null
    int32_t rendezvous;     ///< times that this rank waits for all others
    int64_t rows_sent;      ///< this rank's own included
    int64_t rows_received;  ///< without padding
    int64_t lsa_rows_sent;
    int64_t gin_rows_sent;
    int64_t dispatch_bytes_sent;
    int64_t combine_bytes_sent;
    int64_t dispatch_puts;
    int64_t dispatch_doorbells;
    int64_t combine_puts;
    int64_t combine_doorbells;
    int64_t dispatch_gin_bytes;  ///< rows, records and headers that this rank puts
    int64_t dispatch_lsa_bytes;  ///< that it stores at other ranks of its team
    int64_t combine_gin_bytes;   ///< rows or sums that it puts home
    int64_t combine_lsa_bytes;   ///< rows that it pulls from other ranks of its team
} gimlet_step_traffic;

static inline gimlet_step_traffic gimlet_step_traffic_init(void) {
    gimlet_step_traffic traffic = GIMLET_ZEROS;
    traffic.struct_bytes = sizeof traffic;
    return traffic;
}

/// Local; blocks. The stream of the dispatch must be synchronised.
GIMLET_API gimlet_status gimlet_routing_traffic(gimlet_exchange* exchange, gimlet_routing* routing,
                                                gimlet_step_traffic* traffic);

/// Collective; a second call does nothing.
GIMLET_API gimlet_status gimlet_exchange_close(gimlet_exchange* exchange);
/// Local, for a rank that has given up; never waits. What it leaves is freed by its runtime: see
/// Exchange::abort() in runtime/exchange.hpp.
GIMLET_API gimlet_status gimlet_exchange_abort(gimlet_exchange* exchange);
/// Local, never blocks on peers; aborts what is not closed. Null does nothing.
GIMLET_API gimlet_status gimlet_exchange_destroy(gimlet_exchange* exchange);

#ifdef __cplusplus
}  // extern "C"
#endif

// SPDX-License-Identifier: Apache-2.0
// Tokens to experts and back, for one MoeConfig.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/abi/ready_view.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/device_communicator.hpp"
#include "host/nccl/symmetric_window.hpp"
#include "runtime/activity.hpp"
#include "runtime/config.hpp"
#include "runtime/health.hpp"
#include "runtime/plan.hpp"
#include "runtime/ring_counters.hpp"
#include "runtime/routing.hpp"
#include "runtime/runtime.hpp"
#include "runtime/stats.hpp"
#include "runtime/step_guard.hpp"

namespace gimlet {

struct Leftovers;

/// Device pointers of one rank's tokens. With token_count = 0 every pointer may be null.
struct DispatchInputs {
    const void* rows = nullptr;             ///< [T][hidden] of dispatch_type, 16-byte aligned
    const std::uint32_t* scales = nullptr;  ///< [T][scale_words]; null iff the config has none
    const void* expert_indices = nullptr;   ///< [T][K]; -1 = masked; a token's experts must differ
    const float* weights =
        nullptr;  ///< [T][K], carried to the receivers; or null: they get 0. NaN is carried
    /// StreamTensors::caller: where received rows and records go, [row_capacity] of each (rows
    /// 16-byte aligned, records 4-byte aligned). Null otherwise.
    void* out_rows = nullptr;
    void* out_records = nullptr;
    IndexType index_type = IndexType::int32;
    std::int32_t token_count = 0;  ///< T, 0..max_tokens; may differ between ranks and steps
    /// Longest single wait of this call, 0 = none: it ends when another rank of the step reports a
    /// failure, such as its own deadline, and otherwise never. Unset = the Exchange's.
    std::optional<std::uint64_t> deadline_ns;
};

/// Whether dispatch waits on the host for the counts of the step.
enum class CountMode {
    device,  ///< returns at once; counts are in Routing::view().step when the stream gets there
    host,    ///< blocks until the counts are known (not until the rows are here); not inside a
             ///< capture
};

/// What graphs of an Exchange know of its two buffers.
enum class GraphAddresses {
    in_place,  ///< kernels of the caller's own use addresses of one buffer: see Exchange
    copied,    ///< rows are reached through unpack and pack only: any graph, in any step
};

/// When the caller's stream waits for a step that runs on a stream of its own.
enum class Join {
    at_once,  ///< after each dispatch and combine: the caller sees no difference
    later,    ///< by join(): until then the caller's stream goes on beside the step
};

/// Where the rows of one dispatch are: in this rank's window, in place (Sync::fifo: in tensors of
/// the Exchange or of the caller). Valid on the stream after
/// the dispatch, until the second next dispatch of the Exchange is queued (two receive buffers
/// alternate).
struct Received {
    const std::byte* rows = nullptr;     ///< [row_count][row_bytes]; see GraphAddresses
    const std::byte* records = nullptr;  ///< [row_count][record_bytes]; fields: see TokenLayout
    const StepCounts* step = nullptr;    ///< device memory
    std::int64_t row_capacity = 0;
    std::uint32_t row_bytes = 0;
    std::uint32_t record_bytes = 0;
    std::uint64_t epoch =
        0;  ///< of the dispatch, by the host's count; replays of graphs are not counted
    /// fifo: lets kernels on other streams use the rows while the dispatch still runs. Not in a
    /// capture, where the number of the step is not known.
    ReadyView ready{};
    /// Some ranks are excluded: their tokens and experts are missing. RoutingView::dropped tells
    /// which choices of this rank's tokens that are.
    bool partial = false;
    std::optional<HostCounts> counts;  ///< CountMode::host
};

struct CombineInputs {
    void* out = nullptr;  ///< [T][hidden] of combine_type, 16-byte aligned; T is the routing's
    const void* bias = nullptr;  ///< [T][hidden] of combine_type or null; added once to each token
    /// StreamTensors::caller: the answers to the received rows, [row_capacity][hidden] of
    /// combine_type, 16-byte aligned. Null otherwise.
    const void* answers = nullptr;
    const float* weights =
        nullptr;  ///< [T][K] or null; expert_major only: each row times its choice's weight
    /// Longest single wait of this call, 0 = none: it ends when another rank of the step reports a
    /// failure, such as its own deadline, and otherwise never. Unset = the Exchange's.
    std::optional<std::uint64_t> deadline_ns;
};

/// Copies of what was received, contiguous. Null members are skipped. Device pointers, rows 16-byte
/// aligned.
struct UnpackOutputs {
    void* rows = nullptr;             ///< [capacity][hidden]
    std::int32_t* indices = nullptr;  ///< [capacity][C], C = K (rank_major) or 1
    float* weights = nullptr;         ///< [capacity][C]
    std::uint32_t* scales = nullptr;  ///< [capacity][scale_words]
    std::int32_t* source = nullptr;   ///< [capacity][2]: source rank, source token; -1 for padding
    std::int64_t capacity = 0;        ///< rows beyond it are not written
};

/// One MoE layer's exchange with buffers of its own: window, device communicator, workspace.
/// Several Exchanges of one Runtime are independent of each other.
///
/// Steps. Dispatch number e (the first is 1) fills receive buffer e & 1. Combine number c reads
/// combine buffer c & 1 of every rank; combine_input() is the buffer of the next combine, and
/// pack() copies into it. Every rank makes the same sequence of dispatch, dispatch_cached and
/// combine calls, on one stream or on streams that the caller orders.
///
/// Graph capture. Call reserve() and make_routing() first. Kernels take their step number from
/// device memory, so a graph can be replayed, and pack and unpack find their buffer by it. But
/// addresses that the host passes on (Received, combine_input) belong to one buffer. Therefore,
/// with GraphAddresses::in_place: a graph holds an even number of dispatches and an even number of
/// combines of one Exchange, and between capture and replay the steps outside of it are even in
/// number too. An odd capture is refused by the next call outside of it (or by end_capture()), with
/// Error(invalid_usage); such a graph must not be launched. A graph that is launched in a step of
/// the other buffer is refused by its first kernel (Error(invalid_usage) of the next call). With
/// GraphAddresses::copied there is no such rule; once a graph has been captured, Received::rows and
/// records are null, and combine_input() is refused.
///
/// Failure. No wait lasts longer than the deadline. A kernel that gives up stops publishing, leaves
/// a record, and tells the other ranks; steps queued behind it end at once. The next call (or
/// synchronize()) raises what is known of the whole group, and the Exchange refuses all further
/// work with the same report until recover() has succeeded. The CUDA context and the communicator
/// stay usable. Faulty arguments of dispatch or combine on one rank, or another current device,
/// fail the step too: the others hear of it at once (Error(peer_failed)) instead of waiting for
/// their deadline. In a capture they only raise: a capture is local, and may be made again. Who
/// gives up instead tells the others with refuse_dispatch() or refuse_combine(), outside of the
/// capture.
class Exchange {
  public:
    /// Collective. Checks that all ranks passed the same config (Error(config_mismatch) names field
    /// and ranks), plans, checks the plan, and allocates. If it fails on one rank, it fails on all,
    /// and nothing remains. A config that is faulty on one rank is Error(invalid_argument) there,
    /// and at once Error(peer_failed) with rank and faults on the others.
    static std::unique_ptr<Exchange> create(Runtime& runtime, const MoeConfig& config);
    /// The same with a config that `read` returns, or raises for: if it raises on one rank, all
    /// ranks hear at once which one that is, and why.
    static std::unique_ptr<Exchange> create_from(Runtime& runtime,
                                                 const std::function<MoeConfig()>& read);

    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    /// Another one, in direct mode, once exclude() has ended hybrid mode.
    const Plan& plan() const noexcept { return plan_; }
    int rank() const noexcept { return plan_.rank; }
    /// Which of its Runtime's Exchanges this is, by creation, from 1: errors name it.
    std::uint64_t number() const noexcept { return number_; }

    /// Local. Loads the kernels, so that no later call allocates or synchronises. The first call
    /// outside a capture does it by itself. `addresses` is chosen before the first capture.
    void reserve(GraphAddresses addresses = GraphAddresses::in_place);

    /// Local. From now on dispatch and combine run on `comm_stream`, behind the work that the
    /// stream of the call holds by then; null = on the stream of the call again. Use it before a
    /// capture or after one, not inside. The stream must outlive its use here; the next step waits
    /// for those on the stream before it. With Join::later the
    /// rows of a dispatch, the output of a combine and the buffers of both belong to the step until
    /// join(); pack and unpack run on the stream of their call.
    void set_comm_stream(cudaStream_t comm_stream, Join join = Join::at_once);
    /// Local. Work queued on `stream` after this call waits for all steps queued so far.
    void join(cudaStream_t stream);

    /// Local; allocates. Not inside a capture.
    Routing make_routing();

    /// Collective on the device. Counts, exchanges counts, and moves every token to its final rows;
    /// fills `routing`.
    Received dispatch(const DispatchInputs& inputs, Routing* routing, CountMode mode,
                      cudaStream_t stream);

    /// Collective on the device: all ranks use a filled routing. Reuses its slots; no counting. The
    /// inputs name the same tokens (T and expert indices as in the dispatch that filled it; not
    /// checked beyond T) with new rows.
    Received dispatch_cached(const DispatchInputs& inputs, Routing* routing, cudaStream_t stream);

    /// For callers that check arguments themselves: instead of the step that all other ranks make.
    /// Fails it as faulty arguments of dispatch and combine do, and raises `fault`; in a capture,
    /// which stays as it was, it only raises.
    [[noreturn]] void refuse_dispatch(const Error& fault, cudaStream_t stream);
    [[noreturn]] void refuse_combine(const Error& fault, cudaStream_t stream);

    /// Where the rows of the routing's newest dispatch are. Error(invalid_usage) if two dispatches
    /// have come since.
    Received received(const Routing& routing) const;

    /// Local: copies received rows and records out. Stream order as any kernel.
    void unpack(const Routing& routing, const UnpackOutputs& outputs, cudaStream_t stream);

    /// Buffer that the next combine reads, [row_capacity][combine row]: row i is the answer to
    /// received row i.
    std::byte* combine_input() const;

    /// Local: copies the answers of the routing's received rows from a contiguous tensor into
    /// combine_input().
    void pack(const void* rows, const Routing& routing, cudaStream_t stream);

    /// Collective on the device. out[t] = sum over the routing's rows of token t, choices
    /// ascending, in fp32; + bias; rounded once. Masked tokens get the bias, or 0. Hybrid with the
    /// pre-sum: the rows of another team come as one, summed and rounded there, in the place of
    /// their first choice.
    void combine(const CombineInputs& inputs, const Routing& routing, cudaStream_t stream);

    /// Local. Declares the newest capture finished and checks that it was even.
    void end_capture();

    /// Local. Blocks until the work on `stream` is done; raises if a step failed.
    void synchronize(cudaStream_t stream);
    /// Local, cheap. Raises if a step has failed so far.
    void check();

    Health health() const;

    /// Collective, whatever state each rank's Exchange is in; not inside a capture. Waits for the
    /// device, drives out what the failed step left on the network, and moves all ranks to one new
    /// step number, in the buffer that captured graphs expect (the even one if there are none).
    /// Graphs can be replayed afterwards. Routings filled before are empty again for eager calls.
    /// Returns what the ranks said. If it fails on one rank it fails on all, and may be called
    /// again.
    GroupReport recover();
    /// For callers that check arguments themselves: see Runtime::refuse_recover().
    [[noreturn]] void refuse_recover(const Error& fault);

    const ExchangeStats& stats() const noexcept { return stats_; }
    /// Local; blocks. What the routing's step moved. The stream of its dispatch must be
    /// synchronised.
    StepTraffic traffic(const Routing& routing) const;
    /// Local; blocks. Sync::fifo: what each ring of this rank holds, how full it was, and how often
    /// its ends waited. All steps must be synchronised.
    std::vector<RingCounters> ring_counters() const;

    /// Collective; waits for the device, and after a failed step for what of it is on its way; a
    /// second call does nothing. Ranks that close different Exchanges hear it at once
    /// (Error(config_mismatch)).
    void close();
    /// Local; never throws, never waits, whatever runs on the device. What it leaves is freed later
    /// by its Runtime: by create_exchange(), make_routing(), recover() and close() of the Runtime
    /// and its Exchanges; if puts may reach it (GIN), by recover() and close() once it has been
    /// aborted on all ranks.
    void abort() noexcept;
    /// For the Runtime. Kernels may still run, as far as the host knows.
    bool busy() const noexcept { return activity_.busy() || ever_captured_; }
    void note_idle() noexcept { activity_.device_idle(); }

  private:
    friend class Runtime;

    Exchange(std::shared_ptr<RuntimeCore> core, Plan plan);
    static Plan agree_on_plan(RuntimeCore& core, const std::function<MoeConfig()>& read,
                              std::unique_ptr<DeviceCommunicator>* device_comm);

    void require_open(const char* what) const;
    /// Local, before the recovery of exclude(): the plan's fallback takes its place.
    void leave_rails();
    void enter(const char* what, cudaStream_t stream);
    /// The same for a step of all ranks: they hear of another current device. `next` returns its
    /// arguments.
    template <typename Next>
    void enter_step(const char* what, cudaStream_t stream, Next next);
    void load_kernels();
    /// Whether the host knows which buffer a step uses.
    bool in_place() const noexcept {
        return addresses_ == GraphAddresses::in_place || !(ever_captured_ || in_capture_);
    }
    std::int32_t expected_parity(std::uint64_t step) const noexcept;
    void check_routing(const char* what, const Routing& routing) const;
    void check_inputs(const char* what, const DispatchInputs& inputs) const;
    void check_filled(const char* what, const Routing& routing) const;
    void check_dispatch(const char* what, const DispatchInputs& inputs, const Routing* routing,
                        RoutingMode routing_mode, CountMode mode) const;
    void check_combine(const CombineInputs& inputs, const Routing& routing) const;
    DispatchArgs next_dispatch(std::optional<std::uint64_t> deadline_ns);
    CombineArgs next_combine(std::optional<std::uint64_t> deadline_ns);
    [[noreturn]] void refuse(DispatchArgs args, const Error& fault, cudaStream_t stream);
    [[noreturn]] void refuse(CombineArgs args, const Error& fault, cudaStream_t stream);
    enum class Access { read, write };
    /// Null passes. Refuses what a kernel could not use, and outputs inside the window.
    void check_pointer(const char* what, const char* name, const void* pointer,
                       std::size_t alignment_bytes, Access access) const;
    bool in_window(const void* pointer) const;
    bool has_own_tensors() const noexcept { return plan_.config.tensors == StreamTensors::library; }
    /// Own rows, records and answers of buffer `buffer`: in the window, or in tensors_.
    std::byte* own_rows(int buffer) const;
    std::byte* own_records(int buffer) const;
    std::byte* own_answers(int buffer) const;
    ReadyView ready_view(const Routing& routing) const;
    void check_outputs(const char* what, const DispatchInputs& inputs) const;
    void require_own_tensors(const char* what) const;
    Received launch(const char* what, const DispatchInputs& inputs, Routing* routing,
                    RoutingMode routing_mode, CountMode mode, cudaStream_t stream);
    HostCounts wait_for_counts(const Routing& routing, cudaStream_t stream);
    HostCounts host_counts(const Routing& routing) const;
    void count_captured(std::uint64_t* captured);
    cudaStream_t fork(cudaStream_t stream);
    std::uint64_t dispatch_position() const noexcept {
        return dispatch_epoch_ + captured_dispatches_;
    }
    std::uint64_t combine_position() const noexcept { return combine_epoch_ + captured_combines_; }
    std::string call_text(const char* call) const;
    /// Collective: recover() once all ranks are in it.
    GroupReport recover_this();
    void end() noexcept;

    std::shared_ptr<RuntimeCore> core_;
    Plan plan_;
    std::uint64_t id_ = 0;      // in this process
    std::uint64_t number_ = 0;  // in the Runtime
    Health last_health_;        // of the end
    std::unique_ptr<DeviceCommunicator> device_comm_;
    std::unique_ptr<SymmetricWindow> window_;
    std::shared_ptr<StepGuard> guard_;
    Activity activity_;
    std::unique_ptr<Leftovers> leftovers_;  // empty: abort() must not allocate
    ExchangeArgs args_{};
    std::byte* base_ = nullptr;        // the window as kernels see it
    DeviceBuffer<std::byte> tensors_;  // Sync::fifo: the library's own rows and answers
    cudaStream_t comm_stream_ = nullptr;
    Join join_ = Join::at_once;
    Event before_;              // what the caller's stream held
    Event after_;               // the newest step
    bool unjoined_ = false;     // comm_stream_ holds steps that nobody waits for yet
    bool left_behind_ = false;  // after_ is of a comm stream that steps have left without a join

    bool open_ = false;
    bool reserved_ = false;
    GraphAddresses addresses_ = GraphAddresses::in_place;
    bool in_capture_ = false;           // the newest step call was captured
    bool ever_captured_ = false;        // replays may have advanced the device's epochs
    std::uint64_t dispatch_epoch_ = 0;  // of the newest dispatch outside captures
    std::uint64_t combine_epoch_ = 0;
    std::uint64_t captured_dispatches_ = 0;  // in the capture that is going on
    std::uint64_t captured_combines_ = 0;
    CapturedParity captured_parity_;
    std::uint64_t generation_ = 0;         // recoveries so far
    std::uint64_t oldest_generation_ = 0;  // routings of earlier ones are of hybrid mode
    ExchangeStats stats_;
};

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/channel_kernels.hpp"

#include "device/channel/fifo.hpp"
#include "device/channel/pipeline.hpp"
#include "device/channel/windowed_tail.hpp"
#include "device/core/bulk.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/sync/gin_barrier.hpp"

namespace gimlet::sim {

using namespace gimlet::device;

namespace {

// Slots are written and read by the streaming accesses, which the emulator's watch sees (ordinary
// ones it sees only in instrumented code). Shared memory too: these kernels run nowhere else.

GIMLET_DEVICE Vec16 flow_vec(std::uint64_t epoch, std::int32_t flow, std::uint32_t row,
                             std::uint32_t vec) {
    Vec16 value;
    for (std::uint32_t i = 0; i < 4; ++i) value.w[i] = flow_word(epoch, flow, row, vec * 4 + i);
    return value;
}

/// All lanes.
GIMLET_DEVICE void fill_row(std::byte* row, std::uint32_t bytes, std::uint64_t epoch,
                            std::int32_t flow, std::uint32_t number) {
    auto* const vecs = reinterpret_cast<Vec16*>(row);
    for (auto i = static_cast<std::uint32_t>(lane_index()); i < bytes / 16; i += 32)
        store_stream(vecs + i, flow_vec(epoch, flow, number, i));
}

GIMLET_DEVICE void check_row(const std::byte* row, std::uint32_t bytes, std::uint64_t epoch,
                             std::int32_t flow, std::uint32_t number, std::uint64_t* mismatches) {
    const auto* const vecs = reinterpret_cast<const Vec16*>(row);
    for (auto i = static_cast<std::uint32_t>(lane_index()); i < bytes / 16; i += 32) {
        const Vec16 seen = load_stream(vecs + i);
        const Vec16 right = flow_vec(epoch, flow, number, i);
        for (int j = 0; j < 4; ++j) {
            if (seen.w[j] != right.w[j]) {
                add_relaxed<Scope::gpu>(mismatches, 1u);
                break;
            }
        }
    }
}

/// All lanes.
GIMLET_DEVICE void copy_row(std::byte* to, const std::byte* from, std::uint32_t bytes) {
    const auto* const source = reinterpret_cast<const Vec16*>(from);
    auto* const target = reinterpret_cast<Vec16*>(to);
    for (auto i = static_cast<std::uint32_t>(lane_index()); i < bytes / 16; i += 32)
        store_stream(target + i, load_stream(source + i));
}

/// One warp's shared memory: a row on its way, and the mbarrier of its bulk loads.
struct WarpRow {
    std::byte* row;
    Mbarrier* bar;
    std::uint32_t phase = 0;

    GIMLET_DEVICE explicit WarpRow(std::uint32_t bytes) {
        row = dynamic_shared_memory() + static_cast<std::uint32_t>(warp_index()) * (bytes + 16u);
        bar = reinterpret_cast<Mbarrier*>(row + bytes);
        if (elect()) {
            mbarrier_init(bar, 1);
            mbarrier_init_fence();
        }
        warp_sync();
    }
    /// All lanes; afterwards they see the row. The bulk loads of the row before are over.
    GIMLET_DEVICE void load(const std::byte* from, std::uint32_t bytes) {
        fence_proxy_async_shared();
        warp_sync();
        if (elect()) {
            bulk_wait_read<0>();
            mbarrier_arrive_expect_tx(bar, bytes);
            bulk_load(row, from, bytes, bar);
        }
        mbarrier_wait(bar, phase);
        phase ^= 1u;
        warp_sync();
    }
    /// All lanes; `row` was written by ordinary stores or by load().
    GIMLET_DEVICE void store(std::byte* to, std::uint32_t bytes) const {
        fence_proxy_async_shared();
        warp_sync();
        if (elect()) {
            bulk_store(to, row, bytes);
            bulk_commit();
        }
    }
    /// All lanes: the row may be written again.
    GIMLET_DEVICE void free() const {
        if (elect()) bulk_wait_read<0>();
        warp_sync();
    }
};

/// A number in 1 .. most, the same in all lanes.
GIMLET_DEVICE std::uint32_t draw(std::uint64_t seed, std::uint32_t row, std::uint32_t most) {
    std::uint64_t x = (seed + row) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return 1 + static_cast<std::uint32_t>(x >> 33) % most;
}

GIMLET_DEVICE std::uint32_t least_of(std::uint32_t a, std::uint32_t b) {
    return a < b ? a : b;
}

GIMLET_DEVICE FifoWrites writes_of(SlotAccess access) {
    return access == SlotAccess::bulk ? FifoWrites::bulk : FifoWrites::plain;
}
GIMLET_DEVICE FifoReads reads_of(SlotAccess access) {
    return access == SlotAccess::bulk ? FifoReads::bulk : FifoReads::plain;
}

template <class Sender>
GIMLET_DEVICE WaitStatus run_source(const FlowArgs& args, const FlowWarp& me,
                                    const WaitScope& scope) {
    const std::uint32_t bytes = args.options.slot_bytes;
    Sender out(args.peers, args.options, me.out);
    WarpRow shared(bytes);
    if (elect()) out.open();
    WaitStatus status = WaitStatus::ok;
    for (std::uint32_t row = 0; row < me.rows;) {
        const std::uint32_t count =
            least_of(me.rows - row, draw(args.seed ^ 0x51u, row, args.options.send_chunk));
        if (elect()) status = out.reserve(scope, count);
        if (!warp_ok(status)) break;
        const std::uint32_t first = shuffle(out.first(), 0);
        for (std::uint32_t i = 0; i < count; ++i) {
            if (args.writes == SlotAccess::bulk) {
                shared.free();
                fill_row(shared.row, bytes, args.epoch, me.flow, row + i);
                shared.store(out.slot(first, i), bytes);
            } else {
                fill_row(out.slot(first, i), bytes, args.epoch, me.flow, row + i);
            }
        }
        warp_sync();
        if (elect()) out.publish(count, writes_of(args.writes));
        row += count;
        if (me.pause_ns > 0) sleep_ns(me.pause_ns);
    }
    if (elect()) {
        bulk_wait<0>();
        out.close();
    }
    return status;
}

template <class Receiver>
GIMLET_DEVICE WaitStatus run_sink(const FlowArgs& args, const FlowWarp& me,
                                  const WaitScope& scope) {
    const std::uint32_t bytes = args.options.slot_bytes;
    Receiver in(args.peers, args.options, me.in);
    WarpRow shared(bytes);
    if (elect()) in.open();
    WaitStatus status = WaitStatus::ok;
    for (std::uint32_t row = 0; row < me.rows;) {
        const std::uint32_t least =
            least_of(me.rows - row, draw(args.seed ^ 0xa3u, row, args.options.receive_chunk));
        if (elect()) status = in.wait(scope, least, reads_of(args.reads));
        if (!warp_ok(status)) break;
        const std::uint32_t first = shuffle(in.first(), 0);
        // Rows of the next kernel may be there already.
        const std::uint32_t all = shuffle(in.available(), 0);
        const std::uint32_t here = least_of(all, me.rows - row);
        // As many as asked for, or all that came.
        const std::uint32_t count = draw(args.seed, row, 2) == 1 ? least : here;
        if ((here < least || all > args.options.capacity) && elect())
            add_relaxed<Scope::gpu>(args.mismatches, 1u);
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::byte* slot = in.slot(first, i);
            if (args.reads == SlotAccess::bulk) {
                shared.load(slot, bytes);
                slot = shared.row;
            }
            check_row(slot, bytes, args.epoch, me.flow, row + i, args.mismatches);
        }
        warp_sync();
        if (elect()) in.release(count);
        row += count;
        if (me.pause_ns > 0) sleep_ns(me.pause_ns);
    }
    if (elect()) in.close();
    return status;
}

template <class Sender, class Receiver>
GIMLET_DEVICE WaitStatus run_forward(const FlowArgs& args, const FlowWarp& me,
                                     const WaitScope& scope) {
    const std::uint32_t bytes = args.options.slot_bytes;
    Receiver in(args.peers, args.options, me.in);
    Sender out(args.peers, args.options, me.out);
    WarpRow shared(bytes);
    if (elect()) {
        in.open();
        out.open();
    }
    WaitStatus status = WaitStatus::ok;
    for (std::uint32_t row = 0; row < me.rows;) {
        if (elect()) status = in.wait(scope, 1, reads_of(args.reads));
        if (!warp_ok(status)) break;
        const std::uint32_t from = shuffle(in.first(), 0);
        const std::uint32_t count =
            least_of(shuffle(in.available(), 0), least_of(me.rows - row, args.options.send_chunk));
        if (elect()) status = out.reserve(scope, count);
        if (!warp_ok(status)) break;
        const std::uint32_t to = shuffle(out.first(), 0);
        for (std::uint32_t i = 0; i < count; ++i) {
            const std::byte* row_from = in.slot(from, i);
            std::byte* const row_to = out.slot(to, i);
            if (args.reads == SlotAccess::bulk) {
                shared.load(row_from, bytes);
                row_from = shared.row;
            }
            if (args.writes == SlotAccess::plain) {
                copy_row(row_to, row_from, bytes);
            } else {
                if (args.reads == SlotAccess::plain) {
                    shared.free();
                    copy_row(shared.row, row_from, bytes);
                }
                shared.store(row_to, bytes);
            }
        }
        warp_sync();
        if (elect()) {
            out.publish(count, writes_of(args.writes));
            in.release(count);
        }
        row += count;
        if (me.pause_ns > 0) sleep_ns(me.pause_ns);
    }
    if (elect()) {
        bulk_wait<0>();
        in.close();
        out.close();
    }
    return status;
}

template <class Sender, class Receiver>
GIMLET_DEVICE WaitStatus run_role(const FlowArgs& args, const FlowWarp& me,
                                  const WaitScope& scope) {
    switch (me.role) {
        case FlowRole::source: return run_source<Sender>(args, me, scope);
        case FlowRole::sink: return run_sink<Receiver>(args, me, scope);
        case FlowRole::forward: return run_forward<Sender, Receiver>(args, me, scope);
        case FlowRole::none: break;
    }
    return WaitStatus::ok;
}

GIMLET_DEVICE WaitScope scope_of(const PeerHandles& peers, std::uint64_t epoch) {
    return wait_scope(peers, Tag::user, Primitive::user, epoch,
                      &local_word<EpochWords>(peers, peers.layout.epochs)->barrier_poison);
}

GIMLET_GLOBAL void flow_kernel(const GIMLET_GRID_CONSTANT FlowArgs args) {
    const FlowWarp& me = args.warps[warp_index()];
    const WaitScope scope = scope_of(args.peers, args.epoch);
    const WaitStatus status = args.options.link == FifoLink::lsa
                                  ? run_role<FifoSender, FifoReceiver>(args, me, scope)
                                  : run_role<GinFifoSender, GinFifoReceiver>(args, me, scope);
    if (elect() && status != WaitStatus::ok) add_relaxed<Scope::gpu>(args.failures, 1u);
}

/// Signals are over when a barrier on their context is.
GIMLET_GLOBAL void settle_kernel(const GIMLET_GRID_CONSTANT FlowArgs args) {
    const PeerHandles& peers = args.peers;
    if (!gin_barrier(peers, GinTeam::world, {0, peers.gin_context_count},
                     scope_of(peers, args.epoch))) {
        add_relaxed<Scope::gpu>(args.failures, 1u);
    }
}

// --- windowed tail

struct WindowShared {
    WindowedTailState tail;
    std::uint64_t next;  ///< position that the next free producer takes
    std::uint64_t end;   ///< position behind the last one
};

/// A producer warp: takes positions as it gets to them. Returns what its last wait said.
GIMLET_DEVICE WaitStatus produce(const WindowArgs& args, WindowShared* shared,
                                 const WaitScope& scope) {
    FifoSender out(args.peers, args.options, args.out);
    const WindowedTail window(&shared->tail);
    out.open();
    const std::uint64_t start = out.cursor().position;
    WaitStatus status = WaitStatus::ok;
    while (true) {
        std::uint64_t position = 0;
        if (elect()) position = fetch_add_relaxed<Scope::block>(&shared->next, 1u);
        position = shuffle(position, 0);
        const auto row = static_cast<std::uint32_t>(position - start);
        if (row >= args.rows) break;
        out.skip(static_cast<std::uint32_t>(position - out.cursor().position));
        if (elect()) status = out.reserve(scope, 1);
        if (!warp_ok(status)) break;
        fill_row(out.slot(out.first()), args.options.slot_bytes, args.epoch, args.out_flow, row);
        if (row % args.slow_every == 0 && args.pause_ns > 0) sleep_ns(args.pause_ns);
        warp_sync();
        if (elect()) {
            status = window.finish(scope, position, [&](std::uint64_t first, std::uint32_t count) {
                out.publish_through(first + count);
            });
        }
        if (!warp_ok(status)) break;
    }
    return status;
}

GIMLET_DEVICE WaitStatus consume(const WindowArgs& args, const WaitScope& scope) {
    FifoReceiver in(args.peers, args.options, args.in);
    if (elect()) in.open();
    WaitStatus status = WaitStatus::ok;
    for (std::uint32_t row = 0; row < args.rows;) {
        if (elect()) status = in.wait(scope, 1);
        if (!warp_ok(status)) break;
        const std::uint32_t count = least_of(shuffle(in.available(), 0), args.rows - row);
        const std::uint32_t first = shuffle(in.first(), 0);
        for (std::uint32_t i = 0; i < count; ++i) {
            check_row(in.slot(first, i), args.options.slot_bytes, args.epoch, args.in_flow, row + i,
                      args.mismatches);
        }
        warp_sync();
        if (elect()) in.release(count);
        row += count;
    }
    if (elect()) in.close();
    return status;
}

GIMLET_GLOBAL void window_kernel(const GIMLET_GRID_CONSTANT WindowArgs args) {
    auto* const shared = reinterpret_cast<WindowShared*>(dynamic_shared_memory());
    FifoSender out(args.peers, args.options, args.out);
    if (thread_index() == 0) {
        out.open();
        const std::uint64_t start = out.cursor().position;
        WindowedTail(&shared->tail).init(start);
        shared->next = start;
        shared->end = start + args.rows;
    }
    block_sync();
    const WaitScope scope = scope_of(args.peers, args.epoch);
    const bool producer = warp_index() < args.producers;
    const WaitStatus status = producer ? produce(args, shared, scope) : consume(args, scope);
    if (elect() && status != WaitStatus::ok) add_relaxed<Scope::gpu>(args.failures, 1u);
    block_sync();
    if (thread_index() != 0) return;
    if (WindowedTail(&shared->tail).tail() != shared->end)
        add_relaxed<Scope::gpu>(args.mismatches, 1u);
    out.skip(args.rows);
    out.close();
}

// --- pipeline

/// Producer `index` fills its share of a stage: 16-byte pieces in turn.
GIMLET_DEVICE void fill_share(const PipelineArgs& args, std::byte* stage, std::uint32_t round,
                              std::int32_t index) {
    auto* const vecs = reinterpret_cast<Vec16*>(stage);
    const auto step = static_cast<std::uint32_t>(32 * args.producers);
    for (auto i = static_cast<std::uint32_t>(32 * index + lane_index());
         i < args.options.stage_bytes / 16; i += step) {
        store_stream(vecs + i, flow_vec(args.epoch, 1, round, i));
    }
}

GIMLET_DEVICE WaitStatus fill_stages(const PipelineArgs& args, const Pipeline& pipeline,
                                     const WaitScope& scope, std::int32_t index) {
    const std::uint32_t bytes = args.options.stage_bytes;
    const StageAccess drain =
        args.drain == SlotAccess::bulk ? StageAccess::bulk : StageAccess::plain;
    PipelineCursor cursor;
    for (std::uint32_t round = 0; round < args.rounds; ++round) {
        if (!warp_ok(pipeline.acquire(scope, cursor))) return WaitStatus::timed_out;
        if (args.fill == SlotAccess::bulk) {
            // One producer loads the whole stage.
            if (elect()) {
                pipeline.commit_bulk(cursor, bytes);
                bulk_load(pipeline.stage(cursor),
                          args.source + static_cast<std::uint64_t>(round) * bytes, bytes,
                          pipeline.full_barrier(cursor));
            }
        } else {
            fill_share(args, pipeline.stage(cursor), round, index);
            if (drain == StageAccess::bulk && !elect() &&
                !mutated(Mutant::pipeline_no_fence_before_store)) {
                fence_proxy_async_shared();
            }
            warp_sync();
            if (elect()) pipeline.commit(cursor, drain);
        }
        pipeline.next(&cursor);
        if (args.producer_pause_ns > 0) sleep_ns(args.producer_pause_ns);
    }
    return WaitStatus::ok;
}

GIMLET_DEVICE WaitStatus drain_stages(const PipelineArgs& args, const Pipeline& pipeline,
                                      const WaitScope& scope, std::int32_t index) {
    const std::uint32_t bytes = args.options.stage_bytes;
    const StageAccess refill =
        args.fill == SlotAccess::bulk ? StageAccess::bulk : StageAccess::plain;
    PipelineCursor cursor;
    for (std::uint32_t round = 0; round < args.rounds; ++round) {
        if (!warp_ok(pipeline.wait(scope, cursor))) return WaitStatus::timed_out;
        if (args.drain == SlotAccess::bulk) {
            if (elect() && index == 0) {
                bulk_store(args.target + static_cast<std::uint64_t>(round) * bytes,
                           pipeline.stage(cursor), bytes);
                bulk_commit();
                bulk_wait_read<0>();
            }
        } else {
            check_row(pipeline.stage(cursor), bytes, args.epoch, 1, round, args.mismatches);
            if (refill == StageAccess::bulk) fence_proxy_async_shared();
        }
        warp_sync();
        if (elect()) pipeline.release(cursor, refill);
        pipeline.next(&cursor);
        if (args.consumer_pause_ns > 0) sleep_ns(args.consumer_pause_ns);
    }
    if (elect()) bulk_wait<0>();
    return WaitStatus::ok;
}

GIMLET_GLOBAL void pipeline_kernel(const GIMLET_GRID_CONSTANT PipelineArgs args) {
    const Pipeline pipeline(dynamic_shared_memory(), args.options);
    const bool one_loader = args.fill == SlotAccess::bulk;
    if (thread_index() == 0) {
        pipeline.init(one_loader ? 1u : static_cast<std::uint32_t>(args.producers),
                      static_cast<std::uint32_t>(args.consumers));
    }
    block_sync();
    const WaitScope scope{args.deadline_ns, args.error,     nullptr, args.epoch, 0,
                          Tag::user,        Primitive::user};
    const bool producer = warp_index() < args.producers;
    if (producer && one_loader && warp_index() > 0) return;
    const WaitStatus status =
        producer ? fill_stages(args, pipeline, scope, warp_index())
                 : drain_stages(args, pipeline, scope, warp_index() - args.producers);
    if (elect() && status != WaitStatus::ok) add_relaxed<Scope::gpu>(args.failures, 1u);
}

template <class Kernel, class Args>
cudaError_t launch_block(Kernel kernel, int warps, std::size_t shared_bytes, cudaStream_t stream,
                         const Args& args) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1, 1, 1);
    config.blockDim = dim3(static_cast<unsigned>(32 * warps), 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace

cudaError_t launch_flow(const FlowArgs& args, cudaStream_t stream) {
    return launch_block(flow_kernel, kMaxFlowWarps, kMaxFlowWarps * (args.options.slot_bytes + 16u),
                        stream, args);
}

cudaError_t launch_settle(const FlowArgs& args, cudaStream_t stream) {
    return launch_block(settle_kernel, 1, 0, stream, args);
}

cudaError_t launch_window(const WindowArgs& args, cudaStream_t stream) {
    return launch_block(window_kernel, args.producers + 1, sizeof(WindowShared), stream, args);
}

cudaError_t launch_pipeline(const PipelineArgs& args, cudaStream_t stream) {
    return launch_block(pipeline_kernel, args.producers + args.consumers,
                        args.options.total_bytes(), stream, args);
}

}  // namespace gimlet::sim

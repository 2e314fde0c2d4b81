// SPDX-License-Identifier: Apache-2.0
// The same rows through the same stages, led by barriers or by FIFOs, as `gimlet bench` times them;
// and what one hand-over costs.
#include "device/channel/fifo.hpp"
#include "device/core/bulk.hpp"
#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/kernels/bench_timer.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"
#include "device/sync/gpu_barrier.hpp"

namespace gimlet {
namespace device {
namespace {

/// A block's ring of rows in shared memory. One thread copies: loads run ahead of stores by up to
/// the ring's length.
class RowMover {
  public:
    GIMLET_DEVICE RowMover(std::uint32_t row_bytes, std::int32_t slot_count)
        : slots_(dynamic_shared_memory()),
          bars_(reinterpret_cast<Mbarrier*>(slots_ +
                                            static_cast<std::uint32_t>(slot_count) * row_bytes)),
          row_bytes_(row_bytes),
          slot_count_(static_cast<std::uint32_t>(slot_count)) {}

    GIMLET_DEVICE void init() const {
        for (std::uint32_t i = 0; i < slot_count_; ++i) mbarrier_init(bars_ + i, 1);
        mbarrier_init_fence();
    }

    /// Moves `count` rows from from(i) to to(i). The stores may still be under way.
    template <class From, class To>
    GIMLET_DEVICE void move(std::uint32_t count, From&& from, To&& to) {
        std::uint32_t loaded = 0;
        for (std::uint32_t i = 0; i < count; ++i) {
            for (; loaded < count && loaded < i + slot_count_; ++loaded) {
                // The slot's last store has left it: all but those of rows after it have.
                bulk_wait_read(static_cast<int>(slot_count_) - 1 - static_cast<int>(loaded - i));
                load(from(loaded));
            }
            mbarrier_wait(bars_ + store_slot_, store_phase_);
            bulk_store(to(i), slots_ + store_slot_ * row_bytes_, row_bytes_);
            bulk_commit();
            step(&store_slot_, &store_phase_);
        }
    }

  private:
    GIMLET_DEVICE void load(const std::byte* from) {
        mbarrier_arrive_expect_tx(bars_ + load_slot_, row_bytes_);
        bulk_load(slots_ + load_slot_ * row_bytes_, from, row_bytes_, bars_ + load_slot_);
        std::uint32_t unused = 0;
        step(&load_slot_, &unused);
    }
    GIMLET_DEVICE void step(std::uint32_t* slot, std::uint32_t* phase) const {
        if (++*slot < slot_count_) return;
        *slot = 0;
        *phase ^= 1u;
    }

    std::byte* slots_;
    Mbarrier* bars_;
    std::uint32_t row_bytes_;
    std::uint32_t slot_count_;
    std::uint32_t load_slot_ = 0;
    std::uint32_t store_slot_ = 0;
    std::uint32_t store_phase_ = 0;
};

/// One block: a lane of a stage.
struct Lane {
    std::int32_t stage;
    std::int32_t lane;
    std::int32_t place;  ///< of the stage on its rank
    bool first;          ///< stage 0
    bool last;
    std::int32_t next_rank;
    std::int32_t next_place;

    GIMLET_DEVICE explicit Lane(const PipelineBenchArgs& args) {
        place = block_index() / args.lane_count;
        lane = block_index() % args.lane_count;
        stage = place * args.peers.rank_count + args.peers.rank;
        first = stage == 0;
        last = stage == args.stage_count - 1;
        next_rank = (stage + 1) % args.peers.rank_count;
        next_place = (stage + 1) / args.peers.rank_count;
    }
    GIMLET_DEVICE bool works(const PipelineBenchArgs& args) const {
        return stage < args.stage_count;
    }
    /// How many of `rows` rows are this lane's.
    GIMLET_DEVICE std::uint32_t share(const PipelineBenchArgs& args, std::uint32_t rows) const {
        const auto mine = static_cast<std::uint32_t>(lane);
        const auto lanes = static_cast<std::uint32_t>(args.lane_count);
        return rows > mine ? (rows - mine + lanes - 1) / lanes : 0;
    }
};

/// Row `row` of all rows, in the source or the target.
GIMLET_DEVICE std::byte* kept_row(const PipelineBenchArgs& args, std::uint64_t offset,
                                  std::uint32_t row) {
    return local_pointer(
        args.peers, offset + static_cast<std::uint64_t>(row % args.kept_rows) * args.row_bytes);
}

GIMLET_DEVICE WaitScope pipeline_scope(const PeerHandles& peers, std::uint64_t epoch) {
    return wait_scope(peers, Tag::user, Primitive::user, epoch,
                      &local_word<EpochWords>(peers, peers.layout.epochs)->barrier_poison);
}

// --- led by barriers

/// In which of the stage's buffers a batch is, as a window offset.
GIMLET_DEVICE std::uint64_t batch_offset(const PipelineBenchArgs& args, std::int32_t place,
                                         std::uint32_t batch, std::uint32_t most_rows) {
    const std::uint64_t buffers = args.batch_count > 1 ? 2 : 1;
    const std::uint64_t index = static_cast<std::uint64_t>(place) * buffers + batch % buffers;
    return args.buffer_offset + index * most_rows * args.row_bytes;
}

GIMLET_DEVICE void move_batch(const PipelineBenchArgs& args, const Lane& me, RowMover& mover,
                              std::uint32_t batch, std::uint32_t most_rows) {
    std::uint32_t before = 0;
    for (std::uint32_t i = 0; i < batch; ++i) before += args.batch_rows[i];
    const auto row_of = [&](std::uint32_t i) {
        return static_cast<std::uint32_t>(me.lane) +
               i * static_cast<std::uint32_t>(args.lane_count);
    };
    const std::byte* const in =
        local_pointer(args.peers, batch_offset(args, me.place, batch, most_rows));
    std::byte* const out = me.last
                               ? nullptr
                               : peer_pointer(args.peers, me.next_rank,
                                              batch_offset(args, me.next_place, batch, most_rows));
    const auto at = [&](std::uint32_t i) {
        return static_cast<std::uint64_t>(row_of(i)) * args.row_bytes;
    };
    mover.move(
        me.share(args, args.batch_rows[batch]),
        [&](std::uint32_t i) -> const std::byte* {
            return me.first ? kept_row(args, args.source_offset, before + row_of(i)) : in + at(i);
        },
        [&](std::uint32_t i) {
            return me.last ? kept_row(args, args.target_offset, before + row_of(i)) : out + at(i);
        });
}

/// Phase p: stage s moves batch p - s; then everybody meets.
GIMLET_DEVICE void run_barriers(const PipelineBenchArgs& args, const Lane& me, RowMover& mover,
                                PipelineLaneRecord* record) {
    std::uint32_t most_rows = 0;
    for (std::uint32_t i = 0; i < args.batch_count; ++i)
        most_rows = args.batch_rows[i] > most_rows ? args.batch_rows[i] : most_rows;
    const std::int32_t phases = static_cast<std::int32_t>(args.batch_count) + args.stage_count - 1;
    const auto meeting_flags =
        static_cast<std::uint64_t>(2 + (block_index() == 0 ? args.peers.rank_count - 1 : 0));
    for (std::int32_t phase = 0; phase < phases; ++phase) {
        const std::int32_t batch = phase - me.stage;
        const bool moves =
            me.works(args) && batch >= 0 && batch < static_cast<std::int32_t>(args.batch_count);
        if (elect() && moves) {
            fence_proxy_async();
            if (me.last && batch == 0) record->first_ns = now_ns();
            move_batch(args, me, mover, static_cast<std::uint32_t>(batch), most_rows);
            bulk_wait<0>();
            fence_proxy_async();
            record->last_ns = now_ns();
        }
        if (phase + 1 == phases) break;
        const WaitScope scope =
            pipeline_scope(args.peers, args.first_epoch + 1 + static_cast<std::uint64_t>(phase));
        if (!gpu_barrier(args.peers, GpuBarrierOptions{.teams = BarrierTeams::scale_up}, scope))
            return;
        if (elect()) {
            record->flags += meeting_flags;
            record->waits += 1;
        }
    }
}

// --- led by FIFOs

GIMLET_DEVICE FifoEnd ring_end(const PipelineBenchArgs& args, const Lane& me, std::int32_t peer,
                               std::int32_t peer_place) {
    const std::uint64_t bytes = FifoLayout::build(args.fifo).total_bytes;
    const auto lanes = static_cast<std::uint64_t>(args.lane_count);
    const auto region = [&](std::int32_t place) {
        return args.buffer_offset +
               (static_cast<std::uint64_t>(place) * lanes + static_cast<std::uint64_t>(me.lane)) *
                   bytes;
    };
    return {peer, me.lane, region(me.place), region(peer_place), 0, 0};
}

/// One thread.
GIMLET_DEVICE void run_rings(const PipelineBenchArgs& args, const Lane& me, RowMover& mover,
                             PipelineLaneRecord* record) {
    const PeerHandles& peers = args.peers;
    const std::int32_t before = me.first ? 0 : me.stage - 1;
    FifoReceiver in(peers, args.fifo,
                    ring_end(args, me, before % peers.rank_count, before / peers.rank_count));
    FifoSender out(peers, args.fifo,
                   ring_end(args, me, me.last ? peers.rank : me.next_rank,
                            me.last ? me.place : me.next_place));
    if (!me.first) in.open();
    if (!me.last) out.open();
    const std::uint64_t flags = in.cursor().flags + out.cursor().flags;
    const std::uint64_t stalls = in.cursor().stalls + out.cursor().stalls;
    const WaitScope scope = pipeline_scope(peers, args.first_epoch + 1);
    std::uint32_t rows = 0;
    for (std::uint32_t i = 0; i < args.batch_count; ++i) rows += args.batch_rows[i];
    const std::uint32_t all = me.share(args, rows);
    const auto row_of = [&](std::uint32_t i) {
        return static_cast<std::uint32_t>(me.lane) +
               i * static_cast<std::uint32_t>(args.lane_count);
    };
    for (std::uint32_t done = 0; done < all;) {
        std::uint32_t count = all - done < args.fifo.send_chunk ? all - done : args.fifo.send_chunk;
        if (!me.first) {
            if (in.wait(scope, 1, FifoReads::bulk) != WaitStatus::ok) break;
            if (in.available() < count) count = in.available();
            if (me.last && done == 0) record->first_ns = now_ns();
        }
        if (!me.last && out.reserve(scope, count) != WaitStatus::ok) break;
        mover.move(
            count,
            [&](std::uint32_t i) -> const std::byte* {
                return me.first ? kept_row(args, args.source_offset, row_of(done + i))
                                : in.slot(in.first(), i);
            },
            [&](std::uint32_t i) {
                return me.last ? kept_row(args, args.target_offset, row_of(done + i))
                               : out.slot(out.first(), i);
            });
        // The loads are over: their rows were stored.
        if (!me.last) out.publish(count, FifoWrites::bulk);
        if (!me.first) in.release(count);
        done += count;
    }
    bulk_wait<0>();
    record->last_ns = now_ns();
    if (!me.first) in.close();
    if (!me.last) out.close();
    record->flags = in.cursor().flags + out.cursor().flags - flags;
    record->waits = in.cursor().stalls + out.cursor().stalls - stalls;
}

GIMLET_GLOBAL void pipeline_bench_kernel(const GIMLET_GRID_CONSTANT PipelineBenchArgs args) {
    const Lane me(args);
    RowMover mover(args.row_bytes, args.slot_count);
    PipelineLaneRecord record{};
    if (elect()) mover.init();
    warp_sync();
    const bool good = gpu_barrier(args.peers, GpuBarrierOptions{.teams = BarrierTeams::scale_up},
                                  pipeline_scope(args.peers, args.first_epoch));
    if (!good) return;
    record.start_ns = now_ns();
    if (args.sync == PipelineSync::barrier) {
        run_barriers(args, me, mover, &record);
    } else if (elect() && me.works(args)) {
        run_rings(args, me, mover, &record);
    }
    if (elect()) args.records[block_index()] = record;
}

// --- one hand-over

/// One end of the round trips: sends on channel or flag `out`, receives on `in`.
struct HandoverEnd {
    bool begins;
    std::int32_t peer;
    std::uint64_t out;
    std::uint64_t in;
};

GIMLET_DEVICE bool flag_trips(const HandoverBenchArgs& args, const HandoverEnd& me,
                              BenchTimer* timer) {
    auto* const out = peer_word<std::uint64_t>(args.peers, me.peer, args.flags_offset, me.out);
    const auto* const in = local_word<std::uint64_t>(args.peers, args.flags_offset, me.in);
    const WaitScope scope = pipeline_scope(args.peers, args.first_epoch);
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < args.warmup_count + args.repeat_count; ++i) {
        if (i == args.warmup_count) timer->start();
        const std::uint64_t number = args.first_epoch + static_cast<std::uint64_t>(i);
        if (me.begins) store_release<Scope::system>(out, number);
        const WaitStatus status =
            wait_until(scope, WaitTarget{me.peer, -1, number}, [&](std::uint64_t& seen) {
                seen = load_acquire<Scope::system>(in);
                return static_cast<std::int64_t>(seen - number) >= 0;
            });
        if (status != WaitStatus::ok) return false;
        if (!me.begins) store_release<Scope::system>(out, number);
    }
    return true;
}

GIMLET_DEVICE bool send_slot(const HandoverBenchArgs& args, const WaitScope& scope, FifoSender* out,
                             std::uint32_t value) {
    if (out->reserve(scope, 1) != WaitStatus::ok) return false;
    if (args.kind == HandoverKind::fifo_row)
        store_vec(reinterpret_cast<Vec16*>(out->slot(out->first())), Vec16{{value, 0, 0, value}});
    out->publish(1);
    return true;
}

GIMLET_DEVICE bool fifo_trips(const HandoverBenchArgs& args, const HandoverEnd& me,
                              BenchTimer* timer) {
    const std::uint64_t bytes = FifoLayout::build(args.fifo).total_bytes;
    const std::uint64_t there = args.fifo_offset + me.out * bytes;
    const std::uint64_t back = args.fifo_offset + me.in * bytes;
    FifoSender out(args.peers, args.fifo, FifoEnd{me.peer, 0, there, there, 0, 0});
    FifoReceiver in(args.peers, args.fifo, FifoEnd{me.peer, 1, back, back, 0, 0});
    out.open();
    in.open();
    const WaitScope scope = pipeline_scope(args.peers, args.first_epoch);
    bool good = true;
    std::uint32_t wrong = 0;
    GIMLET_ROLLED
    for (std::int32_t i = 0; i < args.warmup_count + args.repeat_count && good; ++i) {
        if (i == args.warmup_count) timer->start();
        const auto value = static_cast<std::uint32_t>(i + 1);
        if (me.begins) good = send_slot(args, scope, &out, value);
        good = good && in.wait(scope, 1) == WaitStatus::ok;
        if (good && args.kind == HandoverKind::fifo_row)
            wrong += load_vec(reinterpret_cast<const Vec16*>(in.slot(in.first()))).w[3] != value;
        // The answer first: a release waits for the one before it.
        if (good && !me.begins) good = send_slot(args, scope, &out, value);
        if (good) in.release(1);
    }
    out.close();
    in.close();
    return good && wrong == 0;
}

GIMLET_GLOBAL void handover_bench_kernel(const GIMLET_GRID_CONSTANT HandoverBenchArgs args) {
    const PeerHandles& peers = args.peers;
    const bool alone = peers.rank_count == 1;
    const std::int32_t end = alone ? block_index() : peers.rank;
    if (thread_index() != 0 || end > 1 || (!alone && block_index() > 0)) return;
    const HandoverEnd me{end == 0, alone ? 0 : 1 - end, static_cast<std::uint64_t>(end),
                         static_cast<std::uint64_t>(1 - end)};
    BenchTimer timer;
    const bool good = args.kind == HandoverKind::flag ? flag_trips(args, me, &timer)
                                                      : fifo_trips(args, me, &timer);
    if (good && me.begins) timer.stop(args.time);
}

}  // namespace
}  // namespace device

std::uint32_t pipeline_bench_shared_bytes(std::uint32_t row_bytes, std::int32_t slot_count) {
    return static_cast<std::uint32_t>(slot_count) *
           (row_bytes + static_cast<std::uint32_t>(sizeof(device::Mbarrier)));
}

cudaError_t prepare_pipeline_bench() {
    return raise_shared_limit(device::pipeline_bench_kernel);
}

cudaError_t launch_pipeline_bench(const PipelineBenchArgs& args, cudaStream_t stream) {
    KernelShape shape{};
    const std::int32_t ranks = args.peers.rank_count;
    shape.block_count = (args.stage_count + ranks - 1) / ranks * args.lane_count;
    shape.thread_count = kWarpSize;
    shape.shared_bytes = pipeline_bench_shared_bytes(args.row_bytes, args.slot_count);
    return launch(device::pipeline_bench_kernel, shape, stream, args);
}

cudaError_t launch_handover_bench(const HandoverBenchArgs& args, cudaStream_t stream) {
    KernelShape shape{};
    shape.block_count = args.peers.rank_count == 1 ? 2 : 1;
    shape.thread_count = kWarpSize;
    return launch(device::handover_bench_kernel, shape, stream, args);
}

}  // namespace gimlet

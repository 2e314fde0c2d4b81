// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "device/core/bulk.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/wait.hpp"

namespace gimlet::device {

/// How a stage is filled, and how it is read. `bulk` needs proxy fences on the other side.
enum class StageAccess { plain, bulk };

/// A place in the ring of stages: the stage, and the parity of its mbarriers' current phase. Each
/// warp keeps its own, in registers.
struct PipelineCursor {
    std::uint32_t stage = 0;
    std::uint32_t phase = 0;
};

/// Ring of stages in the block's shared memory, between producer and consumer warps. Each stage has
/// a pair of mbarriers, `full` and `empty`, whose phases alternate.
///
///     producer: acquire -> fill -> commit, next          consumer: wait -> read -> release, next
///
/// Who: one thread calls init(); a block sync; then each producer and consumer has a cursor of its
/// own and visits the stages in order. Calls are by one thread of a warp (warp sync around), except
/// acquire() and wait(), which all lanes may call.
/// Before init: `shared` is 16-byte aligned and holds options.total_bytes().
/// Order: commit (release at block scope) -> wait (acquire): the stage's content. release
/// (release) -> acquire (acquire): the stage may be overwritten. Bulk copies: see the calls.
/// Cost: no memory traffic outside of the block.
/// Deadline: acquire and wait have wait_until's; `expected` is the phase's parity, `context` the
/// stage. After a failure nothing is committed or released any more.
class Pipeline {
  public:
    GIMLET_DEVICE Pipeline(void* shared, const PipelineOptions& options)
        : stages_(static_cast<std::byte*>(shared)),
          full_(reinterpret_cast<Mbarrier*>(stages_ + options.barrier_offset())),
          empty_(full_ + options.stage_count),
          stage_count_(options.stage_count),
          stage_bytes_(options.stage_bytes) {}

    /// `producer_count` commits fill a stage, `consumer_count` releases empty it; both > 0.
    GIMLET_DEVICE void init(std::uint32_t producer_count, std::uint32_t consumer_count) const {
        for (std::uint32_t i = 0; i < stage_count_; ++i) {
            mbarrier_init(full_ + i, producer_count);
            mbarrier_init(empty_ + i, consumer_count);
        }
        mbarrier_init_fence();
    }

    GIMLET_DEVICE std::byte* stage(const PipelineCursor& cursor) const {
        return stages_ + cursor.stage * stage_bytes_;
    }
    /// For bulk loads into the stage, after commit_bulk.
    GIMLET_DEVICE Mbarrier* full_barrier(const PipelineCursor& cursor) const {
        return full_ + cursor.stage;
    }

    GIMLET_DEVICE void next(PipelineCursor* cursor) const {
        if (++cursor->stage < stage_count_) return;
        cursor->stage = 0;
        cursor->phase ^= mutate(Mutant::pipeline_phase_stays, 1u, 0u);
    }

    /// Producer: waits until the stage is empty. In the first revolution it is: the phase before
    /// the first counts as complete.
    GIMLET_DEVICE WaitStatus acquire(const WaitScope& scope, const PipelineCursor& cursor) const {
        if (mutated(Mutant::pipeline_empty_not_awaited)) return WaitStatus::ok;
        return wait_for(scope, cursor, empty_ + cursor.stage, cursor.phase ^ 1u);
    }

    /// Producer: the stage was filled by ordinary stores of this thread (others: warp sync before).
    /// Consumers that read it by bulk stores (`reads`): each writer's stores are fenced here for
    /// this thread, and by the others before the sync with fence_proxy_async_shared().
    GIMLET_DEVICE void commit(const PipelineCursor& cursor,
                              StageAccess reads = StageAccess::plain) const {
        if (reads == StageAccess::bulk && !mutated(Mutant::pipeline_no_fence_before_store))
            fence_proxy_async_shared();
        mbarrier_arrive(full_ + cursor.stage);
    }

    /// Producer: announces `bytes` of bulk loads, and arrives; the caller then issues bulk_load()s
    /// of that many bytes on full_barrier(). The stage is full when they have landed.
    GIMLET_DEVICE void commit_bulk(const PipelineCursor& cursor, std::uint32_t bytes) const {
        mbarrier_arrive_expect_tx(full_ + cursor.stage, bytes);
    }

    /// Consumer: waits until the stage is full.
    GIMLET_DEVICE WaitStatus wait(const WaitScope& scope, const PipelineCursor& cursor) const {
        if (mutated(Mutant::pipeline_full_not_awaited)) return WaitStatus::ok;
        return wait_for(scope, cursor, full_ + cursor.stage, cursor.phase);
    }

    /// Consumer: has read the stage, by ordinary loads of this thread (others: warp sync before) or
    /// by its own bulk stores, whose groups have been read (bulk_wait_read<0>). `refill`: how the
    /// producer fills the stage next; ordinary reads before a bulk load need a proxy fence, by this
    /// thread here and by the others before the sync.
    GIMLET_DEVICE void release(const PipelineCursor& cursor,
                               StageAccess refill = StageAccess::plain) const {
        if (refill == StageAccess::bulk) fence_proxy_async_shared();
        mbarrier_arrive(empty_ + cursor.stage);
    }

  private:
    GIMLET_DEVICE static WaitStatus wait_for(const WaitScope& scope, const PipelineCursor& cursor,
                                             Mbarrier* bar, std::uint32_t parity) {
        return wait_until(for_primitive(scope, Primitive::pipeline),
                          WaitTarget{-1, static_cast<std::int32_t>(cursor.stage), parity},
                          [&](std::uint64_t& seen) {
                              seen = parity ^ 1u;
                              return mbarrier_try_wait(bar, parity);
                          });
    }

    std::byte* stages_;
    Mbarrier* full_;
    Mbarrier* empty_;
    std::uint32_t stage_count_;
    std::uint32_t stage_bytes_;
};

}  // namespace gimlet::device

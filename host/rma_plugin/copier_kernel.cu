// SPDX-License-Identifier: Apache-2.0
// The copier: blocks that stay for a while, poll a queue in host memory, copy and write words. In a
// block one warp takes commands, ten carry them out, one tells the CPU what is done; what must be
// in order is all done by one warp of the first block.
#include "device/core/bulk.hpp"
#include "device/core/memory.hpp"
#include "host/rma_plugin/copier_queue.hpp"

namespace {

using namespace gimlet::rma;
using namespace gimlet::device;
using Word = std::uint64_t;

constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = ~0u;
constexpr unsigned kSlotsOfLoad = kWarp / kCopierWords;  // commands that one load of a warp reads

__device__ CopierKind kind_of(Word word) {
    return static_cast<CopierKind>((word & kCopierPayloadMask) >> kCopierKindShift);
}

/// Never through L1: the sources change while this kernel lives.
template <typename T>
__device__ void copy_as(Word target, Word source, unsigned bytes, unsigned lane) {
    constexpr unsigned kUnroll = 4;
    auto* const to = reinterpret_cast<T*>(target);
    const auto* const from = reinterpret_cast<const T*>(source);
    const unsigned count = bytes / sizeof(T);
    for (unsigned i = lane; i < count; i += kUnroll * kWarp) {
        T part[kUnroll];
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) {
            if (i + k * kWarp < count) part[k] = __ldcv(from + i + k * kWarp);
        }
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) {
            if (i + k * kWarp < count) to[i + k * kWarp] = part[k];
        }
    }
}

__device__ void copy(Word target, Word source, unsigned bytes, unsigned lane) {
    unsigned done = 0;
    const Word offsets = target | source;
    if (offsets % sizeof(uint4) == 0) {
        done = bytes / sizeof(uint4) * sizeof(uint4);
        copy_as<uint4>(target, source, done, lane);
    } else if (offsets % sizeof(unsigned) == 0) {
        done = bytes / sizeof(unsigned) * sizeof(unsigned);
        copy_as<unsigned>(target, source, done, lane);
    }
    copy_as<unsigned char>(target + done, source + done, bytes - done, lane);
}

/// By a whole warp: copies and small writes.
__device__ void carry_out(const Word* words, unsigned lane) {
    const auto bytes = static_cast<unsigned>(words[2]);
    if (kind_of(words[2]) == CopierKind::copy) {
        copy(words[0], words[1], bytes, lane);
    } else if (kind_of(words[2]) == CopierKind::small && lane < bytes) {
        const Word value = words[1] | words[3] << kHalfBits;
        reinterpret_cast<unsigned char*>(words[0])[lane] =
            static_cast<unsigned char>(value >> (8 * lane));
    }
}

__device__ const Word* word_of(const CopierLaneMemory* memory, Word number, unsigned lane) {
    return &memory->slots[number % kCopierSlots][lane % kCopierWords];
}

/// Whether this word belongs to command `number`, and not to the one before it in its slot.
__device__ bool is_of(Word word, Word number) {
    return (word & ~kCopierPayloadMask) == copier_tag(number);
}

/// After a fence: the effects of this command are there.
__device__ void tell_done(CopierLaneMemory* memory, Word number) {
    store_relaxed<Scope::system>(&memory->done[number % kCopierSlots], copier_lap(number));
}

/// Commands before the first word that has not arrived.
__device__ unsigned whole_commands(unsigned here) {
    return here == kAllLanes ? kSlotsOfLoad : (__ffs(~here) - 1) / kCopierWords;
}

/// Shared memory. Commands that the block has taken, by ticket (0, 1, ... in this launch): where
/// one goes through is entry ticket % kCopierEntries. Each of the three words has one writer.
struct Block {
    alignas(128) unsigned char pieces[kCopierWorkers][kPieceBytes];
    Mbarrier loaded[kCopierWorkers];
    Word words[kCopierEntries][kCopierWords];
    Word number[kCopierEntries];
    unsigned open[kCopierEntries];      ///< ticket that may be put in; by the publisher
    unsigned ready[kCopierEntries];     ///< ticket that may be carried out; by the taker
    unsigned finished[kCopierEntries];  ///< ticket whose effects the publisher sees; by the worker
    unsigned claimed;                   ///< next ticket without a worker
    unsigned published;                 ///< tickets whose completion has been told
    unsigned stop;                      ///< no ticket is left, none will come
    unsigned delivered;                 ///< batches of what is in order
    Word deliveries[kDeliveryBatch][kCopierWords];
};
static_assert(sizeof(Block) <= kCopierSharedBytes);
static_assert(kCopierEntries == 2 * kWarp, "a lane of the publisher looks after two entries");
static_assert(kDeliveryBatch == kSlotsOfLoad, "one load of a warp reads a batch");

constexpr unsigned kLoads = 4;  // of the taker at once
static_assert(kLoads * kSlotsOfLoad == kWarp, "a lane hands over a command");

__device__ void start(Block& block) {
    for (unsigned i = threadIdx.x; i < kCopierEntries; i += blockDim.x) {
        block.open[i] = i;
        block.ready[i] = block.finished[i] = i - kCopierEntries;
    }
    if (threadIdx.x == 0) {
        block.claimed = block.published = block.stop = block.delivered = 0;
        for (Mbarrier& barrier : block.loaded) mbarrier_init(&barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
}

/// Takes what has arrived from command `number` on and has room. Returns how many.
__device__ unsigned take(Block& block, const CopierLaneMemory* memory, Word number, unsigned ticket,
                         unsigned lane) {
    Word word[kLoads];
    // The sources are as the CPU knew them: an acquire for the first few, a fence if there are
    // more.
#pragma unroll
    for (unsigned k = kLoads; k-- > 0;) {
        const unsigned index = k * kSlotsOfLoad + lane / kCopierWords;
        const Word* address = word_of(memory, number + index * gridDim.x, lane);
        word[k] =
            k > 0 ? load_relaxed<Scope::system>(address) : load_acquire<Scope::system>(address);
    }
    unsigned count = 0;
#pragma unroll
    for (unsigned k = 0; k < kLoads; ++k) {
        const unsigned index = k * kSlotsOfLoad + lane / kCopierWords;
        const unsigned mine = ticket + index;
        const bool has_room =
            load_acquire<Scope::block>(&block.open[mine % kCopierEntries]) == mine;
        const bool is_here = is_of(word[k], number + index * gridDim.x);
        const unsigned here = __ballot_sync(kAllLanes, is_here && has_room);
        if (count == k * kSlotsOfLoad) count += whole_commands(here);
    }
    if (count == 0) return 0;
    if (count > kSlotsOfLoad) fence_acq_rel<Scope::system>();
#pragma unroll
    for (unsigned k = 0; k < kLoads; ++k) {
        const unsigned index = k * kSlotsOfLoad + lane / kCopierWords;
        if (index >= count) continue;
        const unsigned entry = (ticket + index) % kCopierEntries;
        block.words[entry][lane % kCopierWords] = word[k] & kCopierPayloadMask;
        if (lane % kCopierWords == 0) block.number[entry] = number + index * gridDim.x;
    }
    __syncwarp();
    const unsigned mine = ticket + lane;
    if (lane < count) store_release<Scope::block>(&block.ready[mine % kCopierEntries], mine);
    return count;
}

/// First warp. The first block says when to leave; the others follow as soon as they have finished
/// what they took.
__device__ void take_all(Block& block, CopierQueue* queue, Word launch, unsigned idle_polls,
                         unsigned lane) {
    const bool is_first = blockIdx.x == 0;
    Word number = load_relaxed<Scope::system>(&queue->first_move[blockIdx.x]);
    unsigned ticket = 0;
    unsigned delivered = 0;
    unsigned idle = 0;
    bool leaves = false;
    for (;;) {
        if (!is_first) leaves = load_relaxed<Scope::system>(&queue->leave) == launch;
        leaves = __any_sync(kAllLanes, leaves);
        const unsigned count = leaves ? 0 : take(block, &queue->moves, number, ticket, lane);
        number += count * gridDim.x;
        ticket += count;
        const unsigned published = load_acquire<Scope::block>(&block.published);
        const unsigned batches = load_acquire<Scope::block>(&block.delivered);
        const bool is_idle =
            __all_sync(kAllLanes, count == 0 && published == ticket && batches == delivered);
        delivered = batches;
        if (!is_idle) {
            idle = 0;
        } else if (leaves) {
            break;
        } else if (is_first && ++idle >= idle_polls) {
            if (lane == 0) store_relaxed<Scope::system>(&queue->leave, launch);
            break;
        }
    }
    if (lane == 0) store_release<Scope::block>(&block.stop, 1u);
}

/// Second warp: tells the CPU what is done, all that has come together with one fence.
__device__ void publish_all(Block& block, CopierLaneMemory* memory, unsigned lane) {
    unsigned expected[2] = {lane, lane + kWarp};
    unsigned published = 0;
    for (;;) {
        bool hit[2];
        unsigned count = 0;
#pragma unroll
        for (unsigned k = 0; k < 2; ++k) {
            hit[k] = load_acquire<Scope::block>(&block.finished[lane + k * kWarp]) == expected[k];
            count += __popc(__ballot_sync(kAllLanes, hit[k]));
        }
        if (count == 0) {
            const bool stops = load_acquire<Scope::block>(&block.stop) != 0;
            if (__any_sync(kAllLanes, stops)) return;
            continue;
        }
        fence_acq_rel<Scope::system>();
#pragma unroll
        for (unsigned k = 0; k < 2; ++k) {
            if (!hit[k]) continue;
            const unsigned entry = lane + k * kWarp;
            tell_done(memory, block.number[entry]);
            expected[k] += kCopierEntries;
            store_release<Scope::block>(&block.open[entry], expected[k]);
        }
        __syncwarp();
        published += count;
        if (lane == 0) store_release<Scope::block>(&block.published, published);
    }
}

/// A warp that copies, one command after the other.
class Worker {
  public:
    __device__ Worker(Block& block, unsigned index, unsigned lane)
        : block_(block), piece_(block.pieces[index]), loaded_(&block.loaded[index]), lane_(lane) {}

    __device__ void work() {
        for (;;) {
            unsigned ticket = 0;
            if (lane_ == 0) ticket = fetch_add_relaxed<Scope::block>(&block_.claimed, 1u);
            ticket = __shfl_sync(kAllLanes, ticket, 0);
            if (!await(ticket)) return;
            const Word* words = block_.words[ticket % kCopierEntries];
            if (kind_of(words[2]) == CopierKind::bulk) {
                if (lane_ == 0) move(words);
                parity_ ^= 1;
                pending_ = ticket;
                has_pending_ = true;
            } else {
                settle();
                carry_out(words, lane_);
                __syncwarp();
                if (lane_ == 0) finish(ticket);
            }
        }
    }

  private:
    /// False: it will not come.
    __device__ bool await(unsigned ticket) {
        const unsigned* ready = &block_.ready[ticket % kCopierEntries];
        for (;;) {
            const bool is_ready = load_acquire<Scope::block>(ready) == ticket;
            if (__all_sync(kAllLanes, is_ready)) return true;
            settle();
            const bool stops = load_acquire<Scope::block>(&block_.stop) != 0;
            if (__any_sync(kAllLanes, stops)) return false;
            __nanosleep(32);
        }
    }

    /// One lane. The next load overlaps with the end of the store before it.
    __device__ void move(const Word* words) {
        const auto bytes = static_cast<unsigned>(words[2]);
        bulk_wait_read<0>();
        fence_proxy_async();
        mbarrier_arrive_expect_tx(loaded_, bytes);
        bulk_load(piece_, reinterpret_cast<const void*>(words[1]), bytes, loaded_);
        if (has_pending_) complete();
        mbarrier_wait(loaded_, parity_);
        bulk_store(reinterpret_cast<void*>(words[0]), piece_, bytes);
        bulk_commit();
    }

    /// Waits until the last bulk store is done, if there is one.
    __device__ void settle() {
        if (has_pending_ && lane_ == 0) complete();
        has_pending_ = false;
    }

    __device__ void complete() {
        bulk_wait<0>();
        fence_proxy_async();
        finish(pending_);
    }

    __device__ void finish(unsigned ticket) {
        store_release<Scope::block>(&block_.finished[ticket % kCopierEntries], ticket);
    }

    Block& block_;
    unsigned char* piece_;
    Mbarrier* loaded_;
    unsigned lane_;
    unsigned parity_ = 0;
    unsigned pending_ = 0;  // ticket of a bulk store that may still run
    bool has_pending_ = false;
};

/// Takes what has arrived from delivery `number` on, up to a copy behind a word. Returns how many.
__device__ unsigned take_deliveries(Block& block, const CopierLaneMemory* memory, Word number,
                                    unsigned lane) {
    number += lane / kCopierWords;
    const Word word = load_acquire<Scope::system>(word_of(memory, number, lane));
    const unsigned here = __ballot_sync(kAllLanes, is_of(word, number));
    const bool holds_kind = lane % kCopierWords == 2;
    const bool is_word = kind_of(word) == CopierKind::word;
    const unsigned words = __ballot_sync(kAllLanes, holds_kind && is_word);
    const unsigned others = __ballot_sync(kAllLanes, holds_kind && !is_word);
    unsigned count = whole_commands(here);
    if (words != 0) {
        const unsigned behind = others & ~((2u << (__ffs(words) - 1)) - 1);
        if (behind != 0) count = min(count, (__ffs(behind) - 1) / kCopierWords);
    }
    block.deliveries[lane / kCopierWords][lane % kCopierWords] = word & kCopierPayloadMask;
    __syncwarp();
    return count;
}

/// By one lane, after the copies of the batch: words are seen in order, and after the copies.
__device__ void deliver_words(const Block& block, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
        const Word* words = block.deliveries[i];
        if (kind_of(words[2]) != CopierKind::word) continue;
        fence_acq_rel<Scope::system>();
        store_relaxed<Scope::system>(reinterpret_cast<Word*>(words[0]),
                                     words[1] | words[3] << kHalfBits);
    }
}

/// Third warp of the first block: carries out and tells what is to be done in order.
__device__ void deliver_all(Block& block, CopierQueue* queue, unsigned lane) {
    Word next = load_relaxed<Scope::system>(&queue->first_delivery);
    unsigned batches = 0;
    for (;;) {
        const bool stops = load_acquire<Scope::block>(&block.stop) != 0;
        if (__any_sync(kAllLanes, stops)) return;
        const unsigned count = take_deliveries(block, &queue->deliveries, next, lane);
        if (count == 0) continue;
        for (unsigned i = 0; i < count; ++i) carry_out(block.deliveries[i], lane);
        __syncwarp();
        if (lane == 0) deliver_words(block, count);
        __syncwarp();
        fence_acq_rel<Scope::system>();
        if (lane < count) tell_done(&queue->deliveries, next + lane);
        next += count;
        if (lane == 0) store_release<Scope::block>(&block.delivered, ++batches);
    }
}

}  // namespace

/// Carries out the queue's commands. Leaves after `idle_polls` looks at an empty queue, and writes
/// `launch` into the queue when it does.
extern "C" __global__ void __launch_bounds__(kCopierThreads, 2)
    gimlet_rma_copier(CopierQueue* queue, Word launch, unsigned idle_polls) {
    Block& block = *reinterpret_cast<Block*>(dynamic_shared_memory());
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned warp = threadIdx.x / kWarp;
    start(block);
    if (warp == 0) {
        take_all(block, queue, launch, idle_polls, lane);
    } else if (warp == 1) {
        publish_all(block, &queue->moves, lane);
    } else if (warp == 2) {
        if (blockIdx.x == 0) deliver_all(block, queue, lane);
    } else {
        Worker(block, warp - 3, lane).work();
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    fence_acq_rel<Scope::system>();
    store_relaxed<Scope::system>(&queue->gone[blockIdx.x], launch);
}

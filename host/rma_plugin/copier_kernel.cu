// SPDX-License-Identifier: Apache-2.0
// The copier: blocks that stay for a while, poll a queue in host memory, copy and write words. In a
// block one warp takes commands, ten carry out their shares of them, one tells the CPU what is
// done; what must be in order is all done by one warp of the first block.
#include "device/core/bulk.hpp"
#include "device/core/memory.hpp"
#include "host/rma_plugin/copier_queue.hpp"
#include "host/rma_plugin/copier_split.hpp"

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

__device__ Word value_of(const Word* words) {
    return words[1] | words[3] << kHalfBits;
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
        const Word value = value_of(words);
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

/// Commands before the first word that has not arrived.
__device__ unsigned whole_commands(unsigned here) {
    return here == kAllLanes ? kCopierBatch : (__ffs(~here) - 1) / kCopierWords;
}

/// Shared memory. Commands that the block has taken, by ticket (0, 1, ... in this launch): one is
/// in entry ticket % kCopierEntries until all workers have passed it. Each counter has one writer.
struct Block {
    alignas(128) unsigned char pieces[kCopierWorkers][kPieceBytes];
    Mbarrier loaded[kCopierWorkers];
    Word entries[kCopierEntries][kCopierWords];
    Word deliveries[kCopierBatch][kCopierWords];
    Word first;                       ///< number of the command with ticket 0
    unsigned taken;                   ///< tickets given out
    unsigned passed[kCopierWorkers];  ///< tickets before which a worker has nothing left to do
    unsigned published;               ///< tickets whose completion has been told
    unsigned delivered;               ///< batches of what is in order
    unsigned stop;                    ///< no ticket is left, none will come
};
static_assert(sizeof(Block) <= kCopierSharedBytes);
static_assert(kCopierBatch == kSlotsOfLoad, "one load of a warp reads a batch");
static_assert(kCopierWorkers <= kWarp, "a lane of the publisher looks after a worker");

__device__ void start(Block& block) {
    if (threadIdx.x == 0) {
        block.taken = block.published = block.delivered = block.stop = 0;
        for (unsigned& passed : block.passed) passed = 0;
        for (Mbarrier& barrier : block.loaded) mbarrier_init(&barrier, 1);
        mbarrier_init_fence();
    }
    __syncthreads();
}

/// First thread. The first block is let in by the launch, the others by the CPU, as there may be no
/// room for them. False: the launch is over.
__device__ bool join(CopierQueue* queue, Word launch) {
    if (blockIdx.x == 0) return true;
    store_relaxed<Scope::system>(&queue->arrived[blockIdx.x], launch);
    while (load_acquire<Scope::system>(&queue->joined[blockIdx.x]) != launch) {
        if (load_relaxed<Scope::system>(&queue->leave) == launch) return false;
    }
    return true;
}

/// Takes what has arrived from command `number` on and has room. Returns how many.
__device__ unsigned take(Block& block, const CopierLaneMemory* memory, Word number, unsigned ticket,
                         unsigned room, unsigned lane) {
    const unsigned index = lane / kCopierWords;
    const Word word = load_acquire<Scope::system>(word_of(memory, number + index, lane));
    const unsigned here = __ballot_sync(kAllLanes, is_of(word, number + index) && index < room);
    const unsigned count = whole_commands(here);
    if (count == 0) return 0;
    const bool is_bulk = lane % kCopierWords == 2 && kind_of(word) == CopierKind::bulk;
    // The sources are as the CPU knew them, for bulk copies, too.
    if (__any_sync(kAllLanes, is_bulk && index < count)) fence_proxy_async();
    if (index < count) {
        block.entries[(ticket + index) % kCopierEntries][lane % kCopierWords] =
            word & kCopierPayloadMask;
    }
    __syncwarp();
    if (lane == 0) store_release<Scope::block>(&block.taken, ticket + count);
    return count;
}

/// First warp. The first block says when to leave; the others follow as soon as they have finished
/// what they took, and what they did not take is dealt out again.
__device__ void take_all(Block& block, CopierQueue* queue, Word launch, unsigned idle_polls,
                         unsigned lane) {
    const bool is_first = blockIdx.x == 0;
    Word number = block.first;
    unsigned ticket = 0;
    unsigned published = 0;
    unsigned delivered = 0;
    unsigned idle = 0;
    bool leaves = false;
    for (;;) {
        // Asked for together with the commands: a way over the bus takes a microsecond.
        const Word leave = is_first ? 0 : load_relaxed<Scope::system>(&queue->leave);
        const unsigned room = leaves ? 0 : kCopierEntries - (ticket - published);
        const unsigned count = take(block, &queue->moves, number, ticket, room, lane);
        number += count;
        ticket += count;
        leaves = __any_sync(kAllLanes, leaves || leave == launch);
        published = __shfl_sync(kAllLanes, load_acquire<Scope::block>(&block.published), 0);
        const unsigned batches = load_acquire<Scope::block>(&block.delivered);
        const bool is_idle =
            __all_sync(kAllLanes, count == 0 && published == ticket && batches == delivered);
        __syncwarp();
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
__device__ void publish_all(Block& block, CopierQueue* queue, unsigned lane) {
    const Word first = block.first;
    Word published = 0;
    for (;;) {
        const auto told = static_cast<unsigned>(published);
        const unsigned worker = lane < kCopierWorkers ? lane : 0;
        const unsigned passed = load_acquire<Scope::block>(&block.passed[worker]) - told;
        const unsigned count = __reduce_min_sync(kAllLanes, passed);
        if (count == 0) {
            const bool stops = load_acquire<Scope::block>(&block.stop) != 0;
            if (__any_sync(kAllLanes, stops)) return;
            continue;
        }
        published += count;
        __syncwarp();
        if (lane == 0) {
            fence_proxy_async();
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(&queue->moved[blockIdx.x], first + published);
            store_release<Scope::block>(&block.published, static_cast<unsigned>(published));
        }
        __syncwarp();
    }
}

/// A warp that copies: its pieces of all commands, one after the other.
class Worker {
  public:
    __device__ Worker(Block& block, unsigned index, unsigned lane)
        : block_(block), index_(index), lane_(lane) {}

    __device__ void work() {
        for (;;) {
            const unsigned taken =
                __shfl_sync(kAllLanes, load_acquire<Scope::block>(&block_.taken), 0);
            __syncwarp();
            const unsigned count = min(taken - next_, kWarp);
            unsigned mine = count > 0 ? find(count) : 0;
            const bool is_busy = mine != 0;
            for (; mine != 0; mine &= mine - 1) carry_out_share(next_ + __ffs(mine) - 1);
            next_ += count;
            if (has_pending_ && is_busy) continue;
            settle(next_);
            if (count > 0) continue;
            const bool stops = load_acquire<Scope::block>(&block_.stop) != 0;
            if (__any_sync(kAllLanes, stops)) return;
            __nanosleep(32);
        }
    }

  private:
    /// Which of the next `count` commands this worker has pieces of, one bit each.
    __device__ unsigned find(unsigned count) {
        bool is_mine = false;
        if (lane_ < count) {
            const Word* words = block_.entries[(next_ + lane_) % kCopierEntries];
            is_mine = first_of(words) < pieces(words).count;
        }
        const unsigned mine = __ballot_sync(kAllLanes, is_mine);
        __syncwarp();
        return mine;
    }

    __device__ unsigned first_of(const Word* words) const {
        return first_piece(unpack_shares(words[3]), blockIdx.x, index_);
    }

    __device__ static CopierPieces pieces(const Word* words) {
        return pieces_of(kind_of(words[2]), static_cast<unsigned>(words[2]));
    }

    __device__ void carry_out_share(unsigned ticket) {
        const Word* words = block_.entries[ticket % kCopierEntries];
        if (kind_of(words[2]) != CopierKind::bulk) {
            settle(ticket);
            carry_out(words, lane_);
            __syncwarp();
            pass(ticket + 1);
            return;
        }
        const auto bytes = static_cast<unsigned>(words[2]);
        const CopierPieces parts = pieces(words);
        const unsigned distance = unpack_shares(words[3]).blocks * kCopierWorkers;
        for (unsigned piece = first_of(words); piece < parts.count; piece += distance) {
            const unsigned offset = piece * parts.bytes;
            if (lane_ == 0) {
                move(words[0] + offset, words[1] + offset, min(parts.bytes, bytes - offset));
            }
            has_pending_ = true;
            parity_ ^= 1;
            pass(ticket);  // all pieces before this one are done
        }
    }

    /// One lane. The load overlaps with the end of the store before it.
    __device__ void move(Word target, Word source, unsigned bytes) {
        unsigned char* piece = block_.pieces[index_];
        Mbarrier* loaded = &block_.loaded[index_];
        bulk_wait_read<0>();
        mbarrier_arrive_expect_tx(loaded, bytes);
        bulk_load(piece, reinterpret_cast<const void*>(source), bytes, loaded);
        mbarrier_wait(loaded, parity_);
        bulk_store(reinterpret_cast<void*>(target), piece, bytes);
        bulk_commit();
        bulk_wait<1>();
    }

    /// Waits until the last bulk store is done; then all before this ticket is.
    __device__ void settle(unsigned ticket) {
        if (has_pending_ && lane_ == 0) bulk_wait<0>();
        has_pending_ = false;
        pass(ticket);
    }

    __device__ void pass(unsigned ticket) {
        if (ticket == passed_) return;
        passed_ = ticket;
        __syncwarp();  // all lanes have read what may be overwritten now
        if (lane_ == 0) store_release<Scope::block>(&block_.passed[index_], ticket);
    }

    Block& block_;
    unsigned index_;
    unsigned lane_;
    unsigned next_ = 0;    // ticket of the first command not looked at
    unsigned passed_ = 0;  // as told
    unsigned parity_ = 0;
    bool has_pending_ = false;  // a bulk store may still run
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
        store_relaxed<Scope::system>(reinterpret_cast<Word*>(words[0]), value_of(words));
    }
}

/// Third warp of the first block: carries out and tells what is to be done in order.
__device__ void deliver_all(Block& block, CopierQueue* queue, unsigned lane) {
    Word next = load_relaxed<Scope::system>(&queue->delivered);
    unsigned batches = 0;
    for (;;) {
        const bool stops = load_acquire<Scope::block>(&block.stop) != 0;
        if (__any_sync(kAllLanes, stops)) return;
        const unsigned count = take_deliveries(block, &queue->deliveries, next, lane);
        if (count == 0) continue;
        for (unsigned i = 0; i < count; ++i) carry_out(block.deliveries[i], lane);
        __syncwarp();
        next += count;
        if (lane == 0) {
            deliver_words(block, count);
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(&queue->delivered, next);
            store_release<Scope::block>(&block.delivered, ++batches);
        }
        __syncwarp();
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
    bool is_in = false;
    if (threadIdx.x == 0) {
        is_in = join(queue, launch);
        block.first = load_relaxed<Scope::system>(&queue->moved[blockIdx.x]);
    }
    start(block);
    if (__syncthreads_or(is_in)) {
        if (warp == 0) {
            take_all(block, queue, launch, idle_polls, lane);
        } else if (warp == 1) {
            publish_all(block, queue, lane);
        } else if (warp == 2) {
            if (blockIdx.x == 0) deliver_all(block, queue, lane);
        } else {
            Worker(block, warp - 3, lane).work();
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    fence_acq_rel<Scope::system>();
    store_relaxed<Scope::system>(&queue->gone[blockIdx.x], launch);
}

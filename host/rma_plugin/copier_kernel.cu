// SPDX-License-Identifier: Apache-2.0
// The copier: blocks that stay for a while, copy and write words. In the first block one warp polls
// the queue in host memory: what is small it carries out and tells at once, the rest ten warps do,
// and one tells the CPU. It hands long copies on to the other blocks through device memory, which
// do their shares of them. What must be in order is all done by one more warp of the first block.
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

/// By so many lanes. Never through L1: the sources change while this kernel lives.
template <typename T, unsigned lanes>
__device__ void copy_as(Word target, Word source, unsigned bytes, unsigned lane) {
    constexpr unsigned kUnroll = 4;
    auto* const to = reinterpret_cast<T*>(target);
    const auto* const from = reinterpret_cast<const T*>(source);
    const unsigned count = bytes / sizeof(T);
    for (unsigned i = lane; i < count; i += kUnroll * lanes) {
        T part[kUnroll];
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) {
            if (i + k * lanes < count) part[k] = __ldcv(from + i + k * lanes);
        }
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) {
            if (i + k * lanes < count) to[i + k * lanes] = part[k];
        }
    }
}

template <unsigned lanes>
__device__ void copy(Word target, Word source, unsigned bytes, unsigned lane) {
    unsigned done = 0;
    const Word offsets = target | source;
    if (offsets % sizeof(uint4) == 0) {
        done = bytes / sizeof(uint4) * sizeof(uint4);
        copy_as<uint4, lanes>(target, source, done, lane);
    } else if (offsets % sizeof(unsigned) == 0) {
        done = bytes / sizeof(unsigned) * sizeof(unsigned);
        copy_as<unsigned, lanes>(target, source, done, lane);
    }
    copy_as<unsigned char, lanes>(target + done, source + done, bytes - done, lane);
}

/// Of a batch.
using Commands = Word[kCopierBatch][kCopierWords];

__device__ unsigned bytes_of(const Word* words) {
    return static_cast<unsigned>(words[2]);
}

__device__ bool is_copy(const Word* words) {
    return kind_of(words[2]) == CopierKind::copy;
}

/// What four lanes do as fast as a warp.
__device__ bool is_tiny(const Word* words) {
    constexpr unsigned kTinyBytes = 256;
    return kind_of(words[2]) == CopierKind::small ||
           (is_copy(words) && bytes_of(words) <= kTinyBytes);
}

/// By a whole warp: all tiny ones of a batch side by side, as each waits for its source.
__device__ void carry_out_tiny(const Commands& batch, unsigned count, unsigned lane) {
    const unsigned index = lane / kCopierWords;
    const unsigned part = lane % kCopierWords;
    const Word* words = batch[index];
    if (index < count && is_tiny(words)) {
        if (is_copy(words)) {
            copy<kCopierWords>(words[0], words[1], bytes_of(words), part);
        } else {
            auto* const target = reinterpret_cast<unsigned char*>(words[0]);
            for (unsigned i = part; i < bytes_of(words); i += kCopierWords) {
                target[i] = static_cast<unsigned char>(value_of(words) >> (8 * i));
            }
        }
    }
    __syncwarp();
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

/// Shared memory. Commands that the block's warps share, by ticket (0, 1, ... in this launch): one
/// is in entry ticket % kCopierEntries until all workers have passed it. Each counter has one
/// writer.
struct Block {
    alignas(128) unsigned char pieces[kCopierWorkers][kPieceBytes];
    Mbarrier loaded[kCopierWorkers];
    Word entries[kCopierEntries][kCopierWords];
    Commands batch;                   ///< as read from the queue
    Commands deliveries;              ///< the same of what is in order
    Word ends[kCopierEntries];        ///< commands that are done with this ticket, all told
    unsigned handed[kCopierEntries];  ///< commands handed on up to this ticket
    unsigned taken;                   ///< tickets given out
    unsigned passed[kCopierWorkers];  ///< tickets before which a worker has nothing left to do
    unsigned published;               ///< tickets whose completion has been told
    unsigned delivered;               ///< batches of what is in order
    unsigned blocks;                  ///< that share what is handed on, this one included
    unsigned first;                   ///< number of the first that is handed on to this block
    unsigned stop;                    ///< no ticket is left, none will come
};
static_assert(sizeof(Block) <= kCopierSharedBytes);
static_assert(kCopierBatch == kSlotsOfLoad, "one load of a warp reads a batch");
static_assert(kCopierWorkers <= kWarp, "a lane of the publisher looks after a worker");
static_assert(kMostCopierBlocks <= kWarp, "and one after a block");

/// Device memory: what the first block hands on, by number (0, 1, ... in this launch). Each is a
/// ticket of the first block, too, so that as many entries are enough.
struct HandOver {
    Word entries[kCopierEntries][kCopierWords];
    alignas(128) unsigned handed;
    Word leave;  ///< the launch that is over
    // Of each block but the first, `passed` first by the first block.
    alignas(128) Word arrived[kMostCopierBlocks];     ///< its last launch
    alignas(128) Word joined[kMostCopierBlocks];      ///< the launch for which it has been let in
    alignas(128) unsigned passed[kMostCopierBlocks];  ///< its shares of all before this are done
};
__device__ HandOver hand_over;

__device__ void start(Block& block) {
    if (threadIdx.x == 0) {
        block.taken = block.published = block.delivered = block.stop = 0;
        block.blocks = 1;
        for (unsigned& passed : block.passed) passed = 0;
        for (Mbarrier& barrier : block.loaded) mbarrier_init(&barrier, 1);
        mbarrier_init_fence();
        if (blockIdx.x == 0) store_relaxed<Scope::gpu>(&hand_over.handed, 0);
    }
    __syncthreads();
}

/// First thread of the other blocks, as soon as there is room for them. Returns the number of the
/// first command that is handed on to this one.
__device__ unsigned join(Word launch) {
    store_relaxed<Scope::gpu>(&hand_over.arrived[blockIdx.x], launch);
    while (load_acquire<Scope::gpu>(&hand_over.joined[blockIdx.x]) != launch) {
    }
    return load_relaxed<Scope::gpu>(&hand_over.passed[blockIdx.x]);
}

/// First warp of the first block: the only one that polls for copies over the bus.
class Reader {
  public:
    __device__ Reader(Block& block, CopierQueue* queue, Word launch, unsigned lane)
        : block_(block),
          queue_(queue),
          launch_(launch),
          lane_(lane),
          number_(load_relaxed<Scope::system>(&queue->moved)),
          told_(number_) {}

    __device__ void read(unsigned idle_polls) {
        for (unsigned idle = 0; idle < idle_polls || blocks_ < gridDim.x;) {
            // Asked for together with the commands.
            const bool all_in = blocks_ == gridDim.x;
            const Word arrived = all_in ? 0 : load_relaxed<Scope::gpu>(&hand_over.arrived[blocks_]);
            const unsigned count = take();
            if (count > 0) carry_out(count);
            const bool is_told = tell();
            if (__any_sync(kAllLanes, arrived == launch_)) let_in();
            const unsigned batches =
                __shfl_sync(kAllLanes, load_acquire<Scope::block>(&block_.delivered), 0);
            const bool is_idle = count == 0 && is_told && batches == delivered_;
            delivered_ = batches;
            idle = is_idle ? idle + 1 : 0;
        }
        if (lane_ == 0) {
            store_relaxed<Scope::gpu>(&hand_over.leave, launch_);
            store_release<Scope::block>(&block_.stop, 1u);
        }
    }

  private:
    /// What has arrived and has room. Returns how many.
    __device__ unsigned take() {
        const unsigned index = lane_ / kCopierWords;
        const Word word =
            load_acquire<Scope::system>(word_of(&queue_->moves, number_ + index, lane_));
        const unsigned room = kCopierEntries - (ticket_ - published_);
        const bool is_here = is_of(word, number_ + index) && index < room;
        const unsigned count = whole_commands(__ballot_sync(kAllLanes, is_here));
        if (count == 0) return 0;
        block_.batch[index][lane_ % kCopierWords] = word & kCopierPayloadMask;
        __syncwarp();
        return count;
    }

    /// At once what is small, as then it is done with all before it; then gives out the rest.
    __device__ void carry_out(unsigned count) {
        carry_out_tiny(block_.batch, count, lane_);
        const Word* own = block_.batch[lane_ % kCopierBatch];
        const bool is_plain = lane_ < count && is_copy(own) && !is_tiny(own);
        const bool is_bulk = lane_ < count && kind_of(own[2]) == CopierKind::bulk;
        const unsigned plain = __ballot_sync(kAllLanes, is_plain);
        // The sources are as the CPU knew them, for bulk copies, too.
        if (__any_sync(kAllLanes, is_bulk)) fence_proxy_async();
        const unsigned before = ticket_;
        const unsigned handed_before = handed_;
        for (unsigned i = 0; i < count; ++i) {
            const Word* words = block_.batch[i];
            if (is_tiny(words)) continue;
            if (plain == 1u << i && (words[0] | words[1]) % sizeof(uint4) == 0) {
                copy<kWarp>(words[0], words[1], bytes_of(words), lane_);
            } else {
                give_out(words, number_ + i + 1);
            }
        }
        number_ += count;
        __syncwarp();
        if (lane_ == 0 && ticket_ != before) store_release<Scope::block>(&block_.taken, ticket_);
        if (lane_ == 0 && handed_ != handed_before) {
            store_release<Scope::gpu>(&hand_over.handed, handed_);
        }
        __syncwarp();
    }

    __device__ void give_out(const Word* words, Word end) {
        const unsigned pieces = pieces_of(kind_of(words[2]), bytes_of(words)).count;
        // The other blocks come in later; that pays if there is more to do.
        const unsigned most = published_ == ticket_ ? kCopierWorkers : kMostPiecesOfOneBlock;
        const bool is_long = pieces > most && blocks_ > 1;
        const unsigned blocks = is_long ? blocks_ : 1;
        const CopierShares shares = {turn_ % (blocks * kCopierWorkers), blocks};
        turn_ += pieces;
        const unsigned entry = ticket_++ % kCopierEntries;
        if (lane_ < kCopierWords) {
            const Word word = lane_ == kCopierWords - 1 ? pack_shares(shares) : words[lane_];
            block_.entries[entry][lane_] = word;
            if (is_long) {
                store_relaxed<Scope::gpu>(&hand_over.entries[handed_ % kCopierEntries][lane_],
                                          word);
            }
        }
        if (is_long) ++handed_;
        if (lane_ == 0) {
            block_.ends[entry] = end;
            block_.handed[entry] = handed_;
        }
        told_ = end;
    }

    /// What the publisher will not tell, once all before it has been told. False: there is more.
    __device__ bool tell() {
        published_ = __shfl_sync(kAllLanes, load_acquire<Scope::block>(&block_.published), 0);
        __syncwarp();
        if (published_ != ticket_) return false;
        if (told_ == number_) return true;
        told_ = number_;
        if (lane_ == 0) {
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(&queue_->moved, number_);
        }
        __syncwarp();
        return true;
    }

    /// One more block, for what is handed on from now on.
    __device__ void let_in() {
        const unsigned block = blocks_++;
        if (lane_ == 0) {
            store_relaxed<Scope::gpu>(&hand_over.passed[block], handed_);
            store_release<Scope::gpu>(&hand_over.joined[block], launch_);
            store_release<Scope::block>(&block_.blocks, blocks_);
        }
        __syncwarp();
    }

    Block& block_;
    CopierQueue* queue_;
    Word launch_;
    unsigned lane_;
    Word number_;             // of the first command not taken
    Word told_;               // commands that the CPU has been told of, or the publisher will tell
    unsigned ticket_ = 0;     // next one
    unsigned published_ = 0;  // as last seen
    unsigned delivered_ = 0;  // as last seen
    unsigned handed_ = 0;
    unsigned turn_ = 0;  // the share that begins the next command
    unsigned blocks_ = 1;
};

/// First warp of the other blocks: takes what is handed on from number `next` on.
__device__ void follow(Block& block, Word launch, unsigned next, unsigned lane) {
    const unsigned index = lane / kCopierWords;
    unsigned ticket = 0;
    for (;;) {
        // Said when this block has passed all that was handed on.
        const bool leaves = load_relaxed<Scope::gpu>(&hand_over.leave) == launch;
        const unsigned handed =
            __shfl_sync(kAllLanes, load_acquire<Scope::gpu>(&hand_over.handed), 0);
        __syncwarp();
        const unsigned count = min(handed - next, kCopierBatch);
        if (count == 0) {
            if (__any_sync(kAllLanes, leaves)) break;
            continue;
        }
        fence_proxy_async();
        if (index < count) {
            const Word* words = hand_over.entries[(next + index) % kCopierEntries];
            block.entries[(ticket + index) % kCopierEntries][lane % kCopierWords] =
                load_relaxed<Scope::gpu>(&words[lane % kCopierWords]);
        }
        next += count;
        ticket += count;
        __syncwarp();
        if (lane == 0) store_release<Scope::block>(&block.taken, ticket);
        __syncwarp();
    }
    if (lane == 0) store_release<Scope::block>(&block.stop, 1u);
}

/// Number of tickets from `told` on that all workers of this block have passed. With 0 `*stops`
/// says whether none will come.
__device__ unsigned passed_by_workers(const Block& block, unsigned told, unsigned lane,
                                      bool* stops) {
    const unsigned worker = lane < kCopierWorkers ? lane : 0;
    const unsigned passed = load_acquire<Scope::block>(&block.passed[worker]) - told;
    const unsigned count = __reduce_min_sync(kAllLanes, passed);
    *stops = false;
    if (count > 0) return count;
    const bool stop = load_acquire<Scope::block>(&block.stop) != 0;
    *stops = __any_sync(kAllLanes, stop);
    return 0;
}

/// Second warp of the other blocks: tells the first one.
__device__ void report_all(Block& block, unsigned first, unsigned lane) {
    unsigned reported = 0;
    for (bool stops = false; !stops;) {
        const unsigned count = passed_by_workers(block, reported, lane, &stops);
        if (count == 0) continue;
        reported += count;
        __syncwarp();
        if (lane == 0) {
            fence_proxy_async();
            store_release<Scope::gpu>(&hand_over.passed[blockIdx.x], first + reported);
        }
        __syncwarp();
    }
}

/// How many handed commands after `known` all other blocks have passed.
__device__ unsigned passed_by_others(const Block& block, unsigned known, unsigned lane) {
    const unsigned blocks = __shfl_sync(kAllLanes, load_acquire<Scope::block>(&block.blocks), 0);
    __syncwarp();
    unsigned passed = ~0u;
    if (lane > 0 && lane < blocks) {
        passed = load_acquire<Scope::gpu>(&hand_over.passed[lane]) - known;
    }
    return __reduce_min_sync(kAllLanes, passed);
}

/// Second warp of the first block: tells the CPU what is done, all that has come together with one
/// fence.
__device__ void publish_all(Block& block, CopierQueue* queue, unsigned lane) {
    unsigned published = 0;
    unsigned known = 0;  // handed commands that all other blocks have passed
    for (bool stops = false; !stops;) {
        const unsigned passed = passed_by_workers(block, published, lane, &stops);
        if (passed == 0) continue;
        const unsigned most = min(passed, kWarp);
        const unsigned needed = block.handed[(published + lane) % kCopierEntries] - known;
        // Before the first ticket that needs more, all are done.
        unsigned ready = __ballot_sync(kAllLanes, lane < most && static_cast<int>(needed) <= 0);
        if (static_cast<unsigned>(__popc(ready)) < most) {
            const unsigned more = passed_by_others(block, known, lane);
            known += more;
            ready = __ballot_sync(kAllLanes, lane < most && static_cast<int>(needed - more) <= 0);
        }
        const unsigned count = __popc(ready);
        __syncwarp();
        if (count == 0) continue;
        published += count;
        if (lane == 0) {
            fence_proxy_async();
            fence_acq_rel<Scope::system>();
            store_relaxed<Scope::system>(&queue->moved,
                                         block.ends[(published - 1) % kCopierEntries]);
            store_release<Scope::block>(&block.published, published);
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
        return pieces_of(kind_of(words[2]), bytes_of(words));
    }

    __device__ void carry_out_share(unsigned ticket) {
        const Word* words = block_.entries[ticket % kCopierEntries];
        if (kind_of(words[2]) != CopierKind::bulk) {
            settle(ticket);
            copy<kWarp>(words[0], words[1], bytes_of(words), lane_);
            __syncwarp();
            pass(ticket + 1);
            return;
        }
        const unsigned bytes = bytes_of(words);
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
        carry_out_tiny(block.deliveries, count, lane);
        for (unsigned i = 0; i < count; ++i) {
            const Word* words = block.deliveries[i];
            if (!is_copy(words) || is_tiny(words)) continue;
            copy<kWarp>(words[0], words[1], bytes_of(words), lane);
        }
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

/// Carries out the queue's commands. Leaves after `idle_polls` looks at an empty queue, but not
/// before all blocks have found room; the next launch would wait for them. Then writes `launch`
/// into the queue.
extern "C" __global__ void __launch_bounds__(kCopierThreads, 2)
    gimlet_rma_copier(CopierQueue* queue, Word launch, unsigned idle_polls) {
    Block& block = *reinterpret_cast<Block*>(dynamic_shared_memory());
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned warp = threadIdx.x / kWarp;
    const bool is_first = blockIdx.x == 0;
    if (!is_first && threadIdx.x == 0) block.first = join(launch);
    start(block);
    if (warp >= 3) {
        Worker(block, warp - 3, lane).work();
    } else if (is_first && warp == 0) {
        Reader(block, queue, launch, lane).read(idle_polls);
    } else if (is_first && warp == 1) {
        publish_all(block, queue, lane);
    } else if (is_first) {
        deliver_all(block, queue, lane);
    } else if (warp == 0) {
        follow(block, launch, block.first, lane);
    } else if (warp == 1) {
        report_all(block, block.first, lane);
    }
    __syncthreads();
    if (!is_first || threadIdx.x != 0) return;
    fence_acq_rel<Scope::system>();
    store_relaxed<Scope::system>(&queue->gone, launch);
}

// SPDX-License-Identifier: Apache-2.0
// The copier: one block that stays for a while, polls the queue, copies and writes words.
#include "host/rma_plugin/copier_queue.hpp"

namespace {

using namespace gimlet::rma;
using Word = unsigned long long;

constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kCopierThreads / kWarp;
constexpr unsigned kUnroll = 8;
constexpr unsigned kMostOfOneWarp = 4096;  // larger copies are shared by all warps
static_assert(kCopierBatch * kCopierWords == kWarp, "one load of a warp reads a batch");

__device__ Word load(const std::uint64_t* word) {
    return *reinterpret_cast<const volatile Word*>(word);
}

__device__ CopierKind kind_of(Word word) {
    return static_cast<CopierKind>((word & kCopierPayloadMask) >> kCopierKindShift);
}

/// Never through L1: the sources change while this kernel lives.
template <typename T>
__device__ void copy_as(Word target, Word source, unsigned bytes, unsigned lane) {
    auto* const to = reinterpret_cast<T*>(target);
    const auto* const from = reinterpret_cast<const T*>(source);
    const unsigned count = bytes / sizeof(T);
    unsigned i = lane;
    for (; i + (kUnroll - 1) * kWarp < count; i += kUnroll * kWarp) {
        T part[kUnroll];
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) part[k] = __ldcv(from + i + k * kWarp);
#pragma unroll
        for (unsigned k = 0; k < kUnroll; ++k) to[i + k * kWarp] = part[k];
    }
    for (; i < count; i += kWarp) to[i] = __ldcv(from + i);
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

struct Batch {
    Word words[kCopierBatch][kCopierWords];
    Word count;
};
static_assert(sizeof(Batch) == kCopierSharedBytes);

/// By the first warp: takes what has arrived, up to a copy behind a word.
__device__ void take(const CopierQueue* queue, Word next, unsigned lane, Batch* batch) {
    const Word number = next + lane / kCopierWords;
    const Word word = load(&queue->slots[number % kCopierSlots][lane % kCopierWords]);
    const Word tag_mask = ~kCopierPayloadMask;
    const bool is_here = (word & tag_mask) == (copier_tag(number) & tag_mask);
    const unsigned here = __ballot_sync(~0u, is_here);
    const bool holds_kind = lane % kCopierWords == 2;
    const bool is_word = kind_of(word) == CopierKind::word;
    const unsigned words = __ballot_sync(~0u, holds_kind && is_word);
    const unsigned others = __ballot_sync(~0u, holds_kind && !is_word);
    unsigned limit = here == ~0u ? kWarp : __ffs(~here) - 1;
    if (words != 0) {
        const unsigned behind = others & ~((2u << (__ffs(words) - 1)) - 1);
        if (behind != 0) limit = min(limit, static_cast<unsigned>(__ffs(behind)) - 1);
    }
    batch->words[lane / kCopierWords][lane % kCopierWords] = word & kCopierPayloadMask;
    if (lane == 0) batch->count = limit / kCopierWords;
}

/// By all warps.
__device__ void share(const Word* words, unsigned bytes, unsigned warp, unsigned lane) {
    constexpr unsigned kGrain = 512;
    const unsigned part = (bytes / kWarps + kGrain) / kGrain * kGrain;
    const unsigned begin = warp * part;
    if (begin < bytes) {
        copy(words[0] + begin, words[1] + begin, min(part, bytes - begin), lane);
    }
}

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

}  // namespace

/// `next`: first command that is not carried out yet. Leaves after `idle_polls` looks at an empty
/// queue, and writes `launch` into the queue when it does.
extern "C" __global__ void __launch_bounds__(kCopierThreads, 2)
    gimlet_rma_copier(CopierQueue* queue, Word next, Word launch, unsigned idle_polls) {
    extern __shared__ Batch batches[];
    Batch& batch = batches[0];
    const unsigned lane = threadIdx.x % kWarp;
    const unsigned warp = threadIdx.x / kWarp;
    for (unsigned idle = 0; idle < idle_polls; ++idle) {
        if (warp == 0) take(queue, next, lane, &batch);
        __syncthreads();
        const auto count = static_cast<unsigned>(batch.count);
        for (unsigned i = 0; i < count; ++i) {
            const Word* words = batch.words[i];
            const auto bytes = static_cast<unsigned>(words[2]);
            if (kind_of(words[2]) == CopierKind::copy && bytes > kMostOfOneWarp) {
                share(words, bytes, warp, lane);
            } else if (i % kWarps == warp) {
                carry_out(words, lane);
            }
        }
        __syncthreads();
        if (count == 0) continue;
        idle = 0;
        next += count;
        if (threadIdx.x != 0) continue;
        for (unsigned i = 0; i < count; ++i) {
            const Word* words = batch.words[i];
            if (kind_of(words[2]) != CopierKind::word) continue;
            __threadfence_system();  // words are seen in order, and after the copies
            *reinterpret_cast<volatile Word*>(words[0]) = words[1] | words[3] << kHalfBits;
        }
        __threadfence_system();
        *reinterpret_cast<volatile Word*>(&queue->completed) = next;
    }
    if (threadIdx.x != 0) return;
    __threadfence_system();
    *reinterpret_cast<volatile Word*>(&queue->gone) = launch;
}

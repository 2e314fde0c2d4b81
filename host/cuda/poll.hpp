// SPDX-License-Identifier: Apache-2.0
// Waiting on the host for something that a kernel does. The loop asks the stream for its state each
// time round: that reports a failed kernel at once, and it is what makes a simulated device move.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

#include "host/base/error.hpp"

namespace gimlet {

/// Reads a word that a kernel stores with release at system scope.
inline std::uint64_t load_acquire(const std::uint64_t* word) noexcept {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

enum class PollResult {
    ready,        ///< the condition held
    stream_done,  ///< the stream ran dry and the condition does not hold: it never will
    timeout,      ///< the deadline passed
};

/// Spins until `ready()` is true. Time for which this thread was not running does not count. `what`
/// and `rank` are for the error only: a failed stream raises Error(cuda). Does not raise on
/// timeout: the caller knows what to say.
PollResult poll_stream(cudaStream_t stream, std::uint64_t timeout_ns,
                       const std::function<bool()>& ready, const char* what, int rank = kNoRank);

/// Waits until the host-mapped `word` is at least `value` (rolling compare, so counters may wrap).
/// Raises Error(timeout) naming what was waited for, the wanted and the seen value, and the time;
/// Error(internal) if the stream finished without writing it.
void wait_word_at_least(cudaStream_t stream, const std::uint64_t* word, std::uint64_t value,
                        std::uint64_t timeout_ns, const char* what, int rank = kNoRank);

/// As cudaStreamSynchronize, with a deadline. Raises Error(timeout) or the stream's error.
void wait_stream(cudaStream_t stream, std::uint64_t timeout_ns, const char* what,
                 int rank = kNoRank);

}  // namespace gimlet

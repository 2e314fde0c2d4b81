// SPDX-License-Identifier: Apache-2.0
#include "host/cuda/poll.hpp"

#include <algorithm>
#include <thread>

#include "host/base/clock.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"

namespace gimlet {

PollResult poll_stream(cudaStream_t stream, std::uint64_t timeout_ns,
                       const std::function<bool()>& ready, const char* what, int rank) {
    // On a busy machine a yield costs many milliseconds, and a simulated device moves only while it
    // is polled.
    constexpr std::uint64_t kYieldEveryNs = 2'000'000;
    const HostClock clock = host_clock();
    std::uint64_t last_ns = clock.now_ns();
    std::uint64_t yield_at_ns = last_ns + kYieldEveryNs;
    std::uint64_t waited_ns = 0;
    while (true) {
        if (ready()) return PollResult::ready;
        const cudaError_t state = cudaStreamQuery(stream);
        if (state == cudaSuccess) {
            // The kernel may have stored its word between the test above and its end.
            return ready() ? PollResult::ready : PollResult::stream_done;
        }
        if (state != cudaErrorNotReady) cuda_check(state, what, rank);
        const std::uint64_t now_ns = clock.now_ns();
        waited_ns += std::min(now_ns - last_ns, clock.longest_gap_ns);
        last_ns = now_ns;
        if (waited_ns > timeout_ns) return ready() ? PollResult::ready : PollResult::timeout;
        if (now_ns < yield_at_ns) continue;
        std::this_thread::yield();
        // Away for half of the time at most.
        const std::uint64_t back_ns = clock.now_ns();
        yield_at_ns = back_ns + std::max(kYieldEveryNs, back_ns - now_ns);
    }
}

void wait_word_at_least(cudaStream_t stream, const std::uint64_t* word, std::uint64_t value,
                        std::uint64_t timeout_ns, const char* what, int rank) {
    const auto reached = [&] { return static_cast<std::int64_t>(load_acquire(word) - value) >= 0; };
    switch (poll_stream(stream, timeout_ns, reached, what, rank)) {
        case PollResult::ready: return;
        case PollResult::stream_done:
            raise(ErrorCode::internal, rank,
                  "{}: the stream finished, but the word is {} and should be at least {}", what,
                  load_acquire(word), value);
        case PollResult::timeout:
            raise(ErrorCode::timeout, rank,
                  "{}: waited {} for the word to reach {}, it is {}; a peer may be late or gone, "
                  "GIMLET_TIMEOUT_MS raises the limit",
                  what, format_duration_ns(timeout_ns), value, load_acquire(word));
    }
}

void wait_stream(cudaStream_t stream, std::uint64_t timeout_ns, const char* what, int rank) {
    // Nothing but the end of the stream makes this ready.
    const auto never = [] { return false; };
    if (poll_stream(stream, timeout_ns, never, what, rank) == PollResult::timeout) {
        raise(
            ErrorCode::timeout, rank,
            "{}: the stream is still busy after {}; a peer may be late or gone, GIMLET_TIMEOUT_MS "
            "raises the limit",
            what, format_duration_ns(timeout_ns));
    }
}

}  // namespace gimlet

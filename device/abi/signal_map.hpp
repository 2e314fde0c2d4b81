// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gimlet {

/// Who owns which GIN signal id. Ids are per context, and each id is added to by exactly one sender
/// (the rank in its name; but see alarm), so shadows never race. A purpose may use several
/// contexts; each (context, id) has its own word.
struct SignalMap {
    std::int32_t rank_count;

    /// gin_barrier arrivals of `sender`, on every context the caller names.
    constexpr std::uint32_t barrier(std::int32_t sender) const { return id(0, sender); }
    /// `sender`'s count row (or cached step header) has landed; context 0, weak.
    constexpr std::uint32_t count_row(std::int32_t sender) const { return id(1, sender); }
    /// All rows of `sender` on that context have landed; strong, once a step and context.
    constexpr std::uint32_t dispatch_arrival(std::int32_t sender) const { return id(2, sender); }
    /// `sender` has entered its combine: adds 1, and refused_mark() if it will not go on; context
    /// 0.
    constexpr std::uint32_t combine_ready(std::int32_t sender) const { return id(3, sender); }
    /// One more chunk of `sender`'s rows on that context has landed; strong, in chunk order.
    constexpr std::uint32_t combine_chunk(std::int32_t sender) const { return id(4, sender); }

    /// `sender`'s error record has landed on the report board; context 0, weak.
    constexpr std::uint32_t report(std::int32_t sender) const { return id(5, sender); }

    /// Sum = number of the newest recovery that `sender` has entered; strong, on every context.
    constexpr std::uint32_t fence(std::int32_t sender) const { return id(6, sender); }

    /// Some rank's report has landed, or soon will; context 0, weak. All ranks add to it: it only
    /// says that the report board is worth a look.
    constexpr std::uint32_t alarm() const { return id(7, 0); }

    /// Signals a context must have.
    constexpr std::uint32_t signal_count() const { return id(7, 0) + 1; }

  private:
    constexpr std::uint32_t id(std::uint32_t purpose, std::int32_t sender) const {
        return purpose * static_cast<std::uint32_t>(rank_count) +
               static_cast<std::uint32_t>(sender);
    }
};

}  // namespace gimlet

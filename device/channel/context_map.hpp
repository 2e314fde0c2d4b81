// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace gimlet::device {

/// Which GIN context carries what. Ordering exists only inside one (context, peer), so
/// notifications have context 0 for themselves where there are two or more: they never queue behind
/// rows. Pure; host and device compute the same.
struct ContextMap {
    std::int32_t context_count;  ///< >= 1

    /// Counts and ready flags.
    constexpr std::int32_t notify_context() const { return 0; }

    /// Contexts that carry rows.
    constexpr std::int32_t data_context_count() const {
        return context_count >= 2 ? context_count - 1 : 1;
    }

    /// The first of them; they are consecutive.
    constexpr std::int32_t first_data_context() const { return context_count >= 2 ? 1 : 0; }

    /// Context of the `index`-th block, channel or chunk.
    constexpr std::int32_t data_context(std::int32_t index) const {
        return first_data_context() + index % data_context_count();
    }
};

}  // namespace gimlet::device

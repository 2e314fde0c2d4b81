// SPDX-License-Identifier: Apache-2.0
// Collectives that the embedding program supplies.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "host/bootstrap/bootstrap.hpp"

namespace gimlet {

struct BootstrapCallbacks {
    int rank = 0;
    int size = 1;
    /// Required. Same contract as Bootstrap::all_gather; reports failure by throwing.
    std::function<void(const void* send, std::size_t bytes, void* receive)> all_gather;
    /// Optional; an all-gather of one byte otherwise.
    std::function<void()> barrier;
    /// Optional; without it split raises Error(not_supported).
    std::function<std::unique_ptr<Bootstrap>(int color, int key)> split;
    /// Optional; without it survivors raises Error(not_supported).
    std::function<std::unique_ptr<Bootstrap>(std::span<const int> ranks)> survivors;
};

/// Raises Error(invalid_argument) for a missing all_gather or a rank outside 0..size-1. An
/// exception of a callback that is not an Error comes out as Error(system) with its text.
std::unique_ptr<Bootstrap> make_callback_bootstrap(BootstrapCallbacks callbacks);

/// The group of one rank; needs no communication.
std::unique_ptr<Bootstrap> make_single_bootstrap();

}  // namespace gimlet

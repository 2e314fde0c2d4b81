// SPDX-License-Identifier: Apache-2.0
// Random puts, signals and gets between the ranks of a world, checked against what the sender's
// random numbers say: a signal that is seen proves every put before it on its context; nothing else
// is written.
#pragma once

#include <cstdint>

#include "tests/rma/rma_world.hpp"

namespace gimlet::test {

struct Shape {
    int size;
    RankKind kind;
    MemoryPlace place;
    std::uint64_t seed;
    int operations;  ///< of one rank, all epochs together
    int operations_per_epoch = 100;
    bool device_each = false;  ///< every rank has a GPU of its own
};

/// All ranks of a world of their own; failures become a failed CHECK.
void play(const Shape& shape);

/// One rank of a world that exists. Raises what went wrong.
void play_rank(RankWorld& world, const Shape& shape);

}  // namespace gimlet::test

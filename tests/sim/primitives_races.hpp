// SPDX-License-Identifier: Apache-2.0
//
// Counts reports of ThreadSanitizer, so that a test can require one, or require none.
#pragma once

#include <cstdint>

namespace gimlet::test {

/// Whether the program was built with ThreadSanitizer.
bool race_detection_built_in();

/// Seeds to run: an eighth of them, and at least one, where race detection makes each dear.
int seeds_to_run(int seeds);

/// While one exists, races are counted and not printed, and do not fail the program.
class RaceCounter {
  public:
    RaceCounter();
    ~RaceCounter();
    RaceCounter(const RaceCounter&) = delete;
    RaceCounter& operator=(const RaceCounter&) = delete;

    std::uint64_t count() const;
};

}  // namespace gimlet::test

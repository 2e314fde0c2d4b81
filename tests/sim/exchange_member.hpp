// SPDX-License-Identifier: Apache-2.0
// Ranks of a simulation that fail, recover and go on: one rank's things, and the worlds they live
// in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/emulator/simulation.hpp"
#include "runtime/exchange.hpp"
#include "runtime/rehearsal.hpp"
#include "runtime/routing_table.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::test {

/// Deadline of steps, and of those of patient ranks.
inline constexpr std::uint64_t kDeadlineNs = 20'000'000;
inline constexpr std::uint64_t kPatienceNs = 400'000'000;

struct World {
    int ranks = 4;
    int team = 0;  ///< 0 = one LSA team, no GIN
    emu::GinMode gin = emu::GinMode::gdaki;
    Layout layout = Layout::rank_major;
    Sync sync = Sync::barrier;
    ExchangeMode mode = ExchangeMode::direct;
    PreSum pre_sum = PreSum::on;
    std::uint64_t seed = 1;
    emu::FaultPlan faults;
    std::uint64_t first_step = 0;
    RowAccess access = RowAccess::in_place;
    bool events = false;         ///< rings of events are on
    std::vector<float> weights;  ///< written over the first of each rank's
    int impatient = -1;          ///< all ranks but this one have kPatienceNs
    int sender = -1;             ///< only this rank has tokens
};

std::string text_of(const World& world);

/// Rings between teams: exclude() is refused, and in a combine a rank waits only for its team, its
/// rail, and those who have rows for it.
inline bool has_rail_rings(const World& world) {
    return world.sync == Sync::fifo && world.team > 0;
}

/// One LSA team, LSA and GIN mixed, GIN only, one LSA team with rings, two levels, two with rings.
const std::vector<World>& worlds();

/// One rank in the middle of a test.
struct Member {
    const World& world;
    const RoutingTable& table;
    int rank;
    Runtime& runtime;
    Exchange& exchange;
    Rehearsal& rehearsal;
    cudaStream_t stream;

    /// A whole step, checked.
    void step(const std::string& when) const;
    /// Runs `body`; throws unless it raises `code` with a text that contains all `parts`.
    void fails(ErrorCode code, const std::vector<std::string>& parts, const std::string& when,
               const std::function<void()>& body) const;
};

/// Throws std::runtime_error unless `good`: Catch2's macros must not end a fiber.
void require(bool good, const std::string& what);

/// The steps of those that are left, without `lost`: right, and they say what is missing.
void work_on(Member& me, const std::vector<int>& lost);

/// kDeadlineNs; small steps of 12 tokens.
emu::SimReport run_world(const World& world, const std::function<void(Member&)>& body);

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
//
// A dispatch or combine whose input is bad on one rank.
#pragma once

#include "host/emulator/simulation.hpp"
#include "runtime/sim/exchange_world.hpp"

namespace gimlet::sim {

struct RefusalCase {
    enum class Kind {
        expert_too_high,
        expert_below,   ///< below -1
        expert_twice,   ///< in one token
        too_many_rows,  ///< more than a receive buffer holds: every rank sees it
        no_output,      ///< in the second of two combines, right behind the first
    };
    static constexpr int kTokens = 8;

    Kind kind = Kind::expert_too_high;
    int rank = 0;
    int token = 0;  ///< below kTokens
};

/// Every rank dispatches kTokens tokens of topk = 2; the bad rank queues more steps behind that.
/// Throws SimFailure unless the steps before the bad one succeed, and each rank gives up with the
/// right error, well before its deadline, and gives the same answer to the next call.
emu::SimReport run_refusal(const Scenario& scenario, const RefusalCase& bad);

}  // namespace gimlet::sim

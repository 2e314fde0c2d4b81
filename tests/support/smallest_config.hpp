// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/config.hpp"

namespace gimlet::test {

/// For tests of what lives and ends, which move no rows to speak of.
inline MoeConfig smallest_config() {
    MoeConfig config;
    config.expert_count = 4;
    config.topk = 1;
    config.hidden = 8;
    config.max_tokens = 2;
    config.sm_budget = 1;
    return config;
}

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
#include "device/channel/context_map.hpp"

#include <vector>

#include "tests/support/catch.hpp"

using gimlet::device::ContextMap;

TEST_CASE("one context carries everything", "[unit][device]") {
    constexpr ContextMap map{1};
    STATIC_REQUIRE(map.notify_context() == 0);
    STATIC_REQUIRE(map.first_data_context() == 0);
    STATIC_REQUIRE(map.data_context_count() == 1);
    for (int i = 0; i < 5; ++i) REQUIRE(map.data_context(i) == 0);
}

TEST_CASE("with several contexts, rows stay off the notify context and use all others alike",
          "[unit][device]") {
    for (int contexts = 2; contexts <= 64; ++contexts) {
        const ContextMap map{contexts};
        REQUIRE(map.data_context_count() == contexts - 1);
        std::vector<int> uses(static_cast<std::size_t>(contexts), 0);
        for (int i = 0; i < 3 * (contexts - 1); ++i) {
            const int context = map.data_context(i);
            REQUIRE(context >= map.first_data_context());
            REQUIRE(context < map.first_data_context() + map.data_context_count());
            ++uses[static_cast<std::size_t>(context)];
        }
        REQUIRE(uses[static_cast<std::size_t>(map.notify_context())] == 0);
        for (int context = 1; context < contexts; ++context)
            REQUIRE(uses[static_cast<std::size_t>(context)] == 3);
    }
}

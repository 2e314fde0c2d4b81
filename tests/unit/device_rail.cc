// SPDX-License-Identifier: Apache-2.0
// Numbers of the rail: pairs, contexts and signals, walked through exhaustively.
#include "device/abi/rail.hpp"

#include <cstdint>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "device/channel/context_map.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;

namespace {

RailShape shape_of(int teams, int team, int channels) {
    RailShape out{};
    out.team_count = teams;
    out.team_index = team;
    out.channel_count = channels;
    out.channel_rows = 5;
    return out;
}

}  // namespace

TEST_CASE("both ends of the rail number a pair alike, and no pair twice", "[device][rail]") {
    for (int teams = 1; teams <= 9; ++teams) {
        for (int channels = 1; channels <= 7; ++channels) {
            for (int team = 0; team < teams; ++team) {
                const RailShape here = shape_of(teams, team, channels);
                REQUIRE(here.pair_count() == (teams - 1) * channels);
                std::set<std::pair<int, int>> seen;
                for (int pair = 0; pair < here.pair_count(); ++pair) {
                    const int other = here.team_of_pair(pair);
                    REQUIRE(other != team);
                    REQUIRE(here.index_of(other) * channels + here.channel_of(pair) == pair);
                    REQUIRE(seen.insert({other, here.channel_of(pair)}).second);
                    const RailShape there = shape_of(teams, other, channels);
                    const int back = here.pair_there(pair);
                    REQUIRE(there.team_of_pair(back) == team);
                    REQUIRE(there.channel_of(back) == here.channel_of(pair));
                    REQUIRE(there.pair_there(back) == pair);
                }
            }
        }
    }
}

TEST_CASE("every tail has a signal of its own on the context of its channel", "[device][rail]") {
    for (int contexts = 1; contexts <= 9; ++contexts) {
        const device::ContextMap map{contexts};
        for (int channels = 1; channels <= 33; channels += 4) {
            for (int teams = 2; teams <= 5; ++teams) {
                const RailSignals signals{2 * teams, teams, channels, map.data_context_count()};
                const auto first = SignalMap{2 * teams}.signal_count();
                std::set<std::pair<int, std::uint32_t>> seen;
                for (int channel = 0; channel < channels; ++channel) {
                    for (int team = 0; team < teams; ++team) {
                        for (const std::uint32_t id : {signals.dispatch_tail(team, channel),
                                                       signals.combine_tail(team, channel)}) {
                            REQUIRE(id >= first);
                            REQUIRE(id <
                                    first + static_cast<std::uint32_t>(signals.signal_count()));
                            REQUIRE(seen.insert({map.data_context(channel), id}).second);
                        }
                    }
                }
            }
        }
    }
}

TEST_CASE("channels hold all tokens", "[device][rail]") {
    for (int channels = 1; channels <= 13; ++channels) {
        const RailShape shape = shape_of(2, 0, channels);
        for (int tokens = 0; tokens <= 40; ++tokens) {
            REQUIRE(shape.channel_tokens(tokens) * channels >= tokens);
            REQUIRE(shape.channel_tokens(tokens) * channels < tokens + channels);
        }
    }
    // The most tokens that a config can name.
    constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
    CHECK(shape_of(2, 0, 1).channel_tokens(kMost) == kMost);
    CHECK(shape_of(2, 0, 96).channel_tokens(kMost) == kMost / 96 + 1);
    CHECK(shape_of(2, 0, 96).channel_tokens(0) == 0);
}

TEST_CASE("a row on the rail is whole bulk copies", "[device][rail]") {
    for (std::uint32_t topk = 1; topk <= 32; ++topk) {
        for (std::uint32_t scales = 0; scales < 6; ++scales) {
            const RailRowLayout layout{160, topk, scales};
            REQUIRE(layout.stride() % 16 == 0);
            REQUIRE(layout.stride() >= 160 + 4 * (1 + 3 * topk + scales));
            REQUIRE(layout.scale_word() + scales == layout.header_words());
        }
    }
}

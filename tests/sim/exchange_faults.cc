// SPDX-License-Identifier: Apache-2.0
// Steps that must fail: with the right error on every rank, before the deadline has grown old, and
// with nobody left behind in a kernel.
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "host/base/error.hpp"
#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/exchange.hpp"
#include "tests/sim/exchange_world.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/sim_bootstrap.hpp"

namespace gimlet::test {
namespace {

constexpr std::uint64_t kDeadlineNs = 50'000'000;

struct Outcome {
    ErrorCode code = ErrorCode::ok;
    std::string text;
    ErrorCode again = ErrorCode::ok;  ///< of the call after the failed one
};

/// One rank's part of a step that goes wrong somewhere.
struct Part {
    std::vector<std::int32_t> experts;  ///< [T][K]
    bool enters = true;
    bool cached = false;  ///< second step: dispatch_cached instead of dispatch
};

/// Runs a good first step (if `parts` say cached) and the step of `parts`; returns what each rank
/// got.
std::vector<Outcome> run_parts(const Scenario& scenario, const std::vector<Part>& parts,
                               bool warm_up) {
    std::vector<Outcome> outcomes(parts.size());
    emu::simulate(scenario.sim, [&](int rank) {
        const Part& part = parts[static_cast<std::size_t>(rank)];
        Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
        auto runtime = Runtime::create(make_sim_bootstrap(rank));
        auto exchange = Exchange::create(*runtime, scenario.config);
        const Stream stream = Stream::create(rank);
        Routing routing = exchange->make_routing();
        const auto topk = static_cast<std::size_t>(scenario.config.topk);
        const std::size_t tokens = part.experts.size() / topk;
        DeviceBuffer<std::byte> rows(std::max<std::size_t>(tokens, 1) *
                                     dispatch_row_bytes(scenario.config));
        rows.fill_bytes(0);
        DeviceBuffer<std::int32_t> experts(part.experts.size());
        DispatchInputs inputs;
        inputs.rows = rows.get();
        inputs.expert_indices = experts.get();
        inputs.token_count = static_cast<std::int32_t>(tokens);
        if (warm_up) {
            std::vector<std::int32_t> good(part.experts.size());
            for (std::size_t i = 0; i < good.size(); ++i)
                good[i] = static_cast<std::int32_t>(i % topk);
            if (!good.empty()) experts.upload(good);
            exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
            exchange->synchronize(stream.get());
        }
        if (!part.experts.empty()) experts.upload(part.experts);
        emu::host_barrier();
        try {
            if (part.enters && part.cached)
                exchange->dispatch_cached(inputs, &routing, stream.get());
            if (part.enters && !part.cached)
                exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
            exchange->synchronize(stream.get());
        } catch (const Error& error) {
            outcome.code = error.code();
            outcome.text = error.what();
        }
        try {
            if (part.enters) exchange->dispatch(inputs, &routing, CountMode::device, stream.get());
            exchange->synchronize(stream.get());
        } catch (const Error& error) {
            outcome.again = error.code();
        }
        emu::host_barrier();
        exchange->abort();
        runtime->abort();
    });
    return outcomes;
}

Scenario faulty_scenario(int ranks, int team, std::uint64_t seed) {
    Scenario out =
        small_scenario(ranks, team, team == 0 ? emu::GinMode::off : emu::GinMode::gdaki, seed);
    // Teams of several ranks fail alike whether their rows go by rail or not.
    if (team > 1 && seed % 2 == 0) out.config.mode = ExchangeMode::hybrid;
    out.config.deadline_ns = kDeadlineNs;
    out.config.topk = 2;
    return out;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a bad expert index is named by its rank, and the peers hear of it at once",
          "[sim][faults]") {
    const int team = GENERATE(0, 2);
    const auto [bad, word] =
        GENERATE(table<std::int32_t, const char*>({{7, "7"}, {-2, "-2"}, {1 << 30, "1073741824"}}));
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(team, bad, seed);
        const Scenario scenario = faulty_scenario(4, team, seed);
        const Part good{{0, 1, 2, 3, 4, 5}, true, false};
        const Part wrong{{0, 1, 2, bad, 4, 5}, true, false};
        const auto outcomes = run_parts(scenario, {good, good, wrong, good}, false);
        REQUIRE(outcomes[2].code == ErrorCode::invalid_argument);
        REQUIRE(contains(outcomes[2].text, word));
        REQUIRE(contains(outcomes[2].text, "token 1"));
        for (const int rank : {0, 1, 3}) {
            CAPTURE(rank, outcomes[static_cast<std::size_t>(rank)].text);
            REQUIRE(outcomes[static_cast<std::size_t>(rank)].code == ErrorCode::peer_failed);
            REQUIRE(contains(outcomes[static_cast<std::size_t>(rank)].text, "rank 2"));
        }
        for (const Outcome& outcome : outcomes) REQUIRE(outcome.again == outcome.code);
    }
}

TEST_CASE("a token that names an expert twice is refused", "[sim][faults]") {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(seed);
        const Part good{{0, 1}, true, false};
        const Part twice{{3, 4, 5, 5}, true, false};
        const auto outcomes = run_parts(faulty_scenario(2, 0, seed), {twice, good}, false);
        REQUIRE(outcomes[0].code == ErrorCode::invalid_argument);
        REQUIRE(contains(outcomes[0].text, "5"));
        REQUIRE(outcomes[1].code == ErrorCode::peer_failed);
    }
}

TEST_CASE("masked choices are no duplicates", "[sim][faults]") {
    const Part masked{{-1, -1, 3, -1}, true, false};
    const auto outcomes = run_parts(faulty_scenario(2, 0, 1), {masked, masked}, false);
    for (const Outcome& outcome : outcomes) REQUIRE(outcome.code == ErrorCode::ok);
}

TEST_CASE("more rows than the receive buffer holds: every rank stops alike", "[sim][faults]") {
    const int team = GENERATE(0, 1);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(team, seed);
        Scenario scenario = faulty_scenario(2, team, seed);
        scenario.config.max_recv_rows = 3;
        const Part crowd{
            {0, 1, 0, 1, 0, 1}, true, false};  // experts 0 and 1 live on rank 0: 6 rows
        const auto outcomes = run_parts(scenario, {crowd, crowd}, false);
        for (const Outcome& outcome : outcomes) {
            CAPTURE(outcome.text);
            REQUIRE(outcome.code == ErrorCode::overflow);
            REQUIRE(contains(outcome.text, "6"));
            REQUIRE(contains(outcome.text, "3"));
        }
    }
}

TEST_CASE("a cached step against a fresh one is found out", "[sim][faults]") {
    const int team = GENERATE(0, 1);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(team, seed);
        const Part fresh{{0, 1, 2, 3}, true, false};
        const Part cached{{0, 1, 2, 3}, true, true};
        const auto outcomes =
            run_parts(faulty_scenario(3, team, seed), {fresh, cached, fresh}, true);
        for (const Outcome& outcome : outcomes) {
            CAPTURE(outcome.text);
            REQUIRE(outcome.code != ErrorCode::ok);
        }
        REQUIRE(outcomes[1].code == ErrorCode::invalid_usage);
    }
}

TEST_CASE("a rank that never comes is named by all others", "[sim][faults]") {
    const int team = GENERATE(0, 1, 2);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        CAPTURE(team, seed);
        const Part here{{0, 1, 2, 3}, true, false};
        const Part absent{{0, 1}, false, false};
        const auto outcomes =
            run_parts(faulty_scenario(4, team, seed), {here, here, here, absent}, false);
        for (const int rank : {0, 1, 2}) {
            const Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
            CAPTURE(rank, outcome.text);
            REQUIRE(outcome.code == ErrorCode::timeout);
            REQUIRE(contains(outcome.text, "rank 3"));
            REQUIRE(outcome.again == ErrorCode::timeout);
        }
    }
}

}  // namespace gimlet::test

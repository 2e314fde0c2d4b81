// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/channel_scenarios.hpp"

#include <initializer_list>

#include "host/emulator/engine.hpp"

namespace gimlet::sim {
namespace {

/// A few thousand slots before positions wrap.
constexpr std::uint64_t kNearWrapPosition = ~std::uint64_t{0} - 5;

class Dice {
  public:
    Dice(std::uint64_t seed, std::uint64_t salt) : rng_(seed * 0x2545f4914f6cdd1dull + salt) {}
    std::uint32_t between(std::uint32_t low, std::uint32_t high) {
        return low + static_cast<std::uint32_t>(rng_.below(high - low + 1));
    }
    bool one_in(std::uint32_t n) { return between(1, n) == 1; }
    template <typename T>
    T any_of(std::initializer_list<T> values) {
        return *(values.begin() + between(0, static_cast<std::uint32_t>(values.size()) - 1));
    }

  private:
    emu::Rng rng_;
};

/// Options that break no rule, from the smallest ring on.
FifoOptions draw_options(Dice& dice, FifoLink link) {
    FifoOptions options{};
    options.link = link;
    options.slot_bytes = dice.any_of({16u, 64u, 240u, 528u});
    options.capacity = dice.any_of({1u, 2u, 3u, 5u, 7u, 8u, 13u});
    do {
        options.send_chunk = dice.between(1, options.capacity);
        options.receive_chunk = dice.between(1, options.capacity);
        options.head_every = dice.between(1, options.capacity);
    } while (options.broken_rule() != FifoRule::none);
    return options;
}

}  // namespace

FlowPlace draw_flow_place(std::uint64_t seed, FifoLink link, FlowShape shape) {
    Dice dice(seed, 101);
    const int ranks = shape == FlowShape::chain ? 3 : static_cast<int>(dice.between(2, 3));
    return {ranks, link == FifoLink::lsa ? ranks : 1};
}

FlowCase draw_flow(std::uint64_t seed, FifoLink link, FlowShape shape, bool near_wrap) {
    Dice dice(seed, 102);
    FlowCase out;
    out.shape = shape;
    out.options = draw_options(dice, link);
    out.writes = dice.any_of({SlotAccess::plain, SlotAccess::bulk});
    out.reads = dice.any_of({SlotAccess::plain, SlotAccess::bulk});
    out.channels = static_cast<int>(dice.between(1, 2));
    out.rows.clear();
    const std::uint32_t kernels = dice.between(1, 3);
    for (std::uint32_t i = 0; i < kernels; ++i)
        out.rows.push_back(dice.one_in(6) ? 0 : dice.between(1, 24));
    if (link == FifoLink::lsa && (near_wrap || dice.one_in(3)))
        out.first_position = kNearWrapPosition;
    if (dice.one_in(2)) {
        out.slow_rank = static_cast<int>(dice.between(0, 2));
        out.pause_ns = dice.any_of({200u, 2'000u, 20'000u});
    }
    return out;
}

WindowCase draw_window(std::uint64_t seed, bool near_wrap) {
    Dice dice(seed, 103);
    WindowCase out;
    out.producers = static_cast<int>(dice.between(1, 5));
    out.options.capacity = dice.any_of({1u, 5u, 33u, 64u, 64u});
    out.options.slot_bytes = dice.any_of({16u, 48u});
    out.options.head_every = out.options.capacity >= 5 ? dice.between(1, 3) : 1;
    out.rows = {dice.any_of({0u, 7u, 90u}), dice.between(40, 110)};
    out.slow_every = dice.any_of({9u, 40u, 45u});
    out.pause_ns = dice.any_of({0u, 5'000u, 60'000u});
    if (near_wrap || dice.one_in(3)) out.first_position = kNearWrapPosition;
    return out;
}

PipelineCase draw_pipeline(std::uint64_t seed) {
    Dice dice(seed, 104);
    PipelineCase out;
    out.options = {dice.between(1, 5), dice.any_of({16u, 64u, 1040u})};
    out.rounds = dice.any_of({0u, 1u, 7u, 20u}) + dice.between(0, 1);
    if (out.rounds == 0) out.rounds = 2;
    out.producers = static_cast<int>(dice.between(1, 3));
    out.consumers = static_cast<int>(dice.between(1, 3));
    out.fill = dice.any_of({SlotAccess::plain, SlotAccess::bulk});
    out.drain = dice.any_of({SlotAccess::plain, SlotAccess::bulk});
    if (dice.one_in(2)) out.producer_pause_ns = dice.any_of({300u, 5'000u});
    if (dice.one_in(2)) out.consumer_pause_ns = dice.any_of({300u, 5'000u});
    return out;
}

}  // namespace gimlet::sim

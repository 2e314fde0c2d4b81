// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <numeric>
#include <string>

#include "device/abi/fifo.hpp"
#include "host/base/error.hpp"
#include "runtime/channel_options.hpp"
#include "runtime/pipeline_model.hpp"
#include "tests/support/catch.hpp"

namespace gimlet::test {
namespace {

FifoOptions good_options() {
    return {FifoLink::lsa, 8, 64, 4, 1, 4};
}

/// Slots that a sender and a receiver can be stuck with, by brute force: whether any state exists
/// in which the sender waits for send_chunk slots, the receiver for receive_chunk, and neither can
/// have them.
bool can_stand_still(const FifoOptions& o) {
    for (std::uint32_t unread = 0; unread <= o.capacity; ++unread) {
        for (std::uint32_t untold = 0; untold < o.head_every && unread + untold <= o.capacity;
             ++untold) {
            const bool sender_stuck = o.capacity - unread - untold < o.send_chunk;
            const bool receiver_stuck = unread < o.receive_chunk;
            if (sender_stuck && receiver_stuck) return true;
        }
    }
    return false;
}

}  // namespace

TEST_CASE("channel options: each rule is named", "[unit][channels]") {
    struct Bad {
        FifoRule rule;
        FifoOptions options;
        const char* text;
    };
    const Bad bads[] = {
        {FifoRule::no_slots, {FifoLink::lsa, 0, 64, 1, 1, 1}, "capacity >= 1"},
        {FifoRule::too_many_slots, {FifoLink::lsa, 1u << 31, 16, 1, 1, 1}, "2^30"},
        {FifoRule::slot_alignment, {FifoLink::lsa, 8, 0, 1, 1, 1}, "multiple of 16"},
        {FifoRule::slot_alignment, {FifoLink::lsa, 8, 24, 1, 1, 1}, "multiple of 16"},
        {FifoRule::no_chunk, {FifoLink::lsa, 8, 64, 0, 1, 1}, "at least one slot"},
        {FifoRule::no_chunk, {FifoLink::lsa, 8, 64, 1, 0, 1}, "at least one slot"},
        {FifoRule::no_head_step, {FifoLink::lsa, 8, 64, 1, 1, 0}, "head_every >= 1"},
        {FifoRule::chunk_above_capacity, {FifoLink::lsa, 8, 64, 9, 1, 1}, "holds one chunk"},
        {FifoRule::chunk_above_capacity, {FifoLink::lsa, 8, 64, 1, 9, 1}, "holds one chunk"},
        {FifoRule::lazy_chunk_above_half, {FifoLink::lsa, 8, 64, 5, 1, 2}, "half of the ring"},
        {FifoRule::no_room, {FifoLink::lsa, 8, 64, 4, 4, 3}, "never wait for each other"},
        {FifoRule::too_many_bytes, {FifoLink::lsa, 1u << 30, 1u << 20, 1, 1, 1}, "48 bits"},
    };
    for (const Bad& bad : bads) {
        CAPTURE(bad.text);
        REQUIRE(bad.options.broken_rule() == bad.rule);
        try {
            checked_fifo_bytes(bad.options, 1, "test channel", 3);
            FAIL("not refused");
        } catch (const Error& error) {
            REQUIRE(error.code() == (bad.rule == FifoRule::too_many_bytes
                                         ? ErrorCode::overflow
                                         : ErrorCode::invalid_argument));
            const std::string text = error.what();
            REQUIRE_THAT(text,
                         contains_text("test channel") && contains_text("rank 3") &&
                             contains_text(bad.text) &&
                             contains_text("capacity " + std::to_string(bad.options.capacity)));
        }
    }
    REQUIRE_THROWS_AS(checked_fifo_bytes(good_options(), ~std::uint64_t{0} / 2, "many"), Error);
}

TEST_CASE("channel options: the smallest rings, and bytes", "[unit][channels]") {
    REQUIRE(FifoOptions{FifoLink::gin, 1, 16, 1, 1, 1}.broken_rule() == FifoRule::none);
    REQUIRE(FifoOptions{FifoLink::gin, 2, 16, 1, 1, 2}.broken_rule() == FifoRule::none);
    const FifoOptions options = good_options();
    const FifoLayout layout = FifoLayout::build(options);
    REQUIRE(layout.total_bytes == 1024);
    REQUIRE(layout.slots + 8 * 64 <= layout.total_bytes);
    REQUIRE(layout.receiver + sizeof(FifoCursor) <= layout.slots);
    REQUIRE(checked_fifo_bytes(options, 5, "test") == 5 * 1024);
    REQUIRE(checked_fifo_bytes(options, 0, "test") == 0);
}

TEST_CASE("channel options: what is accepted cannot stand still", "[unit][channels]") {
    int accepted = 0;
    int refused_for_room = 0;
    for (std::uint32_t capacity = 1; capacity <= 7; ++capacity) {
        for (std::uint32_t send = 1; send <= 8; ++send) {
            for (std::uint32_t receive = 1; receive <= 8; ++receive) {
                for (std::uint32_t head = 1; head <= 8; ++head) {
                    const FifoOptions o{FifoLink::lsa, capacity, 16, send, receive, head};
                    CAPTURE(capacity, send, receive, head);
                    const FifoRule rule = o.broken_rule();
                    if (rule == FifoRule::none) {
                        REQUIRE_FALSE(can_stand_still(o));
                        ++accepted;
                    } else if (rule == FifoRule::no_room) {
                        // The rule refuses nothing that would work.
                        REQUIRE(can_stand_still(o));
                        ++refused_for_room;
                    }
                }
            }
        }
    }
    REQUIRE(accepted > 50);
    REQUIRE(refused_for_room > 50);
}

TEST_CASE("pipeline options", "[unit][channels]") {
    REQUIRE(checked_pipeline_bytes({3, 64}, 1 << 16, "test") == 3 * 80);
    const auto refusal = [](const PipelineOptions& options, std::uint32_t limit) -> std::string {
        try {
            checked_pipeline_bytes(options, limit, "test pipeline");
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    };
    REQUIRE_THAT(refusal({0, 64}, 1 << 16), contains_text("at least one stage"));
    REQUIRE_THAT(refusal({2, 40}, 1 << 16), contains_text("multiple of 16"));
    REQUIRE_THAT(refusal({1u << 20, 1u << 20}, 1 << 16), contains_text("48 bits"));
    REQUIRE_THAT(refusal({4, 1024}, 4096), contains_text("fewer"));
}

TEST_CASE("pipeline model: by hand", "[unit][channels]") {
    // A row takes 100 ns, a flag 10 ns, a barrier 1000 ns.
    const PipelineModel model{10, 1000, 1e9};
    PipelineWork work{3, 1, 100, {4}, {FifoLink::lsa, 4, 16, 1, 1, 1}};
    const PipelineTimes barriers = model_barriers(work, model);
    REQUIRE(barriers.first_ns == Approx(2 * 400 + 2 * 1000));
    REQUIRE(barriers.last_ns == Approx(3 * 400 + 2 * 1000));
    const PipelineTimes fifos = model_fifos(work, model);
    REQUIRE(fifos.first_ns == Approx(2 * 100 + 2 * 10));
    REQUIRE(fifos.last_ns == Approx(6 * 100 + 2 * 10));
    // One slot: a row goes on when the next stage has moved the one before and said so.
    work.fifo.capacity = 1;
    REQUIRE(model_fifos(work, model).last_ns > fifos.last_ns);
    // Batches overlap; lanes share them.
    work.batch_rows = {2, 2};
    REQUIRE(model_barriers(work, model).last_ns == Approx(4 * 200 + 3 * 1000));
    work.lane_count = 2;
    REQUIRE(model_barriers(work, model).last_ns == Approx(4 * 100 + 3 * 1000));
    // No rows, no time but the barriers'.
    work.batch_rows = {0};
    REQUIRE(model_fifos(work, model).last_ns == 0);
    REQUIRE_THAT(model.text(), contains_text("1.0 GB/s"));
}

TEST_CASE("pipeline model: lazy heads never stand still", "[unit][channels]") {
    const PipelineModel model;
    for (std::uint32_t chunk = 1; chunk <= 4; ++chunk) {
        for (std::uint32_t capacity = 2 * chunk; capacity <= 9; ++capacity) {
            const PipelineWork work{
                4, 2, 64, {37, 5}, {FifoLink::lsa, capacity, 64, chunk, 1, chunk}};
            const PipelineTimes times = model_fifos(work, model);
            REQUIRE(times.first_ns > 0);
            REQUIRE(times.last_ns > times.first_ns);
        }
    }
}

}  // namespace gimlet::test

// SPDX-License-Identifier: Apache-2.0
#include "runtime/health.hpp"

#include <algorithm>
#include <vector>

#include "runtime/event_ring.hpp"
#include "runtime/stats.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet;
using gimlet::test::contains_text;

namespace {

DeviceError record(DeviceFault fault, Primitive primitive) {
    DeviceError error{};
    error.state = kDeviceErrorComplete;
    error.fault = fault;
    error.primitive = primitive;
    error.rank = 2;
    error.peer = 5;
    error.context = -1;
    error.tag = static_cast<std::uint32_t>(Tag::dispatch);
    error.token = 7;
    error.epoch = 17;
    error.expected = 17;
    error.seen = 16;
    error.elapsed_ns = 2000000000;
    return error;
}

}  // namespace

TEST_CASE("a timeout says who, what, whom, and whether the peer ever came", "[runtime][health]") {
    auto error = record(DeviceFault::timed_out, Primitive::count_exchange);
    CHECK_THAT(describe(error), contains_text("dispatch waited 2 s in count_exchange for rank 5") &&
                                    contains_text("epoch 17, expected 17, seen 16") &&
                                    contains_text("rank 5 has not entered this dispatch"));
    error.primitive = Primitive::dispatch_arrival;
    error.context = 3;
    CHECK_THAT(describe(error), contains_text("on GIN context 3") &&
                                    contains_text("entered this dispatch, but its rows"));
    error.primitive = Primitive::count_exchange;
    error.peer = error.rank;
    CHECK_THAT(describe(error), contains_text("own kernel"));
}

TEST_CASE("each fault has its code and its words", "[runtime][health]") {
    auto error = record(DeviceFault::expert_out_of_range, Primitive::none);
    error.seen = static_cast<std::uint64_t>(-2);
    error.expected = 32;
    CHECK(error_code_of(error.fault) == ErrorCode::invalid_argument);
    CHECK_THAT(describe(error),
               contains_text("token 7 names expert -2; it must be -1") && contains_text("0..31"));
    error.fault = DeviceFault::duplicate_expert;
    CHECK_THAT(describe(error), contains_text("twice"));
    error.fault = DeviceFault::capacity_exceeded;
    error.seen = 900;
    error.expected = 800;
    CHECK(error_code_of(error.fault) == ErrorCode::overflow);
    CHECK_THAT(describe(error),
               contains_text("900 rows would arrive at rank 5, its buffer holds 800"));
    error.fault = DeviceFault::mode_mismatch;
    error.seen = 1;
    error.expected = 0;
    CHECK_THAT(describe(error),
               contains_text("rank 5 runs a cached dispatch, this rank a fresh one"));
    error.fault = DeviceFault::peer_refused;
    CHECK(error_code_of(error.fault) == ErrorCode::peer_failed);
    CHECK_THAT(describe(error), contains_text("rank 5 refused"));
    CHECK(error_code_of(DeviceFault::timed_out) == ErrorCode::timeout);
    error.fault = DeviceFault::cut_short;
    error.primitive = Primitive::rail_dispatch;
    CHECK(error_code_of(error.fault) == ErrorCode::timeout);
    CHECK_THAT(describe(error), contains_text("rank 5 entered this dispatch") &&
                                    contains_text("another rank's deadline has expired"));
    error.fault = DeviceFault::rails_left;
    CHECK(error_code_of(error.fault) == ErrorCode::invalid_usage);
    CHECK_THAT(describe(error), contains_text("hybrid mode") && contains_text("capture it again"));
}

TEST_CASE("a record counts only when it is complete", "[runtime][health]") {
    auto error = record(DeviceFault::timed_out, Primitive::count_exchange);
    CHECK(read_device_error(&error).has_value());
    error.state = kDeviceErrorClaimed;
    CHECK_FALSE(read_device_error(&error).has_value());
    error.state = kDeviceErrorFree;
    CHECK_FALSE(read_device_error(&error).has_value());
    CHECK_FALSE(read_device_error(nullptr).has_value());
}

TEST_CASE("the group's report names who never came", "[runtime][health]") {
    std::vector<std::optional<DeviceError>> records(4);
    for (const int rank : {0, 1, 2}) {
        DeviceError error = record(DeviceFault::timed_out, Primitive::count_exchange);
        error.rank = rank;
        error.peer = 3;
        records[static_cast<std::size_t>(rank)] = error;
    }
    const GroupReport report = make_group_report(records);
    CHECK(report.suspects == std::vector<int>{3});
    CHECK_THAT(report.cause,
               contains_text("rank 3 (it never entered the step; no report from it)") &&
                   contains_text("0-2 wait in count_exchange of dispatch 17"));
    CHECK_THAT(report.text, contains_text("no report: ranks 3"));
}

TEST_CASE("the group's report follows waits to the one who started it", "[runtime][health]") {
    // 0 waits for the rows of 1, which waits for the counts of 2, which says nothing.
    std::vector<std::optional<DeviceError>> records(3);
    records[0] = record(DeviceFault::timed_out, Primitive::dispatch_arrival);
    records[0]->rank = 0;
    records[0]->peer = 1;
    records[1] = record(DeviceFault::timed_out, Primitive::dispatch_arrival);
    records[1]->rank = 1;
    records[1]->peer = 2;
    const GroupReport report = make_group_report(records);
    CHECK(report.suspects == std::vector<int>{2});
    CHECK_THAT(report.cause, contains_text("entered the step, but its data is missing"));
}

TEST_CASE("who entered a step and sends or frees nothing is told from who never came",
          "[runtime][health]") {
    struct Expected {
        Primitive primitive;
        Tag tag;
        const char* charge;
        const char* line;
    };
    const Expected all[] = {
        {Primitive::dispatch_arrival, Tag::dispatch, "entered the step, but its data is missing",
         "rank 1 entered this dispatch, but its rows"},
        {Primitive::rail_dispatch, Tag::dispatch, "entered the step, but its data is missing",
         "rank 1 entered this dispatch, but its rows"},
        {Primitive::combine_chunk, Tag::combine, "entered the step, but its data is missing",
         "rank 1 entered this combine, but its rows"},
        {Primitive::rail_combine, Tag::combine, "entered the step, but its data is missing",
         "rank 1 entered this combine, but its team's sums"},
        {Primitive::fifo_wait, Tag::dispatch, "entered the step, but its data is missing",
         "on channel 3: epoch 17, expected 17, seen 16; rank 1 entered this dispatch, but has not "
         "filled"},
        {Primitive::fifo_reserve, Tag::combine, "entered the step, but frees no room",
         "rank 1 entered this combine, but has not freed"},
        {Primitive::fifo_wait, Tag::user, "(its data is missing;", "; rank 1 has not filled"},
        {Primitive::fifo_reserve, Tag::user, "(it frees no room;", "; rank 1 has not freed"},
        {Primitive::count_exchange, Tag::dispatch, "it never entered the step",
         "on GIN context 3: epoch"},
        {Primitive::combine_ready, Tag::combine, "it never entered the step",
         "rank 1 has not entered this combine"},
        {Primitive::gin_barrier, Tag::barrier, "it never entered the step",
         "rank 1 has not entered this barrier"},
    };
    for (const Expected& expected : all) {
        std::vector<std::optional<DeviceError>> records(2);
        records[0] = record(DeviceFault::timed_out, expected.primitive);
        records[0]->rank = 0;
        records[0]->peer = 1;
        records[0]->context = 3;
        records[0]->tag = static_cast<std::uint32_t>(expected.tag);
        const GroupReport report = make_group_report(records);
        INFO(report.text);
        CHECK(report.suspects == std::vector<int>{1});
        CHECK_THAT(report.cause, contains_text(expected.charge));
        CHECK_THAT(report.text, contains_text(expected.line));
    }
}

TEST_CASE("waits that were cut short accuse nobody but whom they waited for",
          "[runtime][health][hybrid]") {
    // Two teams of two: 2 stopped as a forwarder. Its team waits for its rows, its rail for its
    // tail, and the rail's team for the rail.
    std::vector<std::optional<DeviceError>> records(4);
    records[0] = record(DeviceFault::timed_out, Primitive::rail_dispatch);
    records[0]->peer = 2;
    records[1] = record(DeviceFault::cut_short, Primitive::dispatch_arrival);
    records[1]->peer = 0;
    records[3] = record(DeviceFault::cut_short, Primitive::dispatch_arrival);
    records[3]->peer = 2;
    for (const int rank : {0, 1, 3}) records[static_cast<std::size_t>(rank)]->rank = rank;
    const GroupReport report = make_group_report(records);
    CHECK(report.suspects == std::vector<int>{2});
    CHECK_THAT(report.cause, contains_text("rank 2 (it entered the step, but its data is missing"));
}

TEST_CASE("a rank that refused is the cause, whatever the others say", "[runtime][health]") {
    std::vector<std::optional<DeviceError>> records(3);
    records[0] = record(DeviceFault::timed_out, Primitive::dispatch_arrival);
    records[1] = record(DeviceFault::duplicate_expert, Primitive::none);
    records[2] = record(DeviceFault::peer_refused, Primitive::count_exchange);
    records[2]->peer = 1;
    const GroupReport report = make_group_report(records);
    CHECK(report.suspects == std::vector<int>{1});
    CHECK_THAT(report.cause, contains_text("rank 1: dispatch 17: token 7 names expert"));
}

TEST_CASE("no record, no cause", "[runtime][health]") {
    const GroupReport report = make_group_report(std::vector<std::optional<DeviceError>>(8));
    CHECK(report.cause.empty());
    CHECK(report.text.empty());
    CHECK(report.suspects.empty());
}

TEST_CASE("a report of very many ranks is bounded", "[runtime][health]") {
    std::vector<std::optional<DeviceError>> records(1000);
    for (std::size_t rank = 0; rank + 1 < records.size(); ++rank) {
        records[rank] = record(DeviceFault::timed_out, Primitive::combine_ready);
        records[rank]->rank = static_cast<int>(rank);
        records[rank]->peer = 999;
    }
    const GroupReport report = make_group_report(records);
    CHECK(report.suspects == std::vector<int>{999});
    CHECK(report.text.size() < 8192);
    CHECK_THAT(report.text, contains_text("and 983 more ranks"));
}

TEST_CASE("entries of the event ring show whether they are whole", "[runtime][health]") {
    const std::uint64_t epoch = 0xfffffffffffffff1;
    const std::uint64_t time_ns = 0xfedcba98765432;
    const EventSlot slot = EventSlot::pack(epoch, time_ns);
    std::uint64_t back_epoch = 0, back_time_ns = 0;
    REQUIRE(slot.unpack(&back_epoch, &back_time_ns));
    CHECK(back_epoch == epoch);
    CHECK(back_time_ns == time_ns);
    CHECK_FALSE(EventSlot{}.unpack(&back_epoch, &back_time_ns));
    REQUIRE(EventSlot::pack(0, 5).unpack(&back_epoch, &back_time_ns));  // numbers of steps wrap

    // The next event of this entry has come in part.
    const EventSlot next = EventSlot::pack(epoch + kEventSteps, time_ns + 1);
    CHECK_FALSE((EventSlot{{slot.words[0], next.words[1]}}.unpack(&back_epoch, &back_time_ns)));
    CHECK_FALSE((EventSlot{{next.words[0], slot.words[1]}}.unpack(&back_epoch, &back_time_ns)));
}

TEST_CASE("a ring of events gives the newest steps in order, whole entries only",
          "[runtime][health]") {
    constexpr std::uint32_t kBlocks = 3;
    std::vector<EventSlot> ring(kBlocks * kEventsPerBlock);
    std::uint64_t now_ns = 1000;
    const auto note = [&](std::uint32_t block, Tag tag, std::uint64_t epoch, EventKind kind) {
        ring[event_index(block, tag, epoch, kind)] = EventSlot::pack(epoch, now_ns);
    };
    // Numbers wrap in between; the block that closes a step is another one each time.
    const std::uint64_t first = ~std::uint64_t{0} - 5;
    for (std::uint64_t step = 0; step < 12; ++step) {
        for (std::uint32_t block = 0; block < kBlocks; ++block, now_ns += 10)
            note(block, Tag::dispatch, first + step, EventKind::begin);
        note(static_cast<std::uint32_t>(step * step % kBlocks), Tag::dispatch, first + step,
             EventKind::end);  // in the nanosecond of the next begin
    }
    note(2, Tag::barrier, 1, EventKind::failed);
    ring[event_index(1, Tag::dispatch, first + 10, EventKind::begin)].words[1] ^= 1;

    const auto events = read_events(ring.data(), kBlocks);
    REQUIRE(events.size() == kEventSteps * (kBlocks + 1));  // one torn, and the barrier's
    for (std::size_t i = 0; i < events.size(); ++i) {
        CHECK(events[i].number == i + 1);
        if (i > 0) CHECK(events[i].time_ns >= events[i - 1].time_ns);
        CHECK((events[i].tag == 1 || events[i].epoch - first >= 12 - kEventSteps));
    }
    CHECK(std::count_if(events.begin(), events.end(), [](const DeviceEvent& event) {
              return event.kind == EventKind::end;
          }) == kEventSteps);
    CHECK(read_events(nullptr, kBlocks).empty());
}

// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/channel_world.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "runtime/channel_options.hpp"
#include "runtime/sim/primitives_world.hpp"

namespace gimlet::sim {
namespace {

const char* name_of(SlotAccess access) {
    return access == SlotAccess::bulk ? "bulk" : "plain";
}

std::string text_of(const FifoOptions& options) {
    return fmt::format("{} slots of {} bytes, chunks {}/{}, head every {}", options.capacity,
                       options.slot_bytes, options.send_chunk, options.receive_chunk,
                       options.head_every);
}

/// Runs `program` on each rank and collects what the ranks found.
template <class Program>
MeetingOutcome run_ranks(const emu::SimOptions& options, Program&& program) {
    MeetingOutcome outcome;
    outcome.mismatches_of_rank.resize(static_cast<std::size_t>(options.ranks));
    outcome.failures_of_rank.resize(static_cast<std::size_t>(options.ranks));
    outcome.errors.resize(static_cast<std::size_t>(options.ranks));
    try {
        outcome.report = emu::simulate(options, [&](int rank) {
            const auto index = static_cast<std::size_t>(rank);
            program(rank, &outcome.mismatches_of_rank[index], &outcome.failures_of_rank[index],
                    &outcome.errors[index]);
        });
    } catch (const emu::SimFailure& failure) {
        outcome.report = failure.report();
        outcome.message = failure.what();
    }
    outcome.add_up();
    return outcome;
}

/// The channels of one rank: regions of those it sends on, then of those it receives on.
struct Regions {
    FifoLayout layout;
    std::uint64_t base;
    int channels;

    std::uint64_t out(int channel) const {
        return base + static_cast<std::uint64_t>(channel) * layout.total_bytes;
    }
    std::uint64_t in(int channel) const { return out(channels + channel); }
};

FifoEnd out_end(const Regions& at, int rank, int peer, int channel, int ranks) {
    const SignalMap map{ranks};
    return {peer,
            channel,
            at.out(channel),
            at.in(channel),
            map.dispatch_arrival(rank),
            map.combine_ready(peer)};
}

FifoEnd in_end(const Regions& at, int rank, int peer, int channel, int ranks) {
    const SignalMap map{ranks};
    return {peer,
            channel,
            at.in(channel),
            at.out(channel),
            map.dispatch_arrival(peer),
            map.combine_ready(rank)};
}

void start_at(const RankWorld& world, const Regions& at, std::uint64_t position) {
    FifoCursor cursor{};
    cursor.position = cursor.told = position;
    for (int channel = 0; channel < at.channels; ++channel) {
        world.write_window(at.out(channel) + at.layout.head, &position, sizeof position);
        world.write_window(at.out(channel) + at.layout.sender, &cursor, sizeof cursor);
        world.write_window(at.in(channel) + at.layout.tail, &position, sizeof position);
        world.write_window(at.in(channel) + at.layout.receiver, &cursor, sizeof cursor);
    }
    emu::host_barrier();
}

/// What an end's cursor must say after `rows` rows.
void check_cursor(const RankWorld& world, std::uint64_t offset, const FifoOptions& options,
                  std::uint64_t position, std::uint64_t rows, const char* end) {
    FifoCursor cursor{};
    world.read_window(offset, &cursor, sizeof cursor);
    expect(cursor.position == position,
           fmt::format("{}: position {} instead of {}", end, cursor.position, position));
    expect(cursor.index == rows % options.capacity,
           fmt::format("{}: ring index {} after {} rows", end, cursor.index, rows));
    expect(cursor.most_used <= options.capacity,
           fmt::format("{}: {} slots in use of {}", end, cursor.most_used, options.capacity));
    expect(cursor.untold < options.head_every,
           fmt::format("{}: {} freed slots untold", end, cursor.untold));
    expect(cursor.flags <= rows && (rows < options.head_every || cursor.flags > 0),
           fmt::format("{}: {} flags for {} rows", end, cursor.flags, rows));
}

FlowWarp warp_of(const FlowCase& which, const Regions& at, int rank, int ranks, int warp) {
    FlowWarp out{};
    const bool chain = which.shape == FlowShape::chain;
    const int channel = chain ? warp : warp % which.channels;
    if (warp >= (chain ? 1 : 2) * which.channels) return out;
    const int next = (rank + 1) % ranks;
    const int last = (rank + ranks - 1) % ranks;
    out.in = in_end(at, rank, last, channel, ranks);
    out.out = out_end(at, rank, next, channel, ranks);
    if (rank == which.slow_rank) out.pause_ns = which.pause_ns;
    if (chain) {
        out.flow = channel;
        out.role = rank == 0           ? FlowRole::source
                   : rank == ranks - 1 ? FlowRole::sink
                                       : FlowRole::forward;
    } else {
        out.role = warp < which.channels ? FlowRole::source : FlowRole::sink;
        out.flow = (out.role == FlowRole::source ? rank : last) * which.channels + channel;
    }
    return out;
}

}  // namespace

std::string text_of(const FlowCase& which) {
    return fmt::format("{}, {} channels over {} of {}, {} writes, {} reads, rows {}{}{}",
                       which.shape == FlowShape::ring ? "ring" : "chain", which.channels,
                       which.options.link == FifoLink::lsa ? "LSA" : "GIN", text_of(which.options),
                       name_of(which.writes), name_of(which.reads), fmt::join(which.rows, " "),
                       which.first_position != 0 ? ", positions near their wrap" : "",
                       which.slow_rank >= 0 ? fmt::format(", rank {} slow", which.slow_rank) : "");
}

MeetingOutcome run_flow(const emu::SimOptions& options, const FlowCase& which) {
    const auto bytes =
        checked_fifo_bytes(which.options, 2 * static_cast<std::uint64_t>(which.channels),
                           "channels of a simulated rank");
    WorldShape shape;
    shape.contexts = which.options.link == FifoLink::gin ? which.channels : 0;
    shape.data_bytes = bytes;
    shape.deadline_ns = which.deadline_ns;
    return run_ranks(options, [&](int rank, std::uint64_t* mismatches, std::uint64_t* failures,
                                  DeviceError* error) {
        const RankWorld world(rank, options, shape);
        const Regions at{FifoLayout::build(which.options), world.data_offset(), which.channels};
        start_at(world, at, which.first_position);
        emu::arm_faults();
        FlowArgs args{};
        args.peers = world.peers();
        args.options = which.options;
        args.mismatches = world.scratch(0);
        args.failures = world.scratch(1);
        args.writes = which.writes;
        args.reads = which.reads;
        for (int warp = 0; warp < kMaxFlowWarps; ++warp)
            args.warps[warp] = warp_of(which, at, rank, options.ranks, warp);
        // Kernels of one rank follow each other without a meeting of ranks.
        for (std::size_t i = 0; i < which.rows.size(); ++i) {
            args.epoch = i + 1;
            args.seed = options.seed * 1000003u + i;
            for (FlowWarp& warp : args.warps) warp.rows = which.rows[i];
            check(launch_flow(args, world.stream()), "launch_flow");
        }
        if (which.options.link == FifoLink::gin) {
            args.epoch = which.rows.size() + 1;
            // Also after a failure: whoever was late comes.
            args.peers.deadline_ns = 0;
            check(launch_settle(args, world.stream()), "launch_settle");
        }
        world.synchronize();
        *mismatches = world.read_scratch(0);
        *failures = world.read_scratch(1);
        *error = world.error();
        if (*failures > 0) return;
        const auto rows = std::accumulate(which.rows.begin(), which.rows.end(), std::uint64_t{0});
        for (const FlowWarp& warp : args.warps) {
            const std::uint64_t end = which.first_position + rows;
            if (warp.role == FlowRole::source || warp.role == FlowRole::forward) {
                check_cursor(world, warp.out.local_offset + at.layout.sender, which.options, end,
                             rows, "sender");
            }
            if (warp.role == FlowRole::sink || warp.role == FlowRole::forward) {
                check_cursor(world, warp.in.local_offset + at.layout.receiver, which.options, end,
                             rows, "receiver");
            }
        }
    });
}

std::string text_of(const WindowCase& which) {
    return fmt::format("{} producers, {}, rows {}{}", which.producers, text_of(which.options),
                       fmt::join(which.rows, " "),
                       which.first_position != 0 ? ", positions near their wrap" : "");
}

MeetingOutcome run_window(const emu::SimOptions& options, const WindowCase& which) {
    WorldShape shape;
    shape.data_bytes = checked_fifo_bytes(which.options, 2, "channels of a simulated rank");
    shape.deadline_ns = which.deadline_ns;
    return run_ranks(options, [&](int rank, std::uint64_t* mismatches, std::uint64_t* failures,
                                  DeviceError* error) {
        const RankWorld world(rank, options, shape);
        const Regions at{FifoLayout::build(which.options), world.data_offset(), 1};
        start_at(world, at, which.first_position);
        emu::arm_faults();
        const int next = (rank + 1) % options.ranks;
        const int last = (rank + options.ranks - 1) % options.ranks;
        WindowArgs args{};
        args.peers = world.peers();
        args.options = which.options;
        args.out = out_end(at, rank, next, 0, options.ranks);
        args.in = in_end(at, rank, last, 0, options.ranks);
        args.mismatches = world.scratch(0);
        args.failures = world.scratch(1);
        args.producers = which.producers;
        args.pause_ns = which.pause_ns;
        args.slow_every = which.slow_every;
        args.out_flow = rank;
        args.in_flow = last;
        for (std::size_t i = 0; i < which.rows.size(); ++i) {
            args.epoch = i + 1;
            args.rows = which.rows[i];
            check(launch_window(args, world.stream()), "launch_window");
        }
        world.synchronize();
        *mismatches = world.read_scratch(0);
        *failures = world.read_scratch(1);
        *error = world.error();
    });
}

std::string text_of(const PipelineCase& which) {
    return fmt::format("{} stages of {} bytes, {} {} producers, {} {} consumers, {} rounds",
                       which.options.stage_count, which.options.stage_bytes, which.producers,
                       name_of(which.fill), which.consumers, name_of(which.drain), which.rounds);
}

MeetingOutcome run_pipeline(const emu::SimOptions& options, const PipelineCase& which) {
    checked_pipeline_bytes(which.options, 200u << 10, "a simulated pipeline");
    const std::uint32_t words = which.options.stage_bytes / 4;
    return run_ranks(options, [&](int rank, std::uint64_t* mismatches, std::uint64_t* failures,
                                  DeviceError* error) {
        const RankWorld world(rank, options, WorldShape{});
        std::vector<std::uint32_t> content(std::size_t{words} * which.rounds);
        for (std::size_t i = 0; i < content.size(); ++i) {
            content[i] = flow_word(1, 1, static_cast<std::uint32_t>(i) / words,
                                   static_cast<std::uint32_t>(i) % words);
        }
        const std::size_t bytes = content.size() * 4;
        void* source = nullptr;
        void* target = nullptr;
        check(cudaMalloc(&source, bytes), "cudaMalloc");
        check(cudaMalloc(&target, bytes), "cudaMalloc");
        check(
            cudaMemcpyAsync(source, content.data(), bytes, cudaMemcpyHostToDevice, world.stream()),
            "cudaMemcpyAsync");
        emu::arm_faults();
        PipelineArgs args{};
        args.options = which.options;
        args.mismatches = world.scratch(0);
        args.failures = world.scratch(1);
        args.source = static_cast<std::byte*>(source);
        args.target = static_cast<std::byte*>(target);
        args.error = world.peers().error;
        args.deadline_ns = which.deadline_ns;
        args.epoch = 1;
        args.rounds = which.rounds;
        args.producers = which.producers;
        args.consumers = which.consumers;
        args.fill = which.fill;
        args.drain = which.drain;
        args.producer_pause_ns = which.producer_pause_ns;
        args.consumer_pause_ns = which.consumer_pause_ns;
        check(launch_pipeline(args, world.stream()), "launch_pipeline");
        std::vector<std::uint32_t> seen(content.size());
        check(cudaMemcpyAsync(seen.data(), target, bytes, cudaMemcpyDeviceToHost, world.stream()),
              "cudaMemcpyAsync");
        world.synchronize();
        *mismatches = world.read_scratch(0);
        *failures = world.read_scratch(1);
        *error = world.error();
        if (which.drain == SlotAccess::bulk && *failures == 0) {
            for (std::size_t i = 0; i < content.size(); ++i)
                *mismatches += seen[i] != content[i] ? 1u : 0u;
        }
        check(cudaFree(source), "cudaFree");
        check(cudaFree(target), "cudaFree");
    });
}

}  // namespace gimlet::sim

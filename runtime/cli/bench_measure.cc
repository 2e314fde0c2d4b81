// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/bench_measure.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"
#include "host/nccl/symmetric_window.hpp"

namespace gimlet::cli {
namespace {

// A stand-in for a GPU would take a minute, and the host's memory, for the large copies: it is told
// by the rate of the small one.
constexpr std::size_t kSmallCopyBytes = std::size_t{64} << 20;
constexpr std::size_t kLargeCopyBytes = std::size_t{4} << 30;
constexpr std::size_t kLargeLinkCopyBytes = std::size_t{1} << 30;
constexpr double kLeastGpuRate = 3e11;
constexpr double kLeastLinkRate = 2e10;

using Clock = std::chrono::steady_clock;

float us_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<float, std::micro>(to - from).count();
}

}  // namespace

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Measure::Measure(Runtime& runtime, std::size_t flush_bytes, const MeasureOptions& options)
    : runtime_(runtime), options_(options), flush_(flush_bytes, runtime.rank()) {}

Timing Measure::run(const std::function<void(cudaStream_t)>& call,
                    const std::function<void(cudaStream_t)>& prepare) {
    const int rank = runtime_.rank();
    const Stream stream = Stream::create(rank);
    const auto queue_call = [&](const Event* start, const Event* end) {
        if (flush_.bytes() > 0) {
            cuda_check(cudaMemsetAsync(flush_.get(), 0x5a, flush_.bytes(), stream.get()),
                       "cudaMemsetAsync", rank);
        }
        if (prepare) prepare(stream.get());
        runtime_.barrier(stream.get());
        if (start != nullptr) start->record(stream.get());
        const auto before = Clock::now();
        call(stream.get());
        const auto after = Clock::now();
        if (end != nullptr) end->record(stream.get());
        return us_between(before, after);
    };
    for (int i = 0; i < options_.warmups; ++i) queue_call(nullptr, nullptr);
    stream.synchronize();

    const auto count = static_cast<std::size_t>(options_.calls);
    std::vector<Event> starts(count);
    std::vector<Event> ends(count);
    for (std::size_t i = 0; i < count; ++i) {
        starts[i] = Event::create(EventTiming::on, rank);
        ends[i] = Event::create(EventTiming::on, rank);
    }
    std::vector<float> events_us(count);
    std::vector<float> host_us(count);
    std::vector<float> wall_us(count);
    // Queued without a pause: the device never waits for the host, which is how a serving loop
    // runs.
    for (std::size_t i = 0; i < count; ++i) host_us[i] = queue_call(&starts[i], &ends[i]);
    stream.synchronize();
    for (std::size_t i = 0; i < count; ++i)
        events_us[i] = Event::elapsed_ms(starts[i], ends[i]) * 1000.0f;
    // One at a time, from an idle device: the call with its launch latency.
    for (std::size_t i = 0; i < count; ++i) {
        if (flush_.bytes() > 0) {
            cuda_check(cudaMemsetAsync(flush_.get(), 0x5a, flush_.bytes(), stream.get()),
                       "cudaMemsetAsync", rank);
        }
        if (prepare) prepare(stream.get());
        stream.synchronize();
        runtime_.bootstrap().barrier();
        const auto before = Clock::now();
        call(stream.get());
        stream.synchronize();
        wall_us[i] = us_between(before, Clock::now());
    }
    return reduce(events_us, host_us, wall_us);
}

Timing Measure::reduce(const std::vector<float>& events_us, const std::vector<float>& host_us,
                       const std::vector<float>& wall_us) {
    Bootstrap& bootstrap = runtime_.bootstrap();
    const auto slowest = [&](const std::vector<float>& mine) {
        const std::vector<std::byte> all =
            bootstrap.all_gather(mine.data(), mine.size() * sizeof(float));
        const auto* values = reinterpret_cast<const float*>(all.data());
        std::vector<double> out(mine.size(), 0);
        for (std::size_t i = 0; i < mine.size() * static_cast<std::size_t>(bootstrap.size()); ++i) {
            out[i % mine.size()] = std::max(out[i % mine.size()], static_cast<double>(values[i]));
        }
        return out;
    };
    const std::vector<double> events = slowest(events_us);
    Timing out;
    out.calls = static_cast<int>(events.size());
    out.median_us = median(events);
    out.best_us = *std::min_element(events.begin(), events.end());
    out.worst_us = *std::max_element(events.begin(), events.end());
    out.host_us = median(slowest(host_us));
    out.wall_us = median(slowest(wall_us));
    return out;
}

double Measure::copy_rate(void* to, const void* from, std::size_t bytes) {
    const int rank = runtime_.rank();
    const Stream stream = Stream::create(rank);
    double best_ms = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 10; ++i) {
        const Event start = Event::create(EventTiming::on, rank);
        const Event end = Event::create(EventTiming::on, rank);
        start.record(stream.get());
        cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
                   "cudaMemcpyAsync", rank);
        end.record(stream.get());
        stream.synchronize();
        if (i >= 2) best_ms = std::min(best_ms, double{Event::elapsed_ms(start, end)});
    }
    return static_cast<double>(bytes) / (best_ms * 1e-3);
}

double Measure::own_copy_rate(std::size_t bytes) {
    DeviceBuffer<std::byte> from(bytes, runtime_.rank());
    DeviceBuffer<std::byte> to(bytes, runtime_.rank());
    from.fill_bytes(0x3c);
    return 2 * copy_rate(to.get(), from.get(), bytes);
}

int Measure::link_partner() const {
    const Topology& topology = runtime_.topology();
    const auto gpu_of = [&](int rank) {
        return topology.places[static_cast<std::size_t>(rank)].device_id;
    };
    const auto team_rank = [&](int index) {
        return topology.rank_at(topology.lsa_team_index, index);
    };
    // One rank speaks for a GPU: the first of the team that lives there.
    for (int i = 0; i < topology.lsa_rank; ++i)
        if (gpu_of(team_rank(i)) == gpu_of(topology.rank)) return -1;
    for (int i = 1; i < topology.lsa_size; ++i) {
        const int peer = team_rank((topology.lsa_rank + i) % topology.lsa_size);
        if (gpu_of(peer) != gpu_of(topology.rank)) return peer;
    }
    return -1;
}

double Measure::link_rate_bytes_per_s() {
    const int partner = link_partner();
    Bootstrap& bootstrap = runtime_.bootstrap();
    const auto partners = bootstrap.all_gather_values(partner);
    if (*std::max_element(partners.begin(), partners.end()) < 0) return 0;
    const auto measure = [&](std::size_t bytes) {
        WindowLayout layout;
        layout.add("source", bytes);
        layout.add("target", bytes);
        const auto window = SymmetricWindow::create(runtime_.communicator(), layout);
        bootstrap.barrier();
        double mine = std::numeric_limits<double>::infinity();
        if (partner >= 0) {
            mine = copy_rate(window->peer(partner, layout.region("target").offset_bytes),
                             window->local(layout.region("source").offset_bytes), bytes);
        }
        const auto all = bootstrap.all_gather_values(mine);
        window->close();
        return *std::min_element(all.begin(), all.end());
    };
    const double rate = measure(kSmallCopyBytes);
    return rate < kLeastLinkRate ? rate : measure(kLargeLinkCopyBytes);
}

double Measure::copy_ceiling_bytes_per_s() {
    double best = 0;
    for (int turn = 0; turn < runtime_.size(); ++turn) {
        runtime_.bootstrap().barrier();
        if (turn != runtime_.rank()) continue;
        best = own_copy_rate(kSmallCopyBytes);
        if (best >= kLeastGpuRate && runtime_.device().memory_bytes >= 4 * kLargeCopyBytes)
            best = own_copy_rate(kLargeCopyBytes);
    }
    runtime_.bootstrap().barrier();
    const auto all = runtime_.bootstrap().all_gather_values(best);
    return *std::min_element(all.begin(), all.end());
}

}  // namespace gimlet::cli

// SPDX-License-Identifier: Apache-2.0
#include "runtime/cli/bench_measure.hpp"

#include <algorithm>
#include <chrono>

#include "host/cuda/check.hpp"
#include "host/cuda/stream.hpp"

namespace gimlet::cli {
namespace {

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

double Measure::copy_ceiling_bytes_per_s() {
    constexpr std::size_t kBytes = std::size_t{4} << 30;
    const std::size_t bytes =
        runtime_.device().memory_bytes < 4 * kBytes ? std::size_t{1} << 20 : kBytes;
    const int rank = runtime_.rank();
    double best = 0;
    for (int turn = 0; turn < runtime_.size(); ++turn) {
        runtime_.bootstrap().barrier();
        if (turn != rank) continue;
        DeviceBuffer<std::byte> from(bytes, rank);
        DeviceBuffer<std::byte> to(bytes, rank);
        from.fill_bytes(0x3c);
        const Stream stream = Stream::create(rank);
        std::vector<double> times;
        for (int i = 0; i < 10; ++i) {
            const Event start = Event::create(EventTiming::on, rank);
            const Event end = Event::create(EventTiming::on, rank);
            start.record(stream.get());
            cuda_check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice,
                                       stream.get()),
                       "cudaMemcpyAsync", rank);
            end.record(stream.get());
            stream.synchronize();
            if (i >= 2) times.push_back(Event::elapsed_ms(start, end));
        }
        best = 2.0 * static_cast<double>(bytes) /
               (*std::min_element(times.begin(), times.end()) * 1e-3);
    }
    runtime_.bootstrap().barrier();
    const auto all = runtime_.bootstrap().all_gather_values(best);
    return *std::min_element(all.begin(), all.end());
}

}  // namespace gimlet::cli

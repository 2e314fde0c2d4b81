// SPDX-License-Identifier: Apache-2.0
// Puts from window to window: copies by stores and by bulk copies to an LSA peer, and GIN puts.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "device/kernels/launch.hpp"
#include "host/base/text.hpp"
#include "host/cuda/check.hpp"
#include "host/nccl/topology.hpp"
#include "runtime/cli/bench_cases.hpp"
#include "runtime/rng.hpp"

namespace gimlet::cli {
namespace {

constexpr int kRounds = 50;
constexpr int kWarmupRounds = 5;
constexpr int kGinPuts = 256;  ///< puts of a GIN round, fewer if they are large
/// Round trips of more than this would only measure one block's copy rate.
constexpr std::uint64_t kMostRoundBytes = std::uint64_t{1} << 20;

const char* name_of(PutPath path) {
    switch (path) {
        case PutPath::store: return "store";
        case PutPath::bulk: return "bulk";
        case PutPath::gin_single: return "gin single";
        case PutPath::gin_batch: return "gin batch";
    }
    return "?";
}

bool is_gin(PutPath path) {
    return path == PutPath::gin_single || path == PutPath::gin_batch;
}

/// Who puts to whom.
struct Partners {
    int to = -1;
    int from = -1;
};

class PutBench {
  public:
    PutBench(Runtime& runtime, const PrimitiveBenchOptions& options, Measure& measure,
             const CopyRates& rates)
        : runtime_(runtime),
          options_(options),
          measure_(measure),
          rates_(rates),
          bytes_(checked_sizes(options.put_bytes)),
          world_(runtime, bytes_.back(), options.put_contexts),
          blocks_(world_.blocks(options.sms)),
          stream_(Stream::create(runtime.rank())) {}

    CaseReport run() {
        fill_source();
        for (const PutPath path :
             {PutPath::store, PutPath::bulk, PutPath::gin_single, PutPath::gin_batch}) {
            if (!is_gin(path) && !has_lsa_peer()) continue;
            if (is_gin(path) && !world_.has_gin()) continue;
            for (const std::uint64_t bytes : bytes_) {
                stream(path, bytes);
                // One put is not a batch.
                if (bytes <= kMostRoundBytes && path != PutPath::gin_batch) round(path, bytes);
            }
        }
        if (!has_lsa_peer())
            report_.notes.push_back("store and bulk left out: this rank has no LSA peer");
        if (!world_.has_gin()) {
            report_.notes.push_back(
                runtime_.size() == 1
                    ? "GIN puts left out: one rank"
                    : "GIN puts left out: NCCL offers no GIN here (gimlet doctor says why)");
        }
        world_.close();
        return std::move(report_);
    }

  private:
    int rank() const { return runtime_.rank(); }

    std::vector<std::uint64_t> checked_sizes(std::vector<std::uint64_t> sizes) const {
        std::sort(sizes.begin(), sizes.end());
        for (const std::uint64_t bytes : sizes) {
            if (bytes == 0 || bytes % 16 != 0) {
                raise(ErrorCode::invalid_argument, rank(),
                      "--put-bytes {}: each size must be a positive multiple of 16", bytes);
            }
        }
        if (sizes.empty()) raise(ErrorCode::invalid_argument, rank(), "--put-bytes: no size");
        return sizes;
    }

    /// One rank alone copies to itself.
    bool has_lsa_peer() const { return runtime_.topology().lsa_size > 1 || runtime_.size() == 1; }

    /// A ring: over the LSA team, or over the world so that GIN leaves the team where there are
    /// several.
    Partners ring(PutPath path, int of) const {
        const Topology& topology = runtime_.topology();
        if (is_gin(path)) {
            const int step = topology.lsa_size < topology.size ? topology.lsa_size : 1;
            return {(of + step) % topology.size, (of - step + topology.size) % topology.size};
        }
        const int mine = topology.lsa_rank_of(of);
        const int first = of - mine;
        const int size = topology.lsa_size;
        return {first + (mine + 1) % size, first + (mine + size - 1) % size};
    }

    /// Pairs; an odd one out has no partner.
    Partners pair(PutPath path) const {
        const Topology& topology = runtime_.topology();
        const int first = is_gin(path) ? 0 : rank() - topology.lsa_rank;
        const int half = (is_gin(path) ? topology.size : topology.lsa_size) / 2;
        const int mine = rank() - first;
        if (mine >= 2 * half) return {};
        const int other = first + (mine < half ? mine + half : mine - half);
        return {other, other};
    }

    PutBenchArgs args_of(PutPath path, std::uint64_t bytes, Partners partners) {
        PutBenchArgs args{};
        args.peers = world_.peers();
        args.time = world_.time();
        args.source_offset = world_.window().layout().region("source").offset_bytes;
        args.target_offset = world_.window().layout().region("target").offset_bytes;
        args.flags_offset = world_.window().layout().region("flags").offset_bytes;
        args.bytes = bytes;
        args.to_rank = partners.to;
        args.from_rank = partners.from;
        args.round_count = kRounds;
        args.warmup_count = kWarmupRounds;
        args.context_count = world_.peers().gin_context_count;
        args.path = path;
        args.first_epoch = world_.take_epochs(kRounds + kWarmupRounds);
        return args;
    }

    /// Puts of one launch (LSA) or of one round (GIN).
    std::int32_t put_count(PutPath path, std::uint64_t bytes) const {
        const std::uint64_t total = options_.put_total_kib << 10;
        const std::uint64_t most = is_gin(path) ? kGinPuts : 4096;
        return static_cast<std::int32_t>(std::clamp<std::uint64_t>(total / bytes, 1, most));
    }

    std::vector<std::byte> pattern_of(int rank, std::uint64_t bytes) const {
        std::vector<std::byte> out(bytes);
        InputRng rng(static_cast<std::uint64_t>(rank) + 1);
        for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
            const std::uint64_t word = rng.next();
            std::memcpy(out.data() + at, &word, 8);
        }
        return out;
    }

    void fill_source() {
        const auto pattern = pattern_of(rank(), bytes_.back());
        cuda_check(cudaMemcpy(world_.window().local_region<std::byte>("source"), pattern.data(),
                              pattern.size(), cudaMemcpyHostToDevice),
                   "cudaMemcpy", rank());
    }

    void clear_target() {
        cuda_check(cudaMemset(world_.window().local_region<std::byte>("target"), 0, bytes_.back()),
                   "cudaMemset", rank());
        cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize", rank());
        runtime_.bootstrap().barrier();
    }

    /// What has arrived is what `from` has sent.
    void check_target(PutPath path, std::uint64_t bytes, int from) {
        runtime_.bootstrap().barrier();
        if (from < 0) return;
        std::vector<std::byte> seen(bytes);
        cuda_check(cudaMemcpy(seen.data(), world_.window().local_region<std::byte>("target"), bytes,
                              cudaMemcpyDeviceToHost),
                   "cudaMemcpy", rank());
        const auto expected = pattern_of(from, bytes);
        const auto differ = std::mismatch(seen.begin(), seen.end(), expected.begin());
        if (differ.first != seen.end()) {
            raise(ErrorCode::internal, rank(), "put {}, {} bytes from rank {}: byte {} is wrong",
                  name_of(path), bytes, from, differ.first - seen.begin());
        }
    }

    /// All ranks put at once, as fast as they can.
    void stream(PutPath path, std::uint64_t bytes) {
        clear_target();
        const Partners partners = ring(path, rank());
        const std::int32_t puts = put_count(path, bytes);
        double us = 0;
        int calls = 0;
        if (is_gin(path)) {
            us = timed_in_kernel(options_.measure.calls, [&] {
                PutBenchArgs args = args_of(path, bytes, partners);
                args.put_count = puts;
                cuda_check(launch_put_bench(args, 1, stream_.get()), "launch_put_bench", rank());
            });
            us /= kRounds;
            calls = options_.measure.calls;
        } else {
            const Timing timing = measure_.run([&](cudaStream_t stream) {
                PutBenchArgs args = args_of(path, bytes, partners);
                args.put_count = puts;
                cuda_check(launch_put_bench(args, blocks_, stream), "launch_put_bench", rank());
            });
            us = timing.median_us;
            calls = timing.calls;
        }
        check_target(path, bytes, partners.from);
        const double all = static_cast<double>(puts) * (is_gin(path) ? world_contexts() : 1);
        add_stream(path, bytes, all, us, calls);
    }

    double world_contexts() const { return static_cast<double>(world_.peers().gin_context_count); }

    /// There and back again, one put at a time.
    void round(PutPath path, std::uint64_t bytes) {
        const Partners partners = pair(path);
        clear_target();
        const bool idle =
            runtime_.size() == 1 || (!is_gin(path) && runtime_.topology().lsa_size == 1);
        if (idle) return;
        const double us = timed_in_kernel(options_.measure.calls, [&] {
            const PutBenchArgs args = args_of(path, bytes, partners);
            if (partners.to < 0) return;
            cuda_check(launch_put_round_bench(args, stream_.get()), "launch_put_round_bench",
                       rank());
        });
        check_target(path, bytes, partners.from);
        nlohmann::json line = line_of("put", runtime_);
        line["path"] = name_of(path);
        line["measure"] = "round trip";
        line["bytes"] = bytes;
        line["median_us"] = us / kRounds;
        line["calls"] = options_.measure.calls;
        report_.table.add({name_of(path), "round trip", format_bytes(bytes), "1",
                           fmt::format("{:.2f}", us / kRounds), "-", "-", "-"});
        report_.lines.push_back(std::move(line));
    }

    /// Median over calls of the slowest rank's time in the kernel, microseconds.
    double timed_in_kernel(int calls, const std::function<void()>& launch) {
        std::vector<double> mine;
        for (int i = 0; i < calls; ++i) {
            runtime_.barrier(stream_.get());
            launch();
            mine.push_back(static_cast<double>(world_.finish(stream_).elapsed_ns) * 1e-3);
        }
        return median(slowest_rank(runtime_.bootstrap(), mine));
    }

    /// Microseconds that every rank of this GPU needs at least to put `moved` bytes.
    double floor_of(PutPath path, double moved) const {
        const auto& places = runtime_.topology().places;
        const auto gpu_of = [&](int rank) {
            return places[static_cast<std::size_t>(rank)].device_id;
        };
        const std::vector<int> sharing = runtime_.topology().ranks_on_my_gpu();
        // Each byte is read once and written once.
        const double memory =
            2 * moved * static_cast<double>(sharing.size()) / rates_.copy_bytes_per_s;
        if (rates_.link_bytes_per_s <= 0) return memory * 1e6;
        const auto crossing = std::count_if(sharing.begin(), sharing.end(), [&](int rank) {
            return gpu_of(ring(path, rank).to) != gpu_of(rank);
        });
        return std::max(memory, moved * static_cast<double>(crossing) / rates_.link_bytes_per_s) *
               1e6;
    }

    void add_stream(PutPath path, std::uint64_t bytes, double puts, double us, int calls) {
        const double moved = puts * static_cast<double>(bytes);
        const double per_second = us > 0 ? 1e6 / us : 0;
        const double floor_us = floor_of(path, moved);
        nlohmann::json line = line_of("put", runtime_);
        line["path"] = name_of(path);
        line["measure"] = "stream";
        line["bytes"] = bytes;
        line["puts"] = puts;
        line["contexts"] = is_gin(path) ? world_.peers().gin_context_count : 0;
        line["blocks"] = is_gin(path) ? 1 : blocks_;
        line["median_us"] = us;
        line["floor_us"] = floor_us;
        line["ratio"] = us / floor_us;
        line["bytes_per_s"] = moved * per_second;
        line["puts_per_s"] = puts * per_second;
        line["copy_bytes_per_s"] = rates_.copy_bytes_per_s;
        line["link_bytes_per_s"] = rates_.link_bytes_per_s;
        line["calls"] = calls;
        report_.table.add({name_of(path), "stream", format_bytes(bytes),
                           fmt::format("{:.0f}", puts), fmt::format("{:.2f}", us),
                           fmt::format("{:.2f}", moved * per_second * 1e-9),
                           fmt::format("{:.0f}", puts * per_second * 1e-3),
                           fmt::format("{:.2f}", us / floor_us)});
        report_.lines.push_back(std::move(line));
    }

    Runtime& runtime_;
    const PrimitiveBenchOptions& options_;
    Measure& measure_;
    CopyRates rates_;
    std::vector<std::uint64_t> bytes_;
    BenchWorld world_;
    int blocks_;
    Stream stream_;
    CaseReport report_{
        Table({"put", "what", "bytes", "puts", "us", "GB/s a rank", "1000 puts/s", "ratio"}),
        {},
        {}};
};

}  // namespace

CaseReport bench_puts(Runtime& runtime, const PrimitiveBenchOptions& options, Measure& measure,
                      const CopyRates& rates) {
    return PutBench(runtime, options, measure, rates).run();
}

}  // namespace gimlet::cli

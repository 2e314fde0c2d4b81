// SPDX-License-Identifier: Apache-2.0
// Barriers back to back in one kernel: ours, and NCCL's sessions beside them. Kinds take turns, so
// that whatever changes during the run changes it for all of them.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/kernels/launch.hpp"
#include "host/cuda/check.hpp"
#include "runtime/cli/bench_cases.hpp"

namespace gimlet::cli {
namespace {

constexpr int kWarmupBarriers = 20;

struct KindInfo {
    BarrierKind kind;
    const char* name;
    const char* beside;  ///< name of NCCL's counterpart, or null
    bool whole_grid;     ///< as many blocks as the rank has SMs, else one
    bool needs_gin;
};

constexpr KindInfo kKinds[] = {
    {BarrierKind::grid, "grid", nullptr, true, false},
    {BarrierKind::nvlink, "nvlink", "nccl lsa", false, false},
    {BarrierKind::nccl_lsa, "nccl lsa", nullptr, false, false},
    {BarrierKind::gin, "gin", "nccl gin", false, true},
    {BarrierKind::nccl_gin, "nccl gin", nullptr, false, true},
    {BarrierKind::gpu, "gpu", nullptr, true, false},
};

/// Per barrier and turn, slowest rank.
struct KindTimes {
    std::vector<double> us;
    std::vector<double> cycles;
};

class BarrierBench {
  public:
    BarrierBench(Runtime& runtime, const PrimitiveBenchOptions& options)
        : runtime_(runtime),
          options_(options),
          world_(runtime, 0, 1),
          blocks_(world_.blocks(options.sms)),
          stream_(Stream::create(runtime.rank())) {}

    CaseReport run() {
        for (int turn = 0; turn < options_.measure.calls; ++turn) {
            for (const KindInfo& info : kKinds) {
                if (!info.needs_gin || world_.has_gin()) time_once(info);
            }
        }
        std::map<std::string, KindTimes> times;
        for (auto& [name, mine] : mine_) {
            times[name] = {slowest_rank(runtime_.bootstrap(), mine.us),
                           slowest_rank(runtime_.bootstrap(), mine.cycles)};
        }
        world_.close();
        return report(times);
    }

  private:
    KernelShape shape_of(const KindInfo& info) const {
        KernelShape shape{};
        shape.block_count = info.whole_grid ? blocks_ : 1;
        // NCCL's GIN barrier needs a thread for each peer.
        shape.thread_count =
            std::clamp((runtime_.size() + kWarpSize - 1) / kWarpSize * kWarpSize, kWarpSize, 1024);
        return shape;
    }

    void time_once(const KindInfo& info) {
        BarrierBenchArgs args{};
        args.peers = world_.peers();
        args.time = world_.time();
        args.warmup_count = kWarmupBarriers;
        args.repeat_count = options_.barrier_repeats;
        args.first_epoch =
            world_.take_epochs(static_cast<std::uint64_t>(args.warmup_count + args.repeat_count));
        runtime_.barrier(stream_.get());
        cuda_check(launch_barrier_bench(info.kind, args, shape_of(info), stream_.get()),
                   "launch_barrier_bench", runtime_.rank());
        const BenchTime time = world_.finish(stream_);
        KindTimes& mine = mine_[info.name];
        mine.us.push_back(static_cast<double>(time.elapsed_ns) * 1e-3 / args.repeat_count);
        mine.cycles.push_back(static_cast<double>(time.elapsed_cycles) / args.repeat_count);
    }

    CaseReport report(const std::map<std::string, KindTimes>& times) const {
        CaseReport out{Table({"barrier", "blocks", "us each", "cycles", "best us", "worst us",
                              "NCCL us", "ratio"}),
                       {},
                       {}};
        for (const KindInfo& info : kKinds) {
            const auto found = times.find(info.name);
            if (found == times.end()) continue;
            const std::vector<double>& us = found->second.us;
            const double middle = median(us);
            const auto beside = info.beside ? times.find(info.beside) : times.end();
            const double other = beside == times.end() ? 0 : median(beside->second.us);
            nlohmann::json line = line_of("barrier", runtime_);
            line["kind"] = info.name;
            line["blocks"] = shape_of(info).block_count;
            line["threads"] = shape_of(info).thread_count;
            line["median_us"] = middle;
            line["cycles"] = median(found->second.cycles);
            line["best_us"] = *std::min_element(us.begin(), us.end());
            line["worst_us"] = *std::max_element(us.begin(), us.end());
            line["repeats"] = options_.barrier_repeats;
            line["calls"] = us.size();
            if (other > 0) {
                line["beside"] = info.beside;
                line["beside_us"] = other;
                line["ratio"] = middle / other;
            }
            out.table.add({info.name, std::to_string(shape_of(info).block_count),
                           fmt::format("{:.3f}", middle),
                           fmt::format("{:.0f}", median(found->second.cycles)),
                           fmt::format("{:.3f}", line["best_us"].get<double>()),
                           fmt::format("{:.3f}", line["worst_us"].get<double>()),
                           other > 0 ? fmt::format("{:.3f}", other) : "-",
                           other > 0 ? fmt::format("{:.2f}", middle / other) : "-"});
            out.lines.push_back(std::move(line));
        }
        if (!world_.has_gin()) {
            out.notes.push_back(
                "gin barriers left out: NCCL offers no GIN here (gimlet doctor says why)");
        }
        return out;
    }

    Runtime& runtime_;
    const PrimitiveBenchOptions& options_;
    BenchWorld world_;
    int blocks_;
    Stream stream_;
    std::map<std::string, KindTimes> mine_;
};

}  // namespace

CaseReport bench_barriers(Runtime& runtime, const PrimitiveBenchOptions& options) {
    return BarrierBench(runtime, options).run();
}

}  // namespace gimlet::cli

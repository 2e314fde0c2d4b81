// SPDX-License-Identifier: Apache-2.0
// The same rows through the same stages, led by barriers or by FIFOs; and one hand-over.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "device/kernels/launch.hpp"
#include "host/base/checked_math.hpp"
#include "host/cuda/check.hpp"
#include "host/nccl/topology.hpp"
#include "runtime/channel_options.hpp"
#include "runtime/cli/bench_cases.hpp"
#include "runtime/pipeline_model.hpp"
#include "runtime/plan.hpp"

namespace gimlet::cli {
namespace {

constexpr std::uint32_t kMostKeptRows = 1024;
constexpr int kMostLanes = 16;
constexpr int kMostSlots = 4;
constexpr int kHandovers = 1000;
constexpr int kHandoverWarmups = 50;
constexpr std::uint32_t kElementBytes = 2;

const char* name_of(PipelineSync sync) {
    return sync == PipelineSync::barrier ? "barrier" : "fifo";
}

/// T rows as batches: one, four equal ones, or four that halve and more.
std::vector<std::uint32_t> batches_of(const std::string& kind, std::uint32_t rows) {
    if (kind == "whole") return {rows};
    if (kind == "even") {
        std::vector<std::uint32_t> out(4, rows / 4);
        out[3] = rows - 3 * (rows / 4);
        return out;
    }
    const std::uint32_t large = rows - rows / 4 - 2 * (rows / 16);
    return {large, rows / 4, rows / 16, rows / 16};
}

/// Content of the source: word `word` of row `row`, never zero.
std::uint32_t source_word(std::uint32_t row, std::uint32_t word) {
    return (row * 2654435761u ^ word * 40503u) | 1u;
}

/// Whether times are a GPU's.
bool is_gpu(const Runtime& runtime) {
    return runtime.device().name.find("emulated") == std::string::npos;
}

struct RunTimes {
    double first_us = 0;
    double last_us = 0;
};

class PipelineBench {
  public:
    PipelineBench(Runtime& runtime, const PrimitiveBenchOptions& options, const FifoOptions& fifo,
                  std::uint32_t most_rows, int hidden)
        : runtime_(runtime),
          options_(options),
          fifo_(fifo),
          hidden_(hidden),
          row_bytes_(fifo.slot_bytes),
          kept_rows_(std::min(most_rows, kMostKeptRows)),
          places_((options.stages + runtime.size() - 1) / runtime.size()),
          lanes_(lanes_of(runtime, options, places_)),
          slots_(slots_of(runtime, row_bytes_)),
          buffer_bytes_(std::max(fifo_bytes(), barrier_bytes(most_rows, 2))),
          world_(runtime,
                 checked_add(buffer_bytes_, std::uint64_t{kept_rows_} * row_bytes_,
                             "pipeline bench bytes", runtime.rank()),
                 1),
          records_(static_cast<std::size_t>(places_ * lanes_), runtime.rank()),
          stream_(Stream::create(runtime.rank())) {
        fill_source();
    }

    void run(std::uint32_t rows, const std::string& batches, CaseReport* report) {
        PipelineWork work{options_.stages, lanes_, row_bytes_, batches_of(batches, rows), fifo_};
        std::vector<std::vector<RunTimes>> times(options_.syncs.size());
        std::vector<PipelineLaneRecord> sums(options_.syncs.size());
        // Turn by turn: whatever changes during the run changes it for both.
        for (int call = -options_.measure.warmups; call < options_.measure.calls; ++call) {
            for (std::size_t i = 0; i < options_.syncs.size(); ++i) {
                const bool last = call + 1 == options_.measure.calls;
                if (last) clear_target();
                const RunTimes once = run_once(options_.syncs[i], work, &sums[i]);
                if (call >= 0) times[i].push_back(once);
                if (last) check_target(rows);
            }
        }
        for (std::size_t i = 0; i < options_.syncs.size(); ++i)
            add(options_.syncs[i], batches, rows, work, times[i], sums[i], report);
    }

    void close() { world_.close(); }
    std::int32_t lanes() const { return lanes_; }
    std::int32_t slots() const { return slots_; }

  private:
    static std::int32_t lanes_of(const Runtime& runtime, const PrimitiveBenchOptions& options,
                                 std::int32_t places) {
        const SmShare share = smallest_sm_share(runtime.topology(), runtime.device());
        const int sms = options.sms > 0 ? options.sms : share.sm_count;
        if (sms > share.sm_count || places > sms) {
            raise(ErrorCode::invalid_argument, runtime.rank(),
                  "pipeline: {} stages on a rank with {} SMs; each stage needs one, use fewer "
                  "stages, more ranks or another --sms",
                  places, std::min(sms, share.sm_count));
        }
        return std::min(kMostLanes, sms / places);
    }
    static std::int32_t slots_of(const Runtime& runtime, std::uint32_t row_bytes) {
        const auto limit = static_cast<std::uint32_t>(runtime.device().shared_optin_bytes);
        for (int slots = kMostSlots; slots > 0; --slots)
            if (pipeline_bench_shared_bytes(row_bytes, slots) <= limit) return slots;
        raise(ErrorCode::invalid_argument, runtime.rank(),
              "--hidden: a row of {} bytes does not fit the {} bytes of shared memory that a block "
              "has",
              row_bytes, limit);
    }

    int rank() const { return runtime_.rank(); }
    int last_rank() const { return (options_.stages - 1) % runtime_.size(); }

    /// Bytes of the buffers on one rank.
    std::uint64_t fifo_bytes() const {
        return checked_fifo_bytes(fifo_, static_cast<std::uint64_t>(places_ * lanes_),
                                  "pipeline bench channels", rank());
    }
    std::uint64_t barrier_bytes(std::uint64_t batch_rows, std::uint64_t buffers) const {
        const auto count = static_cast<std::uint64_t>(places_) * buffers;
        return checked_mul(count * batch_rows, std::uint64_t{row_bytes_}, "pipeline bench batches",
                           rank());
    }
    /// Bytes of all buffers between stages.
    std::uint64_t bytes_between(PipelineSync sync, const PipelineWork& work) const {
        const auto hops = static_cast<std::uint64_t>(options_.stages - 1);
        if (sync == PipelineSync::fifo)
            return hops * static_cast<std::uint64_t>(lanes_) * FifoLayout::build(fifo_).total_bytes;
        const std::uint64_t buffers = work.batch_rows.size() > 1 ? 2 : 1;
        return hops * buffers * *std::max_element(work.batch_rows.begin(), work.batch_rows.end()) *
               row_bytes_;
    }

    std::uint64_t source_offset() const {
        return world_.window().layout().region("source").offset_bytes;
    }
    std::uint64_t buffer_offset() const {
        return world_.window().layout().region("target").offset_bytes;
    }
    std::uint64_t target_offset() const { return buffer_offset() + buffer_bytes_; }

    void fill_source() {
        const std::uint32_t words = row_bytes_ / 4;
        std::vector<std::uint32_t> content(std::size_t{kept_rows_} * words);
        for (std::size_t i = 0; i < content.size(); ++i) {
            content[i] = source_word(static_cast<std::uint32_t>(i / words),
                                     static_cast<std::uint32_t>(i % words));
        }
        cuda_check(cudaMemcpy(world_.window().local(source_offset()), content.data(),
                              content.size() * 4, cudaMemcpyHostToDevice),
                   "cudaMemcpy", rank());
        // Cursors, heads and tails start at zero.
        cuda_check(cudaMemset(world_.window().local(buffer_offset()), 0, buffer_bytes_),
                   "cudaMemset", rank());
    }

    void clear_target() {
        cuda_check(cudaMemsetAsync(world_.window().local(target_offset()), 0,
                                   std::size_t{kept_rows_} * row_bytes_, stream_.get()),
                   "cudaMemsetAsync", rank());
    }

    void check_target(std::uint32_t rows) {
        if (rank() != last_rank()) return;
        const std::uint32_t words = row_bytes_ / 4;
        std::vector<std::uint32_t> seen(std::size_t{std::min(rows, kept_rows_)} * words);
        cuda_check(cudaMemcpy(seen.data(), world_.window().local(target_offset()), seen.size() * 4,
                              cudaMemcpyDeviceToHost),
                   "cudaMemcpy", rank());
        for (std::size_t i = 0; i < seen.size(); ++i) {
            const auto row = static_cast<std::uint32_t>(i / words);
            const auto word = static_cast<std::uint32_t>(i % words);
            if (seen[i] != source_word(row, word)) {
                raise(ErrorCode::internal, rank(),
                      "pipeline: row {} word {} came out as {:#x} instead of {:#x}", row, word,
                      seen[i], source_word(row, word));
            }
        }
    }

    RunTimes run_once(PipelineSync sync, const PipelineWork& work, PipelineLaneRecord* sums) {
        // Rings keep their state in the buffers that batches overwrite.
        if (options_.syncs.size() > 1) clear_rings(sync);
        PipelineBenchArgs args{};
        args.peers = world_.peers();
        args.fifo = fifo_;
        args.records = records_.device();
        args.source_offset = source_offset();
        args.target_offset = target_offset();
        args.buffer_offset = buffer_offset();
        args.sync = sync;
        args.stage_count = options_.stages;
        args.lane_count = lanes_;
        args.slot_count = slots_;
        args.row_bytes = row_bytes_;
        args.kept_rows = kept_rows_;
        args.batch_count = static_cast<std::uint32_t>(work.batch_rows.size());
        std::copy(work.batch_rows.begin(), work.batch_rows.end(), args.batch_rows);
        args.first_epoch =
            world_.take_epochs(args.batch_count + static_cast<std::uint64_t>(args.stage_count) + 1);
        for (std::size_t i = 0; i < records_.count(); ++i) records_.host()[i] = {};
        runtime_.barrier(stream_.get());
        cuda_check(launch_pipeline_bench(args, stream_.get()), "launch_pipeline_bench", rank());
        world_.finish(stream_);
        return gather(sums);
    }

    void clear_rings(PipelineSync sync) {
        if (sync != PipelineSync::fifo) return;
        runtime_.barrier(stream_.get());
        cuda_check(
            cudaMemsetAsync(world_.window().local(buffer_offset()), 0, fifo_bytes(), stream_.get()),
            "cudaMemsetAsync", rank());
    }

    /// Times are those of the last stage's rank, by its own clock; counts are of all ranks.
    RunTimes gather(PipelineLaneRecord* sums) {
        PipelineLaneRecord mine{~std::uint64_t{0}, ~std::uint64_t{0}, 0, 0, 0};
        const int place = (options_.stages - 1) / runtime_.size();
        for (std::size_t i = 0; i < records_.count(); ++i) {
            const PipelineLaneRecord& lane = records_.host()[i];
            mine.flags += lane.flags;
            mine.waits += lane.waits;
            mine.start_ns = std::min(mine.start_ns, lane.start_ns);
            if (static_cast<int>(i) / lanes_ != place) continue;
            if (lane.first_ns > 0) mine.first_ns = std::min(mine.first_ns, lane.first_ns);
            mine.last_ns = std::max(mine.last_ns, lane.last_ns);
        }
        const auto all = runtime_.bootstrap().all_gather_values(mine);
        *sums = {};
        for (const PipelineLaneRecord& one : all) {
            sums->flags += one.flags;
            sums->waits += one.waits;
        }
        const PipelineLaneRecord& last = all[static_cast<std::size_t>(last_rank())];
        return {static_cast<double>(last.first_ns - last.start_ns) * 1e-3,
                static_cast<double>(last.last_ns - last.start_ns) * 1e-3};
    }

    void add(PipelineSync sync, const std::string& batches, std::uint32_t rows,
             const PipelineWork& work, const std::vector<RunTimes>& times,
             const PipelineLaneRecord& sums, CaseReport* report) const {
        std::vector<double> first;
        std::vector<double> last;
        for (const RunTimes& one : times) {
            first.push_back(one.first_us);
            last.push_back(one.last_us);
        }
        const PipelineTimes model = sync == PipelineSync::fifo
                                        ? model_fifos(work, options_.model)
                                        : model_barriers(work, options_.model);
        const double bytes = static_cast<double>(rows) * row_bytes_;
        nlohmann::json line = line_of("pipeline", runtime_);
        line["sync"] = name_of(sync);
        line["batches"] = batches;
        line["tokens"] = rows;
        line["hidden"] = hidden_;
        line["stages"] = options_.stages;
        line["lanes"] = lanes_;
        line["first_us"] = median(first);
        line["median_us"] = median(last);
        line["best_us"] = *std::min_element(last.begin(), last.end());
        line["worst_us"] = *std::max_element(last.begin(), last.end());
        line["bytes_per_s"] = bytes / median(last) * 1e6;
        line["rows_per_s"] = rows / median(last) * 1e6;
        line["buffer_bytes"] = bytes_between(sync, work);
        line["flags"] = sums.flags;
        line["waits"] = sums.waits;
        line["model"] = {{"flag_ns", options_.model.flag_ns},
                         {"barrier_ns", options_.model.barrier_ns},
                         {"lane_bytes_per_s", options_.model.lane_bytes_per_s},
                         {"first_us", model.first_ns * 1e-3},
                         {"last_us", model.last_ns * 1e-3}};
        line["clock"] = is_gpu(runtime_) ? "gpu" : "stand-in";
        line["calls"] = times.size();
        report->table.add(
            {name_of(sync), batches, std::to_string(rows), std::to_string(hidden_),
             fmt::format("{:.1f}", median(first)), fmt::format("{:.1f}", median(last)),
             fmt::format("{:.2f}", bytes / median(last) * 1e-3),
             fmt::format("{:.2f}", static_cast<double>(bytes_between(sync, work)) / 1048576.0),
             std::to_string(sums.flags), std::to_string(sums.waits),
             fmt::format("{:.1f}", model.first_ns * 1e-3),
             fmt::format("{:.1f}", model.last_ns * 1e-3)});
        report->lines.push_back(std::move(line));
    }

    Runtime& runtime_;
    const PrimitiveBenchOptions& options_;
    FifoOptions fifo_;
    int hidden_;
    std::uint32_t row_bytes_;
    std::uint32_t kept_rows_;
    std::int32_t places_;
    std::int32_t lanes_;
    std::int32_t slots_;
    std::uint64_t buffer_bytes_;
    BenchWorld world_;
    MappedBuffer<PipelineLaneRecord> records_;
    Stream stream_;
};

FifoOptions fifo_of(const PrimitiveBenchOptions& options, int hidden, int rank) {
    const auto row_bytes = checked_mul(narrow<std::uint32_t>(hidden, "--hidden", rank),
                                       kElementBytes, "--hidden: row bytes", rank);
    FifoOptions fifo{FifoLink::lsa,     options.fifo_slots, row_bytes, options.fifo_chunk, 1,
                     options.fifo_chunk};
    checked_fifo_bytes(fifo, 1, "--fifo-slots, --fifo-chunk, --hidden", rank);
    return fifo;
}

}  // namespace

CaseReport bench_pipeline(Runtime& runtime, const PrimitiveBenchOptions& options,
                          const std::vector<int>& tokens, const std::vector<int>& hidden) {
    CaseReport report{Table({"sync", "batches", "T", "H", "first us", "last us", "GB/s", "MiB",
                             "flags", "waits", "first*", "last*"}),
                      {},
                      {}};
    if (runtime.topology().lsa_size < runtime.size()) {
        report.notes.push_back("pipeline left out: it needs all ranks in one LSA team");
        return report;
    }
    if (options.stages < 1) {
        raise(ErrorCode::invalid_argument, runtime.rank(),
              "--stages {}: a pipeline has at least one stage", options.stages);
    }
    const auto most = static_cast<std::uint32_t>(*std::max_element(tokens.begin(), tokens.end()));
    std::int32_t lanes = 0;
    for (const int width : hidden) {
        PipelineBench bench(runtime, options, fifo_of(options, width, runtime.rank()), most, width);
        lanes = bench.lanes();
        for (const std::string& batches : options.batches) {
            for (const int rows : tokens) {
                bench.run(static_cast<std::uint32_t>(rows), batches, &report);
            }
        }
        bench.close();
    }
    report.notes.push_back(fmt::format(
        "{} stages of {} lanes (blocks); stage s on rank s mod {}; T rows in all; MiB: buffers "
        "between stages\nfirst: the last stage may read its first row; last: it has moved its last "
        "one\nflags: words written to tell others; waits: barriers, or tails and heads that were "
        "not there\n* {}",
        options.stages, lanes, runtime.size(), options.model.text()));
    if (!is_gpu(runtime)) {
        report.notes.push_back(
            "no GPU: first and last say how long the stand-in took; the model's times (*) are to "
            "be "
            "compared");
    }
    return report;
}

CaseReport bench_handover(Runtime& runtime, const PrimitiveBenchOptions& options) {
    CaseReport report{Table({"hand-over", "us each", "best us", "worst us", "to flag"}), {}, {}};
    if (runtime.size() > 1 && runtime.topology().lsa_size < 2) {
        report.notes.push_back("handover left out: rank 0 has no LSA peer");
        return report;
    }
    struct Kind {
        HandoverKind kind;
        const char* name;
        std::vector<double> us;
    };
    std::vector<Kind> kinds = {{HandoverKind::flag, "flag", {}},
                               {HandoverKind::fifo, "fifo", {}},
                               {HandoverKind::fifo_row, "fifo, 16 bytes", {}}};
    const FifoOptions fifo{FifoLink::lsa, 16, 16, 1, 1, 8};
    BenchWorld world(runtime, checked_fifo_bytes(fifo, 2, "hand-over channels", runtime.rank()), 1);
    const Stream stream = Stream::create(runtime.rank());
    const std::uint64_t channels = world.window().layout().region("source").offset_bytes;
    cuda_check(
        cudaMemset(world.window().local(channels), 0, 2 * FifoLayout::build(fifo).total_bytes),
        "cudaMemset", runtime.rank());
    for (int turn = 0; turn < options.measure.calls; ++turn) {
        for (Kind& kind : kinds) {
            HandoverBenchArgs args{};
            args.peers = world.peers();
            args.time = world.time();
            args.fifo = fifo;
            args.fifo_offset = channels;
            // Two words, also where one rank has both ends.
            args.flags_offset = world.window().layout().region("target").offset_bytes;
            args.warmup_count = kHandoverWarmups;
            args.repeat_count = kHandovers;
            args.first_epoch = world.take_epochs(kHandoverWarmups + kHandovers);
            args.kind = kind.kind;
            runtime.barrier(stream.get());
            cuda_check(launch_handover_bench(args, stream.get()), "launch_handover_bench",
                       runtime.rank());
            kind.us.push_back(static_cast<double>(world.finish(stream).elapsed_ns) * 1e-3 /
                              (2 * kHandovers));
        }
    }
    double flag_us = 0;
    for (Kind& kind : kinds) {
        kind.us = slowest_rank(runtime.bootstrap(), kind.us);
        const double middle = median(kind.us);
        if (kind.kind == HandoverKind::flag) flag_us = middle;
        nlohmann::json line = line_of("handover", runtime);
        line["kind"] = kind.name;
        line["median_us"] = middle;
        line["best_us"] = *std::min_element(kind.us.begin(), kind.us.end());
        line["worst_us"] = *std::max_element(kind.us.begin(), kind.us.end());
        line["ratio"] = flag_us > 0 ? middle / flag_us : 0;
        line["calls"] = kind.us.size();
        report.table.add({kind.name, fmt::format("{:.3f}", middle),
                          fmt::format("{:.3f}", line["best_us"].get<double>()),
                          fmt::format("{:.3f}", line["worst_us"].get<double>()),
                          fmt::format("{:.2f}", line["ratio"].get<double>())});
        report.lines.push_back(std::move(line));
    }
    world.close();
    return report;
}

}  // namespace gimlet::cli

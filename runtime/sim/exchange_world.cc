// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/exchange_world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <stdexcept>

#include "host/cuda/buffer.hpp"
#include "host/cuda/stream.hpp"
#include "host/emulator/engine.hpp"
#include "host/emulator/gin_traffic.hpp"
#include "runtime/exchange.hpp"
#include "runtime/leftovers.hpp"
#include "runtime/reference.hpp"
#include "runtime/runtime.hpp"
#include "runtime/sim/sim_bootstrap.hpp"
#include "runtime/sim/stream_consumer.hpp"

namespace gimlet::sim {
namespace {

using Bytes = std::vector<std::byte>;

/// What all ranks of a scenario share on the host: the routing and its reference.
struct World {
    Scenario scenario;
    RoutingTable table;
    Reference reference;
    /// Ranks that have done their last step. Only clean failures count them; atomic for
    /// ThreadSanitizer, to which host programs are threads.
    mutable std::atomic<int> finished{0};

    explicit World(const Scenario& s) : scenario(s) {
        table = generate_routing(routing_options(s));
        reference = make_reference(
            table, {s.config.expert_count, s.config.layout, s.config.expert_alignment});
    }

    std::uint64_t row_seed(std::size_t step) const { return scenario.data_seed * 1000 + step; }
    std::uint64_t answer_seed(std::size_t step, int rank) const {
        return scenario.data_seed * 7919 + step * 131 + static_cast<std::uint64_t>(rank);
    }
    ReferenceInputs inputs(std::size_t step) const {
        ReferenceInputs out;
        const MoeConfig& config = scenario.config;
        out.row_bytes = dispatch_row_bytes(config);
        out.scale_words = static_cast<std::uint32_t>(config.scale_words);
        out.row = [this, step, type = config.dispatch_type, bytes = out.row_bytes](
                      int rank, int token, std::byte* row) {
            fill_row_pattern(row_seed(step), rank, token, type, row, bytes);
        };
        if (config.scale_words > 0) {
            out.scale = [step](int rank, int token, int word) {
                return 0x3f800000u +
                       static_cast<std::uint32_t>(step * 4096 + rank * 1024 + token * 16 + word);
            };
        }
        return out;
    }
};

[[noreturn]] void fail(const World& world, int rank, std::size_t step, const std::string& what) {
    throw std::runtime_error(
        fmt::format("rank {} step {}: {} [{}]", rank, step, what, describe(world.scenario)));
}

/// One rank's tensors on its device.
struct Tensors {
    DeviceBuffer<std::byte> rows;
    DeviceBuffer<std::uint32_t> scales;
    DeviceBuffer<std::byte> indices;
    DeviceBuffer<float> weights;
    DeviceBuffer<std::byte> bias;
    DeviceBuffer<std::byte> out;
    Bytes bias_host;
};

template <typename T>
DeviceBuffer<T> uploaded(const std::vector<T>& from) {
    DeviceBuffer<T> out(from.size());
    if (!from.empty()) out.upload(from);
    return out;
}

Tensors make_tensors(const World& world, int rank) {
    const MoeConfig& config = world.scenario.config;
    const RankRouting& routing = world.table.ranks[static_cast<std::size_t>(rank)];
    const auto tokens = static_cast<std::size_t>(routing.token_count);
    Tensors out;
    out.rows = DeviceBuffer<std::byte>(tokens * dispatch_row_bytes(config));
    out.scales = DeviceBuffer<std::uint32_t>(tokens * static_cast<std::size_t>(config.scale_words));
    Bytes indices;
    for (const std::int64_t expert : routing.indices) {
        const auto small = static_cast<std::int32_t>(expert);
        const bool wide = world.scenario.index_type == IndexType::int64;
        const auto* from = wide ? reinterpret_cast<const std::byte*>(&expert)
                                : reinterpret_cast<const std::byte*>(&small);
        indices.insert(indices.end(), from, from + (wide ? 8 : 4));
    }
    out.indices = uploaded(indices);
    if (world.scenario.weights) out.weights = uploaded(routing.weights);
    const std::size_t row = combine_row_bytes(config);
    out.out = DeviceBuffer<std::byte>(tokens * row);
    if (world.scenario.bias) {
        out.bias_host.resize(tokens * row);
        for (std::size_t t = 0; t < tokens; ++t) {
            fill_row_pattern(99, rank, static_cast<int>(t), config.combine_type,
                             out.bias_host.data() + t * row, row);
        }
        out.bias = uploaded(out.bias_host);
    }
    return out;
}

void upload_step(const World& world, int rank, std::size_t step, Tensors& tensors) {
    const ReferenceInputs inputs = world.inputs(step);
    Bytes rows(tensors.rows.count());
    std::vector<std::uint32_t> scales(tensors.scales.count());
    const int tokens = world.table.ranks[static_cast<std::size_t>(rank)].token_count;
    for (int token = 0; token < tokens; ++token) {
        inputs.row(rank, token, rows.data() + static_cast<std::size_t>(token) * inputs.row_bytes);
        for (std::uint32_t w = 0; w < inputs.scale_words; ++w) {
            scales[static_cast<std::size_t>(token) * inputs.scale_words + w] =
                inputs.scale(rank, token, static_cast<int>(w));
        }
    }
    if (!rows.empty()) tensors.rows.upload(rows);
    if (!scales.empty()) tensors.scales.upload(scales);
}

template <typename T>
std::vector<T> downloaded(const T* from, std::size_t count) {
    std::vector<T> out(count);
    if (count > 0) detail::device_copy(out.data(), from, count * sizeof(T), kNoRank);
    emu::Engine::get().note_host_read(from, count * sizeof(T));
    return out;
}

/// The copy has been made when this returns.
void write_device(void* to, const Bytes& from, int rank) {
    if (from.empty()) return;
    detail::device_copy(to, from.data(), from.size(), rank);
    emu::Engine::get().note_host_write(to, from.size());
}

void check_counts(const World& world, int rank, std::size_t step, const Exchange& exchange,
                  const Routing& routing) {
    const ReferenceRank& wanted = world.reference.ranks[static_cast<std::size_t>(rank)];
    const StepCountsLayout& layout = exchange.plan().step_layout;
    const auto* base = reinterpret_cast<const std::byte*>(routing.view().step);
    StepCounts counts{};
    detail::device_copy(&counts, base, sizeof(counts), rank);
    const auto ints = [&](std::uint32_t offset, std::size_t count) {
        return downloaded(reinterpret_cast<const std::int32_t*>(base + offset), count);
    };
    const auto local = static_cast<std::size_t>(wanted.local_expert_count);
    const bool good =
        counts.row_count == static_cast<std::int32_t>(wanted.rows.size()) &&
        counts.token_row_count == wanted.token_row_count &&
        counts.sent_row_count == wanted.sent_row_count &&
        ints(layout.expert_counts(), local) == wanted.expert_counts &&
        ints(layout.source_offsets(), wanted.source_offsets.size()) == wanted.source_offsets &&
        (world.scenario.config.layout == Layout::rank_major ||
         ints(layout.expert_offsets(), local + 1) == wanted.expert_offsets);
    if (!good) {
        fail(world, rank, step,
             fmt::format("counts differ: rows {} of {}, tokens {} of {}, sent {} of {}",
                         counts.row_count, wanted.rows.size(), counts.token_row_count,
                         wanted.token_row_count, counts.sent_row_count, wanted.sent_row_count));
    }
}

void check_received(const World& world, int rank, std::size_t step, const Received& received) {
    const std::size_t rows = world.reference.ranks[static_cast<std::size_t>(rank)].rows.size();
    const Bytes payload = downloaded(received.rows, rows * received.row_bytes);
    const Bytes records = downloaded(received.records, rows * received.record_bytes);
    ReceivedBytes bytes;
    bytes.rows = payload;
    bytes.records = records;
    bytes.record_bytes = received.record_bytes;
    bytes.check_padding_payload = world.scenario.config.pad_fill == PadFill::zero;
    RoutingTable table = world.table;
    if (!world.scenario.weights) {
        for (RankRouting& r : table.ranks) r.weights.clear();
    }
    const std::string difference =
        compare_received(table, world.reference, rank, world.inputs(step), bytes);
    if (!difference.empty()) fail(world, rank, step, difference);
}

void fill_answers(const World& world, int rank, std::size_t step, Exchange& exchange) {
    const std::size_t rows = world.reference.ranks[static_cast<std::size_t>(rank)].rows.size();
    const std::size_t row = combine_row_bytes(world.scenario.config);
    Bytes answers(rows * row);
    for (std::size_t i = 0; i < rows; ++i) {
        fill_row_pattern(world.answer_seed(step, rank), rank, static_cast<int>(i),
                         world.scenario.config.combine_type, answers.data() + i * row, row);
    }
    write_device(exchange.combine_input(), answers, rank);
}

void check_combined(const World& world, int rank, std::size_t step, const Exchange& exchange,
                    const Tensors& tensors) {
    const MoeConfig& config = world.scenario.config;
    const std::size_t row = combine_row_bytes(config);
    Bytes scratch(row);
    ReferenceCombine combine;
    combine.type = config.combine_type;
    combine.hidden = config.hidden;
    combine.row = [&](int from, int slot) {
        fill_row_pattern(world.answer_seed(step, from), from, slot, config.combine_type,
                         scratch.data(), row);
        return static_cast<const std::byte*>(scratch.data());
    };
    if (config.layout == Layout::expert_major && world.scenario.weights) {
        combine.weights = ReferenceCombine::Weights::applied;
    }
    combine.pre_sum_team = exchange.plan().pre_sum_team();
    if (world.scenario.bias) {
        combine.bias = [&](int token) {
            return static_cast<const std::byte*>(tensors.bias_host.data() +
                                                 static_cast<std::size_t>(token) * row);
        };
    }
    const Bytes wanted = reference_combine(world.table, world.reference, rank, combine);
    const Bytes got = downloaded(tensors.out.get(), tensors.out.count());
    if (got != wanted) {
        const auto at = static_cast<std::size_t>(
            std::mismatch(got.begin(), got.end(), wanted.begin()).first - got.begin());
        fail(world, rank, step,
             fmt::format("combined output differs at token {} byte {}", at / row, at % row));
    }
}

/// The rows of the two newest dispatches, which the next ones must leave alone until their buffer's
/// turn.
class RowWatch {
  public:
    RowWatch(const World& world, int rank) : world_(world), rank_(rank) {}

    /// Right before the dispatch of `step`: both buffers still hold what they held, and the one
    /// whose turn it is gets a pattern that is no row.
    void before(std::size_t step) {
        for (const Kept& kept : kept_) {
            if (kept.received.rows != nullptr) check(step, kept);
        }
        Kept& reused = kept_[step % 2];
        if (reused.received.rows == nullptr) return;
        overwrite(reused.received.rows, reused.rows.size());
        overwrite(reused.received.records, reused.records.size());
    }

    void after(std::size_t step, const Received& received) {
        const std::size_t rows =
            world_.reference.ranks[static_cast<std::size_t>(rank_)].rows.size();
        Kept& kept = kept_[step % 2];
        kept.received = received;
        kept.rows = downloaded(received.rows, rows * received.row_bytes);
        kept.records = downloaded(received.records, rows * received.record_bytes);
    }

  private:
    struct Kept {
        Received received;
        Bytes rows;
        Bytes records;
    };

    void check(std::size_t step, const Kept& kept) const {
        if (downloaded(kept.received.rows, kept.rows.size()) == kept.rows &&
            downloaded(kept.received.records, kept.records.size()) == kept.records) {
            return;
        }
        fail(world_, rank_, step,
             fmt::format("rows received in epoch {} changed before their buffer's turn",
                         kept.received.epoch));
    }

    void overwrite(const std::byte* at, std::size_t bytes) const {
        write_device(const_cast<std::byte*>(at), Bytes(bytes, std::byte{0xa5}), rank_);
    }

    const World& world_;
    int rank_;
    Kept kept_[2];
};

/// Puts step numbers and signal sums to just below where they wrap: 2^32 (the tags of count words)
/// and, as the emulator starts the signals, 2^64.
void start_near_wrap(const Scenario& scenario, int rank, Exchange& exchange) {
    constexpr std::uint64_t kNearWrapEpoch = (std::uint64_t{1} << 32) - 4;
    const Plan& plan = exchange.plan();
    std::byte* const base = exchange.combine_input() - plan.regions.rank_skew(rank) -
                            plan.regions.combine_rows[1 % kBufferCount];
    EpochWords epochs{};
    epochs.dispatch = epochs.combine = kNearWrapEpoch;
    detail::device_copy(base + plan.workspace.epochs, &epochs, sizeof epochs, rank);
    const std::vector<std::uint64_t> sums(static_cast<std::size_t>(plan.shape.gin_context_count) *
                                              SignalMap{scenario.sim.ranks}.signal_count(),
                                          emu::kNearWrapSignal);
    if (sums.empty()) return;
    detail::device_copy(base + plan.workspace.signal_expected, sums.data(),
                        sums.size() * sizeof(std::uint64_t), rank);
}

/// One rank's steps.
class Steps {
  public:
    Steps(const World& world, int rank, Exchange& exchange)
        : world_(world),
          rank_(rank),
          exchange_(exchange),
          stream_(Stream::create(rank)),
          tensors_(make_tensors(world, rank)),
          routing_(exchange.make_routing()),
          watch_(world, rank),
          pause_rng_(world.scenario.data_seed * 1009 + static_cast<std::uint64_t>(rank)) {
        inputs_.rows = tensors_.rows.get();
        inputs_.scales = tensors_.scales.get();
        inputs_.expert_indices = tensors_.indices.get();
        inputs_.weights = tensors_.weights.get();
        inputs_.index_type = world.scenario.index_type;
        inputs_.token_count = world.table.ranks[static_cast<std::size_t>(rank)].token_count;
    }

    void run(std::size_t step) {
        const Scenario& scenario = world_.scenario;
        upload_step(world_, rank_, step, tensors_);
        think();
        watch_.before(step);
        const CountMode counts = scenario.host_counts ? CountMode::host : CountMode::device;
        const bool fresh = scenario.steps[step] == StepKind::fresh;
        const Received received =
            fresh ? exchange_.dispatch(inputs_, &routing_, counts, stream_.get())
                  : exchange_.dispatch_cached(inputs_, &routing_, stream_.get());
        if (consumes()) consume(received);
        synchronize("dispatch");
        if (consumes()) check_consumed(step, received);
        check_counts(world_, rank_, step, exchange_, routing_);
        check_received(world_, rank_, step, received);
        watch_.after(step, received);
        for (int i = 0; i < scenario.combines; ++i)
            combine(step * kCombinesMax + static_cast<std::size_t>(i));
    }

  private:
    static constexpr std::size_t kCombinesMax = 8;

    /// `round` numbers the combines; each has its own answers.
    void combine(std::size_t round) {
        const Scenario& scenario = world_.scenario;
        think();
        fill_answers(world_, rank_, round, exchange_);
        CombineInputs combine;
        combine.out = tensors_.out.get();
        combine.bias = scenario.bias ? tensors_.bias.get() : nullptr;
        if (scenario.config.layout == Layout::expert_major)
            combine.weights = tensors_.weights.get();
        exchange_.combine(combine, routing_, stream_.get());
        synchronize("combine");
        check_combined(world_, rank_, round, exchange_, tensors_);
    }

    bool consumes() const {
        // What is broken may leave the consumer waiting when its tensors go.
        return world_.scenario.consume && world_.scenario.expectation == Expectation::success;
    }

    void consume(const Received& received) {
        const auto capacity = static_cast<std::size_t>(received.row_capacity);
        if (consumed_rows_.count() == 0) {
            consumer_ = Stream::create(rank_);
            consumed_rows_ = DeviceBuffer<std::byte>(capacity * received.row_bytes);
            consumed_records_ = DeviceBuffer<std::byte>(capacity * received.record_bytes);
        }
        const ConsumerArgs args{received.ready,       received.rows,           received.records,
                                consumed_rows_.get(), consumed_records_.get(), received.row_bytes,
                                received.record_bytes};
        if (launch_stream_consumer(args, consumer_.get()) != cudaSuccess)
            fail(world_, rank_, 0, "the consumer kernel did not start");
    }

    void check_consumed(std::size_t step, const Received& received) {
        exchange_.synchronize(consumer_.get());
        const std::size_t rows =
            world_.reference.ranks[static_cast<std::size_t>(rank_)].rows.size();
        const auto same = [](const DeviceBuffer<std::byte>& copy, const std::byte* from,
                             std::size_t bytes) {
            return downloaded(static_cast<const std::byte*>(copy.get()), bytes) ==
                   downloaded(from, bytes);
        };
        if (same(consumed_rows_, received.rows, rows * received.row_bytes) &&
            same(consumed_records_, received.records, rows * received.record_bytes)) {
            return;
        }
        fail(world_, rank_, step, "a block of rows was ready before it was complete");
    }

    /// A kernel ends by its own deadline, however bad things are. The bound leaves room for several
    /// waits after each other and for the clock's leaps.
    void synchronize(const char* what) {
        const emu::Engine& engine = emu::Engine::get();
        const std::uint64_t from_ns = engine.now_ns();
        std::exception_ptr failure;
        if (world_.scenario.events) (void)exchange_.health();
        try {
            exchange_.synchronize(stream_.get());
        } catch (...) {
            failure = std::current_exception();
        }
        const std::uint64_t took_ns = engine.now_ns() - from_ns;
        const std::uint64_t deadline_ns = exchange_.plan().deadline_ns;
        if (deadline_ns > 0 && took_ns > kDeadlinesMax * deadline_ns) {
            throw std::runtime_error(
                fmt::format("rank {}: {} took {} ns, the deadline of a wait is {} ns [{}]", rank_,
                            what, took_ns, deadline_ns, describe(world_.scenario)));
        }
        if (failure != nullptr) std::rethrow_exception(failure);
    }

    void think() {
        const std::uint64_t longest_ns = world_.scenario.think_ns;
        if (longest_ns == 0 || pause_rng_.below(2) == 0) return;
        emu::Engine::get().sleep_ns(pause_rng_.below(longest_ns), "host program at work");
    }

    static constexpr std::uint64_t kDeadlinesMax = 16;

    const World& world_;
    int rank_;
    Exchange& exchange_;
    Stream stream_;
    Tensors tensors_;
    Routing routing_;
    Stream consumer_;
    DeviceBuffer<std::byte> consumed_rows_;
    DeviceBuffer<std::byte> consumed_records_;
    DispatchInputs inputs_;
    RowWatch watch_;
    emu::Rng pause_rng_;
};

/// A kernel ends when all that is meant for its rank is there. Rings are another matter: nobody
/// waits for the last credits of a step.
void expect_nothing_on_its_way(const World& world, int rank) {
    emu::host_barrier();
    if (world.scenario.config.sync == Sync::fifo) return;
    const std::string late = emu::gin_on_its_way();
    if (!late.empty())
        fail(world, rank, world.scenario.steps.size() - 1, "the step has ended before it: " + late);
}

/// Errors that a rank may give up with when a peer or the network is broken.
bool is_clean(const Error& error) {
    switch (error.code()) {
        case ErrorCode::timeout:
        case ErrorCode::peer_failed:
        case ErrorCode::nccl: return true;
        default: return false;
    }
}

void run_rank(const World& world, int rank) {
    const Scenario& scenario = world.scenario;
    const bool near_wrap = scenario.sim.faults.near_wrap_counters;
    const bool fifo = scenario.config.sync == Sync::fifo;
    RuntimeConfig runtime_config;
    if (scenario.events) runtime_config.event_ring = RuntimeConfig::EventRing::on;
    // The positions of rings start at the number of the first step.
    if (near_wrap && fifo) runtime_config.first_step = (std::uint64_t{1} << 32) - 4;
    auto runtime = Runtime::create(make_sim_bootstrap(rank), runtime_config);
    auto exchange = Exchange::create(*runtime, scenario.config);
    if (near_wrap && !fifo) start_near_wrap(scenario, rank, *exchange);
    auto steps = std::make_unique<Steps>(world, rank, *exchange);
    emu::arm_faults();
    bool failed = false;
    for (std::size_t step = 0; step < scenario.steps.size() && !failed; ++step) {
        try {
            steps->run(step);
        } catch (const Error& error) {
            if (scenario.expectation == Expectation::success || !is_clean(error)) throw;
            failed = true;
        }
    }
    steps.reset();
    if (scenario.expectation == Expectation::clean_failure) {
        // Closing is collective, and somebody may be gone; but nobody frees what others still use.
        world.finished.fetch_add(1);
        emu::Engine& engine = emu::Engine::get();
        engine.wait("end of the other ranks' steps", [&world, &engine] {
            const int gone = engine.stopped_rank() >= 0 ? 1 : 0;
            return world.finished.load() >= world.scenario.sim.ranks - gone;
        });
        exchange->abort();
        runtime->abort();
        return;
    }
    expect_nothing_on_its_way(world, rank);
    exchange->close();
    runtime->close();
}

}  // namespace

GeneratorOptions routing_options(const Scenario& scenario) {
    GeneratorOptions options = scenario.routing;
    options.rank_count = scenario.sim.ranks;
    options.token_count = scenario.config.max_tokens;
    options.expert_count = scenario.config.expert_count;
    options.topk = scenario.config.topk;
    return options;
}

Scenario small_scenario(int ranks, int team, emu::GinMode gin, std::uint64_t seed) {
    Scenario out;
    out.sim.ranks = ranks;
    out.sim.lsa_team_size = team;
    out.sim.gin = gin;
    out.sim.seed = seed;
    out.sim.sm_count = 2;
    out.routing.seed = seed;
    out.config.mode = ExchangeMode::direct;
    out.config.expert_count = 7;
    out.config.topk = 3;
    out.config.hidden = 64;
    out.config.max_tokens = 12;
    out.config.sm_budget = 2;
    out.config.dispatch_threads = 64;
    out.config.combine_threads = seed % 2 == 0 ? 64 : 128;  // one ring, two rings
    out.config.chunk_rows = 3;
    out.config.gin_context_count = team == 0 || team == ranks ? 0 : 3;
    out.data_seed = seed + 1;
    return out;
}

emu::SimReport run_scenario(const Scenario& scenario) {
    const World world(scenario);
    retire_leftovers();
    return emu::simulate(scenario.sim, [&](int rank) { run_rank(world, rank); });
}

std::string describe(const Scenario& s) {
    const char* gin = s.sim.gin == emu::GinMode::off     ? "off"
                      : s.sim.gin == emu::GinMode::gdaki ? "gdaki"
                                                         : "proxy";
    return fmt::format(
        "{} {} slots {} ranks {} team {} gin {} seed {} {} {}/{} T {} H {} K {} E {} routing {} "
        "seed "
        "{} steps {}",
        name_of(s.config.mode), name_of(s.config.sync), s.config.chunks.nvl_recv, s.sim.ranks,
        s.sim.lsa_team_size, gin, s.sim.seed, name_of(s.config.layout),
        name_of(s.config.dispatch_type), name_of(s.config.combine_type), s.config.max_tokens,
        s.config.hidden, s.config.topk, s.config.expert_count, name_of(s.routing.kind),
        s.routing.seed, s.steps.size());
}

}  // namespace gimlet::sim

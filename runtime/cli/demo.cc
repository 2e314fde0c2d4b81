// SPDX-License-Identifier: Apache-2.0
// `gimlet demo`: dispatch and combine with made-up or recorded routing, checked to the byte.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "host/base/progress.hpp"
#include "host/cuda/stream.hpp"
#include "runtime/cli/commands.hpp"
#include "runtime/cli/demo_report.hpp"
#include "runtime/cli/session.hpp"
#include "runtime/generators.hpp"
#include "runtime/npy.hpp"
#include "runtime/rehearsal.hpp"
#include "runtime/runtime.hpp"

namespace gimlet::cli {
namespace {

struct DemoOptions {
    int ranks = 8;
    std::string routing_path;
    std::string generator = "uniform";
    GeneratorOptions generate;
    bool uneven = false;
    bool plan = false;
    bool json = false;
    int steps = 2;
    double deadline_s = 0;
    std::string type = "bf16";
    std::string combine_type = "bf16";
    std::string layout = "rank-major";
    std::string counts = "host";
    std::string mode = "direct";
    std::string sync = "barrier";
    bool no_pre_sum = false;
    MoeConfig config;
};

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
}

ElementType element_type(const std::string& name) {
    if (name == "fp32") return ElementType::float32;
    if (name == "fp16") return ElementType::float16;
    if (name == "fp8") return ElementType::float8_e4m3;
    return ElementType::bfloat16;
}

RoutingTable generate(const DemoOptions& options, int ranks, std::int32_t* expert_count) {
    if (*expert_count == 0) *expert_count = 4 * ranks;
    GeneratorOptions generate = options.generate;
    parse_routing_kind(options.generator, &generate.kind);
    generate.rank_count = ranks;
    generate.expert_count = *expert_count;
    generate.spread = options.uneven ? TokenSpread::random : TokenSpread::equal;
    generate.group_count = std::min(generate.group_count, generate.expert_count);
    generate.selected_group_count = std::min(generate.selected_group_count, generate.group_count);
    return generate_routing(generate);
}

/// A recording has no weights, and does not say how many experts there are.
RoutingTable replay(const std::string& path, int ranks, std::int32_t* expert_count) {
    RoutingTable table = read_routing(path, ranks);
    if (*expert_count == 0) {
        std::int64_t highest = 0;
        for (const auto& rank : table.ranks) {
            for (const auto expert : rank.indices) highest = std::max(highest, expert);
        }
        *expert_count = static_cast<std::int32_t>(std::min<std::int64_t>(highest + 1, kMaxExperts));
        *expert_count = std::max(*expert_count, table.topk);
    }
    const auto faults = routing_faults(table, *expert_count);
    if (!faults.empty()) {
        raise(ErrorCode::invalid_argument, kNoRank, "{}: {}", path, fmt::join(faults, "; "));
    }
    for (auto& rank : table.ranks) {
        rank.weights.assign(rank.indices.size(), 1.0f / static_cast<float>(table.topk));
    }
    return table;
}

MoeConfig make_config(const DemoOptions& options, const RoutingTable& table,
                      std::int32_t expert_count) {
    MoeConfig config = options.config;
    config.expert_count = expert_count;
    config.topk = table.topk;
    config.max_tokens = std::max(table.max_token_count(), 1);
    config.dispatch_type = element_type(options.type);
    config.combine_type = element_type(options.combine_type);
    if (options.type == "fp8") config.scale_words = fp8_float_scale_words(config.hidden);
    config.layout = options.layout == "expert-major" ? Layout::expert_major : Layout::rank_major;
    parse_exchange_mode(options.mode, &config.mode);
    parse_sync(options.sync, &config.sync);
    config.pre_sum = options.no_pre_sum ? PreSum::off : PreSum::on;
    if (options.deadline_s > 0)
        config.deadline_ns = static_cast<std::uint64_t>(options.deadline_s * 1e9);
    return config;
}

/// The steps of one rank, timed and checked.
class Run {
  public:
    Run(const DemoOptions& options, Runtime* runtime, Exchange* exchange, const RoutingTable& table)
        : options_(options),
          runtime_(*runtime),
          exchange_(*exchange),
          rehearsal_(*exchange, table),
          stream_(Stream::create(runtime->rank())) {}

    std::string go(RankReport* report) {
        report->steps = options_.steps;
        std::string fault;
        Progress progress("demo", static_cast<std::uint64_t>(options_.steps), {}, printer());
        for (int step = 0; step < options_.steps; ++step) {
            const auto step_fault = go_once(step, report);
            if (step_fault.empty()) ++report->steps_right;
            if (fault.empty()) fault = step_fault;
            progress.update(static_cast<std::uint64_t>(step) + 1);
        }
        const StepTraffic traffic = exchange_.traffic(rehearsal_.routing());
        const std::int64_t steps = options_.steps;
        report->rows_sent = traffic.rows_sent * steps;
        report->gin_rows_sent = traffic.gin_rows_sent * steps;
        report->rows_received = traffic.rows_received * steps;
        report->bytes_sent = (traffic.dispatch_bytes_sent + traffic.combine_bytes_sent) * steps;
        report->gin_bytes = (traffic.dispatch_gin_bytes + traffic.combine_gin_bytes) * steps;
        report->lsa_bytes = (traffic.dispatch_lsa_bytes + traffic.combine_lsa_bytes) * steps;
        report->puts = (traffic.dispatch_puts + traffic.combine_puts) * steps;
        report->doorbells = (traffic.dispatch_doorbells + traffic.combine_doorbells) * steps;
        report->rendezvous = traffic.rendezvous * steps;
        report->barriers = static_cast<std::int64_t>(runtime_.barrier_count());
        return fault;
    }

  private:
    Progress::Print printer() const {
        if (runtime_.rank() == 0) return {};
        return [](const std::string&) {};
    }

    /// All ranks start together, so that times are of the work and not of the wait.
    std::uint64_t start() {
        runtime_.barrier(stream_.get());
        runtime_.synchronize(stream_.get());
        return now_ns();
    }

    static void keep_fastest(std::uint64_t from_ns, std::int64_t* fastest_ns) {
        const auto ns = static_cast<std::int64_t>(now_ns() - from_ns);
        if (*fastest_ns == 0 || ns < *fastest_ns) *fastest_ns = ns;
    }

    std::string go_once(int step, RankReport* report) {
        const CountMode mode = options_.counts == "host" ? CountMode::host : CountMode::device;
        rehearsal_.refill(options_.generate.seed + static_cast<std::uint64_t>(step));
        auto begin = start();
        rehearsal_.dispatch(mode, stream_.get());
        exchange_.synchronize(stream_.get());
        keep_fastest(begin, &report->dispatch_ns);
        std::string fault = rehearsal_.check_dispatch(stream_.get());
        rehearsal_.answer(stream_.get());
        begin = start();
        rehearsal_.combine(stream_.get());
        exchange_.synchronize(stream_.get());
        keep_fastest(begin, &report->combine_ns);
        const std::string combine_fault = rehearsal_.check_combine(stream_.get());
        return fault.empty() ? combine_fault : fault;
    }

    const DemoOptions& options_;
    Runtime& runtime_;
    Exchange& exchange_;
    Rehearsal rehearsal_;
    Stream stream_;
};

std::vector<std::int64_t> tokens_per_expert(const RoutingTable& table, std::int32_t expert_count) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(expert_count));
    for (const auto& rank : table.ranks) {
        for (const auto expert : rank.indices) {
            if (expert >= 0) ++rows[static_cast<std::size_t>(expert)];
        }
    }
    return rows;
}

/// Everything that the steps need. Its creation fails on all ranks or on none.
struct DemoWorld {
    RoutingTable table;
    std::int32_t expert_count = 0;
    std::unique_ptr<Runtime> runtime;
    std::unique_ptr<Exchange> exchange;

    DemoWorld(const DemoOptions& options, const std::shared_ptr<Bootstrap>& bootstrap)
        : expert_count(options.config.expert_count) {
        std::exception_ptr failure;
        try {
            table = options.routing_path.empty()
                        ? generate(options, bootstrap->size(), &expert_count)
                        : replay(options.routing_path, bootstrap->size(), &expert_count);
        } catch (...) {
            failure = std::current_exception();
        }
        check_all_succeeded(*bootstrap, "the routing", failure);
        const MoeConfig config = make_config(options, table, expert_count);
        require_valid(config, bootstrap->rank());
        runtime = Runtime::create(bootstrap);
        try {
            exchange = runtime->create_exchange(config);
        } catch (const Error&) {
            runtime->close();
            throw;
        }
    }
};

DemoReport run(const DemoOptions& options, Bootstrap* bootstrap, DemoWorld* world) {
    RankReport mine;
    mine.rank = bootstrap->rank();
    mine.lsa_team = world->runtime->topology().lsa_team_index;
    mine.tokens = world->table.ranks[static_cast<std::size_t>(mine.rank)].token_count;
    const std::string fault =
        Run(options, world->runtime.get(), world->exchange.get(), world->table).go(&mine);
    DemoReport report;
    report.source = options.routing_path.empty() ? options.generator : options.routing_path;
    report.seed = options.generate.seed;
    report.ranks = bootstrap->all_gather_values(mine);
    report.faults = bootstrap->all_gather_texts(fault);
    report.expert_rows = tokens_per_expert(world->table, world->expert_count);
    return report;
}

int demo(const DemoOptions& options, std::shared_ptr<Bootstrap> bootstrap) {
    const auto begin = now_ns();
    std::unique_ptr<DemoWorld> world;
    try {
        world = std::make_unique<DemoWorld>(options, bootstrap);
    } catch (const Error& error) {
        // All ranks are here; one of them speaks.
        if (bootstrap->rank() == 0) std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
        return 2;
    }
    const Plan& plan = world->exchange->plan();
    const bool speaks = bootstrap->rank() == 0;
    if (options.plan && speaks && !options.json) std::fputs(plan.text().c_str(), stdout);
    DemoReport report = run(options, bootstrap.get(), world.get());
    report.wall_ns = now_ns() - begin;
    if (speaks) {
        std::fputs((options.json ? report.json(plan) : report.text(plan)).c_str(), stdout);
        std::fflush(stdout);
    }
    world->exchange->close();
    world->runtime->close();
    return report.all_right() ? 0 : 1;
}

void add_routing_options(CLI::App* command, DemoOptions* options) {
    command->add_option("--routing", options->routing_path,
                        "Recorded routing, .npy of int32 or int64, -1 = masked: [ranks, T, K]; or "
                        "[T, K], dealt to the "
                        "ranks; or a file a rank, with {rank} in the name");
    command->add_option("--generator", options->generator, "Made-up routing")
        ->check(CLI::IsMember({"uniform", "log-normal", "hot", "grouped"}))
        ->capture_default_str();
    command->add_option("--seed", options->generate.seed, "Of routing and payload")
        ->capture_default_str();
    command->add_option("--tokens", options->generate.token_count, "Tokens a rank")
        ->capture_default_str();
    command->add_option("--topk", options->generate.topk, "Experts a token, 1..32")
        ->capture_default_str();
    command->add_option("--experts", options->config.expert_count,
                        "Experts of all ranks; default 4 a rank, or what "
                        "the recording names");
    command->add_option("--skew", options->generate.skew, "log-normal: standard deviation")
        ->capture_default_str();
    command
        ->add_option("--hot-fraction", options->generate.hot_fraction,
                     "hot: share of tokens that name expert 0")
        ->capture_default_str();
    command->add_option("--groups", options->generate.group_count, "grouped: expert groups")
        ->capture_default_str();
    command
        ->add_option("--selected-groups", options->generate.selected_group_count,
                     "grouped: groups a token may use")
        ->capture_default_str();
    command->add_option("--masked-rows", options->generate.masked_row_fraction,
                        "Share of tokens without any expert");
    command->add_option("--masked-choices", options->generate.masked_choice_fraction,
                        "Share of choices that are -1");
    command->add_option("--empty-ranks", options->generate.empty_ranks, "Ranks without tokens")
        ->delimiter(',');
    command->add_flag("--uneven", options->uneven,
                      "Another number of tokens on each rank, 0..tokens");
}

void add_shape_options(CLI::App* command, DemoOptions* options) {
    options->config.hidden = 512;
    command
        ->add_option("--ranks", options->ranks,
                     "Ranks as threads of this process, when not under mpirun")
        ->check(CLI::Range(1, kMaxRanks))
        ->capture_default_str();
    command->add_option("--hidden", options->config.hidden, "Elements of a token")
        ->capture_default_str();
    command
        ->add_option("--type", options->type,
                     "Element type of dispatch; fp8 carries a scale per 128 elements")
        ->check(CLI::IsMember({"fp32", "fp16", "bf16", "fp8"}))
        ->capture_default_str();
    command->add_option("--combine-type", options->combine_type, "Element type of combine")
        ->check(CLI::IsMember({"fp32", "fp16", "bf16"}))
        ->capture_default_str();
    command
        ->add_option("--layout", options->layout,
                     "Order of received rows: by source rank, or by expert")
        ->check(CLI::IsMember({"rank-major", "expert-major"}))
        ->capture_default_str();
    command
        ->add_option("--alignment", options->config.expert_alignment,
                     "expert-major: expert blocks start at multiples")
        ->capture_default_str();
    command
        ->add_option("--counts", options->counts,
                     "Whether dispatch waits on the host for the counts")
        ->check(CLI::IsMember({"host", "device"}))
        ->capture_default_str();
    command->add_option("--steps", options->steps, "Dispatch and combine this often")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    command->add_option("--sms", options->config.sm_budget, "SMs for the kernels; 0 = default");
    command->add_option("--gin-contexts", options->config.gin_context_count,
                        "Queue pairs a peer; 0 = default");
    command->add_option("--chunk-rows", options->config.chunk_rows,
                        "Rows of one GIN put; 0 = default");
    command
        ->add_option("--mode", options->mode,
                     "How rows reach other LSA teams: direct, each to its ranks; hybrid, once a "
                     "team over the rail; automatic says what it chose")
        ->check(CLI::IsMember({"direct", "hybrid", "automatic"}))
        ->capture_default_str();
    command
        ->add_option(
            "--sync", options->sync,
            "How ranks wait for each other: barrier, with buffers for all rows; fifo, rows "
            "stream through rings of few")
        ->check(CLI::IsMember({"barrier", "fifo"}))
        ->capture_default_str();
    command->add_option("--ring-rows", options->config.chunks.nvl_recv,
                        "fifo: rows that a ring holds; 0 = default");
    command->add_option("--send-rows", options->config.chunks.nvl_send,
                        "fifo: rows between two moves of a ring's tail; 0 = default");
    command->add_option("--rail-ring-rows", options->config.chunks.rdma_recv,
                        "fifo: rows that a ring between LSA teams holds; 0 = default");
    command->add_option("--rail-send-rows", options->config.chunks.rdma_send,
                        "fifo: rows between two moves of its tail; 0 = default");
    command->add_option("--publish-rows", options->config.publish_rows,
                        "hybrid: rows between two moves of a rail stream's tail; 0 = default");
    command->add_flag("--no-pre-sum", options->no_pre_sum,
                      "hybrid: every row comes home by itself; sums are those of direct");
    command->add_option("--deadline", options->deadline_s,
                        "Longest wait of a kernel, in seconds; 0 = "
                        "GIMLET_TIMEOUT_MS");
    command->add_flag("--plan", options->plan, "Print the plan first");
    command->add_flag("--json", options->json, "One JSON object instead of the table");
}

}  // namespace

void add_demo(CLI::App* app, const Arguments& arguments, Action* action) {
    const auto options = std::make_shared<DemoOptions>();
    CLI::App* command = app->add_subcommand("demo",
                                            "Dispatch tokens to experts and combine them again, "
                                            "and check every byte against a reference");
    add_routing_options(command, options.get());
    add_shape_options(command, options.get());
    command->footer(
        "What the table says: each rank sent its tokens' rows to the ranks of their experts (`via "
        "GIN`: outside its\n"
        "team, by puts), received others, answered, and got its tokens back. `puts`, `rings` and "
        "`waits` are the messages,\n"
        "doorbells and rendezvous that this took. `check` compares rows, records and sums with a "
        "plain reference.\n\n"
        "Examples:\n"
        "  gimlet demo                                             8 ranks as threads\n"
        "  NCCL_LSA_TEAM_SIZE=4 mpirun -n 8 gimlet demo            two teams, GIN between them\n"
        "  gimlet demo --generator grouped --experts 256 --topk 8  routing as DeepSeek-V3's gate "
        "makes it\n"
        "  gimlet demo --routing trace.npy --layout expert-major   a recorded routing\n"
        "Exit code: 0 all ranks match, 1 a difference was found, 2 could not run.");
    command->callback([options, arguments, action] {
        *action = [options, arguments] {
            return run_ranks(
                {options->ranks}, arguments.argc, arguments.argv,
                [options](auto bootstrap) { return demo(*options, std::move(bootstrap)); });
        };
    });
}

}  // namespace gimlet::cli

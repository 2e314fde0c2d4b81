// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "device/kernels/launch.hpp"
#include "host/base/checked_math.hpp"
#include "host/base/hash.hpp"
#include "host/base/text.hpp"

namespace gimlet {
namespace {

constexpr std::int32_t kDefaultSmBudget = 32;
/// Whole devices of at most so many multiprocessors get small blocks: they are emulated, and every
/// thread costs time. The smallest slice of a GPU has more.
constexpr std::int32_t kSmallDeviceSms = 8;
constexpr std::int32_t kDefaultGinContexts = 4;
constexpr std::int64_t kDefaultChunkBytes = 128 << 10;
constexpr std::int32_t kDefaultChunkRows = 64;
/// A copy warp needs some 300 ns a row, whatever its size; rows of 4 KiB reach 1.35 times the floor
/// with three of them on an H200, and 1.22 with four; rows of 2 KiB 1.66 and, with eight, 1.34.
constexpr std::int32_t kCopyWarps = 3;
constexpr std::int32_t kCopyWarpsOfMiddleRows = 4;
constexpr std::int32_t kCopyWarpsOfShortRows = 8;
constexpr std::uint32_t kLongRowBytes = 6 << 10;
constexpr std::uint32_t kShortRowBytes = 3 << 10;
constexpr std::int32_t kPublishRows = 6;
/// Of one put where a CPU carries puts: each costs it about 3 us, whatever its size. Less is no
/// gain, not even to have two in a channel; more is one if a channel has two of them.
constexpr std::int64_t kProxyPutBytes = 512 << 10;
constexpr std::int64_t kProxyLongPutBytes = 1 << 20;
/// Puts of one step in one queue of NCCL's proxy, which holds 256 with the RMA plugin. Kernels that
/// find it full poll the CPU's memory, and each further put takes some 20 us.
constexpr std::int64_t kProxyQueuePuts = 160;
constexpr std::int32_t kSlotsPerWarp = 6;
constexpr std::int32_t kReceiveWarps = 4;
constexpr std::int32_t kReadyRows = 64;
/// With fewer, senders wait for freed slots more than for memory: 1,290 us with 10, 910 with 32, of
/// a dispatch of 4 ranks on an H200.
constexpr std::int64_t kLeastStreamSlots = 32;
/// Of a rail ring: 64 channels of 16 rows of 14 KiB are 14 MB on the way to one team.
constexpr std::int64_t kRailSlots = 16;
/// Row slots of a dispatch block together, unless two a warp need more. An H200 moves rows fastest
/// with 57 to 86 KiB in flight a multiprocessor: with 100 and more, loads and stores hinder each
/// other (16 of 33 multiprocessors a rank: 1.43 instead of 1.26 times the floor).
constexpr std::uint32_t kCopyRingBytes = 72 << 10;
constexpr std::int32_t kLeastSlotsPerWarp = 2;
constexpr std::uint64_t kTranslationPageBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kPagedWindowBytes = std::uint64_t{64} << 20;
constexpr std::int32_t kMostCombineSlots = 32;
/// Small enough that the ring stays deep, large enough that a bulk copy is worth its start.
constexpr std::uint32_t kMaxCombinePieceBytes = 16384;

std::int64_t mul(std::int64_t a, std::int64_t b, const char* what) {
    return checked_mul(a, b, what);
}

/// Builds one plan step by step and collects what is wrong on the way.
class Planner {
  public:
    /// With `words`, the control words are laid out for them and not only for this plan.
    Planner(const MoeConfig& config, const PlanInputs& inputs,
            const WorkspaceShape* words = nullptr)
        : inputs_(inputs), words_(words) {
        plan_.config = config;
        share_ = smallest_sm_share(inputs.topology, inputs.device);
        small_ = inputs.device.sm_count <= kSmallDeviceSms;
    }

    Plan build() {
        if (!try_build()) raise_faults();
        return std::move(plan_);
    }

    /// False: faults() says why.
    bool try_build() {
        for (auto& fault : validate(plan_.config)) faults_.push_back(std::move(fault));
        if (!faults_.empty()) return false;
        place_ranks();
        choose_mode();
        choose_gin();
        choose_shapes();
        choose_rail();
        choose_stream();
        size_rows();
        if (!faults_.empty()) return false;
        size_stream();
        if (!faults_.empty()) return false;
        size_workspace();
        size_regions();
        fit_dispatch();
        fit_combine();
        return faults_.empty();
    }

    const std::vector<ConfigFault>& faults() const { return faults_; }
    const Plan& plan() const { return plan_; }

  private:
    const MoeConfig& config() const { return plan_.config; }
    bool rank_major() const { return config().layout == Layout::rank_major; }

    template <typename... Args>
    void fault(const char* field, fmt::format_string<Args...> format, Args&&... args) {
        faults_.push_back({field, fmt::format(format, std::forward<Args>(args)...)});
    }

    [[noreturn]] void raise_faults() {
        std::vector<std::string> lines;
        for (const auto& fault : faults_) lines.push_back(fault.text);
        raise(gin_missing_ && faults_.size() == 1 ? ErrorCode::gin_unavailable
                                                  : ErrorCode::invalid_argument,
              inputs_.topology.rank, "MoE config has {} fault{}: {}", lines.size(),
              lines.size() == 1 ? "" : "s", fmt::join(lines, "; "));
    }

    void place_ranks() {
        const Topology& topology = inputs_.topology;
        plan_.rank = topology.rank;
        plan_.rank_count = topology.size;
        plan_.lsa_rank = topology.lsa_rank;
        plan_.lsa_size = topology.lsa_size;
        plan_.gin_peer_count = topology.size - topology.lsa_size;
        plan_.experts = ExpertMap{config().expert_count, topology.size};
        plan_.deadline_ns = config().deadline_ns.value_or(inputs_.default_deadline_ns);
        if (topology.size > kMaxRanks) {
            fault("rank_count",
                  "rank_count is {}; the limit is {}: counts are exchanged by all with all",
                  topology.size, kMaxRanks);
        }
    }

    bool streams() const { return config().sync == Sync::fifo; }
    bool hybrid() const { return plan_.mode == ExchangeMode::hybrid; }

    void choose_mode() {
        const Topology& topology = inputs_.topology;
        const ExchangeMode wish = config().mode;
        const std::int32_t teams = topology.lsa_team_count;
        const auto decide = [this](ExchangeMode mode, std::string reason) {
            plan_.mode = mode;
            plan_.mode_reason = std::move(reason);
        };
        if (streams() && teams > 1)
            return decide(ExchangeMode::hybrid, "sync fifo reaches other LSA teams over the rails");
        if (wish == ExchangeMode::direct) return decide(wish, "asked for");
        if (teams == 1) return decide(ExchangeMode::direct, "one LSA team holds all ranks");
        if (topology.lsa_size == 1)
            return decide(ExchangeMode::direct,
                          "LSA teams of one rank have nobody to hand rows to");
        if (wish == ExchangeMode::hybrid) return decide(wish, "asked for");
        if (teams * topology.lsa_size != topology.size)
            return decide(ExchangeMode::direct, "LSA teams differ in size");
        if (topology.railed_gin_type == GinType::none)
            return decide(ExchangeMode::direct, "no GIN connection between the teams' rails");
        decide(ExchangeMode::hybrid,
               fmt::format("{} LSA teams of {}: a row crosses to a team once, not once a rank",
                           teams, topology.lsa_size));
    }

    void choose_gin() {
        if (plan_.gin_peer_count == 0) return;
        const Topology& topology = inputs_.topology;
        plan_.gin_connection = hybrid() ? GinConnection::rail : GinConnection::full;
        // Rows need rails only, but a failure is to be heard of, and read, by all ranks.
        if (streams() && topology.gin_type != GinType::none)
            plan_.gin_connection = GinConnection::full;
        if ((hybrid() ? topology.railed_gin_type : topology.gin_type) == GinType::none) {
            gin_missing_ = true;
            fault("gin",
                  "{} of {} ranks are outside this rank's LSA team of {} and need GIN, but NCCL "
                  "offers none that reaches {}; `gimlet doctor` says why",
                  plan_.gin_peer_count, plan_.rank_count, plan_.lsa_size,
                  hybrid()                                    ? "the ranks of one LSA index"
                  : topology.railed_gin_type == GinType::none ? "all ranks"
                                                              : "all ranks (mode hybrid "
                                                                "needs rails only)");
            return;
        }
        std::int32_t contexts =
            config().gin_context_count > 0 ? config().gin_context_count : kDefaultGinContexts;
        if (inputs_.actual_gin_context_count > 0)
            contexts = std::min(contexts, inputs_.actual_gin_context_count);
        plan_.kernels.gin_context_count = contexts;
    }

    void choose_shapes() {
        plan_.sm_budget =
            config().sm_budget > 0 || !streams() ? config().sm_budget : config().chunks.num_sms;
        if (plan_.sm_budget == 0)
            plan_.sm_budget = std::min(small_ ? 2 : kDefaultSmBudget, share_.sm_count);
        if (plan_.sm_budget > share_.sm_count) {
            fault("sm_budget",
                  "sm_budget is {}, but {} rank{} share a GPU and each can have {} SMs resident{}; "
                  "lower it",
                  plan_.sm_budget, share_.ranks_on_gpu, share_.ranks_on_gpu == 1 ? "" : "s",
                  share_.sm_count, share_.copier_text());
        }
        const auto choose = [this](std::int32_t wish, std::int32_t large, std::int32_t small) {
            return wish > 0 ? wish : small_ ? small : large;
        };
        KernelShape& dispatch = plan_.kernels.dispatch;
        dispatch.block_count = plan_.sm_budget;
        dispatch.thread_count = choose(config().dispatch_threads, 512, 96);
        KernelShape& combine = plan_.kernels.combine;
        combine.block_count = plan_.sm_budget * choose(config().combine_blocks_per_sm, 1, 1);
        combine.thread_count = choose(config().combine_threads, 576, 128);
        KernelShape& barrier = plan_.kernels.barrier;
        barrier.block_count = 1;
        barrier.thread_count = static_cast<std::int32_t>(
            align_up(std::clamp<std::int64_t>(plan_.rank_count, kWarpSize, small_ ? 64 : 512),
                     std::int64_t{kWarpSize}, "barrier threads"));
        const std::int32_t limit = inputs_.device.max_threads_per_block;
        for (const auto& [field, threads] : {std::pair{"dispatch_threads", dispatch.thread_count},
                                             std::pair{"combine_threads", combine.thread_count}}) {
            if (limit > 0 && threads > limit) {
                fault(field, "{} is {}; this device allows {} a block", field, threads, limit);
            }
        }
    }

    /// Copy warps of a dispatch block; the rail has as many forward warps, if there are enough.
    std::int32_t copy_warps() const {
        const auto row_bytes = static_cast<std::uint32_t>(dispatch_row_bytes(config()));
        const std::int32_t wish = hybrid() || row_bytes >= kLongRowBytes ? kCopyWarps
                                  : row_bytes >= kShortRowBytes          ? kCopyWarpsOfMiddleRows
                                                                         : kCopyWarpsOfShortRows;
        return std::min(wish, plan_.kernels.dispatch.thread_count / kWarpSize / 2);
    }

    void choose_rail() {
        if (!hybrid()) return;
        const Topology& topology = inputs_.topology;
        if (streams() && topology.lsa_team_count * topology.lsa_size != topology.size) {
            fault("sync",
                  "sync is fifo, but {} ranks do not make {} LSA teams of {}: rings between teams "
                  "need teams of equal size; use sync barrier",
                  topology.size, topology.lsa_team_count, topology.lsa_size);
            return;
        }
        if (topology.lsa_team_count * topology.lsa_size != topology.size) {
            fault(
                "mode",
                "mode is hybrid, but {} ranks do not make {} LSA teams of {}: rails need teams of "
                "equal size; use mode direct",
                topology.size, topology.lsa_team_count, topology.lsa_size);
            return;
        }
        const std::int32_t warps = streams() ? stream_channels() : copy_warps();
        if (warps < 1) return;  // fit_dispatch says it
        RailShape& rail = plan_.rail;
        rail.team_count = topology.lsa_team_count;
        rail.team_index = topology.lsa_team_index;
        rail.channel_count = plan_.kernels.dispatch.block_count * warps;
        rail.channel_rows = rail.channel_tokens(config().max_tokens);
        rail.publish_rows =
            config().publish_rows > 0 ? config().publish_rows : default_publish_rows(rail);
        // Weights do not travel through rings: home applies them.
        rail.pre_sum = streams() && !rank_major() ? PreSum::off : config().pre_sum;
        // Rows of one token at one team: all of its choices, or one a rank.
        const std::int64_t most =
            rank_major() ? std::min(config().topk, plan_.lsa_size) : config().topk;
        rail.copy_count = rail.pre_sum == PreSum::on ? 1 : static_cast<std::int32_t>(most);
    }

    /// Larger batches over the proxy, up to a whole channel.
    std::int32_t default_publish_rows(const RailShape& rail) const {
        if (inputs_.topology.railed_gin_type != GinType::proxy) return kPublishRows;
        const std::int64_t half = std::min<std::int64_t>(
            kProxyLongPutBytes / dispatch_row_bytes(config()), rail.channel_rows / 2);
        const std::int64_t rows = std::max(proxy_put_rows(config().max_tokens), half);
        return static_cast<std::int32_t>(
            std::max<std::int64_t>(kPublishRows, std::min<std::int64_t>(rows, rail.channel_rows)));
    }

    /// Rows of a put over the proxy, of `rows` that one step may send to one rank in `puts` puts
    /// for each such piece.
    std::int64_t proxy_put_rows(std::int64_t rows, std::int64_t puts = 1) const {
        const std::int64_t queued = kProxyQueuePuts * data_context_count();
        return std::max(kProxyPutBytes / dispatch_row_bytes(config()),
                        (rows * puts + queued - 1) / queued);
    }

    /// Channels: as many for each block as a combine block has rings of row slots and the dispatch
    /// block has warps.
    void choose_stream() {
        if (!streams()) return;
        if (plan_.rank_count > kMaxStreamRanks) {
            fault("sync",
                  "sync is fifo with {} ranks; the limit is {}: each lane of a warp owns the ring "
                  "to one rank; use sync barrier",
                  plan_.rank_count, kMaxStreamRanks);
        }
        if (config().combine_blocks_per_sm > 1) {
            fault("combine_blocks_per_sm",
                  "combine_blocks_per_sm is {} with sync fifo; it must be 1: a block of dispatch "
                  "and one of combine share channels",
                  config().combine_blocks_per_sm);
        }
        KernelShape& dispatch = plan_.kernels.dispatch;
        KernelShape& combine = plan_.kernels.combine;
        const std::int32_t channels = stream_channels();
        if (hybrid() && channels < 1) {
            fault("dispatch_threads",
                  "dispatch_threads is {}, but sync fifo between LSA teams needs at least 96: a "
                  "warp sends, one hands on and one receives",
                  dispatch.thread_count);
        }
        if (channels < 1) return;  // fit_dispatch says it
        plan_.stream.channels_per_block = channels;
        plan_.stream.channel_count = channels * dispatch.block_count;
        // One that sends for each channel, and between teams one that sums.
        combine.forward_warps = channels * (hybrid() ? 2 : 1);
        const std::int32_t more_threads = combine.forward_warps * kWarpSize;
        combine.thread_count += more_threads;
        const std::int32_t limit = inputs_.device.max_threads_per_block;
        if (limit > 0 && combine.thread_count > limit) {
            fault("combine_threads",
                  "combine_threads is {}, and sync fifo adds {} that send; this device allows {} a "
                  "block",
                  combine.thread_count - more_threads, more_threads, limit);
        }
        if (hybrid()) plan_.stream.relay_warps = channels;
    }

    /// A channel needs a warp of the dispatch block at each end of its rings.
    std::int32_t stream_channels() const {
        const std::int32_t warps = plan_.kernels.dispatch.thread_count / kWarpSize;
        return std::min(combine_rings(), warps / (hybrid() ? 3 : 2));
    }

    /// Two rings where the warps can be shared out evenly: while one ring hands a row over, the
    /// other sums.
    std::int32_t combine_rings() const {
        const KernelShape& combine = plan_.kernels.combine;
        const std::int32_t warps = combine.thread_count / kWarpSize - combine.forward_warps;
        if (plan_.stream.active()) return plan_.stream.channels_per_block;
        return warps >= 4 && warps % 2 == 0 ? 2 : 1;
    }

    /// Whole shares of the channels' sources, as many as there are warps, and no more than four.
    std::int32_t receive_warps() const {
        const std::int32_t channels = plan_.stream.channels_per_block;
        const std::int32_t warps =
            plan_.kernels.dispatch.thread_count / kWarpSize - channels - plan_.stream.relay_warps;
        return std::max(1, std::min(warps, kReceiveWarps) / channels) * channels;
    }

    void size_stream() {
        if (!streams()) return;
        StreamShape& stream = plan_.stream;
        const auto header =
            RailRowLayout{dispatch_row_bytes(config()), static_cast<std::uint32_t>(config().topk),
                          static_cast<std::uint32_t>(config().scale_words)};
        stream.header_bytes = header.header_bytes();
        stream.slot_bytes = std::max(header.stride(), combine_row_bytes(config()));
        stream.token_rows =
            rank_major() ? 1 : std::min(config().topk, plan_.experts.max_local_count());
        stream.channel_rows = narrow<std::int32_t>(
            mul(stream.channel_tokens(config().max_tokens), stream.token_rows, "channel rows"),
            "channel rows");
        choose_slots();
        choose_rail_slots();
        stream.ready_rows = config().ready_rows > 0 ? config().ready_rows : kReadyRows;
        stream.ready_blocks = static_cast<std::int32_t>(
            (plan_.row_capacity + stream.ready_rows - 1) / stream.ready_rows);
        FifoOptions options = stream.ring_options();
        options.head_every = 1;
        options.send_chunk =
            static_cast<std::uint32_t>(std::max(stream.dispatch_rows, stream.combine_rows));
        options.receive_chunk = 1;
        for (const FifoOptions& each : {options, stream.ring_options()}) {
            if (const FifoRule rule = each.broken_rule(); rule != FifoRule::none) {
                fault("chunks",
                      "rings of {} slots of {} bytes, moved on by {} rows, break a rule: {}",
                      stream.slot_count, stream.slot_bytes, options.send_chunk, text_of(rule));
                return;
            }
        }
        checked_mul(static_cast<std::uint64_t>(stream.ring_count(plan_.rank_count)),
                    stream.ring_layout().total_bytes, "rings in bytes", plan_.rank);
        if (!hybrid()) return;
        if (const FifoRule rule = stream.rail_options().broken_rule(); rule != FifoRule::none) {
            fault("chunks", "rail rings of {} slots of {} bytes break a rule: {}",
                  stream.rail_slots, stream.slot_bytes, text_of(rule));
            return;
        }
        checked_mul(static_cast<std::uint64_t>(rail_ring_count()), stream.rail_layout().total_bytes,
                    "rail rings in bytes", plan_.rank);
    }

    /// Regions of rail rings: one each way.
    std::int32_t rail_ring_count() const {
        return plan_.stream.active() ? 2 * plan_.rail.pair_count() : 0;
    }

    /// Slots of a rail ring: what was asked for, or enough to keep the NIC busy. All channels share
    /// it, so that a few rows of each are many.
    void choose_rail_slots() {
        StreamShape& stream = plan_.stream;
        if (!hybrid()) return;
        plan_.rail.channel_rows = stream.channel_tokens(config().max_tokens);
        const ChunkConfig& wish = config().chunks;
        const auto table =
            ChunkConfig::defaults(plan_.rank_count, ChunkConfig::Direction::dispatch);
        const auto back = ChunkConfig::defaults(plan_.rank_count, ChunkConfig::Direction::combine);
        stream.rail_token_rows = plan_.rail.copy_count;
        std::int64_t slots = wish.rdma_recv > 0   ? wish.rdma_recv
                             : wish.rdma_send > 0 ? std::int64_t{2} * wish.rdma_send
                                                  : kRailSlots;
        if (slots < stream.rail_token_rows && wish.rdma_recv > 0) {
            fault("chunks.rdma_recv",
                  "chunks.rdma_recv is {}, but {} rows may come home for one token from one team, "
                  "which combine takes together; raise it, or use pre_sum on",
                  slots, stream.rail_token_rows);
        }
        slots = std::max<std::int64_t>(slots, stream.rail_token_rows);
        stream.rail_slots = static_cast<std::uint32_t>(slots);
        const auto rows = [&](std::int32_t from_table) {
            if (wish.rdma_send > 0) return wish.rdma_send;
            return static_cast<std::int32_t>(
                std::min<std::int64_t>(from_table, std::max<std::int64_t>(1, slots / 2)));
        };
        stream.rail_dispatch_rows = rows(table.rdma_send);
        stream.rail_combine_rows = rows(back.rdma_send);
    }

    /// Slots of a ring: what was asked for, or the table's number if all ranks' rings stay in half
    /// of the GPU's L2 cache with it, or what does.
    void choose_slots() {
        StreamShape& stream = plan_.stream;
        const auto table =
            ChunkConfig::defaults(plan_.rank_count, ChunkConfig::Direction::dispatch);
        const auto back = ChunkConfig::defaults(plan_.rank_count, ChunkConfig::Direction::combine);
        const ChunkConfig& wish = config().chunks;
        std::int64_t slots = wish.nvl_recv > 0 ? wish.nvl_recv : table.nvl_recv;
        plan_.stream_reason = wish.nvl_recv > 0 ? "asked for" : "the table's";
        const std::int64_t fitting = static_cast<std::int64_t>(
            inputs_.device.l2_bytes / 2 / static_cast<std::uint64_t>(share_.ranks_on_gpu) /
            stream.slot_bytes / static_cast<std::uint64_t>(stream.ring_count(plan_.rank_count)));
        if (wish.nvl_recv == 0 && inputs_.device.l2_bytes > 0 && fitting < slots) {
            slots = std::max<std::int64_t>({fitting, kLeastStreamSlots, wish.nvl_send});
            plan_.stream_reason = fmt::format(
                "of the table's {}, so that the rings of {} rank{} stay in the L2 cache",
                table.nvl_recv, share_.ranks_on_gpu, share_.ranks_on_gpu == 1 ? "" : "s");
        }
        if (slots < stream.token_rows && wish.nvl_recv > 0) {
            fault(
                "chunks.nvl_recv",
                "chunks.nvl_recv is {}, but one token may have {} rows at one rank, which combine "
                "takes together; raise it, or use layout rank_major",
                slots, stream.token_rows);
        }
        slots = std::max<std::int64_t>(slots, stream.token_rows);
        stream.slot_count = static_cast<std::uint32_t>(slots);
        const auto rows = [&](std::int32_t from_table) {
            if (wish.nvl_send > 0) return wish.nvl_send;
            return static_cast<std::int32_t>(
                std::min<std::int64_t>(from_table, std::max<std::int64_t>(1, slots / 2)));
        };
        stream.dispatch_rows = rows(table.nvl_send);
        stream.combine_rows = rows(back.nvl_send);
    }

    void size_rows() {
        const std::int64_t tokens = config().max_tokens;
        const std::int64_t ranks = plan_.rank_count;
        const std::int64_t local = plan_.experts.max_local_count();
        const std::int64_t alignment = config().expert_alignment;
        std::int64_t rows = mul(ranks, tokens, "receive rows");
        if (!rank_major()) {
            rows = mul(rows, std::min<std::int64_t>(config().topk, local), "receive rows");
            rows = checked_add(rows, mul(alignment - 1, local, "padding rows"), "receive rows");
            rows = align_up(rows, alignment, "receive rows");
        }
        plan_.worst_case_rows = rows;
        plan_.row_capacity =
            config().max_recv_rows == 0
                ? rows
                : std::min(rows, align_up(config().max_recv_rows, alignment, "receive rows"));
        if (plan_.row_capacity > kMaxRows) {
            fault("max_tokens",
                  "up to {} rows may arrive in one step; slots are 32-bit, the limit is {}: lower "
                  "max_tokens ({}) or set max_recv_rows",
                  plan_.row_capacity, kMaxRows, tokens);
        }
        if (plan_.gin_peer_count > 0 && !streams()) {
            const std::int64_t copies =
                rank_major() ? std::min(config().topk, plan_.gin_peer_count) : config().topk;
            plan_.send_capacity =
                hybrid() ? plan_.rail.row_count() : mul(tokens, copies, "send rows");
            if (mul(plan_.send_capacity, std::max(1, plan_.rail.copy_count), "home rows") >
                kMaxRows) {
                fault("max_tokens",
                      "up to {} rows may leave through GIN in one step; the limit is {}: lower "
                      "max_tokens ({})",
                      plan_.send_capacity, kMaxRows, tokens);
            }
        }
        plan_.kernels.chunk_rows =
            config().chunk_rows > 0 ? config().chunk_rows : default_chunk_rows();
        if (config().mode == ExchangeMode::hybrid && hybrid() &&
            config().chunk_rows > plan_.rail.channel_rows) {
            fault("chunk_rows",
                  "chunk_rows is {}, but a rail stream holds {} rows a step ({} tokens on {} "
                  "channels); lower chunk_rows, or raise max_tokens",
                  config().chunk_rows, plan_.rail.channel_rows, tokens, plan_.rail.channel_count);
        }
    }

    /// Over the proxy, a batch of the rail is one put; a chunk of direct mode is two, of rows and
    /// of records.
    std::int32_t default_chunk_rows() const {
        const std::int64_t fitting = std::clamp<std::int64_t>(
            kDefaultChunkBytes / dispatch_row_bytes(config()), 1, kDefaultChunkRows);
        std::int64_t least = 0;
        if (hybrid() && inputs_.topology.railed_gin_type == GinType::proxy) {
            least = plan_.rail.publish_rows;
        } else if (!hybrid() && inputs_.topology.gin_type == GinType::proxy) {
            const std::int64_t copies =
                rank_major() ? 1 : std::min(config().topk, plan_.experts.max_local_count());
            least = proxy_put_rows(copies * config().max_tokens, 2);
        }
        return static_cast<std::int32_t>(std::max(fitting, least));
    }

    void size_workspace() {
        const bool gin = plan_.gin_peer_count > 0 && !hybrid();
        const std::int64_t slots = plan_.send_capacity / plan_.kernels.chunk_rows +
                                   std::max(plan_.rank_count, config().expert_count) + 1;
        plan_.shape = WorkspaceShape{
            .rank_count = plan_.rank_count,
            .expert_words =
                rank_major() && !hybrid() ? plan_.experts.max_local_count() : config().expert_count,
            .gin_context_count = plan_.kernels.gin_context_count,
            .chunk_slots = gin ? narrow<std::int32_t>(slots, "send chunks") : 0,
            .expert_count = config().expert_count,
            .block_count = plan_.kernels.dispatch.block_count,
            .rail_team_count = plan_.rail.team_count,
            .rail_signal_count = streams() && hybrid() ? stream_signals().signal_count()
                                 : hybrid()            ? rail_signals().signal_count()
                                                       : 0,
            .stream_ring_count =
                plan_.stream.active() ? plan_.stream.ring_count(plan_.rank_count) : 0,
            .ready_block_count = plan_.stream.ready_blocks,
            .stream_ring_bytes = plan_.stream.active() ? plan_.stream.ring_layout().total_bytes : 0,
            .stream_rail_count = rail_ring_count(),
            .padding = 0,
            .stream_rail_bytes = rail_ring_count() > 0 ? plan_.stream.rail_layout().total_bytes : 0,
        };
        if (words_ != nullptr) plan_.shape = *words_;
        if (plan_.gin_peer_count > 0)
            plan_.signal_count = static_cast<std::int32_t>(plan_.shape.signal_count());
        plan_.workspace = WorkspaceLayout::build(plan_.shape);
        plan_.step_layout = StepCountsLayout{plan_.rank_count, plan_.experts.max_local_count()};
        plan_.token_layout = make_token_layout(config().layout, dispatch_row_bytes(config()),
                                               static_cast<std::uint32_t>(config().topk),
                                               static_cast<std::uint32_t>(config().scale_words));
        plan_.combine_row_bytes = combine_row_bytes(config());
    }

    RailSignals rail_signals() const {
        return RailSignals{plan_.rank_count, plan_.rail.team_count, plan_.rail.channel_count,
                           data_context_count()};
    }
    StreamSignals stream_signals() const {
        return StreamSignals{plan_.rank_count, plan_.rail.team_count, plan_.rail.channel_count,
                             data_context_count()};
    }
    std::int32_t data_context_count() const {
        return std::max(1, plan_.kernels.gin_context_count - 1);
    }

    std::uint64_t place(std::int64_t rows, std::uint64_t row_bytes, const char* what) {
        const std::uint64_t offset = at_;
        const auto bytes =
            checked_mul(static_cast<std::uint64_t>(rows), row_bytes, what, plan_.rank);
        at_ =
            align_up(checked_add(at_, bytes, what, plan_.rank), kRegionAlignment, what, plan_.rank);
        return offset;
    }

    /// Two buffers of everything that a step receives and answers.
    void place_rows(RegionOffsets& regions) {
        const std::uint64_t record_bytes = plan_.token_layout.record_bytes();
        for (auto& offset : regions.recv_rows) {
            offset =
                place(plan_.row_capacity, plan_.token_layout.row_bytes, "receive rows in bytes");
        }
        for (auto& offset : regions.recv_meta) {
            offset = place(plan_.row_capacity, record_bytes, "receive records in bytes");
        }
        for (auto& offset : regions.combine_rows) {
            offset = place(plan_.row_capacity, plan_.combine_row_bytes, "combine rows in bytes");
        }
    }

    void size_regions() {
        at_ = plan_.workspace.total_bytes;
        RegionOffsets& regions = plan_.regions;
        const bool fifo = plan_.stream.active();
        if (!fifo) place_rows(regions);
        // One translation page a rank where the window spans many of them; elsewhere just enough to
        // be another address.
        if (!fifo)
            regions.skew_bytes =
                at_ >= kPagedWindowBytes ? kTranslationPageBytes : kRegionAlignment;
        place(plan_.skew_steps(), regions.skew_bytes, "rank skew in bytes");
        regions.send_rows =
            place(plan_.send_capacity, plan_.send_row_bytes(), "send rows in bytes");
        regions.send_meta =
            place(plan_.send_capacity, plan_.send_record_bytes(), "send records in bytes");
        regions.home_rows =
            place(plan_.home_capacity(), plan_.combine_row_bytes, "home rows in bytes");
        const std::int64_t rail_rows = plan_.rail_buffer_rows();
        regions.rail_rows = place(rail_rows, plan_.send_row_bytes(), "rail rows in bytes");
        regions.back_rows = place(hybrid() ? plan_.home_capacity() : 0, plan_.combine_row_bytes,
                                  "returning rows in bytes");
        regions.rail_weights = place(rail_rows, plan_.rail_weight_bytes(), "rail weights in bytes");
        regions.rail_weights_send =
            place(rail_rows, plan_.rail_weight_bytes(), "rail weights in bytes");
        regions.total_bytes = at_;
        plan_.window_bytes = at_;
        if (fifo && config().tensors == StreamTensors::library) {
            at_ = 0;
            place_rows(plan_.tensors);
            plan_.tensors.total_bytes = at_;
        }
        const std::uint64_t memory = inputs_.device.memory_bytes;
        if (memory > 0 && plan_.window_bytes + plan_.tensors.total_bytes > memory) {
            fault("max_tokens",
                  "the window needs {}, the device has {}: lower max_tokens ({}) or hidden ({}), "
                  "or set "
                  "max_recv_rows below {}",
                  format_bytes(plan_.window_bytes + plan_.tensors.total_bytes),
                  format_bytes(memory), config().max_tokens, config().hidden, plan_.row_capacity);
        }
    }

    std::uint32_t shared_bytes() const {
        ExchangeArgs args = plan_.exchange_args();
        return inputs_.dispatch_shared_bytes(args, plan_.kernels.dispatch);
    }

    /// As many copy warps and whole-row slots as the block's shared memory holds; at worst two
    /// slots of one warp that move a row in pieces.
    void fit_dispatch() {
        KernelShape& shape = plan_.kernels.dispatch;
        const std::int32_t warps = shape.thread_count / kWarpSize;
        if (warps < 2) {
            fault("dispatch_threads",
                  "dispatch_threads is {}; at least 64: some warps copy rows, others write records",
                  shape.thread_count);
            return;
        }
        const auto limit = static_cast<std::uint32_t>(inputs_.device.shared_optin_bytes);
        shape.count_warps = warps;
        const bool fifo = plan_.stream.active();
        shape.copy_warps = fifo ? plan_.stream.channels_per_block : copy_warps();
        shape.forward_warps = fifo ? receive_warps() : hybrid() ? shape.copy_warps : 0;
        shape.slots_per_warp = kLeastSlotsPerWarp;
        // fifo: the row's header stays in front of the piece.
        const std::uint32_t header_bytes = plan_.stream.header_bytes;
        const std::uint32_t least_bytes = header_bytes + kBulkAlignment;
        shape.slot_bytes = least_bytes;
        while (shape.count_warps > 1 && shared_bytes() > limit / 2) --shape.count_warps;
        shape.shared_bytes = shared_bytes();
        if (shape.shared_bytes > limit) {
            fault("expert_count",
                  "the dispatch kernel's tables need {} bytes of shared memory for {} ranks and {} "
                  "experts, a block has {}",
                  shape.shared_bytes, plan_.rank_count, config().expert_count, limit);
            return;
        }
        // Slots cost what is above the tables, plus a little for mbarriers.
        const std::uint32_t row_bytes = plan_.token_layout.row_bytes + header_bytes;
        const std::uint32_t table_bytes = shape.shared_bytes;
        const std::uint32_t budget = limit - std::min(limit, table_bytes + 256);
        const std::int32_t row_warps =
            shape.copy_warps + shape.forward_warps + plan_.stream.relay_warps;
        const auto warp_slots = static_cast<std::uint32_t>(row_warps * kLeastSlotsPerWarp);
        const std::uint32_t whole =
            std::min(row_bytes, budget / warp_slots / kBulkAlignment * kBulkAlignment);
        shape.slot_bytes = std::max(whole, least_bytes);
        const auto warp_ring_bytes = kCopyRingBytes / static_cast<std::uint32_t>(row_warps);
        shape.slots_per_warp =
            std::clamp(static_cast<std::int32_t>(warp_ring_bytes / shape.slot_bytes),
                       kLeastSlotsPerWarp, kSlotsPerWarp);
        while (shape.slots_per_warp > kLeastSlotsPerWarp && shared_bytes() > limit)
            --shape.slots_per_warp;
        while (shared_bytes() > limit && shape.slot_bytes > least_bytes)
            shape.slot_bytes -= kBulkAlignment;
        shape.shared_bytes = shared_bytes();
    }

    /// Rings of row pieces, as deep as the block's shared memory allows. A row moves in equal
    /// pieces of at most what the block's threads can sum.
    void fit_combine() {
        KernelShape& shape = plan_.kernels.combine;
        const std::int32_t ring_threads = shape.thread_count - shape.forward_warps * kWarpSize;
        if (ring_threads < 2 * kWarpSize) {
            fault("combine_threads",
                  "combine_threads is {}; at least 64: one warp loads rows, the others sum them",
                  ring_threads);
            return;
        }
        shape.copy_warps = combine_rings();
        const auto limit = static_cast<std::uint32_t>(inputs_.device.shared_optin_bytes) /
                           static_cast<std::uint32_t>(
                               std::max(1, shape.block_count / std::max(1, plan_.sm_budget)));
        const std::uint32_t row_bytes = plan_.combine_row_bytes;
        const std::uint32_t largest =
            std::min(combine_max_slot_bytes(ring_threads, shape.copy_warps), kMaxCombinePieceBytes);
        const std::uint32_t pieces = (row_bytes + largest - 1) / largest;
        shape.slot_bytes = static_cast<std::uint32_t>(align_up(
            (row_bytes + pieces - 1) / pieces, std::uint32_t{kBulkAlignment}, "combine piece"));
        shape.slots_per_warp = kMostCombineSlots;
        while (shape.slots_per_warp > kLeastSlotsPerWarp &&
               combine_shared_bytes(shape, plan_.rank_count) > limit) {
            --shape.slots_per_warp;
        }
        shape.shared_bytes = combine_shared_bytes(shape, plan_.rank_count);
        if (shape.shared_bytes > limit) {
            fault("combine_blocks_per_sm",
                  "the combine kernel needs {} bytes of shared memory a block, {} are there; lower "
                  "combine_blocks_per_sm or combine_threads",
                  shape.shared_bytes, limit);
        }
    }

    const PlanInputs& inputs_;
    const WorkspaceShape* words_;
    Plan plan_;
    SmShare share_;
    bool small_ = false;
    bool gin_missing_ = false;
    std::uint64_t at_ = 0;
    std::vector<ConfigFault> faults_;
};

/// Adds to a hybrid plan what exclude() needs: direct mode in the same window, where GIN reaches
/// all ranks. The rows of the two modes share their place. A direct mode that cannot be is no fault
/// of the hybrid one.
void add_fallback(Plan* plan, const PlanInputs& inputs) {
    if (plan->config.sync == Sync::fifo) {
        plan->fallback_reason = "sync is fifo: its rings lead over the rails";
        return;
    }
    if (inputs.topology.gin_type == GinType::none) {
        plan->fallback_reason = "GIN reaches the ranks of a rail only";
        return;
    }
    MoeConfig config = plan->config;
    config.mode = ExchangeMode::direct;
    Planner alone(config, inputs);
    if (!alone.try_build()) {
        plan->fallback_reason = "direct mode: " + alone.faults().front().text;
        return;
    }
    WorkspaceShape words = plan->shape;
    words.chunk_slots = alone.plan().shape.chunk_slots;
    Planner direct(config, inputs, &words);
    Planner hybrid(plan->config, inputs, &words);
    if (!direct.try_build() || !hybrid.try_build()) {
        const auto& faults = direct.faults().empty() ? hybrid.faults() : direct.faults();
        plan->fallback_reason = "direct mode beside it: " + faults.front().text;
        return;
    }
    Plan spare = direct.plan();
    *plan = hybrid.plan();
    const std::uint64_t bytes = std::max(plan->window_bytes, spare.window_bytes);
    plan->fallback_bytes = bytes - plan->window_bytes;
    plan->window_bytes = plan->regions.total_bytes = bytes;
    spare.window_bytes = spare.regions.total_bytes = bytes;
    plan->gin_connection = GinConnection::full;
    spare.mode_reason = "ranks are excluded, and rows cannot cross a rail with a gap";
    plan->fallback = std::make_shared<const Plan>(std::move(spare));
}

}  // namespace

std::string SmShare::copier_text() const {
    if (copier_sms == 0) return "";
    return fmt::format(" beside {} of the RMA plugin's copier (GIMLET_RMA_COPIER_BLOCKS)",
                       copier_sms);
}

SmShare smallest_sm_share(const Topology& topology, const DeviceInfo& device) {
    SmShare share{1, std::max(device.sm_count, 1)};
    std::map<std::uint64_t, std::int32_t> ranks_on;
    for (const auto& place : topology.places) ++ranks_on[place.device_id];
    const bool proxy =
        topology.gin_type == GinType::proxy || topology.railed_gin_type == GinType::proxy;
    bool first = true;
    for (const auto& place : topology.places) {
        const std::int32_t ranks = ranks_on[place.device_id];
        share.ranks_on_gpu = std::max(share.ranks_on_gpu, ranks);
        const std::int32_t copier_sms = proxy ? place.copier_sms : 0;
        share.copier_sms = std::max(share.copier_sms, copier_sms);
        const std::int32_t sms = std::max(place.sm_count / ranks - copier_sms, 1);
        share.sm_count = first ? sms : std::min(share.sm_count, sms);
        first = false;
    }
    return share;
}

Plan make_plan(const MoeConfig& config, const PlanInputs& inputs) {
    if (inputs.dispatch_shared_bytes == nullptr) {
        raise(ErrorCode::invalid_argument, inputs.topology.rank,
              "plan inputs: dispatch_shared_bytes is null; pass "
              "gimlet::dispatch_shared_bytes of device/kernels/launch.hpp");
    }
    Plan plan = Planner(config, inputs).build();
    if (plan.mode == ExchangeMode::hybrid) add_fallback(&plan, inputs);
    return plan;
}

ExchangeArgs Plan::exchange_args() const {
    ExchangeArgs args{};
    args.peers.rank = rank;
    args.peers.rank_count = rank_count;
    args.peers.lsa_rank = lsa_rank;
    args.peers.lsa_size = lsa_size;
    args.peers.gin_context_count = kernels.gin_context_count;
    args.peers.rails_only = gin_connection == GinConnection::rail ? 1 : 0;
    args.peers.deadline_ns = deadline_ns;
    args.peers.shape = shape;
    args.peers.layout = workspace;
    args.experts = experts;
    args.regions = regions;
    args.token_layout = token_layout;
    args.topk = config.topk;
    args.layout = config.layout;
    args.pad_fill = config.pad_fill;
    args.expert_alignment = config.expert_alignment;
    args.max_tokens = config.max_tokens;
    args.chunk_rows = kernels.chunk_rows;
    args.row_capacity = row_capacity;
    args.shape = kernels.dispatch;
    args.rail = rail;
    args.stream = stream;
    return args;
}

std::uint32_t Plan::send_row_bytes() const {
    if (!rail.active()) return token_layout.row_bytes;
    return RailRowLayout{token_layout.row_bytes, static_cast<std::uint32_t>(config.topk),
                         token_layout.scale_words}
        .stride();
}

std::uint32_t Plan::send_record_bytes() const {
    return rail.active() ? 0 : token_layout.record_bytes();
}

std::int64_t Plan::home_capacity() const {
    return send_capacity * std::max(1, rail.copy_count);
}

std::uint32_t Plan::rail_weight_bytes() const {
    const bool shipped = config.layout == Layout::expert_major && rail.pre_sum == PreSum::on;
    return shipped ? static_cast<std::uint32_t>(config.topk) * 4u : 0;
}

WindowLayout Plan::window_layout() const {
    WindowLayout layout;
    const auto add = [&layout](const char* name, std::int64_t rows, std::uint64_t row_bytes) {
        layout.add(name, static_cast<std::uint64_t>(rows) * row_bytes, kRegionAlignment);
    };
    layout.add("workspace", workspace.total_bytes, kRegionAlignment);
    const std::int64_t rows = stream.active() ? 0 : row_capacity;
    add("recv_rows[0]", rows, token_layout.row_bytes);
    add("recv_rows[1]", rows, token_layout.row_bytes);
    add("recv_meta[0]", rows, token_layout.record_bytes());
    add("recv_meta[1]", rows, token_layout.record_bytes());
    add("combine_rows[0]", rows, combine_row_bytes);
    add("combine_rows[1]", rows, combine_row_bytes);
    add("rank_skew", skew_steps(), regions.skew_bytes);
    add("send_rows", send_capacity, send_row_bytes());
    add("send_meta", send_capacity, send_record_bytes());
    add("home_rows", home_capacity(), combine_row_bytes);
    add("rail_rows", rail_buffer_rows(), send_row_bytes());
    add("back_rows", rail.active() ? home_capacity() : 0, combine_row_bytes);
    add("rail_weights", rail_buffer_rows(), rail_weight_bytes());
    add("rail_weights_send", rail_buffer_rows(), rail_weight_bytes());
    add("fallback", fallback_bytes > 0 ? 1 : 0, fallback_bytes);
    return layout;
}

std::int32_t Plan::most_blocks() const {
    return std::max({kernels.dispatch.block_count, kernels.combine.block_count,
                     fallback == nullptr ? 0 : fallback->most_blocks()});
}

DeviceCommRequest Plan::device_comm_request() const {
    DeviceCommRequest request;
    request.gin_connection = gin_connection;
    if (gin_connection != GinConnection::none) {
        request.gin_context_count = kernels.gin_context_count;
        request.gin_signal_count = signal_count;
    }
    return request;
}

std::vector<AgreementField> Plan::agreed_fields() const {
    auto fields = config_fields(config);
    const auto add = [&fields](const char* name, auto value) {
        fields.push_back({name, fmt::format("{}", value)});
    };
    add("rank_count", rank_count);
    add("lsa_size", lsa_size);
    add("plan.sm_budget", sm_budget);
    add("plan.gin_context_count", kernels.gin_context_count);
    add("plan.signal_count", signal_count);
    add("plan.chunk_rows", kernels.chunk_rows);
    add("plan.mode", name_of(mode));
    add("plan.fallback", fallback == nullptr ? "none" : name_of(fallback->mode));
    add("plan.channel_count", rail.channel_count);
    add("plan.channel_rows", rail.channel_rows);
    add("plan.stream_channel_count", stream.channel_count);
    add("plan.stream_slot_count", stream.slot_count);
    add("plan.stream_slot_bytes", stream.slot_bytes);
    add("plan.stream_rail_slots", stream.rail_slots);
    add("plan.row_capacity", row_capacity);
    add("plan.send_capacity", send_capacity);
    add("plan.record_bytes", token_layout.record_bytes());
    add("plan.workspace_bytes", workspace.total_bytes);
    add("plan.window_bytes", window_bytes);
    return fields;
}

std::uint64_t Plan::hash() const {
    std::uint64_t hash = kHashStart;
    for (const auto& field : agreed_fields())
        hash = hash_text(field.name + "=" + field.value + "\n", hash);
    return hash;
}

void check_plan_agreement(Bootstrap& bootstrap, const Plan& plan) {
    check_agreement(bootstrap, "MoE config and plan", plan.agreed_fields());
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "tests/rma/rma_player.hpp"

#include <algorithm>
#include <cstring>

#include "tests/support/catch.hpp"

namespace gimlet::test {

namespace {

constexpr int kContexts = 3;
constexpr std::size_t kBlockBytes = 1 << 18;  // what one sender may write at one target in an epoch
constexpr std::size_t kMaxPutBytes = 20000;   // more than one payload cell
constexpr std::size_t kShifts = 16;
constexpr std::size_t kSlotBytes = kMaxPutBytes + kShifts;
constexpr std::size_t kSourceSlots = 24;
constexpr std::size_t kPatternBytes = 1 << 16;
constexpr int kMaxUnderWay = 128;  // per context and peer, as NCCL promises

enum class Kind { put, put_inline, put_signal, signal, va_signal, get };

/// One operation of a sender on a target; both sides make it from the same random numbers.
struct Step {
    Kind kind;
    int context;
    std::size_t offset;  ///< in the sender's block at the target
    std::size_t shift;   ///< of the source in its slot
    std::size_t bytes;
    std::uint64_t value;  ///< of the signal
    bool is_add;
    std::uint64_t content_seed;
};

class Script {
  public:
    Script(std::uint64_t seed, int sender, int target, int epoch)
        : random_(seed ^ static_cast<std::uint64_t>((sender * 64 + target) * 100000 + epoch)) {}

    Step next() {
        Step step{};
        const std::uint64_t roll = random_.below(100);
        step.kind = roll < 40   ? Kind::put
                    : roll < 55 ? Kind::put_inline
                    : roll < 75 ? Kind::put_signal
                    : roll < 85 ? Kind::signal
                    : roll < 92 ? Kind::va_signal
                                : Kind::get;
        step.context = static_cast<int>(random_.below(kContexts));
        step.content_seed = random_.next();
        step.is_add = random_.below(2) == 0;
        step.value = step.is_add ? random_.below(1000) + 1 : 1;
        if (step.kind == Kind::put || step.kind == Kind::put_signal) {
            step.bytes = random_.below(4) == 0 ? random_.below(kMaxPutBytes) : random_.below(300);
        } else if (step.kind == Kind::put_inline) {
            step.bytes = random_.below(8) + 1;
        } else if (step.kind == Kind::get) {
            step.bytes = random_.below(kMaxPutBytes);
            step.offset = random_.below(kPatternBytes - step.bytes);
            return step;
        }
        if (next_offset_ + step.bytes > kBlockBytes) step.bytes = 0;
        step.offset = next_offset_;
        // Half of them lie alike at both ends, modulo kShifts.
        step.shift = random_.below(2) == 0 ? next_offset_ % kShifts : random_.below(kShifts);
        next_offset_ += step.bytes + random_.below(3);
        return step;
    }

  private:
    Random random_;
    std::size_t next_offset_ = 0;
};

void fill(unsigned char* data, std::size_t bytes, std::uint64_t seed) {
    Random random(seed);
    for (std::size_t i = 0; i < bytes; i += 8) {
        const std::uint64_t value = random.next();
        std::memcpy(data + i, &value, std::min<std::size_t>(8, bytes - i));
    }
}

bool holds(const unsigned char* data, std::size_t bytes, std::uint64_t seed) {
    unsigned char wanted[kMaxPutBytes + 8];
    fill(wanted, bytes, seed);
    return std::memcmp(data, wanted, bytes) == 0;
}

bool carries_signal(const Step& step) {
    return step.kind == Kind::put_signal || step.kind == Kind::signal ||
           step.kind == Kind::va_signal;
}

/// One rank of the test: sends its scripts, receives everybody else's.
class Player {
  public:
    Player(RankWorld& world, const Shape& shape)
        : world_(world),
          shape_(shape),
          ranks_(static_cast<std::size_t>(shape.size)),
          window_(ranks_ * kBlockBytes, shape.place),
          signals_(ranks_ * kContexts * 8, shape.place, false),
          va_words_(ranks_ * kContexts * 8, shape.place),
          source_(kSourceSlots * kSlotBytes, shape.place),
          inline_(kSourceSlots * 8, MemoryPlace::host),
          pattern_(kPatternBytes, shape.place),
          fetched_(kSourceSlots * kSlotBytes, shape.place) {
        fill(pattern_.data(), kPatternBytes, shape.seed + static_cast<std::uint64_t>(world.rank));
        const auto add = [&](Memory& memory, std::uint64_t flags) {
            return world_.register_region(memory.data(), memory.bytes(), memory.type(), flags);
        };
        signals_mh_ = add(signals_, abi_flags());
        inline_mh_ = add(inline_, 0);
        window_mh_ = add(window_, 0);
        va_mh_ = add(va_words_, gimlet::rma::abi::kRegionStrictOrder);
        source_mh_ = add(source_, 0);
        pattern_mh_ = add(pattern_, 0);
        fetched_mh_ = add(fetched_, 0);
        under_way_.resize(ranks_ * kContexts);
        seen_.resize(ranks_ * kContexts * 2);
    }

    void run() {
        const int epochs = std::max(1, shape_.operations / shape_.operations_per_epoch);
        for (int epoch = 0; epoch < epochs; ++epoch) run_epoch(epoch);
        world_.barrier();
    }

  private:
    struct Pending {
        void* request;
        Step step;
        int peer;
        std::size_t slot;
    };
    /// Where a receiver is in one sender's script.
    struct Cursor {
        std::vector<Step> steps;
        std::array<std::size_t, kContexts> checked{};
    };

    static std::uint64_t abi_flags() {
        return gimlet::rma::abi::kRegionStrictOrder | gimlet::rma::abi::kRegionSignalNeverReset;
    }
    std::size_t word(int sender, int context) const {
        return static_cast<std::size_t>(sender) * kContexts + static_cast<std::size_t>(context);
    }

    void run_epoch(int epoch) {
        std::memset(window_.data(), 0xcc, window_.bytes());
        std::vector<Script> scripts;
        cursors_.assign(ranks_, {});
        const int per_peer = shape_.operations_per_epoch / shape_.size + 1;
        for (int peer = 0; peer < shape_.size; ++peer) {
            scripts.emplace_back(shape_.seed, world_.rank, peer, epoch);
            Script theirs(shape_.seed, peer, world_.rank, epoch);
            auto& steps = cursors_[static_cast<std::size_t>(peer)].steps;
            for (int i = 0; i < per_peer; ++i) steps.push_back(theirs.next());
            for (int c = 0; c < kContexts; ++c) steps.push_back(last_step(c));
        }
        world_.barrier();  // windows are clean
        Random order(shape_.seed * 31 + static_cast<std::uint64_t>(world_.rank * 1000 + epoch));
        std::vector<int> left(ranks_, per_peer);
        int open = shape_.size * per_peer;
        while (open > 0) {
            const auto peer = static_cast<std::size_t>(order.below(ranks_));
            if (left[peer] == 0) continue;
            --left[peer];
            --open;
            issue(static_cast<int>(peer), scripts[peer].next());
            if (order.below(3) == 0) world_.progress();
            if (order.below(4) == 0) complete_some(order);
            if (order.below(8) == 0) (void)check_received();
        }
        for (int peer = 0; peer < shape_.size; ++peer) {
            for (int c = 0; c < kContexts; ++c) issue(peer, last_step(c));
        }
        world_.progress_until([&] { return check_received(); }, "all signals arrive");
        world_.progress_until([&] { return complete_all(); }, "all requests are done");
        check_untouched();
        world_.barrier();
    }

    static Step last_step(int context) { return {Kind::signal, context, 0, 0, 0, 1, false, 0}; }

    void issue(int peer, const Step& step) {
        const auto& table = plugin_v14();
        auto& count = under_way_[word(peer, step.context)];
        world_.progress_until([&] { return complete_all(), count < kMaxUnderWay; },
                              "queue has room");
        while (pending_.size() >= kSourceSlots) {
            world_.progress();
            complete_all();
        }
        Pending pending{nullptr, step, peer, free_slot()};
        const auto target_offset =
            static_cast<std::uint64_t>(world_.rank) * kBlockBytes + step.offset;
        const std::uint64_t source_offset = pending.slot * kSlotBytes + step.shift;
        const std::uint64_t signal_offset = word(world_.rank, step.context) * 8;
        const auto op =
            step.is_add ? gimlet::rma::abi::kSignalAdd : gimlet::rma::abi::kSignalIncrement;
        const auto rank = static_cast<std::uint32_t>(peer);
        int result = -1;
        switch (step.kind) {
            case Kind::put:
                fill(source_.data() + source_offset, step.bytes, step.content_seed);
                result = table.put(world_.context, step.context, source_offset, source_mh_,
                                   step.bytes, target_offset, window_mh_, rank, &pending.request);
                break;
            case Kind::put_inline:
                fill(inline_.data() + pending.slot * 8, step.bytes, step.content_seed);
                result = table.put(world_.context, step.context, pending.slot * 8, inline_mh_,
                                   step.bytes, target_offset, window_mh_, rank, &pending.request);
                break;
            case Kind::put_signal:
                fill(source_.data() + source_offset, step.bytes, step.content_seed);
                result =
                    table.put_signal(world_.context, step.context, source_offset, source_mh_,
                                     step.bytes, target_offset, window_mh_, rank, signal_offset,
                                     signals_mh_, step.value, op, true, &pending.request);
                break;
            case Kind::signal:
            case Kind::va_signal:
                result = table.put_signal(world_.context, step.context, 0, nullptr, 0, 0, nullptr,
                                          rank, signal_offset,
                                          step.kind == Kind::signal ? signals_mh_ : va_mh_,
                                          step.value, op, false, &pending.request);
                break;
            case Kind::get:
                result = table.get(world_.context, step.context, step.offset, pattern_mh_,
                                   step.bytes, source_offset, fetched_mh_, rank, &pending.request);
                break;
        }
        GIMLET_EXPECT(result == gimlet::rma::abi::kSuccess);
        GIMLET_EXPECT(pending.request != nullptr);
        ++count;
        used_[pending.slot] = true;
        pending_.push_back(pending);
    }

    std::size_t free_slot() const {
        std::size_t slot = 0;
        while (used_[slot]) ++slot;
        return slot;
    }

    void completed(const Pending& pending) {
        const std::size_t offset = pending.slot * kSlotBytes;
        if (pending.step.kind == Kind::get) {
            unsigned char wanted[kPatternBytes];
            fill(wanted, kPatternBytes, shape_.seed + static_cast<std::uint64_t>(pending.peer));
            GIMLET_EXPECT(std::memcmp(fetched_.data() + offset, wanted + pending.step.offset,
                                      pending.step.bytes) == 0);
        }
        // Done means that the source may be reused: whoever reads late gets this.
        std::memset(source_.data() + offset, 0xee, kSlotBytes);
        std::memset(inline_.data() + pending.slot * 8, 0xee, 8);
        used_[pending.slot] = false;
        --under_way_[word(pending.peer, pending.step.context)];
    }

    void complete_some(Random& order) {
        for (std::size_t i = 0; i < pending_.size();) {
            if (order.below(2) == 0 && world_.test(pending_[i].request)) {
                completed(pending_[i]);
                pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                ++i;
            }
        }
    }

    bool complete_all() {
        for (std::size_t i = 0; i < pending_.size();) {
            if (world_.test(pending_[i].request)) {
                completed(pending_[i]);
                pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
            } else {
                ++i;
            }
        }
        return pending_.empty();
    }

    /// Looks at the signals; true once all scripts of this epoch have been seen to their ends.
    bool check_received() {
        bool all = true;
        for (int sender = 0; sender < shape_.size; ++sender) {
            for (int context = 0; context < kContexts; ++context) {
                all = check_stream(sender, context) && all;
            }
        }
        return all;
    }

    bool check_stream(int sender, int context) {
        Cursor& cursor = cursors_[static_cast<std::size_t>(sender)];
        std::size_t& position = cursor.checked[static_cast<std::size_t>(context)];
        const std::size_t index = word(sender, context);
        // The word that is written later is read first: what it shows covers the other.
        const std::uint64_t va = va_words_.word(index);
        const std::uint64_t total = signals_.word(index);
        std::uint64_t& seen = seen_[index * 2];
        std::uint64_t& va_seen = seen_[index * 2 + 1];
        // Each signal that is visible proves all before it; find the last such one.
        std::size_t proved = position;
        std::uint64_t sum = seen;
        std::uint64_t va_sum = va_seen;
        for (std::size_t i = position; i < cursor.steps.size(); ++i) {
            const Step& step = cursor.steps[i];
            if (step.context != context || !carries_signal(step)) continue;
            const bool is_va = step.kind == Kind::va_signal;
            (is_va ? va_sum : sum) += step.value;
            if (is_va ? va_sum > va : sum > total) break;
            proved = i + 1;
            seen = sum;
            va_seen = va_sum;
        }
        for (; position < proved; ++position) {
            const Step& step = cursor.steps[position];
            if (step.context == context) check_content(sender, step);
        }
        const bool at_end =
            position == cursor.steps.size() || only_others_left(cursor, position, context);
        if (at_end) {
            GIMLET_EXPECT(signals_.word(index) == seen);
            GIMLET_EXPECT(va_words_.word(index) == va_seen);
        }
        return at_end;
    }

    static bool only_others_left(const Cursor& cursor, std::size_t position, int context) {
        return std::none_of(cursor.steps.begin() + static_cast<std::ptrdiff_t>(position),
                            cursor.steps.end(),
                            [context](const Step& step) { return step.context == context; });
    }

    void check_content(int sender, const Step& step) {
        if (step.kind == Kind::signal || step.kind == Kind::va_signal || step.kind == Kind::get)
            return;
        const unsigned char* data =
            window_.data() + static_cast<std::size_t>(sender) * kBlockBytes + step.offset;
        expect(holds(data, step.bytes, step.content_seed),
               "put of rank " + std::to_string(sender) + ", " + std::to_string(step.bytes) +
                   " B at " + std::to_string(step.offset) + ", is there when a later signal is");
    }

    /// Bytes that no put covers are as they were.
    void check_untouched() {
        for (std::size_t sender = 0; sender < ranks_; ++sender) {
            const unsigned char* block = window_.data() + sender * kBlockBytes;
            std::size_t position = 0;
            for (const Step& step : cursors_[sender].steps) {
                if (step.kind == Kind::get || step.bytes == 0) continue;
                for (; position < step.offset; ++position) GIMLET_EXPECT(block[position] == 0xcc);
                position = step.offset + step.bytes;
            }
            for (; position < kBlockBytes; ++position) GIMLET_EXPECT(block[position] == 0xcc);
        }
    }

    RankWorld& world_;
    const Shape shape_;
    const std::size_t ranks_;
    Memory window_, signals_, va_words_, source_, inline_, pattern_, fetched_;
    void *signals_mh_, *inline_mh_, *window_mh_, *va_mh_, *source_mh_, *pattern_mh_, *fetched_mh_;
    std::vector<Pending> pending_;
    std::array<bool, kSourceSlots> used_{};
    std::vector<int> under_way_;
    std::vector<Cursor> cursors_;
    std::vector<std::uint64_t> seen_;
};

}  // namespace

void play_rank(RankWorld& world, const Shape& shape) {
    use_device(shape.device_each ? world.rank : 0);
    world.connect(kContexts);
    Player(world, shape).run();
    world.close();
}

void play(const Shape& shape) {
    INFO("seed " << shape.seed << ", ranks " << shape.size << ", processes "
                 << (shape.kind == RankKind::processes) << ", device memory "
                 << (shape.place == MemoryPlace::device));
    const std::string failures =
        run_ranks(shape.size, shape.kind, [&](RankWorld& world) { play_rank(world, shape); });
    CHECK(failures == "");
}

}  // namespace gimlet::test

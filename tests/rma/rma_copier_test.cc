// SPDX-License-Identifier: Apache-2.0
// The CPU's side of the copier: how copies become commands, and what is known to be done. The
// kernels' side is the stand-in driver's, which carries commands out in the unkindest order.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "host/rma_plugin/copier.hpp"
#include "host/rma_plugin/copier_split.hpp"
#include "tests/rma/rma_world.hpp"
#include "tests/support/catch.hpp"

using namespace gimlet::rma;
using gimlet::test::Memory;
using gimlet::test::MemoryPlace;
using gimlet::test::Random;

namespace {

struct Command {
    CopierKind kind;
    std::uint64_t target;
    std::uint64_t source;
    std::size_t bytes;
};

std::vector<Command> split(bool is_bulk, std::uint64_t target, std::uint64_t source,
                           std::size_t bytes) {
    std::vector<Command> commands;
    split_copy(is_bulk, target, source, bytes,
               [&](CopierKind kind, std::uint64_t to, std::uint64_t from, std::size_t part) {
                   commands.push_back({kind, to, from, part});
               });
    return commands;
}

void check_split(bool is_bulk, std::uint64_t target, std::uint64_t source, std::size_t bytes) {
    const std::vector<Command> commands = split(is_bulk, target, source, bytes);
    REQUIRE(commands.size() <= most_commands(is_bulk, bytes));
    std::size_t position = 0;
    std::size_t plain_bytes = 0;
    for (const Command& command : commands) {
        REQUIRE(command.target == target + position);
        REQUIRE(command.source == source + position);
        REQUIRE(command.bytes > 0);
        position += command.bytes;
        if (command.kind == CopierKind::bulk) {
            REQUIRE((command.target | command.source | command.bytes) % kBulkAlignment == 0);
            REQUIRE(command.bytes <= kBulkBytes);
        } else {
            REQUIRE(command.kind == CopierKind::copy);
            REQUIRE(command.bytes <= kPlainBytes);
            plain_bytes += command.bytes;
        }
    }
    REQUIRE(position == bytes);
    if (is_bulk) REQUIRE(plain_bytes < 2 * kBulkAlignment);
}

/// Each byte is in one piece, and each piece is carried out by one worker.
void check_pieces(CopierKind kind, unsigned bytes, CopierShares shares) {
    const CopierPieces pieces = pieces_of(kind, bytes);
    REQUIRE(pieces.count > 0);
    REQUIRE((pieces.count - 1) * pieces.bytes < bytes);
    REQUIRE(pieces.count * pieces.bytes >= bytes);
    if (kind == CopierKind::bulk) {
        REQUIRE(pieces.bytes <= kPieceBytes);
        REQUIRE(pieces.bytes % kBulkAlignment == 0);
    }
    std::vector<int> times(pieces.count);
    for (unsigned block = 0; block < kMostCopierBlocks; ++block) {
        for (unsigned worker = 0; worker < kCopierWorkers; ++worker) {
            for (unsigned piece = first_piece(shares, block, worker); piece < pieces.count;
                 piece += shares.blocks * kCopierWorkers) {
                ++times[piece];
            }
        }
    }
    REQUIRE(std::all_of(times.begin(), times.end(), [](int count) { return count == 1; }));
}

/// A copier and copies under way, whose ends are checked as soon as they are said to be done.
class Traffic {
  public:
    Traffic(CopierOptions options, std::uint64_t seed)
        : random_(seed),
          source_(kBytes, MemoryPlace::device),
          target_(kBytes, MemoryPlace::device) {
        context_.create();
        for (std::size_t i = 0; i < kBytes; i += 8) {
            const std::uint64_t value = random_.next();
            std::memcpy(source_.data() + i, &value, 8);
        }
        copier_ = std::make_unique<Copier>(options);
    }

    /// False: there is no room.
    bool try_copy(std::size_t most_bytes) {
        const std::size_t bytes = 1 + random_.below(most_bytes);
        const std::size_t from = random_.below(kBytes - bytes);
        std::size_t to = random_.below(kBytes - bytes);
        if (random_.below(2) == 0) to = std::min(to / 16 * 16 + from % 16, kBytes - bytes);
        for (const Copy& copy : under_way_) {
            if (to < copy.to + copy.bytes && copy.to < to + bytes) return true;  // another time
        }
        return start(to, from, bytes);
    }
    bool try_copy_at(std::size_t offset, std::size_t bytes) { return start(offset, offset, bytes); }

    void poll() {
        copier_->poll();
        while (!under_way_.empty() && under_way_.front().command <= moves().completed()) {
            const Copy& copy = under_way_.front();
            REQUIRE(std::memcmp(target_.data() + copy.to, source_.data() + copy.from, copy.bytes) ==
                    0);
            under_way_.pop_front();
        }
    }
    std::size_t under_way() const { return under_way_.size(); }
    CopierLane& moves() { return copier_->moves(); }

  private:
    static constexpr std::size_t kBytes = 1 << 24;
    bool start(std::size_t to, std::size_t from, std::size_t bytes) {
        const auto target = reinterpret_cast<std::uint64_t>(target_.data() + to);
        const auto source = reinterpret_cast<std::uint64_t>(source_.data() + from);
        if (!moves().can_copy(CopyEnds::device, target, source, bytes)) return false;
        std::memset(target_.data() + to, 0xee, bytes);
        moves().copy(CopyEnds::device, target, source, bytes);
        under_way_.push_back({to, from, bytes, moves().posted()});
        return true;
    }

    struct Copy {
        std::size_t to;
        std::size_t from;
        std::size_t bytes;
        std::uint64_t command;
    };
    struct Context {
        void create() {
            (void)gimlet::test::plugin_v14();  // names the stand-in driver
            const CudaDriver& driver = cuda_driver();
            REQUIRE(driver.context_create(&context, 0, 0) == cu::kSuccess);
        }
        ~Context() {
            (void)cuda_driver().context_pop(nullptr);
            (void)cuda_driver().context_destroy(context);
        }
        cu::Context context = nullptr;
    };

    Context context_;
    Random random_;
    Memory source_;
    Memory target_;
    std::unique_ptr<Copier> copier_;
    std::deque<Copy> under_way_;
};

constexpr std::size_t kLimit = 1 << 20;
constexpr std::size_t kPlain = CopierLane::kMostPlainBytes;

}  // namespace

TEST_CASE("rma: copies are cut into commands without gaps", "[rma]") {
    const std::uint64_t seed = std::random_device()();
    INFO("seed " << seed);
    Random random(seed);
    for (const std::size_t bytes : {kLeastBulkBytes, kLeastBulkBytes + 1, std::size_t{kPieceBytes},
                                    std::size_t{kPieceBytes + 1}, std::size_t{kPieceBytes + 31},
                                    std::size_t{258048}, kLimit, kLimit + 17, 3 * kLimit}) {
        for (std::uint64_t shift = 0; shift < kBulkAlignment; ++shift) {
            REQUIRE(suits_bulk(0x10000 + shift, 0x90000 + shift, bytes));
            check_split(true, 0x10000 + shift, 0x90000 + shift, bytes);
            check_split(false, 0x10000 + shift, 0x90000, bytes);
        }
    }
    for (int i = 0; i < 2000; ++i) {
        const std::uint64_t target = random.below(std::uint64_t{1} << 40);
        const std::uint64_t source = random.below(std::uint64_t{1} << 40) / 16 * 16 + target % 16;
        const std::size_t bytes = random.below(300000) + 1;
        check_split(false, target, source + 1, bytes);
        if (suits_bulk(target, source, bytes)) check_split(true, target, source, bytes);
    }
    CHECK(!suits_bulk(0x10000, 0x90008, kLimit));
    CHECK(!suits_bulk(0x10000, 0x90000, kLeastBulkBytes - 1));
}

TEST_CASE("rma: each piece of a command is one worker's", "[rma]") {
    for (unsigned blocks = 1; blocks <= kMostCopierBlocks; blocks = blocks * 2 + (blocks == 2)) {
        for (unsigned first = 0; first < blocks * kCopierWorkers; ++first) {
            const CopierShares shares = unpack_shares(pack_shares({first, blocks}) | 0xffffffff);
            REQUIRE(shares.first == first);
            REQUIRE(shares.blocks == blocks);
            check_pieces(CopierKind::small, 8, shares);
            check_pieces(CopierKind::copy, kPlainBytes, shares);
            for (const unsigned bytes : {16u, kPieceBytes - 16, kPieceBytes, kPieceBytes + 16,
                                         86016u, 258048u, kBulkBytes - 16, kBulkBytes}) {
                check_pieces(CopierKind::bulk, bytes, shares);
            }
        }
    }
    for (unsigned bytes = 16; bytes <= kBulkBytes; bytes += 16) {
        const CopierPieces pieces = pieces_of(CopierKind::bulk, bytes);
        REQUIRE((pieces.count - 1) * pieces.bytes < bytes);
        REQUIRE(pieces.count * pieces.bytes >= bytes);
        REQUIRE(pieces.bytes <= kPieceBytes);
    }
}

TEST_CASE("rma: a full queue of the copier", "[rma]") {
    Traffic traffic({kLimit, 2}, 1);
    for (int lap = 0; lap < 3; ++lap) {
        std::uint64_t posted = 0;
        const std::uint64_t before = traffic.moves().posted();
        while (traffic.try_copy_at(posted * 16, 16)) ++posted;
        CHECK(posted >= kCopierSlots);
        CHECK(traffic.moves().posted() == before + posted);
        while (traffic.under_way() > 0) traffic.poll();
        CHECK(traffic.moves().completed() == before + posted);
    }
}

TEST_CASE("rma: the mover's copies are there when they are done", "[rma]") {
    const unsigned blocks = GENERATE(1u, 3u, kMostCopierBlocks);
    const std::uint64_t seed = std::random_device()();
    INFO("blocks " << blocks << ", seed " << seed);
    Traffic traffic({kLimit, blocks}, seed);
    Random random(seed);
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
        // Now and then nothing for a while: the kernel leaves.
        const std::size_t most = i % 100 < 20 ? kLimit : i % 3 == 0 ? 40000 : 5000;
        if (!traffic.try_copy(most)) ++refused;
        if (i % 100 < 20) continue;
        traffic.poll();
        while (i % 100 == 99 && traffic.under_way() > 0) traffic.poll();
    }
    CHECK(refused > 0);
    CHECK(traffic.moves().posted() > 4 * kCopierSlots);
    while (traffic.under_way() > 0) traffic.poll();
}

TEST_CASE("rma: what the copier leaves to the driver", "[rma]") {
    Traffic traffic({4 * kPlain, 1}, 1);
    const CopierLane& moves = traffic.moves();
    CHECK(moves.can_copy(CopyEnds::device, 0x10000, 0x90000, 4 * kPlain));
    CHECK(!moves.can_copy(CopyEnds::device, 0x10000, 0x90000, 4 * kPlain + 16));
    CHECK(moves.can_copy(CopyEnds::peer_device, 0x10000, 0x90000, kPlain));
    CHECK(!moves.can_copy(CopyEnds::peer_device, 0x10000, 0x90000, kPlain + 16));
    CHECK(moves.can_copy(CopyEnds::device, 0x10001, 0x90000, kPlain));
    CHECK(!moves.can_copy(CopyEnds::device, 0x10001, 0x90000, kPlain + 1));
    CHECK(!moves.can_copy(CopyEnds::pinned, 0x10000, 0x90000, kPlain + 16));
    CHECK(!moves.can_copy(CopyEnds::device, std::uint64_t{1} << kCopierPayloadBits, 0x90000, 16));
}

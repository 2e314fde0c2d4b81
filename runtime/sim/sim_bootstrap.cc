// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/sim_bootstrap.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "host/base/checked_math.hpp"
#include "host/base/clock.hpp"
#include "host/bootstrap/meeting.hpp"
#include "host/emulator/engine.hpp"
#include "host/emulator/simulation.hpp"

namespace gimlet {

namespace {

struct SimGroup;

/// Where those that are left of a group meet, and of the groups that were left of it before.
struct SimMeeting {
    explicit SimMeeting(std::size_t group_size) : proposals(group_size) {}

    std::mutex mutex;
    Proposals proposals;  // ranks are those of the first group
    LeftGroups<SimGroup> groups;
};

/// What the ranks of one group share. All of them are fibers of one thread; the mutex is there for
/// ThreadSanitizer, to which fibers are threads, and is never held while a fiber waits.
struct SimGroup {
    SimGroup(int size, std::shared_ptr<SimMeeting> meeting, std::vector<int> names)
        : size(size), meeting(std::move(meeting)), names(std::move(names)) {}

    static std::shared_ptr<SimGroup> first(int size) {
        std::vector<int> names(static_cast<std::size_t>(size));
        std::iota(names.begin(), names.end(), 0);
        auto meeting = std::make_shared<SimMeeting>(names.size());
        return std::make_shared<SimGroup>(size, std::move(meeting), std::move(names));
    }

    const int size;
    const std::shared_ptr<SimMeeting> meeting;
    const std::vector<int> names;  // in the meeting
    std::mutex mutex;
    int arrived = 0;
    std::size_t part_bytes = 0;
    std::vector<std::byte> filling;
    // A rank may begin the next round before a slow one has taken the last: two results are kept.
    std::vector<std::byte> finished[2];
    std::atomic<std::uint64_t> round{0};
    std::map<std::pair<std::uint64_t, int>, std::shared_ptr<SimGroup>> children;
};

class SimBootstrap final : public Bootstrap {
  public:
    SimBootstrap(std::shared_ptr<SimGroup> group, int rank)
        : Bootstrap(rank, group->size), group_(std::move(group)) {}

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        const std::uint64_t round = bring(send, bytes);
        emu::Engine::get().wait("simulation bootstrap", [group = group_.get(), round] {
            return group->round.load() > round;
        });
        const std::lock_guard lock(group_->mutex);
        const std::vector<std::byte>& parts = group_->finished[round & 1];
        if (!parts.empty()) std::memcpy(receive, parts.data(), parts.size());
    }

    void barrier() override {
        const std::byte one{1};
        (void)Bootstrap::all_gather(&one, 1);
    }

    std::unique_ptr<Bootstrap> split(int color, int key) override {
        const std::vector<int> members = split_members(color, key);
        const std::uint64_t generation = split_count_++;
        if (color == kNoColor) return nullptr;
        const auto me = std::find(members.begin(), members.end(), rank());
        const std::lock_guard lock(group_->mutex);
        // Entries stay until the parent goes: a few bytes a split, and no second round of waiting.
        auto& child = group_->children[{generation, color}];
        if (child == nullptr) child = SimGroup::first(static_cast<int>(members.size()));
        return std::make_unique<SimBootstrap>(child, static_cast<int>(me - members.begin()));
    }

    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        SimMeeting& meeting = *group_->meeting;
        const auto in_meeting = [&](int r) { return group_->names[static_cast<std::size_t>(r)]; };
        std::vector<int> left;
        for (const int r : ranks) left.push_back(in_meeting(r));
        const int me = in_meeting(rank());
        propose(left, {});
        std::exception_ptr difference;
        emu::Engine::get().wait("those that are left", [&] {
            const std::lock_guard lock(meeting.mutex);
            try {
                return meeting.proposals.missing(me).empty();
            } catch (const Error&) {
                difference = std::current_exception();
                return true;
            }
        });
        if (difference) std::rethrow_exception(difference);
        const std::lock_guard lock(meeting.mutex);
        meeting.proposals.note_agreed(me);
        const auto child = meeting.groups.take(left, [&] {
            return std::make_shared<SimGroup>(static_cast<int>(left.size()), group_->meeting, left);
        });
        const auto at = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
        return std::make_unique<SimBootstrap>(child, static_cast<int>(at));
    }

    bool refuse_survivors(std::string_view reason) override {
        propose({}, std::string(reason));
        return true;
    }

    void name_ranks(std::vector<int> names) override {
        Bootstrap::name_ranks(names);
        SimMeeting& meeting = *group_->meeting;
        const std::lock_guard lock(meeting.mutex);
        meeting.proposals.name_ranks(std::move(names));
    }

  private:
    void propose(std::vector<int> left, std::string refusal) {
        const int me = group_->names[static_cast<std::size_t>(rank())];
        SimMeeting& meeting = *group_->meeting;
        {
            const std::lock_guard lock(meeting.mutex);
            meeting.proposals.propose(me, std::move(left), std::move(refusal));
        }
        emu::Engine::get().progress();
    }

    /// Returns the number of the round that this part belongs to.
    std::uint64_t bring(const void* send, std::size_t bytes) {
        SimGroup& group = *group_;
        const std::lock_guard lock(group.mutex);
        const std::uint64_t round = group.round.load();
        if (group.arrived == 0) {
            group.part_bytes = bytes;
            group.filling.assign(
                checked_mul(bytes, static_cast<std::size_t>(size()), "all-gather bytes", rank()),
                std::byte{0});
        } else if (bytes != group.part_bytes) {
            raise(ErrorCode::config_mismatch, name(rank()),
                  "all-gather: rank {} brought {} B, others {} B; ranks must make the same calls "
                  "in the "
                  "same order",
                  name(rank()), bytes, group.part_bytes);
        }
        if (bytes > 0) {
            std::memcpy(group.filling.data() + static_cast<std::size_t>(rank()) * bytes, send,
                        bytes);
        }
        if (++group.arrived == group.size) {
            group.arrived = 0;
            group.finished[round & 1].swap(group.filling);
            group.round.store(round + 1);
            emu::Engine::get().progress();
        }
        return round;
    }

    std::shared_ptr<SimGroup> group_;
    std::uint64_t split_count_ = 0;
};

}  // namespace

namespace {

/// Virtual time in a host program of a simulation; elsewhere the process's own. A deadline of the
/// host is so a function of the seed, not of how busy the machine is.
HostClock simulated_clock() {
    constexpr std::uint64_t kAnyGap = ~std::uint64_t{0};
    if (!emu::in_simulation()) return steady_host_clock();
    return {[] {
                emu::Engine& engine = emu::Engine::get();
                engine.note_clock_read();
                return engine.now_ns();
            },
            kAnyGap};
}

}  // namespace

std::unique_ptr<Bootstrap> make_sim_bootstrap(int rank) {
    set_host_clock_source(simulated_clock);
    emu::Engine& engine = emu::Engine::get();
    if (!engine.simulating()) {
        raise(ErrorCode::invalid_usage, rank,
              "simulation bootstrap: no simulation is running here; call it from a host program of "
              "emu::simulate");
    }
    const int size = engine.options().ranks;
    std::shared_ptr<SimGroup> mine;
    if (rank == 0) mine = SimGroup::first(size);
    // One address space: rank 0 shows where its pointer is, and keeps it there until all have
    // copied it.
    const std::shared_ptr<SimGroup>* address = &mine;
    const auto all = emu::host_all_gather(&address, sizeof(address));
    const std::shared_ptr<SimGroup>* root = nullptr;
    std::memcpy(&root, all.at(0).data(), sizeof(root));
    auto bootstrap = std::make_unique<SimBootstrap>(*root, rank);
    emu::host_barrier();
    return bootstrap;
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/thread_bootstrap.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "host/base/checked_math.hpp"
#include "host/base/deadline.hpp"
#include "host/base/text.hpp"
#include "host/bootstrap/meeting.hpp"

namespace gimlet {

namespace {
using Clock = std::chrono::steady_clock;
}  // namespace

/// Where those that are left of a group meet, and of the groups that were left of it before.
struct Meeting {
    explicit Meeting(std::size_t group_size) : proposals(group_size) {}

    std::mutex mutex;
    std::condition_variable changed;
    Proposals proposals;  // ranks are those of the first group
    LeftGroups<ThreadGroup> groups;
};

// One all-gather at a time. A round has two halves: everybody brings a part; everybody takes all
// parts. The next round may begin when the last has taken.
struct ThreadGroup::State {
    int size = 0;
    ThreadGroupOptions options;
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<bool> member_given;
    std::vector<bool> arrived;
    int arrived_count = 0;
    int to_take = 0;  // ranks that have not yet taken the finished round
    std::uint64_t rounds_finished = 0;
    std::size_t part_bytes = 0;
    std::vector<std::byte> parts;
    std::optional<std::string> failure;
    ErrorCode failure_code = ErrorCode::peer_failed;
    std::map<std::pair<std::uint64_t, int>, std::shared_ptr<ThreadGroup>> children;
    std::shared_ptr<Meeting> meeting;
    std::vector<int> names;  // in the meeting

    void fail(ErrorCode code, const std::string& reason) {
        if (!failure) {
            failure = reason;
            failure_code = code;
        }
        changed.notify_all();
    }

    [[noreturn]] void raise_failure(const Bootstrap& me) {
        raise_text(failure_code, me.name(me.rank()), *failure);
    }

    /// Waits, with the lock held, until `ready`; on a deadline or an abort it fails the whole
    /// group.
    template <typename Ready>
    void wait(std::unique_lock<std::mutex>& lock, const Bootstrap& me, const Ready& ready);

    std::string missing_ranks(const Bootstrap& me) const {
        std::vector<int> missing;
        for (int r = 0; r < size; ++r) {
            if (!arrived[static_cast<std::size_t>(r)]) missing.push_back(me.name(r));
        }
        return format_ranks(missing);
    }
};

template <typename Ready>
void ThreadGroup::State::wait(std::unique_lock<std::mutex>& lock, const Bootstrap& me,
                              const Ready& ready) {
    const auto deadline = deadline_after(options.timeout_ns);
    const auto done = [&] { return failure.has_value() || ready(); };
    while (!done()) {
        if (options.idle) {
            lock.unlock();
            options.idle();
            lock.lock();
        } else {
            changed.wait_until(lock, deadline, done);
        }
        if (!done() && Clock::now() >= deadline) {
            fail(ErrorCode::timeout,
                 fmt::format(
                     "bootstrap of {} threads: rank(s) {} did not come within {}; they may have "
                     "failed or called in another order (GIMLET_BOOTSTRAP_TIMEOUT_MS raises the "
                     "limit)",
                     size, missing_ranks(me), format_duration_ns(options.timeout_ns)));
        }
    }
    // A rank that can still finish its round does so; the failure meets it in the next one.
    if (!ready()) raise_failure(me);
}

class ThreadBootstrap final : public Bootstrap {
  public:
    ThreadBootstrap(std::shared_ptr<ThreadGroup> group, int rank)
        : Bootstrap(rank, group->size()), group_(std::move(group)) {}

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        ThreadGroup::State& state = *group_->state_;
        std::unique_lock lock(state.mutex);
        if (state.failure) state.raise_failure(*this);
        state.wait(lock, *this, [&] { return state.to_take == 0; });
        bring(state, send, bytes);
        const std::uint64_t round = state.rounds_finished;
        if (state.arrived_count == state.size) {
            state.arrived_count = 0;
            state.arrived.assign(state.arrived.size(), false);
            state.to_take = state.size;
            ++state.rounds_finished;
            state.changed.notify_all();
        } else {
            state.wait(lock, *this, [&] { return state.rounds_finished > round; });
        }
        if (!state.parts.empty()) std::memcpy(receive, state.parts.data(), state.parts.size());
        if (--state.to_take == 0) state.changed.notify_all();
    }

    void barrier() override {
        const std::byte one{1};
        (void)Bootstrap::all_gather(&one, 1);
    }

    std::unique_ptr<Bootstrap> split(int color, int key) override;
    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override;
    bool refuse_survivors(std::string_view reason) override;
    void name_ranks(std::vector<int> names) override;

  private:
    void propose(Meeting& meeting, std::vector<int> left, std::string refusal);
    void bring(ThreadGroup::State& state, const void* send, std::size_t bytes) {
        if (state.arrived_count == 0) {
            state.part_bytes = bytes;
            state.parts.assign(
                checked_mul(bytes, static_cast<std::size_t>(size()), "all-gather bytes", rank()),
                std::byte{0});
        } else if (bytes != state.part_bytes) {
            const std::string reason = fmt::format(
                "all-gather: rank {} brought {} B, others {} B; ranks must make the same calls in "
                "the "
                "same order",
                name(rank()), bytes, state.part_bytes);
            state.fail(ErrorCode::config_mismatch, reason);
            state.raise_failure(*this);
        }
        if (bytes > 0) {
            std::memcpy(state.parts.data() + static_cast<std::size_t>(rank()) * bytes, send, bytes);
        }
        state.arrived[static_cast<std::size_t>(rank())] = true;
        ++state.arrived_count;
    }

    std::shared_ptr<ThreadGroup> group_;
    std::uint64_t split_count_ = 0;
};

std::unique_ptr<Bootstrap> ThreadBootstrap::split(int color, int key) {
    const std::vector<int> members = split_members(color, key);
    const std::uint64_t generation = split_count_++;
    std::unique_ptr<Bootstrap> child;
    if (color != kNoColor) {
        const auto me = std::find(members.begin(), members.end(), rank());
        std::shared_ptr<ThreadGroup> group;
        {
            ThreadGroup::State& state = *group_->state_;
            const std::lock_guard lock(state.mutex);
            auto& entry = state.children[{generation, color}];
            if (entry == nullptr) {
                entry = ThreadGroup::create(static_cast<int>(members.size()), state.options);
            }
            group = entry;
        }
        child = group->member(static_cast<int>(me - members.begin()));
    }
    // After this nobody looks the children up any more: the members keep them alive.
    barrier();
    const std::lock_guard lock(group_->state_->mutex);
    group_->state_->children.erase({generation, color});
    return child;
}

std::unique_ptr<Bootstrap> ThreadBootstrap::survivors(std::span<const int> ranks) {
    const ThreadGroup::State& state = *group_->state_;
    Meeting& meeting = *state.meeting;
    const auto in_meeting = [&](int r) { return state.names[static_cast<std::size_t>(r)]; };
    std::vector<int> left;
    for (const int r : ranks) left.push_back(in_meeting(r));
    const int me = in_meeting(rank());
    std::unique_lock lock(meeting.mutex);
    propose(meeting, left, {});
    const std::uint64_t timeout_ns = meeting_timeout_ns(state.options.timeout_ns);
    const auto deadline = deadline_after(timeout_ns);
    while (true) {
        const std::vector<int> missing = meeting.proposals.missing(me);
        if (missing.empty()) break;
        if (Clock::now() >= deadline) meeting.proposals.raise_unheard(me, missing, timeout_ns);
        if (state.options.idle) {
            lock.unlock();
            state.options.idle();
            lock.lock();
        } else {
            meeting.changed.wait_until(lock, deadline);
        }
    }
    meeting.proposals.note_agreed(me);
    const auto group = meeting.groups.take(left, [&] {
        auto made = ThreadGroup::create(static_cast<int>(left.size()), state.options);
        made->state_->meeting = state.meeting;
        made->state_->names = left;
        return made;
    });
    const auto at = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return group->member(static_cast<int>(at));
}

/// With the meeting's lock held.
void ThreadBootstrap::propose(Meeting& meeting, std::vector<int> left, std::string refusal) {
    const int me = group_->state_->names[static_cast<std::size_t>(rank())];
    meeting.proposals.propose(me, std::move(left), std::move(refusal));
    meeting.changed.notify_all();
}

bool ThreadBootstrap::refuse_survivors(std::string_view reason) {
    Meeting& meeting = *group_->state_->meeting;
    const std::lock_guard lock(meeting.mutex);
    propose(meeting, {}, std::string(reason));
    return true;
}

void ThreadBootstrap::name_ranks(std::vector<int> names) {
    const ThreadGroup::State& state = *group_->state_;
    Bootstrap::name_ranks(names);
    const std::lock_guard lock(state.meeting->mutex);
    state.meeting->proposals.name_ranks(std::move(names));
}

ThreadGroup::ThreadGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}

ThreadGroup::~ThreadGroup() = default;

std::shared_ptr<ThreadGroup> ThreadGroup::create(int size, ThreadGroupOptions options) {
    if (size < 1) {
        raise(ErrorCode::invalid_argument, kNoRank, "thread group: {} ranks, must be at least 1",
              size);
    }
    auto state = std::make_unique<State>();
    state->size = size;
    state->options = std::move(options);
    if (state->options.timeout_ns == 0) {
        state->options.timeout_ns = bootstrap_timeout_ns();
    }
    state->meeting = std::make_shared<Meeting>(static_cast<std::size_t>(size));
    state->names.resize(static_cast<std::size_t>(size));
    std::iota(state->names.begin(), state->names.end(), 0);
    state->member_given.resize(static_cast<std::size_t>(size), false);
    state->arrived.resize(static_cast<std::size_t>(size), false);
    return std::shared_ptr<ThreadGroup>(new ThreadGroup(std::move(state)));
}

int ThreadGroup::size() const noexcept {
    return state_->size;
}

std::unique_ptr<Bootstrap> ThreadGroup::member(int rank) {
    auto bootstrap = std::make_unique<ThreadBootstrap>(shared_from_this(), rank);
    const std::lock_guard lock(state_->mutex);
    if (state_->member_given[static_cast<std::size_t>(rank)]) {
        raise(ErrorCode::invalid_usage, rank, "thread group: rank {} has its member already", rank);
    }
    state_->member_given[static_cast<std::size_t>(rank)] = true;
    return bootstrap;
}

void ThreadGroup::abort(const std::string& reason) {
    const std::lock_guard lock(state_->mutex);
    state_->fail(ErrorCode::peer_failed, "bootstrap was aborted: " + reason);
}

}  // namespace gimlet

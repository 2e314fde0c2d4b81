// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/message_bootstrap.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "host/base/checked_math.hpp"
#include "host/base/deadline.hpp"
#include "host/base/hash.hpp"
#include "host/base/text.hpp"
#include "host/bootstrap/meeting.hpp"

namespace gimlet {

namespace {

// The standard of MPI promises tags up to 32767; 0 is the tag of all ranks together.
constexpr std::uint64_t kTags = 32767;
constexpr int kSplitSalt = 65537;
constexpr int kMeetingSalt = -1;

int tag_of(std::vector<int> name, int salt) {
    name.push_back(salt);
    return static_cast<int>(1 + hash_bytes(name.data(), name.size() * sizeof(int)) % kTags);
}

/// What a group shares with those that are left of it.
struct Root {
    int tag;
    Proposals proposals;  // ranks are those of the root
};

/// Attempt, count of ranks, the ranks, and the refusal's text.
std::vector<std::byte> pack(const Proposal& proposal) {
    std::vector<std::uint64_t> words{proposal.attempt, proposal.left.size()};
    words.insert(words.end(), proposal.left.begin(), proposal.left.end());
    const auto head = std::as_bytes(std::span(words));
    const auto text = std::as_bytes(std::span(proposal.refusal));
    std::vector<std::byte> out(head.begin(), head.end());
    out.insert(out.end(), text.begin(), text.end());
    return out;
}

std::optional<Proposal> unpack(std::span<const std::byte> message) {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    std::vector<std::uint64_t> words(message.size() / kWord);
    std::memcpy(words.data(), message.data(), words.size() * kWord);
    if (words.size() < 2 || words[1] > words.size() - 2) return std::nullopt;
    const auto ranks = words.begin() + 2;
    const auto end = ranks + static_cast<std::ptrdiff_t>(words[1]);
    Proposal out;
    out.attempt = words[0];
    out.left.assign(ranks, end);
    const auto text = message.subspan((2 + words[1]) * kWord);
    out.refusal.assign(reinterpret_cast<const char*>(text.data()), text.size());
    return out;
}

/// Some ranks of a transport. Messages between pairs: a collective of the layer below might have no
/// deadline, or need ranks that are dead.
class MessageBootstrap final : public Bootstrap {
  public:
    /// What makes a group. Groups that share ranks of a transport need a `tag` each.
    struct Group {
        std::shared_ptr<MessageTransport> transport;
        MessageBootstrapOptions options;
        std::vector<int> members;  // ranks of the transport
        std::vector<int> names;    // the same, as ranks of the root
        int index;
        int tag;
        std::shared_ptr<Root> root;
    };

    explicit MessageBootstrap(Group group)
        : Bootstrap(group.index, static_cast<int>(group.members.size())),
          group_(std::move(group)) {}

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        if (failure_) raise_text(failure_code_, shown_self(), *failure_);
        try {
            exchange({static_cast<const std::byte*>(send), bytes},
                     static_cast<std::byte*>(receive));
        } catch (const Error& error) {
            failure_ = error.message();
            failure_code_ = error.code();
            throw;
        }
    }

    void barrier() override {
        const std::byte one{1};
        (void)Bootstrap::all_gather(&one, 1);
    }

    std::unique_ptr<Bootstrap> split(int color, int key) override {
        const std::vector<int> ranks = split_members(color, key);
        const int salt = group_.tag + kSplitSalt * ++split_count_;
        if (color == kNoColor) return nullptr;
        Group child = part(ranks, salt);
        std::iota(child.names.begin(), child.names.end(), 0);
        child.root = std::make_shared<Root>(Root{child.tag, Proposals(child.members.size())});
        return std::make_unique<MessageBootstrap>(std::move(child));
    }

    /// Whoever names the same ranks meets here, from whichever earlier group of the root: of those
    /// that excluded others, some may have come further than the rest.
    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        Group child = part(ranks, group_.root->tag);
        meet(child);
        return std::make_unique<MessageBootstrap>(std::move(child));
    }

    bool refuse_survivors(std::string_view reason) override {
        propose({}, std::string(reason));
        return true;
    }

    void name_ranks(std::vector<int> names) override {
        Bootstrap::name_ranks(names);
        named_ = true;
        group_.root->proposals.name_ranks(std::move(names));
    }

  private:
    Group part(std::span<const int> ranks, int salt) const {
        Group out = group_;
        out.members.clear();
        out.names.clear();
        for (const int r : ranks) {
            out.members.push_back(member(r));
            out.names.push_back(group_.names[static_cast<std::size_t>(r)]);
        }
        out.index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
        out.tag = tag_of(out.members, salt);
        return out;
    }

    int meeting_tag() const { return tag_of({group_.root->tag}, kMeetingSalt); }

    /// Tells everybody who is left, those that are not included: they may think otherwise.
    void propose(std::vector<int> left, std::string refusal) {
        Root& root = *group_.root;
        const int me = group_.names[static_cast<std::size_t>(rank())];
        std::sort(left.begin(), left.end());
        Proposal mine{root.proposals.next_attempt(me), std::move(left), std::move(refusal)};
        const std::vector<std::byte> message = pack(mine);
        root.proposals.put(me, std::move(mine));
        for (int r = 0; r < size(); ++r) {
            if (r != rank()) group_.transport->send(member(r), meeting_tag(), message);
        }
    }

    void meet(const Group& left) {
        Root& root = *group_.root;
        const int tag = meeting_tag();
        const int me = group_.names[static_cast<std::size_t>(rank())];
        propose(left.names, {});
        std::vector<int> missing;
        const std::uint64_t timeout_ns = meeting_timeout_ns(group_.options.timeout_ns);
        const bool agreed = poll_until(deadline_after(timeout_ns), [&] {
            for (std::size_t i = 0; i < left.members.size(); ++i) {
                if (static_cast<int>(i) != left.index) hear(left.members[i], left.names[i], tag);
            }
            missing = root.proposals.missing(me);
            return missing.empty();
        });
        if (agreed) {
            root.proposals.note_agreed(me);
            return;
        }
        root.proposals.raise_unheard(me, missing, timeout_ns);
    }

    void hear(int peer, int name, int tag) {
        while (const auto message = group_.transport->receive(peer, tag)) {
            if (auto theirs = unpack(*message))
                group_.root->proposals.put(name, std::move(*theirs));
        }
    }

    void exchange(std::span<const std::byte> part, std::byte* receive) {
        const std::size_t bytes = part.size();
        (void)checked_mul(bytes, static_cast<std::size_t>(size()), "all-gather bytes", rank());
        std::vector<int> waiting;  // for their parts, or for ours to leave
        for (int i = 1; i < size(); ++i) waiting.push_back((rank() + i) % size());
        for (const int r : waiting) group_.transport->send(member(r), group_.tag, part);
        if (bytes > 0)
            std::memcpy(receive + static_cast<std::size_t>(rank()) * bytes, part.data(), bytes);
        std::vector<bool> here(static_cast<std::size_t>(size()), false);
        const auto settled = [&](int r) {
            const auto at = static_cast<std::size_t>(r);
            if (!here[at]) {
                const auto message = group_.transport->receive(member(r), group_.tag);
                if (!message) return false;
                if (message->size() != bytes) raise_size(r, message->size(), bytes);
                if (bytes > 0) std::memcpy(receive + at * bytes, message->data(), bytes);
                here[at] = true;
            }
            return group_.transport->sent(member(r));
        };
        const bool done = poll_until(deadline_after(group_.options.timeout_ns), [&] {
            std::erase_if(waiting, settled);
            return waiting.empty();
        });
        if (!done) raise_missing(waiting);
    }

    [[noreturn]] void raise_size(int peer, std::size_t theirs, std::size_t ours) const {
        raise(ErrorCode::config_mismatch, shown_self(),
              "all-gather: rank {} brought {} B, rank {} brought {} B; ranks must make the same "
              "calls in the same order",
              shown(peer), theirs, shown_self(), ours);
    }

    [[noreturn]] void raise_missing(const std::vector<int>& waiting) const {
        std::vector<int> missing;
        for (const int r : waiting) missing.push_back(shown(r));
        std::sort(missing.begin(), missing.end());
        raise(ErrorCode::timeout, shown_self(),
              "bootstrap of {} {}: rank {} did not come within {}; it may have failed or called in "
              "another order (GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)",
              size(), group_.options.members, format_ranks(missing),
              format_duration_ns(group_.options.timeout_ns));
    }

    /// Its rank in the transport.
    int member(int r) const { return group_.members[static_cast<std::size_t>(r)]; }
    /// What errors call it.
    int shown(int r) const { return named_ ? name(r) : member(r); }
    int shown_self() const { return name(rank()); }

    Group group_;
    int split_count_ = 0;
    bool named_ = false;
    std::optional<std::string> failure_;  // of the first call that failed: no later one can work
    ErrorCode failure_code_ = ErrorCode::system;
};

}  // namespace

std::unique_ptr<Bootstrap> make_message_bootstrap(std::shared_ptr<MessageTransport> transport,
                                                  const MessageBootstrapOptions& options) {
    if (transport == nullptr) {
        raise(ErrorCode::invalid_argument, kNoRank, "message bootstrap: the transport is null");
    }
    MessageBootstrap::Group all;
    all.options = options;
    if (all.options.timeout_ns == 0) all.options.timeout_ns = bootstrap_timeout_ns();
    all.members.resize(static_cast<std::size_t>(std::max(transport->size(), 0)));
    std::iota(all.members.begin(), all.members.end(), 0);
    all.names = all.members;
    all.index = transport->rank();
    all.tag = 0;
    all.root = std::make_shared<Root>(Root{0, Proposals(all.members.size())});
    all.transport = std::move(transport);
    return std::make_unique<MessageBootstrap>(std::move(all));
}

}  // namespace gimlet

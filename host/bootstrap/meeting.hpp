// SPDX-License-Identifier: Apache-2.0
// How ranks that are left agree on who is left. Internal to the bootstraps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/base/error.hpp"
#include "host/base/text.hpp"

namespace gimlet {

/// How long the ranks that are left wait for each other. One of them may still be in a collective
/// call with a dead rank, and comes when that has given up.
constexpr std::uint64_t meeting_timeout_ns(std::uint64_t call_timeout_ns) {
    constexpr std::uint64_t kLongestNs = std::uint64_t{1} << 62;
    return call_timeout_ns > kLongestNs / 2 ? kLongestNs : 2 * call_timeout_ns;
}

/// The ranks that somebody takes for left.
struct Proposal {
    std::uint64_t attempt = 0;  ///< its author's first is 1
    std::vector<int> left;      ///< ascending
    std::string refusal;        ///< why its author names nobody; empty = it names `left`
};

/// What is known of everybody's newest proposal. A rank goes on when all that it names have named
/// the same ones. It fails at once when one of them names others: that one waits for other ranks.
/// What a rank says that it does not name itself is of no interest.
class Proposals {
  public:
    /// Of a first group of so many ranks.
    explicit Proposals(std::size_t group_size) : group_size_(group_size) {}

    /// A rank may speak several times: an older proposal is forgotten. A refusal is not: its author
    /// does not wait, and the others may come to that attempt later.
    void put(int rank, Proposal proposal) {
        if (!proposal.refusal.empty()) refusals_[{rank, proposal.attempt}] = proposal.refusal;
        newest_[rank] = std::move(proposal);
    }
    /// Number of `rank`'s next proposal.
    std::uint64_t next_attempt(int rank) const {
        const auto found = newest_.find(rank);
        return found == newest_.end() ? 1 : found->second.attempt + 1;
    }

    /// The next one of `rank`.
    void propose(int rank, std::vector<int> left, std::string refusal) {
        put(rank, {next_attempt(rank), std::move(left), std::move(refusal)});
    }

    /// Errors call rank r names[r]; until then r. Names of a smaller group are of no use here.
    void name_ranks(std::vector<int> names) {
        if (names.size() == group_size_) names_ = std::move(names);
    }
    int name(int rank) const {
        return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
    }
    std::string names(const std::vector<int>& ranks) const {
        std::vector<int> out;
        for (const int rank : ranks) out.push_back(name(rank));
        return format_ranks(out);
    }

    /// Whom `rank`, which has made a proposal, still waits for; none = agreed. Raises
    /// Error(config_mismatch) with both lists, and Error(peer_failed) with the reason of one that
    /// refuses.
    std::vector<int> missing(int rank) const {
        const Proposal& mine = newest_.at(rank);
        std::vector<int> missing;
        for (const int other : mine.left) {
            const auto refused = refusals_.find({other, mine.attempt});
            if (refused != refusals_.end()) raise_refusal(rank, other, refused->second);
            const auto newest = newest_.find(other);
            if (newest == newest_.end()) {
                missing.push_back(other);
                continue;
            }
            const Proposal& theirs = newest->second;
            // An earlier one may have failed by then, here or there.
            const bool later = theirs.attempt >= mine.attempt;
            if (later && !theirs.refusal.empty()) raise_refusal(rank, other, theirs.refusal);
            if (later && theirs.left != mine.left) raise_difference(rank, other);
            if (theirs.left != mine.left || used(rank, other) >= theirs.attempt || doomed(theirs))
                missing.push_back(other);
        }
        return missing;
    }

    /// `rank` misses nobody: what the others have said is used up, and the next time they must say
    /// it again.
    void note_agreed(int rank) {
        for (const int other : newest_.at(rank).left)
            used_[{rank, other}] = newest_.at(other).attempt;
    }

    /// For who has waited too long.
    [[noreturn]] void raise_unheard(int rank, const std::vector<int>& missing,
                                    std::uint64_t timeout_ns) const {
        raise(ErrorCode::timeout, name(rank),
              "ranks that are left: rank {} did not say within {} who is left; it may have failed, "
              "too (GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)",
              names(missing), format_duration_ns(timeout_ns));
    }

  private:
    std::uint64_t used(int rank, int other) const {
        const auto found = used_.find({rank, other});
        return found == used_.end() || rank == other ? 0 : found->second;
    }

    /// Somebody that it names refuses that attempt: its author will not go on.
    bool doomed(const Proposal& proposal) const {
        return std::any_of(proposal.left.begin(), proposal.left.end(), [&](int rank) {
            return refusals_.count({rank, proposal.attempt}) > 0;
        });
    }

    [[noreturn]] void raise_difference(int rank, int other) const {
        raise(ErrorCode::config_mismatch, name(rank),
              "ranks that are left: rank {} names {}, rank {} names {}; all of them must exclude "
              "the same ranks",
              name(rank), names(newest_.at(rank).left), name(other), names(newest_.at(other).left));
    }

    [[noreturn]] void raise_refusal(int rank, int other, const std::string& reason) const {
        raise(ErrorCode::peer_failed, name(rank),
              "ranks that are left: rank {} refuses; it says: {}", name(other), reason);
    }

    std::size_t group_size_;
    std::map<int, Proposal> newest_;
    std::map<std::pair<int, std::uint64_t>, std::string> refusals_;  // by rank and attempt
    std::map<std::pair<int, int>, std::uint64_t> used_;              // attempts, by who used whose
    std::vector<int> names_;
};

/// Where ranks of one address space that have agreed find the group that they share.
template <typename Group>
class LeftGroups {
  public:
    /// The group of `left`: made by the first that comes, forgotten when all of them have it.
    template <typename Make>
    std::shared_ptr<Group> take(const std::vector<int>& left, const Make& make) {
        Entry& entry = entries_[left];
        if (entry.group == nullptr) entry.group = make();
        const std::shared_ptr<Group> group = entry.group;
        if (++entry.taken == left.size()) entries_.erase(left);
        return group;
    }

  private:
    struct Entry {
        std::shared_ptr<Group> group;
        std::size_t taken = 0;
    };
    std::map<std::vector<int>, Entry> entries_;
};

}  // namespace gimlet

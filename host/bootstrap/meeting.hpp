// SPDX-License-Identifier: Apache-2.0
// How ranks that are left agree on who is left. Internal to the bootstraps.
#pragma once

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

[[noreturn]] inline void raise_unheard(int rank, const std::vector<int>& missing,
                                       std::uint64_t timeout_ns) {
    raise(ErrorCode::timeout, rank,
          "ranks that are left: rank {} did not say within {} who is left; it may have failed, too "
          "(GIMLET_BOOTSTRAP_TIMEOUT_MS raises the limit)",
          format_ranks(missing), format_duration_ns(timeout_ns));
}

/// The ranks that somebody takes for left.
struct Proposal {
    std::uint64_t attempt = 0;  ///< its author's first is 1
    std::vector<int> left;      ///< ascending
};

/// What is known of everybody's newest proposal. A rank goes on when all that it names have named
/// the same ones. It fails at once when one of them names others: that one waits for other ranks.
/// What a rank says that it does not name itself is of no interest.
class Proposals {
  public:
    /// A rank may speak several times: an older proposal is forgotten.
    void put(int rank, Proposal proposal) { newest_[rank] = std::move(proposal); }
    /// Number of `rank`'s next proposal.
    std::uint64_t next_attempt(int rank) const {
        const auto found = newest_.find(rank);
        return found == newest_.end() ? 1 : found->second.attempt + 1;
    }

    /// Whom `rank`, which has made a proposal, still waits for; none = agreed. Raises
    /// Error(config_mismatch) with both lists.
    std::vector<int> missing(int rank) const {
        const Proposal& mine = newest_.at(rank);
        std::vector<int> missing;
        for (const int other : mine.left) {
            const auto theirs = newest_.find(other);
            if (theirs == newest_.end()) {
                missing.push_back(other);
            } else if (theirs->second.left != mine.left) {
                // An earlier one may have failed by then, here or there.
                if (theirs->second.attempt >= mine.attempt) raise_difference(rank, other);
                missing.push_back(other);
            }
        }
        return missing;
    }

  private:
    [[noreturn]] void raise_difference(int rank, int other) const {
        raise(ErrorCode::config_mismatch, rank,
              "ranks that are left: rank {} names {}, rank {} names {}; all of them must exclude "
              "the same ranks",
              rank, format_ranks(newest_.at(rank).left), other,
              format_ranks(newest_.at(other).left));
    }

    std::map<int, Proposal> newest_;
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

// SPDX-License-Identifier: Apache-2.0
// How ranks find each other before NCCL exists: rank, size, all-gather, barrier. Everything here is
// host-only, slow, and used during set-up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "host/base/error.hpp"

namespace gimlet {

/// Colour of a rank that takes no part in a split.
inline constexpr int kNoColor = -1;

/// Longest wait of a collective call: GIMLET_BOOTSTRAP_TIMEOUT_MS in nanoseconds. Raises
/// Error(invalid_argument) if that is no number.
std::uint64_t bootstrap_timeout_ns();

/// One rank's view of a group. Collective calls must come in the same order on every rank; one
/// object serves one thread at a time. Any failure (a deadline, a dead peer) raises; the object is
/// then unusable.
class Bootstrap {
  public:
    virtual ~Bootstrap() = default;
    Bootstrap(const Bootstrap&) = delete;
    Bootstrap& operator=(const Bootstrap&) = delete;

    int rank() const noexcept { return rank_; }
    int size() const noexcept { return size_; }

    /// What errors call rank `r`, and Error::rank() this one: `r`, or what name_ranks() has said.
    int name(int r) const noexcept {
        return names_.empty() ? r : names_[static_cast<std::size_t>(r)];
    }
    /// Local, the same on all ranks. From now on errors name ranks as in `names`, by rank here: of
    /// a group that is left of another one, in that one's numbers.
    virtual void name_ranks(std::vector<int> names);

    /// Collective. `bytes` is equal on all ranks and may be 0. `receive` has room for size() *
    /// bytes; rank r's part lands at r * bytes.
    virtual void all_gather(const void* send, std::size_t bytes, void* receive) = 0;

    /// Collective. Returns after every rank has entered.
    virtual void barrier() = 0;

    /// Collective. Groups ranks of equal `color` (>= 0, or kNoColor to stay out: null is returned),
    /// ordered by (key, rank). Raises Error(not_supported) where the kind of bootstrap cannot.
    virtual std::unique_ptr<Bootstrap> split(int color, int key) = 0;

    /// Collective over `ranks` alone (ascending, this rank among them), while the others may be
    /// dead. Works on an object whose collective calls have failed. Raises Error(config_mismatch)
    /// at once, with both lists, if one of `ranks` names others, and Error(not_supported) where the
    /// kind of bootstrap cannot.
    virtual std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks);

    /// Local, never waits. For a rank that cannot make its call of survivors(): the others hear at
    /// once (Error(peer_failed)) that it refuses, and why. False where the kind of bootstrap cannot
    /// tell them: they wait for their deadline.
    virtual bool refuse_survivors(std::string_view reason);

    // Conveniences on top of the three, all collective.
    std::vector<std::byte> all_gather(const void* send, std::size_t bytes);
    /// Parts of different length; result[r] is rank r's.
    std::vector<std::string> all_gather_texts(std::string_view text);
    /// `data` of `root` reaches every rank.
    void broadcast(void* data, std::size_t bytes, int root);

    template <typename T>
    std::vector<T> all_gather_values(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<T> values(static_cast<std::size_t>(size_));
        all_gather(&value, sizeof(T), values.data());
        return values;
    }

  protected:
    Bootstrap(int rank, int size);

    /// Collective: what split() begins with. The ranks of this rank's color, in the order that they
    /// have in the new group; none for kNoColor. A faulty color of one rank is an error on all.
    std::vector<int> split_members(int color, int key);

  private:
    int rank_;
    int size_;
    std::vector<int> names_;
};

/// One value that must be equal on all ranks, as text: {"hidden", "7168"}.
struct AgreementField {
    std::string name;
    std::string value;
};

/// Collective (law 10). Compares all fields at once. If a rank differs, every rank raises the same
/// Error(config_mismatch): the subject, the first differing field, each differing rank with its
/// value, and the value of the others. The value of most ranks counts as right; on a tie, rank 0's.
void check_agreement(Bootstrap& bootstrap, std::string_view subject,
                     const std::vector<AgreementField>& fields);

/// The same where a rank may have refused its own values: `failure` says why, null if they are
/// good. Ranks that have one rethrow it; all others raise Error(peer_failed) with these ranks and
/// the first one's message. Fields are compared if nobody has one. `cure` ends the text of a
/// difference.
void check_agreement(Bootstrap& bootstrap, std::string_view subject,
                     const std::vector<AgreementField>& fields, const std::exception_ptr& failure,
                     std::string_view cure = "give every rank the same value");

/// Same for an opaque block of bytes, compared by size and hash.
void check_agreement(Bootstrap& bootstrap, std::string_view subject, const void* data,
                     std::size_t bytes);

/// Runs one rank's part of something collective and returns its failure, null if it went well: for
/// check_all_succeeded() and check_agreement().
template <typename Part>
std::exception_ptr failure_of(const Part& part) {
    try {
        part();
    } catch (...) {
        return std::current_exception();
    }
    return nullptr;
}

/// Collective. Each rank says how its own part of `what` went: `failure` is null if well. If any
/// rank failed, the failed ones rethrow their own error, and all others raise Error(peer_failed)
/// naming the ranks and the first one's message. So a collective creation ends everywhere or
/// nowhere.
void check_all_succeeded(Bootstrap& bootstrap, std::string_view what,
                         const std::exception_ptr& failure);

}  // namespace gimlet

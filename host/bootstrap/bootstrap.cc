// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/bootstrap.hpp"

#include <algorithm>
#include <cstring>
#include <map>

#include "host/base/checked_math.hpp"
#include "host/base/env.hpp"
#include "host/base/hash.hpp"
#include "host/base/log.hpp"
#include "host/base/text.hpp"

namespace gimlet {

namespace {

constexpr std::size_t kMessageBytes = 256;

/// Index of the value that most ranks have; on a tie the one that the lowest rank has.
std::size_t majority_rank(const std::vector<std::string>& values) {
    std::map<std::string_view, int> votes;
    for (const std::string& value : values) ++votes[value];
    std::size_t best = 0;
    for (std::size_t r = 1; r < values.size(); ++r) {
        if (votes[values[r]] > votes[values[best]]) best = r;
    }
    return best;
}

/// "window bytes: rank 2 has '4096', rank 5 has '1'; ranks 0-1, 3-4 have '8192'"; empty if all
/// agree.
std::string describe_difference(const Bootstrap& bootstrap, std::string_view field,
                                const std::vector<std::string>& values) {
    const std::string& right = values[majority_rank(values)];
    std::vector<int> agreeing;
    std::string differing;
    for (std::size_t r = 0; r < values.size(); ++r) {
        const int name = bootstrap.name(static_cast<int>(r));
        if (values[r] == right) {
            agreeing.push_back(name);
        } else {
            differing +=
                fmt::format("{}rank {} has '{}'", differing.empty() ? "" : ", ", name, values[r]);
        }
    }
    if (differing.empty()) return "";
    return fmt::format("{}: {}; {} {} '{}'", field, differing,
                       agreeing.size() == 1 ? "rank" : "ranks",
                       format_ranks(agreeing) + (agreeing.size() == 1 ? " has" : " have"), right);
}

// Length-prefixed, so that any byte may appear in a name or value.
void append_part(std::string* packed, std::string_view part) {
    const std::uint64_t length = part.size();
    packed->append(reinterpret_cast<const char*>(&length), sizeof(length));
    packed->append(part);
}

std::vector<std::string> unpack_parts(std::string_view packed) {
    std::vector<std::string> parts;
    while (packed.size() >= sizeof(std::uint64_t)) {
        std::uint64_t length = 0;
        std::memcpy(&length, packed.data(), sizeof(length));
        packed.remove_prefix(sizeof(length));
        parts.emplace_back(packed.substr(0, length));
        packed.remove_prefix(std::min<std::size_t>(length, packed.size()));
    }
    return parts;
}

/// Never empty, unless `failure` is null.
std::string text_of(const std::exception_ptr& failure) {
    if (!failure) return "";
    try {
        std::rethrow_exception(failure);
    } catch (const Error& error) {
        return fmt::format("{}: {}", error_code_name(error.code()), error.message());
    } catch (const std::exception& error) {
        return *error.what() == 0 ? "an error without a text" : error.what();
    } catch (...) {
        return "an exception that is no std::exception";
    }
}

/// `messages` are by rank; "" = it went well there.
void raise_if_failed(const Bootstrap& bootstrap, std::string_view what,
                     const std::vector<std::string>& messages) {
    std::vector<int> failed;
    const std::string* first = nullptr;
    for (std::size_t r = 0; r < messages.size(); ++r) {
        if (messages[r].empty()) continue;
        failed.push_back(bootstrap.name(static_cast<int>(r)));
        if (first == nullptr) first = &messages[r];
    }
    if (failed.empty()) return;
    raise(ErrorCode::peer_failed, bootstrap.name(bootstrap.rank()),
          "{} failed on {} {}; rank {} says: {}", what, failed.size() == 1 ? "rank" : "ranks",
          format_ranks(failed), failed[0], *first);
}

/// The gathering of a meeting in which this rank may have failed: the cause is what this rank's
/// caller must see, not that it could not be told to others.
template <typename Gather>
auto gather_outcomes(const std::exception_ptr& failure, Gather gather) {
    decltype(gather()) all;
    try {
        all = gather();
    } catch (const Error&) {
        if (!failure) throw;
    }
    if (failure) std::rethrow_exception(failure);
    return all;
}

/// Raises for the first field that differs. `all` is what each rank packed in check_agreement().
void raise_difference(const Bootstrap& bootstrap, std::string_view subject,
                      const std::vector<std::string>& all, std::string_view cure) {
    std::vector<std::vector<std::string>> parts;
    std::size_t longest = 0;
    for (const std::string& one : all) {
        parts.push_back(unpack_parts(one));
        parts.back().erase(parts.back().begin());  // the failure
        longest = std::max(longest, parts.back().size());
    }
    for (std::size_t i = 0; i < longest; ++i) {
        std::vector<std::string> values;
        for (const auto& one : parts) values.push_back(i < one.size() ? one[i] : "(missing)");
        const bool is_name = i % 2 == 0;
        const std::string& name = parts[majority_rank(all)].size() > i
                                      ? parts[majority_rank(all)][i - i % 2]
                                      : values[majority_rank(values)];
        const std::string difference =
            describe_difference(bootstrap, is_name ? "field name" : name, values);
        if (difference.empty()) continue;
        raise(ErrorCode::config_mismatch, bootstrap.name(bootstrap.rank()),
              "{}: ranks disagree in {}; {}", subject, difference, cure);
    }
}

}  // namespace

std::uint64_t bootstrap_timeout_ns() {
    return static_cast<std::uint64_t>(env_int(EnvVar::bootstrap_timeout_ms)) * 1'000'000;
}

Bootstrap::Bootstrap(int rank, int size) : rank_(rank), size_(size) {
    if (size < 1) {
        raise(ErrorCode::invalid_argument, rank, "bootstrap: {} ranks, must be at least 1", size);
    }
    if (rank < 0 || rank >= size) {
        raise(ErrorCode::invalid_argument, rank, "bootstrap: rank {} is outside 0..{}", rank,
              size - 1);
    }
}

void Bootstrap::name_ranks(std::vector<int> names) {
    if (names.size() != static_cast<std::size_t>(size_)) {
        raise(ErrorCode::internal, rank_, "name_ranks: {} names for {} ranks", names.size(), size_);
    }
    names_ = std::move(names);
}

bool Bootstrap::refuse_survivors(std::string_view) {
    return false;
}

std::unique_ptr<Bootstrap> Bootstrap::survivors(std::span<const int> ranks) {
    raise(ErrorCode::not_supported, name(rank()),
          "this bootstrap cannot go on with ranks {} alone; pass one of their own to exclude()",
          format_ranks(ranks));
}

std::vector<int> Bootstrap::split_members(int color, int key) {
    struct Choice {
        int color;
        int key;
    };
    const auto all = all_gather_values(Choice{color, key});
    const auto check = [&](int r, ErrorCode code) {
        const int theirs = all[static_cast<std::size_t>(r)].color;
        if (theirs >= 0 || theirs == kNoColor) return;
        raise(code, name(rank_), "split: color {} of rank {} is below 0 and not kNoColor", theirs,
              name(r));
    };
    check(rank_, ErrorCode::invalid_argument);
    for (int r = 0; r < size_; ++r) check(r, ErrorCode::peer_failed);
    std::vector<int> members;
    if (color == kNoColor) return members;
    for (int r = 0; r < size_; ++r)
        if (all[static_cast<std::size_t>(r)].color == color) members.push_back(r);
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
        return all[static_cast<std::size_t>(a)].key < all[static_cast<std::size_t>(b)].key;
    });
    return members;
}

std::vector<std::byte> Bootstrap::all_gather(const void* send, std::size_t bytes) {
    std::vector<std::byte> all(
        checked_mul(bytes, static_cast<std::size_t>(size_), "all-gather bytes", rank_));
    all_gather(send, bytes, all.data());
    return all;
}

std::vector<std::string> Bootstrap::all_gather_texts(std::string_view text) {
    const std::vector<std::uint64_t> lengths = all_gather_values<std::uint64_t>(text.size());
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::string padded(text);
    padded.resize(longest);
    const std::vector<std::byte> all = all_gather(padded.data(), longest);
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < lengths.size(); ++r) {
        texts.emplace_back(reinterpret_cast<const char*>(all.data()) + r * longest, lengths[r]);
    }
    return texts;
}

void Bootstrap::broadcast(void* data, std::size_t bytes, int root) {
    if (root < 0 || root >= size_) {
        raise(ErrorCode::invalid_argument, name(rank_), "broadcast: root {} is outside 0..{}", root,
              size_ - 1);
    }
    // One all-gather is wasteful and simple; set-up data is small.
    const std::vector<std::byte> all = all_gather(data, bytes);
    if (bytes > 0) std::memcpy(data, all.data() + static_cast<std::size_t>(root) * bytes, bytes);
}

void check_agreement(Bootstrap& bootstrap, std::string_view subject,
                     const std::vector<AgreementField>& fields) {
    check_agreement(bootstrap, subject, fields, nullptr);
}

void check_agreement(Bootstrap& bootstrap, std::string_view subject,
                     const std::vector<AgreementField>& fields, const std::exception_ptr& failure,
                     std::string_view cure) {
    std::string packed;
    append_part(&packed, text_of(failure));
    for (const AgreementField& field : fields) {
        append_part(&packed, field.name);
        append_part(&packed, field.value);
    }
    const std::vector<std::string> all =
        gather_outcomes(failure, [&] { return bootstrap.all_gather_texts(packed); });
    if (std::all_of(all.begin(), all.end(),
                    [&](const std::string& one) { return one == all[0]; })) {
        return;
    }
    std::vector<std::string> messages;
    for (const std::string& one : all) {
        const std::vector<std::string> parts = unpack_parts(one);
        messages.push_back(parts.empty() ? "" : parts.front());
    }
    raise_if_failed(bootstrap, subject, messages);
    raise_difference(bootstrap, subject, all, cure);
}

void check_agreement(Bootstrap& bootstrap, std::string_view subject, const void* data,
                     std::size_t bytes) {
    check_agreement(bootstrap, subject,
                    {{"size in bytes", fmt::format("{}", bytes)},
                     {"content hash", fmt::format("{:016x}", hash_bytes(data, bytes))}});
}

void check_all_succeeded(Bootstrap& bootstrap, std::string_view what,
                         const std::exception_ptr& failure) {
    struct Outcome {
        char message[kMessageBytes] = {};
    };
    Outcome mine;
    text_of(failure).copy(mine.message, kMessageBytes - 1);
    const std::vector<Outcome> all =
        gather_outcomes(failure, [&] { return bootstrap.all_gather_values(mine); });
    std::vector<std::string> messages;
    for (const Outcome& one : all) messages.emplace_back(one.message);
    raise_if_failed(bootstrap, what, messages);
}

}  // namespace gimlet

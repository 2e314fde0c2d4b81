// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "host/base/text.hpp"
#include "host/bootstrap/bootstrap.hpp"
#include "host/bootstrap/callback_bootstrap.hpp"
#include "host/bootstrap/message_bootstrap.hpp"
#include "host/bootstrap/thread_bootstrap.hpp"
#include "tests/unit/host_test_support.hpp"

using namespace gimlet;
using gimlet::test::check_error;
using gimlet::test::contains_text;

namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

/// Runs `program` on one thread per rank and returns each rank's Error, if it threw one. Catch's
/// assertions are for the main thread, so programs report through their error or through memory.
std::vector<std::optional<Error>> run_ranks(int size,
                                            const std::function<void(Bootstrap&)>& program,
                                            ThreadGroupOptions options = {}) {
    if (options.timeout_ns == 0) options.timeout_ns = 20 * kSecondNs;
    const LogCapture quiet;
    const auto group = ThreadGroup::create(size, options);
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                const auto bootstrap = group->member(rank);
                program(*bootstrap);
            } catch (const Error& error) {
                errors[static_cast<std::size_t>(rank)] = error;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

void require_no_error(const std::vector<std::optional<Error>>& errors) {
    for (const auto& error : errors) {
        if (error) FAIL(error->what());
    }
}

/// Mailboxes of one process. Messages to a stuck rank never leave.
class Post {
  public:
    explicit Post(int size) : size(size) {}
    const int size;
    int stuck_rank = kNoRank;

    void put(int from, int to, int tag, std::span<const std::byte> data) {
        const std::lock_guard lock(mutex_);
        boxes_[{from, to, tag}].emplace_back(data.begin(), data.end());
    }
    std::optional<std::vector<std::byte>> take(int from, int to, int tag) {
        const std::lock_guard lock(mutex_);
        auto& box = boxes_[{from, to, tag}];
        if (box.empty()) return std::nullopt;
        std::vector<std::byte> data = std::move(box.front());
        box.pop_front();
        return data;
    }

  private:
    std::mutex mutex_;
    std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> boxes_;
};

class PostTransport final : public MessageTransport {
  public:
    PostTransport(std::shared_ptr<Post> post, int rank)
        : MessageTransport(rank, post->size), post_(std::move(post)) {}
    void send(int peer, int tag, std::span<const std::byte> data) override {
        post_->put(rank(), peer, tag, data);
    }
    bool sent(int peer) override { return peer != post_->stuck_rank; }
    std::optional<std::vector<std::byte>> receive(int peer, int tag) override {
        return post_->take(peer, rank(), tag);
    }

  private:
    std::shared_ptr<Post> post_;
};

/// The same as run_ranks, over messages.
std::vector<std::optional<Error>> run_over_messages(const std::shared_ptr<Post>& post,
                                                    const std::function<void(Bootstrap&)>& program,
                                                    std::uint64_t timeout_ns = 20 * kSecondNs) {
    const LogCapture quiet;
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(post->size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < post->size; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                MessageBootstrapOptions options;
                options.timeout_ns = timeout_ns;
                const auto bootstrap =
                    make_message_bootstrap(std::make_shared<PostTransport>(post, rank), options);
                program(*bootstrap);
            } catch (const Error& error) {
                errors[static_cast<std::size_t>(rank)] = error;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    return errors;
}

/// For programs on threads: a failed expectation becomes this rank's error.
void expect(bool holds, const Bootstrap& bootstrap, const char* what) {
    if (!holds) throw Error(ErrorCode::internal, bootstrap.rank(), what);
}

void exercise(Bootstrap& bootstrap) {
    const int size = bootstrap.size();
    const int rank = bootstrap.rank();
    for (int round = 0; round < 50; ++round) {
        const auto values = bootstrap.all_gather_values(rank * 1000 + round);
        for (int r = 0; r < size; ++r) {
            expect(values[static_cast<std::size_t>(r)] == r * 1000 + round, bootstrap,
                   "all_gather_values");
        }
    }
    expect(bootstrap.all_gather(nullptr, 0).empty(), bootstrap, "empty all_gather");
    const auto texts = bootstrap.all_gather_texts(std::string(static_cast<std::size_t>(rank), 'x'));
    for (int r = 0; r < size; ++r) {
        expect(texts[static_cast<std::size_t>(r)] == std::string(static_cast<std::size_t>(r), 'x'),
               bootstrap, "all_gather_texts");
    }
    for (int root = 0; root < size; ++root) {
        int value = rank == root ? 77 + root : -1;
        bootstrap.broadcast(&value, sizeof(value), root);
        expect(value == 77 + root, bootstrap, "broadcast");
    }
    bootstrap.barrier();
}

}  // namespace

TEST_CASE("thread bootstrap: gather, texts, broadcast, barrier for many sizes",
          "[host][bootstrap]") {
    for (const int size : {1, 2, 3, 8}) {
        INFO("size " << size);
        require_no_error(run_ranks(size, exercise));
    }
}

TEST_CASE("thread bootstrap: a barrier lets nobody out before all are in", "[host][bootstrap]") {
    std::atomic<int> entered{0};
    require_no_error(run_ranks(4, [&](Bootstrap& bootstrap) {
        for (int round = 1; round <= 20; ++round) {
            entered.fetch_add(1);
            bootstrap.barrier();
            expect(entered.load() >= 4 * round, bootstrap, "barrier let a rank out early");
        }
    }));
}

TEST_CASE("thread bootstrap: split orders by key and works as a group of its own",
          "[host][bootstrap]") {
    require_no_error(run_ranks(6, [](Bootstrap& bootstrap) {
        // Odd and even ranks, in reverse order; rank 5 stays out.
        const int color = bootstrap.rank() == 5 ? kNoColor : bootstrap.rank() % 2;
        const auto child = bootstrap.split(color, -bootstrap.rank());
        if (color == kNoColor) {
            expect(child == nullptr, bootstrap, "a rank without color got a child");
            return;
        }
        expect(child->size() == (color == 0 ? 3 : 2), bootstrap, "child size");
        const auto parents = child->all_gather_values(bootstrap.rank());
        const std::vector<int> wanted =
            color == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{3, 1};
        expect(parents == wanted, bootstrap, "child order");
        exercise(*child);
        // Splitting a child, twice, gives distinct groups.
        const auto grandchild = child->split(child->rank(), 0);
        expect(grandchild->size() == 1, bootstrap, "grandchild size");
        const auto again = child->split(0, 0);
        expect(again->size() == child->size(), bootstrap, "second split");
    }));
}

TEST_CASE("thread bootstrap: a missing rank ends the wait and is named", "[host][bootstrap]") {
    ThreadGroupOptions options;
    options.timeout_ns = 50'000'000;
    const auto errors = run_ranks(
        4,
        [](Bootstrap& bootstrap) {
            if (bootstrap.rank() != 2) bootstrap.barrier();
        },
        options);
    CHECK_FALSE(errors[2].has_value());
    for (const int rank : {0, 1, 3}) {
        const auto& error = errors[static_cast<std::size_t>(rank)];
        REQUIRE(error.has_value());
        CHECK(error->code() == ErrorCode::timeout);
        CHECK(error->rank() == rank);
        CHECK_THAT(error->message(), contains_text("rank(s) 2 did not come within 50 ms"));
        CHECK_THAT(error->message(), contains_text("GIMLET_BOOTSTRAP_TIMEOUT_MS"));
    }
}

TEST_CASE("thread bootstrap: the idle hook is used instead of sleeping", "[host][bootstrap]") {
    ThreadGroupOptions options;
    std::atomic<int> idles{0};
    options.idle = [&] {
        idles.fetch_add(1);
        std::this_thread::yield();
    };
    require_no_error(run_ranks(
        2,
        [](Bootstrap& bootstrap) {
            if (bootstrap.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            bootstrap.barrier();
        },
        options));
    CHECK(idles.load() > 0);
}

TEST_CASE("thread bootstrap: different sizes in one call are refused", "[host][bootstrap]") {
    const auto errors = run_ranks(2, [](Bootstrap& bootstrap) {
        const std::vector<char> data(bootstrap.rank() == 0 ? 4 : 8);
        (void)bootstrap.all_gather(data.data(), data.size());
    });
    for (const auto& error : errors) {
        REQUIRE(error.has_value());
        CHECK(error->code() == ErrorCode::config_mismatch);
        CHECK_THAT(error->message(), contains_text("4 B"));
        CHECK_THAT(error->message(), contains_text("8 B"));
    }
}

TEST_CASE("thread bootstrap: abort wakes those who wait", "[host][bootstrap]") {
    const LogCapture quiet;
    const auto group = ThreadGroup::create(2, {.timeout_ns = 20 * kSecondNs, .idle = {}});
    const auto member = group->member(0);
    std::optional<Error> error;
    std::thread waiter([&] {
        try {
            member->barrier();
        } catch (const Error& caught) {
            error = caught;
        }
    });
    group->abort("rank 1 is gone");
    waiter.join();
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::peer_failed);
    CHECK_THAT(error->message(), contains_text("rank 1 is gone"));
}

TEST_CASE("thread group: wrong use is refused", "[host][bootstrap]") {
    check_error([] { ThreadGroup::create(0); }, ErrorCode::invalid_argument, {"0 ranks"});
    const auto group = ThreadGroup::create(2);
    const auto first = group->member(0);
    check_error([&] { group->member(0); }, ErrorCode::invalid_usage, {"rank 0"});
    check_error([&] { group->member(2); }, ErrorCode::invalid_argument, {"rank 2", "0..1"});
    check_error([&] { group->member(-1); }, ErrorCode::invalid_argument, {"rank -1", "0..1"});
}

TEST_CASE("callback bootstrap: calls through, and completes what is missing", "[host][bootstrap]") {
    require_no_error(run_ranks(3, [](Bootstrap& inner) {
        BootstrapCallbacks callbacks;
        callbacks.rank = inner.rank();
        callbacks.size = inner.size();
        callbacks.all_gather = [&](const void* send, std::size_t bytes, void* receive) {
            inner.all_gather(send, bytes, receive);
        };
        callbacks.split = [&](int color, int key) { return inner.split(color, key); };
        const auto outer = make_callback_bootstrap(callbacks);
        exercise(*outer);
        exercise(*outer->split(0, -inner.rank()));
    }));
}

TEST_CASE("callback bootstrap: wrong use and foreign exceptions become errors",
          "[host][bootstrap]") {
    check_error([] { make_callback_bootstrap({}); }, ErrorCode::invalid_argument, {"all_gather"});
    BootstrapCallbacks callbacks;
    callbacks.all_gather = [](const void*, std::size_t, void*) {
        throw std::runtime_error("line cut");
    };
    callbacks.rank = 2;
    callbacks.size = 2;
    check_error([&] { make_callback_bootstrap(callbacks); }, ErrorCode::invalid_argument,
                {"rank 2", "0..1"});
    callbacks.rank = 1;
    const auto bootstrap = make_callback_bootstrap(callbacks);
    check_error([&] { bootstrap->barrier(); }, ErrorCode::system, {"all_gather", "line cut"});
    check_error([&] { bootstrap->split(0, 0); }, ErrorCode::not_supported, {"split"});
}

TEST_CASE("single bootstrap", "[host][bootstrap]") {
    const auto single = make_single_bootstrap();
    CHECK(single->size() == 1);
    exercise(*single);
    CHECK(single->split(kNoColor, 0) == nullptr);
    CHECK(single->split(4, 0)->size() == 1);
    check_error(
        [&] {
            int x = 0;
            single->broadcast(&x, sizeof(x), 1);
        },
        ErrorCode::invalid_argument, {"root 1", "0..0"});
}

TEST_CASE("agreement: equal values pass, and the odd rank is named with both values",
          "[host][bootstrap][agreement]") {
    require_no_error(run_ranks(4, [](Bootstrap& bootstrap) {
        check_agreement(bootstrap, "config", {{"hidden", "512"}, {"experts", "16"}});
        const int data[2] = {1, 2};
        check_agreement(bootstrap, "plan", data, sizeof(data));
    }));
    const auto errors = run_ranks(5, [](Bootstrap& bootstrap) {
        const std::string experts = bootstrap.rank() == 3 ? "17" : "16";
        check_agreement(bootstrap, "config", {{"hidden", "512"}, {"experts", experts}});
    });
    for (const auto& error : errors) {
        REQUIRE(error.has_value());
        CHECK(error->code() == ErrorCode::config_mismatch);
        CHECK(error->message() ==
              "config: ranks disagree in experts: rank 3 has '17'; ranks 0-2, 4 have '16'; give "
              "every rank "
              "the same value");
    }
}

TEST_CASE("agreement: a tie is decided for rank 0, missing fields are seen",
          "[host][bootstrap][agreement]") {
    const auto tie = run_ranks(2, [](Bootstrap& bootstrap) {
        check_agreement(bootstrap, "x", {{"T", std::to_string(bootstrap.rank())}});
    });
    REQUIRE(tie[0].has_value());
    CHECK_THAT(tie[0]->message(), contains_text("T: rank 1 has '1'; rank 0 has '0'"));

    const auto missing = run_ranks(3, [](Bootstrap& bootstrap) {
        std::vector<AgreementField> fields = {{"a", "1"}};
        if (bootstrap.rank() != 1) fields.push_back({"b", "2"});
        check_agreement(bootstrap, "x", fields);
    });
    REQUIRE(missing[1].has_value());
    CHECK_THAT(missing[1]->message(), contains_text("rank 1 has '(missing)'"));

    const auto bytes = run_ranks(3, [](Bootstrap& bootstrap) {
        const int value = bootstrap.rank() == 2 ? 5 : 4;
        check_agreement(bootstrap, "plan", &value, sizeof(value));
    });
    REQUIRE(bytes[0].has_value());
    CHECK_THAT(bytes[0]->message(),
               contains_text("plan: ranks disagree in content hash: rank 2 has"));
}

TEST_CASE("agreement: values that a rank refuses itself are reported instead of a difference",
          "[host][bootstrap][agreement]") {
    const auto errors = run_ranks(4, [](Bootstrap& bootstrap) {
        std::exception_ptr failure;
        if (bootstrap.rank() == 2) {
            const std::string why(300, 'y');
            failure = std::make_exception_ptr(Error(ErrorCode::invalid_argument, 2, why));
        }
        if (bootstrap.rank() == 3)
            failure = std::make_exception_ptr(Error(ErrorCode::internal, 3, ""));
        std::vector<AgreementField> fields;
        if (!failure) fields = {{"hidden", std::to_string(bootstrap.rank())}};
        check_agreement(bootstrap, "config", fields, failure);
    });
    REQUIRE(errors[2].has_value());
    CHECK(errors[2]->code() == ErrorCode::invalid_argument);
    REQUIRE(errors[3].has_value());
    CHECK(errors[3]->code() == ErrorCode::internal);
    for (const int rank : {0, 1}) {
        const auto& error = errors[static_cast<std::size_t>(rank)];
        REQUIRE(error.has_value());
        CHECK(error->code() == ErrorCode::peer_failed);
        CHECK(error->message() == "config failed on ranks 2-3; rank 2 says: invalid_argument: " +
                                      std::string(300, 'y'));
    }
    require_no_error(run_ranks(3, [](Bootstrap& bootstrap) {
        check_agreement(bootstrap, "x", {{"a", "1"}}, nullptr);
    }));
}

TEST_CASE("success is agreed: the failed rank rethrows, the others name it", "[host][bootstrap]") {
    const auto errors = run_ranks(4, [](Bootstrap& bootstrap) {
        std::exception_ptr failure;
        if (bootstrap.rank() == 1) {
            failure = std::make_exception_ptr(Error(ErrorCode::out_of_memory, 1, "no 8 GiB left"));
        }
        if (bootstrap.rank() == 2) {
            failure = std::make_exception_ptr(Error(ErrorCode::nccl, 2, "other"));
        }
        check_all_succeeded(bootstrap, "window allocation", failure);
    });
    for (const auto& error : errors) REQUIRE(error.has_value());
    CHECK(errors[1]->code() == ErrorCode::out_of_memory);
    CHECK(errors[2]->code() == ErrorCode::nccl);
    for (const int rank : {0, 3}) {
        const Error& error = *errors[static_cast<std::size_t>(rank)];
        CHECK(error.code() == ErrorCode::peer_failed);
        CHECK(error.message() ==
              "window allocation failed on ranks 1-2; rank 1 says: out_of_memory: no 8 GiB left");
    }
    require_no_error(
        run_ranks(3, [](Bootstrap& bootstrap) { check_all_succeeded(bootstrap, "x", nullptr); }));
}

TEST_CASE("message bootstrap: gather, split and groups of the left", "[host][bootstrap]") {
    for (const int size : {1, 2, 5}) {
        const auto errors = run_over_messages(std::make_shared<Post>(size), [](Bootstrap& all) {
            exercise(all);
            const auto half = all.split(all.rank() % 2, -all.rank());
            exercise(*half);
            expect(half->size() == (all.size() + 1 - all.rank() % 2) / 2, all, "split");
            const auto none = all.split(kNoColor, 0);
            expect(none == nullptr, all, "split to nothing");
        });
        require_no_error(errors);
    }
}

TEST_CASE("message bootstrap: who does not come, or cannot be reached, is named",
          "[host][bootstrap]") {
    const auto post = std::make_shared<Post>(3);
    post->stuck_rank = GENERATE(kNoRank, 1);
    const bool stuck = post->stuck_rank == 1;
    const auto errors = run_over_messages(
        post,
        [&](Bootstrap& all) {
            if (all.rank() == 1 && !stuck) return;
            all.barrier();
        },
        kSecondNs / 10);
    for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
        REQUIRE(errors[rank]);
        CHECK(errors[rank]->code() == ErrorCode::timeout);
        // On a busy machine the other one may be late, too: "rank 0-1 did not come".
        CHECK_THAT(errors[rank]->what(), contains_text("1 did not come within 100 ms"));
    }
}

TEST_CASE("message bootstrap: different sizes in one call are refused", "[host][bootstrap]") {
    const auto errors = run_over_messages(std::make_shared<Post>(2), [](Bootstrap& all) {
        const std::vector<std::byte> part(all.rank() == 0 ? 4 : 8);
        try {
            (void)all.all_gather(part.data(), part.size());
        } catch (const Error&) {
            all.barrier();  // the object is unusable: the same error again
        }
    });
    for (const auto& error : errors) {
        REQUIRE(error);
        CHECK(error->code() == ErrorCode::config_mismatch);
        CHECK_THAT(error->what(), contains_text("brought 4 B") && contains_text("brought 8 B"));
    }
}

namespace {

/// Rank 3 is dead, and rank 1 has waited for it in vain before it comes. The others lose it, work
/// on, lose rank 0, and work on.
void lose_two(Bootstrap& all) {
    if (all.rank() == 3) return;
    if (all.rank() == 1) {
        try {
            all.barrier();
        } catch (const Error& error) {
            expect(error.code() == ErrorCode::timeout, all, "code");
        }
    }
    const int first[] = {0, 1, 2};
    const auto three = all.survivors(first);
    exercise(*three);
    if (all.rank() == 0) return;
    const int second[] = {1, 2};
    const auto two = three->survivors(second);
    expect(two->size() == 2 && two->rank() == all.rank() - 1, all, "two");
    exercise(*two);
}

/// All are alive and name other ranks; then the same ones.
void disagree(Bootstrap& all) {
    const std::vector<int> mine = all.rank() == 0 ? std::vector{0, 1, 2} : std::vector{0, 1, 3};
    if (all.rank() == 2) {
        all.survivors(std::vector{0, 1, 2});
        return;
    }
    try {
        (void)all.survivors(mine);
    } catch (const Error& error) {
        expect(error.code() == ErrorCode::config_mismatch, all, error.what());
        const std::string text = error.what();
        // The other may have named its next ones by then.
        const std::string own = fmt::format("rank {} names {}", all.rank(), format_ranks(mine));
        expect(text.find(own) != text.npos, all, error.what());
        if (all.rank() == 3) return;  // whom rank 0 does not name
    }
    exercise(*all.survivors(std::vector{0, 1}));
}

}  // namespace

namespace {

/// Each call of survivors() that rank 1 refuses fails on the others, however fast it was; the next
/// one succeeds. Rank 3 is left out.
void refuse_and_agree(Bootstrap& all) {
    if (all.rank() == 3) return;
    const std::vector<int> ranks{0, 1, 2};
    for (int round = 0; round < 3; ++round) {
        for (const char* reason : {"no list", "no numbers"}) {
            if (all.rank() == 1) {
                expect(all.refuse_survivors(reason), all, "nobody was told");
                continue;
            }
            try {
                (void)all.survivors(ranks);
                expect(false, all, "no error");
            } catch (const Error& error) {
                const std::string text = error.what();
                expect(error.code() == ErrorCode::peer_failed, all, text.c_str());
                expect(text.find(fmt::format("rank 1 refuses; it says: {}", reason)) != text.npos,
                       all, text.c_str());
            }
        }
        exercise(*all.survivors(ranks));
    }
}

/// Those that are left are named by what they are called in the group that they come from.
void name_the_missing(Bootstrap& left) {
    left.name_ranks({4, 5, 7});
    if (left.rank() == 2) return;
    try {
        left.barrier();
        expect(false, left, "no error");
    } catch (const Error& error) {
        const std::string text = error.what();
        expect(text.find("rank(s) 7 ") != text.npos || text.find("rank 7 ") != text.npos, left,
               text.c_str());
        expect(error.rank() == left.rank() + 4, left, text.c_str());
    }
}

}  // namespace

TEST_CASE("a call of survivors() that one rank refuses fails at once", "[host][bootstrap]") {
    ThreadGroupOptions options;
    options.timeout_ns = 3600 * kSecondNs;
    require_no_error(run_ranks(4, refuse_and_agree, options));
    require_no_error(
        run_over_messages(std::make_shared<Post>(4), refuse_and_agree, 3600 * kSecondNs));
}

TEST_CASE("errors name ranks as they were told to", "[host][bootstrap]") {
    ThreadGroupOptions options;
    options.timeout_ns = kSecondNs / 10;
    require_no_error(run_ranks(3, name_the_missing, options));
    require_no_error(
        run_over_messages(std::make_shared<Post>(3), name_the_missing, kSecondNs / 10));
    const auto errors = run_ranks(3, [](Bootstrap& left) {
        left.name_ranks({4, 5, 7});
        check_all_succeeded(left, "work",
                            left.rank() == 1
                                ? std::make_exception_ptr(Error(ErrorCode::system, 5, "no luck"))
                                : nullptr);
    });
    for (const int rank : {0, 2}) {
        const auto& error = errors[static_cast<std::size_t>(rank)];
        REQUIRE(error);
        CHECK(error->rank() == (rank == 0 ? 4 : 7));
        CHECK_THAT(error->what(), contains_text("rank 5 says: system: no luck"));
    }
}

TEST_CASE("those that are left meet without the lost, whatever came before", "[host][bootstrap]") {
    ThreadGroupOptions options;
    options.timeout_ns = kSecondNs;
    require_no_error(run_ranks(4, lose_two, options));
    require_no_error(run_over_messages(std::make_shared<Post>(4), lose_two, kSecondNs));
}

TEST_CASE("ranks that name other ranks as left hear it at once, with both lists",
          "[host][bootstrap]") {
    const auto check = [](const std::vector<std::optional<Error>>& errors) {
        for (const std::size_t rank : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
            if (errors[rank]) FAIL(errors[rank]->what());
        }
        REQUIRE(errors[2]);
        CHECK(errors[2]->code() == ErrorCode::config_mismatch);
    };
    // Longer than any test: the error is not a deadline.
    ThreadGroupOptions options;
    options.timeout_ns = 3600 * kSecondNs;
    check(run_ranks(4, disagree, options));
    check(run_over_messages(std::make_shared<Post>(4), disagree, 3600 * kSecondNs));
}

// SPDX-License-Identifier: Apache-2.0
// C ABI: how ranks find each other.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "host/bootstrap/callback_bootstrap.hpp"
#include "host/bootstrap/message_bootstrap.hpp"
#include "runtime/capi/objects.hpp"

using namespace gimlet;
using namespace gimlet::capi;

namespace {

/// The caller's callbacks; releases the context when the last user is gone.
class Callbacks {
  public:
    explicit Callbacks(const gimlet_bootstrap_callbacks& from) : from_(from) {}
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;
    ~Callbacks() {
        if (owned_ && from_.release != nullptr) from_.release(from_.context);
    }
    /// From now on `release` is called.
    void own() { owned_ = true; }

    void all_gather(const void* send, std::size_t bytes, void* receive) const {
        check("all_gather", from_.all_gather(from_.context, send, bytes, receive));
    }
    void barrier() const { check("barrier", from_.barrier(from_.context)); }
    std::unique_ptr<Bootstrap> split(int color, int key) const;
    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) const;

  private:
    void check(const char* name, int result) const {
        if (result == 0) return;
        raise(ErrorCode::system, from_.rank, "the callback {} returned {}", name, result);
    }

    gimlet_bootstrap_callbacks from_;
    bool owned_ = false;
};

/// A bootstrap that shares another one: the C++ API wants to own its child.
class SharedBootstrap final : public Bootstrap {
  public:
    explicit SharedBootstrap(std::shared_ptr<Bootstrap> target)
        : Bootstrap(target->rank(), target->size()), target_(std::move(target)) {}

    using Bootstrap::all_gather;
    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        target_->all_gather(send, bytes, receive);
    }
    void barrier() override { target_->barrier(); }
    std::unique_ptr<Bootstrap> split(int color, int key) override {
        return target_->split(color, key);
    }
    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        return target_->survivors(ranks);
    }
    bool refuse_survivors(std::string_view reason) override {
        return target_->refuse_survivors(reason);
    }
    void name_ranks(std::vector<int> names) override {
        Bootstrap::name_ranks(names);
        target_->name_ranks(std::move(names));
    }

  private:
    std::shared_ptr<Bootstrap> target_;
};

std::unique_ptr<Bootstrap> Callbacks::split(int color, int key) const {
    gimlet_bootstrap* child = nullptr;
    check("split", from_.split(from_.context, color, key, &child));
    if (child == nullptr) return nullptr;
    return std::make_unique<SharedBootstrap>(Bootstraps::get().remove(child));
}

std::unique_ptr<Bootstrap> Callbacks::survivors(std::span<const int> ranks) const {
    const std::vector<int32_t> left(ranks.begin(), ranks.end());
    gimlet_bootstrap* child = nullptr;
    check("survivors",
          from_.survivors(from_.context, left.data(), static_cast<int32_t>(left.size()), &child));
    if (child == nullptr) return nullptr;
    return std::make_unique<SharedBootstrap>(Bootstraps::get().remove(child));
}

/// Messages by the caller's callbacks.
class CallbackTransport final : public MessageTransport {
  public:
    explicit CallbackTransport(const gimlet_message_callbacks& from)
        : MessageTransport(from.rank, from.size), from_(from) {}
    ~CallbackTransport() override {
        if (owned_ && from_.release != nullptr) from_.release(from_.context);
    }
    /// From now on `release` is called.
    void own() { owned_ = true; }

    void send(int peer, int tag, std::span<const std::byte> data) override {
        check("send", from_.send(from_.context, peer, tag, data.data(), data.size()));
    }
    bool sent(int peer) override {
        int32_t done = 0;
        check("sent", from_.sent(from_.context, peer, &done));
        return done != 0;
    }
    std::optional<std::vector<std::byte>> receive(int peer, int tag) override {
        int32_t found = 0;
        std::size_t bytes = 0;
        check("probe", from_.probe(from_.context, peer, tag, &found, &bytes));
        if (found == 0) return std::nullopt;
        std::vector<std::byte> data(bytes);
        check("receive", from_.receive(from_.context, peer, tag, data.data(), bytes));
        return data;
    }

  private:
    void check(const char* name, int result) const {
        if (result == 0) return;
        raise(ErrorCode::system, from_.rank, "the callback {} returned {}", name, result);
    }

    gimlet_message_callbacks from_;
    bool owned_ = false;
};

std::unique_ptr<Bootstrap> make_bootstrap(const gimlet_message_callbacks& from) {
    const auto need = [&](const char* name, bool given) {
        if (!given) raise(ErrorCode::invalid_argument, from.rank, "the callback {} is null", name);
    };
    need("send", from.send != nullptr);
    need("sent", from.sent != nullptr);
    need("probe", from.probe != nullptr);
    need("receive", from.receive != nullptr);
    const auto transport = std::make_shared<CallbackTransport>(from);
    MessageBootstrapOptions options;
    options.timeout_ns = from.timeout_ns;
    auto made = make_message_bootstrap(transport, options);
    transport->own();
    return made;
}

std::unique_ptr<Bootstrap> make_bootstrap(const gimlet_bootstrap_callbacks& from) {
    const auto shared = std::make_shared<Callbacks>(from);
    BootstrapCallbacks callbacks;
    callbacks.rank = from.rank;
    callbacks.size = from.size;
    if (from.all_gather != nullptr) {
        callbacks.all_gather = [shared](const void* send, std::size_t bytes, void* receive) {
            shared->all_gather(send, bytes, receive);
        };
    }
    if (from.barrier != nullptr) callbacks.barrier = [shared] { shared->barrier(); };
    if (from.split != nullptr) {
        callbacks.split = [shared](int color, int key) { return shared->split(color, key); };
    }
    if (from.survivors != nullptr) {
        callbacks.survivors = [shared](std::span<const int> ranks) {
            return shared->survivors(ranks);
        };
    }
    auto made = make_callback_bootstrap(std::move(callbacks));
    shared->own();
    return made;
}

}  // namespace

extern "C" {

gimlet_status gimlet_bootstrap_create_single(gimlet_bootstrap** bootstrap) {
    return guarded(__func__, [&] {
        require_pointer(bootstrap, "bootstrap") = Bootstraps::get().add(make_single_bootstrap());
    });
}

gimlet_status gimlet_bootstrap_create(const gimlet_bootstrap_callbacks* callbacks,
                                      gimlet_bootstrap** bootstrap) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(bootstrap, "bootstrap");
        const auto from = read_struct(callbacks, gimlet_bootstrap_callbacks_init(), "callbacks");
        out = Bootstraps::get().add(make_bootstrap(from));
    });
}

gimlet_status gimlet_bootstrap_create_messages(const gimlet_message_callbacks* callbacks,
                                               gimlet_bootstrap** bootstrap) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(bootstrap, "bootstrap");
        const auto from = read_struct(callbacks, gimlet_message_callbacks_init(), "callbacks");
        out = Bootstraps::get().add(make_bootstrap(from));
    });
}

gimlet_status gimlet_bootstrap_timeout_ns(uint64_t* timeout_ns) {
    return guarded(__func__,
                   [&] { require_pointer(timeout_ns, "timeout_ns") = bootstrap_timeout_ns(); });
}

gimlet_status gimlet_bootstrap_rank(gimlet_bootstrap* bootstrap, int32_t* rank, int32_t* size) {
    return guarded(__func__, [&] {
        const auto object = Bootstraps::get().find(bootstrap);
        int32_t* const rank_out = optional_pointer(rank, "rank");
        int32_t* const size_out = optional_pointer(size, "size");
        if (rank_out != nullptr) *rank_out = object->rank();
        if (size_out != nullptr) *size_out = object->size();
    });
}

gimlet_status gimlet_bootstrap_all_gather(gimlet_bootstrap* bootstrap, const void* send,
                                          size_t bytes, void* receive) {
    return guarded(__func__, [&] {
        const auto object = Bootstraps::get().find(bootstrap);
        if (bytes > 0) {
            require_pointer(static_cast<const std::byte*>(send), "send");
            require_pointer(static_cast<std::byte*>(receive), "receive");
        }
        object->all_gather(send, bytes, receive);
    });
}

gimlet_status gimlet_bootstrap_barrier(gimlet_bootstrap* bootstrap) {
    return guarded(__func__, [&] { Bootstraps::get().find(bootstrap)->barrier(); });
}

gimlet_status gimlet_bootstrap_split(gimlet_bootstrap* bootstrap, int32_t color, int32_t key,
                                     gimlet_bootstrap** child) {
    return guarded(__func__, [&] {
        const auto object = Bootstraps::get().find(bootstrap);
        auto& out = require_pointer(child, "child");
        auto made = object->split(color, key);
        out = made == nullptr ? nullptr : Bootstraps::get().add(std::move(made));
    });
}

gimlet_status gimlet_bootstrap_survivors(gimlet_bootstrap* bootstrap, const int32_t* ranks,
                                         int32_t rank_count, gimlet_bootstrap** child) {
    return guarded(__func__, [&] {
        const auto object = Bootstraps::get().find(bootstrap);
        auto& out = require_pointer(child, "child");
        if (rank_count < 1 || rank_count > object->size()) {
            raise(ErrorCode::invalid_argument, object->rank(), "rank_count is {}; it must be 1..{}",
                  rank_count, object->size());
        }
        require_pointer(ranks, "ranks");
        const std::vector<int> left(ranks, ranks + rank_count);
        bool mine = false;
        for (std::size_t i = 0; i < left.size(); ++i) {
            mine = mine || left[i] == object->rank();
            if (left[i] >= (i == 0 ? 0 : left[i - 1] + 1) && left[i] < object->size()) continue;
            raise(ErrorCode::invalid_argument, object->rank(),
                  "ranks[{}] is {}; ranks are ascending and 0..{}", i, left[i], object->size() - 1);
        }
        if (!mine)
            raise(ErrorCode::invalid_argument, object->rank(), "ranks lack this rank {}",
                  object->rank());
        out = Bootstraps::get().add(object->survivors(left));
    });
}

gimlet_status gimlet_bootstrap_destroy(gimlet_bootstrap* bootstrap) {
    return guarded(__func__, [&] {
        if (bootstrap != nullptr) Bootstraps::get().remove(bootstrap);
    });
}

gimlet_status gimlet_thread_group_create(int32_t size, uint64_t timeout_ns,
                                         gimlet_thread_group** group) {
    return guarded(__func__, [&] {
        auto& out = require_pointer(group, "group");
        ThreadGroupOptions options;
        options.timeout_ns = timeout_ns;
        out = ThreadGroups::get().add(ThreadGroup::create(size, options));
    });
}

gimlet_status gimlet_thread_group_member(gimlet_thread_group* group, int32_t rank,
                                         gimlet_bootstrap** bootstrap) {
    return guarded(__func__, [&] {
        const auto object = ThreadGroups::get().find(group);
        auto& out = require_pointer(bootstrap, "bootstrap");
        out = Bootstraps::get().add(object->member(rank));
    });
}

gimlet_status gimlet_thread_group_abort(gimlet_thread_group* group, const char* reason) {
    return guarded(__func__, [&] {
        ThreadGroups::get().find(group)->abort(reason == nullptr ? "no reason given" : reason);
    });
}

gimlet_status gimlet_thread_group_destroy(gimlet_thread_group* group) {
    return guarded(__func__, [&] {
        if (group != nullptr) ThreadGroups::get().remove(group);
    });
}

}  // extern "C"

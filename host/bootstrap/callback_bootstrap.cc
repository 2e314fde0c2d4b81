// SPDX-License-Identifier: Apache-2.0
#include "host/bootstrap/callback_bootstrap.hpp"

#include <cstring>
#include <utility>

namespace gimlet {

namespace {

class CallbackBootstrap final : public Bootstrap {
  public:
    explicit CallbackBootstrap(BootstrapCallbacks callbacks)
        : Bootstrap(callbacks.rank, callbacks.size), callbacks_(std::move(callbacks)) {
        if (!callbacks_.all_gather) {
            raise(ErrorCode::invalid_argument, rank(), "callback bootstrap: all_gather is not set");
        }
    }

    using Bootstrap::all_gather;

    void all_gather(const void* send, std::size_t bytes, void* receive) override {
        guarded("all_gather", [&] { callbacks_.all_gather(send, bytes, receive); });
    }

    void barrier() override {
        if (callbacks_.barrier) {
            guarded("barrier", callbacks_.barrier);
            return;
        }
        const std::byte one{1};
        (void)Bootstrap::all_gather(&one, 1);
    }

    std::unique_ptr<Bootstrap> split(int color, int key) override {
        if (!callbacks_.split) {
            raise(ErrorCode::not_supported, rank(),
                  "callback bootstrap: split (color {}) needs the split callback, which is not set",
                  color);
        }
        std::unique_ptr<Bootstrap> child;
        guarded("split", [&] { child = callbacks_.split(color, key); });
        if (child == nullptr && color != kNoColor) {
            raise(ErrorCode::invalid_argument, rank(),
                  "callback bootstrap: the split callback returned null for color {}", color);
        }
        return child;
    }

    std::unique_ptr<Bootstrap> survivors(std::span<const int> ranks) override {
        if (!callbacks_.survivors) return Bootstrap::survivors(ranks);
        std::unique_ptr<Bootstrap> child;
        guarded("survivors", [&] { child = callbacks_.survivors(ranks); });
        if (child == nullptr) {
            raise(ErrorCode::invalid_argument, rank(),
                  "callback bootstrap: the survivors callback returned null");
        }
        return child;
    }

  private:
    template <typename Call>
    void guarded(const char* name, const Call& call) {
        try {
            call();
        } catch (const Error&) {
            throw;
        } catch (const std::exception& failure) {
            raise(ErrorCode::system, rank(), "callback bootstrap: {} failed: {}", name,
                  failure.what());
        }
    }

    BootstrapCallbacks callbacks_;
};

}  // namespace

std::unique_ptr<Bootstrap> make_callback_bootstrap(BootstrapCallbacks callbacks) {
    return std::make_unique<CallbackBootstrap>(std::move(callbacks));
}

std::unique_ptr<Bootstrap> make_single_bootstrap() {
    BootstrapCallbacks callbacks;
    callbacks.all_gather = [](const void* send, std::size_t bytes, void* receive) {
        if (bytes > 0) std::memcpy(receive, send, bytes);
    };
    callbacks.split = [](int color, int) -> std::unique_ptr<Bootstrap> {
        if (color == kNoColor) return nullptr;
        return make_single_bootstrap();
    };
    return make_callback_bootstrap(std::move(callbacks));
}

}  // namespace gimlet

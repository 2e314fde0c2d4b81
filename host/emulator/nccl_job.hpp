// SPDX-License-Identifier: Apache-2.0
//
// Collective host calls as coroutines: a call runs until it needs the other ranks, then waits for a
// condition. One thread can so drive the calls of several communicators, which is what ncclGroupEnd
// does.
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "host/emulator/include/nccl.h"
#include "host/emulator/nccl_rendezvous.hpp"

namespace gimlet::emu::nccl {

/// What a suspended call waits for: all ranks' payload of one round.
struct RoundWait {
    std::shared_ptr<Rendezvous> rendezvous;
    uint32_t round = 0;
    const char* call = "";
};

class Job {
  public:
    struct promise_type {
        RoundWait wait;
        ncclResult_t wait_result = ncclSuccess;
        ncclResult_t result = ncclInternalError;
        std::exception_ptr exception;

        Job get_return_object() {
            return Job(std::coroutine_handle<promise_type>::from_promise(*this));
        }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        void return_value(ncclResult_t value) { result = value; }
        void unhandled_exception() { exception = std::current_exception(); }
    };

    /// `co_await`ed inside a job; gives ncclSuccess, or why the wait was given up.
    struct AllRanks {
        RoundWait wait;
        promise_type* promise = nullptr;

        bool await_ready() const { return wait.rendezvous->complete(wait.round); }
        void await_suspend(std::coroutine_handle<promise_type> handle) {
            promise = &handle.promise();
            promise->wait = wait;
            promise->wait_result = ncclSuccess;
        }
        ncclResult_t await_resume() const {
            return promise == nullptr ? ncclSuccess : promise->wait_result;
        }
    };

    Job() = default;
    explicit Job(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
    Job(Job&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Job& operator=(Job&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Job() {
        if (handle_) handle_.destroy();
    }

    bool done() const { return handle_.done(); }
    bool ready() const {
        const RoundWait& wait = handle_.promise().wait;
        return wait.rendezvous == nullptr || wait.rendezvous->complete(wait.round);
    }
    void resume() { handle_.resume(); }
    const RoundWait& waits_for() const { return handle_.promise().wait; }
    void give_up(ncclResult_t why) { handle_.promise().wait_result = why; }
    /// Of a finished job; rethrows what the job threw.
    ncclResult_t result() const {
        if (handle_.promise().exception) std::rethrow_exception(handle_.promise().exception);
        return handle_.promise().result;
    }

  private:
    std::coroutine_handle<promise_type> handle_;
};

}  // namespace gimlet::emu::nccl

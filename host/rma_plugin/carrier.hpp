// SPDX-License-Identifier: Apache-2.0
// The data path of one endpoint: takes operations, moves bytes, applies what peers send, and knows
// which requests are done. Engine-neutral; allocates nothing once reserve() has been called.
//
// Order: everything for one peer goes through one queue, whatever its context, and a signal is sent
// only when all before it has been written, or is written by a stream that writes the signal after
// it. That makes every signal a strong one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/rma_plugin/fault_plan.hpp"
#include "host/rma_plugin/link.hpp"

namespace gimlet::rma {

/// A bounded queue whose memory grows only in reserve().
template <typename T>
class FixedQueue {
  public:
    void reserve(std::size_t capacity) {
        if (capacity <= items_.size()) return;
        std::vector<T> larger(capacity);
        for (std::size_t i = 0; i < count_; ++i) larger[i] = items_[(head_ + i) % items_.size()];
        items_ = std::move(larger);
        head_ = 0;
    }
    bool full() const noexcept { return count_ == items_.size(); }
    bool empty() const noexcept { return count_ == 0; }
    std::size_t size() const noexcept { return count_; }
    T& front() noexcept { return items_[head_]; }
    void push(const T& item) noexcept { items_[(head_ + count_++) % items_.size()] = item; }
    void pop() noexcept {
        head_ = (head_ + 1) % items_.size();
        --count_;
    }

  private:
    std::vector<T> items_;
    std::size_t head_ = 0;
    std::size_t count_ = 0;
};

using RequestId = std::uint64_t;  ///< never 0
inline constexpr RequestId kNoRequest = 0;

/// One operation on one peer. Source and target are resolved already.
struct Operation {
    Place source;
    Place target;
    std::uint64_t bytes = 0;
    std::uint64_t inline_value = 0;  ///< small host sources are read when the operation is taken
    MessageType message = MessageType::put_data;  ///< how bytes travel if the target is not reached
    std::uint32_t target_region = 0;
    std::uint64_t target_offset = 0;
    RequestId id = kNoRequest;       ///< of the get that a reply answers
    RequestId request = kNoRequest;  ///< ours, kNoRequest for replies

    int context = 0;
    std::uint64_t not_before_ns = 0;  ///< a fault plan lets it rest

    bool has_signal = false;
    std::uint32_t signal_region = 0;
    std::uint64_t signal_offset = 0;
    std::uint64_t signal_value = 0;

    // Progress.
    std::uint64_t moved_bytes = 0;
    int staging = -1;  ///< cell that holds the next part, or is being filled
    std::uint64_t staging_ticket = 0;
    std::uint64_t ticket = 0;  ///< of the copy stream; 0: no copy was enqueued
    bool data_done = false;
};

class Carrier final : public MessageSink {
  public:
    Carrier(int rank, std::vector<std::unique_ptr<Link>> links);

    /// Room for this many more requests, and operations waiting for each peer.
    void reserve(std::size_t requests);
    void attach_gpu(Gpu* gpu) { gpu_ = gpu; }
    /// From now on the plan is carried out. Before the first operation.
    void inject_faults(const FaultPlan& plan, std::uint64_t seed);

    /// Regions are found by sequence number; the owner keeps them where they are.
    void add_region(LocalRegion* region) { regions_.push_back(region); }
    /// Nothing is written into it any more; call drain() before.
    void forget_region(LocalRegion* region);

    RequestId submit(int peer, Operation operation);
    /// `remote` must not be Place::Access::none for operations with `operation.source` there; use
    /// submit_remote_get then.
    RequestId submit_remote_get(int peer, const Place& local, const Message& request);

    /// True once, then the request is forgotten. Raises Error(invalid_argument) for what is no
    /// request, Error(peer_failed) if its peer is gone.
    bool test(RequestId request);

    /// Applies what came in, goes on with what waits. Never blocks.
    void progress();

    /// progress() until nothing of ours is under way, or the deadline; peers that left are not
    /// waited for. Returns whether all is done.
    bool drain(std::uint64_t deadline_ns);

    /// May be asked by any thread.
    bool has_error() const noexcept { return has_error_.load(std::memory_order_relaxed); }
    std::size_t outstanding() const noexcept { return outstanding_; }
    const Link& link(int peer) const { return *peers_[static_cast<std::size_t>(peer)].link; }
    Link& link(int peer) { return *peers_[static_cast<std::size_t>(peer)].link; }

    bool on_message(int peer, const Message& message, const unsigned char* payload) override;

  private:
    /// A signal that is sent once the copies before it are done.
    struct Announcement {
        std::uint64_t ticket = 0;
        Message message;
    };
    struct Peer {
        std::unique_ptr<Link> link;
        FixedQueue<Announcement> announcements;
        FixedQueue<Operation> waiting;
        std::vector<Operation>
            passable;                   ///< puts that later ones may pass; only under a fault plan
        std::uint64_t last_ticket = 0;  ///< of the copy stream, by copies for this peer
        int remote_gets = 0;
        bool is_gone = false;
    };
    enum class RequestState : std::uint32_t { free, waiting, in_stream, done, failed };
    struct Request {
        RequestState state = RequestState::free;
        std::uint32_t generation = 0;
        int peer = -1;
        GpuStream* stream = nullptr;
        std::uint64_t ticket = 0;
        Place local;  ///< of a get that the peer answers with messages
        std::uint64_t bytes = 0;
        std::uint64_t missing_bytes = 0;
    };
    /// A signal on its way into device memory: totals of one word are written once for a run of
    /// signals.
    struct SignalWrite {
        LocalRegion* region = nullptr;
        std::uint64_t word = 0;
    };
    /// Read, add, write of a device word that others may reset.
    struct WordUpdate {
        bool active = false;
        int peer = -1;
        int staging = -1;
        std::uint64_t ticket = 0;
    };

    RequestId new_request(int peer);
    Request* find_request(RequestId id) noexcept;
    void free_request(RequestId id) noexcept;
    void fail_peer(int peer, const std::string& what);
    void check_peers();

    bool submit_with_faults(int peer, Operation& operation);
    bool may_start(int peer, const Operation& operation);
    bool start_passable(int peer, bool at_once);
    void advance_waiting(int peer);
    bool try_advance(int peer, Operation& operation);
    bool advance(int peer, Operation& operation);
    bool move_data(int peer, Operation& operation);
    bool move_host_to_device(int peer, Operation& operation);
    bool move_device_to_elsewhere(int peer, Operation& operation);
    bool move_host_to_message(int peer, Operation& operation);
    void move_host_to_host(int peer, Operation& operation);
    bool send_part(int peer, const Operation& operation, const void* data, std::size_t bytes);
    bool send_signal(int peer, const Operation& operation);
    bool send_announcements(int peer);
    void finish(int peer, const Operation& operation);
    const unsigned char* host_source(const Operation& operation) const noexcept;

    LocalRegion* target_region(int peer, const Message& message, std::uint64_t bytes);
    bool apply_signal(int peer, const Message& message);
    bool update_word(int peer, LocalRegion& region, const Message& message);
    bool apply_put(int peer, const Message& message, const unsigned char* payload);
    bool apply_get_data(int peer, const Message& message, const unsigned char* payload);
    bool answer_get(int peer, const Message& message);
    bool write_device(std::uint64_t target, const unsigned char* payload, std::size_t bytes);
    bool flush_signal_write();
    void refuse(int peer, const std::string& what);

    int rank_;
    std::vector<Peer> peers_;
    std::vector<LocalRegion*> regions_;
    Gpu* gpu_ = nullptr;
    std::deque<Request> requests_;
    std::vector<std::uint32_t> free_requests_;
    std::size_t outstanding_ = 0;
    std::optional<FaultInjector> faults_;
    SignalWrite signal_write_;
    WordUpdate word_update_;
    std::uint64_t next_check_ns_ = 0;
    std::uint32_t progress_calls_ = 0;
    std::atomic<bool> has_error_{false};
};

}  // namespace gimlet::rma

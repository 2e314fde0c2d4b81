// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of one communicator meet: a block of shared memory with one slot per rank,
// all-gather by rounds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/emulator/include/nccl.h"

namespace gimlet::emu::nccl {

constexpr int kMaxRanks = 1024;
constexpr size_t kPayloadBytes = 256;

/// One rank's place in the control block. Two payloads, used in turn: a rank publishes round k + 2
/// only after all have read round k, because it needs everyone's round k + 1 first.
struct RankSlot {
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> published;  ///< rounds published so far
    char payload[2][kPayloadBytes];
};

/// Lives in a memfd that other processes open through /proc (live mode), or in plain memory
/// (simulation).
struct ControlBlock {
    std::atomic<uint64_t>
        arrivals;                  ///< publications of all ranks; round k is complete at k * ranks
    std::atomic<uint32_t> events;  ///< futex word: changes at each publication
    std::atomic<int32_t> ranks;    ///< 0 until the first rank has joined
    RankSlot slots[kMaxRanks];
};

/// A mapped control block.
class Rendezvous {
  public:
    enum class Place { this_process, shared };

    /// Makes a new one; its id can be joined while this object (or, if shared, the process) lives.
    static std::shared_ptr<Rendezvous> create(Place place, uint64_t nonce);
    /// Maps the one that `id` names, made by another process. nullptr with `error` set when that is
    /// impossible.
    static std::shared_ptr<Rendezvous> open(const ncclUniqueId& id, std::string& error);
    static uint64_t nonce_of(const ncclUniqueId& id);
    static bool valid(const ncclUniqueId& id);

    ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    ncclUniqueId id() const;

    /// Takes rank's slot. False when the slot is taken or the rank counts disagree.
    bool join(int rank, int ranks, std::string& error);

    /// Publishes this rank's payload of round `round` (1, 2, ...); at most kPayloadBytes.
    void publish(int rank, uint32_t round, const void* payload, size_t bytes);
    bool complete(uint32_t round) const;
    const void* payload(int rank, uint32_t round) const;

    /// Text naming the ranks that have not published `round`, for error messages.
    std::string missing(uint32_t round) const;
    /// A rank whose process no longer exists and that has not published `round`; -1 if none.
    int dead_rank(uint32_t round) const;
    /// Live mode: sleeps until something is published or `timeout_us` have passed.
    void sleep(uint32_t events_seen, unsigned timeout_us) const;
    uint32_t events() const { return block_->events.load(std::memory_order_acquire); }

  private:
    Rendezvous() = default;

    ControlBlock* block_ = nullptr;
    int fd_ = -1;  // of the creator
    int owner_pid_ = 0;
    uint64_t nonce_ = 0;
};

}  // namespace gimlet::emu::nccl

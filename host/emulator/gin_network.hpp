// SPDX-License-Identifier: Apache-2.0
//
// The emulated network behind GIN: one queue per (rank, context, peer), and an adversary that makes
// every move that NCCL's contract allows, in random order. The rules are written out in
// host/emulator/NCCL.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host/emulator/engine.hpp"

namespace gimlet::emu::nccl {

struct DevCommState;

enum class GinOpKind : uint8_t { put, signal, get };

/// What a signal word has been used for since it was created or reset. Stored in shared memory.
enum class SignalUse : uint32_t { unused, increments, additions };

/// An operation in a queue.
struct GinOp {
    GinOpKind kind = GinOpKind::put;
    unsigned slots = 1;         ///< queue slots it takes
    const char* src = nullptr;  ///< nullptr: the data is in `data` (putValue)
    char* dst = nullptr;
    size_t bytes = 0;
    uint64_t* signal_word = nullptr;
    uint32_t* signal_use = nullptr;  ///< nullptr: kept by the network itself (signals by address)
    uint64_t signal_value = 0;
    bool signal_adds = false;
    bool signal_strong = false;
    uint64_t* counter_word = nullptr;
    ThreadPlace place{};
    bool has_place = false;
    uint32_t sender_agent = 0;  ///< of the watch: what happens at the sender
    uint32_t wire_agent = 0;    ///< of the watch: what happens at the peer

    // Progress.
    bool local_done = false;
    bool delivered = false;      ///< all bytes are at their destination
    bool signalled = false;      ///< or there is no signal
    unsigned patience = 0;       ///< times it is passed over
    uint64_t ready_ns = 0;       ///< it rests until then (fault)
    uint64_t late_until_ns = 0;  ///< not complete at its sender before (fault)
    std::vector<char> data;      ///< put: the source at issue; get: what was read
    std::vector<std::pair<size_t, size_t>> pieces;  ///< (offset, bytes) not moved yet

    bool done() const { return local_done && delivered && signalled; }
};

/// Who is inside a queue right now, for the sharing-mode check.
struct QueueUser {
    uint8_t sharing;
    const void* thread;
    const void* block;
};

/// Operations of one (rank, context, peer), oldest first.
struct GinQueue {
    int rank = 0;
    uint32_t context = 0;
    int peer = 0;
    unsigned depth = 0;
    std::deque<GinOp> ops;
    uint64_t base = 0;         ///< number of the first one in `ops`
    uint64_t rung = 0;         ///< operations before this number may move
    uint64_t local_below = 0;  ///< operations before this number are locally complete
    uint64_t issued = 0;
    uint64_t last_get = 0;    ///< number of the last get, plus one
    unsigned slots_used = 0;  ///< of operations from local_below on
    unsigned movable = 0;     ///< rung and not done
    bool broken = false;      ///< what is issued from now on is lost (a fault, or the peer aborted)
    bool echo = false;        ///< a second doorbell is still to come (fault)
    size_t active_index = 0;  ///< in the network's list, while movable > 0
    size_t filled_index = 0;  ///< likewise, while in_filled
    bool in_filled = false;
    std::vector<QueueUser> users;
    char flush_tag = 0;    ///< ThreadSanitizer and watch: local completion -> flush
    char retired_tag = 0;  ///< watch: what is over -> strong signals

    GinOp& at(uint64_t number) { return ops[number - base]; }
};

class GinNetwork {
  public:
    explicit GinNetwork(Engine& engine);
    ~GinNetwork();
    GinNetwork(const GinNetwork&) = delete;
    GinNetwork& operator=(const GinNetwork&) = delete;

    /// As of a Worker.
    bool busy() const { return !active_.empty(); }
    bool step(Rng& rng);
    std::string describe() const;
    uint64_t wakes_at_ns() const;
    /// For a Chooser: what may move now, and moving one of these.
    size_t move_count();
    void move_number(size_t index, Rng& rng);

    /// Appends an operation. `doorbell` makes it and everything before it movable.
    enum class Doorbell { ring, hold };
    void post(GinQueue& queue, GinOp op, Doorbell doorbell);
    void ring(GinQueue& queue);

    /// Forgets a queue and what is in it.
    void remove_queue(GinQueue* queue);

    /// Text of an unfinished operation that reads or writes [begin, begin + bytes); empty if there
    /// is none.
    std::string find_unfinished(const char* begin, size_t bytes) const;
    /// Text of an unfinished operation of this queue; empty if there is none.
    std::string find_unfinished(const GinQueue& queue) const;
    std::string find_unfinished() const;  ///< of any queue
    bool signal_in_flight(const uint64_t* word) const;
    bool counter_in_flight(const uint64_t* word) const;
    /// Gives up operations of `sender` (kAnybody: of all) that touch this memory, whose owner has
    /// aborted, or takes it back from a dead sender.
    static constexpr int kAnybody = -1;
    void drop_touching(const char* begin, size_t bytes, int sender = kAnybody);

    /// Where device code called from, for reports of the watch.
    const void* caller = nullptr;

    /// Which operation a signal word by address has seen, and what it was left with; until then.
    void forget_use(const uint64_t* word);
    void forget_uses(const char* begin, size_t bytes);

  private:
    void draw_faults(GinQueue& queue, GinOp& op);
    bool step_rested(Rng& rng);
    void tell(int rank, const char* what, const GinQueue& queue, const GinOp& op);
    unsigned draw_patience();
    uint64_t draw_lateness();
    enum class Step : uint8_t { piece, local, signal };
    unsigned legal_steps(GinQueue& queue, uint64_t number, Step* out);
    bool choosing() const;
    bool move(GinQueue& queue, uint64_t number, Rng& rng);
    void perform(GinQueue& queue, uint64_t number, Step step, size_t piece, Rng& rng);
    void move_piece(GinQueue& queue, GinOp& op, size_t index, Rng& rng);
    void complete_locally(GinQueue& queue, GinOp& op);
    bool signal_enabled(GinQueue& queue, uint64_t number);
    void watch_signal(GinQueue& queue, const GinOp& op);
    void fire_signal(GinQueue& queue, GinOp& op);
    void check_source(const GinQueue& queue, const GinOp& op, size_t offset, size_t bytes);
    void retire(GinQueue& queue);
    void set_movable(GinQueue& queue, unsigned count);
    void list_if_filled(GinQueue& queue);
    class Actor;
    static std::string text(const GinQueue& queue, const GinOp& op);

    Engine& engine_;
    struct Move {
        GinQueue* queue;
        uint64_t number;
        Step step;
        size_t piece;  ///< for Step::piece
    };
    std::vector<Move> moves_;  ///< of the last move_count()
    std::vector<GinQueue*> active_;
    std::vector<GinQueue*> filled_;  ///< queues with operations; a world may have a million others
    std::vector<uint64_t> issued_by_rank_;  ///< GIN operations, for the failing put
    struct AddressUse {
        uint32_t use = 0;
        uint64_t left = 0;  ///< the word's value after the newest signal
    };
    std::unordered_map<const uint64_t*, AddressUse> address_uses_;
    std::vector<void*> actors_;  ///< ThreadSanitizer fibers
};

}  // namespace gimlet::emu::nccl

// SPDX-License-Identifier: Apache-2.0
//
// Rings of slots between two ranks, with bounded memory: the sender goes on only when the receiver
// has freed slots (credits).
//
//     sender                                             receiver
//       reserve(n)  <------- head: slots freed ---------   release(n)
//       fill slots  -------- rows --------------------->   read slots
//       publish(n)  -------- tail: slots filled ------->   wait(n)
//
// Positions are 64-bit counts that never go back; compares are rolling. They persist in the window
// (FifoCursor), so a channel works across kernels, steps and replays of a graph.
//
// An end belongs to one thread at a time, its owner: open(), then any number of the calls above,
// then close(), also after a failed wait. Owners change over a block sync (through close and open)
// or a kernel boundary. Other threads make their own object of the same end without open(), and
// may call slot() with an index that the owner hands them:
//
//     FifoSender out(peers, options, end);
//     if (elect()) { out.open(); status = out.reserve(scope, n); }
//     if (!warp_ok(status)) ...
//     const std::uint32_t first = shuffle(out.first(), 0);
//     ... all lanes store to out.slot(first, 0 .. n - 1)
//     warp_sync();
//     if (elect()) out.publish(n);
#pragma once

#include <nccl_device.h>

#include <cuda/atomic>

#include <cstdint>

#include "device/abi/fifo.hpp"
#include "device/channel/aggregated_put.hpp"
#include "device/core/bulk.hpp"
#include "device/core/memory.hpp"
#include "device/core/mutation.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/sync/signal_shadow.hpp"

namespace gimlet::device {

/// How the slots of a channel are written by the sender, and how they are read by the receiver.
/// The first of each: ordinary accesses. `bulk`: bulk copies, issued by the owner itself.
enum class FifoWrites { plain, bulk };
enum class FifoReads { plain, bulk };

namespace detail {

/// What the four ends have in common: the ring, and the own cursor in registers.
class FifoRing {
  public:
    /// Ring index of the first slot at the own position.
    GIMLET_DEVICE std::uint32_t first() const { return cursor_.index; }

    /// Position and counters of this end.
    GIMLET_DEVICE const FifoCursor& cursor() const { return cursor_; }

  protected:
    GIMLET_DEVICE FifoRing(const FifoOptions& options, FifoCursor* home, std::byte* slots)
        : home_(home),
          slots_(slots),
          capacity_(options.capacity),
          slot_bytes_(options.slot_bytes) {}

    GIMLET_DEVICE std::uint32_t wrapped(std::uint32_t index) const {
        const std::uint32_t end = mutate(Mutant::fifo_wraps_late, capacity_, capacity_ + 1);
        return index < end ? index : index - end;
    }
    GIMLET_DEVICE std::byte* slot_pointer(std::uint32_t first, std::uint32_t offset) const {
        return slots_ + static_cast<std::uint64_t>(wrapped(first + offset)) * slot_bytes_;
    }
    GIMLET_DEVICE void advance(std::uint32_t count) {
        cursor_.position += count;
        cursor_.index = wrapped(cursor_.index + count);
    }
    GIMLET_DEVICE void note_use(std::uint64_t used) {
        if (used > cursor_.most_used) cursor_.most_used = static_cast<std::uint32_t>(used);
    }
    GIMLET_DEVICE void load() { cursor_ = *home_; }
    GIMLET_DEVICE void save() const {
        if (!mutated(Mutant::fifo_cursor_not_kept)) *home_ = cursor_;
    }

    FifoCursor* home_;
    std::byte* slots_;
    std::uint32_t capacity_;
    std::uint32_t slot_bytes_;
    FifoCursor cursor_{};
};

/// Whether position `a` has reached position `b`.
GIMLET_DEVICE bool reached(std::uint64_t a, std::uint64_t b) {
    if (mutated(Mutant::fifo_compare_not_rolling)) return a >= b;
    return static_cast<std::int64_t>(a - b) >= 0;
}

/// The calling thread's bulk stores are written, and known to ordinary accesses.
GIMLET_DEVICE void complete_bulk_stores() {
    if (!mutated(Mutant::fifo_bulk_not_complete)) bulk_wait<0>();
    fence_proxy_async();
}

GIMLET_DEVICE void publish_word(std::uint64_t* word, std::uint64_t value, Mutant relaxed,
                                Mutant narrow) {
    if (mutated(relaxed)) {
        store_relaxed<Scope::system>(word, value);
    } else if (mutated(narrow)) {
        store_release<Scope::gpu>(word, value);
    } else {
        store_release<Scope::system>(word, value);
    }
}

}  // namespace detail

/// The sender's end over loads and stores. The peer is an LSA peer or this rank.
///
/// Who: the owner (see the top of the file); slot() any thread.
/// Memory: the head word in the own window is written by the receiver alone, tail word and slots in
/// the receiver's window by this end alone. All words start at zero, or all at one position.
/// Cost: reserve: nothing while the known credits last, else one acquire poll of the own window.
/// publish: one remote release store.
/// Deadline: reserve's, as wait_until's; `expected` is the head position that is needed. After a
/// failed reserve nothing is published; close() is still called.
class FifoSender : public detail::FifoRing {
  public:
    /// Refers to nothing after its construction.
    GIMLET_DEVICE FifoSender(const PeerHandles& peers, const FifoOptions& options,
                             const FifoEnd& end)
        : FifoSender(peers, options, end, FifoLayout::build(options)) {}

    /// Owner: takes the end over from whoever closed it last.
    GIMLET_DEVICE void open() { load(); }
    /// Owner: leaves the end to the next one. What is published stays so.
    GIMLET_DEVICE void close() { save(); }

    /// Slot `offset` behind ring index `first`, in the receiver's window. offset < capacity.
    GIMLET_DEVICE std::byte* slot(std::uint32_t first, std::uint32_t offset = 0) const {
        return slot_pointer(first, offset);
    }

    /// Waits until the `count` slots from first() on are free; 1 <= count <= send_chunk. Does not
    /// accumulate: a second call without publish() reserves the same slots.
    ///
    /// After ok: the receiver's reads of these slots are over (acquire at system scope), so the
    /// owner may overwrite them, by ordinary stores or by bulk stores; so may others behind its
    /// next warp or block sync.
    GIMLET_DEVICE WaitStatus reserve(const WaitScope& outer_scope, std::uint32_t count) {
        const std::uint64_t needed =
            cursor_.position + count - capacity_ - mutate(Mutant::fifo_credit_one_high, 0u, 1u);
        if (mutated(Mutant::fifo_no_credit_check)) cursor_.told = needed;
        if (!detail::reached(cursor_.told, needed)) cursor_.told = look();
        WaitStatus status = WaitStatus::ok;
        if (!detail::reached(cursor_.told, needed)) {
            ++cursor_.stalls;
            status = wait_until(for_primitive(outer_scope, Primitive::fifo_reserve),
                                WaitTarget{peer_, channel_, needed}, [&](std::uint64_t& seen) {
                                    seen = cursor_.told = look();
                                    return detail::reached(seen, needed);
                                });
        }
        if (status == WaitStatus::ok && mutated(Mutant::fifo_tail_first))
            store_release<Scope::system>(tail_, cursor_.position + count);
        return status;
    }

    /// Slots from first() on that are free, as far as the last reserve or poll saw.
    GIMLET_DEVICE std::uint32_t room() const {
        return capacity_ - static_cast<std::uint32_t>(cursor_.position - cursor_.told);
    }

    /// Looks once at the head, without waiting. room() slots are then free as after reserve.
    GIMLET_DEVICE void poll() { cursor_.told = look(); }

    /// Whether the `count` slots from first() on are known to be free; then they may be filled, as
    /// after reserve.
    GIMLET_DEVICE bool claim(std::uint32_t count) const { return count <= room(); }

    /// Value of the head word that was seen last.
    GIMLET_DEVICE std::uint64_t seen() const { return cursor_.told; }

    /// Hands the `count` slots from first() on to the receiver; count <= what was reserved, zero
    /// does nothing.
    ///
    /// Before: the slots are written. Ordinary stores of other threads: warp or block sync before.
    /// Bulk stores of the owner: FifoWrites::bulk waits for them; bulk stores of others: they did
    /// bulk_wait<0>() before the sync.
    /// After: a receiver that acquires the new tail sees the slots (release at system scope).
    GIMLET_DEVICE void publish(std::uint32_t count, FifoWrites writes = FifoWrites::plain) {
        if (count == 0) return;
        if (writes == FifoWrites::bulk) detail::complete_bulk_stores();
        advance(count);
        detail::publish_word(tail_, cursor_.position, Mutant::fifo_tail_relaxed,
                             Mutant::fifo_tail_narrow);
        ++cursor_.flags;
        note_use(cursor_.position - cursor_.told);
    }

    /// For rings that several threads fill, each with an open() object of its own and positions of
    /// its own (see WindowedTail): moves this object on by `count` positions without publishing.
    /// reserve() then means the slots from the new first() on. Before close(), the object that
    /// closes is moved to where the tail is.
    GIMLET_DEVICE void skip(std::uint32_t count) {
        while (count > capacity_) {
            advance(capacity_);
            count -= capacity_;
        }
        advance(count);
    }

    /// Sets the tail to `position`; all slots below it are written, and handed to the caller
    /// (WindowedTail's publish). Callers take turns, positions ascend. The own position stays.
    GIMLET_DEVICE void publish_through(std::uint64_t position) const {
        detail::publish_word(tail_, position, Mutant::fifo_tail_relaxed, Mutant::fifo_tail_narrow);
    }

  private:
    GIMLET_DEVICE FifoSender(const PeerHandles& peers, const FifoOptions& options,
                             const FifoEnd& end, const FifoLayout& layout)
        : FifoRing(options, local_word<FifoCursor>(peers, end.local_offset + layout.sender),
                   peer_pointer(peers, end.peer, end.peer_offset + layout.slots)),
          head_(local_word<std::uint64_t>(peers, end.local_offset + layout.head)),
          tail_(peer_word<std::uint64_t>(peers, end.peer, end.peer_offset + layout.tail)),
          peer_(end.peer),
          channel_(end.channel) {}

    GIMLET_DEVICE std::uint64_t look() const {
        return mutated(Mutant::fifo_head_not_acquired) ? load_relaxed<Scope::system>(head_)
                                                       : load_acquire<Scope::system>(head_);
    }

    const std::uint64_t* head_;
    std::uint64_t* tail_;
    std::int32_t peer_;
    std::int32_t channel_;
};

/// The receiver's end over loads and stores.
///
/// Who: the owner (see the top of the file); slot() any thread.
/// Memory: the tail word and the slots in the own window are written by the sender alone, the head
/// word in the sender's window by this end alone.
/// Cost: wait: nothing for slots that an earlier wait has seen, else one acquire poll of the own
/// window (FifoReads::bulk: and one proxy fence). release: one remote release store for each
/// head_every freed slots.
/// Deadline: wait's, as wait_until's; `expected` is the tail position that is needed. After a
/// failed wait nothing is released; close() is still called.
class FifoReceiver : public detail::FifoRing {
  public:
    /// Refers to nothing after its construction.
    GIMLET_DEVICE FifoReceiver(const PeerHandles& peers, const FifoOptions& options,
                               const FifoEnd& end)
        : FifoReceiver(peers, options, end, FifoLayout::build(options)) {}

    /// Owner: takes the end over from whoever closed it last.
    GIMLET_DEVICE void open() {
        load();
        tail_seen_ = cursor_.position;
    }
    /// Owner: leaves the end to the next one. Slots that were waited for and not released are
    /// waited for again.
    GIMLET_DEVICE void close() { save(); }

    /// Slot `offset` behind ring index `first`, in the own window. offset < capacity.
    GIMLET_DEVICE const std::byte* slot(std::uint32_t first, std::uint32_t offset = 0) const {
        return slot_pointer(first, offset);
    }

    /// Slots from first() on that are filled, as far as the last wait or poll saw.
    GIMLET_DEVICE std::uint32_t available() const {
        return static_cast<std::uint32_t>(tail_seen_ - cursor_.position);
    }

    /// Looks once at the tail, without waiting. available() slots are then visible as after wait.
    GIMLET_DEVICE void poll(FifoReads reads = FifoReads::plain) {
        tail_seen_ = look();
        after_acquire(reads);
    }

    /// Value of the tail word that was seen last.
    GIMLET_DEVICE std::uint64_t seen() const { return tail_seen_; }

    /// Waits until at least `least` slots from first() on are filled; 1 <= least <= receive_chunk.
    /// available() may be more, also more than this step's: a sender may be a step ahead.
    ///
    /// After ok: what the sender wrote to the available() slots is visible to the owner (acquire at
    /// system scope), and to others behind its next warp or block sync; to bulk loads of the owner
    /// with FifoReads::bulk (a proxy fence follows the acquire). Other threads that issue bulk
    /// loads do their own fence_proxy_async after the sync.
    GIMLET_DEVICE WaitStatus wait(const WaitScope& outer_scope, std::uint32_t least,
                                  FifoReads reads = FifoReads::plain) {
        const std::uint64_t needed =
            cursor_.position + least - mutate(Mutant::fifo_wait_one_low, 0u, 1u);
        if (detail::reached(tail_seen_, needed)) return WaitStatus::ok;
        tail_seen_ = look();
        WaitStatus status = WaitStatus::ok;
        if (!detail::reached(tail_seen_, needed)) {
            ++cursor_.stalls;
            status = wait_until(for_primitive(outer_scope, Primitive::fifo_wait),
                                WaitTarget{peer_, channel_, needed}, [&](std::uint64_t& seen) {
                                    seen = tail_seen_ = look();
                                    return detail::reached(seen, needed);
                                });
        }
        if (status != WaitStatus::ok) return status;
        after_acquire(reads);
        note_use(available());
        if (mutated(Mutant::fifo_head_early)) store_release<Scope::system>(head_, tail_seen_);
        return status;
    }

    /// Frees the `count` slots from first() on; count <= available(), zero does nothing. The sender
    /// is told when head_every slots are free (lazy head).
    ///
    /// Before: nobody reads them any more. Ordinary loads of other threads: warp or block sync
    /// before. Bulk loads: their mbarrier's phase was seen complete. Bulk stores out of a slot do
    /// not exist (slots are global memory).
    /// After: a sender that acquires the new head may overwrite them (release at system scope).
    GIMLET_DEVICE void release(std::uint32_t count) {
        if (count == 0) return;
        advance(count);
        cursor_.untold += count;
        if (cursor_.untold >= head_every_) tell();
    }

    /// Tells the sender of all freed slots now. Never needed for progress (FifoRule::no_room).
    GIMLET_DEVICE void tell() {
        if (cursor_.untold == 0 || mutated(Mutant::fifo_head_never)) return;
        detail::publish_word(head_, cursor_.position, Mutant::fifo_head_relaxed,
                             Mutant::fifo_head_narrow);
        cursor_.told = cursor_.position;
        cursor_.untold = 0;
        ++cursor_.flags;
    }

  private:
    GIMLET_DEVICE FifoReceiver(const PeerHandles& peers, const FifoOptions& options,
                               const FifoEnd& end, const FifoLayout& layout)
        : FifoRing(options, local_word<FifoCursor>(peers, end.local_offset + layout.receiver),
                   local_pointer(peers, end.local_offset + layout.slots)),
          tail_(local_word<std::uint64_t>(peers, end.local_offset + layout.tail)),
          head_(peer_word<std::uint64_t>(peers, end.peer, end.peer_offset + layout.head)),
          head_every_(options.head_every),
          peer_(end.peer),
          channel_(end.channel) {}

    GIMLET_DEVICE std::uint64_t look() const {
        return mutated(Mutant::fifo_tail_not_acquired) ? load_relaxed<Scope::system>(tail_)
                                                       : load_acquire<Scope::system>(tail_);
    }
    GIMLET_DEVICE void after_acquire(FifoReads reads) const {
        if (reads == FifoReads::bulk && !mutated(Mutant::fifo_no_fence_before_load))
            fence_proxy_async();
    }

    const std::uint64_t* tail_;
    std::uint64_t* head_;
    std::uint32_t head_every_;
    std::int32_t peer_;
    std::int32_t channel_;
    std::uint64_t tail_seen_ = 0;
};

/// The sender's end over GIN. Slots are filled in the own window (send buffer) and put from there;
/// slot i of the send buffer goes to slot i of the receiver.
///
/// Who: as FifoSender. Rows of one channel travel on one context; several channels may share one.
/// Memory: tail and head are signals (FifoEnd), which the NIC alone adds to. What they amount to is
/// kept in SignalShadow's words: of the tail signal all slots that were freed, of the head signal
/// all slots that were published. The owner owns these shadows too.
/// Cost: reserve: nothing while the known credits last, else a poll of the head signal; once in a
/// revolution of the ring a flush of the context, since that alone frees the send buffer. publish:
/// one put, at the ring's end two, one doorbell; the strong tail signal rides on the last put.
/// Deadline: reserve's, as wait_until's, `expected` is the signal's value that is needed. The
/// flush, and room in NCCL's queue, have none. After a failed reserve nothing is published; close()
/// is still called.
class GinFifoSender : public detail::FifoRing {
  public:
    /// Refers to `peers`, which is the kernel's own argument.
    GIMLET_DEVICE GinFifoSender(const PeerHandles& peers, const FifoOptions& options,
                                const FifoEnd& end)
        : GinFifoSender(peers, options, end, FifoLayout::build(options)) {}

    GIMLET_DEVICE void open() {
        load();
        expected_ = SignalShadow(peers_).expected(end_.channel, end_.head_signal);
        head_seen_ = look();
    }
    GIMLET_DEVICE void close() {
        const SignalShadow shadow(peers_);
        const std::uint64_t sent = expected_ - shadow.expected(end_.channel, end_.head_signal);
        if (!mutated(Mutant::fifo_head_shadow_stays))
            shadow.advance(end_.channel, end_.head_signal, sent);
        save();
    }

    /// Slot `offset` behind ring index `first`, in the own send buffer. offset < capacity.
    GIMLET_DEVICE std::byte* slot(std::uint32_t first, std::uint32_t offset = 0) const {
        return slot_pointer(first, offset);
    }

    /// As FifoSender::reserve. After ok the slots are free at the receiver, and the send buffer's
    /// slots may be overwritten.
    GIMLET_DEVICE WaitStatus reserve(const WaitScope& outer_scope, std::uint32_t count) {
        const std::uint64_t needed =
            expected_ + count - capacity_ - mutate(Mutant::fifo_credit_one_high, 0u, 1u);
        if (mutated(Mutant::fifo_no_credit_check)) head_seen_ = needed;
        if (!detail::reached(head_seen_, needed)) head_seen_ = look();
        WaitStatus status = WaitStatus::ok;
        if (!detail::reached(head_seen_, needed)) {
            ++cursor_.stalls;
            status =
                wait_until(for_primitive(outer_scope, Primitive::fifo_reserve),
                           WaitTarget{end_.peer, end_.channel, needed}, [&](std::uint64_t& seen) {
                               seen = head_seen_ = look();
                               return detail::reached(seen, needed);
                           });
        }
        if (status == WaitStatus::ok) free_buffer(count);
        return status;
    }

    /// As FifoSender's.
    GIMLET_DEVICE std::uint32_t room() const {
        return capacity_ - static_cast<std::uint32_t>(expected_ - head_seen_);
    }
    GIMLET_DEVICE void poll() { head_seen_ = look(); }
    GIMLET_DEVICE std::uint64_t seen() const { return head_seen_; }

    /// As FifoSender::claim; may flush, as reserve does.
    GIMLET_DEVICE bool claim(std::uint32_t count) {
        if (count > room()) return false;
        free_buffer(count);
        return true;
    }

    /// Hands the `count` slots from first() on to the receiver; count <= what was reserved, zero
    /// does nothing.
    ///
    /// Before: as FifoSender::publish, for the send buffer. `writer`: own_gpu, unless an LSA peer
    /// wrote the slots.
    /// After: a receiver that acquires the new tail sees the slots: the signal is strong.
    GIMLET_DEVICE void publish(
        std::uint32_t count, FifoWrites writes = FifoWrites::plain,
        AggregatedPut::SourceWriter writer = AggregatedPut::SourceWriter::own_gpu) {
        if (count == 0) return;
        if (writes == FifoWrites::bulk) detail::complete_bulk_stores();
        const ncclGin gin = gin_context(peers_, end_.channel);
        AggregatedPut batch(gin, world_team(peers_), end_.peer, peers_.window, writer);
        const std::uint32_t left = capacity_ - cursor_.index;
        const std::uint32_t before_end =
            count < left || mutated(Mutant::fifo_put_over_the_end) ? count : left;
        put(batch, cursor_.index, before_end);
        if (before_end < count) put(batch, 0, count - before_end);
        if (mutated(Mutant::fifo_tail_weak)) {
            batch.close(ncclGin_WeakSignalAdd{end_.tail_signal, count});
        } else {
            batch.close(ncclGin_StrongSignalAdd{end_.tail_signal, count});
        }
        advance(count);
        expected_ += count;
        cursor_.unflushed += count;
        ++cursor_.flags;
        note_use(expected_ - head_seen_);
    }

  private:
    GIMLET_DEVICE GinFifoSender(const PeerHandles& peers, const FifoOptions& options,
                                const FifoEnd& end, const FifoLayout& layout)
        : FifoRing(options, local_word<FifoCursor>(peers, end.local_offset + layout.sender),
                   local_pointer(peers, end.local_offset + layout.slots)),
          peers_(peers),
          end_(end),
          slots_offset_(layout.slots) {}

    /// The send buffer's `count` slots from first() on are not the source of a put any more.
    GIMLET_DEVICE void free_buffer(std::uint32_t count) {
        if (cursor_.unflushed + count <= capacity_) return;
        if (!mutated(Mutant::fifo_no_flush))
            gin_context(peers_, end_.channel).flush(ncclCoopThread{});
        cursor_.unflushed = 0;
    }
    GIMLET_DEVICE void put(AggregatedPut& batch, std::uint32_t index, std::uint32_t count) const {
        const std::uint64_t at = slots_offset_ + static_cast<std::uint64_t>(index) * slot_bytes_;
        batch.put(end_.peer_offset + at, end_.local_offset + at,
                  static_cast<std::uint64_t>(count) * slot_bytes_);
    }
    GIMLET_DEVICE std::uint64_t look() const {
        return gin_context(peers_, end_.channel)
            .readSignal(end_.head_signal, 64, cuda::memory_order_acquire);
    }

    const PeerHandles& peers_;
    FifoEnd end_;
    std::uint64_t slots_offset_;
    std::uint64_t expected_ = 0;   ///< the head signal's value when all is freed
    std::uint64_t head_seen_ = 0;  ///< the head signal's newest known value
};

/// The receiver's end over GIN.
///
/// Who, memory: as GinFifoSender. Cost: wait: nothing for slots that an earlier wait has seen, else
/// a poll of the tail signal (FifoReads::bulk: and one proxy fence). release: one signal for each
/// head_every freed slots. Deadline: wait's; `expected` is the signal's value that is needed.
class GinFifoReceiver : public detail::FifoRing {
  public:
    /// Refers to `peers`, which is the kernel's own argument.
    GIMLET_DEVICE GinFifoReceiver(const PeerHandles& peers, const FifoOptions& options,
                                  const FifoEnd& end)
        : GinFifoReceiver(peers, options, end, FifoLayout::build(options)) {}

    GIMLET_DEVICE void open() {
        load();
        freed_ = tail_seen_ = SignalShadow(peers_).expected(end_.channel, end_.tail_signal);
    }
    GIMLET_DEVICE void close() {
        const SignalShadow shadow(peers_);
        const std::uint64_t freed = freed_ - shadow.expected(end_.channel, end_.tail_signal);
        if (!mutated(Mutant::fifo_tail_shadow_stays))
            shadow.advance(end_.channel, end_.tail_signal, freed);
        save();
    }

    GIMLET_DEVICE const std::byte* slot(std::uint32_t first, std::uint32_t offset = 0) const {
        return slot_pointer(first, offset);
    }
    /// As FifoReceiver's.
    GIMLET_DEVICE std::uint32_t available() const {
        return static_cast<std::uint32_t>(tail_seen_ - freed_);
    }
    GIMLET_DEVICE void poll(FifoReads reads = FifoReads::plain) {
        tail_seen_ = look();
        after_acquire(reads);
    }
    GIMLET_DEVICE std::uint64_t seen() const { return tail_seen_; }

    /// As FifoReceiver::wait. What the puts of the available() slots wrote is visible.
    GIMLET_DEVICE WaitStatus wait(const WaitScope& outer_scope, std::uint32_t least,
                                  FifoReads reads = FifoReads::plain) {
        const std::uint64_t needed = freed_ + least - mutate(Mutant::fifo_wait_one_low, 0u, 1u);
        if (detail::reached(tail_seen_, needed)) return WaitStatus::ok;
        tail_seen_ = look();
        WaitStatus status = WaitStatus::ok;
        if (!detail::reached(tail_seen_, needed)) {
            ++cursor_.stalls;
            status =
                wait_until(for_primitive(outer_scope, Primitive::fifo_wait),
                           WaitTarget{end_.peer, end_.channel, needed}, [&](std::uint64_t& seen) {
                               seen = tail_seen_ = look();
                               return detail::reached(seen, needed);
                           });
        }
        if (status != WaitStatus::ok) return status;
        after_acquire(reads);
        note_use(available());
        return status;
    }

    /// As FifoReceiver::release. The head goes back as a signal; NCCL releases at GPU scope before
    /// it, so the reads are over.
    GIMLET_DEVICE void release(std::uint32_t count) {
        if (count == 0) return;
        advance(count);
        freed_ += count;
        cursor_.untold += count;
        if (cursor_.untold >= head_every_) tell();
    }

    /// Tells the sender of all freed slots now. Never needed for progress (FifoRule::no_room).
    GIMLET_DEVICE void tell() {
        if (cursor_.untold == 0 || mutated(Mutant::fifo_head_never)) return;
        gin_context(peers_, end_.channel)
            .signal(
                world_team(peers_), end_.peer,
                ncclGin_WeakSignalAdd{end_.head_signal,
                                      cursor_.untold + mutate(Mutant::fifo_head_one_more, 0u, 1u)});
        cursor_.told = cursor_.position;
        cursor_.untold = 0;
        ++cursor_.flags;
    }

  private:
    GIMLET_DEVICE GinFifoReceiver(const PeerHandles& peers, const FifoOptions& options,
                                  const FifoEnd& end, const FifoLayout& layout)
        : FifoRing(options, local_word<FifoCursor>(peers, end.local_offset + layout.receiver),
                   local_pointer(peers, end.local_offset + layout.slots)),
          peers_(peers),
          end_(end),
          head_every_(options.head_every) {}

    GIMLET_DEVICE std::uint64_t look() const {
        return gin_context(peers_, end_.channel)
            .readSignal(end_.tail_signal, 64, cuda::memory_order_acquire);
    }
    GIMLET_DEVICE void after_acquire(FifoReads reads) const {
        if (reads == FifoReads::bulk && !mutated(Mutant::fifo_no_fence_before_load))
            fence_proxy_async();
    }

    const PeerHandles& peers_;
    FifoEnd end_;
    std::uint32_t head_every_;
    std::uint64_t freed_ = 0;      ///< the tail signal's value up to which slots are freed
    std::uint64_t tail_seen_ = 0;  ///< the tail signal's newest known value
};

}  // namespace gimlet::device

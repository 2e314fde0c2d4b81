// SPDX-License-Identifier: Apache-2.0
// GIN calls of device code: checks, then the network.
#include <cstring>

#include "host/emulator/core.hpp"
#include "host/emulator/fiber.hpp"
#include "host/emulator/nccl_world.hpp"

namespace gimlet::emu::nccl {
namespace {

constexpr uint32_t kKnownFlags =
    ncclGinOptFlagsMaySkipCreditCheck | ncclGinOptFlagsAggregateRequests;

DevCommState& state_of(const GinPort& port, const char* call) {
    const ncclDevComm& comm = *port.comm;
    auto* state = static_cast<DevCommState*>(comm.ginHandles[0]);
    if (comm.magic != NCCL_API_MAGIC || state == nullptr || state->magic != kDevCommMagic) {
        refuse_use("%s: not a device communicator of ncclDevCommCreate", call);
    }
    if (!state->alive) refuse_use("%s: the device communicator was destroyed", call);
    Engine::get().note_use(state);
    if (state->contexts == 0)
        refuse_use("%s: the device communicator was created without GIN (connection NONE)", call);
    if (port.context >= state->contexts) {
        refuse_use("%s: context %u of %u (read ncclDevComm::ginContextCount)", call, port.context,
                   state->contexts);
    }
    return *state;
}

// World rank that the operation really goes to. Peers off the rail are not rejected on rail
// connections: they turn into the rank of that LSA team with this rank's index, as in NCCL.
int target_of(const DevCommState& state, const ncclTeam& team, int peer, const char* call) {
    const ncclComm& comm = *state.comm;
    if (peer < 0 || peer >= team.nRanks)
        refuse_use("%s: peer %d in a team of %d", call, peer, team.nRanks);
    const int world = comm.rank + (peer - team.rank) * team.stride;
    if (world < 0 || world >= comm.ranks)
        refuse_use("%s: peer %d is world rank %d of %d", call, peer, world, comm.ranks);
    if (state.connection != NCCL_GIN_CONNECTION_RAIL) return world;
    return world / comm.lsa_size * comm.lsa_size + comm.lsa_rank;
}

GinQueue& queue_of(DevCommState& state, uint32_t context, int target) {
    auto& peers = state.queues[context];
    if (peers.empty()) peers.resize(static_cast<size_t>(state.comm->ranks));
    auto& queue = peers[static_cast<size_t>(target)];
    if (queue == nullptr) {
        queue = std::make_unique<GinQueue>();
        queue->rank = state.comm->rank;
        queue->context = context;
        queue->peer = target;
        queue->depth = state.queue_depth;
        queue->broken = state.lost_peers.count(target) > 0;
    }
    return *queue;
}

char* address_of(const DevCommState& state, ncclWindow_t window, size_t offset, size_t bytes,
                 int rank, const char* call, const char* which) {
    if (window == nullptr) refuse_use("%s: the %s window is NULL", call, which);
    if (window->magic != kWindowMagic || !window->alive)
        refuse_use("%s: the %s window is not registered", call, which);
    if (window->comm != state.comm)
        refuse_use("%s: the %s window is of another communicator", call, which);
    Engine::get().note_use(window);
    const size_t size = window->sizes[static_cast<size_t>(rank)];
    if (offset > size || bytes > size - offset) {
        refuse_use("%s: %s range [%zu, +%zu) leaves the window of %zu bytes on rank %d", call,
                   which, offset, bytes, size, rank);
    }
    return window->bases[static_cast<size_t>(rank)] + offset;
}

uint64_t* address_signal(const DevCommState& state, ncclWindow_t window, size_t offset, int rank,
                         const char* call) {
    char* address = address_of(state, window, offset, sizeof(uint64_t), rank, call, "signal");
    if ((window->flags & NCCL_WIN_STRICT_ORDERING) == 0) {
        refuse_use("%s: signals by address need a window with NCCL_WIN_STRICT_ORDERING", call);
    }
    if (offset % sizeof(uint64_t) != 0)
        refuse_use("%s: signal offset %zu is not a multiple of 8", call, offset);
    if (!state.va_signals)
        refuse_use("%s: signals by address with ginVaSignalsRequired = false", call);
    return reinterpret_cast<uint64_t*>(address);
}

void check_signal_id(const DevCommState& state, uint32_t id, const char* call) {
    if (id >= state.signals) refuse_use("%s: signal %u of %u", call, id, state.signals);
}

void check_bits(int bits, int most, const char* call) {
    if (bits < 1 || bits > most) refuse_use("%s: compare on %d bits (1 to %d)", call, bits, most);
}

void set_signal(DevCommState& state, uint32_t context, int target, const SignalSpec& signal,
                GinOp& op, const char* call) {
    if (signal.kind == SignalKind::none) return;
    if (signal.strong && !state.strong_signals) {
        refuse_use("%s: a strong signal with ginStrongSignalsRequired = false", call);
    }
    if (signal.kind == SignalKind::indexed) {
        check_signal_id(state, signal.id, call);
        op.signal_word = state.signal_word(target, context, signal.id);
        op.signal_use = state.kind_word(target, context, signal.id);
    } else {
        op.signal_word = address_signal(state, signal.window, signal.offset, target, call);
    }
    op.signal_value = signal.add ? signal.value : 1;
    op.signal_adds = signal.add;
    op.signal_strong = signal.strong;
}

// A thread's stay in a queue. Modes other than GPU promise that certain other threads are not in
// it.
class QueueStay {
  public:
    QueueStay(GinQueue& queue, uint8_t sharing, const char* call) : queue_(queue) {
        const DeviceTask& task = core().current_device_task();
        me_ = {sharing, &task, task.cta};
        for (const QueueUser& other : queue.users) {
            const bool same_block = other.block == me_.block;
            if (other.sharing != sharing) {
                refuse_use("%s: context %u is used with sharing modes %u and %u at once", call,
                           queue.context, other.sharing, sharing);
            }
            if (sharing == NCCL_GIN_RESOURCE_SHARING_THREAD) {
                refuse_use("%s: context %u in THREAD mode is used by two threads at once", call,
                           queue.context);
            }
            if (sharing == NCCL_GIN_RESOURCE_SHARING_CTA && !same_block) {
                refuse_use("%s: context %u in CTA mode is used by two CTAs at once", call,
                           queue.context);
            }
        }
        queue.users.push_back(me_);
    }
    ~QueueStay() {
        for (QueueUser& user : queue_.users) {
            if (user.thread != me_.thread) continue;
            user = queue_.users.back();
            queue_.users.pop_back();
            return;
        }
    }
    QueueStay(const QueueStay&) = delete;
    QueueStay& operator=(const QueueStay&) = delete;

  private:
    GinQueue& queue_;
    QueueUser me_{};
};

void issue(DevCommState& state, const GinPort& port, int target, GinOp op, uint32_t flags,
           const char* call) {
    if ((flags & ~kKnownFlags) != 0) refuse_use("%s: unknown optFlags 0x%x", call, flags);
    GinQueue& queue = queue_of(state, port.context, target);
    const QueueStay stay(queue, port.sharing, call);
    poll_point();
    const auto has_room = [&queue, &op] { return queue.slots_used + op.slots <= queue.depth; };
    if ((flags & ncclGinOptFlagsMaySkipCreditCheck) != 0 && !has_room()) {
        refuse_use("%s: MaySkipCreditCheck on a full queue (context %u, rank %d, depth %u)", call,
                   port.context, target, queue.depth);
    }
    if (!has_room()) {
        wait_until(has_room,
                   "GIN queue full: context %u to rank %d, depth %u, %llu without a doorbell",
                   port.context, target, queue.depth,
                   static_cast<unsigned long long>(queue.issued - queue.rung));
    }
    const bool gdaki = state.comm->gin == NCCL_GIN_TYPE_GDAKI;
    const bool hold = gdaki && (flags & ncclGinOptFlagsAggregateRequests) != 0;
    state.world->network.post(queue, std::move(op),
                              hold ? GinNetwork::Doorbell::hold : GinNetwork::Doorbell::ring);
}

// Entries that an operation takes: work requests on GDAKI, descriptors on the proxy.
unsigned slots_of(const DevCommState& state, bool data, const SignalSpec& signal) {
    const bool has_signal = signal.kind != SignalKind::none;
    if (state.comm->gin == NCCL_GIN_TYPE_GDAKI) return data || !has_signal ? 1 + has_signal : 2;
    return 1 + (signal.kind == SignalKind::address && data);
}

bool locally_done(const GinQueue& queue, uint64_t number) {
    return queue.local_below >= number;
}

// A flush posts a request of its own only while gets are outstanding; that request rings the
// doorbell.
uint64_t flush_point(DevCommState& state, GinQueue& queue) {
    if (queue.last_get > queue.local_below) state.world->network.ring(queue);
    return queue.issued;
}

void wait_local(GinQueue& queue, uint64_t number, const char* call) {
    const auto done = [&queue, number] { return locally_done(queue, number); };
    wait_until(done,
               "%s: context %u to rank %d: %llu of %llu locally complete, %llu without a doorbell",
               call, queue.context, queue.peer, static_cast<unsigned long long>(queue.local_below),
               static_cast<unsigned long long>(number),
               static_cast<unsigned long long>(queue.issued - queue.rung));
    happens_after(&queue.flush_tag);
    if (Watch* const watching = watch()) watching->acquire(&queue.flush_tag);
}

uint64_t mask_of(int bits) {
    return ~uint64_t{0} >> (64 - bits);
}

uint64_t load(const uint64_t* word, std::memory_order order) {
    const uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (order == std::memory_order_relaxed) return value;
    happens_after(word);
    if (Watch* const watching = watch()) watching->acquire(word);
    return value;
}

uint64_t wait_word(const uint64_t* word, uint64_t least, int bits, std::memory_order order,
                   const char* what, const DevCommState& state, uint32_t context, uint64_t id) {
    const auto reached = [=] {
        return ::nccl::utility::rollingLessEq(least, __atomic_load_n(word, __ATOMIC_ACQUIRE), bits);
    };
    wait_until(reached, "%s %llu of rank %d context %u: is %llu, waits for %llu", what,
               static_cast<unsigned long long>(id), state.comm->rank, context,
               static_cast<unsigned long long>(__atomic_load_n(word, __ATOMIC_RELAXED)),
               static_cast<unsigned long long>(least));
    return load(word, order);
}

uint64_t* counter_word(DevCommState& state, uint32_t context, uint32_t id, const char* call) {
    if (id >= state.counters) refuse_use("%s: counter %u of %u", call, id, state.counters);
    return &state.counter_words[size_t{context} * state.counters + id];
}

}  // namespace

void gin_put(const GinPort& port, const ncclTeam& team, int peer, const PutSpec& put) {
    const UnseenScope unseen;
    const char* call = put.has_value ? "ncclGin putValue" : "ncclGin put";
    DevCommState& state = state_of(port, call);
    const int target = target_of(state, team, peer, call);
    GinOp op;
    op.kind = GinOpKind::put;
    op.bytes = put.bytes;
    if (put.bytes > 0) {
        op.dst = address_of(state, put.dst_window, put.dst_offset, put.bytes, target, call,
                            "destination");
        if (put.has_value) {
            const char* value = reinterpret_cast<const char*>(&put.value);
            op.data.assign(value, value + put.bytes);
        } else {
            op.src = address_of(state, put.src_window, put.src_offset, put.bytes, state.comm->rank,
                                call, "source");
        }
    }
    set_signal(state, port.context, target, put.signal, op, call);
    if (put.has_counter) op.counter_word = counter_word(state, port.context, put.counter, call);
    op.slots = slots_of(state, put.bytes > 0, put.signal);
    state.world->network.caller = __builtin_return_address(0);
    issue(state, port, target, std::move(op), put.opt_flags, call);
}

void gin_signal(const GinPort& port, const ncclTeam& team, int peer, const SignalSpec& signal,
                uint32_t opt_flags) {
    const UnseenScope unseen;
    const char* call = "ncclGin signal";
    DevCommState& state = state_of(port, call);
    const int target = target_of(state, team, peer, call);
    GinOp op;
    op.kind = GinOpKind::signal;
    set_signal(state, port.context, target, signal, op, call);
    state.world->network.caller = __builtin_return_address(0);
    issue(state, port, target, std::move(op), opt_flags, call);
}

void gin_get(const GinPort& port, const ncclTeam& team, int peer, ncclWindow_t remote_window,
             size_t remote_offset, ncclWindow_t local_window, size_t local_offset, size_t bytes,
             uint32_t opt_flags) {
    const UnseenScope unseen;
    const char* call = "ncclGin get";
    DevCommState& state = state_of(port, call);
    const int target = target_of(state, team, peer, call);
    if (bytes == 0) return;
    GinOp op;
    op.kind = GinOpKind::get;
    op.bytes = bytes;
    op.src = address_of(state, remote_window, remote_offset, bytes, target, call, "remote");
    op.dst = address_of(state, local_window, local_offset, bytes, state.comm->rank, call, "local");
    state.world->network.caller = __builtin_return_address(0);
    issue(state, port, target, std::move(op), opt_flags, call);
}

int gin_flush_peers(const GinPort& port) {
    const UnseenScope unseen;
    return state_of(port, "ncclGin flush").comm->ranks;
}

void gin_flush_peer(const GinPort& port, int gin_peer) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin flush");
    auto& peers = state.queues[port.context];
    if (peers.empty() || peers[static_cast<size_t>(gin_peer)] == nullptr) return;
    GinQueue& queue = *peers[static_cast<size_t>(gin_peer)];
    wait_local(queue, flush_point(state, queue), "ncclGin flush");
}

void gin_flush_async(const GinPort& port, const ncclTeam& team, int peer, uint64_t request[2]) {
    const UnseenScope unseen;
    const char* call = "ncclGin flushAsync";
    DevCommState& state = state_of(port, call);
    GinQueue& queue = queue_of(state, port.context, target_of(state, team, peer, call));
    request[0] = reinterpret_cast<uint64_t>(&queue);
    request[1] = flush_point(state, queue);
}

void gin_wait(const GinPort& port, const uint64_t request[2]) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin wait");
    for (const auto& queue : state.queues[port.context]) {
        if (queue == nullptr || reinterpret_cast<uint64_t>(queue.get()) != request[0]) continue;
        wait_local(*queue, request[1], "ncclGin wait");
        return;
    }
    refuse_use("ncclGin wait: the request is not one of flushAsync on context %u", port.context);
}

uint64_t gin_read_counter(const GinPort& port, uint32_t counter, int bits,
                          std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin readCounter");
    check_bits(bits, 56, "ncclGin readCounter");
    poll_point();
    return load(counter_word(state, port.context, counter, "ncclGin readCounter"), order) &
           mask_of(bits);
}

void gin_wait_counter(const GinPort& port, uint32_t counter, uint64_t least, int bits,
                      std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin waitCounter");
    check_bits(bits, 56, "ncclGin waitCounter");
    wait_word(counter_word(state, port.context, counter, "ncclGin waitCounter"), least, bits, order,
              "GIN counter", state, port.context, counter);
}

void gin_reset_counter(const GinPort& port, uint32_t counter) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin resetCounter");
    uint64_t* word = counter_word(state, port.context, counter, "ncclGin resetCounter");
    if (state.world->network.counter_in_flight(word)) {
        refuse_use("ncclGin resetCounter: counter %u of context %u has operations in flight",
                   counter, port.context);
    }
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    store_point();
}

uint64_t gin_read_signal(const GinPort& port, uint32_t signal, int bits, std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin readSignal");
    check_signal_id(state, signal, "ncclGin readSignal");
    check_bits(bits, 64, "ncclGin readSignal");
    poll_point();
    return load(state.signal_word(state.comm->rank, port.context, signal), order) & mask_of(bits);
}

uint64_t gin_read_signal(const GinPort& port, ncclWindow_t window, size_t offset, int bits,
                         std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin readSignal");
    check_bits(bits, 64, "ncclGin readSignal");
    poll_point();
    return load(address_signal(state, window, offset, state.comm->rank, "ncclGin readSignal"),
                order) &
           mask_of(bits);
}

uint64_t gin_wait_signal(const GinPort& port, uint32_t signal, uint64_t least, int bits,
                         std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin waitSignal");
    check_signal_id(state, signal, "ncclGin waitSignal");
    check_bits(bits, 64, "ncclGin waitSignal");
    return wait_word(state.signal_word(state.comm->rank, port.context, signal), least, bits, order,
                     "GIN signal", state, port.context, signal);
}

void gin_wait_signal(const GinPort& port, ncclWindow_t window, size_t offset, uint64_t least,
                     int bits, std::memory_order order) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin waitSignal");
    check_bits(bits, 64, "ncclGin waitSignal");
    wait_word(address_signal(state, window, offset, state.comm->rank, "ncclGin waitSignal"), least,
              bits, order, "GIN signal at offset", state, port.context, offset);
}

void gin_reset_signal(const GinPort& port, uint32_t signal) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin resetSignal");
    check_signal_id(state, signal, "ncclGin resetSignal");
    uint64_t* word = state.signal_word(state.comm->rank, port.context, signal);
    if (state.world->network.signal_in_flight(word)) {
        refuse_use("ncclGin resetSignal: signal %u of context %u has operations in flight", signal,
                   port.context);
    }
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    *state.kind_word(state.comm->rank, port.context, signal) =
        static_cast<uint32_t>(SignalUse::unused);
    store_point();
}

void gin_reset_signal(const GinPort& port, ncclWindow_t window, size_t offset) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin resetSignal");
    uint64_t* word = address_signal(state, window, offset, state.comm->rank, "ncclGin resetSignal");
    if (state.world->network.signal_in_flight(word)) {
        refuse_use("ncclGin resetSignal: the signal at offset %zu has operations in flight",
                   offset);
    }
    if (window->user_ptr != nullptr && window->rank == state.comm->rank)
        state.world->network.forget_use(word);
    __atomic_store_n(word, 0, __ATOMIC_RELEASE);
    store_point();
}

uint64_t* gin_shadow(const GinPort& port, uint32_t signal) {
    const UnseenScope unseen;
    DevCommState& state = state_of(port, "ncclGin signal shadow");
    check_signal_id(state, signal, "ncclGin signal shadow");
    return port.comm->ginSignalShadows + size_t{port.context} * state.signals + signal;
}

}  // namespace gimlet::emu::nccl

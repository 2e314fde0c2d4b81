// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/gin_network.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <tuple>

#include "host/emulator/core.hpp"
#include "host/emulator/fiber.hpp"
#include "host/emulator/gin_traffic.hpp"
#include "host/emulator/watch.hpp"

namespace gimlet::emu::nccl {
namespace {

constexpr size_t kPiecesMax = 8;  // an operation is cut into at most this many pieces
constexpr unsigned kPatienceMax = 96;
// Completions at the sender that come late: most of them soon, a few after several steps.
constexpr uint64_t kLateNsMax = 4'000;
constexpr uint64_t kVeryLateNsMax = 1'000'000;
constexpr uint64_t kVeryLateOneIn = 16;
[[maybe_unused]] constexpr size_t kActorCount = 16;
constexpr int kMovesPerStep = 2;
constexpr size_t kAnyPiece = ~size_t{0};

}  // namespace

// Under ThreadSanitizer the network acts as one of a few actors of its own, so that one queue's
// traffic does not order another's. An Actor stands around announcements only: the network's own
// bookkeeping is not the program's business.
class GinNetwork::Actor {
  public:
    Actor([[maybe_unused]] GinNetwork& network, [[maybe_unused]] const GinQueue& queue) {
#if defined(GIMLET_TSAN)
        while (network.actors_.size() < kActorCount)
            network.actors_.push_back(__tsan_create_fiber(0));
        const size_t index = (static_cast<size_t>(queue.rank) * 31 + queue.context * 7 +
                              static_cast<size_t>(queue.peer)) %
                             kActorCount;
        before_ = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(network.actors_[index], 1);
#endif
    }
    ~Actor() {
#if defined(GIMLET_TSAN)
        __tsan_switch_to_fiber(before_, 1);
#endif
    }
    Actor(const Actor&) = delete;
    Actor& operator=(const Actor&) = delete;

#if defined(GIMLET_TSAN)
  private:
    void* before_;
#endif
};

GinNetwork::GinNetwork(Engine& engine) : engine_(engine) {}

GinNetwork::~GinNetwork() {
#if defined(GIMLET_TSAN)
    for (void* actor : actors_) __tsan_destroy_fiber(actor);
#endif
}

// ----------------------------------------------------------------------------------------------
// queues

void GinNetwork::remove_queue(GinQueue* queue) {
    set_movable(*queue, 0);
    queue->ops.clear();
    list_if_filled(*queue);
}

void GinNetwork::list_if_filled(GinQueue& queue) {
    if (queue.in_filled == !queue.ops.empty()) return;
    queue.in_filled = !queue.in_filled;
    if (queue.in_filled) {
        queue.filled_index = filled_.size();
        filled_.push_back(&queue);
        return;
    }
    filled_.back()->filled_index = queue.filled_index;
    filled_[queue.filled_index] = filled_.back();
    filled_.pop_back();
}

void GinNetwork::set_movable(GinQueue& queue, unsigned count) {
    const bool was_active = queue.movable > 0;
    queue.movable = count;
    if (count > 0 && !was_active) {
        queue.active_index = active_.size();
        active_.push_back(&queue);
    } else if (count == 0 && was_active) {
        active_.back()->active_index = queue.active_index;
        active_[queue.active_index] = active_.back();
        active_.pop_back();
    }
}

unsigned GinNetwork::draw_patience() {
    Rng& rng = engine_.rng();
    if (!rng.chance(engine_.options().faults.reorder_chance)) return 0;
    const auto turns = 1 + static_cast<unsigned>(rng.below(kPatienceMax));
    return engine_.simulating() ? turns : turns / 16;
}

void GinNetwork::post(GinQueue& queue, GinOp op, Doorbell doorbell) {
    if (op.kind == GinOpKind::put && op.src != nullptr && op.bytes > 0) {
        op.data.assign(op.src, op.src + op.bytes);
    }
    const bool in_halves = choosing() && engine_.options().faults.split_chance > 0;
    const size_t cut = in_halves ? op.bytes / 2 : 0;
    if (cut > 0) op.pieces.emplace_back(0, cut);
    if (op.bytes > 0) op.pieces.emplace_back(cut, op.bytes - cut);
    op.delivered = op.bytes == 0;
    op.signalled = op.signal_word == nullptr;
    // A signal or a value has no source that the sender must keep.
    op.local_done = false;
    op.patience = draw_patience();
    if (const ThreadPlace* place = current_place()) {
        op.place = *place;
        op.has_place = true;
    }
    GinTraffic& traffic = gin_traffic();
    if (op.kind == GinOpKind::put) {
        traffic.puts += 1;
        traffic.put_bytes += op.bytes;
    }
    if (doorbell == Doorbell::ring) traffic.doorbells += 1;
    draw_faults(queue, op);
    if (engine_.traced()) {
        tell(queue.rank, doorbell == Doorbell::ring ? "issues" : "issues without a doorbell", queue,
             op);
    }
    if (op.kind == GinOpKind::get) queue.last_get = queue.issued + 1;
    if (Watch* const watching = watch()) {
        op.sender_agent = watching->start_agent(Proxy::generic, caller,
                                                op.kind == GinOpKind::get ? "get" : "put's read");
        op.wire_agent = watching->start_agent(Proxy::generic, caller, "put");
    }
    queue.slots_used += op.slots;
    queue.issued += 1;
    queue.ops.push_back(std::move(op));
    list_if_filled(queue);
    happens_before(&queue.ops.back());
    const double twice = engine_.options().faults.duplicate_doorbell_chance;
    if (doorbell == Doorbell::ring) {
        ring(queue);
        if (twice > 0) queue.echo = engine_.rng().chance(twice);
    } else if (queue.echo) {
        queue.echo = false;
        ring(queue);
    }
    engine_.progress();
}

// What the fault plan does to a fresh operation. Draws nothing when the faults are off.
void GinNetwork::draw_faults(GinQueue& queue, GinOp& op) {
    const FaultPlan& faults = engine_.options().faults;
    if (faults.delay_min_ns > 0 || faults.delay_mean_ns > 0) {
        const auto extra = static_cast<double>(std::max(faults.delay_mean_ns, faults.delay_min_ns) -
                                               faults.delay_min_ns);
        const double uniform = static_cast<double>(engine_.rng().next() >> 11) * 0x1.0p-53;
        op.ready_ns = engine_.now_ns() + faults.delay_min_ns +
                      static_cast<uint64_t>(-std::log1p(-uniform) * extra);
    }
    if (faults.late_completion_chance > 0 && engine_.rng().chance(faults.late_completion_chance))
        op.late_until_ns = engine_.now_ns() + draw_lateness();
    if (faults.fail_put_rank == queue.rank && engine_.faults_armed()) {
        issued_by_rank_.resize(std::max(issued_by_rank_.size(), size_t(queue.rank) + 1));
        if (++issued_by_rank_[static_cast<size_t>(queue.rank)] == faults.fail_put_number) {
            queue.broken = true;
            if (engine_.traced()) tell(queue.rank, "breaks the connection (fault):", queue, op);
        }
    }
    if (!queue.broken || op.kind == GinOpKind::get) return;
    op.pieces.clear();
    op.delivered = op.signalled = true;
}

uint64_t GinNetwork::draw_lateness() {
    Rng& rng = engine_.rng();
    const bool very = rng.below(kVeryLateOneIn) == 0;
    return 1 + rng.below(very ? kVeryLateNsMax : kLateNsMax);
}

// Where an operation is told in a trace: at its issuer, or at the peer that it reaches.
void GinNetwork::tell(int rank, const char* what, const GinQueue& queue, const GinOp& op) {
    engine_.event(TraceEvent::Kind::instant, rank, -1, std::string(what) + " " + text(queue, op));
}

void GinNetwork::ring(GinQueue& queue) {
    unsigned fresh = 0;
    for (; queue.rung < queue.issued; ++queue.rung) fresh += !queue.at(queue.rung).done();
    if (fresh > 0) set_movable(queue, queue.movable + fresh);
}

// ----------------------------------------------------------------------------------------------
// moves

uint64_t GinNetwork::wakes_at_ns() const {
    // What is rested and has not moved waits for another operation, not for time.
    const uint64_t now = engine_.now_ns();
    uint64_t first = ~uint64_t{0};
    for (const GinQueue* queue : active_) {
        for (uint64_t n = queue->base; n < queue->rung; ++n) {
            const GinOp& op = queue->ops[n - queue->base];
            if (op.done()) continue;
            if (op.ready_ns > now) first = std::min(first, op.ready_ns);
            if (!op.local_done && op.late_until_ns > now) first = std::min(first, op.late_until_ns);
        }
    }
    return first;
}

// The step of a network whose operations rest for a while: one of those that are ready moves.
bool GinNetwork::step_rested(Rng& rng) {
    const uint64_t now = engine_.now_ns();
    const size_t first = rng.below(active_.size());
    for (size_t i = 0; i < active_.size(); ++i) {
        GinQueue& queue = *active_[(first + i) % active_.size()];
        const uint64_t span = queue.rung - queue.base;
        const uint64_t start = rng.below(span);
        for (uint64_t j = 0; j < span; ++j) {
            const uint64_t number = queue.base + (start + j) % span;
            GinOp& op = queue.at(number);
            if (op.done() || op.ready_ns > now) continue;
            if (op.patience > 0) {
                op.patience -= 1;
                return true;
            }
            if (move(queue, number, rng)) return true;
        }
    }
    return false;
}

bool GinNetwork::step(Rng& rng) {
    if (active_.empty()) return false;
    const FaultPlan& faults = engine_.options().faults;
    if (faults.delay_min_ns > 0 || faults.delay_mean_ns > 0 || faults.late_completion_chance > 0 ||
        faults.late_arrival_chance > 0)
        return step_rested(rng);
    for (int i = 0; i < kMovesPerStep && !active_.empty(); ++i) {
        GinQueue& queue = *active_[rng.below(active_.size())];
        const uint64_t span = queue.rung - queue.base;
        uint64_t number = queue.base + rng.below(span);
        if (queue.at(number).done()) number = queue.base;  // the oldest one is never done
        GinOp& op = queue.at(number);
        if (op.patience > 0) {
            op.patience -= 1;
            continue;
        }
        // A strong signal may have to wait for older operations; the oldest one never waits.
        if (!move(queue, number, rng)) move(queue, queue.base, rng);
    }
    return true;
}

unsigned GinNetwork::legal_steps(GinQueue& queue, uint64_t number, Step* out) {
    const GinOp& op = queue.at(number);
    unsigned count = 0;
    if (!op.pieces.empty()) out[count++] = Step::piece;
    if (!op.local_done && op.kind != GinOpKind::get && op.late_until_ns <= engine_.now_ns())
        out[count++] = Step::local;
    if (!op.signalled && op.delivered && signal_enabled(queue, number)) out[count++] = Step::signal;
    return count;
}

bool GinNetwork::move(GinQueue& queue, uint64_t number, Rng& rng) {
    Step steps[3];
    const unsigned count = legal_steps(queue, number, steps);
    if (count == 0) return false;
    perform(queue, number, steps[rng.below(count)], kAnyPiece, rng);
    return true;
}

size_t GinNetwork::move_count() {
    moves_.clear();
    for (GinQueue* queue : active_) {
        for (uint64_t number = queue->base; number < queue->rung; ++number) {
            if (queue->at(number).done()) continue;
            Step steps[3];
            const unsigned count = legal_steps(*queue, number, steps);
            for (unsigned i = 0; i < count; ++i) {
                const GinOp& op = queue->at(number);
                // A get's first move reads everything.
                const bool each = steps[i] == Step::piece && !op.data.empty();
                for (size_t piece = 0; piece < (each ? op.pieces.size() : 1); ++piece)
                    moves_.push_back({queue, number, steps[i], piece});
            }
        }
    }
    return moves_.size();
}

void GinNetwork::move_number(size_t index, Rng& rng) {
    const Move move = moves_[index];
    perform(*move.queue, move.number, move.step, move.piece, rng);
}

bool GinNetwork::choosing() const {
    return engine_.core().choosing();
}

void GinNetwork::perform(GinQueue& queue, uint64_t number, Step step, size_t piece, Rng& rng) {
    GinOp& op = queue.at(number);
    {
        const Actor actor(*this, queue);
        happens_after(&op);
    }
    switch (step) {
        case Step::piece: move_piece(queue, op, piece, rng); break;
        case Step::local: complete_locally(queue, op); break;
        case Step::signal: fire_signal(queue, op); break;
    }
    if (op.done()) {
        set_movable(queue, queue.movable - 1);
        retire(queue);
    }
    engine_.progress();
}

void GinNetwork::move_piece(GinQueue& queue, GinOp& op, size_t index, Rng& rng) {
    Watch* const watching = watch();
    // Under a Chooser always in two moves: the second may follow at once.
    if (op.kind == GinOpKind::get && op.data.empty() && (choosing() || rng.chance(0.5))) {
        if (watching != nullptr) {
            watching->agent_access(op.sender_agent, op.src, op.bytes, false);
        }
        // The remote side is read now, the local side written later.
        op.data.assign(op.src, op.src + op.bytes);
        const Actor actor(*this, queue);
        note_read(op.src, op.bytes);
        return;
    }
    if (index == kAnyPiece) index = rng.below(op.pieces.size());
    auto [offset, bytes] = op.pieces[index];
    op.pieces[index] = op.pieces.back();
    op.pieces.pop_back();
    if (bytes > 1 && op.pieces.size() + 1 < kPiecesMax && !choosing() &&
        rng.chance(engine_.options().faults.split_chance)) {
        const size_t cut = 1 + rng.below(bytes - 1);
        std::pair<size_t, size_t> low{offset, cut}, high{offset + cut, bytes - cut};
        if (rng.chance(0.5)) std::swap(low, high);
        op.pieces.push_back(high);
        std::tie(offset, bytes) = low;
    }
    if (op.kind == GinOpKind::put && !op.local_done) check_source(queue, op, offset, bytes);
    const char* from = op.data.empty() ? op.src : op.data.data();
    std::memcpy(op.dst + offset, from + offset, bytes);
    {
        const Actor actor(*this, queue);
        if (op.kind == GinOpKind::get && op.data.empty()) note_read(from + offset, bytes);
        note_write(op.dst + offset, bytes);
    }
    if (watching != nullptr) {
        const bool get = op.kind == GinOpKind::get;
        if (get && op.data.empty()) {
            watching->agent_access(op.sender_agent, from + offset, bytes, false);
        }
        watching->agent_access(get ? op.sender_agent : op.wire_agent, op.dst + offset, bytes, true);
    }
    if (!op.pieces.empty()) return;
    op.delivered = true;
    if (engine_.traced()) tell(queue.peer, "receives", queue, op);
    if (op.kind == GinOpKind::get) complete_locally(queue, op);
}

void GinNetwork::check_source(const GinQueue& queue, const GinOp& op, size_t offset, size_t bytes) {
    if (op.src == nullptr || std::memcmp(op.src + offset, op.data.data() + offset, bytes) == 0)
        return;
    engine_.refuse(
        "the source of a put was changed before the put was locally complete (wait for a "
        "counter or flush before reusing it): " +
        text(queue, op));
}

void GinNetwork::complete_locally(GinQueue& queue, GinOp& op) {
    const bool has_source = op.kind == GinOpKind::put && op.src != nullptr && op.bytes > 0;
    if (has_source) check_source(queue, op, 0, op.bytes);
    op.local_done = true;
    // The sender goes on now: the rest of the journey may take long.
    if (!op.delivered || !op.signalled) {
        op.patience = draw_patience();
        const double late = engine_.options().faults.late_arrival_chance;
        if (late > 0 && engine_.rng().chance(late))
            op.ready_ns = engine_.now_ns() + draw_lateness();
    }
    while (queue.local_below < queue.issued && queue.at(queue.local_below).local_done) {
        queue.slots_used -= queue.at(queue.local_below).slots;
        queue.local_below += 1;
    }
    {
        const Actor actor(*this, queue);
        if (has_source) note_read(op.src, op.bytes);
        happens_before(&queue.flush_tag);
        if (op.counter_word != nullptr) happens_before(op.counter_word);
    }
    if (Watch* const watching = watch()) {
        if (has_source) watching->agent_access(op.sender_agent, op.src, op.bytes, false);
        watching->agent_release(op.sender_agent, &queue.flush_tag, Watch::Gives::itself);
        if (op.counter_word != nullptr) {
            watching->agent_release(op.sender_agent, op.counter_word, Watch::Gives::itself);
        }
    }
    if (op.counter_word != nullptr) __atomic_fetch_add(op.counter_word, 1, __ATOMIC_RELEASE);
}

bool GinNetwork::signal_enabled(GinQueue& queue, uint64_t number) {
    if (!queue.at(number).signal_strong) return true;
    for (uint64_t n = queue.base; n < number; ++n) {
        const GinOp& older = queue.at(n);
        if (older.kind != GinOpKind::get && !(older.delivered && older.signalled)) return false;
    }
    return true;
}

// A strong signal brings what earlier operations of its queue did, a weak one its own put only.
void GinNetwork::watch_signal(GinQueue& queue, const GinOp& op) {
    Watch* const watching = watch();
    if (watching == nullptr) return;
    if (op.signal_strong) {
        watching->agent_joins(op.wire_agent, &queue.retired_tag);
        for (const GinOp& older : queue.ops) {
            if (&older == &op) break;
            watching->agent_joins(op.wire_agent, older.wire_agent);
        }
    }
    watching->agent_release(op.wire_agent, op.signal_word, Watch::Gives::all_it_knows);
}

void GinNetwork::fire_signal(GinQueue& queue, GinOp& op) {
    AddressUse* const address = op.signal_use == nullptr ? &address_uses_[op.signal_word] : nullptr;
    uint32_t* const use = address == nullptr ? op.signal_use : &address->use;
    const auto mine =
        static_cast<uint32_t>(op.signal_adds ? SignalUse::additions : SignalUse::increments);
    const uint32_t before = __atomic_exchange_n(use, mine, __ATOMIC_RELAXED);
    if (before != static_cast<uint32_t>(SignalUse::unused) && before != mine) {
        engine_.refuse(std::string("a signal saw ") +
                       (op.signal_adds ? "an Add after Incs" : "an Inc after Adds") +
                       " without a reset in between: " + text(queue, op));
    }
    {
        const Actor actor(*this, queue);
        happens_before(op.signal_word);
    }
    watch_signal(queue, op);
    // Live ranks add to each other's words without telling. A word of 0 has been cleared.
    const bool used = before != static_cast<uint32_t>(SignalUse::unused);
    const uint64_t now = __atomic_load_n(op.signal_word, __ATOMIC_RELAXED);
    if (address != nullptr && used && engine_.simulating() && now != address->left && now != 0) {
        engine_.refuse("the word of a signal by address was changed by something else than GIN: " +
                       text(queue, op));
    }
    const uint64_t value = __atomic_fetch_add(op.signal_word, op.signal_value, __ATOMIC_RELEASE);
    if (address != nullptr) address->left = value + op.signal_value;
    op.signalled = true;
    if (engine_.traced()) tell(queue.peer, "is signalled by", queue, op);
}

void GinNetwork::retire(GinQueue& queue) {
    while (!queue.ops.empty() && queue.base < queue.local_below && queue.ops.front().done()) {
        if (Watch* const watching = watch()) {
            const GinOp& over = queue.ops.front();
            watching->agent_release(over.wire_agent, &queue.retired_tag, Watch::Gives::itself);
            watching->end_agent(over.wire_agent);
            watching->end_agent(over.sender_agent);
        }
        queue.ops.pop_front();
        queue.base += 1;
    }
    list_if_filled(queue);
}

// ----------------------------------------------------------------------------------------------
// questions

std::string GinNetwork::text(const GinQueue& queue, const GinOp& op) {
    const char* kind = op.kind == GinOpKind::get      ? "get"
                       : op.kind == GinOpKind::signal ? "signal"
                       : op.src == nullptr            ? "putValue"
                                                      : "put";
    char line[320];
    int length = std::snprintf(line, sizeof(line), "%s of %zu bytes, rank %d context %u -> rank %d",
                               kind, op.bytes, queue.rank, queue.context, queue.peer);
    if (op.has_place) {
        std::snprintf(line + length, sizeof(line) - static_cast<size_t>(length),
                      ", issued by kernel %s block %u thread %u on device %d",
                      op.place.kernel != nullptr ? op.place.kernel : "?", op.place.block,
                      op.place.thread, op.place.device);
    }
    return line;
}

std::string GinNetwork::find_unfinished(const char* begin, size_t bytes) const {
    const auto touches = [&](const char* address, size_t size) {
        return address != nullptr && size > 0 && address < begin + bytes && begin < address + size;
    };
    for (const GinQueue* queue : filled_) {
        for (const GinOp& op : queue->ops) {
            const bool source_busy = op.kind == GinOpKind::get ? !op.delivered : !op.local_done;
            if ((!op.delivered && touches(op.dst, op.bytes)) ||
                (source_busy && touches(op.src, op.bytes)) ||
                (!op.signalled && touches(reinterpret_cast<const char*>(op.signal_word), 8))) {
                return text(*queue, op);
            }
        }
    }
    return {};
}

std::string GinNetwork::find_unfinished(const GinQueue& queue) const {
    for (const GinOp& op : queue.ops) {
        if (!op.delivered || !op.signalled) return text(queue, op);
    }
    return {};
}

std::string GinNetwork::find_unfinished() const {
    for (const GinQueue* queue : filled_) {
        std::string found = find_unfinished(*queue);
        if (!found.empty()) return found;
    }
    return {};
}

bool GinNetwork::signal_in_flight(const uint64_t* word) const {
    for (const GinQueue* queue : filled_) {
        for (const GinOp& op : queue->ops) {
            if (op.signal_word == word && !op.signalled) return true;
        }
    }
    return false;
}

bool GinNetwork::counter_in_flight(const uint64_t* word) const {
    for (const GinQueue* queue : filled_) {
        for (const GinOp& op : queue->ops) {
            if (op.counter_word == word && !op.local_done) return true;
        }
    }
    return false;
}

void GinNetwork::drop_touching(const char* begin, size_t bytes, int sender) {
    const auto inside = [&](const void* address) {
        const char* at = static_cast<const char*>(address);
        return at != nullptr && at >= begin && at < begin + bytes;
    };
    // A copy: a queue that this empties leaves the list.
    for (GinQueue* queue : std::vector<GinQueue*>(filled_)) {
        if (sender != kAnybody && queue->rank != sender) continue;
        const uint64_t last = queue->base + queue->ops.size();
        for (uint64_t n = queue->base; n < last && n < queue->base + queue->ops.size(); ++n) {
            GinOp& op = queue->at(n);
            if (op.done() || !(inside(op.dst) || inside(op.src) || inside(op.signal_word)))
                continue;
            op.pieces.clear();
            op.delivered = op.signalled = true;
            op.src = nullptr;
            if (!op.local_done) complete_locally(*queue, op);
            if (n < queue->rung) set_movable(*queue, queue->movable - 1);
        }
        retire(*queue);
        if (queue->rung < queue->base) queue->rung = queue->base;
    }
}

void GinNetwork::forget_use(const uint64_t* word) {
    address_uses_.erase(word);
}

void GinNetwork::forget_uses(const char* begin, size_t bytes) {
    std::erase_if(address_uses_, [&](const auto& entry) {
        const auto* const at = reinterpret_cast<const char*>(entry.first);
        return at >= begin && at < begin + bytes;
    });
}

std::string GinNetwork::describe() const {
    std::string all = "GIN network";
    unsigned lines = 0;
    for (const GinQueue* queue : filled_) {
        const uint64_t held = queue->issued - queue->rung;
        if (queue->ops.empty()) continue;
        if (++lines > 20) continue;
        char line[240];
        std::snprintf(line, sizeof(line),
                      "\n  rank %d context %u -> rank %d: %zu unfinished, %u of %u slots used",
                      queue->rank, queue->context, queue->peer, queue->ops.size(),
                      queue->slots_used, queue->depth);
        all += line;
        if (held > 0) {
            all += ", " + std::to_string(held) +
                   " without a doorbell (aggregate flag; flush does not ring)";
        }
    }
    if (lines == 0) all += ": nothing in flight";
    if (lines > 20) all += "\n  and " + std::to_string(lines - 20) + " more queues";
    return all;
}

}  // namespace gimlet::emu::nccl

namespace gimlet::emu {

GinTraffic& gin_traffic() {
    thread_local GinTraffic traffic;
    return traffic;
}

}  // namespace gimlet::emu

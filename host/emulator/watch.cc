// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/watch.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "host/emulator/code_place.hpp"
#include "host/emulator/core.hpp"
#include "host/emulator/memory.hpp"

namespace gimlet::emu {
namespace {

constexpr uint8_t kScopeBlock = 0;
constexpr uint8_t kScopeGpu = 1;
constexpr uint8_t kScopeSystem = 2;
constexpr size_t kHistoryMax = 8;          // stores of a word that may still be read
constexpr uint64_t kStaleAccessMax = 256;  // a store is seen by all after this many accesses
constexpr double kStaleChance = 0.5;
constexpr uint32_t kNobody = 0;            // slot of what was there before
constexpr size_t kSlotsBeforeReuse = 512;  // a reused slot's old accesses count as its new owner's
constexpr uintptr_t kGrain = 8;

enum class Part : uint8_t { plain, bulk_global, bulk_shared };

uint64_t read_memory(const void* address, uint32_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, address, bytes);
    return value;
}

const char* scope_name(uint8_t scope) {
    return scope == kScopeBlock ? "block" : scope == kScopeGpu ? "gpu" : "system";
}

/// What one actor may rely on.
struct Knowledge {
    const View* first;
    const View* second = nullptr;

    ClockTime at(Part part, uint32_t slot) const {
        const auto in = [&](const View* view) -> ClockTime {
            if (view == nullptr) return 0;
            switch (part) {
                case Part::plain: return view->plain.at(slot);
                case Part::bulk_global: return view->bulk_global.at(slot);
                case Part::bulk_shared: return view->bulk_shared.at(slot);
            }
            return 0;
        };
        return std::max(in(first), in(second));
    }
};

}  // namespace

// ---- clocks

// Half of a watched run's time goes into these loops.
void Clock::join(const Clock& other) {
    // As aligned as every allocation is.
    using Lanes [[gnu::vector_size(16), gnu::may_alias]] = ClockTime;
    static_assert(sizeof(Lanes) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    constexpr size_t kLanes = sizeof(Lanes) / sizeof(ClockTime);
    const size_t count = other.times_.size();
    if (count > times_.size()) times_.resize(count);
    ClockTime* const mine = times_.data();
    const ClockTime* const theirs = other.times_.data();
    size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        auto* const to = reinterpret_cast<Lanes*>(mine + i);
        const Lanes a = *to;
        const Lanes b = *reinterpret_cast<const Lanes*>(theirs + i);
        *to = a > b ? a : b;
    }
    for (; i < count; ++i) mine[i] = std::max(mine[i], theirs[i]);
}

void View::join(const View& other) {
    plain.join(other.plain);
    bulk_global.join(other.bulk_global);
    bulk_shared.join(other.bulk_shared);
}

void View::join_plain_everywhere() {
    bulk_global.join(plain);
    bulk_shared.join(plain);
}

// ---- the parts of Watch

/// Where a thread or host program is; kept after its end, for reports.
struct Watch::SlotInfo {
    ClockTime time = 0;
};

struct Watch::Person {
    uint32_t slot = 0;
    int rank = -1;     ///< -1: host program
    uint64_t cta = 0;  ///< unique number of its CTA; 0: host program
    uint32_t place = 0;
    View view;
    std::shared_ptr<const View> taken;   ///< copy of `view`, while it is up to date
    std::shared_ptr<const View> fenced;  ///< at its last releasing fence
    uint8_t fence_scope = 0;
    View pending[3];  ///< read without acquire, by distance: own block, own GPU, elsewhere
    bool has_pending = false;

    void learn(const View& what) {
        view.join(what);
        taken.reset();
    }
};

struct Watch::Message {
    std::shared_ptr<const View> view;
    uint8_t scope;
    int rank;
    uint64_t cta;
};

struct Watch::Store {
    uint64_t value = 0;
    uint32_t slot = kNobody;
    ClockTime time = 0;
    uint64_t seen_by_all_at = 0;  ///< count of accesses
    std::vector<Message> chain;   ///< what a reader may acquire
};

/// The latest stores to one word, in their order.
struct Watch::Word {
    uint32_t bytes = 0;
    uint64_t first = 0;  ///< number of stores.front()
    std::deque<Store> stores;
    std::unordered_map<uint32_t, uint64_t> seen;  ///< slot -> number; nobody reads backwards

    uint64_t newest() const { return first + stores.size() - 1; }
    Store& at(uint64_t number) { return stores[number - first]; }
};

/// One access, as remembered at the bytes that it touched.
struct Watch::Cell {
    uint8_t mask = 0;
    bool writes = false;
    bool ordered = false;
    uint8_t scope = 0;
    Proxy proxy = Proxy::generic;
    uint32_t slot = 0;
    ClockTime time = 0;
    int rank = -1;
    uint64_t cta = 0;
    uint32_t place = 0;
    CodeAddress code = nullptr;
    const char* what = "";
};

struct Watch::Race {
    Cell old;
    Cell now;
    std::string where;
    bool only_fence_missing;
};

struct Watch::Agent {
    bool used = false;
    Proxy proxy = Proxy::generic;
    uint32_t slot = 0;
    ClockTime time = 0;
    std::shared_ptr<const View> knows;
    View learned;  ///< itself, and what it joined later
    int rank = -1;
    uint64_t cta = 0;
    uint32_t place = 0;
    CodeAddress code = nullptr;
    const char* what = "";
};

Watch::Watch(EngineCore& core, const MemoryOptions& options) : core_(core), options_(options) {
    slots_.emplace_back();  // kNobody
    agents_.emplace_back();
    places_.emplace_back("?");
}

Watch::~Watch() = default;

// ---- people

uint32_t Watch::take_slot() {
    if (free_slots_.size() > kSlotsBeforeReuse) {
        const uint32_t slot = free_slots_.front();
        free_slots_.pop_front();
        return slot;
    }
    slots_.emplace_back();
    return static_cast<uint32_t>(slots_.size() - 1);
}

void Watch::give_slot(uint32_t slot) {
    free_slots_.push_back(slot);
}

Watch::Person& Watch::self() {
    Task* const task = core_.current();
    std::unique_ptr<Person>& person = people_[task];
    if (person != nullptr) return *person;
    person = std::make_unique<Person>();
    person->slot = take_slot();
    person->view.plain.set(person->slot, ++slots_[person->slot].time);
    if (task->kind == FiberKind::device) {
        const auto* const device_task = static_cast<DeviceTask*>(task);
        const ThreadPlace& place = device_task->place;
        person->rank = place.device;
        person->cta = (device_task->cta->kernel->serial << 24) + place.block + 1;
        person->place = static_cast<uint32_t>(places_.size());
        places_.push_back("rank " + std::to_string(place.device) + ", kernel " + place.kernel +
                          ", block " + std::to_string(place.block) + ", thread " +
                          std::to_string(place.thread));
        // The start of a kernel orders all proxies.
        person->view.join(tokens_[device_task->cta->kernel].arriving);
        person->view.join_plain_everywhere();
        person->view.plain.set(person->slot, ++slots_[person->slot].time);
    } else if (task->kind == FiberKind::host) {
        person->place = static_cast<uint32_t>(places_.size());
        places_.push_back("rank " + std::to_string(static_cast<HostTask*>(task)->host.rank) +
                          ", host program");
    }
    return *person;
}

void Watch::thread_ends(const void* device) {
    if (people_.count(core_.current()) != 0) release(device);
}

void Watch::task_ends(Task& task) {
    const auto found = people_.find(&task);
    if (found == people_.end()) return;
    give_slot(found->second->slot);
    people_.erase(found);
}

// Everything up to here is in the copy; what follows is not.
std::shared_ptr<const View> Watch::snapshot(Person& person) {
    if (person.taken == nullptr) person.taken = std::make_shared<const View>(person.view);
    const std::shared_ptr<const View> taken = person.taken;
    person.view.plain.set(person.slot, ++slots_[person.slot].time);
    person.taken.reset();
    return taken;
}

void Watch::release(const void* token) {
    tokens_[token].arriving.join(*snapshot(self()));
}

void Watch::acquire(const void* token) {
    const auto found = tokens_.find(token);
    if (found != tokens_.end()) self().learn(found->second.arriving);
}

void Watch::complete(const void* token) {
    Token& meeting = tokens_[token];
    meeting.completed.join(meeting.arriving);
    meeting.arriving = View{};
}

void Watch::leave(const void* token) {
    const auto found = tokens_.find(token);
    if (found != tokens_.end()) self().learn(found->second.completed);
}

void Watch::forget_tokens(const void* begin, size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(begin);
    std::erase_if(tokens_, [&](const auto& entry) {
        const auto* const at = static_cast<const std::byte*>(entry.first);
        return at >= first && at < first + bytes;
    });
}

void Watch::forget_cta(const Cta& cta) {
    forget_tokens(&cta, sizeof(cta));
    forget_tokens(cta.warps.data(), cta.warps.size() * sizeof(Warp));
    forget_tokens(cta.threads.data(), cta.threads.size() * sizeof(DeviceTask));
    for (const Warp& warp : cta.warps) {
        for (const auto& meeting : warp.partial) tokens_.erase(meeting.get());
    }
    forget_tokens(cta.shared, cta.shared_bytes);
    forget_memory(cta.shared, cta.shared_bytes);
}

void Watch::kernel_starts(const void* kernel, const void* device) {
    tokens_[kernel].arriving = tokens_[device].arriving;
}

// ---- ordered accesses

bool Watch::includes(const Message& message, const Person& person, uint8_t scope) const {
    const uint8_t distance = message.cta == person.cta     ? kScopeBlock
                             : message.rank == person.rank ? kScopeGpu
                                                           : kScopeSystem;
    return message.scope >= distance && scope >= distance;
}

// Whoever else wrote the word (a copy, a put, a plain store): that value is all there is.
Watch::Word& Watch::word_of(const void* address, uint32_t bytes, uint64_t memory_value) {
    Word& word = words_[reinterpret_cast<uintptr_t>(address)];
    if (!word.stores.empty() && word.bytes == bytes && word.stores.back().value == memory_value) {
        return word;
    }
    word.first += word.stores.size();
    word.stores.clear();
    word.bytes = bytes;
    word.stores.emplace_back();
    word.stores.back().value = memory_value;
    return word;
}

void Watch::read_store(Person& person, Word& word, uint64_t number, dev::Ordering ordering) {
    word.seen[person.slot] = number;
    for (const Message& message : word.at(number).chain) {
        if (!includes(message, person, ordering.scope)) continue;
        if (ordering.acquires) {
            person.learn(*message.view);
            continue;
        }
        const int distance = message.cta == person.cta ? 0 : message.rank == person.rank ? 1 : 2;
        person.pending[distance].join(*message.view);
        person.has_pending = true;
    }
}

uint64_t Watch::load(const void* address, uint32_t bytes, dev::Ordering ordering,
                     CodeAddress code) {
    Person& me = self();
    const uint64_t memory_value = read_memory(address, bytes);
    ordered_access(me, address, bytes, false, ordering, code);
    Word& word = word_of(address, bytes, memory_value);
    uint64_t number = word.newest();
    if (options_.stale_loads && word.stores.size() > 1) {
        // Not older than what this thread has read, knows of, or must have reached everybody.
        uint64_t oldest = std::max(word.first, word.seen[me.slot]);
        for (uint64_t n = word.newest(); n > oldest; --n) {
            const Store& store = word.at(n);
            if (me.view.plain.at(store.slot) >= store.time || store.seen_by_all_at <= accesses_) {
                oldest = n;
            }
        }
        if (core_.choosing()) {
            number -= core_.choose(static_cast<uint32_t>(number - oldest + 1));
        } else if (oldest < number && core_.rng.chance(kStaleChance)) {
            number = oldest + core_.rng.below(number - oldest + 1);
        }
    }
    read_store(me, word, number, ordering);
    return word.at(number).value;
}

void Watch::push_store(Person& person, Word& word, uint64_t value, bool keeps_chain,
                       dev::Ordering ordering) {
    Store store;
    store.value = value;
    store.slot = person.slot;
    store.seen_by_all_at =
        accesses_ + (core_.choosing() ? kStaleAccessMax : core_.rng.below(kStaleAccessMax));
    if (keeps_chain) store.chain = word.stores.back().chain;
    Message message{nullptr, ordering.scope, person.rank, person.cta};
    if (ordering.releases) {
        message.view = snapshot(person);
    } else if (person.fenced != nullptr) {
        message.view = person.fenced;
        message.scope = std::min(ordering.scope, person.fence_scope);
    }
    store.time = person.view.plain.at(person.slot);
    if (message.view != nullptr) {
        bool merged = false;
        for (Message& old : store.chain) {
            if (old.scope != message.scope || old.cta != message.cta) continue;
            auto both = std::make_shared<View>(*old.view);
            both->join(*message.view);
            old.view = both;
            merged = true;
        }
        if (!merged) store.chain.push_back(message);
    }
    keep(word, std::move(store));
    word.seen[person.slot] = word.newest();
}

void Watch::keep(Word& word, Store store) {
    word.stores.push_back(std::move(store));
    if (word.stores.size() <= kHistoryMax) return;
    word.stores.pop_front();
    ++word.first;
}

void Watch::store(void* address, uint32_t bytes, uint64_t value, dev::Ordering ordering,
                  CodeAddress code) {
    Person& me = self();
    ordered_access(me, address, bytes, true, ordering, code);
    push_store(me, word_of(address, bytes, read_memory(address, bytes)), value, false, ordering);
    std::memcpy(address, &value, bytes);
}

void Watch::update(const void* address, uint32_t bytes, uint64_t before, uint64_t after,
                   bool stored, dev::Ordering ordering, CodeAddress code) {
    Person& me = self();
    ordered_access(me, address, bytes, stored, ordering, code);
    Word& word = word_of(address, bytes, before);
    read_store(me, word, word.newest(), ordering);
    if (stored) push_store(me, word, after, true, ordering);
}

void Watch::fence(dev::Ordering ordering) {
    Person& me = self();
    if (me.has_pending) {
        for (uint8_t distance = 0; distance <= ordering.scope; ++distance) {
            me.learn(me.pending[distance]);
            me.pending[distance] = View{};
        }
    }
    me.fenced = snapshot(me);
    me.fence_scope = ordering.scope;
}

void Watch::proxy_fence(bool shared_only) {
    Person& me = self();
    me.view.bulk_shared.join(me.view.plain);
    if (!shared_only) me.view.bulk_global.join(me.view.plain);
    me.view.plain.set(me.slot, ++slots_[me.slot].time);
    me.taken.reset();
}

// ---- accesses and races

bool Watch::watches_memory(const void* address, size_t bytes) {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address);
    if (at >= known_begin_ && at + bytes <= known_end_) return true;
    uintptr_t base = 0;
    const Allocation* const allocation = core_.memory->find(address, &base);
    if (allocation == nullptr) return false;
    known_begin_ = base;
    known_end_ = base + allocation->bytes;
    return at + bytes <= known_end_;
}

bool Watch::is_shared(const void* address) const {
    const Task* const task = core_.current();
    if (task->kind != FiberKind::device) return false;
    const Cta& cta = *static_cast<const DeviceTask*>(task)->cta;
    const auto* const at = static_cast<const std::byte*>(address);
    return at >= cta.shared && at < cta.shared + cta.shared_bytes;
}

/// What every access of a thread says of itself.
Watch::Cell Watch::cell_of(const Person& me, bool writes, CodeAddress code) const {
    Cell cell;
    cell.writes = writes;
    cell.slot = me.slot;
    cell.time = me.view.plain.at(me.slot);
    cell.rank = me.rank;
    cell.cta = me.cta;
    cell.place = me.place;
    cell.code = code;
    return cell;
}

void Watch::ordered_access(Person& me, const void* address, uint32_t bytes, bool writes,
                           dev::Ordering ordering, CodeAddress code) {
    ++accesses_;
    if (!options_.find_races) return;
    const bool shared = is_shared(address);
    if (!shared && !watches_memory(address, bytes)) return;
    Cell cell = cell_of(me, writes, code);
    cell.ordered = true;
    cell.scope = ordering.scope;
    cell.what = writes ? "ordered write" : "ordered read";
    record(cell, me.view, nullptr, address, bytes, shared);
}

void Watch::access(const void* address, size_t bytes, bool writes, CodeAddress code) {
    if (!options_.find_races || core_.current()->kind != FiberKind::device || bytes == 0) return;
    const bool shared = is_shared(address);
    if (!shared && !watches_memory(address, bytes)) return;
    ++accesses_;
    Person& me = self();
    Cell cell = cell_of(me, writes, code);
    cell.what = writes ? "plain write" : "plain read";
    record(cell, me.view, nullptr, address, bytes, shared);
}

void Watch::host_access(const void* address, size_t bytes, bool writes) {
    if (!options_.find_races || core_.current()->kind != FiberKind::host || bytes == 0) return;
    if (!watches_memory(address, bytes)) return;
    ++accesses_;
    Person& me = self();
    Cell cell = cell_of(me, writes, nullptr);
    cell.what = writes ? "write" : "read";
    record(cell, me.view, nullptr, address, bytes, false);
}

namespace {

bool ordered_before(const auto& old, const auto& now, const Knowledge& knows, bool shared,
                    bool* only_fence_missing) {
    if (old.slot == now.slot && old.proxy == now.proxy) return true;
    if (old.ordered && now.ordered) {
        const uint8_t distance = old.cta == now.cta     ? kScopeBlock
                                 : old.rank == now.rank ? kScopeGpu
                                                        : kScopeSystem;
        if (old.scope >= distance && now.scope >= distance) return true;
    }
    const bool known = knows.at(Part::plain, old.slot) >= old.time;
    // Bulk copies of one block, and those of its shared memory, are of one proxy and one block: the
    // mbarrier or the wait is enough. A read that is over needs no fence before a bulk copy
    // overwrites what it has read.
    const bool same_proxy = old.proxy == Proxy::async && (shared || old.cta == now.cta);
    const bool needs_fence = now.proxy == Proxy::async && old.writes && !same_proxy;
    if (!known || !needs_fence) return known;
    const Part part = shared ? Part::bulk_shared : Part::bulk_global;
    *only_fence_missing = true;
    return knows.at(part, old.slot) >= old.time;
}

}  // namespace

void Watch::record(Cell cell, const View& view, const View* more, const void* address, size_t bytes,
                   bool shared) {
    const Knowledge knows{&view, more};
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    const uintptr_t end = begin + bytes;
    for (uintptr_t grain = begin / kGrain * kGrain; grain < end; grain += kGrain) {
        unsigned mask = 0xffu;
        if (grain < begin) mask &= 0xffu << (begin - grain);
        if (grain + kGrain > end) mask &= 0xffu >> (grain + kGrain - end);
        cell.mask = static_cast<uint8_t>(mask);
        std::vector<Cell>& cells = shadow_[grain];
        size_t kept = 0;
        for (size_t i = 0; i < cells.size(); ++i) {
            const Cell& old = cells[i];
            bool fence = false;
            const bool overlaps = (old.mask & cell.mask) != 0;
            const bool before = ordered_before(old, cell, knows, shared, &fence);
            if (overlaps && (old.writes || cell.writes) && !before) {
                report(old, cell, reinterpret_cast<const void*>(std::max(grain, begin)), fence);
            }
            // What is covered by the new access says nothing that the new one does not say.
            const bool known = knows.at(Part::plain, old.slot) >= old.time;
            const bool covered =
                (old.mask & ~cell.mask) == 0 && known && (cell.writes || !old.writes);
            if (!covered) cells[kept++] = cells[i];
        }
        cells.resize(kept);
        cells.push_back(cell);
    }
}

std::string Watch::text_of(const Cell& cell) const {
    std::string text = cell.what;
    if (cell.ordered) text += std::string(" at ") + scope_name(cell.scope) + " scope";
    if (cell.proxy == Proxy::async) text += " (async proxy)";
    if (cell.code != nullptr) text += " at " + code_place(cell.code);
    return text + ", " + places_[cell.place];
}

void Watch::report(const Cell& old, const Cell& now, const void* address, bool only_fence_missing) {
    if (race_ != nullptr) return;
    race_ = std::make_unique<Race>(Race{old, now, "a block's shared memory", only_fence_missing});
    uintptr_t base = 0;
    if (const Allocation* const allocation = core_.memory->find(address, &base)) {
        race_->where = "memory of rank " + std::to_string(allocation->device) + " (byte " +
                       std::to_string(reinterpret_cast<uintptr_t>(address) - base) +
                       " of an allocation of " + std::to_string(allocation->bytes) + ")";
    }
    core_.fail("race");
}

std::string Watch::race_text() const {
    if (race_ == nullptr) return {};
    const char* why = "no release and acquire of sufficient scope lies between";
    if (race_->only_fence_missing) {
        why = "the second knows of the first, but no proxy fence lies between";
    } else if (race_->old.ordered && race_->now.ordered) {
        why = "a scope does not include the other's thread, and nothing else orders them";
    }
    return "race: two accesses to " + race_->where + "\n  first:  " + text_of(race_->old) +
           "\n  second: " + text_of(race_->now) + "\n  why:    " + why;
}

// ---- agents

Watch::AgentId Watch::start_agent(Proxy proxy, CodeAddress code, const char* what) {
    Person& me = self();
    AgentId id = 0;
    if (free_agents_.empty()) {
        id = static_cast<AgentId>(agents_.size());
        agents_.push_back(std::make_unique<Agent>());
    } else {
        id = free_agents_.back();
        free_agents_.pop_back();
        *agents_[id] = Agent{};
    }
    Agent& agent = *agents_[id];
    agent.proxy = proxy;
    agent.slot = take_slot();
    agent.time = ++slots_[agent.slot].time;
    agent.knows = snapshot(me);
    agent.learned.plain.set(agent.slot, agent.time);
    agent.rank = me.rank;
    agent.cta = me.cta;
    agent.place = me.place;
    agent.code = code;
    agent.what = what;
    return id;
}

void Watch::agent_access(AgentId id, const void* address, size_t bytes, bool writes) {
    if (id == kNoAgent || !options_.find_races || bytes == 0) return;
    const Agent& agent = *agents_[id];
    const bool shared = is_shared(address);
    if (!shared && !watches_memory(address, bytes)) return;
    ++accesses_;
    Cell cell;
    cell.writes = writes;
    cell.proxy = agent.proxy;
    cell.slot = agent.slot;
    cell.time = agent.time;
    cell.rank = agent.rank;
    cell.cta = agent.cta;
    cell.place = agent.place;
    cell.code = agent.code;
    cell.what = agent.what;
    record(cell, *agent.knows, &agent.learned, address, bytes, shared);
}

// The agent's next accesses are not part of what was released.
void Watch::agent_release(AgentId id, const void* token, Gives gives) {
    if (id == kNoAgent) return;
    Agent& agent = *agents_[id];
    View& arriving = tokens_[token].arriving;
    if (gives == Gives::all_it_knows) arriving.join(*agent.knows);
    arriving.join(agent.learned);
    agent.time = ++slots_[agent.slot].time;
    agent.learned.plain.set(agent.slot, agent.time);
}

void Watch::agent_joins(AgentId id, AgentId other) {
    if (id == kNoAgent || other == kNoAgent) return;
    agents_[id]->learned.join(agents_[other]->learned);
}

void Watch::agent_joins(AgentId id, const void* token) {
    const auto found = tokens_.find(token);
    if (id != kNoAgent && found != tokens_.end()) agents_[id]->learned.join(found->second.arriving);
}

void Watch::end_agent(AgentId id) {
    if (id == kNoAgent) return;
    give_slot(agents_[id]->slot);
    free_agents_.push_back(id);
}

void Watch::age_copy(AgentId id, const void* source, void* destination, size_t bytes, From from) {
    if (id == kNoAgent || !options_.stale_loads || words_.empty()) return;
    const Agent& agent = *agents_[id];
    const Knowledge knows{agent.knows.get(), &agent.learned};
    const Part part = from == From::shared ? Part::bulk_shared : Part::bulk_global;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(source);
    for (uintptr_t at = begin; at < begin + bytes; at += 4) {
        const auto found = words_.find(at);
        if (found == words_.end()) continue;
        Word& word = found->second;
        const uint64_t now = read_memory(reinterpret_cast<const void*>(at), word.bytes);
        if (word.stores.empty() || word.stores.back().value != now) continue;
        if (at + word.bytes > begin + bytes) continue;
        uint64_t number = word.newest();
        while (number > word.first && knows.at(part, word.at(number).slot) < word.at(number).time &&
               (core_.choosing() ? core_.choose(2) == 1 : core_.rng.chance(kStaleChance))) {
            --number;
        }
        std::memcpy(static_cast<std::byte*>(destination) + (at - begin), &word.at(number).value,
                    word.bytes);
    }
}

// Only words that somebody has looked at have an old value to be left with.
void Watch::agent_stored(AgentId id, const void* address, size_t bytes, const void* before) {
    if (id == kNoAgent || !options_.stale_loads || words_.empty()) return;
    const Agent& agent = *agents_[id];
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    for (uintptr_t at = begin; at < begin + bytes; at += 4) {
        const auto found = words_.find(at);
        if (found == words_.end()) continue;
        Word& word = found->second;
        if (at + word.bytes > begin + bytes || word.stores.empty()) continue;
        const auto* const old = static_cast<const std::byte*>(before) + (at - begin);
        if (word.stores.back().value != read_memory(old, word.bytes)) continue;
        Store store;
        store.value = read_memory(reinterpret_cast<const void*>(at), word.bytes);
        store.slot = agent.slot;
        store.time = agent.time;
        store.seen_by_all_at =
            accesses_ + (core_.choosing() ? kStaleAccessMax : core_.rng.below(kStaleAccessMax));
        keep(word, std::move(store));
    }
}

void Watch::forget_memory(const void* address, size_t bytes) {
    known_begin_ = known_end_ = 0;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
    const auto inside = [&](const auto& entry) {
        return entry.first >= begin / kGrain * kGrain && entry.first < begin + bytes;
    };
    std::erase_if(shadow_, inside);
    std::erase_if(words_, inside);
}

void note_plain_access(const void* address, size_t bytes, bool writes, CodeAddress code) {
    if (Watch* const active = watch()) active->access(address, bytes, writes, code);
}

}  // namespace gimlet::emu

// ---- hooks of device code

namespace gimlet::emu::dev {

__attribute__((tls_model("initial-exec"))) __thread Watch* active_watch = nullptr;

uint64_t watched_load(const void* address, uint32_t bytes, Ordering ordering) {
    return active_watch->load(address, bytes, ordering, __builtin_return_address(0));
}

void watched_store(void* address, uint32_t bytes, uint64_t value, Ordering ordering) {
    active_watch->store(address, bytes, value, ordering, __builtin_return_address(0));
}

void watched_update(void* address, uint32_t bytes, uint64_t before, uint64_t after, bool stored,
                    Ordering ordering) {
    active_watch->update(address, bytes, before, after, stored, ordering,
                         __builtin_return_address(0));
}

void watched_fence(Ordering ordering) {
    active_watch->fence(ordering);
}

void watched_proxy_fence(bool shared_only) {
    active_watch->proxy_fence(shared_only);
}

void watched_read(const void* address, uint32_t bytes) {
    active_watch->access(address, bytes, false, __builtin_return_address(0));
}

void watched_write(void* address, uint32_t bytes) {
    active_watch->access(address, bytes, true, __builtin_return_address(0));
}

}  // namespace gimlet::emu::dev

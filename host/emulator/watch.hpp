// SPDX-License-Identifier: Apache-2.0
//
// Vector clocks over a simulation: who has seen what, by order, scope and proxy. From them follow
// (1) which old values a load may still return, and (2) which accesses race.
//
// Every CUDA thread and host program has a slot and a view. A view says up to which point it knows
// each slot's past; it has three parts, because what an ordinary access may rely on, a bulk copy
// may only rely on after a proxy fence. The rules are in host/emulator/README.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "host/emulator/engine.hpp"
#include "host/emulator/include/gimlet_emu_watch.hpp"

namespace gimlet::emu {

struct Cta;
struct Task;

using ClockTime = uint32_t;

/// One time a slot; slots beyond the end are at 0.
class Clock {
  public:
    ClockTime at(uint32_t slot) const { return slot < times_.size() ? times_[slot] : 0; }
    void set(uint32_t slot, ClockTime time) {
        if (slot >= times_.size()) times_.resize(slot + 1);
        times_[slot] = time;
    }
    void join(const Clock& other);

  private:
    std::vector<ClockTime> times_;
};

/// What is known: to ordinary accesses, to bulk copies of global memory, and to those of shared
/// memory.
struct View {
    Clock plain;
    Clock bulk_global;
    Clock bulk_shared;

    void join(const View& other);
    void join_plain_everywhere();  ///< all that is known is known to bulk copies too
};

enum class Proxy : uint8_t { generic, async };

/// Where the access was made: a return address of device code.
using CodeAddress = const void*;

class Watch {
  public:
    Watch(EngineCore& core, const MemoryOptions& options);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // ---- what orders. A token is any address; views are released to it and acquired from it.
    void release(const void* token);
    void acquire(const void* token);
    /// A meeting: those who arrive release to `token`; when it completes, what was released becomes
    /// what those who leave acquire. An early arrival for the next round is so kept apart.
    void complete(const void* token);
    void leave(const void* token);
    /// Tokens at these addresses are no more.
    void forget_tokens(const void* begin, size_t bytes);
    void forget_cta(const Cta& cta);

    void kernel_starts(const void* kernel, const void* device);
    /// Called by the thread itself.
    void thread_ends(const void* device);
    void task_ends(Task& task);

    // ---- ordered accesses, by the running thread
    uint64_t load(const void* address, uint32_t bytes, dev::Ordering ordering, CodeAddress code);
    void store(void* address, uint32_t bytes, uint64_t value, dev::Ordering ordering,
               CodeAddress code);
    void update(const void* address, uint32_t bytes, uint64_t before, uint64_t after, bool stored,
                dev::Ordering ordering, CodeAddress code);
    void fence(dev::Ordering ordering);
    void proxy_fence(bool shared_only);

    // ---- plain accesses, by the running thread
    void access(const void* address, size_t bytes, bool writes, CodeAddress code);
    /// A host program reads what kernels left, or has written what they will read; it knows what it
    /// has synchronised with.
    void host_access(const void* address, size_t bytes, bool writes);

    // ---- agents: what the machine does later on a thread's behalf
    using AgentId = uint32_t;
    static constexpr AgentId kNoAgent = 0;
    /// An agent that knows what the running thread knows.
    AgentId start_agent(Proxy proxy, CodeAddress code, const char* what);
    void agent_access(AgentId agent, const void* address, size_t bytes, bool writes);
    /// What a token gets of an agent: that it is done, or all that its issuer knew as well.
    enum class Gives { itself, all_it_knows };
    void agent_release(AgentId agent, const void* token, Gives gives);
    /// The agent learns what another one did.
    void agent_joins(AgentId agent, AgentId other);
    void agent_joins(AgentId agent, const void* token);
    void end_agent(AgentId agent);
    /// For a bulk copy: bytes that were copied from memory may be older than memory.
    enum class From { global, shared };
    void age_copy(AgentId agent, const void* source, void* destination, size_t bytes, From from);
    /// For a bulk store: memory has these bytes now, for those who know of the copy.
    void agent_stored(AgentId agent, const void* address, size_t bytes, const void* before);

    /// Memory that is freed or reused.
    void forget_memory(const void* address, size_t bytes);

    /// The race that ended the run; empty if there was none. Runs addr2line.
    std::string race_text() const;
    uint64_t accesses_seen() const { return accesses_; }

  private:
    struct Person;
    struct Message;
    struct Store;
    struct Word;
    struct Cell;
    struct SlotInfo;
    struct Agent;
    struct Race;
    struct Token {
        View arriving;
        View completed;
    };

    Person& self();
    std::shared_ptr<const View> snapshot(Person& person);
    uint32_t take_slot();
    void give_slot(uint32_t slot);
    Word& word_of(const void* address, uint32_t bytes, uint64_t memory_value);
    void read_store(Person& person, Word& word, uint64_t number, dev::Ordering ordering);
    void push_store(Person& person, Word& word, uint64_t value, bool keeps_chain,
                    dev::Ordering ordering);
    static void keep(Word& word, Store store);
    bool includes(const Message& message, const Person& person, uint8_t scope) const;
    bool watches_memory(const void* address, size_t bytes);
    bool is_shared(const void* address) const;
    void ordered_access(Person& me, const void* address, uint32_t bytes, bool writes,
                        dev::Ordering ordering, CodeAddress code);
    Cell cell_of(const Person& me, bool writes, CodeAddress code) const;
    void record(Cell cell, const View& view, const View* more, const void* address, size_t bytes,
                bool shared);
    void report(const Cell& old, const Cell& now, const void* address, bool only_fence_missing);
    std::string text_of(const Cell& cell) const;

    EngineCore& core_;
    const MemoryOptions options_;
    std::vector<SlotInfo> slots_;
    std::deque<uint32_t> free_slots_;
    std::vector<std::string> places_;  ///< of people, for reports; kept after their end
    std::unordered_map<const Task*, std::unique_ptr<Person>> people_;
    std::unordered_map<const void*, Token> tokens_;
    std::unordered_map<uintptr_t, Word> words_;
    std::unordered_map<uintptr_t, std::vector<Cell>> shadow_;
    std::vector<std::unique_ptr<Agent>> agents_;
    std::vector<AgentId> free_agents_;
    uintptr_t known_begin_ = 0;
    uintptr_t known_end_ = 0;
    uint64_t accesses_ = 0;
    std::unique_ptr<Race> race_;  ///< the first one
};

/// The watch of this thread's simulation; null if there is none, or it does not watch.
inline Watch* watch() {
    return dev::active_watch;
}

/// A plain access of instrumented device code (never throws: the run ends at the next yield).
void note_plain_access(const void* address, size_t bytes, bool writes, CodeAddress code);

}  // namespace gimlet::emu

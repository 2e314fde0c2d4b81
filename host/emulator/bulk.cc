// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/bulk.hpp"

#include <algorithm>
#include <cstring>

#include "host/emulator/include/gimlet_emu_device.hpp"

namespace gimlet::emu {
namespace {

constexpr uint32_t kGrain = 16;  // bytes; alignment and smallest piece of a bulk copy
constexpr uint32_t kBarrierTag = 0x6d626172u;
constexpr int64_t kTransactionBytesMax = (1 << 20) - 1;
constexpr double kSpuriousMissChance = 0.125;
constexpr double kSlowChance = 0.25;  // of a store: read long before it is written
constexpr uint32_t kPatienceMax = 32;

uint64_t barrier_word(size_t index) {
    return (uint64_t{kBarrierTag} << 32) | index;
}

std::string address_text(const void* address) {
    char text[32];
    std::snprintf(text, sizeof(text), "%p", address);
    return text;
}

}  // namespace

// ---- copies

void BulkEngine::check_shared_range(DeviceTask& task, const void* address, uint32_t bytes,
                                    const char* call) {
    const auto* const at = static_cast<const std::byte*>(address);
    const Cta& cta = *task.cta;
    if (at < cta.shared || at + bytes > cta.shared + cta.shared_bytes) {
        core_.engine().refuse(std::string(call) + ": " + address_text(address) + " + " +
                              std::to_string(bytes) + " bytes is not within the " +
                              std::to_string(cta.shared_bytes) +
                              " bytes of this block's dynamic shared memory");
    }
}

void BulkEngine::check_copy(DeviceTask& task, const void* destination, const void* source,
                            uint32_t bytes, const char* call) {
    const auto misaligned = [](const void* p) {
        return reinterpret_cast<uintptr_t>(p) % kGrain != 0;
    };
    if (misaligned(destination) || misaligned(source) || bytes % kGrain != 0 || bytes == 0) {
        core_.engine().refuse(std::string(call) +
                              ": addresses and size must be multiples of 16 and the size " +
                              "not 0: destination " + address_text(destination) + ", source " +
                              address_text(source) + ", " + std::to_string(bytes) + " bytes");
    }
    if (destination == nullptr || source == nullptr) {
        core_.engine().refuse(std::string(call) + ": null address");
    }
    (void)task;
}

bool BulkEngine::draw_backwards() {
    if (!core_.choosing()) return core_.rng.chance(0.5);
    return split_chance() > 0 && core_.choose(2) == 1;
}

void BulkEngine::load(DeviceTask& task, void* destination, const void* source, uint32_t bytes,
                      uint64_t* bar) {
    check_copy(task, destination, source, bytes, "bulk load");
    check_shared_range(task, destination, bytes, "bulk load");
    MBarrier& barrier = barrier_of(task, bar, "bulk load");
    note_read(source, bytes);
    note_write(destination, bytes);
    happens_before(bar);
    UnseenScope unseen;
    BulkCopy copy;
    copy.cta = task.cta;
    copy.kernel = task.cta->kernel;
    copy.destination = static_cast<std::byte*>(destination);
    copy.source = static_cast<const std::byte*>(source);
    copy.bytes = bytes;
    copy.backwards = draw_backwards();
    copy.barrier = static_cast<uint32_t>(&barrier - task.cta->mbarriers.data());
    if (Watch* const watching = watch()) {
        copy.agent = watching->start_agent(Proxy::async, caller, "bulk load");
        watching->agent_access(copy.agent, source, bytes, false);
        watching->agent_access(copy.agent, destination, bytes, true);
    }
    // From now on the destination holds nothing in particular. Somebody who still reads it, or
    // reads it too early, sees that.
    if (core_.rng.chance(0.5) || core_.choosing()) {
        std::fill_n(copy.destination, bytes, kPoisonByte);
    }
    copies_.push_back(std::move(copy));
    ++task.cta->kernel->bulk_in_flight;
}

void BulkEngine::store(DeviceTask& task, void* destination, const void* source, uint32_t bytes) {
    check_copy(task, destination, source, bytes, "bulk store");
    check_shared_range(task, source, bytes, "bulk store");
    note_read(source, bytes);
    note_write(destination, bytes);
    UnseenScope unseen;
    BulkCopy copy;
    copy.store = true;
    copy.cta = task.cta;
    copy.kernel = task.cta->kernel;
    copy.issuer = &task;
    copy.destination = static_cast<std::byte*>(destination);
    copy.source = static_cast<const std::byte*>(source);
    copy.bytes = bytes;
    copy.backwards = draw_backwards();
    copy.group = task.bulk.open_group;
    copy.slow = core_.rng.chance(kSlowChance) && !core_.choosing();
    if (copy.slow) copy.patience = static_cast<uint32_t>(core_.rng.below(kPatienceMax));
    copy.staged.resize(bytes);
    if (Watch* const watching = watch()) {
        copy.read_agent = watching->start_agent(Proxy::async, caller, "bulk store's read");
        watching->agent_access(copy.read_agent, source, bytes, false);
        copy.agent = watching->start_agent(Proxy::async, caller, "bulk store's write");
        watching->agent_access(copy.agent, destination, bytes, true);
    }
    copies_.push_back(std::move(copy));
    task.bulk.newest_store_group = task.bulk.open_group;
    ++task.cta->kernel->bulk_in_flight;
}

void BulkEngine::commit(DeviceTask& task) {
    ++task.bulk.open_group;
}

bool BulkEngine::group_pending(const DeviceTask& task, uint64_t newest_group, bool reading) const {
    return std::any_of(copies_.begin(), copies_.end(), [&](const BulkCopy& copy) {
        return copy.issuer == &task && copy.group <= newest_group &&
               (!reading || copy.read < copy.bytes);
    });
}

void BulkEngine::wait_groups(DeviceTask& task, int pending_groups, bool reading, const char* what) {
    UnseenScope unseen;
    const uint64_t committed = task.bulk.open_group - 1;
    const uint64_t allowed = pending_groups < 0 ? 0 : static_cast<uint64_t>(pending_groups);
    if (allowed >= committed) return;
    const uint64_t newest = committed - allowed;
    core_.yield(what);
    task.bulk.waiting = true;
    while (group_pending(task, newest, reading)) core_.block(what);
    task.bulk.waiting = false;
    task.bulk.read_waited_group = std::max(task.bulk.read_waited_group, newest);
    if (Watch* const watching = watch()) {
        watching->acquire(&task.bulk.read_waited_group);
        if (!reading) watching->acquire(&task.bulk.open_group);
    }
}

void BulkEngine::wait_read(DeviceTask& task, int pending_groups) {
    wait_groups(task, pending_groups, true, "bulk stores' sources (wait_read)");
}

void BulkEngine::wait(DeviceTask& task, int pending_groups) {
    wait_groups(task, pending_groups, false, "bulk stores (wait)");
}

uint32_t BulkEngine::piece_of(const BulkCopy& copy, uint32_t left, double split, Rng& rng) const {
    if (core_.choosing()) {
        // Whole, or in two halves.
        const uint32_t half = copy.bytes / 2 / kGrain * kGrain;
        return split > 0 && half > 0 && left == copy.bytes ? half : left;
    }
    if (left <= kGrain || !rng.chance(split)) return left;
    return kGrain * static_cast<uint32_t>(1 + rng.below(left / kGrain));
}

void BulkEngine::move_load(BulkCopy& copy, Rng& rng) {
    const uint32_t piece = piece_of(copy, copy.bytes - copy.written, split_chance(), rng);
    const uint32_t at = copy.backwards ? copy.bytes - copy.written - piece : copy.written;
    std::memcpy(copy.destination + at, copy.source + at, piece);
    copy.written += piece;
    MBarrier& barrier = copy.cta->mbarriers[copy.barrier];
    if (Watch* const watching = watch()) {
        watching->age_copy(copy.agent, copy.source + at, copy.destination + at, piece,
                           Watch::From::global);
        if (copy.written == copy.bytes) {
            watching->agent_release(copy.agent, barrier.address, Watch::Gives::itself);
        }
    }
    barrier.pending_bytes -= piece;
    barrier.bytes_in_phase = true;
    try_complete(*copy.cta, barrier);
}

void BulkEngine::read_store(BulkCopy& copy, Rng& rng) {
    const uint32_t piece = piece_of(copy, copy.bytes - copy.read, split_chance(), rng);
    const uint32_t at = copy.backwards ? copy.bytes - copy.read - piece : copy.read;
    std::memcpy(copy.staged.data() + at, copy.source + at, piece);
    copy.read += piece;
    Watch* const watching = watch();
    if (watching != nullptr) {
        watching->age_copy(copy.read_agent, copy.source + at, copy.staged.data() + at, piece,
                           Watch::From::shared);
    }
    if (watching != nullptr && copy.read == copy.bytes) {
        if (copy.issuer != nullptr) {
            watching->agent_release(copy.read_agent, &copy.issuer->bulk.read_waited_group,
                                    Watch::Gives::itself);
        }
        watching->end_agent(copy.read_agent);
    }
    if (copy.issuer != nullptr && copy.issuer->bulk.waiting) core_.wake(copy.issuer);
}

void BulkEngine::write_store(BulkCopy& copy, Rng& rng) {
    const double split = copy.slow ? 1.0 : split_chance();
    const uint32_t piece = piece_of(copy, copy.read - copy.written, split, rng);
    if (copy.slow) copy.patience = static_cast<uint32_t>(rng.below(kPatienceMax / 4));
    const uint32_t at = copy.backwards ? copy.bytes - copy.written - piece : copy.written;
    Watch* const watching = watch();
    std::vector<std::byte> before;
    if (watching != nullptr) before.assign(copy.destination + at, copy.destination + at + piece);
    std::memcpy(copy.destination + at, copy.staged.data() + at, piece);
    if (watching != nullptr)
        watching->agent_stored(copy.agent, copy.destination + at, piece, before.data());
    copy.written += piece;
    if (copy.issuer != nullptr && copy.issuer->bulk.waiting) core_.wake(copy.issuer);
}

void BulkEngine::move(size_t index, Rng& rng) {
    BulkCopy& copy = copies_[index];
    const bool can_write = copy.written < copy.read;
    const bool can_read = copy.read < copy.bytes;
    if (!copy.store) {
        move_load(copy, rng);
    } else if (can_read && (!can_write || rng.chance(0.5))) {
        read_store(copy, rng);
    } else if (!can_read && copy.patience > 0) {
        --copy.patience;
    } else {
        write_store(copy, rng);
    }
    if (copy.written == copy.bytes) retire(index);
}

size_t BulkEngine::move_count() {
    moves_.clear();
    for (size_t i = 0; i < copies_.size(); ++i) {
        const BulkCopy& copy = copies_[i];
        if (!copy.store) moves_.push_back({i, Step::load});
        if (copy.store && copy.read < copy.bytes) moves_.push_back({i, Step::read});
        if (copy.store && copy.written < copy.read) moves_.push_back({i, Step::write});
    }
    return moves_.size();
}

void BulkEngine::move_number(size_t number, Rng& rng) {
    const Move chosen = moves_[number];
    BulkCopy& copy = copies_[chosen.index];
    switch (chosen.step) {
        case Step::load: move_load(copy, rng); break;
        case Step::read: read_store(copy, rng); break;
        case Step::write: write_store(copy, rng); break;
    }
    core_.progress();
    if (copy.written == copy.bytes) retire(chosen.index);
}

void BulkEngine::retire(size_t index) {
    Kernel* const kernel = copies_[index].kernel;
    if (Watch* const watching = watch()) {
        const BulkCopy& copy = copies_[index];
        if (copy.store && copy.issuer != nullptr) {
            watching->agent_release(copy.agent, &copy.issuer->bulk.open_group,
                                    Watch::Gives::itself);
        }
        watching->agent_release(copy.agent, &core_.devices()[kernel->device], Watch::Gives::itself);
        watching->end_agent(copy.agent);
    }
    if (index + 1 != copies_.size()) copies_[index] = std::move(copies_.back());
    copies_.pop_back();
    --kernel->bulk_in_flight;
    core_.kernel_may_be_done(*kernel);
}

bool BulkEngine::step(Rng& rng) {
    if (copies_.empty()) return false;
    for (uint64_t moves = 1 + rng.below(2 + copies_.size() / 4); moves > 0; --moves) {
        const size_t index = rng.below(copies_.size());
        move(index, rng);
        if (copies_.empty()) break;
    }
    return true;
}

std::string BulkEngine::describe() const {
    return std::to_string(copies_.size()) + " bulk copies";
}

// ---- mbarriers

void BulkEngine::barrier_init(DeviceTask& task, uint64_t* bar, uint32_t count) {
    UnseenScope unseen;
    if (reinterpret_cast<uintptr_t>(bar) % sizeof(uint64_t) != 0) {
        core_.engine().refuse("mbarrier init: " + address_text(bar) + " is not 8-byte aligned");
    }
    check_shared_range(task, bar, sizeof(uint64_t), "mbarrier init");
    if (count == 0 || count >= (1u << 20)) {
        core_.engine().refuse("mbarrier init: count " + std::to_string(count) +
                              " is not in [1, 2^20 - 1]");
    }
    std::vector<MBarrier>& table = task.cta->mbarriers;
    size_t index = 0;
    while (index < table.size() && table[index].address != bar) ++index;
    if (index == table.size()) table.emplace_back();
    if (table[index].valid) {
        core_.engine().refuse("mbarrier init: " + address_text(bar) +
                              " already holds an mbarrier (invalidate it first)");
    }
    table[index] = MBarrier{};
    table[index].address = bar;
    table[index].count = count;
    table[index].pending = count;
    table[index].valid = true;
    *bar = barrier_word(index);
}

MBarrier& BulkEngine::barrier_of(DeviceTask& task, const uint64_t* bar, const char* call) {
    UnseenScope unseen;
    std::vector<MBarrier>& table = task.cta->mbarriers;
    const uint64_t word = *bar;
    const size_t index = static_cast<uint32_t>(word);
    if ((word >> 32) != kBarrierTag || index >= table.size() || table[index].address != bar ||
        !table[index].valid) {
        core_.engine().refuse(std::string(call) + ": no initialised mbarrier at " +
                              address_text(bar) + ", or it was overwritten");
    }
    return table[index];
}

void BulkEngine::barrier_invalidate(DeviceTask& task, uint64_t* bar) {
    UnseenScope unseen;
    MBarrier& barrier = barrier_of(task, bar, "mbarrier inval");
    const size_t index = static_cast<uint32_t>(*bar);
    for (const BulkCopy& copy : copies_) {
        if (!copy.store && copy.cta == task.cta && copy.barrier == index) {
            core_.engine().refuse("mbarrier inval: bulk loads that complete on it are in flight");
        }
    }
    barrier.valid = false;
    *bar = 0;
}

void BulkEngine::try_complete(Cta& cta, MBarrier& barrier) {
    if (barrier.pending != 0 || barrier.pending_bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.count;
    barrier.landed_unseen = barrier.bytes_in_phase;
    barrier.bytes_in_phase = false;
    (void)cta;
    if (Watch* const watching = watch()) watching->complete(barrier.address);
    core_.progress();
}

void BulkEngine::barrier_arrive(DeviceTask& task, uint64_t* bar, uint32_t expected_bytes,
                                bool arrives) {
    UnseenScope unseen;
    core_.yield("mbarrier arrive");
    MBarrier& barrier = barrier_of(task, bar, "mbarrier arrive");
    happens_before(bar);
    if (Watch* const watching = watch()) watching->release(bar);
    barrier.pending_bytes += expected_bytes;
    if (barrier.pending_bytes > kTransactionBytesMax) {
        core_.engine().refuse("mbarrier expect_tx: " + std::to_string(barrier.pending_bytes) +
                              " pending bytes, at most 2^20 - 1 can be counted");
    }
    if (arrives) {
        if (barrier.pending == 0) {
            core_.engine().refuse("mbarrier arrive: all " + std::to_string(barrier.count) +
                                  " arrivals of this phase have come already");
        }
        --barrier.pending;
    }
    try_complete(*task.cta, barrier);
    core_.progress();
}

bool BulkEngine::barrier_test(DeviceTask& task, uint64_t* bar, uint32_t parity) {
    UnseenScope unseen;
    core_.yield("mbarrier phase");
    MBarrier& barrier = barrier_of(task, bar, "mbarrier wait");
    if ((barrier.phase & 1) == (parity & 1)) return false;
    if (core_.rng.chance(kSpuriousMissChance)) return false;
    if (barrier.phase > 0) barrier.landed_unseen = false;
    happens_after(bar);
    if (Watch* const watching = watch()) watching->leave(bar);
    return true;
}

// ---- exits

void BulkEngine::thread_finished(DeviceTask& task) {
    if (task.bulk.newest_store_group > task.bulk.read_waited_group) {
        core_.engine().refuse(
            "a thread exits although it never waited for the sources of its bulk stores to be read "
            "(the block's shared memory may be reused)");
    }
    for (BulkCopy& copy : copies_) {
        if (copy.issuer == &task) copy.issuer = nullptr;
    }
}

void BulkEngine::block_finished(Cta& cta) {
    const std::string place = " (device " + std::to_string(cta.kernel->device) + ", kernel " +
                              cta.kernel->launch->name + ", block " + std::to_string(cta.index) +
                              ")";
    for (BulkCopy& copy : copies_) {
        if (copy.cta != &cta) continue;
        if (!copy.store) {
            core_.engine().refuse(
                "a block exits while bulk loads into its shared memory are in flight" + place);
        }
        copy.cta = nullptr;
    }
    for (const MBarrier& barrier : cta.mbarriers) {
        if (!barrier.valid) continue;
        if (barrier.pending_bytes != 0) {
            core_.engine().refuse(
                "a block exits while an mbarrier's announced and landed bytes differ by " +
                std::to_string(barrier.pending_bytes) + place);
        }
        if (barrier.landed_unseen) {
            core_.engine().refuse("a block exits although nobody waited for its last bulk loads" +
                                  place);
        }
    }
    cta.mbarriers.clear();
}

}  // namespace gimlet::emu

// ---- hooks of device code

namespace gimlet::emu::dev {
namespace {

DeviceTask& task() {
    return EngineCore::of_this_thread()->current_device_task();
}

BulkEngine& bulk() {
    return *EngineCore::of_this_thread()->bulk;
}

// No thread of the program runs outside the engine's thread.
void require_thread() {
    if (running_thread == nullptr) no_thread();
}

}  // namespace

void mbarrier_init(uint64_t* bar, uint32_t count) {
    require_thread();
    bulk().barrier_init(task(), bar, count);
}

void mbarrier_inval(uint64_t* bar) {
    require_thread();
    bulk().barrier_invalidate(task(), bar);
}

void mbarrier_arrive(uint64_t* bar) {
    require_thread();
    bulk().barrier_arrive(task(), bar, 0, true);
}

void mbarrier_arrive_expect_tx(uint64_t* bar, uint32_t bytes) {
    require_thread();
    bulk().barrier_arrive(task(), bar, bytes, true);
}

void mbarrier_expect_tx(uint64_t* bar, uint32_t bytes) {
    require_thread();
    bulk().barrier_arrive(task(), bar, bytes, false);
}

bool mbarrier_try_wait(uint64_t* bar, uint32_t parity) {
    require_thread();
    return bulk().barrier_test(task(), bar, parity);
}

void bulk_load(void* shared_dst, const void* src, uint32_t bytes, uint64_t* bar) {
    require_thread();
    bulk().caller = __builtin_return_address(0);
    bulk().load(task(), shared_dst, src, bytes, bar);
}

void bulk_store(void* dst, const void* shared_src, uint32_t bytes) {
    require_thread();
    bulk().caller = __builtin_return_address(0);
    bulk().store(task(), dst, shared_src, bytes);
}

void bulk_commit() {
    require_thread();
    bulk().commit(task());
}

void bulk_wait_read(int pending_groups) {
    require_thread();
    bulk().wait_read(task(), pending_groups);
}

void bulk_wait(int pending_groups) {
    require_thread();
    bulk().wait(task(), pending_groups);
}

}  // namespace gimlet::emu::dev

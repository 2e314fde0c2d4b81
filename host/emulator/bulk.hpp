// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous bulk copies (TMA) and mbarriers, with the worst legal timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "host/emulator/core.hpp"

namespace gimlet::emu {

/// One copy in flight.
struct BulkCopy {
    bool store = false;
    bool backwards = false;  ///< pieces go from the end
    Cta* cta = nullptr;      ///< while its shared memory is needed
    Kernel* kernel = nullptr;
    DeviceTask* issuer = nullptr;  ///< while it lives; stores only
    std::byte* destination = nullptr;
    const std::byte* source = nullptr;
    uint32_t bytes = 0;
    uint32_t read = 0;  ///< bytes taken from the source
    uint32_t written = 0;
    bool slow = false;      ///< a store that is read long before it is written, in many pieces
    uint32_t patience = 0;  ///< times that its next write is put off
    uint64_t group = 0;
    uint32_t agent = 0;             ///< of the watch: a load, or a store's write
    uint32_t read_agent = 0;        ///< of the watch: a store's read
    uint32_t barrier = 0;           ///< index in the CTA's table; loads only
    std::vector<std::byte> staged;  ///< stores: bytes read and not written yet
};

struct BulkEngine : Worker {
    explicit BulkEngine(EngineCore& core) : core_(core) {}

    bool busy() const override { return !copies_.empty(); }
    bool step(Rng& rng) override;
    std::string describe() const override;
    size_t move_count() override;
    void move_number(size_t number, Rng& rng) override;

    void load(DeviceTask& task, void* destination, const void* source, uint32_t bytes,
              uint64_t* bar);
    void store(DeviceTask& task, void* destination, const void* source, uint32_t bytes);
    void commit(DeviceTask& task);
    void wait_read(DeviceTask& task, int pending_groups);
    void wait(DeviceTask& task, int pending_groups);

    void barrier_init(DeviceTask& task, uint64_t* bar, uint32_t count);
    void barrier_invalidate(DeviceTask& task, uint64_t* bar);
    void barrier_arrive(DeviceTask& task, uint64_t* bar, uint32_t expected_bytes, bool arrives);
    bool barrier_test(DeviceTask& task, uint64_t* bar, uint32_t parity);

    /// Where device code called from, for reports of the watch.
    const void* caller = nullptr;

    /// Checks at the exit of a thread and of a CTA; they refuse.
    void thread_finished(DeviceTask& task);
    void block_finished(Cta& cta);

  private:
    MBarrier& barrier_of(DeviceTask& task, const uint64_t* bar, const char* call);
    void try_complete(Cta& cta, MBarrier& barrier);
    void check_shared_range(DeviceTask& task, const void* address, uint32_t bytes,
                            const char* call);
    void check_copy(DeviceTask& task, const void* destination, const void* source, uint32_t bytes,
                    const char* call);
    bool group_pending(const DeviceTask& task, uint64_t newest_group, bool reading) const;
    void wait_groups(DeviceTask& task, int pending_groups, bool reading, const char* what);
    bool draw_backwards();
    double split_chance() const { return core_.options.faults.split_chance; }
    uint32_t piece_of(const BulkCopy& copy, uint32_t left, double split, Rng& rng) const;
    void move_load(BulkCopy& copy, Rng& rng);
    void read_store(BulkCopy& copy, Rng& rng);
    void write_store(BulkCopy& copy, Rng& rng);
    void move(size_t index, Rng& rng);
    void retire(size_t index);

    enum class Step : uint8_t { load, read, write };
    struct Move {
        size_t index;
        Step step;
    };
    std::vector<Move> moves_;  ///< of the last move_count()

    EngineCore& core_;
    std::vector<BulkCopy> copies_;
};

}  // namespace gimlet::emu

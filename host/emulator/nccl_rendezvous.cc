// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/nccl_rendezvous.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace gimlet::emu::nccl {
namespace {

constexpr uint64_t kIdMagic = 0x4c43434e544c4d47;

struct IdBytes {
    uint64_t magic;
    uint64_t nonce;
    int32_t pid;
    int32_t fd;
};
static_assert(sizeof(IdBytes) <= NCCL_UNIQUE_ID_BYTES);

IdBytes unpack(const ncclUniqueId& id) {
    IdBytes bytes;
    std::memcpy(&bytes, id.internal, sizeof(bytes));
    return bytes;
}

ControlBlock* map_block(int fd) {
    const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void* memory = mmap(nullptr, sizeof(ControlBlock), PROT_READ | PROT_WRITE, flags, fd, 0);
    return memory == MAP_FAILED ? nullptr : static_cast<ControlBlock*>(memory);
}

bool process_is_gone(int pid) {
    if (pid == 0) return false;
    if (kill(pid, 0) != 0 && errno == ESRCH) return true;
    // A dead child that nobody has waited for still has its number.
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    std::FILE* stat = std::fopen(path, "r");
    if (stat == nullptr) return true;
    char state = 'R';
    const int fields = std::fscanf(stat, "%*d (%*[^)]) %c", &state);
    std::fclose(stat);
    return fields == 1 && (state == 'Z' || state == 'X');
}

}  // namespace

std::shared_ptr<Rendezvous> Rendezvous::create(Place place, uint64_t nonce) {
    std::shared_ptr<Rendezvous> made(new Rendezvous);
    made->nonce_ = nonce;
    made->owner_pid_ = getpid();
    if (place == Place::shared) {
        made->fd_ = memfd_create("gimlet-nccl-control", MFD_CLOEXEC);
        if (made->fd_ < 0 || ftruncate(made->fd_, sizeof(ControlBlock)) != 0) return nullptr;
    }
    made->block_ = map_block(made->fd_);
    return made->block_ != nullptr ? made : nullptr;
}

std::shared_ptr<Rendezvous> Rendezvous::open(const ncclUniqueId& id, std::string& error) {
    const IdBytes bytes = unpack(id);
    char path[64];
    std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", bytes.pid, bytes.fd);
    const int fd = bytes.fd < 0 ? -1 : ::open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        error = "cannot open the unique id's control block (" + std::string(path) + ": " +
                std::strerror(errno) +
                "); the process that called ncclGetUniqueId must still run, on "
                "this machine and as the same user";
        return nullptr;
    }
    std::shared_ptr<Rendezvous> made(new Rendezvous);
    made->nonce_ = bytes.nonce;
    made->owner_pid_ = bytes.pid;
    made->block_ = map_block(fd);
    close(fd);
    if (made->block_ == nullptr) {
        error = "cannot map the unique id's control block";
        return nullptr;
    }
    return made;
}

uint64_t Rendezvous::nonce_of(const ncclUniqueId& id) {
    return unpack(id).nonce;
}
bool Rendezvous::valid(const ncclUniqueId& id) {
    return unpack(id).magic == kIdMagic;
}

Rendezvous::~Rendezvous() {
    if (block_ != nullptr) munmap(block_, sizeof(ControlBlock));
    if (fd_ >= 0) close(fd_);
}

ncclUniqueId Rendezvous::id() const {
    ncclUniqueId id = {};
    const IdBytes bytes{kIdMagic, nonce_, owner_pid_, fd_};
    std::memcpy(id.internal, &bytes, sizeof(bytes));
    return id;
}

bool Rendezvous::join(int rank, int ranks, std::string& error) {
    int32_t expected = 0;
    if (!block_->ranks.compare_exchange_strong(expected, ranks) && expected != ranks) {
        error = "rank " + std::to_string(rank) + " says " + std::to_string(ranks) +
                " ranks, an earlier rank said " + std::to_string(expected);
        return false;
    }
    int32_t free_slot = 0;
    if (!block_->slots[rank].pid.compare_exchange_strong(free_slot, getpid())) {
        error = "rank " + std::to_string(rank) + " joined twice (process " +
                std::to_string(free_slot) + " has it); a unique id serves one communicator";
        return false;
    }
    return true;
}

void Rendezvous::publish(int rank, uint32_t round, const void* payload, size_t bytes) {
    RankSlot& slot = block_->slots[rank];
    std::memcpy(slot.payload[round % 2], payload, bytes < kPayloadBytes ? bytes : kPayloadBytes);
    slot.published.store(round, std::memory_order_release);
    block_->arrivals.fetch_add(1, std::memory_order_acq_rel);
    block_->events.fetch_add(1, std::memory_order_acq_rel);
    if (fd_ >= 0 || owner_pid_ != getpid()) {
        syscall(SYS_futex, &block_->events, FUTEX_WAKE, kMaxRanks, nullptr, nullptr, 0);
    }
}

bool Rendezvous::complete(uint32_t round) const {
    const auto ranks = static_cast<uint64_t>(block_->ranks.load(std::memory_order_relaxed));
    return block_->arrivals.load(std::memory_order_acquire) >= round * ranks;
}

const void* Rendezvous::payload(int rank, uint32_t round) const {
    return block_->slots[rank].payload[round % 2];
}

std::string Rendezvous::missing(uint32_t round) const {
    std::string text;
    int count = 0;
    const int ranks = block_->ranks.load();
    for (int rank = 0; rank < ranks; ++rank) {
        if (block_->slots[rank].published.load(std::memory_order_acquire) >= round) continue;
        if (++count > 16) continue;
        text += (count == 1 ? "" : ", ") + std::to_string(rank);
    }
    if (count > 16) text += " and " + std::to_string(count - 16) + " more";
    return text;
}

int Rendezvous::dead_rank(uint32_t round) const {
    const int ranks = block_->ranks.load();
    for (int rank = 0; rank < ranks; ++rank) {
        const RankSlot& slot = block_->slots[rank];
        if (slot.published.load() < round && process_is_gone(slot.pid.load())) return rank;
    }
    return -1;
}

void Rendezvous::sleep(uint32_t events_seen, unsigned timeout_us) const {
    const timespec timeout{static_cast<time_t>(timeout_us / 1000000),
                           static_cast<long>(timeout_us % 1000000) * 1000};
    syscall(SYS_futex, &block_->events, FUTEX_WAIT, events_seen, &timeout, nullptr, 0);
}

}  // namespace gimlet::emu::nccl

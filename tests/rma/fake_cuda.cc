// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1, as far as the RMA plugin uses it: memory is shared memory, streams
// are threads that work late. Strict where the real one is undefined: an address that no GPU could
// reach is an error.
#include "tests/rma/fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "host/rma_plugin/copier_queue.hpp"
#include "host/rma_plugin/copier_split.hpp"
#include "host/rma_plugin/cuda_driver.hpp"

namespace {

namespace cu = gimlet::rma::cu;
using namespace gimlet::rma;

constexpr int kInvalidValue = 1;
constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kNotSupported = 801;
constexpr std::size_t kPage = 4096;
constexpr int kNoDevice = -1;
constexpr int kAnyDevice = -2;

struct Allocation {
    int fd = -1;
    std::size_t bytes = 0;
    int device = 0;
    bool exportable = true;
    int references = 1;
};

struct Range {
    std::size_t bytes = 0;
    unsigned long long allocation = 0;  // 0: host memory
    int device = 0;
    int reached_from = kNoDevice;
};

struct Machine {
    std::mutex mutex;
    std::map<unsigned long long, Allocation> allocations;
    std::map<std::uint64_t, Range> ranges;
    unsigned long long next_allocation = 1;
};

Machine& machine() {
    static auto* instance = new Machine;
    return *instance;
}

/// The range that holds all of these bytes, or null. Under the lock.
Range* find_range(std::uint64_t address, std::size_t bytes, std::uint64_t* base = nullptr) {
    auto& ranges = machine().ranges;
    auto it = ranges.upper_bound(address);
    if (it == ranges.begin()) return nullptr;
    --it;
    if (address + bytes > it->first + it->second.bytes) return nullptr;
    if (base != nullptr) *base = it->first;
    return &it->second;
}

bool reachable(int device, std::uint64_t address, std::size_t bytes) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(address, bytes);
    return range != nullptr && (range->reached_from == device || range->reached_from == kAnyDevice);
}

bool is_device_memory(std::uint64_t address) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(address, 1);
    return range != nullptr && range->allocation != 0;
}

/// An event knows how often it was recorded, and how many of those the stream has passed.
struct Event {
    std::atomic<std::uint64_t> recorded{0};
    std::atomic<std::uint64_t> passed{0};
};

struct Work {
    std::uint64_t target = 0;
    std::uint64_t source = 0;
    std::size_t bytes = 0;
    Event* event = nullptr;
    CopierQueue* queue = nullptr;  // a launch of the copier
    std::uint64_t launch = 0;
    unsigned blocks = 1;
};

/// A command of the copier, as found in its queue.
class CopierCommand {
  public:
    bool read(CopierLaneMemory& lane, std::uint64_t number) {
        for (unsigned i = 0; i < kCopierWords; ++i) {
            const std::uint64_t word = std::atomic_ref(lane.slots[number % kCopierSlots][i])
                                           .load(std::memory_order_acquire);
            const std::uint64_t tag = word & ~kCopierPayloadMask;
            require(tag <= copier_tag(number), "a command was overwritten before it was seen");
            if (tag != copier_tag(number)) return false;
            words_[i] = word & kCopierPayloadMask;
        }
        return true;
    }
    bool is_word() const { return kind() == CopierKind::word; }
    /// Pieces of a block, worker by worker.
    std::vector<unsigned> pieces_of_block(CopierShares shares, unsigned block) const {
        std::vector<unsigned> pieces;
        for (unsigned worker = 0; worker < kCopierWorkers; ++worker) {
            for (unsigned piece = first_piece(shares, block, worker); piece < parts().count;
                 piece += shares.blocks * kCopierWorkers) {
                pieces.push_back(piece);
            }
        }
        return pieces;
    }
    unsigned pieces() const { return parts().count; }
    void copy_piece(int device, unsigned piece) const {
        check(device);
        const std::uint64_t offset = std::uint64_t{piece} * parts().bytes;
        const std::size_t bytes = std::min<std::size_t>(parts().bytes, this->bytes() - offset);
        if (kind() != CopierKind::bulk) return copy(device);
        std::memcpy(reinterpret_cast<void*>(words_[0] + offset),
                    reinterpret_cast<const void*>(words_[1] + offset), bytes);
    }
    void copy(int device) const {
        if (is_word()) return;
        check(device);
        require(kind() != CopierKind::bulk, "a bulk copy in the lane that is in order");
        const std::uint64_t value = words_[1] | words_[3] << kHalfBits;
        std::memcpy(reinterpret_cast<void*>(words_[0]),
                    kind() == CopierKind::copy ? reinterpret_cast<const void*>(words_[1]) : &value,
                    bytes());
    }
    void check(int device) const {
        const bool is_bulk = kind() == CopierKind::bulk;
        const bool is_copy = kind() == CopierKind::copy || is_bulk;
        require(is_copy || (kind() == CopierKind::small && bytes() <= 8), "wrong kind");
        require(bytes() > 0 && bytes() <= (is_bulk ? kBulkBytes : kPlainBytes), "wrong size");
        require(reachable(device, words_[0], bytes()) &&
                    (!is_copy || reachable(device, words_[1], bytes())),
                "wrong address");
        if (is_bulk) {
            require((words_[0] | words_[1] | bytes()) % kBulkAlignment == 0, "wrong alignment");
            require(is_device_memory(words_[0]) && is_device_memory(words_[1]), "host memory");
        }
    }
    void write_word(int device) const {
        if (!is_word()) return;
        require(words_[0] % 8 == 0 && reachable(device, words_[0], 8), "wrong address");
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(words_[0]))
            .store(words_[1] | words_[3] << kHalfBits, std::memory_order_release);
    }

  private:
    CopierKind kind() const { return static_cast<CopierKind>(words_[2] >> kCopierKindShift); }
    std::uint32_t bytes() const { return static_cast<std::uint32_t>(words_[2]); }
    CopierPieces parts() const { return pieces_of(kind(), bytes()); }
    static void require(bool condition, const char* what) {
        if (condition) return;
        (void)std::fprintf(stderr, "fake_cuda: the copier's command: %s\n", what);
        std::abort();
    }
    std::uint64_t words_[kCopierWords] = {};
};

constexpr std::intptr_t kFirstPrimary = 0x1000;
constexpr std::intptr_t kMostDevices = 64;

bool is_primary(cu::Context context) {
    const auto number = reinterpret_cast<std::intptr_t>(context);
    return number >= kFirstPrimary && number < kFirstPrimary + kMostDevices;
}

int device_of(cu::Context context) {
    if (context == nullptr) return kNoDevice;
    return is_primary(context)
               ? static_cast<int>(reinterpret_cast<std::intptr_t>(context) - kFirstPrimary)
               : *reinterpret_cast<int*>(context);
}

class Stream {
  public:
    explicit Stream(cu::Context context)
        : context_(context),
          is_stuck_(is_primary(context) && std::getenv("FAKE_CUDA_PRIMARY_STUCK") != nullptr),
          random_(std::random_device()()),
          thread_([this] { run(); }) {}
    ~Stream() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
    /// Where the stream was created; it takes work from there only.
    cu::Context context() const { return context_; }
    void push(const Work& work) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(work);
        }
        changed_.notify_all();
    }

  private:
    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [this] { return stop_ || (!is_stuck_ && !queue_.empty()); });
            if (is_stuck_ || queue_.empty()) return;
            const Work work = queue_.front();
            queue_.pop_front();
            lock.unlock();
            if (random_() % 8 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(random_() % 50));
            }
            if (work.event != nullptr) {
                work.event->passed.fetch_add(1, std::memory_order_release);
            } else if (work.queue != nullptr) {
                run_copier(work);
            } else {
                copy(work);
            }
            lock.lock();
        }
    }

    struct Piece {
        std::uint64_t number;  // of its command
        CopierCommand command;
        unsigned piece;
    };
    /// A launch of the copier.
    struct Run {
        std::uint64_t next = 0;  // to be taken
        std::uint64_t delivery = 0;
        unsigned blocks = 1;  // that have found room
        unsigned turn = 0;    // the share that begins the next command
        std::vector<Piece> pieces;
    };

    /// As copier_kernel.cu does it, with little patience: the pieces of all commands taken in any
    /// order. Blocks but the first come late.
    void run_copier(const Work& work) {
        CopierQueue& queue = *work.queue;
        Run run;
        run.next = std::atomic_ref(queue.moved).load(std::memory_order_acquire);
        run.delivery = std::atomic_ref(queue.delivered).load(std::memory_order_acquire);
        for (unsigned idle = 1 + random_() % 50; idle > 0; --idle) {
            if (run.blocks < work.blocks && random_() % 4 == 0) ++run.blocks;
            const bool has_moved = move_some(queue, &run, true);
            if (!deliver_some(queue, &run.delivery) && !has_moved) std::this_thread::yield();
        }
        while (move_some(queue, &run, false)) {
        }
        std::atomic_ref(queue.gone).store(work.launch, std::memory_order_release);
    }

    void take_one(const CopierCommand& command, Run* run) {
        const unsigned blocks = random_() % 4 == 0 ? 1 : run->blocks;
        const CopierShares shares = {run->turn % (blocks * kCopierWorkers), blocks};
        run->turn += command.pieces();
        for (unsigned block = 0; block < blocks; ++block) {
            for (const unsigned piece : command.pieces_of_block(shares, block)) {
                run->pieces.push_back({run->next, command, piece});
            }
        }
        ++run->next;
    }

    /// False: there was nothing.
    bool move_some(CopierQueue& queue, Run* run, bool takes) {
        const std::uint64_t before = run->next;
        for (std::size_t most = takes ? random_() % (kCopierBatch + 1) : 0; most > 0; --most) {
            CopierCommand command;
            if (run->pieces.size() >= kCopierEntries || !command.read(queue.moves, run->next)) {
                break;
            }
            take_one(command, run);
        }
        std::vector<Piece>& pieces = run->pieces;
        if (pieces.empty() && run->next == before) return false;
        for (std::size_t count = random_() % (pieces.size() + 1); count > 0; --count) {
            Piece& piece = pieces[random_() % pieces.size()];
            piece.command.copy_piece(device_of(context_), piece.piece);
            piece = pieces.back();
            pieces.pop_back();
        }
        std::uint64_t passed = run->next;
        for (const Piece& piece : pieces) passed = std::min(passed, piece.number);
        std::atomic_ref(queue.moved).store(passed, std::memory_order_release);
        return true;
    }

    /// With batches of any length.
    bool deliver_some(CopierQueue& queue, std::uint64_t* next) {
        const std::vector<CopierCommand> batch = take(queue.deliveries, *next);
        // Copies run in no promised order: last to first is the unkindest.
        for (auto it = batch.rbegin(); it != batch.rend(); ++it) it->copy(device_of(context_));
        for (const CopierCommand& command : batch) command.write_word(device_of(context_));
        *next += batch.size();
        std::atomic_ref(queue.delivered).store(*next, std::memory_order_release);
        return !batch.empty();
    }

    std::vector<CopierCommand> take(CopierLaneMemory& lane, std::uint64_t next) {
        std::vector<CopierCommand> batch;
        for (std::size_t most = 1 + random_() % kCopierBatch; batch.size() < most; ++next) {
            CopierCommand command;
            if (!command.read(lane, next)) break;
            if (!batch.empty() && batch.back().is_word() && !command.is_word()) break;
            batch.push_back(command);
        }
        return batch;
    }

    static void copy(const Work& work) {
        // Whole words in one piece, as the hardware does with the words that kernels poll.
        if (work.bytes == sizeof(std::uint64_t) && work.target % 8 == 0 && work.source % 8 == 0) {
            const std::uint64_t value =
                std::atomic_ref(*reinterpret_cast<std::uint64_t*>(work.source))
                    .load(std::memory_order_acquire);
            std::atomic_ref(*reinterpret_cast<std::uint64_t*>(work.target))
                .store(value, std::memory_order_release);
            return;
        }
        std::memcpy(reinterpret_cast<void*>(work.target),
                    reinterpret_cast<const void*>(work.source), work.bytes);
    }

    cu::Context context_;
    bool is_stuck_;  // as if kernels of the application stood in front
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    bool stop_ = false;
    std::minstd_rand random_;
    std::thread thread_;
};

thread_local cu::Context current = nullptr;
thread_local std::vector<cu::Context> beneath;

cu::Context context_of(int device) {
    return reinterpret_cast<cu::Context>(kFirstPrimary + device);
}

int push(cu::Stream handle, const Work& work) {
    auto* stream = reinterpret_cast<Stream*>(handle);
    if (current != stream->context()) return kInvalidContext;
    stream->push(work);
    return 0;
}

std::uint64_t round_up(std::size_t bytes) {
    return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
    return 0;
}
int cuGetErrorString(int, const char** text) {
    *text = "fake driver refuses";
    return 0;
}
int cuDevicePrimaryCtxRetain(cu::Context* context, int device) {
    *context = context_of(device);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    return 0;
}
int cuCtxGetCurrent(cu::Context* context) {
    *context = current;
    return 0;
}
int cuCtxSetCurrent(cu::Context context) {
    current = context;
    return 0;
}
int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
}
int cuStreamCreateWithPriority(cu::Stream* stream, unsigned, int) {
    if (current == nullptr) return kInvalidContext;
    *stream = reinterpret_cast<cu::Stream>(new Stream(current));
    return 0;
}
int cuStreamDestroy_v2(cu::Stream stream) {
    delete reinterpret_cast<Stream*>(stream);
    return 0;
}
int cuCtxCreate_v2(cu::Context* context, unsigned, int device) {
    if (std::getenv("FAKE_CUDA_NO_CONTEXT") != nullptr) return kNotSupported;
    *context = reinterpret_cast<cu::Context>(new int(device));
    beneath.push_back(current);
    current = *context;
    return 0;
}
int cuCtxDestroy_v2(cu::Context context) {
    delete reinterpret_cast<int*>(context);
    return 0;
}
int cuCtxPopCurrent_v2(cu::Context*) {
    if (beneath.empty()) return kInvalidContext;
    current = beneath.back();
    beneath.pop_back();
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
    *value = attribute == cu::kAttributeMpsEnabled && std::getenv("FAKE_CUDA_MPS") != nullptr;
    return 0;
}
int cuModuleLoadData(cu::Module* module, const void*) {
    *module = reinterpret_cast<cu::Module>(1);
    return std::getenv("FAKE_CUDA_NO_KERNELS") != nullptr ? kNotSupported : 0;
}
int cuModuleUnload(cu::Module) {
    return 0;
}
int cuModuleGetFunction(cu::Function* function, cu::Module, const char* name) {
    *function = reinterpret_cast<cu::Function>(1);
    return std::strcmp(name, "gimlet_rma_copier") == 0 ? 0 : kInvalidValue;
}
int cuFuncSetAttribute(cu::Function, int attribute, int value) {
    const bool is_right = attribute == cu::kFunctionSharedBytes && value == kCopierSharedBytes;
    return is_right ? 0 : kInvalidValue;
}
int cuLaunchKernel(cu::Function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, cu::Stream stream, void** arguments, void**) {
    if (blocks == 0 || blocks > kMostCopierBlocks || threads != kCopierThreads ||
        shared_bytes != kCopierSharedBytes) {
        return kInvalidValue;
    }
    Work work;
    work.queue = *static_cast<CopierQueue**>(arguments[0]);
    work.launch = *static_cast<unsigned long long*>(arguments[1]);
    work.blocks = blocks;
    return push(stream, work);
}
int cuMemcpyAsync(std::uint64_t target, std::uint64_t source, std::size_t bytes,
                  cu::Stream stream) {
    const int device = device_of(current);
    if (!reachable(device, target, bytes) || !reachable(device, source, bytes)) {
        return kInvalidValue;
    }
    return push(stream, {target, source, bytes});
}
int cuEventCreate(cu::Event* event, unsigned flags) {
    *event = reinterpret_cast<cu::Event>(new Event);
    return flags == cu::kEventNoTiming ? 0 : kInvalidValue;
}
int cuEventDestroy_v2(cu::Event event) {
    delete reinterpret_cast<Event*>(event);
    return 0;
}
int cuEventRecord(cu::Event event, cu::Stream stream) {
    auto* recorded = reinterpret_cast<Event*>(event);
    recorded->recorded.fetch_add(1);
    return push(stream, {.event = recorded});
}
int cuEventQuery(cu::Event event) {
    const auto* recorded = reinterpret_cast<Event*>(event);
    const bool passed =
        recorded->passed.load(std::memory_order_acquire) == recorded->recorded.load();
    return passed ? 0 : cu::kNotReady;
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    *memory =
        mmap(nullptr, round_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::lock_guard lock(machine().mutex);
    machine().ranges[reinterpret_cast<std::uint64_t>(*memory)] = {round_up(bytes), 0, 0,
                                                                  kAnyDevice};
    return 0;
}
int cuMemFreeHost(void* memory) {
    const std::lock_guard lock(machine().mutex);
    auto it = machine().ranges.find(reinterpret_cast<std::uint64_t>(memory));
    (void)munmap(memory, it->second.bytes);
    machine().ranges.erase(it);
    return 0;
}
int cuPointerGetAttribute(void* value, int attribute, std::uint64_t address) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(address, 1);
    if (attribute != cu::kPointerDeviceOrdinal || range == nullptr || range->allocation == 0) {
        return kInvalidValue;
    }
    *static_cast<int*>(value) = range->device;
    return 0;
}
int cuMemGetAddressRange_v2(std::uint64_t* base, std::size_t* bytes, std::uint64_t address) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(address, 1, base);
    if (range == nullptr || range->allocation == 0 || range->device != device_of(current)) {
        return kNotFound;
    }
    *bytes = range->bytes;
    return 0;
}
int cuMemRetainAllocationHandle(unsigned long long* handle, void* address) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(reinterpret_cast<std::uint64_t>(address), 1);
    if (range == nullptr || range->allocation == 0) return kInvalidValue;
    *handle = range->allocation;
    ++machine().allocations[*handle].references;
    return 0;
}
int cuMemExportToShareableHandle(void* shareable, unsigned long long handle, int type,
                                 unsigned long long) {
    const std::lock_guard lock(machine().mutex);
    const Allocation& allocation = machine().allocations[handle];
    if (!allocation.exportable || type != cu::kHandlePosixFd) return kNotSupported;
    *static_cast<int*>(shareable) = dup(allocation.fd);
    return 0;
}
int cuMemImportFromShareableHandle(unsigned long long* handle, void* shareable, int) {
    const int fd = dup(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
    const off_t bytes = lseek(fd, 0, SEEK_END);
    if (fd < 0 || bytes <= 0) return kInvalidValue;
    const std::lock_guard lock(machine().mutex);
    *handle = machine().next_allocation++;
    machine().allocations[*handle] = {fd, static_cast<std::size_t>(bytes), 0, true, 1};
    return 0;
}
int cuMemAddressReserve(std::uint64_t* address, std::size_t bytes, std::size_t, std::uint64_t,
                        unsigned long long) {
    void* memory = mmap(nullptr, round_up(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *address = reinterpret_cast<std::uint64_t>(memory);
    return memory == MAP_FAILED ? kInvalidValue : 0;
}
int cuMemAddressFree(std::uint64_t address, std::size_t bytes) {
    return munmap(reinterpret_cast<void*>(address), round_up(bytes)) == 0 ? 0 : kInvalidValue;
}
int cuMemMap(std::uint64_t address, std::size_t bytes, std::size_t offset,
             unsigned long long handle, unsigned long long) {
    const std::lock_guard lock(machine().mutex);
    Allocation& allocation = machine().allocations[handle];
    if (bytes > allocation.bytes || offset != 0) return kInvalidValue;
    void* memory = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, allocation.fd, 0);
    if (memory == MAP_FAILED) return kInvalidValue;
    ++allocation.references;
    machine().ranges[address] = {bytes, handle, allocation.device, kNoDevice};
    return 0;
}
int cuMemSetAccess(std::uint64_t address, std::size_t, const cu::AccessDescription* access,
                   std::size_t count) {
    const std::lock_guard lock(machine().mutex);
    Range* range = find_range(address, 1);
    if (range == nullptr || count != 1 || access->flags != 3) return kInvalidValue;
    range->reached_from = access->location.id;
    return 0;
}
int cuMemRelease(unsigned long long handle) {
    const std::lock_guard lock(machine().mutex);
    Allocation& allocation = machine().allocations[handle];
    if (--allocation.references > 0) return 0;
    (void)close(allocation.fd);
    machine().allocations.erase(handle);
    return 0;
}
int cuMemUnmap(std::uint64_t address, std::size_t) {
    unsigned long long handle = 0;
    {
        const std::lock_guard lock(machine().mutex);
        auto it = machine().ranges.find(address);
        if (it == machine().ranges.end()) return kInvalidValue;
        handle = it->second.allocation;
        (void)mmap(reinterpret_cast<void*>(address), it->second.bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        machine().ranges.erase(it);
    }
    return cuMemRelease(handle);
}
int cuIpcGetMemHandle(cu::IpcHandle*, std::uint64_t) {
    return kNotSupported;
}
int cuIpcOpenMemHandle_v2(std::uint64_t*, cu::IpcHandle, unsigned) {
    return kNotSupported;
}
int cuIpcCloseMemHandle(std::uint64_t) {
    return kNotSupported;
}

void* fake_cuda_alloc(std::size_t bytes, int exportable, int device) {
    unsigned long long handle = 0;
    const std::size_t rounded = round_up(bytes);
    {
        const std::lock_guard lock(machine().mutex);
        handle = machine().next_allocation++;
        Allocation allocation;
        allocation.fd = memfd_create("fake-cuda", MFD_CLOEXEC);
        if (allocation.fd < 0 || ftruncate(allocation.fd, static_cast<off_t>(rounded)) != 0) {
            return nullptr;
        }
        allocation.bytes = rounded;
        allocation.exportable = exportable != 0;
        allocation.device = device;
        machine().allocations[handle] = allocation;
    }
    std::uint64_t address = 0;
    const cu::AccessDescription access{{1, device}, 3};
    const bool ok = cuMemAddressReserve(&address, rounded, 0, 0, 0) == 0 &&
                    cuMemMap(address, rounded, 0, handle, 0) == 0 &&
                    cuMemSetAccess(address, rounded, &access, 1) == 0 && cuMemRelease(handle) == 0;
    return ok ? reinterpret_cast<void*>(address) : nullptr;
}

void fake_cuda_free(void* memory, std::size_t bytes) {
    (void)cuMemUnmap(reinterpret_cast<std::uint64_t>(memory), bytes);
    (void)cuMemAddressFree(reinterpret_cast<std::uint64_t>(memory), bytes);
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1, as far as the RMA plugin uses it: memory is shared memory, streams
// are threads that work late. Strict where the real one is undefined: an address that no GPU could
// reach is an error.
#include "tests/rma/fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "host/rma_plugin/cuda_driver.hpp"

namespace {

namespace cu = gimlet::rma::cu;

constexpr int kInvalidValue = 1;
constexpr int kNotSupported = 801;
constexpr std::size_t kPage = 4096;

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
    bool accessible = false;
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

bool reachable(std::uint64_t address, std::size_t bytes) {
    const std::lock_guard lock(machine().mutex);
    const Range* range = find_range(address, bytes);
    return range != nullptr && range->accessible;
}

struct Work {
    std::uint64_t target = 0;
    std::uint64_t source = 0;
    std::uint64_t value = 0;
    std::size_t bytes = 0;
    bool is_write = false;
};

class Stream {
  public:
    Stream() : random_(std::random_device()()), thread_([this] { run(); }) {}
    ~Stream() {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        thread_.join();
    }
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
            changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
            if (queue_.empty()) return;
            const Work work = queue_.front();
            queue_.pop_front();
            lock.unlock();
            if (random_() % 8 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(random_() % 50));
            }
            if (work.is_write) {
                std::atomic_ref(*reinterpret_cast<std::uint64_t*>(work.target))
                    .store(work.value, std::memory_order_release);
            } else {
                copy(work);
            }
            lock.lock();
        }
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

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Work> queue_;
    bool stop_ = false;
    std::minstd_rand random_;
    std::thread thread_;
};

thread_local cu::Context current = nullptr;

cu::Context context_of(int device) {
    return reinterpret_cast<cu::Context>(static_cast<std::intptr_t>(0x1000 + device));
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
int cuDeviceGetAttribute(int* value, int, int) {
    const char* off = std::getenv("FAKE_CUDA_NO_MEMORY_OPERATIONS");
    *value = off == nullptr ? 1 : 0;
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
    *stream = reinterpret_cast<cu::Stream>(new Stream);
    return current == nullptr ? kInvalidValue : 0;
}
int cuStreamDestroy_v2(cu::Stream stream) {
    delete reinterpret_cast<Stream*>(stream);
    return 0;
}
int cuStreamWriteValue64_v2(cu::Stream stream, std::uint64_t target, std::uint64_t value,
                            unsigned) {
    if (current == nullptr || target % 8 != 0 || !reachable(target, 8)) return kInvalidValue;
    reinterpret_cast<Stream*>(stream)->push({target, 0, value, 8, true});
    return 0;
}
int cuMemcpyAsync(std::uint64_t target, std::uint64_t source, std::size_t bytes,
                  cu::Stream stream) {
    if (current == nullptr || !reachable(target, bytes) || !reachable(source, bytes)) {
        return kInvalidValue;
    }
    reinterpret_cast<Stream*>(stream)->push({target, source, 0, bytes, false});
    return 0;
}
int cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
    *memory =
        mmap(nullptr, round_up(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::lock_guard lock(machine().mutex);
    machine().ranges[reinterpret_cast<std::uint64_t>(*memory)] = {round_up(bytes), 0, 0, true};
    return 0;
}
int cuMemFreeHost(void* memory) {
    const std::lock_guard lock(machine().mutex);
    auto it = machine().ranges.find(reinterpret_cast<std::uint64_t>(memory));
    (void)munmap(memory, it->second.bytes);
    machine().ranges.erase(it);
    return 0;
}
int cuMemHostRegister_v2(void* memory, std::size_t bytes, unsigned) {
    if (std::getenv("FAKE_CUDA_NO_HOST_REGISTER") != nullptr) return kNotSupported;
    const std::lock_guard lock(machine().mutex);
    machine().ranges[reinterpret_cast<std::uint64_t>(memory)] = {bytes, 0, 0, true};
    return 0;
}
int cuMemHostUnregister(void* memory) {
    const std::lock_guard lock(machine().mutex);
    machine().ranges.erase(reinterpret_cast<std::uint64_t>(memory));
    return 0;
}
int cuMemHostGetDevicePointer_v2(std::uint64_t* pointer, void* memory, unsigned) {
    *pointer = reinterpret_cast<std::uint64_t>(memory);
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
    if (range == nullptr || range->allocation == 0) return kInvalidValue;
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
    machine().ranges[address] = {bytes, handle, allocation.device, false};
    return 0;
}
int cuMemSetAccess(std::uint64_t address, std::size_t, const cu::AccessDescription* access,
                   std::size_t count) {
    const std::lock_guard lock(machine().mutex);
    Range* range = find_range(address, 1);
    if (range == nullptr || count != 1 || access->flags != 3) return kInvalidValue;
    range->accessible = true;
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

// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/fiber.hpp"

#include <cxxabi.h>
#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(GIMLET_TSAN)
namespace {

// While a process has one thread, the C++ library counts the owners of a shared_ptr with plain
// operations: a race to TSAN when the owners are fibers. A process that once had a second thread
// counts with atomic ones.
[[maybe_unused]] const bool library_counts_atomically = [] {
    std::thread([] {}).join();
    return true;
}();

}  // namespace

// Host programs of several ranks are threads to TSAN, and a test framework is not made for
// assertions in several.
extern "C" const char* __tsan_default_suppressions() {
    return "race:Catch::\n";
}
#endif

namespace gimlet::emu {
namespace {

#if !defined(__x86_64__)
namespace context = boost::context::detail;
#endif

constexpr size_t kPageBytes = 4096;
constexpr size_t kStacksPerSlab = 64;
constexpr size_t kGuardedStacksMax = 4096;
constexpr uint64_t kCanary = 0x5afe57ac6b07705eull;

#if defined(GIMLET_EMU_ASAN) || defined(GIMLET_TSAN)
constexpr size_t kDeviceStackBytes = 256 * 1024;
constexpr size_t kHostStackBytes = 4 * 1024 * 1024;
#else
// An odd number of pages: the tops of neighbouring stacks fall into different cache sets.
constexpr size_t kDeviceStackBytes = 17 * kPageBytes;
constexpr size_t kHostStackBytes = 1024 * 1024;
#endif

struct StackPool {
    std::mutex mutex;
    std::vector<Stack> free_stacks[2];
    size_t guarded_count = 0;
};

// Never destroyed: static objects of the program may still use the emulator while the process ends.
StackPool& pool() {
    static StackPool* instance = new StackPool;
    return *instance;
}

void map_slab(StackPool& stacks, StackClass stack_class) {
    const size_t bytes = stack_class == StackClass::device ? kDeviceStackBytes : kHostStackBytes;
    const size_t count = stack_class == StackClass::device ? kStacksPerSlab : 4;
    void* slab = mmap(nullptr, bytes * count, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slab == MAP_FAILED) throw std::bad_alloc();
    // Huge pages would make each stack cost its whole virtual size.
    madvise(slab, bytes * count, MADV_NOHUGEPAGE);
    for (size_t i = count; i-- > 0;) {
        Stack stack{static_cast<char*>(slab) + i * bytes, bytes, false};
        if (stacks.guarded_count < kGuardedStacksMax &&
            mprotect(stack.base, kPageBytes, PROT_NONE) == 0) {
            stack.guarded = true;
            ++stacks.guarded_count;
        }
        stacks.free_stacks[static_cast<int>(stack_class)].push_back(stack);
    }
}

// The C++ runtime keeps caught and uncaught exceptions per thread; switching inside a catch block
// would mix them.
__attribute__((tls_model("initial-exec"))) __thread ExceptionState* exception_state_cache = nullptr;

ExceptionState& exception_state() {
    if (exception_state_cache == nullptr) {
        exception_state_cache = reinterpret_cast<ExceptionState*>(abi::__cxa_get_globals());
    }
    return *exception_state_cache;
}

void after_switch([[maybe_unused]] Fiber* self, [[maybe_unused]] Fiber* from) {
#if defined(GIMLET_EMU_ASAN)
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
    if (from->stack.base == nullptr) {
        from->stack.base = static_cast<char*>(const_cast<void*>(bottom));
        from->stack.bytes = bytes;
    }
#endif
}

/// Leaves `from` for `to`; returns, in `from`, the fiber that has handed over to it.
Fiber* jump(Fiber* from, Fiber* to);

void hand_over(Fiber* from, Fiber* to) {
    ExceptionState& live = exception_state();
    from->exceptions = live;
    live = to->exceptions;
    from->switching_to = to;
#if defined(GIMLET_TSAN)
    // Flag 1: a switch orders nothing. What orders fibers is told by happens_before and
    // happens_after.
    __tsan_switch_to_fiber(to->tsan, 1);
#endif
    after_switch(from, jump(from, to));
}

/// A new fiber begins here.
[[noreturn]] void begin(Fiber* from) {
    Fiber* const self = from->switching_to;
    after_switch(self, from);
    self->entry(self);
    std::abort();  // entries end by fiber_exit()
}

#if defined(__x86_64__)

// Inline, and without a call: the processor predicts returns by counting calls, so a called switch,
// which is left by a jump, would make it mistake each return after it. Control words of the
// floating point units are the same in all fibers, and stay.
inline __attribute__((always_inline)) Fiber* jump(Fiber* from, Fiber* to) {
    static_assert(offsetof(Fiber, context) == 0);
    void* target = to->context;
    asm volatile(
        "leaq -128(%%rsp), %%rsp\n\t"  // the red zone may be in use
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%%rdi)\n\t"
        "movq %%rsi, %%rsp\n\t"
        "popq %%rax\n\t"
        "jmpq *%%rax\n"
        "1:\n\t"
        "popq %%rbp\n\t"
        "leaq 128(%%rsp), %%rsp"
        : "+D"(from), "+S"(target)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0",
          "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11",
          "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory");
    return from;
}

/// For begin(), as if it had been called with the fiber that hands over, from nowhere.
void* first_context(char* top, size_t) {
    auto* const words = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) / 16 * 16) - 2;
    words[0] = reinterpret_cast<void*>(&begin);
    words[1] = nullptr;
    return words;
}

#else

Fiber* jump(Fiber* from, Fiber* to) {
    const context::transfer_t transfer = context::jump_fcontext(to->context, from);
    Fiber* const previous = static_cast<Fiber*>(transfer.data);
    previous->context = transfer.fctx;
    return previous;
}

void trampoline(context::transfer_t transfer) {
    Fiber* const from = static_cast<Fiber*>(transfer.data);
    from->context = transfer.fctx;
    begin(from);
}

void* first_context(char* top, size_t bytes) {
    return context::make_fcontext(top, bytes, trampoline);
}

#endif

}  // namespace

Stack take_stack(StackClass stack_class) {
    StackPool& stacks = pool();
    std::lock_guard lock(stacks.mutex);
    auto& free_stacks = stacks.free_stacks[static_cast<int>(stack_class)];
    if (free_stacks.empty()) map_slab(stacks, stack_class);
    Stack stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

void give_stack(StackClass stack_class, const Stack& stack) {
    StackPool& stacks = pool();
#if defined(GIMLET_EMU_ASAN)
    const size_t skipped = stack.guarded ? kPageBytes : 0;
    __asan_unpoison_memory_region(stack.base + skipped, stack.bytes - skipped);
#endif
#if defined(GIMLET_TSAN)
    // The next fiber's locals are not the same variables as this one's; a new mapping makes TSAN
    // forget.
    UnseenScope unseen;
    const size_t guard = stack.guarded ? kPageBytes : 0;
    mmap(stack.base + guard, stack.bytes - guard, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
#endif
    std::lock_guard lock(stacks.mutex);
    stacks.free_stacks[static_cast<int>(stack_class)].push_back(stack);
}

bool stack_intact(const Stack& stack) {
    if (stack.guarded || stack.base == nullptr) return true;
    uint64_t canary = 0;
    std::memcpy(&canary, stack.base, sizeof(canary));
    return canary == kCanary;
}

void fiber_create(Fiber* fiber, StackClass stack_class, FiberEntry entry,
                  [[maybe_unused]] const char* name) {
    fiber->stack_class = stack_class;
    fiber->stack = take_stack(stack_class);
    fiber->finished = false;
    // The canary costs a page; under a guard page it is not needed.
    if (!fiber->stack.guarded) std::memcpy(fiber->stack.base, &kCanary, sizeof(kCanary));
    const size_t skipped = fiber->stack.guarded ? kPageBytes : sizeof(kCanary);
    const size_t colour =
        reinterpret_cast<uintptr_t>(fiber->stack.base) / fiber->stack.bytes % 16 * 256;
    fiber->context = first_context(fiber->stack.base + fiber->stack.bytes - colour,
                                   fiber->stack.bytes - colour - skipped);
    fiber->exceptions = ExceptionState{};
    fiber->entry = entry;
    fiber->fake_stack = nullptr;
#if defined(GIMLET_TSAN)
    fiber->tsan = __tsan_create_fiber(0);
    __tsan_set_fiber_name(fiber->tsan, name);
#endif
}

void fiber_switch(Fiber* from, Fiber* to) {
#if defined(GIMLET_EMU_ASAN)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack.base, to->stack.bytes);
#endif
    hand_over(from, to);
}

void fiber_exit(Fiber* from, Fiber* to) {
    from->finished = true;
#if defined(GIMLET_EMU_ASAN)
    __sanitizer_start_switch_fiber(nullptr, to->stack.base, to->stack.bytes);
#endif
    hand_over(from, to);
    std::abort();  // nobody may switch to a finished fiber
}

void fiber_release(Fiber* fiber) {
    if (fiber->stack.base == nullptr) return;
    give_stack(fiber->stack_class, fiber->stack);
    fiber->stack = Stack{};
#if defined(GIMLET_TSAN)
    if (fiber->tsan != nullptr) __tsan_destroy_fiber(fiber->tsan);
    fiber->tsan = nullptr;
#endif
}

void fiber_adopt_thread(Fiber* hub) {
    *hub = Fiber{};
#if defined(GIMLET_TSAN)
    hub->tsan = __tsan_get_current_fiber();
#endif
}

}  // namespace gimlet::emu

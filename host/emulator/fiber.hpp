// SPDX-License-Identifier: Apache-2.0
//
// Stackful fibers, pooled stacks, and the announcements that sanitizers need. The switch is a few
// lines of assembly on x86-64, Boost.Context's elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

// GCC says it in one way, Clang in another.
#if defined(__SANITIZE_ADDRESS__)
#define GIMLET_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GIMLET_EMU_ASAN 1
#endif
#endif

#if defined(GIMLET_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(GIMLET_TSAN)
// Declared by hand: these files are built without the instrumentation, so the compiler does not say
// that it is linked.
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* addr);
void __tsan_release(void* addr);
void __tsan_read_range(void* addr, unsigned long size);
void __tsan_write_range(void* addr, unsigned long size);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace gimlet::emu {

#if defined(GIMLET_TSAN)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

/// Orders what this fiber did before everything that a later happens_after() of the same address
/// does (TSAN only).
inline void happens_before([[maybe_unused]] const void* address) {
#if defined(GIMLET_TSAN)
    __tsan_release(const_cast<void*>(address));
#endif
}

inline void happens_after([[maybe_unused]] const void* address) {
#if defined(GIMLET_TSAN)
    __tsan_acquire(const_cast<void*>(address));
#endif
}

/// Tells TSAN of an access made on behalf of the current fiber.
inline void note_read([[maybe_unused]] const void* address, [[maybe_unused]] size_t bytes) {
#if defined(GIMLET_TSAN)
    __tsan_read_range(const_cast<void*>(address), bytes);
#endif
}

inline void note_write([[maybe_unused]] void* address, [[maybe_unused]] size_t bytes) {
#if defined(GIMLET_TSAN)
    __tsan_write_range(address, bytes);
#endif
}

/// The emulator's own accesses are not the program's: TSAN does not see them inside this scope.
class UnseenScope {
  public:
    UnseenScope() {
#if defined(GIMLET_TSAN)
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
    }
    ~UnseenScope() {
#if defined(GIMLET_TSAN)
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
    }
    UnseenScope(const UnseenScope&) = delete;
    UnseenScope& operator=(const UnseenScope&) = delete;
};

enum class StackClass { device, host };

struct Stack {
    char* base = nullptr;  ///< lowest address
    size_t bytes = 0;
    bool guarded = false;
};

/// Stacks are mapped in slabs and reused last-in first-out (warm pages). They stay mapped until the
/// process ends. The first few thousand have a guard page; the rest only a canary word, because
/// each guard costs two mappings.
Stack take_stack(StackClass stack_class);
void give_stack(StackClass stack_class, const Stack& stack);

/// False if the canary at the low end was overwritten.
bool stack_intact(const Stack& stack);

/// Size of the C++ runtime's per-thread record of exceptions in flight; each fiber needs its own.
struct ExceptionState {
    void* caught = nullptr;
    unsigned uncaught = 0;
};

struct Fiber;
using FiberEntry = void (*)(Fiber*);

/// A fiber, or the hub (the native stack that the scheduler runs on; it has no Stack of its own).
struct Fiber {
    void* context = nullptr;  ///< its stack's pointer, while another runs
    ExceptionState exceptions;
    void* tsan = nullptr;
    void* fake_stack = nullptr;  // ASAN
    Stack stack;
    StackClass stack_class = StackClass::device;
    bool finished = false;
    FiberEntry entry = nullptr;
    Fiber* switching_to = nullptr;  // set while this one hands over
};

/// Prepares `fiber` to call `entry(fiber)` at its first switch. The entry must end by fiber_exit().
void fiber_create(Fiber* fiber, StackClass stack_class, FiberEntry entry, const char* name);

/// Makes the calling context the hub.
void fiber_adopt_thread(Fiber* hub);

/// Leaves `from` (the running one) for `to`; returns when somebody switches back.
void fiber_switch(Fiber* from, Fiber* to);

/// Leaves `from` for ever. Its stack may be given back by whoever runs next.
[[noreturn]] void fiber_exit(Fiber* from, Fiber* to);

/// Gives back the stack of a fiber that has exited or will never run again. Not for the running
/// one.
void fiber_release(Fiber* fiber);

}  // namespace gimlet::emu

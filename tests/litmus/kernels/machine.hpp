// SPDX-License-Identifier: Apache-2.0
//
// What every litmus kernel has: places in the slot of its round, looks, waits, and its launch.
// Nothing here is inlined into the programs: they are many, and nvcc would take minutes over them.
#pragma once

#include "device/core/clock.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/wait.hpp"
#include "tests/litmus/programs.hpp"

namespace gimlet::litmus {

using namespace gimlet::device;

// Places in a slot, in bytes.
constexpr std::uint64_t kX = 0;
constexpr std::uint64_t kY = 128;
constexpr std::uint64_t kFlag = 256;
constexpr std::uint64_t kFlag2 = 384;
constexpr std::uint64_t kSource = 512;   // of puts to x
constexpr std::uint64_t kSource2 = 640;  // of puts to y
constexpr std::uint64_t kGot = 768;      // where gets land
constexpr std::uint64_t kMany = 1024;    // kBackPressurePuts words
constexpr std::uint32_t kRowBytes = 64;
constexpr std::uint32_t kRowWords = kRowBytes / 8;
/// The last word of x.
constexpr std::uint64_t kLast = kX + kRowBytes - 8;

struct Machine {
    const LitmusArgs& args;

    GIMLET_DEVICE std::uint64_t offset(std::uint64_t place) const {
        return args.slot_offset + place;
    }
    GIMLET_DEVICE std::uint64_t* own(std::uint64_t place) const {
        return reinterpret_cast<std::uint64_t*>(args.local + offset(place));
    }
    GIMLET_DEVICE std::uint64_t* other(std::uint64_t place) const {
        return reinterpret_cast<std::uint64_t*>(args.partner_bytes + offset(place));
    }
    GIMLET_DEVICE int partner() const { return 1 - args.rank; }
    GIMLET_DEVICE void report(int index, std::uint64_t value) const {
        args.registers[index] = value;
    }
    GIMLET_DEVICE std::uint64_t look(std::uint64_t place) const {
        return load_relaxed<Scope::system>(own(place));
    }
    /// Two looks, again and again until they show something (not for ever: it may all be over). The
    /// looks are reported in the order in which they were made.
    GIMLET_DEVICE_COLD void look_twice(std::uint64_t first, std::uint64_t second) const {
        std::uint64_t early = 0;
        std::uint64_t late = 0;
        for (int tries = 0; tries < args.looks_max && early == late && late == 0; ++tries) {
            early = look(first);
            late = look(second);
        }
        report(0, early);
        report(1, late);
    }
    /// Polls until the probe holds; a reader that waits in vain says so.
    template <class Probe>
    GIMLET_DEVICE void wait(Probe probe) const {
        const WaitScope scope{
            args.deadline_ns,         nullptr, nullptr, 1, args.rank, static_cast<Tag>(0),
            static_cast<Primitive>(0)};
        const WaitStatus status = wait_until(scope, WaitTarget{partner(), -1, 0},
                                             [&](std::uint64_t&) { return probe(); });
        if (status != WaitStatus::ok) report(kRegisterCount - 1, kTimedOut);
    }
    /// Until the word is not 0. The load that sees it is of the order and scope asked for.
    template <Scope S>
    GIMLET_DEVICE_COLD void wait_acquire(std::uint64_t place) const {
        wait([&] { return load_acquire<S>(own(place)) != 0; });
    }
    GIMLET_DEVICE_COLD void wait_relaxed(std::uint64_t place) const {
        wait([&] { return look(place) != 0; });
    }
};

/// One rank starts later than the other, by the span that the host chose.
GIMLET_DEVICE void start_late(const LitmusArgs& args) {
    if (args.delay_ns == 0) return;
    const std::uint64_t start_ns = now_ns();
    while (now_ns() - start_ns < args.delay_ns) {
    }
}

template <class Kernel>
cudaError_t launch(Kernel kernel, unsigned blocks, const LitmusArgs& args, cudaStream_t stream) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(1);
    config.dynamicSmemBytes = kLitmusSharedBytes;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace gimlet::litmus

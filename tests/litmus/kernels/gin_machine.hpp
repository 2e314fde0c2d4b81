// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/litmus/kernels/machine.hpp"

namespace gimlet::litmus {

// Signals, in each context.
constexpr std::uint32_t kSignalX = 0;
constexpr std::uint32_t kSignalY = 1;
constexpr std::uint32_t kClose = 2;  // never reset

constexpr std::uint32_t kCounter = 0;
constexpr int kContexts = 2;

/// GIN for the programs: each call of NCCL is compiled once.
struct GinMachine : Machine {
    GIMLET_DEVICE explicit GinMachine(const LitmusArgs& all) : Machine{all} {}

    GIMLET_DEVICE ncclGin gin(int context) const {
        return ncclGin(args.dev_comm, context, NCCL_GIN_RESOURCE_SHARING_GPU);
    }
    GIMLET_DEVICE ncclTeam team() const { return ncclTeamWorld(args.dev_comm); }

    GIMLET_DEVICE_COLD void fill(std::uint64_t place, std::uint64_t value) const {
        for (std::uint32_t i = 0; i < kRowWords; ++i) own(place)[i] = value;
    }
    template <class Remote = ncclGin_None, class Local = ncclGin_None>
    GIMLET_DEVICE_COLD void put_to(int rank, int context, std::uint64_t to, std::uint64_t from,
                                   Remote remote, Local local, std::uint32_t flags) const {
        gin(context).put(team(), rank, args.window, offset(to), args.window, offset(from),
                         kRowBytes, remote, local, ncclCoopThread{}, ncclGin_None{},
                         cuda::thread_scope_thread, cuda::thread_scope_device, flags);
    }
    template <class Remote = ncclGin_None, class Local = ncclGin_None>
    GIMLET_DEVICE void put(int context, std::uint64_t to, std::uint64_t from, Remote remote = {},
                           Local local = {}, std::uint32_t flags = ncclGinOptFlagsDefault) const {
        put_to(partner(), context, to, from, remote, local, flags);
    }
    template <class Remote>
    GIMLET_DEVICE_COLD void signal(int context, Remote remote) const {
        gin(context).signal(team(), partner(), remote);
    }
    GIMLET_DEVICE_COLD std::uint64_t read_signal(int context, std::uint32_t id) const {
        return gin(context).readSignal(id);
    }
    GIMLET_DEVICE_COLD void wait_signal(int context, std::uint32_t id, std::uint64_t least) const {
        wait([&] { return static_cast<std::int64_t>(read_signal(context, id) - least) >= 0; });
    }
    GIMLET_DEVICE_COLD void reset_signal(int context, std::uint32_t id) const {
        gin(context).resetSignal(id);
    }
    GIMLET_DEVICE_COLD void flush(int context) const { gin(context).flush(ncclCoopThread{}); }

    /// All that was sent has arrived when both sides have come back from this.
    GIMLET_DEVICE_COLD void close_sender() const {
        GIMLET_ROLLED
        for (int context = 0; context < kContexts; ++context) {
            signal(context, ncclGin_StrongSignalInc{kClose});
            flush(context);
        }
    }
    GIMLET_DEVICE_COLD void close_receiver() const {
        GIMLET_ROLLED
        for (int context = 0; context < kContexts; ++context) {
            wait_signal(context, kClose, args.close_base + 1);
            reset_signal(context, kSignalX);
            reset_signal(context, kSignalY);
            if (args.high_signal >= kManySignalCount - 1) reset_signal(context, args.high_signal);
        }
    }
};

}  // namespace gimlet::litmus

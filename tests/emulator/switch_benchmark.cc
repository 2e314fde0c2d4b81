// SPDX-License-Identifier: Apache-2.0
//
// Fiber switches a second of processor time, by number of fibers.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "host/emulator/simulation.hpp"

namespace {

__global__ void spin(int polls) {
    for (int i = 0; i < polls; ++i) {
        gimlet::emu::dev::poll_point();
        if (i % 64 == 0) gimlet::emu::dev::store_point();
    }
}

void measure(unsigned fibers, long switches) {
    gimlet::emu::SimOptions options;
    options.ranks = 1;
    options.sm_count = 64;
    const clock_t start = std::clock();
    const gimlet::emu::SimReport report = gimlet::emu::simulate(options, [&](int) {
        cudaLaunchConfig_t config{};
        config.blockDim = fibers < 1024 ? fibers : 1024;
        config.gridDim = fibers < 1024 ? 1 : fibers / 1024;
        cudaLaunchKernelEx(&config, spin, static_cast<int>(switches / fibers));
        cudaDeviceSynchronize();
    });
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    std::printf("%6u fibers: %5.1f million switches/s\n", fibers,
                static_cast<double>(report.switches) / seconds * 1e-6);
}

}  // namespace

/// Arguments: switches per line, default 20 million; number of fibers, default several.
int main(int argc, char** argv) {
    const long switches = argc > 1 ? std::atol(argv[1]) : 20000000;
    if (argc > 2) {
        measure(static_cast<unsigned>(std::atoi(argv[2])), switches);
        return 0;
    }
    for (unsigned fibers : {4u, 32u, 256u, 1024u, 4096u, 16384u}) measure(fibers, switches);
    return 0;
}

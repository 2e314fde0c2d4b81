// SPDX-License-Identifier: Apache-2.0
//
// Shared by the files that implement the CUDA runtime API, and of use to the NCCL part.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "host/emulator/core.hpp"
#include "host/emulator/include/cuda_runtime_api.h"
#include "host/emulator/live.hpp"
#include "host/emulator/memory.hpp"
#include "host/emulator/stream.hpp"

struct CUevent_st {
    std::shared_ptr<gimlet::emu::EventState> state = std::make_shared<gimlet::emu::EventState>();
};

struct CUgraph_st {
    std::shared_ptr<gimlet::emu::Graph> graph;
};

struct CUgraphExec_st {
    std::shared_ptr<const gimlet::emu::Graph> graph;
};

namespace gimlet::emu {

/// One API call: the engine stopped, errors remembered for cudaGetLastError.
template <class Body>
cudaError_t api_call(Body body) {
    EngineCore& core = Engine::get().core();
    HostContext* const host = core.host_context();
    if (host == nullptr)
        return cudaErrorNotPermitted;  // from a kernel or a host function of a stream
    if (core.simulating && !core.ended()) core.yield("host program");
    cudaError_t result;
    {
        LiveLock lock(core);
        UnseenScope unseen;
        result = body(core, *host);
    }
    if (result != cudaSuccess && result != cudaErrorNotReady) host->last_error = result;
    return result;
}

/// Like api_call for calls that block: `ready` is set by `prepare`, which runs first.
cudaError_t api_wait(const char* what,
                     const std::function<cudaError_t(EngineCore&, HostContext&,
                                                     std::function<bool()>& ready)>& prepare);

/// The stream behind a handle; nullptr if there is none.
Stream* resolve(EngineCore& core, const HostContext& host, cudaStream_t handle);

/// Issues work, or captures it. `work.device` is set here.
cudaError_t issue(EngineCore& core, const HostContext& host, cudaStream_t handle, Work work);

/// For calls that a capture forbids (allocation, synchronisation): the error, and the capture is
/// invalidated.
std::optional<cudaError_t> forbidden_by_capture(EngineCore& core, const HostContext& host);

/// For calls that name a stream which must not be capturing.
std::optional<cudaError_t> forbidden_on(EngineCore& core, Stream* stream);

/// For a call on the legacy stream while a blocking stream is being captured.
std::optional<cudaError_t> forbidden_on_legacy(EngineCore& core, const HostContext& host,
                                               const Stream* stream);

cudaError_t capture_work(Stream* stream, Work work);
cudaError_t capture_record(EngineCore& core, Stream* stream, CUevent_st* event);
/// The event was recorded in a capture: the stream joins it.
cudaError_t capture_wait(EngineCore& core, Stream* stream, CUevent_st* event);

/// Readable name of a function of this process.
std::string function_name(const void* function);

}  // namespace gimlet::emu

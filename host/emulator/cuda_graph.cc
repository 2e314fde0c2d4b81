// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and graphs.
#include <algorithm>
#include <set>

#include "host/emulator/cuda_internal.hpp"

namespace gimlet::emu {
namespace {

bool same_process(const EngineCore& core, const HostContext& a, const HostContext& b) {
    return !core.simulating || a.rank == b.rank;
}

void end_capture(EngineCore& core, const std::shared_ptr<Capture>& capture) {
    for (Stream* stream : capture->joined) {
        stream->capture.reset();
        stream->capture_after.clear();
    }
    std::erase(core.streams->captures, capture);
}

void merge(std::vector<uint32_t>& into, const std::vector<uint32_t>& nodes) {
    for (uint32_t node : nodes) {
        if (std::find(into.begin(), into.end(), node) == into.end()) into.push_back(node);
    }
}

// Every node must be an ancestor of (or be) one of the origin's last nodes.
bool all_joined(const Capture& capture) {
    const auto& nodes = capture.graph->nodes;
    std::vector<bool> reached(nodes.size(), false);
    std::vector<uint32_t> open = capture.origin->capture_after;
    while (!open.empty()) {
        const uint32_t node = open.back();
        open.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
    }
    return std::all_of(reached.begin(), reached.end(), [](bool held) { return held; });
}

}  // namespace

std::optional<cudaError_t> forbidden_by_capture(EngineCore& core, const HostContext& host) {
    std::optional<cudaError_t> error;
    for (const auto& capture : core.streams->captures) {
        const bool mine = capture->owner == &host;
        const bool applies =
            (capture->mode == CaptureMode::global && same_process(core, *capture->owner, host)) ||
            (capture->mode == CaptureMode::thread_local_mode && mine);
        if (!applies || host.capture_mode == cudaStreamCaptureModeRelaxed) continue;
        if (!mine && host.capture_mode == cudaStreamCaptureModeThreadLocal) continue;
        capture->invalidated = true;
        error = cudaErrorStreamCaptureUnsupported;
    }
    return error;
}

std::optional<cudaError_t> forbidden_on(EngineCore&, Stream* stream) {
    if (!stream->capture) return std::nullopt;
    stream->capture->invalidated = true;
    return cudaErrorStreamCaptureUnsupported;
}

std::optional<cudaError_t> forbidden_on_legacy(EngineCore& core, const HostContext& host,
                                               const Stream* stream) {
    if (!stream->legacy) return std::nullopt;
    for (const auto& capture : core.streams->captures) {
        if (!same_process(core, *capture->owner, host) || capture->mode == CaptureMode::relaxed)
            continue;
        for (const Stream* joined : capture->joined) {
            if (joined->device != stream->device || !joined->blocking) continue;
            capture->invalidated = true;
            return cudaErrorStreamCaptureImplicit;
        }
    }
    return std::nullopt;
}

cudaError_t capture_work(Stream* stream, Work work) {
    Capture& capture = *stream->capture;
    if (capture.invalidated) return cudaErrorStreamCaptureInvalidated;
    auto& nodes = capture.graph->nodes;
    nodes.push_back({std::move(work), stream->capture_after});
    stream->capture_after = {static_cast<uint32_t>(nodes.size() - 1)};
    return cudaSuccess;
}

cudaError_t capture_record(EngineCore&, Stream* stream, CUevent_st* event) {
    if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
    event->state->capture = stream->capture;
    event->state->capture_nodes = stream->capture_after;
    return cudaSuccess;
}

cudaError_t capture_wait(EngineCore&, Stream* stream, CUevent_st* event) {
    const std::shared_ptr<Capture>& capture = event->state->capture;
    if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalidated = true;
        capture->invalidated = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (stream->legacy) {
        capture->invalidated = true;
        return cudaErrorStreamCaptureImplicit;
    }
    if (!stream->capture) {
        stream->capture = capture;
        stream->capture_after.clear();
        capture->joined.push_back(stream);
    }
    merge(stream->capture_after, event->state->capture_nodes);
    return cudaSuccess;
}

}  // namespace gimlet::emu

using gimlet::emu::api_call;
using gimlet::emu::Capture;
using gimlet::emu::CaptureMode;
using gimlet::emu::EngineCore;
using gimlet::emu::Graph;
using gimlet::emu::HostContext;
using gimlet::emu::Stream;
using gimlet::emu::Work;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    return api_call([&](EngineCore& core, HostContext& host) {
        Stream* const stream = gimlet::emu::resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
        if (stream->capture) return cudaErrorIllegalState;
        auto capture = std::make_shared<Capture>();
        capture->id = core.streams->next_capture_id++;
        capture->mode = static_cast<CaptureMode>(mode);
        capture->owner = &host;
        capture->origin = stream;
        capture->graph = std::make_shared<Graph>();
        capture->joined = {stream};
        stream->capture = capture;
        stream->capture_after.clear();
        core.streams->captures.push_back(std::move(capture));
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (graph == nullptr) return cudaErrorInvalidValue;
        *graph = nullptr;
        Stream* const stream = gimlet::emu::resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        const std::shared_ptr<Capture> capture = stream->capture;
        if (!capture) return cudaErrorIllegalState;
        if (capture->origin != stream) {
            capture->invalidated = true;
            return cudaErrorStreamCaptureUnmatched;
        }
        if (capture->mode != CaptureMode::relaxed && capture->owner != &host) {
            return cudaErrorStreamCaptureWrongThread;
        }
        const bool joined = gimlet::emu::all_joined(*capture);
        gimlet::emu::end_capture(core, capture);
        if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
        if (!joined) return cudaErrorStreamCaptureUnjoined;
        *graph = new CUgraph_st{capture->graph};
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
    return cudaStreamGetCaptureInfo(handle, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return api_call([&](EngineCore&, HostContext& host) {
        if (mode == nullptr) return cudaErrorInvalidValue;
        const int previous = host.capture_mode;
        host.capture_mode = *mode;
        *mode = static_cast<cudaStreamCaptureMode>(previous);
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
    return api_call([&](EngineCore&, HostContext&) {
        if (executable == nullptr || graph == nullptr) return cudaErrorInvalidValue;
        *executable = new CUgraphExec_st{std::make_shared<const Graph>(*graph->graph)};
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
    return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (executable == nullptr) return cudaErrorInvalidValue;
        return gimlet::emu::resolve(core, host, stream) == nullptr ? cudaErrorInvalidResourceHandle
                                                                   : cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (executable == nullptr) return cudaErrorInvalidValue;
        Work work;
        work.kind = Work::Kind::graph;
        work.name = "graph";
        work.graph = executable->graph;
        return gimlet::emu::issue(core, host, stream, std::move(work));
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    if (executable == nullptr) return cudaErrorInvalidValue;
    return api_call([&](EngineCore&, HostContext&) {
        delete executable;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    if (graph == nullptr) return cudaErrorInvalidValue;
    return api_call([&](EngineCore&, HostContext&) {
        delete graph;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
    if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
    if (nodes != nullptr) return cudaErrorNotSupported;
    *count = graph->graph->nodes.size();
    return cudaSuccess;
}

}  // extern "C"

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph) {
    return api_call([&](EngineCore& core, HostContext& host) {
        if (status == nullptr) return cudaErrorInvalidValue;
        if (graph != nullptr) return cudaErrorNotSupported;
        Stream* const stream = gimlet::emu::resolve(core, host, handle);
        if (stream == nullptr) return cudaErrorInvalidResourceHandle;
        if (auto error = gimlet::emu::forbidden_on_legacy(core, host, stream)) return *error;
        *status = !stream->capture               ? cudaStreamCaptureStatusNone
                  : stream->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                                 : cudaStreamCaptureStatusActive;
        if (id != nullptr && stream->capture) *id = stream->capture->id;
        return cudaSuccess;
    });
}

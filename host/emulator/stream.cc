// SPDX-License-Identifier: Apache-2.0
#include "host/emulator/stream.hpp"

#include <algorithm>

namespace gimlet::emu {

StreamTable::StreamTable(EngineCore& core) : core_(core) {
    for (int d = 0; d < core.device_count(); ++d) {
        legacy_.push_back(std::make_unique<Stream>());
        legacy_.back()->device = d;
        legacy_.back()->legacy = true;
        legacy_.back()->serial = next_serial_++;
        per_thread_.push_back(std::make_unique<Stream>());
        per_thread_.back()->device = d;
        per_thread_.back()->serial = next_serial_++;
        valid_.insert(legacy_.back().get());
        valid_.insert(per_thread_.back().get());
    }
}

StreamTable::~StreamTable() = default;

Stream* StreamTable::create(int device, bool blocking, int priority) {
    auto stream = std::make_unique<Stream>();
    stream->device = device;
    stream->blocking = blocking;
    stream->priority = priority;
    stream->serial = next_serial_++;
    streams_.push_back(std::move(stream));
    valid_.insert(streams_.back().get());
    return streams_.back().get();
}

void StreamTable::destroy(Stream* stream) {
    stream->destroyed = true;
    valid_.erase(stream);
    if (!stream->queue.empty()) return;
    std::erase_if(streams_, [&](const auto& held) { return held.get() == stream; });
}

bool StreamTable::valid(const Stream* stream) const {
    return valid_.contains(stream);
}

void StreamTable::enqueue(Stream* stream, Work work) {
    StreamOperation& operation = stream->queue.emplace_back();
    operation.work = std::move(work);
    operation.sequence = next_sequence_++;
    if (stream->queue.size() == 1) active_.push_back(stream);
    dirty_ = true;
    core_.progress();
}

bool StreamTable::device_idle(int device) const {
    return std::none_of(active_.begin(), active_.end(),
                        [&](const Stream* stream) { return stream->device == device; });
}

bool StreamTable::blocking_work_idle(int device) const {
    return std::none_of(active_.begin(), active_.end(), [&](const Stream* stream) {
        return stream->device == device && (stream->blocking || stream->legacy);
    });
}

bool StreamTable::idle() const {
    return active_.empty();
}

bool StreamTable::may_start(const Stream& stream, const StreamOperation& operation) const {
    if (operation.work.kind == Work::Kind::wait &&
        operation.work.event->completed < operation.work.event_version) {
        return false;
    }
    if (!stream.blocking && !stream.legacy) return true;
    // The legacy stream and the blocking streams take turns in order of issue.
    for (const Stream* other : active_) {
        if (other == &stream || other->device != stream.device) continue;
        if (other->legacy == stream.legacy || (!other->blocking && !other->legacy)) continue;
        if (other->queue.front().sequence < operation.sequence) return false;
    }
    return true;
}

void StreamTable::gather(Stream& stream, std::vector<Candidate>& candidates) {
    StreamOperation& head = stream.queue.front();
    if (head.replay != nullptr) {
        for (size_t i = 0; i < head.replay->ready.size(); ++i) {
            candidates.push_back({&stream, static_cast<int>(i)});
        }
        return;
    }
    if (!head.running && may_start(stream, head)) candidates.push_back({&stream, -1});
}

bool StreamTable::step(Rng& rng) {
    if (!dirty_) return false;
    candidates_.clear();
    for (Stream* stream : active_) gather(*stream, candidates_);
    if (candidates_.empty()) {
        dirty_ = false;
        return false;
    }
    const size_t chosen = rng.below(candidates_.size());
    core_.trace(0xa0000000ull + candidates_[chosen].stream->serial);
    start(candidates_[chosen]);
    return true;
}

void StreamTable::start(const Candidate& candidate) {
    Stream* const stream = candidate.stream;
    StreamOperation& head = stream->queue.front();
    if (candidate.node >= 0) {
        auto& ready = head.replay->ready;
        const uint32_t node = ready[candidate.node];
        ready.erase(ready.begin() + candidate.node);
        run_work(head.work.graph->nodes[node].work,
                 [this, stream, node] { node_completed(stream, node); });
        return;
    }
    head.running = true;
    if (head.work.kind == Work::Kind::graph) {
        start_graph(head);
        if (head.work.graph->nodes.empty()) head_completed(stream);
        return;
    }
    run_work(head.work, [this, stream] { head_completed(stream); });
}

void StreamTable::start_graph(StreamOperation& operation) {
    const auto& nodes = operation.work.graph->nodes;
    operation.replay = std::make_unique<GraphRun>();
    for (uint32_t i = 0; i < nodes.size(); ++i) {
        operation.replay->missing.push_back(static_cast<uint32_t>(nodes[i].after.size()));
        if (nodes[i].after.empty()) operation.replay->ready.push_back(i);
    }
}

void StreamTable::node_completed(Stream* stream, uint32_t node) {
    StreamOperation& head = stream->queue.front();
    const auto& nodes = head.work.graph->nodes;
    for (uint32_t i = 0; i < nodes.size(); ++i) {
        const auto& after = nodes[i].after;
        if (std::find(after.begin(), after.end(), node) == after.end()) continue;
        if (--head.replay->missing[i] == 0) head.replay->ready.push_back(i);
    }
    dirty_ = true;
    core_.progress();
    if (++head.replay->completed == nodes.size()) head_completed(stream);
}

void StreamTable::head_completed(Stream* stream) {
    stream->queue.pop_front();
    dirty_ = true;
    core_.progress();
    if (!stream->queue.empty()) return;
    std::erase(active_, stream);
    if (stream->destroyed) destroy(stream);
}

void StreamTable::run_work(const Work& work, std::function<void()> on_done) {
    switch (work.kind) {
        case Work::Kind::kernel:
            core_.start_kernel(work.device, work.launch, std::move(on_done));
            return;
        case Work::Kind::action: work.call(); break;
        case Work::Kind::host_call:
            // A user's function may wait for another host thread, which may need the engine.
            core_.call_unlocked(work.call);
            break;
        case Work::Kind::record:
            work.event->completed = std::max(work.event->completed, work.event_version);
            work.event->completed_ns = core_.now_ns();
            break;
        case Work::Kind::wait:
        case Work::Kind::graph: break;
    }
    on_done();
}

void StreamTable::describe(std::vector<std::string>& lines) const {
    for (const Stream* stream : active_) {
        const StreamOperation& head = stream->queue.front();
        if (head.running && head.work.kind == Work::Kind::kernel) continue;
        lines.push_back("rank " + std::to_string(stream->device) + " | stream " +
                        std::to_string(stream->serial) + " | " + head.work.name +
                        (head.running ? " (running)" : " (not started)") + ", " +
                        std::to_string(stream->queue.size()) + " queued");
    }
}

}  // namespace gimlet::emu

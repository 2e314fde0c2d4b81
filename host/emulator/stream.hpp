// SPDX-License-Identifier: Apache-2.0
//
// Streams, events and graphs: what is issued, what may start, what has completed. Called with the
// engine stopped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "host/emulator/core.hpp"

namespace gimlet::emu {

struct Stream;
struct Graph;
struct Capture;

/// What an event handle points at; stream operations keep it alive after cudaEventDestroy.
struct EventState {
    uint64_t recorded = 0;   ///< records issued
    uint64_t completed = 0;  ///< newest record that has completed
    uint64_t completed_ns = 0;
    int device = 0;
    bool timing = true;
    std::shared_ptr<Capture> capture;  ///< set when the last record was captured
    std::vector<uint32_t> capture_nodes;
};

/// One stream operation or graph node.
struct Work {
    enum class Kind : uint8_t { kernel, action, host_call, record, wait, graph };
    Kind kind = Kind::action;
    const char* name = "";
    int device = 0;
    std::shared_ptr<const KernelLaunch> launch;
    std::function<void()> call;  ///< action: memory operations; host_call: a user's function
    std::shared_ptr<EventState> event;
    uint64_t event_version = 0;
    std::shared_ptr<const Graph> graph;
};

struct GraphNode {
    Work work;
    std::vector<uint32_t> after;  ///< nodes that must complete first
};

struct Graph {
    std::vector<GraphNode> nodes;
};

enum class CaptureMode : uint8_t { global, thread_local_mode, relaxed };

/// A capture in progress. Streams join it by waiting for an event recorded in it.
struct Capture {
    uint64_t id = 0;
    CaptureMode mode = CaptureMode::global;
    HostContext* owner = nullptr;
    Stream* origin = nullptr;
    std::shared_ptr<Graph> graph;
    std::vector<Stream*> joined;
    bool invalidated = false;
};

/// A graph being replayed.
struct GraphRun {
    std::vector<uint32_t> missing;  ///< predecessors that have not completed, per node
    std::vector<uint32_t> ready;
    uint32_t completed = 0;
};

struct StreamOperation {
    Work work;
    uint64_t sequence = 0;  ///< order of issue on the device; the legacy stream synchronises by it
    bool running = false;
    std::unique_ptr<GraphRun> replay;
};

struct Stream {
    int device = 0;
    bool legacy =
        false;  ///< the default stream that waits for, and is waited for by, blocking streams
    bool blocking = true;  ///< false: cudaStreamNonBlocking
    bool destroyed = false;
    int priority = 0;
    uint64_t serial = 0;
    std::deque<StreamOperation> queue;
    std::shared_ptr<Capture> capture;
    std::vector<uint32_t> capture_after;  ///< nodes the next captured one depends on
};

class StreamTable {
  public:
    explicit StreamTable(EngineCore& core);
    ~StreamTable();

    Stream* create(int device, bool blocking, int priority);
    /// The stream ends when its work has completed.
    void destroy(Stream* stream);
    bool valid(const Stream* stream) const;
    Stream* legacy(int device) { return legacy_[device].get(); }
    Stream* per_thread(int device) { return per_thread_[device].get(); }

    void enqueue(Stream* stream, Work work);
    bool idle(const Stream* stream) const { return stream->queue.empty(); }
    bool device_idle(int device) const;
    /// All work that the legacy stream would wait for now.
    bool blocking_work_idle(int device) const;
    bool idle() const;

    /// Starts one random operation that may start. False if none may.
    bool step(Rng& rng);
    void describe(std::vector<std::string>& lines) const;

    /// Something that step() looks at has changed.
    void touch() { dirty_ = true; }

    std::vector<std::shared_ptr<Capture>> captures;  ///< in progress
    uint64_t next_capture_id = 1;

  private:
    struct Candidate {
        Stream* stream;
        int node;  // index into the replay's ready list, or -1 for the head of the queue
    };
    bool may_start(const Stream& stream, const StreamOperation& operation) const;
    void gather(Stream& stream, std::vector<Candidate>& candidates);
    void start(const Candidate& candidate);
    void start_graph(StreamOperation& operation);
    void node_completed(Stream* stream, uint32_t node);
    void head_completed(Stream* stream);
    void run_work(const Work& work, std::function<void()> on_done);

    EngineCore& core_;
    bool dirty_ = false;
    uint64_t next_sequence_ = 1;
    uint64_t next_serial_ = 1;
    std::vector<std::unique_ptr<Stream>> streams_;
    std::unordered_set<const Stream*> valid_;  ///< of all kinds, not destroyed
    std::vector<std::unique_ptr<Stream>> legacy_;
    std::vector<std::unique_ptr<Stream>> per_thread_;
    std::vector<Stream*> active_;  ///< queue not empty, in order of activation
    std::vector<Candidate> candidates_;
};

}  // namespace gimlet::emu

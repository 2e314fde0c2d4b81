// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/carrier.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "host/base/error.hpp"
#include "host/base/log.hpp"
#include "host/rma_plugin/ring_link.hpp"

namespace gimlet::rma {

namespace {

constexpr int kMessagesPerPoll = 256;
constexpr int kMaxRemoteGets = 512;           // a peer must be able to queue all of them
constexpr std::uint32_t kCallsPerClock = 64;  // the clock is read once in so many calls
constexpr std::uint64_t kCheckPeriodNs = 20 * 1000 * 1000;
constexpr unsigned kIndexBits = 24;
constexpr std::size_t kMaxRequests = std::size_t{1} << kIndexBits;
constexpr std::size_t kMaxAnnouncements = 1024;
constexpr std::size_t kMaxPassable = 64;
constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

/// The sender may reuse an inline slot as soon as it likes.
void read_inline_value(Operation* operation) noexcept {
    if (operation->source.access != Place::Access::host || operation->bytes > kWordBytes) return;
    std::memcpy(&operation->inline_value, reinterpret_cast<const void*>(operation->source.address),
                operation->bytes);
}

bool is_host(const Place& place) noexcept {
    return place.access == Place::Access::host || place.access == Place::Access::process_vm;
}

}  // namespace

Carrier::Carrier(int rank, std::vector<std::unique_ptr<Link>> links) : rank_(rank) {
    peers_.resize(links.size());
    for (std::size_t i = 0; i < links.size(); ++i) peers_[i].link = std::move(links[i]);
}

void Carrier::reserve(std::size_t requests) {
    const std::size_t total = requests_.size() + requests;
    if (total > kMaxRequests) {
        raise(ErrorCode::invalid_argument, rank_, "{} requests at once are above the limit {}",
              total, kMaxRequests);
    }
    const auto first = static_cast<std::uint32_t>(requests_.size());
    requests_.resize(total);
    free_requests_.reserve(total);
    for (auto i = static_cast<std::uint32_t>(total); i > first; --i)
        free_requests_.push_back(i - 1);
    for (Peer& peer : peers_) {
        peer.waiting.reserve(total + kMaxRemoteGets);
        peer.announcements.reserve(kMaxAnnouncements);
    }
}

RequestId Carrier::new_request(int peer) {
    if (free_requests_.empty()) {
        raise(ErrorCode::internal, rank_,
              "no request left for rank {}: {} are under way, more than the queues allow", peer,
              requests_.size());
    }
    const std::uint32_t index = free_requests_.back();
    free_requests_.pop_back();
    Request& request = requests_[index];
    const std::uint32_t generation = request.generation + 1;
    request = {};
    request.state = RequestState::waiting;
    request.generation = generation;
    request.peer = peer;
    ++outstanding_;
    return std::uint64_t{generation} << kIndexBits | (index + 1);
}

Carrier::Request* Carrier::find_request(RequestId id) noexcept {
    const std::uint64_t index = (id & (kMaxRequests - 1)) - 1;
    if (index >= requests_.size()) return nullptr;
    Request& request = requests_[index];
    const bool is_current = request.state != RequestState::free &&
                            std::uint64_t{request.generation} == id >> kIndexBits;
    return is_current ? &request : nullptr;
}

void Carrier::free_request(RequestId id) noexcept {
    const auto index = static_cast<std::uint32_t>((id & (kMaxRequests - 1)) - 1);
    requests_[index].state = RequestState::free;
    free_requests_.push_back(index);
    --outstanding_;
}

void Carrier::fail_peer(int peer_rank, const std::string& what) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    if (peer.is_gone) return;
    peer.is_gone = true;
    has_error_ = true;
    log(LogLevel::error, rank_, "rma: rank {} ({}) failed: {}", peer_rank,
        engine_name(peer.link->kind()), what);
    while (!peer.waiting.empty()) peer.waiting.pop();
    peer.passable.clear();
    while (!peer.announcements.empty()) peer.announcements.pop();
    for (Request& request : requests_) {
        if (request.peer == peer_rank && request.state == RequestState::waiting) {
            request.state = RequestState::failed;
        }
    }
}

void Carrier::check_peers() {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
        Peer& peer = peers_[i];
        if (peer.is_gone || peer.link->peer_state() != PeerState::dead) continue;
        fail_peer(static_cast<int>(i), "its process is gone");
    }
}

RequestId Carrier::submit(int peer_rank, Operation operation) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    if (peer.is_gone) {
        throw Error(ErrorCode::peer_failed, rank_,
                    fmt::format("rank {} has failed before", peer_rank));
    }
    operation.request = new_request(peer_rank);
    const RequestId id = operation.request;
    read_inline_value(&operation);
    if (gpu_ != nullptr) gpu_->make_current();
    try {
        const bool is_taken = faults_ ? submit_with_faults(peer_rank, operation)
                                      : peer.waiting.empty() && try_advance(peer_rank, operation);
        if (!is_taken) peer.waiting.push(operation);
    } catch (const Error&) {
        free_request(id);
        throw;
    }
    return id;
}

RequestId Carrier::submit_remote_get(int peer_rank, const Place& local, const Message& message) {
    Operation operation;
    operation.message = MessageType::get_request;
    operation.target = local;
    operation.target_region = message.region;
    operation.target_offset = message.offset;
    operation.bytes = message.bytes;
    return submit(peer_rank, operation);
}

bool Carrier::test(RequestId id) {
    Request* request = find_request(id);
    if (request == nullptr) {
        raise(ErrorCode::invalid_argument, rank_,
              "{:#x} is no request, or was reported done before", id);
    }
    switch (request->state) {
        case RequestState::free:
        case RequestState::waiting: return false;
        case RequestState::failed:
            throw Error(ErrorCode::peer_failed, rank_,
                        fmt::format("the operation on rank {} failed", request->peer));
        case RequestState::in_stream:
            if (!request->stream->done(request->ticket)) return false;
            break;
        case RequestState::done: break;
    }
    free_request(id);
    return true;
}

void Carrier::progress() {
    if (faults_ && !faults_->may_progress(now_ns())) return;
    if (gpu_ != nullptr) {
        gpu_->make_current();
        gpu_->poll_all();
    }
    for (Peer& peer : peers_) peer.link->poll(*this, kMessagesPerPoll);
    (void)flush_signal_write();
    for (std::size_t i = 0; i < peers_.size(); ++i) advance_waiting(static_cast<int>(i));
    if (gpu_ != nullptr) gpu_->mark_all();
    if (++progress_calls_ % kCallsPerClock != 0) return;
    const std::uint64_t now = now_ns();
    if (now < next_check_ns_) return;
    next_check_ns_ = now + kCheckPeriodNs;
    check_peers();
}

bool Carrier::drain(std::uint64_t deadline_ns) {
    for (;;) {
        if (faults_ && faults_->has_stopped()) return true;
        progress();
        const bool idle = std::all_of(peers_.begin(), peers_.end(), [](Peer& peer) {
            return (peer.waiting.empty() && peer.passable.empty() && peer.announcements.empty()) ||
                   peer.link->peer_state() != PeerState::alive;
        });
        if (idle && (gpu_ == nullptr || gpu_->idle())) return true;
        if (now_ns() >= deadline_ns) return false;
    }
}

void Carrier::forget_region(LocalRegion* region) {
    if (signal_write_.region == region) signal_write_ = {};
    region->is_open = false;
}

// Faults on purpose.

void Carrier::inject_faults(const FaultPlan& plan, std::uint64_t seed) {
    log(LogLevel::warn, rank_, "rma: a fault plan is carried out, seed {}{}{}", seed,
        plan.ignored.empty() ? "" : "; only for the simulator: ", plan.ignored);
    faults_.emplace(plan, rank_, seed, now_ns());
    for (Peer& peer : peers_) peer.passable.reserve(kMaxPassable);
}

/// False: it goes to the end of the queue.
bool Carrier::submit_with_faults(int peer_rank, Operation& operation) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    const auto decision =
        faults_->decide(peer_rank, operation.context, operation.bytes, operation.has_signal);
    if (decision.is_lost) {
        operation.bytes = 0;
        operation.has_signal = false;
        operation.message = MessageType::put_data;
        finish(peer_rank, operation);
        return true;
    }
    if (decision.rest_ns > 0) operation.not_before_ns = now_ns() + decision.rest_ns;
    const bool is_put = operation.message == MessageType::put_data;
    if (is_put && decision.is_split && peer.waiting.empty()) {
        Operation piece = operation;
        piece.bytes = faults_->below(operation.bytes);
        piece.has_signal = false;
        piece.request = kNoRequest;
        if (try_advance(peer_rank, piece)) {
            operation.source.address += piece.bytes;
            operation.target.address += piece.bytes;
            operation.target_offset += piece.bytes;
            operation.bytes -= piece.bytes;
            read_inline_value(&operation);
        } else {
            operation.moved_bytes = 0;
            if (piece.staging >= 0) {
                gpu_->release_staging(piece.staging, gpu_->copy_stream(peer_rank),
                                      piece.staging_ticket);
            }
        }
    }
    if (is_put && decision.may_be_passed && peer.passable.size() < kMaxPassable) {
        peer.passable.push_back(operation);
        return true;
    }
    return peer.waiting.empty() && may_start(peer_rank, operation) &&
           try_advance(peer_rank, operation);
}

/// A signal waits for everything before it, however long that rests.
bool Carrier::may_start(int peer, const Operation& operation) {
    if (!faults_) return true;
    if (now_ns() < operation.not_before_ns || faults_->has_stopped()) return false;
    return !operation.has_signal || start_passable(peer, true);
}

/// In any order; true if none is left.
bool Carrier::start_passable(int peer_rank, bool at_once) {
    std::vector<Operation>& passable = peers_[static_cast<std::size_t>(peer_rank)].passable;
    for (std::size_t tries = passable.size(); tries > 0 && !passable.empty(); --tries) {
        Operation& operation = passable[faults_->below(passable.size())];
        if (!at_once && now_ns() < operation.not_before_ns) continue;
        if (!try_advance(peer_rank, operation)) continue;
        operation = passable.back();
        passable.pop_back();
    }
    return passable.empty();
}

// Sending.

void Carrier::advance_waiting(int peer_rank) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    (void)send_announcements(peer_rank);
    if (faults_) (void)start_passable(peer_rank, false);
    while (!peer.waiting.empty() && may_start(peer_rank, peer.waiting.front()) &&
           try_advance(peer_rank, peer.waiting.front())) {
        if (!peer.waiting.empty()) peer.waiting.pop();  // a failure has emptied it
    }
}

/// Also true if the peer failed: then the operation is over, too.
bool Carrier::try_advance(int peer, Operation& operation) {
    const RequestId id = operation.request;
    try {
        return advance(peer, operation);
    } catch (const Error& error) {
        has_error_ = true;
        if (error.code() != ErrorCode::peer_failed) throw;
        fail_peer(peer, error.message());
        if (Request* request = find_request(id)) request->state = RequestState::failed;
        return true;
    }
}

bool Carrier::advance(int peer, Operation& operation) {
    if (!operation.data_done) {
        if (!move_data(peer, operation)) return false;
        operation.data_done = true;
    }
    if (operation.has_signal && !send_signal(peer, operation)) return false;
    finish(peer, operation);
    return true;
}

bool Carrier::move_data(int peer_rank, Operation& operation) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    if (operation.message == MessageType::get_request) {
        if (peer.remote_gets >= kMaxRemoteGets) return false;
        Message message;
        message.type = MessageType::get_request;
        message.region = operation.target_region;
        message.offset = operation.target_offset;
        message.bytes = operation.bytes;
        message.id = operation.request;
        if (!send_announcements(peer_rank) || !peer.link->try_send(message, nullptr)) return false;
        ++peer.remote_gets;
        return true;
    }
    if (operation.bytes == 0) return true;
    const bool from_device = operation.source.access == Place::Access::device;
    const bool to_device = operation.target.access == Place::Access::device;
    if (from_device && to_device) {
        const bool is_here = !operation.source.is_on_peer_gpu && !operation.target.is_on_peer_gpu;
        operation.ticket = gpu_->copy_stream(peer_rank).copy(
            is_here ? CopyEnds::device : CopyEnds::peer_device, operation.target.address,
            operation.source.address, operation.bytes);
        peer.last_ticket = operation.ticket;
        return true;
    }
    if (from_device) return move_device_to_elsewhere(peer_rank, operation);
    if (to_device) return move_host_to_device(peer_rank, operation);
    if (!is_host(operation.target)) return move_host_to_message(peer_rank, operation);
    move_host_to_host(peer_rank, operation);
    return true;
}

const unsigned char* Carrier::host_source(const Operation& operation) const noexcept {
    const bool is_inline = operation.bytes <= kWordBytes && operation.request != kNoRequest &&
                           operation.source.access == Place::Access::host;
    if (is_inline) return reinterpret_cast<const unsigned char*>(&operation.inline_value);
    return reinterpret_cast<const unsigned char*>(operation.source.address);
}

void Carrier::move_host_to_host(int peer, Operation& operation) {
    if (operation.source.access == Place::Access::process_vm) {
        copy_process_memory(operation.source.pid, operation.source.address,
                            reinterpret_cast<void*>(operation.target.address), operation.bytes,
                            false, rank_, peer);
        return;
    }
    const unsigned char* source = host_source(operation);
    if (operation.target.access == Place::Access::process_vm) {
        copy_process_memory(operation.target.pid, operation.target.address,
                            const_cast<unsigned char*>(source), operation.bytes, true, rank_, peer);
        return;
    }
    std::memmove(reinterpret_cast<void*>(operation.target.address), source, operation.bytes);
}

bool Carrier::move_host_to_message(int peer, Operation& operation) {
    const std::size_t limit = peers_[static_cast<std::size_t>(peer)].link->max_payload_bytes();
    const unsigned char* source = host_source(operation);
    while (operation.moved_bytes < operation.bytes) {
        const std::size_t part =
            std::min<std::uint64_t>(operation.bytes - operation.moved_bytes, limit);
        if (!send_part(peer, operation, source + operation.moved_bytes, part)) return false;
        operation.moved_bytes += part;
    }
    return true;
}

bool Carrier::move_host_to_device(int peer_rank, Operation& operation) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    GpuStream& stream = gpu_->copy_stream(peer_rank);
    if (operation.bytes <= kWordBytes && operation.source.access == Place::Access::host) {
        if (!stream.try_write_small(operation.target.address, host_source(operation),
                                    operation.bytes)) {
            return false;
        }
        peer.last_ticket = operation.ticket = stream.last_ticket();
        return true;
    }
    while (operation.moved_bytes < operation.bytes) {
        const int cell = gpu_->try_acquire_staging();
        if (cell < 0) return false;
        const std::size_t part =
            std::min<std::uint64_t>(operation.bytes - operation.moved_bytes, Gpu::kStagingBytes);
        const std::uint64_t source = operation.source.address + operation.moved_bytes;
        if (operation.source.access == Place::Access::process_vm) {
            copy_process_memory(operation.source.pid, source, gpu_->staging(cell), part, false,
                                rank_, peer_rank);
        } else {
            std::memcpy(gpu_->staging(cell), reinterpret_cast<const void*>(source), part);
        }
        operation.ticket =
            stream.copy(CopyEnds::pinned, operation.target.address + operation.moved_bytes,
                        reinterpret_cast<std::uint64_t>(gpu_->staging(cell)), part);
        gpu_->release_staging(cell, stream, operation.ticket);
        peer.last_ticket = operation.ticket;
        operation.moved_bytes += part;
    }
    return true;
}

bool Carrier::move_device_to_elsewhere(int peer_rank, Operation& operation) {
    GpuStream& stream = gpu_->copy_stream(peer_rank);
    const std::size_t limit = std::min(
        peers_[static_cast<std::size_t>(peer_rank)].link->max_payload_bytes(), Gpu::kStagingBytes);
    while (operation.moved_bytes < operation.bytes) {
        const std::size_t part =
            std::min<std::uint64_t>(operation.bytes - operation.moved_bytes, limit);
        if (operation.staging < 0) {
            operation.staging = gpu_->try_acquire_staging();
            if (operation.staging < 0) return false;
            operation.staging_ticket = stream.copy(
                CopyEnds::pinned, reinterpret_cast<std::uint64_t>(gpu_->staging(operation.staging)),
                operation.source.address + operation.moved_bytes, part);
            stream.mark();
        }
        if (!stream.done(operation.staging_ticket)) {
            stream.mark();
            return false;
        }
        unsigned char* data = gpu_->staging(operation.staging);
        const std::uint64_t target = operation.target.address + operation.moved_bytes;
        if (operation.target.access == Place::Access::host) {
            std::memcpy(reinterpret_cast<void*>(target), data, part);
        } else if (operation.target.access == Place::Access::process_vm) {
            copy_process_memory(operation.target.pid, target, data, part, true, rank_, peer_rank);
        } else if (!send_part(peer_rank, operation, data, part)) {
            return false;
        }
        gpu_->release_staging(operation.staging, stream, operation.staging_ticket);
        operation.staging = -1;
        operation.moved_bytes += part;
    }
    return true;
}

bool Carrier::send_part(int peer, const Operation& operation, const void* data, std::size_t bytes) {
    Message message;
    message.type = operation.message;
    message.region = operation.target_region;
    message.offset = operation.target_offset + operation.moved_bytes;
    message.bytes = bytes;
    message.id = operation.id;
    message.payload_bytes = static_cast<std::uint32_t>(bytes);
    return send_announcements(peer) &&
           peers_[static_cast<std::size_t>(peer)].link->try_send(message, data);
}

bool Carrier::send_signal(int peer_rank, const Operation& operation) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    Message message;
    message.type = MessageType::signal;
    message.region = operation.signal_region;
    message.offset = operation.signal_offset;
    message.value = operation.signal_value;
    const bool copies_run = gpu_ != nullptr && !gpu_->copy_stream(peer_rank).done(peer.last_ticket);
    if (!copies_run && peer.announcements.empty()) return peer.link->try_send(message, nullptr);
    if (peer.announcements.full()) return false;
    // Later copies need not wait until it is sent.
    peer.announcements.push({peer.last_ticket, message});
    gpu_->copy_stream(peer_rank).mark();
    return true;
}

/// Sends the signals whose copies are done. True if none is left.
bool Carrier::send_announcements(int peer_rank) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    while (!peer.announcements.empty()) {
        const Announcement& next = peer.announcements.front();
        GpuStream& stream = gpu_->copy_stream(peer_rank);
        if (!stream.done(next.ticket)) {
            stream.mark();
            return false;
        }
        if (!peer.link->try_send(next.message, nullptr)) return false;
        peer.announcements.pop();
    }
    return true;
}

void Carrier::finish(int peer, const Operation& operation) {
    Request* request = find_request(operation.request);
    if (request == nullptr) return;  // a reply
    if (operation.message == MessageType::get_request) {
        request->local = operation.target;
        request->bytes = request->missing_bytes = operation.bytes;
        return;
    }
    request->state = RequestState::done;
    if (operation.ticket != 0) {
        request->state = RequestState::in_stream;
        request->stream = &gpu_->copy_stream(peer);
        request->ticket = operation.ticket;
    }
}

// Receiving.

void Carrier::refuse(int peer, const std::string& what) {
    has_error_ = true;
    log(LogLevel::error, rank_, "rma: refused from rank {}: {}", peer, what);
}

LocalRegion* Carrier::target_region(int peer, const Message& message, std::uint64_t bytes) {
    LocalRegion* region = message.region < regions_.size() ? regions_[message.region] : nullptr;
    if (region == nullptr || !region->is_open) {
        refuse(peer, fmt::format("region {} is not registered here", message.region));
        return nullptr;
    }
    if (bytes > region->record.bytes || message.offset > region->record.bytes - bytes) {
        refuse(peer, fmt::format("{} B at offset {} are outside region {} of {} B", bytes,
                                 message.offset, message.region, region->record.bytes));
        return nullptr;
    }
    return region;
}

bool Carrier::on_message(int peer, const Message& message, const unsigned char* payload) {
    switch (message.type) {
        case MessageType::signal: return apply_signal(peer, message);
        case MessageType::put_data: return apply_put(peer, message, payload);
        case MessageType::get_request: return answer_get(peer, message);
        case MessageType::get_data: return apply_get_data(peer, message, payload);
        case MessageType::get_refused: {
            Request* request = find_request(message.id);
            if (request != nullptr && request->peer == peer) request->state = RequestState::failed;
            refuse(peer, "a get that is out of range there");
            --peers_[static_cast<std::size_t>(peer)].remote_gets;
            return true;
        }
        case MessageType::none: break;
    }
    refuse(peer, fmt::format("message of unknown type {}", static_cast<unsigned>(message.type)));
    return true;
}

bool Carrier::flush_signal_write() {
    if (signal_write_.region == nullptr) return true;
    const LocalRegion& region = *signal_write_.region;
    const bool written = gpu_->delivery_stream().try_write_word(
        region.record.address + signal_write_.word * kWordBytes, region.totals[signal_write_.word]);
    if (written) signal_write_.region = nullptr;
    return written;
}

bool Carrier::apply_signal(int peer, const Message& message) {
    LocalRegion* region = target_region(peer, message, kWordBytes);
    if (region == nullptr) {
        if (word_update_.active && word_update_.peer == peer) {
            gpu_->release_staging(word_update_.staging, gpu_->delivery_stream(),
                                  word_update_.ticket);
            word_update_ = {};
        }
        return true;
    }
    const std::uint64_t address = region->record.address + message.offset;
    if (address % kWordBytes != 0) {
        refuse(peer, fmt::format("signal at offset {} of region {} is not aligned to 8 B",
                                 message.offset, message.region));
        return true;
    }
    if (region->record.kind == MemoryKind::host) {
        // Data that came before may still be on its way into the GPU.
        if (!flush_signal_write()) return false;
        if (gpu_ != nullptr && !gpu_->delivery_stream().idle()) {
            gpu_->delivery_stream().mark();
            return false;
        }
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(address))
            .fetch_add(message.value, std::memory_order_release);
        return true;
    }
    if (region->totals == nullptr) return update_word(peer, *region, message);
    const std::uint64_t word = message.offset / kWordBytes;
    const bool same_word = signal_write_.region == region && signal_write_.word == word;
    // Only a run of signals to one word is one write: across words the order is to be seen.
    if (!same_word && !flush_signal_write()) return false;
    region->totals[word] += message.value;
    signal_write_ = {region, word};
    return true;
}

bool Carrier::update_word(int peer, LocalRegion& region, const Message& message) {
    if (!flush_signal_write()) return false;
    GpuStream& stream = gpu_->delivery_stream();
    const std::uint64_t address = region.record.address + message.offset;
    if (!word_update_.active) {
        if (!stream.ready(0, address, kWordBytes)) return false;
        const int cell = gpu_->try_acquire_staging();
        if (cell < 0) return false;
        const std::uint64_t ticket =
            stream.copy(CopyEnds::pinned, reinterpret_cast<std::uint64_t>(gpu_->staging(cell)),
                        address, kWordBytes);
        stream.mark();
        word_update_ = {true, peer, cell, ticket};
        return false;
    }
    if (word_update_.peer != peer || !stream.done(word_update_.ticket)) {
        stream.mark();
        return false;
    }
    std::uint64_t value = 0;
    std::memcpy(&value, gpu_->staging(word_update_.staging), kWordBytes);
    value += message.value;
    if (!stream.try_write_word(address, value)) return false;
    gpu_->release_staging(word_update_.staging, stream, word_update_.ticket);
    word_update_ = {};
    return true;
}

bool Carrier::write_device(std::uint64_t target, const unsigned char* payload, std::size_t bytes) {
    GpuStream& stream = gpu_->delivery_stream();
    if (!flush_signal_write() || !stream.ready(target, 0, bytes)) return false;
    const int cell = gpu_->try_acquire_staging();
    if (cell < 0) return false;
    // A payload is never larger than one cell.
    std::memcpy(gpu_->staging(cell), payload, bytes);
    const std::uint64_t ticket = stream.copy(
        CopyEnds::pinned, target, reinterpret_cast<std::uint64_t>(gpu_->staging(cell)), bytes);
    gpu_->release_staging(cell, stream, ticket);
    return true;
}

bool Carrier::apply_put(int peer, const Message& message, const unsigned char* payload) {
    LocalRegion* region = target_region(peer, message, message.payload_bytes);
    if (region == nullptr) return true;
    const std::uint64_t target = region->record.address + message.offset;
    if (region->record.kind == MemoryKind::device) {
        return write_device(target, payload, message.payload_bytes);
    }
    std::memcpy(reinterpret_cast<void*>(target), payload, message.payload_bytes);
    return true;
}

bool Carrier::answer_get(int peer_rank, const Message& message) {
    Peer& peer = peers_[static_cast<std::size_t>(peer_rank)];
    LocalRegion* region = target_region(peer_rank, message, message.bytes);
    if (region == nullptr) {
        Message refusal;
        refusal.type = MessageType::get_refused;
        refusal.id = message.id;
        return send_announcements(peer_rank) && peer.link->try_send(refusal, nullptr);
    }
    if (peer.waiting.full()) return false;
    Operation reply;
    reply.message = MessageType::get_data;
    reply.source = region->place();
    reply.source.address += message.offset;
    reply.bytes = message.bytes;
    reply.id = message.id;
    peer.waiting.push(reply);
    return true;
}

bool Carrier::apply_get_data(int peer_rank, const Message& message, const unsigned char* payload) {
    Request* request = find_request(message.id);
    const std::uint64_t bytes = message.payload_bytes;
    const bool fits = request != nullptr && request->peer == peer_rank && bytes <= request->bytes &&
                      message.offset <= request->bytes - bytes && bytes <= request->missing_bytes;
    if (!fits) {
        refuse(peer_rank, fmt::format("{} B of a get that was not asked for", bytes));
        return true;
    }
    const std::uint64_t target = request->local.address + message.offset;
    const bool to_device = request->local.access == Place::Access::device;
    if (to_device) {
        if (!write_device(target, payload, bytes)) return false;
    } else {
        std::memcpy(reinterpret_cast<void*>(target), payload, bytes);
    }
    request->missing_bytes -= bytes;
    if (request->missing_bytes > 0) return true;
    --peers_[static_cast<std::size_t>(peer_rank)].remote_gets;
    request->state = RequestState::done;
    if (to_device) {
        request->state = RequestState::in_stream;
        request->stream = &gpu_->delivery_stream();
        request->ticket = request->stream->last_ticket();
    }
    return true;
}

}  // namespace gimlet::rma

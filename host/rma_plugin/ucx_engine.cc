// SPDX-License-Identifier: Apache-2.0
#include "host/rma_plugin/ucx_engine.hpp"

#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/base/env.hpp"
#include "host/base/error.hpp"
#include "host/base/log.hpp"

namespace gimlet::rma {

namespace {

constexpr std::uint64_t kWindow = 64;  // messages on the way to one peer
constexpr std::size_t kMaxPayloadBytes = 32768;
constexpr std::uint64_t kAckEvery = kWindow / 4;
constexpr unsigned kMessageId = 1;
constexpr unsigned kAckId = 2;
constexpr std::uint64_t kGoodbye = ~std::uint64_t{0};
constexpr std::uint64_t kCloseNs = 1000 * 1000 * 1000;
constexpr std::uint32_t kMaxAddressBytes = 1 << 20;

/// The functions of libucp that are used here.
struct Ucp {
    decltype(&ucp_init_version) init;
    decltype(&ucp_cleanup) cleanup;
    decltype(&ucp_worker_create) worker_create;
    decltype(&ucp_worker_destroy) worker_destroy;
    decltype(&ucp_worker_get_address) get_address;
    decltype(&ucp_worker_release_address) release_address;
    decltype(&ucp_worker_set_am_recv_handler) set_handler;
    decltype(&ucp_worker_progress) progress;
    decltype(&ucp_ep_create) ep_create;
    decltype(&ucp_ep_close_nbx) ep_close;
    decltype(&ucp_am_send_nbx) send;
    decltype(&ucp_request_check_status) check_status;
    decltype(&ucp_request_free) request_free;
};

template <typename Function>
void find_ucp(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) {
        raise(ErrorCode::not_supported, kNoRank, "libucp has no {}; UCX 1.12 or newer is needed",
              name);
    }
}

const Ucp& load_ucp(int rank) {
    // Not a function-local static alone: after a failure the next call must try again.
    static std::mutex mutex;
    static Ucp ucp{};
    const std::lock_guard lock(mutex);
    if (ucp.request_free != nullptr) return ucp;
    const std::string name = env_text(EnvVar::rma_ucx_library);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        raise(ErrorCode::not_supported, rank,
              "ranks on several hosts need UCX, and {} cannot be loaded ({}); install libucx0",
              name, dlerror());
    }
    find_ucp(library, "ucp_init_version", &ucp.init);
    find_ucp(library, "ucp_cleanup", &ucp.cleanup);
    find_ucp(library, "ucp_worker_create", &ucp.worker_create);
    find_ucp(library, "ucp_worker_destroy", &ucp.worker_destroy);
    find_ucp(library, "ucp_worker_get_address", &ucp.get_address);
    find_ucp(library, "ucp_worker_release_address", &ucp.release_address);
    find_ucp(library, "ucp_worker_set_am_recv_handler", &ucp.set_handler);
    find_ucp(library, "ucp_worker_progress", &ucp.progress);
    find_ucp(library, "ucp_ep_create", &ucp.ep_create);
    find_ucp(library, "ucp_ep_close_nbx", &ucp.ep_close);
    find_ucp(library, "ucp_am_send_nbx", &ucp.send);
    find_ucp(library, "ucp_request_check_status", &ucp.check_status);
    find_ucp(library, "ucp_request_free", &ucp.request_free);
    return ucp;
}

void check_ucs(ucs_status_t status, int rank, const char* what) {
    if (status == UCS_OK) return;
    raise(ErrorCode::system, rank, "UCX: {} failed with status {}", what, static_cast<int>(status));
}

struct MessageHeader {
    std::int32_t sender = 0;
    std::uint32_t reserved = 0;
    std::uint64_t sequence = 0;
    Message message;
};

struct AckHeader {
    std::int32_t sender = 0;
    std::uint32_t reserved = 0;
    std::uint64_t consumed = 0;
};

class UcxLink;

class Engine final : public UcxEngine, public std::enable_shared_from_this<Engine> {
  public:
    explicit Engine(int rank);
    ~Engine() override;

    std::unique_ptr<Link> make_link(int peer, Channel channel, std::uint64_t deadline_ns) override;
    void progress() { (void)ucp_.progress(worker_); }
    UcxLink* link(int peer) const noexcept {
        const auto index = static_cast<std::size_t>(peer);
        return peer >= 0 && index < links_.size() ? links_[index] : nullptr;
    }
    void forget(int peer) noexcept {
        if (link(peer) != nullptr) links_[static_cast<std::size_t>(peer)] = nullptr;
    }
    const Ucp& ucp() const noexcept { return ucp_; }
    int rank() const noexcept { return rank_; }

  private:
    static ucs_status_t on_message(void* engine, const void* header, std::size_t header_bytes,
                                   void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
    static ucs_status_t on_ack(void* engine, const void* header, std::size_t header_bytes,
                               void* data, std::size_t bytes, const ucp_am_recv_param_t* param);
    void set_handler(unsigned id, ucp_am_recv_callback_t callback);
    std::vector<char> own_address() const;

    const int rank_;
    const Ucp& ucp_;
    ucp_context_h context_ = nullptr;
    ucp_worker_h worker_ = nullptr;
    std::vector<UcxLink*> links_;
};

/// Messages carry numbers: UCX may deliver large ones after small ones. At most kWindow are unread,
/// so both ends have a place for each of them.
class UcxLink final : public Link {
  public:
    UcxLink(std::shared_ptr<Engine> engine, int peer, Channel channel)
        : engine_(std::move(engine)),
          peer_(peer),
          channel_(std::move(channel)),
          out_(kWindow),
          in_(kWindow) {}
    ~UcxLink() override;

    void open(ucp_worker_h worker, const std::vector<char>& address);

    EngineKind kind() const noexcept override { return EngineKind::ucx; }
    void offer_region(const LocalRegion& region, const MemoryExport&) override {
        channel_.send(&region.record, sizeof(region.record));
    }
    RemoteRegion await_region(std::uint64_t sequence, Gpu* gpu, std::uint64_t deadline_ns) override;
    std::size_t max_payload_bytes() const noexcept override { return kMaxPayloadBytes; }
    bool try_send(const Message& message, const void* payload) override;
    void poll(MessageSink& sink, int limit) override;
    PeerState peer_state() override;
    void say_goodbye() override;

    void store(const MessageHeader& header, const void* data, std::size_t bytes);
    void acknowledged(std::uint64_t consumed) noexcept {
        if (consumed > acknowledged_ && consumed <= sent_) acknowledged_ = consumed;
    }

  private:
    struct Outgoing {
        MessageHeader header;
        void* request = nullptr;
        std::array<unsigned char, kMaxPayloadBytes> payload;
    };
    struct Incoming {
        bool is_here = false;
        Message message;
        std::array<unsigned char, kMaxPayloadBytes> payload;
    };

    static void on_error(void* link, ucp_ep_h, ucs_status_t) {
        static_cast<UcxLink*>(link)->is_broken_ = true;
    }
    bool finished(void** request) noexcept;
    void* start(unsigned id, const void* header, std::size_t header_bytes, const void* data,
                std::size_t bytes);
    void acknowledge();

    std::shared_ptr<Engine> engine_;
    int peer_;
    Channel channel_;
    ucp_ep_h endpoint_ = nullptr;
    std::vector<Outgoing> out_;
    std::vector<Incoming> in_;
    std::uint64_t sent_ = 0;
    std::uint64_t acknowledged_ = 0;
    std::uint64_t consumed_ = 0;
    std::uint64_t ack_sent_ = 0;
    AckHeader ack_;
    void* ack_request_ = nullptr;
    bool is_broken_ = false;
};

Engine::Engine(int rank) : rank_(rank), ucp_(load_ucp(rank)) {
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_AM;
    check_ucs(ucp_.init(UCP_API_MAJOR, UCP_API_MINOR, &parameters, nullptr, &context_), rank,
              "ucp_init");
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
    const ucs_status_t status = ucp_.worker_create(context_, &worker, &worker_);
    if (status != UCS_OK) {
        ucp_.cleanup(context_);
        check_ucs(status, rank, "ucp_worker_create");
    }
    set_handler(kMessageId, on_message);
    set_handler(kAckId, on_ack);
}

Engine::~Engine() {
    ucp_.worker_destroy(worker_);
    ucp_.cleanup(context_);
}

void Engine::set_handler(unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
    handler.id = id;
    handler.cb = callback;
    handler.arg = this;
    handler.flags = UCP_AM_FLAG_WHOLE_MSG;
    check_ucs(ucp_.set_handler(worker_, &handler), rank_, "ucp_worker_set_am_recv_handler");
}

std::vector<char> Engine::own_address() const {
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check_ucs(ucp_.get_address(worker_, &address, &bytes), rank_, "ucp_worker_get_address");
    const auto* first = reinterpret_cast<const char*>(address);
    std::vector<char> result(first, first + bytes);
    ucp_.release_address(worker_, address);
    return result;
}

std::unique_ptr<Link> Engine::make_link(int peer, Channel channel, std::uint64_t deadline_ns) {
    const std::vector<char> mine = own_address();
    auto bytes = static_cast<std::uint32_t>(mine.size());
    channel.send(&bytes, sizeof(bytes));
    channel.send(mine.data(), mine.size());
    channel.receive(&bytes, sizeof(bytes), deadline_ns);
    if (bytes == 0 || bytes > kMaxAddressBytes) {
        raise(ErrorCode::peer_failed, rank_, "rank {} sent a UCX address of {} B", peer, bytes);
    }
    std::vector<char> theirs(bytes);
    channel.receive(theirs.data(), theirs.size(), deadline_ns);
    auto link = std::make_unique<UcxLink>(shared_from_this(), peer, std::move(channel));
    link->open(worker_, theirs);
    const auto index = static_cast<std::size_t>(peer);
    if (links_.size() <= index) links_.resize(index + 1);
    links_[index] = link.get();
    return link;
}

ucs_status_t Engine::on_message(void* engine, const void* header, std::size_t header_bytes,
                                void* data, std::size_t bytes, const ucp_am_recv_param_t*) {
    MessageHeader parsed;
    if (header_bytes != sizeof(parsed)) return UCS_OK;
    std::memcpy(&parsed, header, sizeof(parsed));
    UcxLink* link = static_cast<Engine*>(engine)->link(parsed.sender);
    if (link != nullptr) link->store(parsed, data, bytes);
    return UCS_OK;
}

ucs_status_t Engine::on_ack(void* engine, const void* header, std::size_t header_bytes, void*,
                            std::size_t, const ucp_am_recv_param_t*) {
    AckHeader parsed;
    if (header_bytes != sizeof(parsed)) return UCS_OK;
    std::memcpy(&parsed, header, sizeof(parsed));
    UcxLink* link = static_cast<Engine*>(engine)->link(parsed.sender);
    if (link != nullptr) link->acknowledged(parsed.consumed);
    return UCS_OK;
}

void UcxLink::open(ucp_worker_h worker, const std::vector<char>& address) {
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                            UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
    parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters.err_handler.cb = on_error;
    parameters.err_handler.arg = this;
    check_ucs(engine_->ucp().ep_create(worker, &parameters, &endpoint_), engine_->rank(),
              "ucp_ep_create");
}

UcxLink::~UcxLink() {
    const Ucp& ucp = engine_->ucp();
    const std::uint64_t deadline_ns = now_ns() + kCloseNs;
    const auto all_sent = [&] {
        bool all = finished(&ack_request_);
        for (Outgoing& message : out_) all = finished(&message.request) && all;
        return all;
    };
    while (!all_sent() && !is_broken_ && now_ns() < deadline_ns) engine_->progress();
    ucp_request_param_t parameters{};
    if (is_broken_) {
        parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    }
    if (endpoint_ != nullptr) {
        void* request = ucp.ep_close(endpoint_, &parameters);
        while (!finished(&request) && now_ns() < deadline_ns) engine_->progress();
    }
    engine_->forget(peer_);
}

bool UcxLink::finished(void** request) noexcept {
    if (*request == nullptr) return true;
    const Ucp& ucp = engine_->ucp();
    if (UCS_PTR_IS_PTR(*request)) {
        if (ucp.check_status(*request) == UCS_INPROGRESS) return false;
        ucp.request_free(*request);
    }
    *request = nullptr;
    return true;
}

void* UcxLink::start(unsigned id, const void* header, std::size_t header_bytes, const void* data,
                     std::size_t bytes) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    parameters.flags = UCP_AM_SEND_FLAG_EAGER;
    parameters.memory_type = UCS_MEMORY_TYPE_HOST;
    void* request =
        engine_->ucp().send(endpoint_, id, header, header_bytes, data, bytes, &parameters);
    if (UCS_PTR_IS_ERR(request)) is_broken_ = true;
    return UCS_PTR_IS_PTR(request) ? request : nullptr;
}

bool UcxLink::try_send(const Message& message, const void* payload) {
    if (sent_ - acknowledged_ >= kWindow || is_broken_) return false;
    Outgoing& slot = out_[sent_ % kWindow];
    if (!finished(&slot.request)) return false;
    slot.header = {engine_->rank(), 0, sent_, message};
    if (message.payload_bytes > 0) {
        std::memcpy(slot.payload.data(), payload, message.payload_bytes);
    }
    ++sent_;
    slot.request = start(kMessageId, &slot.header, sizeof(slot.header), slot.payload.data(),
                         message.payload_bytes);
    return true;
}

void UcxLink::store(const MessageHeader& header, const void* data, std::size_t bytes) {
    const bool is_sound = header.sequence >= consumed_ && header.sequence < consumed_ + kWindow &&
                          bytes == header.message.payload_bytes && bytes <= kMaxPayloadBytes &&
                          !in_[header.sequence % kWindow].is_here;
    if (!is_sound) {
        log(LogLevel::error, engine_->rank(),
            "rma: rank {} sent message {} with {} B out of order; expected {} to {}", peer_,
            header.sequence, bytes, consumed_, consumed_ + kWindow - 1);
        is_broken_ = true;
        return;
    }
    Incoming& slot = in_[header.sequence % kWindow];
    slot.message = header.message;
    if (bytes > 0) std::memcpy(slot.payload.data(), data, bytes);
    slot.is_here = true;
}

void UcxLink::acknowledge() {
    if (consumed_ - ack_sent_ < kAckEvery || is_broken_ || !finished(&ack_request_)) return;
    ack_ = {engine_->rank(), 0, consumed_};
    ack_sent_ = consumed_;
    ack_request_ = start(kAckId, &ack_, sizeof(ack_), nullptr, 0);
}

void UcxLink::poll(MessageSink& sink, int limit) {
    engine_->progress();
    for (int i = 0; i < limit; ++i) {
        Incoming& slot = in_[consumed_ % kWindow];
        if (!slot.is_here) break;
        if (!sink.on_message(peer_, slot.message, slot.payload.data())) break;
        slot.is_here = false;
        ++consumed_;
    }
    acknowledge();
}

RemoteRegion UcxLink::await_region(std::uint64_t sequence, Gpu*, std::uint64_t deadline_ns) {
    RemoteRegion region;
    channel_.receive(&region.record, sizeof(region.record), deadline_ns);
    check_record(region.record, sequence, engine_->rank(), peer_);
    return region;
}

void UcxLink::say_goodbye() {
    RegionRecord record;
    record.sequence = kGoodbye;
    try {
        channel_.send(&record, sizeof(record));
    } catch (const Error&) {
        // The peer has gone first, and was told about where it was noticed.
    }
}

PeerState UcxLink::peer_state() {
    RegionRecord record;
    if (channel_.peek(&record, sizeof(record)) && record.sequence == kGoodbye) {
        return PeerState::left;
    }
    return channel_.at_end() || is_broken_ ? PeerState::dead : PeerState::alive;
}

}  // namespace

std::shared_ptr<UcxEngine> make_ucx_engine(int rank) {
    return std::make_shared<Engine>(rank);
}

}  // namespace gimlet::rma

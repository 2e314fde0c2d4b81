// SPDX-License-Identifier: Apache-2.0
#include "runtime/capi/boundary.hpp"

#include <exception>
#include <new>

namespace gimlet::capi {
namespace {

/// Fixed room: recording a failure must not fail.
struct LastError {
    gimlet_status status = GIMLET_OK;
    int rank = kNoRank;
    char text[GIMLET_ERROR_TEXT_BYTES] = "";
};
thread_local LastError last_error;

gimlet_status record(ErrorCode code, int rank, const char* function, const char* text) noexcept {
    last_error.status = static_cast<gimlet_status>(code);
    last_error.rank = rank;
    std::size_t at = 0;
    for (const char* part : {function, ": ", text}) {
        const std::size_t room = sizeof last_error.text - 1 - at;
        const std::size_t bytes = std::min(std::strlen(part), room);
        std::memcpy(last_error.text + at, part, bytes);
        at += bytes;
    }
    last_error.text[at] = 0;
    return last_error.status;
}

}  // namespace

gimlet_status record_exception(const char* function) noexcept {
    try {
        throw;
    } catch (const Error& error) {
        return record(error.code(), error.rank(), function, error.message().c_str());
    } catch (const std::bad_alloc&) {
        return record(ErrorCode::out_of_memory, kNoRank, function, "host memory is exhausted");
    } catch (const std::exception& error) {
        return record(ErrorCode::internal, kNoRank, function, error.what());
    } catch (...) {
        return record(ErrorCode::internal, kNoRank, function, "an exception without a text");
    }
}

TextOut::TextOut(char* text, std::size_t text_bytes, std::size_t* needed_bytes)
    : text_(text),
      text_bytes_(text_bytes),
      needed_bytes_(optional_pointer(needed_bytes, "needed_bytes")) {
    if (text == nullptr && text_bytes > 0) {
        raise(ErrorCode::invalid_argument, kNoRank, "text is null, but text_bytes is {}",
              text_bytes);
    }
}

void TextOut::write(std::string_view from) const noexcept {
    if (text_bytes_ > 0) {
        const std::size_t bytes = std::min(from.size(), text_bytes_ - 1);
        // A view of nothing has no address, which memcpy must not see.
        if (bytes > 0) std::memcpy(text_, from.data(), bytes);
        text_[bytes] = 0;
    }
    if (needed_bytes_ != nullptr) *needed_bytes_ = from.size() + 1;
}

void check_struct_bytes(const void* data, std::size_t struct_bytes, std::size_t least_bytes,
                        std::size_t known_bytes, const char* name) {
    if (struct_bytes < least_bytes || struct_bytes > known_bytes + kMostUnknownBytes) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "{}: struct_bytes is {}; it must be the size of the struct, {}..{}: fill it with the "
              "struct's init function",
              name, struct_bytes, least_bytes, known_bytes + kMostUnknownBytes);
    }
    const auto* bytes = static_cast<const unsigned char*>(data);
    for (std::size_t i = known_bytes; i < struct_bytes; ++i) {
        if (bytes[i] == 0) continue;
        raise(ErrorCode::not_supported, kNoRank,
              "{}: a newer header's member at byte {} is set, this library knows {} bytes; load a "
              "newer library or leave it zero",
              name, i, known_bytes);
    }
}

const char* name_of(HandleKind kind) noexcept {
    switch (kind) {
        case HandleKind::thread_group: return "thread group";
        case HandleKind::bootstrap: return "bootstrap";
        case HandleKind::runtime: return "runtime";
        case HandleKind::exchange: return "exchange";
        case HandleKind::routing: return "routing";
    }
    return "?";
}

}  // namespace gimlet::capi

using namespace gimlet::capi;

extern "C" {

const char* gimlet_last_error(void) {
    return last_error.text;
}

gimlet_status gimlet_last_error_status(void) {
    return last_error.status;
}

int32_t gimlet_last_error_rank(void) {
    return last_error.rank;
}

}  // extern "C"

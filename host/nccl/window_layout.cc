// SPDX-License-Identifier: Apache-2.0
#include "host/nccl/window_layout.hpp"

#include <bit>

#include "host/base/checked_math.hpp"
#include "host/base/hash.hpp"

namespace gimlet {

int WindowLayout::add(std::string_view name, std::uint64_t bytes, std::uint64_t alignment_bytes) {
    if (name.empty()) {
        raise(ErrorCode::invalid_argument, kNoRank, "window layout: region {} has an empty name",
              regions_.size());
    }
    for (const WindowRegion& other : regions_) {
        if (other.name == name) {
            raise(ErrorCode::invalid_argument, kNoRank, "window layout: region '{}' exists already",
                  name);
        }
    }
    if (!std::has_single_bit(alignment_bytes) || alignment_bytes < kRegionAlignmentBytes) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "window layout: region '{}' has alignment {} B, must be a power of two and at least "
              "{} B",
              name, alignment_bytes, kRegionAlignmentBytes);
    }
    const std::string what = fmt::format("window layout: end of region '{}' in bytes", name);
    const std::uint64_t offset = align_up(end_bytes_, alignment_bytes, what.c_str());
    const std::uint64_t end = checked_add(offset, bytes, what.c_str());
    // total_bytes() rounds up and must not wrap either.
    (void)align_up(end, kRegionAlignmentBytes, what.c_str());
    regions_.push_back({std::string(name), offset, bytes});
    end_bytes_ = end;
    return static_cast<int>(regions_.size()) - 1;
}

const WindowRegion& WindowLayout::region(int index) const {
    if (index < 0 || static_cast<std::size_t>(index) >= regions_.size()) {
        raise(ErrorCode::invalid_argument, kNoRank,
              "window layout: region {} does not exist, there are {}", index, regions_.size());
    }
    return regions_[static_cast<std::size_t>(index)];
}

const WindowRegion& WindowLayout::region(std::string_view name) const {
    std::string names;
    for (const WindowRegion& one : regions_) {
        if (one.name == name) return one;
        names += (names.empty() ? "" : ", ") + one.name;
    }
    raise(ErrorCode::invalid_argument, kNoRank, "window layout: no region '{}'; there are: {}",
          name, names.empty() ? "none" : names);
}

std::uint64_t WindowLayout::total_bytes() const noexcept {
    return (end_bytes_ + kRegionAlignmentBytes - 1) / kRegionAlignmentBytes * kRegionAlignmentBytes;
}

std::uint64_t WindowLayout::hash() const noexcept {
    std::uint64_t hash = kHashStart;
    for (const WindowRegion& one : regions_) {
        hash = hash_text(one.name, hash);
        hash = hash_bytes(&one.offset_bytes, sizeof(one.offset_bytes), hash);
        hash = hash_bytes(&one.bytes, sizeof(one.bytes), hash);
    }
    return hash;
}

std::string WindowLayout::text() const {
    std::string result = fmt::format("{:<24} {:>16} {:>16}\n", "region", "offset B", "bytes");
    for (const WindowRegion& one : regions_) {
        result += fmt::format("{:<24} {:>16} {:>16}\n", one.name, one.offset_bytes, one.bytes);
    }
    return result + fmt::format("{:<24} {:>16} {:>16}\n", "total", "", total_bytes());
}

}  // namespace gimlet

// SPDX-License-Identifier: Apache-2.0
// How a window is divided into named regions. Pure arithmetic, equal on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gimlet {

/// Every region starts at a multiple of this: one cache line pair, and NCCL's own unit.
inline constexpr std::uint64_t kRegionAlignmentBytes = 128;

struct WindowRegion {
    std::string name;
    std::uint64_t offset_bytes = 0;  ///< from the start of the window
    std::uint64_t bytes = 0;
};

class WindowLayout {
  public:
    /// Appends a region and returns its index. `alignment_bytes` is a power of two and at least
    /// kRegionAlignmentBytes. Zero bytes are allowed; two regions with one name are not.
    int add(std::string_view name, std::uint64_t bytes,
            std::uint64_t alignment_bytes = kRegionAlignmentBytes);

    std::span<const WindowRegion> regions() const noexcept { return regions_; }
    const WindowRegion& region(int index) const;
    /// Raises Error(invalid_argument) with the names that exist.
    const WindowRegion& region(std::string_view name) const;
    /// End of the last region, rounded up to kRegionAlignmentBytes.
    std::uint64_t total_bytes() const noexcept;
    std::uint64_t hash() const noexcept;
    /// A table: name, offset, bytes.
    std::string text() const;

  private:
    std::vector<WindowRegion> regions_;
    std::uint64_t end_bytes_ = 0;
};

}  // namespace gimlet

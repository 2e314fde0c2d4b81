// SPDX-License-Identifier: Apache-2.0
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/kernels/launch.hpp"
#include "device/kernels/launch_detail.hpp"

// Copies between the window and the caller's own tensors, for callers that do not work in place.
// Row counts and step numbers, hence buffers, are read on the device: no host synchronisation, and
// a graph may be launched in any step.
namespace gimlet {
namespace device {
namespace {

/// Whole block copies one row; all pointers 16-byte aligned.
GIMLET_DEVICE void copy_row(std::byte* out, const std::byte* in, std::uint32_t row_bytes) {
    const auto vectors = static_cast<std::int32_t>(row_bytes / 16u);
    const auto* from = reinterpret_cast<const Vec16*>(in);
    auto* to = reinterpret_cast<Vec16*>(out);
    GIMLET_ROLLED
    for (std::int32_t v = thread_index(); v < vectors; v += block_threads())
        store_stream(to + v, load_stream(from + v));
}

GIMLET_DEVICE void unpack_record(const UnpackArgs& args, const std::byte* meta, std::int64_t row) {
    const TokenLayout& layout = args.token_layout;
    const auto* record = reinterpret_cast<const std::uint32_t*>(
        meta + row * static_cast<std::int64_t>(layout.record_bytes()));
    GIMLET_ROLLED
    for (std::uint32_t w = static_cast<std::uint32_t>(thread_index()); w < layout.used_words();
         w += static_cast<std::uint32_t>(block_threads())) {
        const std::uint32_t value = record[w];
        if (w >= layout.scale_word()) {
            if (args.out_scales != nullptr)
                args.out_scales[row * layout.scale_words + (w - layout.scale_word())] = value;
        } else if (w >= layout.weight_word()) {
            auto* weights = reinterpret_cast<std::uint32_t*>(args.out_weights);
            if (weights != nullptr)
                weights[row * layout.choice_count + (w - layout.weight_word())] = value;
        } else if (w >= layout.index_word()) {
            auto* indices = reinterpret_cast<std::uint32_t*>(args.out_indices);
            if (indices != nullptr)
                indices[row * layout.choice_count + (w - layout.index_word())] = value;
        } else if (args.out_source != nullptr) {
            args.out_source[row * 2 + (w == layout.source_word() ? 0 : 1)] =
                static_cast<std::int32_t>(value);
        }
    }
}

GIMLET_GLOBAL void unpack_kernel(const UnpackArgs args) {
    const std::int64_t received = args.step->row_count;
    const std::int64_t rows = received < args.out_capacity ? received : args.out_capacity;
    const auto parity = static_cast<std::int32_t>(args.step->epoch % kBufferCount);
    GIMLET_ROLLED
    for (std::int64_t row = block_index(); row < rows; row += block_count()) {
        const std::int64_t at = row * static_cast<std::int64_t>(args.token_layout.row_bytes);
        if (args.out_rows != nullptr)
            copy_row(args.out_rows + at, args.rows[parity] + at, args.token_layout.row_bytes);
        unpack_record(args, args.meta[parity], row);
    }
}

GIMLET_GLOBAL void pack_kernel(const PackArgs args) {
    const std::int64_t rows = args.step->row_count;
    std::byte* const out =
        args.out[static_cast<std::int32_t>((args.epochs->combine + 1) % kBufferCount)];
    GIMLET_ROLLED
    for (std::int64_t row = block_index(); row < rows; row += block_count()) {
        const std::int64_t at = row * static_cast<std::int64_t>(args.row_bytes);
        copy_row(out + at, args.rows + at, args.row_bytes);
    }
}

constexpr std::int32_t kCopyThreads = 256;

KernelShape copy_shape(std::int32_t block_count) {
    KernelShape shape{};
    shape.block_count = block_count;
    shape.thread_count = kCopyThreads;
    return shape;
}

}  // namespace
}  // namespace device

cudaError_t launch_unpack(const UnpackArgs& args, std::int32_t block_count, cudaStream_t stream) {
    return launch(device::unpack_kernel, device::copy_shape(block_count), stream, args);
}

cudaError_t launch_pack(const PackArgs& args, std::int32_t block_count, cudaStream_t stream) {
    return launch(device::pack_kernel, device::copy_shape(block_count), stream, args);
}

cudaError_t prepare_kernels() {
    if (const cudaError_t error = prepare_dispatch(); error != cudaSuccess) return error;
    if (const cudaError_t error = prepare_combine(); error != cudaSuccess) return error;
    return prepare_barrier();
}

}  // namespace gimlet

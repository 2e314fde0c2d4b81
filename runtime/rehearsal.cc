// SPDX-License-Identifier: Apache-2.0
#include "runtime/rehearsal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "host/cuda/check.hpp"
#include "runtime/element.hpp"
#include "runtime/generators.hpp"
#include "runtime/rng.hpp"

namespace gimlet {
namespace {

using Part = RehearsalOptions::Part;

std::size_t size(std::int64_t value) {
    return static_cast<std::size_t>(value);
}

/// Blocks until `bytes` have come from device memory.
void copy_down(void* to, const void* from, std::size_t bytes, cudaStream_t stream, int rank) {
    if (bytes == 0) return;
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync",
               rank);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank);
}

void copy_up(void* to, const void* from, std::size_t bytes, cudaStream_t stream, int rank) {
    if (bytes == 0) return;
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync",
               rank);
    cuda_check(cudaStreamSynchronize(stream), "cudaStreamSynchronize", rank);
}

std::uint32_t scale_word(std::uint64_t seed, int rank, int token, int word) {
    auto rng = InputRng::stream(
        seed ^ 0x7363616c65, static_cast<std::uint64_t>(rank) + 1,
        static_cast<std::uint64_t>(token) * 4096 + static_cast<std::uint64_t>(word));
    return static_cast<std::uint32_t>(rng.next());
}

std::string compare_ints(const char* name, int rank, const std::int32_t* got,
                         const std::vector<std::int32_t>& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (got[i] != want[i]) {
            return fmt::format("rank {}: {}[{}] is {}, expected {}", rank, name, i, got[i],
                               want[i]);
        }
    }
    return {};
}

/// The table as if the excluded ranks had no tokens and no experts.
RoutingTable without(RoutingTable table, const std::vector<int>& excluded,
                     const ExpertMap& experts) {
    for (const int rank : excluded) table.ranks[size(rank)] = RankRouting{};
    for (RankRouting& rank : table.ranks) {
        for (std::int64_t& expert : rank.indices) {
            if (expert < 0) continue;
            const int owner = experts.rank_of(static_cast<std::int32_t>(expert));
            if (std::find(excluded.begin(), excluded.end(), owner) != excluded.end()) expert = -1;
        }
    }
    return table;
}

}  // namespace

Rehearsal::Rehearsal(Exchange& exchange, const RoutingTable& table, const RehearsalOptions& options)
    : exchange_(exchange),
      remaining_(options.excluded.empty()
                     ? RoutingTable{}
                     : without(table, options.excluded, exchange.plan().experts)),
      table_(options.excluded.empty() ? table : remaining_),
      options_(options) {
    const MoeConfig& config = exchange.plan().config;
    const int rank = exchange.rank();
    reference_ =
        make_reference(table_, {config.expert_count, config.layout, config.expert_alignment});
    routing_ = exchange.make_routing();
    const RankRouting& mine = table.ranks[size(rank)];
    const std::size_t tokens = size(mine.token_count);
    const std::size_t received = reference_.ranks[size(rank)].rows.size();
    const TokenLayout& layout = exchange.plan().token_layout;
    rows_ = DeviceBuffer<std::byte>(tokens * layout.row_bytes, rank);
    scales_ = DeviceBuffer<std::uint32_t>(tokens * layout.scale_words, rank);
    if (options.index_type == IndexType::int64) {
        indices64_ = DeviceBuffer<std::int64_t>(mine.indices.size(), rank);
        indices64_.upload(mine.indices);
    } else {
        const std::vector<std::int32_t> narrow(mine.indices.begin(), mine.indices.end());
        indices32_ = DeviceBuffer<std::int32_t>(narrow.size(), rank);
        indices32_.upload(narrow);
    }
    weights_ = DeviceBuffer<float>(mine.weights.size(), rank);
    weights_.upload(mine.weights);
    bias_ = DeviceBuffer<std::byte>(tokens * exchange.plan().combine_row_bytes, rank);
    out_ = DeviceBuffer<std::byte>(tokens * exchange.plan().combine_row_bytes, rank);
    answers_ = DeviceBuffer<std::byte>(received * exchange.plan().combine_row_bytes, rank);
    record_stride_ = layout.record_bytes();
    if (options.access == RowAccess::copied) {
        copied_rows_ = DeviceBuffer<std::byte>(received * layout.row_bytes, rank);
        copied_indices_ = DeviceBuffer<std::int32_t>(received * layout.choice_count, rank);
        copied_weights_ = DeviceBuffer<float>(received * layout.choice_count, rank);
        copied_scales_ = DeviceBuffer<std::uint32_t>(received * layout.scale_words, rank);
        copied_source_ = DeviceBuffer<std::int32_t>(received * 2, rank);
    }
    refill(options.seed);
}

void Rehearsal::refill(std::uint64_t seed) {
    options_.seed = seed;
    const MoeConfig& config = exchange_.plan().config;
    const int rank = exchange_.rank();
    const int tokens = table_.ranks[size(rank)].token_count;
    const std::size_t row_bytes = exchange_.plan().token_layout.row_bytes;
    std::vector<std::byte> rows(rows_.count());
    std::vector<std::uint32_t> scales(scales_.count());
    std::vector<std::byte> bias(bias_.count());
    const std::size_t bias_bytes = exchange_.plan().combine_row_bytes;
    for (int t = 0; t < tokens; ++t) {
        fill_row_pattern(seed, rank, t, config.dispatch_type, rows.data() + size(t) * row_bytes,
                         row_bytes);
        fill_row_pattern(~seed, rank, t, config.combine_type, bias.data() + size(t) * bias_bytes,
                         bias_bytes);
        for (int w = 0; w < config.scale_words; ++w) {
            scales[size(t) * size(config.scale_words) + size(w)] = scale_word(seed, rank, t, w);
        }
    }
    rows_.upload(rows);
    scales_.upload(scales);
    bias_.upload(bias);
    spoil_output();
}

void Rehearsal::spoil_output() {
    out_.fill_bytes(0x5a);
}

DispatchInputs Rehearsal::dispatch_inputs() const {
    DispatchInputs inputs;
    inputs.rows = rows_.get();
    inputs.scales = scales_.get();
    inputs.index_type = options_.index_type;
    inputs.expert_indices = options_.index_type == IndexType::int64
                                ? static_cast<const void*>(indices64_.get())
                                : static_cast<const void*>(indices32_.get());
    inputs.weights = options_.weights == Part::present ? weights_.get() : nullptr;
    inputs.token_count = table_.ranks[size(exchange_.rank())].token_count;
    inputs.deadline_ns = options_.deadline_ns;
    return inputs;
}

Received Rehearsal::dispatch(CountMode mode, cudaStream_t stream) {
    return exchange_.dispatch(dispatch_inputs(), &routing_, mode, stream);
}

Received Rehearsal::dispatch_cached(cudaStream_t stream) {
    return exchange_.dispatch_cached(dispatch_inputs(), &routing_, stream);
}

ReferenceInputs Rehearsal::inputs() const {
    const MoeConfig& config = exchange_.plan().config;
    ReferenceInputs inputs;
    inputs.row_bytes = exchange_.plan().token_layout.row_bytes;
    inputs.scale_words = static_cast<std::uint32_t>(config.scale_words);
    const auto seed = options_.seed;
    inputs.row = [seed, type = config.dispatch_type, bytes = inputs.row_bytes](int rank, int token,
                                                                               std::byte* row) {
        fill_row_pattern(seed, rank, token, type, row, bytes);
    };
    inputs.scale = [seed](int rank, int token, int word) {
        return scale_word(seed, rank, token, word);
    };
    inputs.weights = options_.weights == Part::present ? ReferenceInputs::Weights::carried
                                                       : ReferenceInputs::Weights::absent;
    return inputs;
}

std::string Rehearsal::check_counts(const Received& received, cudaStream_t stream) {
    const int rank = exchange_.rank();
    const ReferenceRank& want = reference_.ranks[size(rank)];
    const StepCountsLayout& layout = exchange_.plan().step_layout;
    std::vector<std::byte> step(layout.total_bytes());
    copy_down(step.data(), received.step, step.size(), stream, rank);
    StepCounts header;
    std::memcpy(&header, step.data(), sizeof header);
    const auto ints = [&step](std::uint32_t offset) {
        return reinterpret_cast<const std::int32_t*>(step.data() + offset);
    };
    const std::int32_t totals[] = {header.row_count, header.token_row_count, header.sent_row_count,
                                   header.local_expert_count};
    auto fault = compare_ints("totals (rows, token rows, sent rows, experts)", rank, totals,
                              {static_cast<std::int32_t>(want.rows.size()), want.token_row_count,
                               want.sent_row_count, want.local_expert_count});
    if (fault.empty()) {
        fault =
            compare_ints("expert_counts", rank, ints(layout.expert_counts()), want.expert_counts);
    }
    if (fault.empty() && reference_.shape.layout == Layout::expert_major) {
        fault = compare_ints("expert_offsets", rank, ints(layout.expert_offsets()),
                             want.expert_offsets);
    }
    if (fault.empty()) {
        fault = compare_ints("source_offsets", rank, ints(layout.source_offsets()),
                             want.source_offsets);
    }
    return fault;
}

void Rehearsal::download(cudaStream_t stream) {
    const int rank = exchange_.rank();
    const Received received = exchange_.received(routing_);
    const TokenLayout& layout = exchange_.plan().token_layout;
    const std::size_t count = reference_.ranks[size(rank)].rows.size();
    got_rows_.resize(count * layout.row_bytes);
    got_records_.assign(count * record_stride_, std::byte{0});
    if (options_.access == RowAccess::in_place) {
        copy_down(got_rows_.data(), received.rows, got_rows_.size(), stream, rank);
        copy_down(got_records_.data(), received.records, got_records_.size(), stream, rank);
        return;
    }
    UnpackOutputs out;
    out.rows = copied_rows_.get();
    out.indices = copied_indices_.get();
    out.weights = copied_weights_.get();
    out.scales = layout.scale_words > 0 ? copied_scales_.get() : nullptr;
    out.source = copied_source_.get();
    out.capacity = static_cast<std::int64_t>(count);
    exchange_.unpack(routing_, out, stream);
    exchange_.synchronize(stream);
    std::vector<std::int32_t> source(copied_source_.count()), indices(copied_indices_.count());
    std::vector<float> weights(copied_weights_.count());
    std::vector<std::uint32_t> scales(copied_scales_.count());
    copied_rows_.download(got_rows_);
    copied_source_.download(source);
    copied_indices_.download(indices);
    copied_weights_.download(weights);
    copied_scales_.download(scales);
    for (std::size_t i = 0; i < count; ++i) {
        auto* record = reinterpret_cast<std::uint32_t*>(got_records_.data() + i * record_stride_);
        record[layout.token_word()] = static_cast<std::uint32_t>(source[i * 2 + 1]);
        record[layout.source_word()] = static_cast<std::uint32_t>(source[i * 2]);
        std::memcpy(record + layout.index_word(), &indices[i * layout.choice_count],
                    layout.choice_count * 4);
        std::memcpy(record + layout.weight_word(), &weights[i * layout.choice_count],
                    layout.choice_count * 4);
        if (layout.scale_words > 0) {
            std::memcpy(record + layout.scale_word(), &scales[i * layout.scale_words],
                        layout.scale_words * 4);
        }
    }
}

std::string Rehearsal::check_dispatch(cudaStream_t stream) {
    exchange_.synchronize(stream);
    const auto fault = check_counts(exchange_.received(routing_), stream);
    if (!fault.empty()) return fault;
    download(stream);
    ReceivedBytes bytes;
    bytes.rows = got_rows_;
    bytes.records = got_records_;
    bytes.record_bytes = record_stride_;
    bytes.check_padding_payload = exchange_.plan().config.pad_fill == PadFill::zero;
    return compare_received(table_, reference_, exchange_.rank(), inputs(), bytes);
}

void Rehearsal::answer_row(const std::byte* row, const std::uint32_t* record, int rank,
                           std::byte* out) const {
    const MoeConfig& config = exchange_.plan().config;
    const TokenLayout& layout = exchange_.plan().token_layout;
    const int first_expert = reference_.ranks[size(rank)].first_expert;
    float factor = 0;
    for (std::uint32_t c = 0; c < layout.choice_count; ++c) {
        const auto index = static_cast<std::int32_t>(record[layout.index_word() + c]);
        if (config.layout == Layout::expert_major) {
            const auto expert = table_.index(static_cast<int>(record[layout.source_word()]),
                                             static_cast<int>(record[layout.token_word()]), index);
            factor = 1.0f + static_cast<float>(expert % 4) * 0.25f;
            continue;
        }
        if (index < 0) continue;
        float weight = 1.0f;
        if (options_.weights == Part::present)
            std::memcpy(&weight, record + layout.weight_word() + c, 4);
        factor += weight * (1.0f + static_cast<float>((first_expert + index) % 4) * 0.25f);
    }
    const std::uint32_t in_bytes = element_bytes(config.dispatch_type);
    const std::uint32_t out_bytes = element_bytes(config.combine_type);
    for (std::int32_t h = 0; h < config.hidden; ++h) {
        const float value = load_element(config.dispatch_type, row + size(h) * in_bytes) * factor;
        store_element(config.combine_type, out + size(h) * out_bytes, value);
    }
}

void Rehearsal::answer(cudaStream_t stream) {
    exchange_.synchronize(stream);
    download(stream);
    const int rank = exchange_.rank();
    const std::size_t row_bytes = exchange_.plan().token_layout.row_bytes;
    const std::size_t answer_bytes = exchange_.plan().combine_row_bytes;
    const auto& rows = reference_.ranks[size(rank)].rows;
    std::vector<std::byte> answers(rows.size() * answer_bytes);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        // What experts make of padding is never read; noise would be found in the result.
        std::memset(answers.data() + i * answer_bytes, 0x7b, answer_bytes);
        if (rows[i].source < 0) continue;
        const auto* record =
            reinterpret_cast<const std::uint32_t*>(got_records_.data() + i * record_stride_);
        answer_row(got_rows_.data() + i * row_bytes, record, rank,
                   answers.data() + i * answer_bytes);
    }
    answers_.upload(answers);
    if (options_.access == RowAccess::in_place) {
        copy_up(exchange_.combine_input(), answers.data(), answers.size(), stream, rank);
    } else {
        repeat_answer(stream);
    }
}

void Rehearsal::repeat_answer(cudaStream_t stream) {
    if (answers_.count() > 0) exchange_.pack(answers_.get(), routing_, stream);
}

void Rehearsal::combine(cudaStream_t stream) {
    CombineInputs inputs;
    inputs.out = out_.get();
    inputs.bias = options_.bias == Part::present ? bias_.get() : nullptr;
    inputs.weights = options_.combine_weights == Part::present ? weights_.get() : nullptr;
    inputs.deadline_ns = options_.deadline_ns;
    exchange_.combine(inputs, routing_, stream);
}

std::string Rehearsal::check_combine(cudaStream_t stream) {
    exchange_.synchronize(stream);
    const MoeConfig& config = exchange_.plan().config;
    const int rank = exchange_.rank();
    const std::size_t answer_bytes = exchange_.plan().combine_row_bytes;
    std::map<std::pair<int, int>, std::vector<std::byte>> answers;
    const auto in = inputs();
    std::vector<std::byte> row(in.row_bytes);
    ReferenceCombine combine;
    combine.type = config.combine_type;
    combine.hidden = config.hidden;
    combine.row = [&](int at, int slot) {
        auto& answer = answers[{at, slot}];
        answer.resize(answer_bytes);
        const ReferenceRow& place = reference_.ranks[size(at)].rows[size(slot)];
        in.row(place.source, place.token, row.data());
        const auto record = reference_record(table_, reference_, at, slot, in);
        answer_row(row.data(), record.data(), at, answer.data());
        return static_cast<const std::byte*>(answer.data());
    };
    if (options_.combine_weights == Part::present)
        combine.weights = ReferenceCombine::Weights::applied;
    combine.pre_sum_team = exchange_.plan().pre_sum_team();
    std::vector<std::byte> bias(answer_bytes);
    if (options_.bias == Part::present) {
        combine.bias = [&](int token) {
            fill_row_pattern(~options_.seed, rank, token, config.combine_type, bias.data(),
                             bias.size());
            return static_cast<const std::byte*>(bias.data());
        };
    }
    const auto want = reference_combine(table_, reference_, rank, combine);
    std::vector<std::byte> got(out_.count());
    out_.download(got);
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (got[i] == want[i]) continue;
        const std::size_t element = element_bytes(config.combine_type);
        const std::size_t at = i / element * element;
        return fmt::format(
            "rank {}, combined token {}, element {}: {} (byte 0x{:02x}), expected {} (byte "
            "0x{:02x})",
            rank, i / answer_bytes, i % answer_bytes / element,
            load_element(config.combine_type, &got[at]), static_cast<int>(got[i]),
            load_element(config.combine_type, &want[at]), static_cast<int>(want[i]));
    }
    return {};
}

std::string Rehearsal::step(CountMode mode, cudaStream_t stream) {
    dispatch(mode, stream);
    auto fault = check_dispatch(stream);
    if (!fault.empty()) return fault;
    answer(stream);
    combine(stream);
    return check_combine(stream);
}

}  // namespace gimlet

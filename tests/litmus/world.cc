// SPDX-License-Identifier: Apache-2.0
#include "tests/litmus/world.hpp"

#include <array>

#include "host/cuda/check.hpp"
#include "host/nccl/check.hpp"

namespace gimlet::litmus {

LitmusWorld::LitmusWorld(Communicator& communicator, const LitmusOptions& options)
    : communicator_(communicator),
      options_(options),
      gin_(communicator.properties().gin_type != GinType::none),
      stream_(Stream::create(communicator.rank())),
      registers_(kRegisterCount, communicator.rank()) {
    WindowLayout layout;
    layout.add("slots", static_cast<std::uint64_t>(options_.rounds_max) * kSlotBytes);
    window_ = SymmetricWindow::create(communicator_, layout);
    DeviceCommRequest request;
    if (gin_) {
        request.gin_connection = GinConnection::full;
        request.gin_context_count = 2;
        request.gin_signal_count = static_cast<int>(options_.gin_signal_count);
        request.gin_counter_count = 1;
        request.gin_queue_depth = options_.gin_queue_depth;
    }
    device_communicator_ = DeviceCommunicator::create(communicator_, request);
}

std::string LitmusWorld::missing(const Program& program) const {
    if (communicator_.size() < 2) return "two ranks";
    if ((program.needs & kGin) != 0) {
        if (!gin_) return "GIN";
        if (device_communicator_->gin_context_count() < 2) return "two GIN contexts";
        if ((program.needs & kManySignals) != 0 && options_.gin_signal_count < kManySignalCount)
            return "signal ids above 65,535";
    }
    if ((program.needs & kLsa) != 0 && communicator_.properties().lsa_size < 2) {
        return "two ranks in one LSA team";
    }
    return {};
}

Outcome LitmusWorld::merge(const Program& program) const {
    std::array<std::uint64_t, kRegisterCount> mine{};
    for (int i = 0; i < kRegisterCount; ++i) mine[static_cast<std::size_t>(i)] = registers_[i];
    const auto all = communicator_.bootstrap().all_gather_values(mine);
    Outcome outcome;
    for (std::size_t i = 0; i < program.allowed.front().size(); ++i) {
        outcome.push_back(all[0][i] != kUnset ? all[0][i] : all[1][i]);
    }
    // A wait in vain is told in the last register, whatever the program has.
    for (int rank = 0; rank < 2; ++rank) {
        const auto told = all[static_cast<std::size_t>(rank)][kRegisterCount - 1];
        if (told == kTimedOut && outcome.back() != kTimedOut) outcome.push_back(kTimedOut);
    }
    return outcome;
}

Histogram LitmusWorld::run(const Program& program, int rounds) {
    const int rank = communicator_.rank();
    const int partner = 1 - rank;
    const bool uses_gin = (program.needs & kGin) != 0;
    cuda_check(cudaMemsetAsync(window_->local(), 0, window_->bytes(), stream_.get()),
               "cudaMemsetAsync", rank);
    cuda_check(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize", rank);
    LitmusArgs args{};
    args.dev_comm = device_communicator_->get();
    args.window = window_->handle();
    args.local = static_cast<std::byte*>(window_->local_flat());
    if (rank < 2) args.partner_bytes = static_cast<std::byte*>(window_->peer(partner));
    args.registers = registers_.device();
    args.deadline_ns = options_.deadline_ns;
    args.looks_max = options_.looks_max;
    args.program = program.id;
    args.rank = rank;
    args.high_signal = options_.gin_signal_count - 1;
    Histogram seen;
    for (int round = 0; round < rounds; ++round) {
        for (int i = 0; i < kRegisterCount; ++i) registers_[i] = kUnset;
        args.slot_offset = static_cast<std::uint64_t>(round) * kSlotBytes;
        args.close_base = gin_rounds_;
        // -1, 0, +1: rank 0 late, none, rank 1 late, by a varying span.
        const int lean = round % 3 - 1;
        const std::uint64_t span = options_.spread_ns * static_cast<std::uint64_t>(round % 7) / 7;
        args.delay_ns = (rank == 0 && lean < 0) || (rank == 1 && lean > 0) ? span : 0;
        communicator_.bootstrap().barrier();
        if (rank < 2) {
            cuda_check(launch_litmus(args, stream_.get()), program.name, rank);
            cuda_check(cudaStreamSynchronize(stream_.get()), program.name, rank);
        }
        if (uses_gin) ++gin_rounds_;
        ++seen[merge(program)];
    }
    return seen;
}

void LitmusWorld::close() {
    communicator_.bootstrap().barrier();
    device_communicator_->close();
    window_->close();
    communicator_.bootstrap().barrier();
}

std::string forbidden_text(const Program& program, const Histogram& seen) {
    std::string text;
    for (const auto& [outcome, count] : seen) {
        if (program.allows(outcome)) continue;
        text += std::string(program.name) + ": forbidden outcome " + text_of(outcome) + " came " +
                std::to_string(count) + " times; registers: " + program.registers + "; " +
                program.claim + "\n";
    }
    return text;
}

std::string unreached_text(const Program& program, const Histogram& seen) {
    std::string text;
    for (const Outcome& outcome : program.allowed) {
        if (seen.count(outcome) != 0) continue;
        text += std::string(program.name) + ": allowed outcome " + text_of(outcome) +
                " did not come; registers: " + program.registers + "\n";
    }
    return text;
}

}  // namespace gimlet::litmus

// SPDX-License-Identifier: Apache-2.0
#include "runtime/sim/primitives_kernels.hpp"

#include <utility>

#include "device/channel/aggregated_put.hpp"
#include "device/core/bulk.hpp"
#include "device/core/group.hpp"
#include "device/core/memory.hpp"
#include "device/core/peer.hpp"
#include "device/core/wait.hpp"
#include "device/sync/block_barrier.hpp"
#include "device/sync/gin_barrier.hpp"
#include "device/sync/gpu_barrier.hpp"
#include "device/sync/grid_barrier.hpp"
#include "device/sync/nvlink_barrier.hpp"
#include "device/sync/signal_shadow.hpp"

namespace gimlet::sim {

using namespace gimlet::device;

namespace {

constexpr std::uint32_t kRowWords = 16;
constexpr std::uint32_t kRowBytes = kRowWords * 4;

/// Word `word` of the row that `writer` of rank `from` sends to rank `to` in a round. Never zero.
GIMLET_DEVICE std::uint32_t row_word(std::uint64_t round, std::int32_t from, std::int32_t to,
                                     std::int32_t writer, std::uint32_t word) {
    std::uint64_t x =
        round * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(from) * 0xbf58476d1ce4e5b9ull;
    x ^= static_cast<std::uint64_t>(to) << 40 ^ static_cast<std::uint64_t>(writer) << 20 ^ word;
    x = (x ^ x >> 31) * 0x94d049bb133111ebull;
    return static_cast<std::uint32_t>(x >> 32) | 1u;
}

GIMLET_DEVICE void count(std::uint64_t* counter) {
    add_relaxed<Scope::gpu>(counter, 1u);
}

// --- meetings
// ------------------------------------------------------------------------------------------------------

enum class Path { none, store, put };

GIMLET_DEVICE GinTeam gin_team_of(const MeetingArgs& args) {
    if (args.meeting == Meeting::gin) return static_cast<GinTeam>(args.gin_team);
    return args.teams == TeamsChoice::world ? GinTeam::world_minus_lsa : GinTeam::rail;
}

/// How rows go between this rank and `peer`; the same in both directions.
GIMLET_DEVICE Path path_to(const MeetingArgs& args, std::int32_t peer) {
    const PeerHandles& peers = args.peers;
    const bool by_lsa = args.meeting != Meeting::gin &&
                        (args.meeting != Meeting::gpu || args.teams != TeamsChoice::rail);
    if (by_lsa && is_lsa_peer(peers, peer)) return Path::store;
    const bool by_gin = args.meeting == Meeting::gin ||
                        (args.meeting == Meeting::gpu && args.teams != TeamsChoice::scale_up);
    if (!by_gin || peer == peers.rank) return Path::none;
    switch (gin_team_of(args)) {
        case GinTeam::world: return Path::put;
        case GinTeam::world_minus_lsa: return is_lsa_peer(peers, peer) ? Path::none : Path::put;
        case GinTeam::rail:
            return (peer - peers.rank) % peers.lsa_size == 0 ? Path::put : Path::none;
    }
    return Path::none;
}

GIMLET_DEVICE std::uint64_t row_offset(const MeetingArgs& args, std::uint64_t region,
                                       std::uint64_t round, std::int32_t rank,
                                       std::int32_t writer) {
    const auto ranks = static_cast<std::uint64_t>(args.peers.rank_count);
    const auto row = ((round & 1u) * ranks + static_cast<std::uint64_t>(rank)) *
                         static_cast<std::uint64_t>(args.writers) +
                     static_cast<std::uint64_t>(writer);
    return region + row * kRowBytes;
}

GIMLET_DEVICE std::int32_t writer_context(const MeetingArgs& args, std::int32_t writer) {
    return args.first_context + writer % args.context_count;
}

GIMLET_DEVICE void fill_row(void* row, std::uint64_t round, std::int32_t from, std::int32_t to,
                            std::int32_t writer) {
    if (lane_index() < static_cast<int>(kRowWords)) {
        static_cast<std::uint32_t*>(row)[lane_index()] =
            row_word(round, from, to, writer, static_cast<std::uint32_t>(lane_index()));
    }
}

/// The calling warp's row to `to`.
GIMLET_DEVICE void send_row(const MeetingArgs& args, std::uint64_t round, std::int32_t writer,
                            std::int32_t to) {
    const PeerHandles& peers = args.peers;
    const Path path = path_to(args, to);
    const std::uint64_t target = row_offset(args, args.rows_offset, round, peers.rank, writer);
    if (path == Path::store && args.store == StoreKind::plain) {
        fill_row(peer_pointer(peers, to, target), round, peers.rank, to, writer);
    } else if (path == Path::store) {
        std::byte* const slot =
            dynamic_shared_memory() + static_cast<std::uint32_t>(warp_index()) * kRowBytes;
        if (elect()) bulk_wait_read<0>();
        warp_sync();
        fill_row(slot, round, peers.rank, to, writer);
        fence_proxy_async_shared();
        warp_sync();
        if (elect()) {
            bulk_store(peer_pointer(peers, to, target), slot, kRowBytes);
            bulk_commit();
        }
    } else if (path == Path::put) {
        const std::uint64_t source = row_offset(args, args.send_offset, round, to, writer);
        fill_row(local_pointer(peers, source), round, peers.rank, to, writer);
        warp_sync();
        if (elect()) {
            gin_context(peers, writer_context(args, writer))
                .put(world_team(peers), to, peers.window, target, peers.window, source, kRowBytes);
        }
    }
}

GIMLET_DEVICE void check_rows(const MeetingArgs& args, std::uint64_t round) {
    const PeerHandles& peers = args.peers;
    for (std::int32_t from = 0; from < peers.rank_count; ++from) {
        if (path_to(args, from) == Path::none) continue;
        for (std::int32_t writer = 0; writer < args.writers; ++writer) {
            const auto* row = local_word<std::uint32_t>(
                peers, row_offset(args, args.rows_offset, round, from, writer));
            for (std::uint32_t word = static_cast<std::uint32_t>(thread_index()); word < kRowWords;
                 word += static_cast<std::uint32_t>(block_threads())) {
                if (row[word] != row_word(round, from, peers.rank, writer, word))
                    count(args.mismatches);
            }
        }
    }
}

GIMLET_DEVICE void arrive_at(std::int32_t* word, std::int32_t value, Flaw flaw) {
    if (flaw == Flaw::relaxed_arrival) {
        add_relaxed<Scope::system>(word, value);
    } else {
        add_release<Scope::system>(word, value);
    }
}

GIMLET_DEVICE std::int32_t look_at(const std::int32_t* word, Flaw flaw) {
    return flaw == Flaw::relaxed_wait ? load_relaxed<Scope::system>(word)
                                      : load_acquire<Scope::system>(word);
}

/// nvlink_barrier with a fault.
GIMLET_DEVICE bool flawed_nvlink(const PeerHandles& peers, const WaitScope& scope, Flaw flaw) {
    auto* const counter = local_word<std::uint64_t>(peers, peers.layout.nvlink_counter);
    const std::uint64_t last = *counter;
    const std::uint32_t arrived = static_cast<std::uint32_t>(last) + 1;
    block_sync();
    for (std::int32_t i = thread_index(); i < peers.lsa_size; i += block_threads()) {
        auto* const flag =
            peer_word<std::uint32_t>(peers, lsa_member(peers, i), peers.layout.nvlink_flags,
                                     static_cast<std::uint64_t>(peers.lsa_rank));
        if (flaw == Flaw::relaxed_arrival) {
            store_relaxed<Scope::system>(flag, arrived);
        } else {
            store_release<Scope::system>(flag, arrived);
        }
    }
    if (thread_index() == 0 && flaw != Flaw::counter_stays) *counter = last + 1;
    const std::uint32_t number = flaw == Flaw::flag_of_last ? arrived - 1 : arrived;
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < peers.lsa_size && flaw != Flaw::no_wait;
         i += block_threads()) {
        const auto* const flag = local_word<std::uint32_t>(peers, peers.layout.nvlink_flags,
                                                           static_cast<std::uint64_t>(i));
        status = wait_until(scope, WaitTarget{-1, -1, 0}, [&](std::uint64_t& seen) {
            const std::uint32_t value = flaw == Flaw::relaxed_wait
                                            ? load_relaxed<Scope::system>(flag)
                                            : load_acquire<Scope::system>(flag);
            seen = value;
            return static_cast<std::int32_t>(value - number) >= 0;
        });
    }
    return block_ok(status);
}

/// block_barrier with a fault.
GIMLET_DEVICE bool flawed_block(const PeerHandles& peers, const WaitScope& scope, Flaw flaw) {
    block_sync();
    const std::uint64_t base = peers.layout.block_barrier;
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < peers.lsa_size; i += block_threads()) {
        const std::int32_t peer = lsa_member(peers, i);
        if (peer == peers.rank) continue;
        if (flaw != Flaw::one_sided)
            add_relaxed<Scope::system>(local_word<std::int32_t>(peers, base, peer), 1);
        arrive_at(peer_word<std::int32_t>(peers, peer, base, peers.rank), -1, flaw);
    }
    for (std::int32_t i = thread_index(); i < peers.lsa_size && flaw != Flaw::no_wait;
         i += block_threads()) {
        const std::int32_t peer = lsa_member(peers, i);
        if (peer == peers.rank) continue;
        status = wait_until(scope, WaitTarget{peer, -1, 0}, [&](std::uint64_t& seen) {
            const std::int32_t value = look_at(local_word<std::int32_t>(peers, base, peer), flaw);
            seen = static_cast<std::uint32_t>(value);
            return value <= 0;
        });
    }
    return block_ok(status);
}

/// gin_barrier with a fault.
GIMLET_DEVICE bool flawed_gin(const MeetingArgs& args, const WaitScope& scope) {
    const PeerHandles& peers = args.peers;
    const SignalMap map{peers.rank_count};
    const GinTeam team = gin_team_of(args);
    const std::int32_t contexts = args.flaw == Flaw::first_context_only ? 1 : args.context_count;
    const std::int32_t peer_count = gin_team_peer_count(peers, team);
    const SignalShadow shadow(peers);
    block_sync();
    for (std::int32_t i = thread_index(); i < peer_count * contexts; i += block_threads()) {
        const ncclGin gin = gin_context(peers, args.first_context + i / peer_count);
        const std::int32_t peer = gin_team_peer(peers, team, i % peer_count);
        if (args.flaw == Flaw::weak_signal) {
            gin.signal(world_team(peers), peer, ncclGin_WeakSignalAdd{map.barrier(peers.rank), 1});
        } else {
            gin.signal(world_team(peers), peer,
                       ncclGin_StrongSignalAdd{map.barrier(peers.rank), 1});
        }
    }
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t i = thread_index(); i < peer_count * contexts; i += block_threads()) {
        const std::int32_t context = args.first_context + i / peer_count;
        const std::int32_t peer = gin_team_peer(peers, team, i % peer_count);
        if (args.flaw != Flaw::no_wait && status == WaitStatus::ok) {
            status = shadow.wait_meet(scope, peer, context, map.barrier(peer), 1);
        }
        if (args.flaw != Flaw::no_shadow_advance) shadow.advance(context, map.barrier(peer), 1);
    }
    return block_ok(status);
}

GIMLET_DEVICE bool meet_gpu(const MeetingArgs& args, const WaitScope& scope) {
    GpuBarrierOptions options;
    options.teams = static_cast<BarrierTeams>(args.teams);
    options.contexts = {args.first_context, args.context_count};
    if (args.flaw == Flaw::no_bulk_flush) options.flush_bulk_stores = FlushBulkStores::no;
    if (args.flaw == Flaw::no_start_sync) options.grid_sync_at_start = GridSync::no;
    if (args.flaw == Flaw::no_end_sync) options.grid_sync_at_end = GridSync::no;
    return gpu_barrier(args.peers, options, scope);
}

GIMLET_DEVICE bool meet(const MeetingArgs& args, const WaitScope& scope) {
    const PeerHandles& peers = args.peers;
    if (args.meeting == Meeting::gpu) return meet_gpu(args, scope);
    bulk_commit();
    bulk_wait<0>();
    const bool flawed = args.flaw != Flaw::none;
    switch (args.meeting) {
        case Meeting::nvlink:
            return flawed ? flawed_nvlink(peers, scope, args.flaw) : nvlink_barrier(peers, scope);
        case Meeting::block:
            return flawed ? flawed_block(peers, scope, args.flaw) : block_barrier(peers, scope);
        default:
            if (flawed) return flawed_gin(args, scope);
            return gin_barrier(peers, gin_team_of(args), {args.first_context, args.context_count},
                               scope);
    }
}

/// Sources of the puts may be written again. Each warp flushes the context that it used.
GIMLET_DEVICE void flush_puts(const MeetingArgs& args, std::int32_t writer) {
    const bool puts =
        args.context_count > 0 && (args.meeting == Meeting::gin || args.meeting == Meeting::gpu);
    if (puts && elect())
        gin_context(args.peers, writer_context(args, writer)).flush(ncclCoopThread{});
}

GIMLET_GLOBAL void meeting_kernel(const GIMLET_GRID_CONSTANT MeetingArgs args) {
    if (block_index() == args.absent_block) return;
    const PeerHandles& peers = args.peers;
    const std::int32_t writer = block_index() * warp_count() + warp_index();
    std::uint64_t* const poison =
        &local_word<EpochWords>(peers, peers.layout.epochs)->barrier_poison;
    for (std::int32_t i = 0; i < args.rounds; ++i) {
        const std::uint64_t round = args.first_epoch + static_cast<std::uint64_t>(i);
        for (std::int32_t j = 0; j < peers.rank_count; ++j) {
            send_row(args, round, writer, (peers.rank + j) % peers.rank_count);
        }
        const WaitScope scope = wait_scope(peers, Tag::user, Primitive::user, round, poison);
        if (!meet(args, scope)) {
            count(args.failures);
            return;
        }
        check_rows(args, round);
        flush_puts(args, writer);
    }
}

// --- grid barrier
// --------------------------------------------------------------------------------------------------

GIMLET_DEVICE bool flawed_grid(std::uint32_t* word, const WaitScope& scope, Flaw flaw) {
    constexpr std::uint32_t flip = 0x80000000u;
    block_sync();
    WaitStatus status = WaitStatus::ok;
    if (thread_index() == 0) {
        const std::uint32_t step =
            block_index() == 0 ? flip - (static_cast<std::uint32_t>(block_count()) - 1u) : 1u;
        const std::uint32_t before = flaw == Flaw::relaxed_arrival
                                         ? fetch_add_relaxed<Scope::gpu>(word, step)
                                         : fetch_add_release<Scope::gpu>(word, step);
        if (flaw != Flaw::no_wait) {
            status = wait_until(scope, WaitTarget{-1, -1, 0}, [&](std::uint64_t& seen) {
                const std::uint32_t value = flaw == Flaw::relaxed_wait
                                                ? load_relaxed<Scope::gpu>(word)
                                                : load_acquire<Scope::gpu>(word);
                seen = value;
                return ((value ^ before) & flip) != 0;
            });
        }
    }
    return block_ok(status);
}

GIMLET_GLOBAL void grid_kernel(const GIMLET_GRID_CONSTANT GridArgs args) {
    if (block_index() == args.absent_block) return;
    const std::int32_t threads = block_count() * block_threads();
    const std::int32_t self = block_index() * block_threads() + thread_index();
    for (std::int32_t i = 1; i <= args.rounds; ++i) {
        const auto round = static_cast<std::uint64_t>(i);
        std::uint64_t* const cells =
            args.cells + (round & 1u) * static_cast<std::uint64_t>(threads);
        cells[self] = round * 1000003u + static_cast<std::uint64_t>(self);
        const WaitScope scope{args.deadline_ns, args.error,     args.poison, round, 0,
                              Tag::user,        Primitive::user};
        const bool ok = args.flaw == Flaw::none ? grid_barrier(args.word, scope)
                                                : flawed_grid(args.word, scope, args.flaw);
        if (!ok) {
            count(args.failures);
            return;
        }
        for (std::int32_t block = 0; block < block_count(); ++block) {
            const std::int32_t other = block * block_threads() + thread_index();
            if (cells[other] != round * 1000003u + static_cast<std::uint64_t>(other))
                count(args.mismatches);
        }
    }
}

// --- aggregated puts
// -----------------------------------------------------------------------------------------------

GIMLET_DEVICE std::uint64_t put_row_offset(const PutArgs& args, std::uint64_t region,
                                           std::int32_t rank, std::int32_t index) {
    return region + (static_cast<std::uint64_t>(rank) * static_cast<std::uint64_t>(args.put_count) +
                     static_cast<std::uint64_t>(index)) *
                        kRowBytes;
}

GIMLET_DEVICE void fill_batch(const PutArgs& args, std::uint64_t round, std::int32_t to) {
    for (std::int32_t i = 0; i < args.put_count; ++i) {
        fill_row(local_pointer(args.peers, put_row_offset(args, args.send_offset, to, i)), round,
                 args.peers.rank, to, i);
    }
    warp_sync();
}

/// One thread.
GIMLET_DEVICE void send_batch(const PutArgs& args, std::int32_t to) {
    const PeerHandles& peers = args.peers;
    const std::uint32_t signal = SignalMap{peers.rank_count}.dispatch_arrival(peers.rank);
    const ncclGin gin = gin_context(peers, args.context);
    if (args.flaw == PutFlaw::not_closed) {
        // Every put and even the signal carry the flag: nothing rings.
        for (std::int32_t i = 0; i < args.put_count; ++i) {
            gin.put(world_team(peers), to, peers.window,
                    put_row_offset(args, args.rows_offset, peers.rank, i), peers.window,
                    put_row_offset(args, args.send_offset, to, i), kRowBytes, ncclGin_None{},
                    ncclGin_None{}, ncclCoopThread{}, ncclGin_None{}, cuda::thread_scope_thread,
                    cuda::thread_scope_device, ncclGinOptFlagsAggregateRequests);
        }
        gin.signal(world_team(peers), to, ncclGin_StrongSignalAdd{signal, 1}, ncclCoopThread{},
                   ncclGin_None{}, cuda::thread_scope_thread, cuda::thread_scope_device,
                   ncclGinOptFlagsAggregateRequests);
        return;
    }
    AggregatedPut batch(gin, world_team(peers), to, peers.window);
    for (std::int32_t i = 0; i < args.put_count; ++i) {
        batch.put(put_row_offset(args, args.rows_offset, peers.rank, i),
                  put_row_offset(args, args.send_offset, to, i), kRowBytes);
    }
    if (args.flaw == PutFlaw::weak_last_signal) {
        batch.close(ncclGin_WeakSignalAdd{signal, 1});
    } else {
        batch.close(ncclGin_StrongSignalAdd{signal, 1});
    }
}

/// The sources of the warp's batches to peers `first` ... `last`. Whole warp.
GIMLET_DEVICE void flush_and_overwrite(const PutArgs& args, std::uint64_t round, std::int32_t first,
                                       std::int32_t last) {
    if (elect() && args.flaw != PutFlaw::no_flush)
        gin_context(args.peers, args.context).flush(ncclCoopThread{});
    warp_sync();
    for (std::int32_t to = first; to <= last; to += warp_count()) fill_batch(args, ~round, to);
}

GIMLET_GLOBAL void put_kernel(const GIMLET_GRID_CONSTANT PutArgs args) {
    const PeerHandles& peers = args.peers;
    const SignalMap map{peers.rank_count};
    const SignalShadow shadow(peers);
    for (std::int32_t i = 0; i < args.rounds; ++i) {
        const std::uint64_t round = args.first_epoch + static_cast<std::uint64_t>(i);
        const WaitScope scope = wait_scope(peers, Tag::user, Primitive::user, round, nullptr);
        const bool each = args.flush == PutFlush::each_batch;
        for (std::int32_t to = warp_index(); to < peers.rank_count; to += warp_count()) {
            fill_batch(args, round, to);
            if (elect()) send_batch(args, to);
            if (each) flush_and_overwrite(args, round, to, to);
        }
        if (!each) flush_and_overwrite(args, round, warp_index(), peers.rank_count - 1);
        WaitStatus status = WaitStatus::ok;
        for (std::int32_t from = thread_index(); from < peers.rank_count; from += block_threads()) {
            if (status == WaitStatus::ok) {
                status = shadow.wait_meet(scope, from, args.context, map.dispatch_arrival(from), 1);
            }
            shadow.advance(args.context, map.dispatch_arrival(from), 1);
        }
        if (!block_ok(status)) {
            count(args.failures);
            return;
        }
        for (std::int32_t from = warp_index(); from < peers.rank_count; from += warp_count()) {
            for (std::int32_t j = 0; j < args.put_count; ++j) {
                const auto* row = local_word<std::uint32_t>(
                    peers, put_row_offset(args, args.rows_offset, from, j));
                if (lane_index() < static_cast<int>(kRowWords) &&
                    row[lane_index()] != row_word(round, from, peers.rank, j,
                                                  static_cast<std::uint32_t>(lane_index()))) {
                    count(args.mismatches);
                }
            }
        }
        block_sync();
        // The next round's rows may come.
        for (std::int32_t to = thread_index(); to < peers.rank_count; to += block_threads()) {
            gin_context(peers, args.context)
                .signal(world_team(peers), to,
                        ncclGin_WeakSignalAdd{map.combine_ready(peers.rank), 1});
        }
        for (std::int32_t from = thread_index(); from < peers.rank_count; from += block_threads()) {
            if (status == WaitStatus::ok) {
                status = shadow.wait_meet(scope, from, args.context, map.combine_ready(from), 1);
            }
            shadow.advance(args.context, map.combine_ready(from), 1);
        }
        if (!block_ok(status)) {
            count(args.failures);
            return;
        }
    }
}

// --- signals
// -------------------------------------------------------------------------------------------------------

GIMLET_GLOBAL void prime_kernel(const GIMLET_GRID_CONSTANT MeetingArgs args, std::uint64_t amount) {
    const PeerHandles& peers = args.peers;
    const SignalMap map{peers.rank_count};
    const SignalShadow shadow(peers);
    const WaitScope scope = wait_scope(peers, Tag::user, Primitive::user, 1, nullptr);
    WaitStatus status = WaitStatus::ok;
    for (std::int32_t context = 0; context < peers.gin_context_count; ++context) {
        for (std::int32_t i = thread_index(); i < peers.rank_count; i += block_threads()) {
            if (i == peers.rank) continue;
            gin_context(peers, context)
                .signal(world_team(peers), i,
                        ncclGin_StrongSignalAdd{map.barrier(peers.rank), amount});
        }
        for (std::int32_t i = thread_index(); i < peers.rank_count; i += block_threads()) {
            if (i == peers.rank) continue;
            // Half way round a rolling compare means nothing: look for the very value.
            const ncclGin gin = gin_context(peers, context);
            status = wait_until(scope, WaitTarget{i, context, amount}, [&](std::uint64_t& seen) {
                seen = gin.readSignal(map.barrier(i));
                return seen == amount;
            });
            shadow.advance(context, map.barrier(i), amount);
        }
    }
    if (!block_ok(status)) count(args.failures);
}

GIMLET_GLOBAL void follow_kernel(const GIMLET_GRID_CONSTANT FollowArgs args) {
    const PeerHandles& peers = args.peers;
    const SignalMap map{peers.rank_count};
    const WaitScope scope = wait_scope(peers, Tag::user, Primitive::user, 1, nullptr);
    const SignalShadow shadow(peers);
    const ncclGin gin = gin_context(peers, 0);
    for (std::int32_t i = thread_index(); i < peers.rank_count; i += block_threads()) {
        for (std::int32_t j = 0; j < args.total; ++j) {
            gin.signal(world_team(peers), i,
                       ncclGin_WeakSignalAdd{map.combine_chunk(peers.rank), 1});
        }
    }
    for (std::int32_t from = thread_index(); from < peers.rank_count; from += block_threads()) {
        const std::uint32_t signal = map.combine_chunk(from);
        const std::uint64_t start = shadow.expected(0, signal);
        const auto total = static_cast<std::uint64_t>(args.total);
        std::uint64_t sum = 0;
        while (sum < total) {
            std::uint64_t taken = 0;
            if (shadow.wait_follow(scope, from, 0, signal, 1, taken) != WaitStatus::ok) {
                count(args.failures);
                break;
            }
            if (taken == 0) count(args.mismatches);
            sum += taken;
        }
        if (sum != total || shadow.expected(0, signal) != start + total) count(args.mismatches);
    }
}

// --- waits
// ---------------------------------------------------------------------------------------------------------

GIMLET_GLOBAL void wait_kernel(const GIMLET_GRID_CONSTANT WaitArgs args) {
    const WaitScope scope{args.deadline_ns, args.error,     args.poison, 7, 3,
                          Tag::user,        Primitive::user};
    if (args.which == WaitCase::poisoned && thread_index() == 0)
        store_relaxed<Scope::gpu>(args.poison, 7u);
    if (args.which == WaitCase::poisoned_earlier && thread_index() == 0)
        store_relaxed<Scope::gpu>(args.poison, 6u);
    block_sync();
    const std::uint64_t start_ns = now_ns();
    const WaitStatus status = wait_until(scope, WaitTarget{5, 2, 11}, [&](std::uint64_t& seen) {
        seen = 4 + load_relaxed<Scope::gpu>(args.word);
        if (args.which == WaitCase::holds_at_once) return true;
        if (args.which == WaitCase::one_lane_never) return thread_index() != 17;
        if (args.which == WaitCase::poisoned_earlier) return now_ns() - start_ns > 20000;
        return false;
    });
    args.statuses[thread_index()] = static_cast<std::uint64_t>(status);
    args.verdicts[thread_index()] = block_ok(status) ? 1 : 0;
}

GIMLET_GLOBAL void failed_step_kernel(const GIMLET_GRID_CONSTANT FailedStepArgs args) {
    const std::int32_t index = block_index() * block_threads() + thread_index();
    const std::uint64_t deadline_ns =
        index == args.impatient ? args.deadline_ns : args.patient_deadline_ns;
    const WaitScope scope{deadline_ns, args.error, args.poison, 7, 3, Tag::user, Primitive::user};
    const std::uint64_t start_ns = now_ns();
    const WaitStatus status =
        wait_until(scope, WaitTarget{5, 2, 11}, [](std::uint64_t&) { return false; });
    args.statuses[index] = static_cast<std::uint64_t>(status);
    args.elapsed_ns[index] = now_ns() - start_ns;
    args.verdicts[index] = block_ok(status) ? 1 : 0;
}

template <class Kernel, class... Arguments>
cudaError_t launch_kernel(Kernel kernel, int blocks, int threads, std::size_t shared_bytes,
                          cudaStream_t stream, const Arguments&... arguments) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks), 1, 1);
    config.blockDim = dim3(static_cast<unsigned>(threads), 1, 1);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t launch_meeting(const MeetingArgs& args, int blocks, int threads, cudaStream_t stream) {
    const auto shared_bytes = static_cast<std::size_t>(threads / 32) * kRowBytes;
    return launch_kernel(meeting_kernel, blocks, threads, shared_bytes, stream, args);
}

cudaError_t launch_grid_rounds(const GridArgs& args, int blocks, int threads, cudaStream_t stream) {
    return launch_kernel(grid_kernel, blocks, threads, 0, stream, args);
}

cudaError_t launch_put_rounds(const PutArgs& args, int threads, cudaStream_t stream) {
    return launch_kernel(put_kernel, 1, threads, 0, stream, args);
}

cudaError_t launch_signal_prime(const MeetingArgs& args, std::uint64_t amount, int threads,
                                cudaStream_t stream) {
    return launch_kernel(prime_kernel, 1, threads, 0, stream, args, amount);
}

cudaError_t launch_follow(const FollowArgs& args, int threads, cudaStream_t stream) {
    return launch_kernel(follow_kernel, 1, threads, 0, stream, args);
}

cudaError_t launch_wait(const WaitArgs& args, int threads, cudaStream_t stream) {
    return launch_kernel(wait_kernel, 1, threads, 0, stream, args);
}

cudaError_t launch_failed_step(const FailedStepArgs& args, int blocks, int threads,
                               cudaStream_t stream) {
    return launch_kernel(failed_step_kernel, blocks, threads, 0, stream, args);
}

}  // namespace gimlet::sim

// SPDX-License-Identifier: Apache-2.0
//
// Mutants: named wrong variants of the code that ships, to prove that the simulation would notice.
//
// A mutation point is one line, `if (!mutated(Mutant::x)) ...` or `mutate(Mutant::x, right,
// wrong)`. In every program that ships, and in every test but gimlet_mutants, mutated() is a
// constant false and the point costs nothing. gimlet_mutants compiles the device sources a second
// time with GIMLET_MUTATION, where it compares with the mutant that was chosen at run time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/core/platform.hpp"

// X(name, scenarios of `gimlet sim` that should notice, file below device/, rule that it breaks).
// A scenario with +memory runs with stale loads and race detection, one with +late completes
// operations late at their sender, in one with +far they arrive long after that.
#define GIMLET_MUTANTS(X)                                                                          \
    X(grid_no_wait, "grid gpu", "sync/grid_barrier", "waits for all blocks")                       \
    X(grid_one_short, "grid gpu", "sync/grid_barrier",                                             \
      "the last arrival flips, not the one before")                                                \
    X(grid_old_flip, "grid gpu", "sync/grid_barrier", "the flip differs from the one before")      \
    X(grid_no_sync_before, "grid gpu", "sync/grid_barrier",                                        \
      "a block arrives when all its threads have")                                                 \
    X(grid_no_sync_after, "grid gpu", "sync/grid_barrier", "threads go on when their block may")   \
    X(grid_ignores_poison, "absent", "sync/grid_barrier", "a failed step fails every block")       \
    X(nvlink_no_wait, "nvlink gpu", "sync/nvlink_barrier", "waits for all members")                \
    X(nvlink_one_behind, "nvlink gpu", "sync/nvlink_barrier",                                      \
      "no member may be one barrier behind")                                                       \
    X(nvlink_compare_not_rolling, "nvlink gpu", "sync/nvlink_barrier", "barrier numbers may wrap") \
    X(nvlink_wrong_flag, "nvlink gpu", "sync/nvlink_barrier",                                      \
      "the flag at the peer is that of this rank")                                                 \
    X(nvlink_counter_stays, "nvlink gpu", "sync/nvlink_barrier", "barriers are numbered")          \
    X(nvlink_arrives_twice, "nvlink gpu", "sync/nvlink_barrier", "one arrival a barrier")          \
    X(nvlink_last_peer_left_out, "nvlink gpu", "sync/nvlink_barrier", "every member is told")      \
    X(nvlink_no_sync_before, "nvlink gpu", "sync/nvlink_barrier",                                  \
      "the block's stores come before its arrival")                                                \
    X(nvlink_no_sync_after, "nvlink gpu", "sync/nvlink_barrier",                                   \
      "threads go on when their block may")                                                        \
    X(block_no_wait, "block", "sync/block_barrier", "waits for every member")                      \
    X(block_one_sided, "block", "sync/block_barrier", "own arrivals are counted")                  \
    X(block_one_behind, "block", "sync/block_barrier", "no member may be one barrier behind")      \
    X(block_arrives_twice, "block", "sync/block_barrier", "one arrival a barrier")                 \
    X(block_wrong_word, "block", "sync/block_barrier",                                             \
      "the word at the peer is that of this rank")                                                 \
    X(block_no_sync_before, "block", "sync/block_barrier",                                         \
      "the block's stores come before its arrival")                                                \
    X(gin_no_wait, "gin gpu", "sync/gin_barrier", "waits for every peer")                          \
    X(gin_weak_signal, "gin gpu", "sync/gin_barrier", "the signal covers earlier puts: strong")    \
    X(gin_signals_on_one_context, "gin gpu", "sync/gin_barrier",                                   \
      "a signal on each context that carried puts")                                                \
    X(gin_waits_on_one_context, "gin gpu", "sync/gin_barrier",                                     \
      "a wait on each context that carried puts")                                                  \
    X(gin_shadow_stays, "gin gpu", "sync/gin_barrier", "each barrier expects new signals")         \
    X(gin_wrong_signal, "gin gpu", "sync/gin_barrier", "the signal is that of its sender")         \
    X(gin_no_sync_before, "gin gpu", "sync/gin_barrier",                                           \
      "the block's puts come before its signals")                                                  \
    X(gin_no_sync_after, "gin", "sync/gin_barrier", "threads go on when their block may")          \
    X(shadow_compare_not_rolling, "gin rank-major", "sync/signal_shadow", "sums may wrap")         \
    X(shadow_one_low, "gin puts rank-major", "sync/signal_shadow",                                 \
      "all expected signals are waited for")                                                       \
    X(follow_forgets, "follow", "sync/signal_shadow", "what was taken is not taken again")         \
    X(gpu_no_bulk_flush, "gpu", "sync/gpu_barrier", "bulk stores are complete before arrival")     \
    X(gpu_flush_reads_only, "gpu", "sync/gpu_barrier", "bulk stores are written, not only read")   \
    X(gpu_no_start_sync, "gpu", "sync/gpu_barrier",                                                \
      "all blocks are ready before the rank says so")                                              \
    X(gpu_no_end_sync, "gpu", "sync/gpu_barrier", "all blocks wait for the meeting")               \
    X(gpu_first_context_only, "gpu", "sync/gpu_barrier", "all named contexts are covered")         \
    X(gpu_wrong_gin_team, "gpu", "sync/gpu_barrier", "a world barrier meets all other teams")      \
    X(gpu_failed_block_stays_away, "absent", "sync/gpu_barrier",                                   \
      "a failed block arrives all the same")                                                       \
    X(gpu_slow_block_leaves, "absent", "sync/gpu_barrier",                                         \
      "a block that finds the step failed takes part all the same")                                \
    X(put_last_flagged, "puts", "channel/aggregated_put", "the last put of a batch rings")         \
    X(put_never_rings_between, "puts", "channel/aggregated_put",                                   \
      "unsent puts do not fill the queue")                                                         \
    X(put_signal_first, "puts", "channel/aggregated_put", "the signal rides on the last put")      \
    X(put_held_one_lost, "puts", "channel/aggregated_put", "closing sends the put that is held")   \
    X(put_old_source, "puts", "channel/aggregated_put", "source and destination belong together")  \
    X(wait_for_ever, "absent", "core/wait", "every wait has a deadline")                           \
    X(wait_ignores_poison, "waits", "core/wait", "a failed step ends its other waits")             \
    X(wait_fails_alone, "absent", "core/wait", "a time-out fails the step")                        \
    X(wait_says_nothing, "absent", "core/wait", "a time-out leaves a record")                      \
    X(wait_verdict_of_one, "absent", "core/wait", "a block has one verdict")                       \
    X(wait_names_nobody, "absent", "core/wait", "the record names who is missing")                 \
    X(dispatch_epoch_stays, "rank-major expert-major", "kernels/dispatch", "steps are numbered")   \
    X(dispatch_closes_early, "rank-major expert-major", "kernels/dispatch",                        \
      "the last block announces")                                                                  \
    X(dispatch_rows_not_awaited, "rank-major expert-major", "kernels/dispatch",                    \
      "LSA rows are waited for")                                                                   \
    X(dispatch_gin_rows_not_awaited, "rank-major expert-major", "kernels/dispatch",                \
      "GIN rows are waited for")                                                                   \
    X(dispatch_arrival_weak, "rank-major expert-major", "kernels/dispatch",                        \
      "the arrival signal covers the rows: strong")                                                \
    X(dispatch_arrival_one_context, "rank-major expert-major", "kernels/dispatch",                 \
      "an arrival signal on each context")                                                         \
    X(dispatch_arrival_shadow_stays, "rank-major expert-major", "kernels/dispatch",                \
      "each step expects new arrivals")                                                            \
    X(dispatch_count_shadow_stays, "rank-major expert-major", "kernels/dispatch",                  \
      "each step expects new count rows")                                                          \
    X(dispatch_no_flush, "rank-major+late expert-major+late", "kernels/dispatch",                  \
      "send buffers are used again after a flush")                                                 \
    X(dispatch_ignores_refusal, "refusal", "kernels/dispatch", "a failed step sends no rows")      \
    X(dispatch_one_buffer, "rank-major expert-major", "kernels/dispatch_context",                  \
      "receive buffers alternate")                                                                 \
    X(count_tag_ignored, "rank-major expert-major", "kernels/dispatch_context",                    \
      "a count is of this step")                                                                   \
    X(count_tag_one_bit, "rank-major expert-major", "kernels/dispatch_context",                    \
      "a tag is the whole epoch")                                                                  \
    X(count_row_not_awaited, "rank-major expert-major", "kernels/dispatch_count",                  \
      "a put count row has landed before it is read")                                              \
    X(count_row_short, "rank-major expert-major", "kernels/dispatch_count",                        \
      "the whole count row is put")                                                                \
    X(count_refusal_ignored, "refusal", "kernels/dispatch_count", "a refusal is heard")            \
    X(count_refusal_unsaid, "refusal", "kernels/dispatch_count", "a refusal is said")              \
    X(refusal_told_again, "refusal", "kernels/report_board", "only the first refusal is told")     \
    X(count_duplicate_accepted, "refusal", "kernels/dispatch_count", "an expert is named once")    \
    X(count_alone_own_tokens, "rank-major expert-major", "kernels/dispatch_count",                 \
      "a block that counts alone counts all tokens")                                               \
    X(count_alone_no_sync, "rank-major+memory", "kernels/dispatch_count",                          \
      "counts are told before they become ordinals")                                               \
    X(count_range_accepted, "refusal", "kernels/dispatch_count", "experts exist")                  \
    X(count_blocks_not_summed, "rank-major expert-major", "kernels/dispatch_count",                \
      "ordinals start behind the lower blocks")                                                    \
    X(count_warps_not_summed, "rank-major expert-major", "kernels/dispatch_count",                 \
      "ordinals start behind the lower warps")                                                     \
    X(count_base_off_by_one, "rank-major expert-major", "kernels/dispatch_count",                  \
      "slots start behind the lower ranks")                                                        \
    X(slot_capacity_ignored, "refusal", "kernels/dispatch_slots", "rows fit the receive buffer")   \
    X(slot_alignment_ignored, "expert-major", "kernels/dispatch_slots",                            \
      "expert blocks are aligned")                                                                 \
    X(slot_send_ranges_overlap, "rank-major expert-major", "kernels/dispatch_slots",               \
      "each key has its own send rows")                                                            \
    X(slot_ordinal_stays, "rank-major expert-major", "kernels/dispatch_slots",                     \
      "each row has its own slot")                                                                 \
    X(copy_chunk_after_one_writer, "rank-major expert-major", "kernels/dispatch_copy",             \
      "a chunk is put when payload and records are there")                                         \
    X(copy_chunk_always_full, "rank-major expert-major", "kernels/dispatch_copy",                  \
      "the last chunk may be short")                                                               \
    X(copy_records_not_put, "rank-major expert-major", "kernels/dispatch_copy",                    \
      "records travel with rows")                                                                  \
    X(copy_batch_not_closed, "rank-major expert-major", "kernels/dispatch_copy",                   \
      "batches are closed")                                                                        \
    X(copy_slot_reused_early, "rank-major expert-major", "kernels/dispatch_copy",                  \
      "a slot is loaded when its stores have left it")                                             \
    X(copy_stores_not_read, "rank-major expert-major", "kernels/dispatch_copy",                    \
      "a slot is free when its stores were read")                                                  \
    X(copy_stores_not_complete, "rank-major expert-major", "kernels/dispatch_copy",                \
      "rows are written before they are announced")                                                \
    X(copy_load_not_awaited, "rank-major expert-major", "kernels/dispatch_copy",                   \
      "a slot is stored when its load has landed")                                                 \
    X(copy_parity_stays, "rank-major expert-major", "kernels/dispatch_copy",                       \
      "mbarrier phases alternate")                                                                 \
    X(copy_slots_not_awaited, "rank-major+memory", "kernels/dispatch_copy",                        \
      "a drawn token's slots are written by another block")                                        \
    X(copy_slots_not_released, "rank-major+memory", "kernels/dispatch_copy",                       \
      "slots come before the word that says so")                                                   \
    X(copy_slots_not_acquired, "rank-major+memory", "kernels/dispatch_copy",                       \
      "slots are read behind the word that says so")                                               \
    X(copy_tickets_stay, "rank-major", "kernels/dispatch_copy", "each step draws from the first")  \
    X(copy_gaps_not_filled, "expert-major", "kernels/dispatch_copy", "padding is marked")          \
    X(combine_epoch_stays, "rank-major expert-major", "kernels/combine", "steps are numbered")     \
    X(combine_closes_early, "rank-major expert-major", "kernels/combine",                          \
      "the last block closes the step")                                                            \
    X(combine_refusal_of_next, "refusal", "kernels/combine_chunks",                                \
      "a refusal counts for its own step")                                                         \
    X(combine_ready_not_awaited, "rank-major expert-major", "kernels/combine",                     \
      "LSA peers' rows are ready before they are read")                                            \
    X(combine_gin_ready_not_awaited, "rank-major+memory expert-major+memory", "kernels/combine",   \
      "home rows are free before they are put")                                                    \
    X(combine_slot_not_empty, "rank-major+memory expert-major+memory", "kernels/combine",          \
      "a slot is filled when it was left")                                                         \
    X(combine_slot_not_full, "rank-major expert-major", "kernels/combine",                         \
      "a slot is read when it is filled")                                                          \
    X(combine_round_stays, "rank-major expert-major", "kernels/combine",                           \
      "mbarrier phases alternate")                                                                 \
    X(combine_tickets_stay, "rank-major expert-major", "kernels/combine",                          \
      "each step draws from the first")                                                            \
    X(combine_weight_dropped, "expert-major", "kernels/combine", "rows are weighted")              \
    X(combine_bias_dropped, "rank-major expert-major", "kernels/combine", "the bias is added")     \
    X(combine_one_buffer, "rank-major expert-major", "kernels/combine_chunks",                     \
      "combine buffers alternate")                                                                 \
    X(combine_chunk_not_awaited, "rank-major expert-major", "kernels/combine_chunks",              \
      "pushed rows are waited for")                                                                \
    X(combine_chunk_off_by_one, "rank-major expert-major", "kernels/combine_chunks",               \
      "the row's own chunk is waited for")                                                         \
    X(combine_chunk_weak, "rank-major expert-major", "kernels/combine_chunks",                     \
      "the n-th signal means n chunks: strong")                                                    \
    X(combine_chunk_shadow_stays, "rank-major expert-major", "kernels/combine_chunks",             \
      "each step expects new chunks")                                                              \
    X(combine_ready_shadow_stays, "rank-major+memory expert-major+memory",                         \
      "kernels/combine_chunks", "each step expects new ready signals")                             \
    X(combine_no_flush, "rank-major+late expert-major+late", "kernels/combine_chunks",             \
      "pushed rows are used again after a flush")                                                  \
    X(fifo_no_credit_check, "fifo fifo-gin fifo-chain", "channel/fifo",                            \
      "a slot is filled when it is free")                                                          \
    X(fifo_credit_one_high, "fifo fifo-gin fifo-chain", "channel/fifo",                            \
      "as many credits as free slots")                                                             \
    X(fifo_tail_first, "fifo fifo-chain", "channel/fifo", "the tail comes after the data")         \
    X(fifo_tail_relaxed, "fifo fifo-chain", "channel/fifo", "the tail is a release")               \
    X(fifo_tail_narrow, "fifo fifo-chain", "channel/fifo",                                         \
      "the tail's release is of system scope")                                                     \
    X(fifo_tail_not_acquired, "fifo fifo-chain", "channel/fifo", "the tail is acquired")           \
    X(fifo_wait_one_low, "fifo fifo-gin fifo-chain", "channel/fifo",                               \
      "all slots that are read are filled")                                                        \
    X(fifo_head_early, "fifo fifo-chain", "channel/fifo", "slots are freed after they were read")  \
    X(fifo_head_never, "fifo fifo-gin fifo-chain", "channel/fifo", "freed slots are told of")      \
    X(fifo_head_relaxed, "fifo fifo-chain", "channel/fifo", "the head is a release")               \
    X(fifo_head_narrow, "fifo fifo-chain", "channel/fifo",                                         \
      "the head's release is of system scope")                                                     \
    X(fifo_head_not_acquired, "fifo fifo-chain", "channel/fifo", "the head is acquired")           \
    X(fifo_head_one_more, "fifo-gin", "channel/fifo", "no slot is freed twice")                    \
    X(fifo_bulk_not_complete, "fifo fifo-gin", "channel/fifo",                                     \
      "bulk stores are written before the tail")                                                   \
    X(fifo_no_fence_before_load, "fifo", "channel/fifo",                                           \
      "a proxy fence between acquire and bulk load")                                               \
    X(fifo_wraps_late, "fifo fifo-gin fifo-chain", "channel/fifo",                                 \
      "the slot after the last is the first")                                                      \
    X(fifo_compare_not_rolling, "fifo fifo-gin", "channel/fifo", "positions may wrap")             \
    X(fifo_cursor_not_kept, "fifo fifo-gin", "channel/fifo",                                       \
      "positions persist from kernel to kernel")                                                   \
    X(fifo_tail_weak, "fifo-gin", "channel/fifo", "the tail covers all puts of its batch: strong") \
    X(fifo_put_over_the_end, "fifo-gin", "channel/fifo", "a put ends at the end of the ring")      \
    X(fifo_no_flush, "fifo-gin+late", "channel/fifo", "send buffers are used again after a flush") \
    X(fifo_head_shadow_stays, "fifo-gin", "channel/fifo", "each kernel expects new heads")         \
    X(fifo_tail_shadow_stays, "fifo-gin", "channel/fifo", "each kernel expects new tails")         \
    X(window_off_by_one, "windowed", "channel/windowed_tail",                                      \
      "at most 31 positions ahead of the tail")                                                    \
    X(window_no_lock, "windowed", "channel/windowed_tail",                                         \
      "one producer moves the tail at a time")                                                     \
    X(window_skips_hole, "windowed", "channel/windowed_tail", "the tail stops at the first hole")  \
    X(window_full_stays, "windowed", "channel/windowed_tail", "a full window is left empty")       \
    X(pipeline_phase_stays, "pipeline", "channel/pipeline", "mbarrier phases alternate")           \
    X(pipeline_empty_not_awaited, "pipeline", "channel/pipeline",                                  \
      "a stage is filled when it was left")                                                        \
    X(pipeline_full_not_awaited, "pipeline", "channel/pipeline",                                   \
      "a stage is read when it is filled")                                                         \
    X(pipeline_no_fence_before_store, "pipeline", "channel/pipeline",                              \
      "a proxy fence between stores and bulk store")                                               \
    X(stream_waits_unpublished, "stream", "kernels/stream_dispatch",                               \
      "a sender that waits for room has published what it stored")                                 \
    X(stream_row_not_written, "stream", "kernels/stream_dispatch",                                 \
      "a row is written before it is published")                                                   \
    X(stream_published_early, "stream", "kernels/stream_dispatch",                                 \
      "only rows whose group is complete are published")                                           \
    X(stream_one_row_lost, "stream", "kernels/stream_dispatch",                                    \
      "the end says how many rows there were")                                                     \
    X(stream_end_of_last_step, "stream", "kernels/stream_dispatch", "an end belongs to its step")  \
    X(stream_header_not_fenced, "stream+memory", "kernels/stream_dispatch",                        \
      "a proxy fence between header and bulk store")                                               \
    X(proxy_fence_dropped, "stream+memory", "core/memory",                                         \
      "a proxy fence on the way from a bulk store to another rank's bulk load")                    \
    X(stream_slot_not_read, "stream+memory", "kernels/stream_dispatch",                            \
      "a slot is loaded again once its stores have read it")                                       \
    X(stream_waits_unreleased, "stream", "kernels/stream_combine",                                 \
      "a receiver that waits for rows has given back what it read")                                \
    X(stream_released_early, "stream+memory", "kernels/stream_combine",                            \
      "a slot is given back after it was read")                                                    \
    X(stream_order_lost, "stream", "kernels/stream_combine",                                       \
      "answers go home in the order of tokens")                                                    \
    X(stream_room_for_one, "stream", "kernels/stream_combine",                                     \
      "rows that are being loaded have their slots")                                               \
    X(nvlink_release_relaxed, "nvlink+memory gpu+memory", "sync/nvlink_barrier",                   \
      "the arrival is a release")                                                                  \
    X(nvlink_release_narrow, "nvlink+memory gpu+memory", "sync/nvlink_barrier",                    \
      "the arrival is released at system scope")                                                   \
    X(nvlink_acquire_relaxed, "nvlink+memory gpu+memory", "sync/nvlink_barrier",                   \
      "the poll is an acquire")                                                                    \
    X(nvlink_acquire_narrow, "nvlink+memory gpu+memory", "sync/nvlink_barrier",                    \
      "the poll acquires at system scope")                                                         \
    X(grid_release_relaxed, "grid+memory gpu+memory", "sync/grid_barrier",                         \
      "the arrival is a release")                                                                  \
    X(grid_release_narrow, "grid+memory gpu+memory", "sync/grid_barrier",                          \
      "the arrival is released at GPU scope")                                                      \
    X(grid_acquire_relaxed, "grid+memory gpu+memory", "sync/grid_barrier",                         \
      "the poll is an acquire")                                                                    \
    X(block_release_relaxed, "block+memory", "sync/block_barrier", "the arrival is a release")     \
    X(block_release_narrow, "block+memory", "sync/block_barrier",                                  \
      "the arrival is released at system scope")                                                   \
    X(block_acquire_relaxed, "block+memory", "sync/block_barrier", "the poll is an acquire")       \
    X(dispatch_arrival_relaxed, "rank-major+memory expert-major+memory", "kernels/dispatch",       \
      "the arrival word is a release")                                                             \
    X(dispatch_arrival_narrow, "rank-major+memory expert-major+memory", "kernels/dispatch",        \
      "the arrival word is released at system scope")                                              \
    X(dispatch_arrival_not_acquired, "rank-major+memory expert-major+memory", "kernels/dispatch",  \
      "the arrival word is acquired")                                                              \
    X(count_header_relaxed, "rank-major+memory expert-major+memory", "kernels/dispatch_count",     \
      "a count header is a release")                                                               \
    X(count_header_not_acquired, "rank-major+memory expert-major+memory",                          \
      "kernels/dispatch_count", "a count header is acquired")                                      \
    X(combine_ready_relaxed, "rank-major+memory expert-major+memory", "kernels/combine",           \
      "the ready word is a release")                                                               \
    X(combine_ready_not_acquired, "rank-major+memory expert-major+memory", "kernels/combine",      \
      "the ready word is acquired")                                                                \
    X(combine_chunk_no_proxy_fence, "rank-major+memory expert-major+memory", "kernels/combine",    \
      "a proxy fence before bulk loads of pushed rows")                                            \
    X(rail_count_not_handed_on, "hybrid", "kernels/hybrid_dispatch",                               \
      "every member gets the count row")                                                           \
    X(rail_count_not_awaited, "hybrid", "kernels/hybrid_dispatch",                                 \
      "a count row is here before it is handed on")                                                \
    X(rail_count_shadow_stays, "hybrid", "kernels/hybrid_dispatch",                                \
      "each step expects new count rows")                                                          \
    X(rail_publishes_one_early, "hybrid", "kernels/hybrid_dispatch",                               \
      "a batch holds the rows that it announces")                                                  \
    X(rail_last_rows_lost, "hybrid", "kernels/hybrid_dispatch", "the last batch may be short")     \
    X(rail_header_of_all_teams, "hybrid", "kernels/hybrid_dispatch",                               \
      "a header names the slots of its team only")                                                 \
    X(rail_tail_weak, "hybrid", "kernels/rail_address",                                            \
      "the tail covers all puts of its batch: strong")                                             \
    X(rail_no_proxy_fence, "hybrid+memory", "kernels/hybrid_dispatch",                             \
      "a proxy fence before bulk loads of acquired rows")                                          \
    X(rail_slot_reused_early, "hybrid+memory", "kernels/hybrid_dispatch",                          \
      "a slot is loaded when its stores have left it")                                             \
    X(rail_ring_position_stays, "hybrid", "kernels/hybrid_dispatch",                               \
      "a visit goes on where the last one ended")                                                  \
    X(rail_ends_early, "hybrid", "kernels/hybrid_dispatch",                                        \
      "a pair is over when all its rows are handed on")                                            \
    X(rail_tail_not_settled, "hybrid", "kernels/hybrid_dispatch", "each step expects new tails")   \
    X(rail_stores_not_complete, "hybrid+memory", "kernels/hybrid_dispatch",                        \
      "rows are written before they are announced")                                                \
    X(rail_no_flush, "hybrid+late", "kernels/hybrid_dispatch",                                     \
      "send buffers are used again after a flush")                                                 \
    X(home_no_proxy_fence, "hybrid+memory", "kernels/combine",                                     \
      "a proxy fence before bulk loads of rows that came home")                                    \
    X(home_row_not_awaited, "hybrid", "kernels/hybrid_combine",                                    \
      "sums are here before they are read")                                                        \
    X(home_row_summed_twice, "hybrid", "kernels/hybrid_combine", "one sum a team")                 \
    X(home_weight_dropped, "hybrid", "kernels/hybrid_combine", "forwarders weight the rows")       \
    X(home_tail_not_awaited, "hybrid+far", "kernels/hybrid_combine",                               \
      "a step ends when all its sums are home")                                                    \
    X(home_tail_not_settled, "hybrid", "kernels/hybrid_combine", "each step expects new tails")    \
    X(home_ready_shadow_stays, "hybrid", "kernels/hybrid_combine",                                 \
      "each step expects new ready signals")                                                       \
    X(home_no_flush, "hybrid+late", "kernels/hybrid_combine",                                      \
      "send buffers are used again after a flush")                                                 \
    X(relay_waits_unpublished, "stream-teams", "kernels/stream_relay",                             \
      "a relay that waits has published what it stored")                                           \
    X(relay_row_not_written, "stream-teams+memory", "kernels/stream_relay",                        \
      "a row is written before it is published")                                                   \
    X(relay_slot_not_read, "stream-teams+memory", "kernels/stream_relay",                          \
      "a slot is loaded when its stores have left it")                                             \
    X(relay_released_early, "stream-teams+memory", "kernels/stream_relay",                         \
      "a slot of the rail is given back after it was read")                                        \
    X(relay_row_lost, "stream-teams", "kernels/stream_relay",                                      \
      "the end says how many rows were handed on")                                                 \
    X(relay_end_not_settled, "stream-teams", "kernels/stream_relay", "each step expects new ends") \
    X(rail_end_one_less, "stream-teams", "kernels/stream_dispatch",                                \
      "an end on the rail counts all rows")                                                        \
    X(sums_released_early, "stream-teams+memory", "kernels/stream_sums",                           \
      "rows have been read before their slots are given back")                                     \
    X(stream_sum_taken_twice, "stream-teams", "kernels/stream_combine",                            \
      "the lowest choice of a team stands for its sum")

namespace gimlet::device {

#define GIMLET_MUTANT_NAME(name, scenarios, place, rule) name,
enum class Mutant : int { none, GIMLET_MUTANTS(GIMLET_MUTANT_NAME) };
#undef GIMLET_MUTANT_NAME

#if GIMLET_EMULATED && defined(GIMLET_MUTATION)
/// Chosen by the program before the simulation starts.
inline Mutant selected_mutant = Mutant::none;
/// How often a run came by the chosen mutation point.
inline std::uint64_t mutant_hits = 0;

inline bool mutated(Mutant mutant) {
    if (mutant != selected_mutant) return false;
    ++mutant_hits;
    return true;
}
#else
GIMLET_DEVICE constexpr bool mutated(Mutant) {
    return false;
}
#endif

/// `right` in the code that ships, `wrong` in the mutant.
template <class T>
GIMLET_DEVICE constexpr T mutate(Mutant mutant, T right, std::type_identity_t<T> wrong) {
    return mutated(mutant) ? wrong : right;
}

}  // namespace gimlet::device

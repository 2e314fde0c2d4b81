// SPDX-License-Identifier: Apache-2.0
// The C ABI as numbers: a change of a line here breaks programs that are already compiled. New
// members come at the end of a struct, with new lines; SIZE then grows. C11.
#include <stddef.h>

#include "runtime/capi/gimlet.h"

#define AT(type, member, offset) \
    _Static_assert(offsetof(type, member) == (offset), #type "." #member " moved")
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define NUMBER(name, number) _Static_assert((name) == (number), #name " has another number")

SIZE(gimlet_runtime_config, 40);
AT(gimlet_runtime_config, struct_bytes, 0);
AT(gimlet_runtime_config, deadline_ns, 8);
AT(gimlet_runtime_config, barrier_gin_context_count, 16);
AT(gimlet_runtime_config, max_cta_count, 20);
AT(gimlet_runtime_config, name, 24);
AT(gimlet_runtime_config, event_ring, 32);

SIZE(gimlet_moe_config, 128);
AT(gimlet_moe_config, struct_bytes, 0);
AT(gimlet_moe_config, expert_count, 8);
AT(gimlet_moe_config, topk, 12);
AT(gimlet_moe_config, hidden, 16);
AT(gimlet_moe_config, max_tokens, 20);
AT(gimlet_moe_config, dispatch_type, 24);
AT(gimlet_moe_config, scale_words, 28);
AT(gimlet_moe_config, combine_type, 32);
AT(gimlet_moe_config, layout, 36);
AT(gimlet_moe_config, expert_alignment, 40);
AT(gimlet_moe_config, pad_fill, 44);
AT(gimlet_moe_config, max_recv_rows, 48);
AT(gimlet_moe_config, sm_budget, 56);
AT(gimlet_moe_config, dispatch_threads, 60);
AT(gimlet_moe_config, combine_threads, 64);
AT(gimlet_moe_config, combine_blocks_per_sm, 68);
AT(gimlet_moe_config, gin_context_count, 72);
AT(gimlet_moe_config, chunk_rows, 76);
AT(gimlet_moe_config, deadline_ns, 80);
AT(gimlet_moe_config, mode, 88);
AT(gimlet_moe_config, publish_rows, 92);
AT(gimlet_moe_config, pre_sum, 96);
AT(gimlet_moe_config, sync, 104);
AT(gimlet_moe_config, tensors, 108);
AT(gimlet_moe_config, ready_rows, 112);
AT(gimlet_moe_config, ring_rows, 116);
AT(gimlet_moe_config, send_rows, 120);

SIZE(gimlet_bootstrap_callbacks, 56);
AT(gimlet_bootstrap_callbacks, struct_bytes, 0);
AT(gimlet_bootstrap_callbacks, context, 8);
AT(gimlet_bootstrap_callbacks, rank, 16);
AT(gimlet_bootstrap_callbacks, size, 20);
AT(gimlet_bootstrap_callbacks, all_gather, 24);
AT(gimlet_bootstrap_callbacks, barrier, 32);
AT(gimlet_bootstrap_callbacks, split, 40);
AT(gimlet_bootstrap_callbacks, release, 48);

SIZE(gimlet_device_error, 64);
AT(gimlet_device_error, primitive, 0);
AT(gimlet_device_error, fault, 4);
AT(gimlet_device_error, rank, 8);
AT(gimlet_device_error, peer, 12);
AT(gimlet_device_error, context, 16);
AT(gimlet_device_error, tag, 20);
AT(gimlet_device_error, token, 24);
AT(gimlet_device_error, padding, 28);
AT(gimlet_device_error, epoch, 32);
AT(gimlet_device_error, expected, 40);
AT(gimlet_device_error, seen, 48);
AT(gimlet_device_error, elapsed_ns, 56);

SIZE(gimlet_health, 80);
AT(gimlet_health, struct_bytes, 0);
AT(gimlet_health, state, 8);
AT(gimlet_health, has_error, 12);
AT(gimlet_health, error, 16);

SIZE(gimlet_group_report, 32);
AT(gimlet_group_report, struct_bytes, 0);
AT(gimlet_group_report, records, 8);
AT(gimlet_group_report, rank_flags, 16);
AT(gimlet_group_report, rank_capacity, 24);
AT(gimlet_group_report, rank_count, 28);

SIZE(gimlet_runtime_info, 80);
AT(gimlet_runtime_info, struct_bytes, 0);
AT(gimlet_runtime_info, rank, 8);
AT(gimlet_runtime_info, size, 12);
AT(gimlet_runtime_info, device, 16);
AT(gimlet_runtime_info, sm_count, 20);
AT(gimlet_runtime_info, lsa_rank, 24);
AT(gimlet_runtime_info, lsa_size, 28);
AT(gimlet_runtime_info, lsa_team_index, 32);
AT(gimlet_runtime_info, lsa_team_count, 36);
AT(gimlet_runtime_info, gin_type, 40);
AT(gimlet_runtime_info, railed_gin_type, 44);
AT(gimlet_runtime_info, symmetric_memory, 48);
AT(gimlet_runtime_info, multimem, 52);
AT(gimlet_runtime_info, deadline_ns, 56);
AT(gimlet_runtime_info, barrier_count, 64);
AT(gimlet_runtime_info, comm, 72);

SIZE(gimlet_rank_place, 48);
AT(gimlet_rank_place, struct_bytes, 0);
AT(gimlet_rank_place, host_id, 8);
AT(gimlet_rank_place, device_id, 16);
AT(gimlet_rank_place, device, 24);
AT(gimlet_rank_place, process_id, 28);
AT(gimlet_rank_place, sm_count, 32);
AT(gimlet_rank_place, mps_client, 36);
AT(gimlet_rank_place, reach, 40);
AT(gimlet_rank_place, padding, 44);

SIZE(gimlet_plan_info, 136);
AT(gimlet_plan_info, struct_bytes, 0);
AT(gimlet_plan_info, rank, 8);
AT(gimlet_plan_info, rank_count, 12);
AT(gimlet_plan_info, local_expert_count, 16);
AT(gimlet_plan_info, first_local_expert, 20);
AT(gimlet_plan_info, sm_budget, 24);
AT(gimlet_plan_info, gin_peer_count, 28);
AT(gimlet_plan_info, gin_context_count, 32);
AT(gimlet_plan_info, signal_count, 36);
AT(gimlet_plan_info, row_capacity, 40);
AT(gimlet_plan_info, worst_case_rows, 48);
AT(gimlet_plan_info, send_capacity, 56);
AT(gimlet_plan_info, window_bytes, 64);
AT(gimlet_plan_info, deadline_ns, 72);
AT(gimlet_plan_info, hash, 80);
AT(gimlet_plan_info, dispatch_row_bytes, 88);
AT(gimlet_plan_info, combine_row_bytes, 92);
AT(gimlet_plan_info, record_bytes, 96);
AT(gimlet_plan_info, token_word, 100);
AT(gimlet_plan_info, source_word, 104);
AT(gimlet_plan_info, index_word, 108);
AT(gimlet_plan_info, weight_word, 112);
AT(gimlet_plan_info, scale_word, 116);
AT(gimlet_plan_info, choice_count, 120);
AT(gimlet_plan_info, expert_counts_offset, 124);
AT(gimlet_plan_info, expert_offsets_offset, 128);
AT(gimlet_plan_info, source_offsets_offset, 132);

SIZE(gimlet_step_counts, 32);
AT(gimlet_step_counts, epoch, 0);
AT(gimlet_step_counts, row_count, 8);
AT(gimlet_step_counts, token_row_count, 12);
AT(gimlet_step_counts, local_expert_count, 16);
AT(gimlet_step_counts, sent_row_count, 20);
AT(gimlet_step_counts, partial, 24);

SIZE(gimlet_slot_ref, 8);
AT(gimlet_slot_ref, rank, 0);
AT(gimlet_slot_ref, slot, 4);

SIZE(gimlet_routing_info, 48);
AT(gimlet_routing_info, struct_bytes, 0);
AT(gimlet_routing_info, slots, 8);
AT(gimlet_routing_info, counts, 16);
AT(gimlet_routing_info, step, 24);
AT(gimlet_routing_info, filled, 32);
AT(gimlet_routing_info, token_count, 36);
AT(gimlet_routing_info, dropped, 40);

SIZE(gimlet_dispatch_inputs, 72);
AT(gimlet_dispatch_inputs, struct_bytes, 0);
AT(gimlet_dispatch_inputs, rows, 8);
AT(gimlet_dispatch_inputs, scales, 16);
AT(gimlet_dispatch_inputs, expert_indices, 24);
AT(gimlet_dispatch_inputs, weights, 32);
AT(gimlet_dispatch_inputs, index_type, 40);
AT(gimlet_dispatch_inputs, token_count, 44);
AT(gimlet_dispatch_inputs, deadline_ns, 48);
AT(gimlet_dispatch_inputs, out_rows, 56);
AT(gimlet_dispatch_inputs, out_records, 64);

SIZE(gimlet_received, 128);
AT(gimlet_received, ready_rows, 112);
AT(gimlet_received, ready_block_rows, 120);
AT(gimlet_received, ready_block_count, 124);
AT(gimlet_received, struct_bytes, 0);
AT(gimlet_received, rows, 8);
AT(gimlet_received, records, 16);
AT(gimlet_received, step, 24);
AT(gimlet_received, row_capacity, 32);
AT(gimlet_received, row_bytes, 40);
AT(gimlet_received, record_bytes, 44);
AT(gimlet_received, epoch, 48);
AT(gimlet_received, has_counts, 56);
AT(gimlet_received, row_count, 60);
AT(gimlet_received, token_row_count, 64);
AT(gimlet_received, sent_row_count, 68);
AT(gimlet_received, local_expert_count, 72);
AT(gimlet_received, rank_count, 76);
AT(gimlet_received, expert_counts, 80);
AT(gimlet_received, expert_offsets, 88);
AT(gimlet_received, source_offsets, 96);
AT(gimlet_received, partial, 104);

SIZE(gimlet_unpack_outputs, 56);
AT(gimlet_unpack_outputs, struct_bytes, 0);
AT(gimlet_unpack_outputs, rows, 8);
AT(gimlet_unpack_outputs, indices, 16);
AT(gimlet_unpack_outputs, weights, 24);
AT(gimlet_unpack_outputs, scales, 32);
AT(gimlet_unpack_outputs, source, 40);
AT(gimlet_unpack_outputs, capacity, 48);

SIZE(gimlet_combine_inputs, 48);
AT(gimlet_combine_inputs, struct_bytes, 0);
AT(gimlet_combine_inputs, out, 8);
AT(gimlet_combine_inputs, bias, 16);
AT(gimlet_combine_inputs, weights, 24);
AT(gimlet_combine_inputs, deadline_ns, 32);
AT(gimlet_combine_inputs, answers, 40);

SIZE(gimlet_exchange_stats, 64);
AT(gimlet_exchange_stats, struct_bytes, 0);
AT(gimlet_exchange_stats, dispatches, 8);
AT(gimlet_exchange_stats, cached_dispatches, 16);
AT(gimlet_exchange_stats, combines, 24);
AT(gimlet_exchange_stats, captured_calls, 32);
AT(gimlet_exchange_stats, host_count_waits, 40);
AT(gimlet_exchange_stats, tokens_dispatched, 48);
AT(gimlet_exchange_stats, recoveries, 56);

SIZE(gimlet_step_traffic, 112);
AT(gimlet_step_traffic, struct_bytes, 0);
AT(gimlet_step_traffic, rows_to, 8);
AT(gimlet_step_traffic, rows_from, 16);
AT(gimlet_step_traffic, rank_capacity, 24);
AT(gimlet_step_traffic, rendezvous, 28);
AT(gimlet_step_traffic, rows_sent, 32);
AT(gimlet_step_traffic, rows_received, 40);
AT(gimlet_step_traffic, lsa_rows_sent, 48);
AT(gimlet_step_traffic, gin_rows_sent, 56);
AT(gimlet_step_traffic, dispatch_bytes_sent, 64);
AT(gimlet_step_traffic, combine_bytes_sent, 72);
AT(gimlet_step_traffic, dispatch_puts, 80);
AT(gimlet_step_traffic, dispatch_doorbells, 88);
AT(gimlet_step_traffic, combine_puts, 96);
AT(gimlet_step_traffic, combine_doorbells, 104);

NUMBER(GIMLET_OK, 0);
NUMBER(GIMLET_INVALID_ARGUMENT, 1);
NUMBER(GIMLET_INVALID_USAGE, 2);
NUMBER(GIMLET_OUT_OF_MEMORY, 3);
NUMBER(GIMLET_CUDA, 4);
NUMBER(GIMLET_NCCL, 5);
NUMBER(GIMLET_MPI, 6);
NUMBER(GIMLET_SYSTEM, 7);
NUMBER(GIMLET_VERSION_MISMATCH, 8);
NUMBER(GIMLET_GIN_UNAVAILABLE, 9);
NUMBER(GIMLET_NOT_SUPPORTED, 10);
NUMBER(GIMLET_CONFIG_MISMATCH, 11);
NUMBER(GIMLET_TIMEOUT, 12);
NUMBER(GIMLET_PEER_FAILED, 13);
NUMBER(GIMLET_OVERFLOW, 14);
NUMBER(GIMLET_CLOSED, 15);
NUMBER(GIMLET_INTERNAL, 16);
NUMBER(GIMLET_LOG_OFF, 0);
NUMBER(GIMLET_LOG_ERROR, 1);
NUMBER(GIMLET_LOG_WARN, 2);
NUMBER(GIMLET_LOG_INFO, 3);
NUMBER(GIMLET_LOG_DEBUG, 4);
NUMBER(GIMLET_LOG_TRACE, 5);
NUMBER(GIMLET_TEXT, 0);
NUMBER(GIMLET_JSON, 1);
NUMBER(GIMLET_FLOAT32, 0);
NUMBER(GIMLET_FLOAT16, 1);
NUMBER(GIMLET_BFLOAT16, 2);
NUMBER(GIMLET_FLOAT8_E4M3, 3);
NUMBER(GIMLET_RANK_MAJOR, 0);
NUMBER(GIMLET_EXPERT_MAJOR, 1);
NUMBER(GIMLET_PAD_NONE, 0);
NUMBER(GIMLET_PAD_ZERO, 1);
NUMBER(GIMLET_INT32, 0);
NUMBER(GIMLET_INT64, 1);
NUMBER(GIMLET_COUNTS_DEVICE, 0);
NUMBER(GIMLET_COUNTS_HOST, 1);
NUMBER(GIMLET_MODE_DIRECT, 0);
NUMBER(GIMLET_MODE_HYBRID, 1);
NUMBER(GIMLET_MODE_AUTOMATIC, 2);
NUMBER(GIMLET_PRE_SUM_ON, 0);
NUMBER(GIMLET_PRE_SUM_OFF, 1);
NUMBER(GIMLET_GRAPH_IN_PLACE, 0);
NUMBER(GIMLET_GRAPH_COPIED, 1);
NUMBER(GIMLET_JOIN_AT_ONCE, 0);
NUMBER(GIMLET_JOIN_LATER, 1);
NUMBER(GIMLET_RANK_HAS_RECORD, 1);
NUMBER(GIMLET_RANK_IS_SUSPECT, 2);
NUMBER(GIMLET_RANK_IS_EXCLUDED, 4);
NUMBER(GIMLET_HEALTH_OPEN, 0);
NUMBER(GIMLET_HEALTH_FAILED, 1);
NUMBER(GIMLET_HEALTH_CLOSED, 2);
NUMBER(GIMLET_GIN_NONE, 0);
NUMBER(GIMLET_GIN_PROXY, 1);
NUMBER(GIMLET_GIN_GDAKI, 2);
NUMBER(GIMLET_GIN_GPI, 3);
NUMBER(GIMLET_GIN_OTHER, 4);
NUMBER(GIMLET_REACH_SELF, 0);
NUMBER(GIMLET_REACH_LSA, 1);
NUMBER(GIMLET_REACH_GIN, 2);
NUMBER(GIMLET_REACH_NONE, 3);

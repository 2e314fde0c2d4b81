# SPDX-License-Identifier: Apache-2.0
# Simulation of whole dispatch and combine steps.
set(gimlet_exchange_test_sources
    ${CMAKE_CURRENT_LIST_DIR}/exchange_faults.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_field.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_life.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_member.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_recovery.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_shapes.cc
    ${CMAKE_CURRENT_LIST_DIR}/exchange_steps.cc
    ${CMAKE_CURRENT_LIST_DIR}/fault_plans.cc
    ${CMAKE_CURRENT_LIST_DIR}/hybrid_failures.cc
    ${CMAKE_CURRENT_LIST_DIR}/hybrid_steps.cc
    ${CMAKE_CURRENT_LIST_DIR}/scale.cc
    ${CMAKE_CURRENT_LIST_DIR}/stream_steps.cc)

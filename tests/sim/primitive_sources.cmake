# SPDX-License-Identifier: Apache-2.0
# Tests of device/core, sync and channel; their worlds and kernels are in runtime/sim.
set(gimlet_primitive_test_sources
    ${CMAKE_CURRENT_LIST_DIR}/channels.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_barriers.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_deadlines.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_flaws.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_puts.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_races.cc)

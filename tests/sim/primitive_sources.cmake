# SPDX-License-Identifier: Apache-2.0
# Tests of device/core, sync and channel. Host programs, and kernels for gimlet_device_sources().
set(gimlet_primitive_test_sources
    ${CMAKE_CURRENT_LIST_DIR}/primitives_barriers.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_deadlines.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_flaws.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_meeting.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_puts.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_races.cc
    ${CMAKE_CURRENT_LIST_DIR}/primitives_world.cc)
set(gimlet_primitive_test_kernels
    ${CMAKE_CURRENT_LIST_DIR}/primitives_kernels.cu)

# SPDX-License-Identifier: Apache-2.0
set(gimlet_device_unit_test_sources
    ${CMAKE_CURRENT_LIST_DIR}/device_context_map.cc
    ${CMAKE_CURRENT_LIST_DIR}/device_rail.cc)
# Functions of device/core that run on the host only when they are compiled for the emulator.
if(GIMLET_BACKEND STREQUAL "emulator")
  list(APPEND gimlet_device_unit_test_sources ${CMAKE_CURRENT_LIST_DIR}/device_numeric.cc)
endif()

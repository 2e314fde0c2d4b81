# SPDX-License-Identifier: Apache-2.0
# Unit tests of runtime/. Targets that they need: gimlet, gimlet_capi.
set(gimlet_unit_runtime_sources
    ${CMAKE_CURRENT_LIST_DIR}/capi_test.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_channels.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_config.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_element.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_generators.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_health.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_npy.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_plan.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_reference.cc
    ${CMAKE_CURRENT_LIST_DIR}/runtime_threads.cc)

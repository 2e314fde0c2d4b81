# SPDX-License-Identifier: Apache-2.0
# The litmus programs: host part, and kernels for gimlet_device_sources().
set(gimlet_litmus_sources ${CMAKE_CURRENT_LIST_DIR}/programs.cc ${CMAKE_CURRENT_LIST_DIR}/world.cc
                          ${CMAKE_CURRENT_LIST_DIR}/kernels/launch.cc)
set(gimlet_litmus_kernels
    ${CMAKE_CURRENT_LIST_DIR}/kernels/bulk.cu ${CMAKE_CURRENT_LIST_DIR}/kernels/gin_completion.cu
    ${CMAKE_CURRENT_LIST_DIR}/kernels/gin_order.cu ${CMAKE_CURRENT_LIST_DIR}/kernels/gin_signals.cu
    ${CMAKE_CURRENT_LIST_DIR}/kernels/lsa.cu)

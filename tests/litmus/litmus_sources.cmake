# SPDX-License-Identifier: Apache-2.0
# The litmus programs: host part, and kernels for gimlet_device_sources().
set(gimlet_litmus_sources ${CMAKE_CURRENT_LIST_DIR}/programs.cc ${CMAKE_CURRENT_LIST_DIR}/world.cc)
set(gimlet_litmus_kernels ${CMAKE_CURRENT_LIST_DIR}/kernels.cu)

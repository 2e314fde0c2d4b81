# SPDX-License-Identifier: Apache-2.0
# Unit tests of host/{base,cuda,bootstrap,nccl}. Those named _sim need the emulator's simulation.
set(gimlet_unit_host_sources
    ${CMAKE_CURRENT_LIST_DIR}/host_base.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_env.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_log.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_bootstrap.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_cuda.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_nccl.cc
    ${CMAKE_CURRENT_LIST_DIR}/host_doctor.cc)
if(GIMLET_BACKEND STREQUAL "emulator")
  list(APPEND gimlet_unit_host_sources ${CMAKE_CURRENT_LIST_DIR}/host_sim.cc)
endif()

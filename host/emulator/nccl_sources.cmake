# SPDX-License-Identifier: Apache-2.0
# Sources of the emulated NCCL; included by CMakeLists.txt of this folder.
set(gimlet_emulator_nccl_sources
    gin_device.cc
    gin_network.cc
    nccl_comm.cc
    nccl_devcomm.cc
    nccl_device_calls.cc
    nccl_rendezvous.cc
    nccl_window.cc
    nccl_world.cc)

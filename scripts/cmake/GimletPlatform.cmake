# SPDX-License-Identifier: Apache-2.0
# Targets and functions that every folder builds on:
#
#   gimlet_options    INTERFACE  include root, warnings; for targets below the platform (the emulator)
#   gimlet_platform   INTERFACE  gimlet_options plus the machine: the emulator, or CUDA and NCCL
#   gimlet_device_sources(target files...)   adds .cu files, compiled for the chosen backend
#
#   gimlet_require(package...)               find_package that says how to install what is missing
#
# Include paths start at the repository root: #include "device/abi/limits.hpp". A target that links
# gimlet_platform needs no include directory of its own, and so stays exportable.

# The arguments are those of find_package, without REQUIRED.
macro(gimlet_require package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found. scripts/install_deps.sh installs it.")
  endif()
endmacro()

add_library(gimlet_options INTERFACE)
target_include_directories(
  gimlet_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gimlet>)
target_compile_features(gimlet_options INTERFACE cxx_std_20)

# Warnings bind our own targets, not a user's who links an installed or embedded Gimlet. NCCL's headers come
# with -I (see FindNCCL) and are not free of the warnings that the cuda backend leaves out; the emulator
# build compiles the same sources with them.
set(gimlet_warnings -Wall -Wextra -Werror=switch -Werror=return-type)
if(GIMLET_BACKEND STREQUAL "cuda")
  list(APPEND gimlet_warnings -Wno-missing-field-initializers)
endif()
set(gimlet_cuda_warnings -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-Wno-unused-function)
target_compile_options(
  gimlet_options INTERFACE "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:${gimlet_warnings}>>"
                           "$<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CUDA>:${gimlet_cuda_warnings}>>")

# The sanitizer goes on every target; directory options come before a target's own, so that
# gimlet_finish_platform() can take the emulator out again.
if(GIMLET_SANITIZE)
  if(NOT GIMLET_BACKEND STREQUAL "emulator")
    message(FATAL_ERROR "GIMLET_SANITIZE needs GIMLET_BACKEND=emulator.")
  endif()
  add_compile_options(-fsanitize=${GIMLET_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${GIMLET_SANITIZE})
  if(GIMLET_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # Its prologue data and functions in sections of their own do not go together in clang 14.
      add_compile_options(-fno-sanitize=function)
    endif()
  endif()
  if(GIMLET_SANITIZE MATCHES "thread")
    # Seen by the uninstrumented emulator sources too, which announce their fibers.
    add_compile_definitions(GIMLET_TSAN=1)
  endif()
  if(GIMLET_SANITIZE MATCHES "address")
    add_compile_definitions(GIMLET_ASAN=1)
  endif()
endif()

add_library(gimlet_platform INTERFACE)
target_link_libraries(gimlet_platform INTERFACE gimlet_options)
if(GIMLET_BACKEND STREQUAL "emulator")
  # The emulator's cuda_runtime.h, cooperative_groups.h, nccl.h and nccl_device.h come before any that
  # the system may have.
  target_include_directories(
    gimlet_platform BEFORE
    INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/host/emulator/include>
              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/gimlet/host/emulator/include>)
  target_compile_definitions(gimlet_platform INTERFACE GIMLET_EMULATOR=1)
  # "#pragma unroll" is nvcc's; the host compiler need not know it.
  target_compile_options(gimlet_platform INTERFACE $<BUILD_INTERFACE:-Wno-unknown-pragmas>)
  if(EXISTS "${PROJECT_SOURCE_DIR}/host/emulator/CMakeLists.txt")
    target_link_libraries(gimlet_platform INTERFACE gimlet_emulator)
  endif()
else()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
  endif()
  enable_language(CUDA)
  set(CMAKE_CUDA_SEPARABLE_COMPILATION OFF)
  find_package(CUDAToolkit 13.0 REQUIRED)
  find_package(NCCL 2.30.5 REQUIRED)
  target_link_libraries(gimlet_platform INTERFACE NCCL::nccl CUDA::cudart_static)
  # CMake 3.25 does not know nvcc's C++20 mode (CUDA_STANDARD 20 is an error there), so the flag is
  # written out. Relaxed constexpr lets the constexpr layout code of device/abi run on both sides.
  target_compile_options(
    gimlet_platform INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>"
                              "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>")
endif()

# gimlet_device_sources(target files...)
# Adds device sources (.cu) to target: as CUDA with nvcc, or as plain C++ for the emulator.
function(gimlet_device_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  if(GIMLET_BACKEND STREQUAL "emulator")
    # An explicit LANGUAGE makes CMake pass "-x c++" (policy CMP0119).
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  endif()
endfunction()

# Called once after all folders: ThreadSanitizer must watch the device code that the emulator runs, not
# the emulator's scheduler.
function(gimlet_finish_platform)
  if(TARGET gimlet_emulator AND GIMLET_SANITIZE MATCHES "thread")
    target_compile_options(gimlet_emulator PRIVATE -fno-sanitize=thread)
  endif()
endfunction()

# SPDX-License-Identifier: Apache-2.0
# Install rules. Included by the top level after all folders, when the targets exist.
#
# Headers keep their paths from the repository root, below include/gimlet, so that a user's
# #include "runtime/runtime.hpp" is the same one that the project writes.
include(CMakePackageConfigHelpers)

set(gimlet_install_targets gimlet_options gimlet_platform)
foreach(target gimlet_emulator gimlet_host gimlet_mpi gimlet_kernels gimlet)
  if(TARGET ${target})
    list(APPEND gimlet_install_targets ${target})
  endif()
endforeach()
install(
  TARGETS ${gimlet_install_targets}
  EXPORT gimletTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# A set of its own: a project in C alone can load it.
install(
  TARGETS gimlet_shared
  EXPORT gimletCTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET gimlet_cli)
  install(TARGETS gimlet_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

if(TARGET gimlet_rma_plugin)
  install(TARGETS gimlet_rma_plugin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(gimlet_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gimlet)
foreach(set gimletTargets gimletCTargets)
  install(
    EXPORT ${set}
    NAMESPACE gimlet::
    DESTINATION ${gimlet_package_dir})
endforeach()

set(gimlet_header_folders device runtime host/base host/cuda host/bootstrap host/nccl)
if(GIMLET_BACKEND STREQUAL "emulator")
  list(APPEND gimlet_header_folders host/emulator)
endif()
foreach(folder IN LISTS gimlet_header_folders)
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}")
    install(
      DIRECTORY ${folder}/
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gimlet/${folder}
      FILES_MATCHING
      PATTERN "*.hpp"
      PATTERN "*.h"
      PATTERN "*.cuh"
      PATTERN "cli" EXCLUDE)
  endif()
endforeach()

if(GIMLET_BACKEND STREQUAL "emulator")
  # Some stand-in headers have no suffix, as the real ones: <cuda/atomic>.
  install(DIRECTORY host/emulator/include/
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gimlet/host/emulator/include)
endif()

set(gimlet_has_mpi FALSE)
if(TARGET gimlet_mpi)
  set(gimlet_has_mpi TRUE)
endif()
configure_package_config_file(
  scripts/cmake/gimletConfig.cmake.in "${PROJECT_BINARY_DIR}/gimletConfig.cmake"
  INSTALL_DESTINATION ${gimlet_package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gimletConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gimletConfig.cmake"
              "${PROJECT_BINARY_DIR}/gimletConfigVersion.cmake" scripts/cmake/FindNCCL.cmake
        DESTINATION ${gimlet_package_dir})

# pkg-config: gimlet.pc, gimlet-mpi.pc for the bootstrap over MPI, and gimlet-c.pc for libgimlet.so. The first
# two are static, and named as files, because -lgimlet is the shared one; a group spares us their order.
set(gimlet_pc_libs "-L\${libdir} -Wl,--start-group")
foreach(library gimlet gimlet_kernels gimlet_host gimlet_emulator)
  if(TARGET ${library})
    get_target_property(name ${library} OUTPUT_NAME)
    if(NOT name)
      set(name ${library})
    endif()
    string(APPEND gimlet_pc_libs " -l:lib${name}.a")
  endif()
endforeach()
string(APPEND gimlet_pc_libs " -Wl,--end-group -lfmt -pthread -ldl -lrt")
set(gimlet_pc_cflags "-std=c++20 -I\${includedir}/gimlet")
if(GIMLET_BACKEND STREQUAL "emulator")
  string(APPEND gimlet_pc_libs " -lboost_context")
  string(APPEND gimlet_pc_cflags
         " -I\${includedir}/gimlet/host/emulator/include -DGIMLET_EMULATOR=1")
else()
  get_filename_component(nccl_lib_dir "${NCCL_LIBRARY}" DIRECTORY)
  string(APPEND gimlet_pc_libs " -L${nccl_lib_dir} -lnccl -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static")
  string(APPEND gimlet_pc_cflags " -I${NCCL_INCLUDE_DIR} -I${CUDAToolkit_INCLUDE_DIRS}")
endif()
configure_file(scripts/cmake/gimlet.pc.in "${PROJECT_BINARY_DIR}/gimlet.pc" @ONLY)
set(gimlet_pc_c_cflags "-I\${includedir}/gimlet")
if(GIMLET_BACKEND STREQUAL "emulator")
  string(APPEND gimlet_pc_c_cflags " -I\${includedir}/gimlet/host/emulator/include")
endif()
configure_file(scripts/cmake/gimlet-c.pc.in "${PROJECT_BINARY_DIR}/gimlet-c.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/gimlet.pc" "${PROJECT_BINARY_DIR}/gimlet-c.pc"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(gimlet_has_mpi)
  string(REPLACE ";" " " gimlet_pc_mpi_libs "${MPI_CXX_LIBRARIES}")
  configure_file(scripts/cmake/gimlet-mpi.pc.in "${PROJECT_BINARY_DIR}/gimlet-mpi.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/gimlet-mpi.pc" DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

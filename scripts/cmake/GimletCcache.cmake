# SPDX-License-Identifier: Apache-2.0
# Uses ccache for C++ and CUDA when it is installed and no other launcher was chosen.
find_program(GIMLET_CCACHE ccache)
mark_as_advanced(GIMLET_CCACHE)
if(GIMLET_CCACHE AND PROJECT_IS_TOP_LEVEL)
  foreach(language C CXX CUDA)
    if(NOT CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER "${GIMLET_CCACHE}")
    endif()
  endforeach()
endif()

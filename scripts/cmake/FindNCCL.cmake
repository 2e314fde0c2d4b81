# SPDX-License-Identifier: Apache-2.0
# Finds NCCL: headers and library of one release.
#
#   NCCL::nccl       imported target; its include folder is passed with -I, not -isystem, because nvcc
#                    searches the CUDA toolkit's own (older) nccl.h before any -isystem folder
#   NCCL_VERSION     such as 2.30.7, read from the header
#   NCCL_ROOT_FOUND  the folder that was taken
#
# Places, in this order: NCCL_HOME (variable, then environment), .deps/nccl in the project (filled by
# scripts/install_deps.sh), the nvidia-nccl wheel of the python3 on PATH, then system prefixes. A place
# counts only if it has both include/nccl.h and lib/libnccl.so*, so that header and library never come
# from two releases.

set(_nccl_roots "")
if(NCCL_HOME)
  list(APPEND _nccl_roots "${NCCL_HOME}")
endif()
if(DEFINED ENV{NCCL_HOME})
  list(APPEND _nccl_roots "$ENV{NCCL_HOME}")
endif()
list(APPEND _nccl_roots "${PROJECT_SOURCE_DIR}/.deps/nccl")
find_program(GIMLET_PYTHON3 python3)
mark_as_advanced(GIMLET_PYTHON3)
if(GIMLET_PYTHON3)
  execute_process(
    COMMAND
      "${GIMLET_PYTHON3}" -c
      "import importlib.util as u; s = u.find_spec('nvidia.nccl'); print(*(s.submodule_search_locations if s else []))"
    OUTPUT_VARIABLE _nccl_wheel
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(_nccl_wheel)
    list(APPEND _nccl_roots "${_nccl_wheel}")
  endif()
endif()
list(APPEND _nccl_roots /usr/local /usr)

# _nccl_try(root): sets _nccl_header_version, _nccl_code and _nccl_library if root is a whole NCCL.
function(_nccl_try root)
  set(_nccl_header_version "" PARENT_SCOPE)
  if(NOT EXISTS "${root}/include/nccl.h")
    return()
  endif()
  file(STRINGS "${root}/include/nccl.h" lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  set(version "")
  foreach(part MAJOR MINOR PATCH)
    string(REGEX MATCH "NCCL_${part} +([0-9]+)" _ "${lines}")
    list(APPEND version "${CMAKE_MATCH_1}")
  endforeach()
  list(GET version 0 major)
  list(GET version 1 minor)
  list(GET version 2 patch)
  string(REPLACE ";" "." version "${version}")
  file(GLOB libraries "${root}/lib/libnccl.so" "${root}/lib/libnccl.so.2" "${root}/lib64/libnccl.so"
       "${root}/lib64/libnccl.so.2" "${root}/lib/${CMAKE_LIBRARY_ARCHITECTURE}/libnccl.so")
  if(NOT libraries)
    return()
  endif()
  list(GET libraries 0 library)
  math(EXPR code "${major} * 10000 + ${minor} * 100 + ${patch}")
  set(_nccl_header_version "${version}" PARENT_SCOPE)
  set(_nccl_code "${code}" PARENT_SCOPE)
  set(_nccl_library "${library}" PARENT_SCOPE)
endfunction()

set(NCCL_ROOT_FOUND "")
set(_nccl_refused "")
foreach(_nccl_root IN LISTS _nccl_roots)
  _nccl_try("${_nccl_root}")
  if(NOT _nccl_header_version)
    continue()
  endif()
  if(NCCL_FIND_VERSION AND _nccl_header_version VERSION_LESS NCCL_FIND_VERSION)
    string(APPEND _nccl_refused "\n  ${_nccl_root}: NCCL ${_nccl_header_version} (code ${_nccl_code}) "
           "is older than ${NCCL_FIND_VERSION}")
    continue()
  endif()
  set(NCCL_ROOT_FOUND "${_nccl_root}")
  set(NCCL_VERSION "${_nccl_header_version}")
  set(NCCL_INCLUDE_DIR "${_nccl_root}/include")
  set(NCCL_LIBRARY "${_nccl_library}")
  break()
endforeach()

if(NOT NCCL_ROOT_FOUND)
  set(_nccl_reason
      "No NCCL ${NCCL_FIND_VERSION} or newer with its library was found. Run scripts/install_deps.sh, which "
      "unpacks the pinned NCCL wheel into .deps/nccl, or set NCCL_HOME to a folder that holds include/nccl.h "
      "and lib/libnccl.so.")
  if(_nccl_refused)
    list(APPEND _nccl_reason " Found, but refused:${_nccl_refused}")
  endif()
  string(CONCAT _nccl_reason ${_nccl_reason})
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR
  VERSION_VAR NCCL_VERSION
  REASON_FAILURE_MESSAGE "${_nccl_reason}")

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl SHARED IMPORTED)
  set_target_properties(
    NCCL::nccl
    PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
               IMPORTED_NO_SONAME FALSE
               INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}"
               SYSTEM FALSE)
endif()

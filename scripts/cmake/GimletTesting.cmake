# SPDX-License-Identifier: Apache-2.0
# gimlet_add_catch_tests(name sources...)   a Catch2 program: sources + tests/support main
# gimlet_write_test_list()                  writes <build>/test_binaries.txt (name, program, source folder),
#                                           which scripts/test.sh runs
#
# Every executable under tests/ whose name ends in _tests is a Catch2 program and is listed, whether it
# was made by gimlet_add_catch_tests or not: a test program cannot be forgotten.

function(gimlet_add_catch_tests name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE gimlet_platform gimlet_test_main)
  if(TARGET gimlet_test_sim)
    target_link_libraries(${name} PRIVATE gimlet_test_sim)
  endif()
  add_test(NAME ${name} COMMAND ${name})
endfunction()

function(gimlet_collect_test_programs folder out)
  set(found "")
  get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE" AND target MATCHES "_tests$")
      list(APPEND found ${target})
    endif()
  endforeach()
  get_property(subfolders DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS subfolders)
    gimlet_collect_test_programs("${subfolder}" below)
    list(APPEND found ${below})
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(gimlet_write_test_list)
  gimlet_collect_test_programs("${PROJECT_SOURCE_DIR}/tests" programs)
  set(lines "")
  foreach(program IN LISTS programs)
    get_target_property(folder ${program} SOURCE_DIR)
    string(APPEND lines "${program} $<TARGET_FILE:${program}> ${folder}\n")
  endforeach()
  get_property(catch2_major GLOBAL PROPERTY GIMLET_CATCH2_MAJOR)
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/test_catch2_major" CONTENT "${catch2_major}\n")
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/test_binaries.txt" CONTENT "${lines}")
endfunction()
